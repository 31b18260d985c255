"""Arrays from files that anyone may have made: a small file cannot fill the memory."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from difformer.data import npz
from difformer.data.features import read_features
from difformer.errors import DataError
from difformer_paper.datasets.heterophilous import ARRAYS, read_npz


def npy(shape: tuple[int, ...], dtype: str, content: bytes) -> bytes:
    """An .npy file whose header says one thing and whose content may be another."""
    stream = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + content


def write_zip(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def bomb(path: Path, *names: str) -> Path:
    """About 10 kB that unpack to 10 MB."""
    content = npy((10, 1 << 18), "<f4", bytes(10 << 20))
    return write_zip(path, dict.fromkeys(names, content))


def test_whole_files_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"a": rng.normal(size=(3, 5)), "b": np.array(["é", "x"]), "c": np.array(4)}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    read = npz.read_npz(tmp_path / "a.npz")
    assert read.keys() == arrays.keys()
    assert all(np.array_equal(read[name], array) for name, array in arrays.items())
    assert list(npz.read_npz(tmp_path / "a.npz", ["c"])) == ["c"]


def test_a_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, graph = bomb(tmp_path / "f.npz", "features"), bomb(tmp_path / "g.npz", *ARRAYS)
    monkeypatch.setattr(npz, "LARGEST", 1 << 20)
    monkeypatch.setattr(zipfile.ZipFile, "open", None)  # nothing is unpacked
    message = r"it unpacks to [\d,]+ bytes, [\d,]+ are allowed"
    with pytest.raises(DataError, match=message):
        read_features(features)
    with pytest.raises(DataError, match=message):
        read_npz(graph, "actor")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy((1 << 40, 1 << 20), "<f8", b"12345678"), "must hold"),
        (npy((2, 2), "<f4", bytes(20)), "must hold"),
        (npy((1,), "|O", bytes(8)), "pickle"),
        (npy((-1, -2), "<f4", bytes(8)), "the shape"),
        (b"not an array", "magic"),
        (b"", "EOF"),
    ],
)
def test_a_header_that_disagrees_with_the_bytes_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = write_zip(tmp_path / "f.npz", {"features": content})
    with pytest.raises(DataError, match=f"is not a feature file: .*{message}"):
        read_features(path)


def test_damage_is_one_line(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "f.npz", {"features": npy((50, 2), "<f8", bytes(range(200)) * 4)})
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        content = bytearray(whole)
        for place in rng.integers(len(content), size=2):
            content[place] = int(rng.integers(256))
        path.write_bytes(bytes(content[: int(rng.integers(1, len(content) + 1))]))
        try:
            read_features(path)
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017
    write_zip(path, {"features": npy((1, 1), "<f4", bytes(4))}, zipfile.ZIP_LZMA)
    with pytest.raises(DataError, match="compressed in a way that numpy does not use"):
        read_features(path)
