"""Every dataset by name. To add one: a file with `load(name, root, **options)`, and a line here.

A family whose files are fetched also has `sources(name)`, one for each form of the files.

No torch here, so that `difformer datasets` is fast. The module of a family is imported when one of
its datasets is loaded.
"""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from difformer.extensions import added

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.raw import Images, Texts


Raw = Literal["images", "text"]


class Entry(NamedTuple):
    """The module of a dataset's family, and a one-line description of the dataset.

    Args:
        raw: what its features are made from; the module then also has `load_raw(name, root)`.
    """

    module: str
    summary: str
    raw: Raw | None = None


DATASETS: dict[str, Entry] = {
    "digits": Entry(
        "difformer.data.digits",
        "1,797 images of handwritten digits, 8 × 8; no graph; embedded",
        raw="images",
    ),
    "cora": Entry(
        "difformer.data.planetoid",
        "2,708 papers, 5,278 citations, 1,433 words, 7 classes; embedded",
    ),
    "citeseer": Entry(
        "difformer.data.planetoid",
        "3,327 papers, 4,552 citations, 3,703 words, 6 classes; embedded",
    ),
    "pubmed": Entry(
        "difformer.data.planetoid",
        "19,717 papers, 44,324 citations, 500 words, 3 classes; embedded",
    ),
    "cifar10": Entry(
        "difformer.data.raw",
        "15,000 images of 32 × 32, 10 classes, features of each; no graph",
        raw="images",
    ),
    "stl10": Entry(
        "difformer.data.raw",
        "13,000 images of 96 × 96, 10 classes, features of each; no graph",
        raw="images",
    ),
} | {name: Entry(*entry) for name, entry in added("datasets").items()}


def list_datasets() -> list[str]:
    """The names `load_dataset` knows.

    >>> "digits" in list_datasets()
    True
    """
    return list(DATASETS)


def load_dataset(name: str, root: str | Path | None = None, **options: Any) -> Dataset:
    """Load a dataset by name; files that are not found are fetched into the user's cache.

    Files are searched in `root`, then `$DIFFORMER_DATA`, then the cache. `options` depend on the
    dataset, such as `normalize=False` for the citation graphs.

    Raises:
        ValueError: an unknown name (the error lists the known ones) or option.
        DataError: the data is not found, damaged, or cannot be fetched; the error says what to do.
    """
    load = _family(name).load
    known = [p.name for p in signature(load).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise ValueError(
                f"{name} takes no option {option!r}; its options: {', '.join(known) or 'none'}"
            )
    return load(name, _folder(root), **options)


def raw_datasets(kind: Raw | None = None) -> list[str]:
    """The names `load_raw` knows, or those of one kind.

    >>> raw_datasets("text")
    ['20news']
    """
    found = {name: entry.raw for name, entry in DATASETS.items() if entry.raw is not None}
    return [name for name, raw in found.items() if kind in (None, raw)]


def load_raw(name: str, root: str | Path | None = None) -> Images | Texts:
    """The images or texts that the features of a dataset are made from, one per row."""
    if name not in raw_datasets():
        raise ValueError(f"dataset must be one of {', '.join(raw_datasets())}, not {name!r}")
    return _family(name).load_raw(name, _folder(root))


def fetch_dataset(name: str, root: str | Path | None = None) -> Path | None:
    """Fetch a dataset into `root`, or the cache, and return its folder; None if it is embedded.

    Files that are present and complete are kept; damaged ones are replaced.
    """
    from difformer.data.fetch import fetch

    family = _family(name)
    sources = family.sources(name) if hasattr(family, "sources") else ()
    return fetch(name, sources, _folder(root)) if sources else None


def _family(name: str) -> ModuleType:
    if name not in DATASETS:
        raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, not {name!r}")
    return import_module(DATASETS[name].module)


def _folder(root: str | Path | None) -> Path | None:
    return None if root is None else Path(root).expanduser()
