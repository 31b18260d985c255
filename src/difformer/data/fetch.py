"""Files of datasets: found in a folder or the cache, or fetched with checksums."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from platformdirs import user_cache_path

from difformer.errors import DataError
from difformer.files import alone_in, reason_of, replacing
from difformer.progress import progress

ATTEMPTS = 3
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 16
UNKNOWN = ""  # the checksum of a file without a published one; its reader checks the content
LIMIT = 1 << 28  # the most bytes of a file, unless its source allows more


class FetchError(DataError):
    """This source cannot provide the file; another may."""


@dataclass(frozen=True)
class Web:
    """Files below one address."""

    base: str
    limit: int = LIMIT  # the most bytes of a file
    names: Mapping[str, str] = field(default_factory=dict[str, str])  # at the address, if different

    def __str__(self) -> str:
        return urlsplit(self.base).hostname or self.base

    def fetch(self, files: Mapping[str, str], folder: Path) -> None:
        """Bring the named files, with their SHA-256, into the folder."""
        for name, sha256 in files.items():
            url = f"{self.base.rstrip('/')}/{self.names.get(name, name)}"
            _fetch_url(url, folder / name, sha256, self.limit)


@dataclass(frozen=True)
class Zip:
    """Files inside a zip archive at one address; the archive itself is not kept."""

    url: str
    members: str  # the folder inside the archive
    limit: int = LIMIT  # the most bytes of the archive; of a file in it, eight times that

    def __str__(self) -> str:
        return urlsplit(self.url).hostname or self.url

    def fetch(self, files: Mapping[str, str], folder: Path) -> None:
        """Bring the named files, with their SHA-256 where one is known, into the folder."""
        archive = folder / self.url.rsplit("/", 1)[-1]
        try:
            _fetch_url(self.url, archive, UNKNOWN, self.limit)
            with zipfile.ZipFile(archive) as content:
                # Only a named member is read, and written under our name for it: a path inside
                # the archive never becomes a path on disk.
                for name, sha256 in files.items():
                    with content.open(f"{self.members}/{name}") as stream:
                        pieces = iter(partial(stream.read, CHUNK), b"")
                        _store(pieces, folder / name, sha256, 8 * self.limit)
        except KeyError as error:
            raise FetchError(f"{archive.name} lacks {error.args[0]}") from error
        except (zipfile.BadZipFile, EOFError) as error:
            raise FetchError(f"{archive.name} is damaged: {error}") from error
        finally:
            archive.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal. O(size)."""
    return _hexdigest(path, hashlib.sha256())


def _hexdigest(path: Path, digest: Any) -> str:
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def is_whole(path: Path, checksum: str) -> bool:
    """Whether a file has the pinned checksum: a SHA-256, or "git:" and the id of its content.

    Without a checksum, any non-empty file counts as complete.
    """
    size = path.stat().st_size
    if checksum == UNKNOWN:
        return size > 0
    if checksum.startswith("git:"):
        sha1 = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        return f"git:{_hexdigest(path, sha1)}" == checksum
    return sha256_of(path) == checksum


def _fetch_url(url: str, target: Path, sha256: str, limit: int) -> None:
    """Fetch one file over at most ATTEMPTS connections."""
    reason, request = "", Request(url, headers={"User-Agent": "difformer"})
    for _ in range(ATTEMPTS):
        try:
            with urlopen(request, timeout=TIMEOUT) as reply:
                return _store(_received(reply, target.name), target, sha256, limit)
        except HTTPError as error:
            error.close()
            raise FetchError(f"answered {error.code} {error.reason} for {target.name}") from error
        except URLError as error:
            cause = error.reason
            reason = f"no connection ({cause if isinstance(cause, str) else reason_of(cause)})"
        except (HTTPException, ConnectionError, TimeoutError) as error:
            reason = f"the connection was cut off ({reason_of(error)})"
    raise FetchError(f"{reason} at {target.name}")


def _received(reply: Any, name: str) -> Iterator[bytes]:
    """The pieces of a reply, with a bar on a terminal's standard error."""
    expected, size = int(reply.headers.get("Content-Length") or 0), 0
    with progress(name, expected or None, count="bytes") as step:
        try:
            while piece := reply.read(CHUNK):
                size += len(piece)
                step(completed=size)
                yield piece
        except OSError as error:  # not one of the disk, which are for whoever takes the pieces
            raise HTTPException(reason_of(error)) from error
    if size < expected:
        raise HTTPException(f"{size:,} of {expected:,} bytes")


def _store(pieces: Iterable[bytes], target: Path, sha256: str, limit: int) -> None:
    """Write a file in one step if it is whole and has at most `limit` bytes.

    An error on the local disk is not the source's fault: no other source is tried.
    """
    with replacing(target, error=DataError) as part:
        with part.open("wb") as sink:
            for piece in pieces:
                if sink.tell() + len(piece) > limit:
                    raise FetchError(f"{target.name} is larger than {limit >> 20} MiB")
                sink.write(piece)
        if not is_whole(part, sha256):
            raise FetchError(f"{target.name} has the wrong checksum")


@dataclass(frozen=True)
class Source:
    """One form of a dataset: files, by name and checksum, in a folder below the data root."""

    origin: Web | Zip | None  # None: the user puts the files there
    folder: str
    files: Mapping[str, str]

    def missing(self, root: Path) -> list[str]:
        """The files that are not there."""
        return [name for name in self.files if not (root / self.folder / name).exists()]

    def damaged(self, root: Path) -> list[str]:
        """The files whose checksum is not the pinned one. O(bytes)."""
        places = {name: root / self.folder / name for name in self.files}
        return [n for n, at in places.items() if at.is_file() and not is_whole(at, self.files[n])]


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


def find(name: str, sources: Sequence[Source], root: Path | None = None) -> Path | None:
    """The first folder with all files of a source, verified; None if there is none.

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
            return place / source.folder
    return None


def obtain(name: str, sources: Sequence[Source], root: Path | None = None) -> Path:
    """The dataset's files, found or else fetched into the cache."""
    try:
        return find(name, sources, root) or fetch(name, sources)
    except FetchError as error:
        places = ", ".join(str(place) for place in search_path(root))
        raise DataError(f"{name} is not in {places}; {error}") from error


def fetch(name: str, sources: Sequence[Source], root: Path | None = None) -> Path:
    """Fetch a dataset into `root`, or the cache, from the first source that has it.

    Files that are present and complete are kept, in any form; damaged ones are replaced.
    """
    place = root or cache_dir()
    reasons: list[str] = []
    for source in sources:
        folder = place / source.folder
        if source.origin is None:
            if not source.missing(place) and not source.damaged(place):
                return folder
            continue
        try:
            # Another process that fetches the same files is waited for; then they are there.
            with alone_in(folder):
                if wanted := [*source.missing(place), *source.damaged(place)]:
                    source.origin.fetch({name: source.files[name] for name in wanted}, folder)
            return folder
        except FetchError as error:
            reasons.append(f"{source.origin}: {error}")
    example = f"{sources[0].folder}/{next(iter(sources[0].files))}"
    raise FetchError(
        f"{name} could not be fetched ({'; '.join(reasons)}): connect and run `difformer datasets "
        f"fetch {name}`, or point --data-dir or $DIFFORMER_DATA at a folder with {example}"
    )
