"""20news: ten of the twenty newsgroups, 9,607 posts, TF-IDF of 236 words; no graph.

Source: 20 Newsgroups (Lang, 1995; public), the "bydate" collection, http://qwone.com/~jason. As in
the paper, the ten classes and the words (in at least 5 % of the posts, without English stop words)
are those of Franceschi et al., "Learning discrete structures for graph neural networks" (2019).
"""

from __future__ import annotations

import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from difformer.data.dataset import Dataset, csr_tensor
from difformer.data.features import read_features, standardize
from difformer.data.fetch import UNKNOWN, Source, Web, obtain
from difformer.data.neighbours import neighbour_edges
from difformer.data.raw import Texts
from difformer.errors import DataError
from difformer.files import reason_of

CLASSES = (
    "alt.atheism",
    "comp.sys.ibm.pc.hardware",
    "misc.forsale",
    "rec.autos",
    "rec.sport.hockey",
    "sci.crypt",
    "sci.electronics",
    "sci.med",
    "sci.space",
    "talk.politics.guns",
)
NUM_POSTS = 9607
SOURCE = "20 Newsgroups, bydate (Lang, 1995), ten classes after Franceschi et al. (2019)"

PARTS = ("20news-bydate-train", "20news-bydate-test")
ARCHIVES = ("20news-bydate.tar.xz", "20news-bydate.tar.gz")
# What may be there: an archive, or a folder of the posts. The archive that scikit-learn fetches too
# is fetched. scikit-learn caches the posts as a pickle, which is unsafe in a folder that others can
# write to; here the archive itself is kept.
SOURCES = (
    *(Source(None, "20news", {name: UNKNOWN}) for name in ARCHIVES),
    Source(None, "20news", dict.fromkeys(PARTS, UNKNOWN)),
    Source(
        Web("https://ndownloader.figshare.com/files", names={ARCHIVES[1]: "5975967"}),
        "20news",
        {ARCHIVES[1]: "8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610"},
    ),
)
LARGEST_POST = 1 << 22  # bytes; the largest real one has 160,616
LARGEST = 1 << 28  # bytes of all posts; the real ones have 21 million
_MEMBER = re.compile(r"(?:\./)?(20news-bydate-(?:train|test))/([\w.-]+)/(\d+)")


class Post(NamedTuple):
    """One post: the part of the collection, its newsgroup, its number there, its text."""

    part: str
    group: str
    number: str
    text: str


def sources(name: str) -> tuple[Source, ...]:
    """Where it comes from."""
    return SOURCES


def load(
    name: str = "20news",
    root: Path | None = None,
    *,
    features: str = "tfidf",
    min_df: float = 0.05,
    neighbours: int = 0,
) -> Dataset:
    """The posts of the ten classes, in scikit-learn's order: train then test, by class and number.

    Args:
        features: "tfidf", or the path of a feature file with one row per post in this order, such
            as `difformer features 20news --encoder minilm` makes; its columns are standardised.
        min_df: the smallest share of the posts that a word must occur in ("tfidf" only).
        neighbours: if above 0, a graph that joins each post to this many nearest by cosine.
    """
    posts = load_posts(root)
    y = _classes(posts)
    if features == "tfidf":
        x, source = tfidf([post.text for post in posts], min_df=min_df), SOURCE
    else:
        path = Path(features).expanduser()
        file = read_features(path).check_rows(y, path, "20news")
        x, source = standardize(file.x), f"{SOURCE}; features {path.name}"
    edges = neighbour_edges(x, neighbours)
    return Dataset(name=name, x=x, y=y, edge_index=edges, class_names=CLASSES, source=source)


def tfidf(texts: list[str], *, min_df: float = 0.05) -> Any:
    """TF-IDF as sparse CSR, unit rows, for words in at least `min_df` of the texts. O(words).

    x_iw = count_iw · (1 + ln(n / df_w)), then each row divided by its length; as the released code
    does it, without smoothing.
    """
    if not 0 < min_df <= 1:
        raise ValueError(f"min_df must lie in (0, 1], got {min_df}")
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

    try:
        words: Any = CountVectorizer(stop_words="english", min_df=cast("Any", min_df))
        counts = words.fit_transform(texts)
    except ValueError as error:  # no word is left, or none is in enough texts
        raise ValueError(f"min_df={min_df} leaves no words: {error}") from error
    return csr_tensor(TfidfTransformer(smooth_idf=False).fit_transform(counts))


def load_raw(name: str = "20news", root: Path | None = None) -> Texts:
    """The posts themselves, in the order of `load`: what its features are made from."""
    posts = load_posts(root)
    names = tuple(f"{post.part}/{post.group}/{post.number}" for post in posts)
    return Texts([post.text for post in posts], _classes(posts), CLASSES, names)


def load_posts(root: Path | None = None) -> list[Post]:
    """The 9,607 posts, from the first place that has them, else fetched into the cache."""
    folder = obtain("20news", SOURCES, root)
    path = next((folder / name for name in ARCHIVES if (folder / name).is_file()), folder)
    posts = read_posts(path)
    if len(posts) != NUM_POSTS:
        raise DataError(
            f"{path} has {len(posts)} posts of the ten classes, not {NUM_POSTS}: it is incomplete"
        )
    return posts


def read_posts(path: Path) -> list[Post]:
    """The posts of the ten classes in an archive or a folder, sorted. Nothing is written. O(bytes).

    In an archive only regular files with a post's name are read; no path in it becomes a path on
    disk.
    """
    found = list(_in_folder(path) if path.is_dir() else _in_archive(path))
    return sorted(found, key=lambda post: (PARTS.index(post.part), post.group, post.number))


def _in_archive(path: Path) -> Iterator[Post]:
    count = total = 0
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                match = _MEMBER.fullmatch(member.name)
                if match is None or not member.isfile() or match[2] not in CLASSES:
                    continue
                if member.size > LARGEST_POST:
                    raise DataError(f"{path}: {member.name} has {member.size} bytes, too many")
                total += member.size
                if total > LARGEST:
                    raise DataError(f"{path} unpacks to more than {LARGEST:,} bytes of posts")
                content = cast("Any", archive.extractfile(member)).read()  # of a regular file
                if len(content) != member.size:
                    raise EOFError(f"{member.name} ends early")
                count += 1
                yield Post(match[1], match[2], match[3], content.decode("latin1"))
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise DataError(
            f"{path} is truncated or damaged after {count} posts ({error}): delete it, "
            "then run `difformer datasets fetch 20news`"
        ) from error


def _in_folder(path: Path) -> Iterator[Post]:
    for part, group in product(PARTS, CLASSES):
        folder = path / part / group
        try:
            for file in folder.iterdir():
                if file.name.isdigit():
                    yield Post(part, group, file.name, file.read_bytes().decode("latin1"))
        except OSError as error:
            place = error.filename or folder
            raise DataError(f"cannot read {place}: {reason_of(error)}") from error


def _classes(posts: list[Post]) -> Tensor:
    return torch.tensor([CLASSES.index(post.group) for post in posts])
