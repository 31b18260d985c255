"""Datasets that only the paper's tables need; each file has `load` and `sources`."""

from __future__ import annotations

# Module, description, and what the features are made from, if they are.
DATASETS: dict[str, tuple[str, ...]] = {
    "actor": (f"{__name__}.heterophilous", "7,600 actors, 26,659 edges, 932 words, 5 classes"),
    "chameleon": (f"{__name__}.heterophilous", "2,277 pages, 31,371 edges, 2,325 words, 5 classes"),
    "chameleon-filtered": (f"{__name__}.heterophilous", "chameleon without duplicates, 890 pages"),
    "squirrel": (f"{__name__}.heterophilous", "5,201 pages, 198,353 edges, 2,089 words, 5 classes"),
    "squirrel-filtered": (f"{__name__}.heterophilous", "squirrel without duplicates, 2,223 pages"),
    "20news": (
        f"{__name__}.news",
        "9,607 posts of ten newsgroups, TF-IDF of 236 words; no graph",
        "text",
    ),
    "pokec": (
        f"{__name__}.pokec",
        "1,632,803 people, 30,622,564 friendships, 65 features, 2 classes",
    ),
    "ogbn-proteins": (
        f"{__name__}.proteins",
        "132,534 proteins, 39,561,252 links, 8 features, 112 tasks",
    ),
    "social": (
        f"{__name__}.social",
        "a generated network of Pokec's size and kind, or any other size",
    ),
    "chickenpox": (f"{__name__}.temporal", "521 weeks of 20 counties, 4 lags, one graph"),
    "covid": (f"{__name__}.temporal", "61 days of 129 regions, 8 lags, one weighted graph per day"),
    "wikimath": (f"{__name__}.temporal", "731 days of 1,068 pages, 14 lags, one weighted graph"),
}
