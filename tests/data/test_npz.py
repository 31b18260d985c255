"""Arrays from files that anyone may have made; feature files are read back, or refused by name."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from difformer.data import npz
from difformer.data.features import FeatureFile, read_features, standardize, write_features
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


def test_damage_is_one_line_and_absence_is_said(tmp_path: Path) -> None:
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
    with pytest.raises(DataError, match="nowhere.npz does not exist"):
        read_features(tmp_path / "nowhere.npz")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    given = FeatureFile(
        torch.randn(4, 3), torch.tensor([0, 1, -1, 0]), ("a", "b"), ("w", "x", "y", "z"), "by hand"
    )
    path = write_features(tmp_path / "deep/er/f.npz", given)
    read = read_features(path)
    assert torch.equal(read.x, given.x)
    assert read.y is not None
    assert read.y.tolist() == [0, 1, -1, 0]
    assert (read.class_names, read.names, read.made) == (
        ("a", "b"),
        ("w", "x", "y", "z"),
        "by hand",
    )
    assert [p.name for p in path.parent.iterdir()] == ["f.npz"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 2))}, "has no array 'features'; it has x"),
        ({"features": np.zeros(4)}, r"features must be \(rows, columns\) numbers"),
        ({"features": np.zeros((0, 4))}, r"features must be \(rows, columns\) numbers"),
        ({"features": np.array([["a", "b"]])}, r"features must be \(rows, columns\) numbers"),
        ({"features": np.array([[1, np.nan], [1, 2]])}, "must be finite, 1 of 2 rows are not"),
        ({"features": np.zeros((2, 2)), "labels": np.zeros(3, int)}, "2 rows of .*, but 3 labels"),
        ({"features": np.zeros((2, 2)), "labels": np.zeros(2)}, r"labels must be \(rows,\) whole"),
        (
            {"features": np.zeros((2, 2)), "labels": np.array([0, 2]), "classes": np.array(["a"])},
            "names 1 classes, but has label 2",
        ),
        ({"features": np.zeros((2, 2)), "classes": np.zeros(2)}, "classes must be a list of text"),
    ],
)
def test_what_does_not_match_is_named(tmp_path: Path, arrays: Any, message: str) -> None:
    np.savez(tmp_path / "f.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_features(tmp_path / "f.npz")


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot write"):
        write_features(tmp_path / "file/f.npz", FeatureFile(torch.zeros(1, 1)))
    (tmp_path / "taken.npz").mkdir()
    with pytest.raises(DataError, match="cannot write"):
        write_features(tmp_path / "taken.npz", FeatureFile(torch.zeros(1, 1)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "taken.npz"]


def test_standardized_columns_have_mean_0_and_deviation_1_or_0() -> None:
    x = standardize(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    assert torch.equal(x, torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
