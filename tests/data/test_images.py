"""cifar10, stl10 and folders of images: layouts read to the pixel, damage named and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from difformer.data.raw import load_raw, read_cifar, read_folder, read_stl
from difformer.data.registry import load_dataset
from difformer.errors import DataError

Array = np.ndarray[Any, Any]


def write_cifar(folder: Path, n: int = 40, classes: int = 10) -> Array:
    """n images with labels 0, 1, ... in turn, in two batch files; the pixels (n, 3, 32, 32)."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    labels = (np.arange(n) % classes).astype(np.uint8)
    records = np.concatenate([labels[:, None], pixels.reshape(n, -1)], axis=1)
    records[: n // 2].tofile(folder / "data_batch_1.bin")
    records[n // 2 :].tofile(folder / "test_batch.bin")
    (folder / "batches.meta.txt").write_text("\n".join(f"class{i}" for i in range(10)) + "\n")
    return pixels


def write_stl(folder: Path, n: int = 6) -> Array:
    """n images split over train and test, each plane column by column; the pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(1).integers(0, 256, (n, 3, 96, 96), dtype=np.uint8)
    labels = (np.arange(n) % 10 + 1).astype(np.uint8)
    for part, rows in (("train", slice(0, 2)), ("test", slice(2, n))):
        columns = pixels[rows].transpose(0, 1, 3, 2)
        np.ascontiguousarray(columns).tofile(folder / f"{part}_X.bin")
        labels[rows].tofile(folder / f"{part}_y.bin")
    (folder / "class_names.txt").write_text("\n".join("abcdefghij"))
    return pixels


def test_the_real_images_and_features_agree(data_root: Path) -> None:
    data, images = load_dataset("cifar10", data_root), load_raw("cifar10", data_root)
    assert (data.num_rows, data.num_features, data.num_outputs) == (15_000, 1_280, 10)
    assert torch.equal(data.y, images.y)
    assert torch.bincount(data.y).tolist() == [1500] * 10
    assert data.class_names == images.class_names
    split = data.split("per-class:10:3")
    assert split.describe() == "per-class:10:3: 100 train, 1000 val, 13900 test"
    assert float(data.x.mean(0).abs().max()) < 1e-4


def test_cifar_is_read_to_the_pixel(tmp_path: Path) -> None:
    pixels = write_cifar(tmp_path / "cifar10/cifar-10-batches-bin")
    images = load_raw("cifar10", tmp_path, per_class=4)
    np.testing.assert_array_equal(images.pixels.numpy(), pixels)
    assert images.y.tolist() == [i % 10 for i in range(40)]
    first = load_raw("cifar10", tmp_path, per_class=1)
    assert first.y.tolist() == list(range(10))
    data = load_dataset("cifar10", tmp_path, features="pixels", per_class=4, normalize=False)
    torch.testing.assert_close(data.x, torch.from_numpy(pixels).flatten(1).float() / 255)
    with pytest.raises(DataError, match="per_class=1500 images are asked for, .* class0 has 4"):
        load_raw("cifar10", tmp_path)


def test_stl_is_read_to_the_pixel(tmp_path: Path) -> None:
    pixels = write_stl(tmp_path / "stl10/stl10_binary")
    images = load_raw("stl10", tmp_path)
    np.testing.assert_array_equal(images.pixels.numpy(), pixels)
    assert images.y.tolist() == [0, 1, 2, 3, 4, 5]
    assert load_dataset("stl10", tmp_path, features="pixels").num_features == 3 * 96 * 96


def test_damaged_cifar_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has none of data_batch_1.bin"):
        read_cifar(tmp_path)
    write_cifar(tmp_path, classes=12)
    with pytest.raises(DataError, match="has label 11, but 10 classes"):
        read_cifar(tmp_path)
    file = tmp_path / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:-3072])
    with pytest.raises(DataError, match=r"test_batch.bin is truncated: \d+ bytes, not a multiple"):
        read_cifar(tmp_path)


def test_damaged_stl_files_are_named(tmp_path: Path) -> None:
    write_stl(tmp_path)
    labels = (tmp_path / "test_y.bin").read_bytes()
    (tmp_path / "test_y.bin").write_bytes(labels[:-1])
    with pytest.raises(DataError, match="test_X.bin has 4 images, test_y.bin 3 labels"):
        read_stl(tmp_path)
    (tmp_path / "test_y.bin").write_bytes(b"\0" + labels[1:])
    with pytest.raises(DataError, match=r"test_y.bin: labels must lie in 1..10"):
        read_stl(tmp_path)
    (tmp_path / "test_y.bin").unlink()
    with pytest.raises(DataError, match="test_y.bin cannot be read: No such file"):
        read_stl(tmp_path)
    (tmp_path / "train_X.bin").write_bytes(b"\0" * 100)
    with pytest.raises(DataError, match="train_X.bin is truncated: 100 bytes"):
        read_stl(tmp_path)


def test_absent_images_and_features_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIFFORMER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="stl10 has no feature file in .* run `difformer features"):
        load_dataset("stl10", tmp_path)
    with pytest.raises(DataError, match="stl10 is not in .* unpack .*stl10_binary.tar.gz"):
        load_dataset("stl10", tmp_path, features="pixels")


def test_features_without_labels_take_those_of_the_images(tmp_path: Path) -> None:
    write_stl(tmp_path / "stl10/stl10_binary")
    np.savez(tmp_path / "stl10/f.npz", features=np.eye(6))
    assert load_dataset("stl10", tmp_path).y.tolist() == [0, 1, 2, 3, 4, 5]
    np.savez(tmp_path / "stl10/f.npz", features=np.eye(5))
    with pytest.raises(DataError, match="f.npz has 5 rows of features, stl10 6 labels"):
        load_dataset("stl10", tmp_path)
    np.savez(tmp_path / "stl10/g.npz", features=np.eye(5))
    with pytest.raises(DataError, match=r"several feature files \(f.npz, g.npz\)"):
        load_dataset("stl10", tmp_path)


def save(path: Path, shape: tuple[int, int], color: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", shape, color).save(path)


def test_a_folder_of_images_has_its_subfolders_as_classes(tmp_path: Path) -> None:
    save(tmp_path / "cat/b.png", (40, 20), (255, 0, 0))
    save(tmp_path / "cat/a.jpg", (20, 20), (0, 0, 255))
    save(tmp_path / "ant/c.png", (8, 8), (0, 255, 0))
    (tmp_path / "notes.txt").write_text("not an image, and not taken for one")
    images = read_folder(tmp_path, side=16)
    assert images.pixels.shape == (3, 3, 16, 16)
    assert images.class_names == ("ant", "cat")
    assert images.y.tolist() == [0, 1, 1]
    assert images.names == ("ant/c.png", "cat/a.jpg", "cat/b.png")
    assert images.pixels[2].float().mean((1, 2)).tolist() == [255, 0, 0]


def test_unreadable_images_are_counted_and_named(tmp_path: Path) -> None:
    save(tmp_path / "good.png", (8, 8), (1, 2, 3))
    content = (tmp_path / "good.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.jpg").write_text("hello")
    for i in range(6):
        (tmp_path / f"z{i}.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"8 of 9 images in .*cut.png \(.*text.jpg.* and 3 more"):
        read_folder(tmp_path)
    with pytest.raises(DataError, match="is not a folder of images"):
        read_folder(tmp_path / "nowhere")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="has no images: no file ends in .png"):
        read_folder(tmp_path / "none")
