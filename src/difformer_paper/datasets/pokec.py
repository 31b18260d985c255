"""Pokec: 1,632,803 people of a Slovak social network, 30,622,564 friendships; the class is gender.

Two forms are read, in a folder `pokec` of the data root:

pokec.mat   the file that the released script of the paper loads (LINKX, Lim et al., 2021): its
            keys edge_index, node_feat (65 columns) and label. Put it there yourself; its publisher
            offers it only through a browser.
soc-pokec-relationships.txt.gz, soc-pokec-profiles.txt.gz
            the raw dump of SNAP (Takac and Zabovsky, 2012), fetched from there. The profiles are
            turned into 65 features of our own: public, completion, registration and last login,
            age and whether it is given, eight regions, and which of 51 texts are given.

Splits: "paper" is 10/10/80, "released" 50/25/25; the class is -1 where gender is not given.
"""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from difformer.data.dataset import Dataset
from difformer.data.fetch import UNKNOWN, Source, Web, obtain
from difformer.errors import DataError
from difformer.files import reading
from difformer_paper.datasets.proteins import read_matrix, reading_text
from difformer_paper.datasets.social import people_dataset

SNAP = Web("https://snap.stanford.edu/data", limit=1 << 31)
RELATIONS, PROFILES, MAT = (
    "soc-pokec-relationships.txt.gz",
    "soc-pokec-profiles.txt.gz",
    "pokec.mat",
)
# user_id, public, completion, gender, region, last login, registration, age; the rest is text.
COLUMNS, FIRST_TEXT = 59, 8
REGIONS = (
    "bratislavsky kraj",
    "trnavsky kraj",
    "trenciansky kraj",
    "nitriansky kraj",
    "zilinsky kraj",
    "banskobystricky kraj",
    "presovsky kraj",
    "kosicky kraj",
)
FEATURES = 6 + len(REGIONS) + COLUMNS - FIRST_TEXT
OLDEST = date(1999, 1, 1).toordinal()  # Pokec began in 1999; dates count from there, in years


def sources(name: str) -> tuple[Source, ...]:
    """Both forms: the file of the released script, never fetched, then the raw dump.

    Neither publisher gives a checksum.
    """
    files = {RELATIONS: UNKNOWN, PROFILES: UNKNOWN}
    return Source(None, "pokec", {MAT: UNKNOWN}), Source(SNAP, "pokec", files)


def load(name: str = "pokec", root: Path | None = None) -> Dataset:
    """The dataset, from the form that is found; without one the raw dump (1.5 GB) is fetched."""
    folder = obtain(name, sources(name), root)
    return read_mat(folder / MAT, name) if (folder / MAT).is_file() else read_dump(folder, name)


def read_mat(path: Path, name: str = "pokec") -> Dataset:
    """Read the MATLAB file of the released script."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content: Any = loadmat(str(path))
        edges = np.asarray(content["edge_index"], dtype=np.int64)
        x = np.asarray(content["node_feat"], dtype=np.float32)
        y = np.asarray(content["label"], dtype=np.int64).ravel()
    except (MatReadError, OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise DataError(f"{path} is not the Pokec of the released script: {error}") from error
    return _dataset(path, name, x, y, edges)


def read_dump(folder: Path, name: str = "pokec") -> Dataset:
    """Read SNAP's two text files, of any size; ids run from 1."""
    x, y = _read_profiles(folder / PROFILES)
    edges = read_matrix(folder / RELATIONS, 2, separator="\t").T - 1
    return _dataset(folder / RELATIONS, name, x, y, np.ascontiguousarray(edges))


def _dataset(path: Path, name: str, x: Any, y: Any, edges: Any) -> Dataset:
    source = "Pokec (Takac and Zabovsky, 2012), snap.stanford.edu"
    with reading(path, error=DataError):
        return people_dataset(name, x, y, edges, class_names=("woman", "man"), source=source)


def _read_profiles(path: Path) -> tuple[Any, Any]:
    rows: dict[int, tuple[Any, int]] = {}
    with reading_text(path), gzip.open(path) as stream:
        for number, line in enumerate(stream, 1):
            cells = line.rstrip(b"\r\n").split(b"\t")
            if len(cells) == COLUMNS + 1 and not cells[-1]:  # SNAP's lines end in a tab
                cells.pop()
            if len(cells) != COLUMNS:
                why = f"{len(cells)} columns where {COLUMNS} must be"
                raise DataError(f"{path}, line {number}: {why}")
            try:
                known = [b"" if cell == b"null" else cell for cell in cells]
                rows[int(cells[0])] = (_features(known), int(known[3] or -1))
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}") from error
    if sorted(rows) != list(range(1, len(rows) + 1)):
        raise DataError(f"{path} must hold each of the people 1 to {len(rows)} once")
    features, genders = zip(*(rows[user] for user in sorted(rows)), strict=True)
    return np.stack(features), np.array(genders, dtype=np.int64)


def _features(cells: list[bytes]) -> Any:
    """The 65 features of a person from the cells of a line, empty where nothing is given."""
    out, age = np.zeros(FEATURES, dtype=np.float32), int(cells[7] or 0)
    out[0], out[1] = cells[1] == b"1", float(cells[2] or 0) / 100
    for place, cell in enumerate(cells[5:7], 2):  # decades since 1999: 2012-05-25 11:20:00.0
        if cell:
            day = date.fromisoformat(cell[:10].decode()).toordinal()
            out[place] = (day - OLDEST) / 3652.5
    out[4], out[5] = age / 100, age > 0
    region = cells[4].decode("utf-8", "replace").split(",")[0].strip()
    if region in REGIONS:
        out[6 + REGIONS.index(region)] = 1
    out[6 + len(REGIONS) :] = [cell != b"" for cell in cells[FIRST_TEXT:]]
    return out
