"""difformer features: a folder of images becomes a feature file, or one clear line says why not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from difformer.app.cli import main
from difformer.data.features import read_features


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twelve images of two classes, each in its folder."""
    generator = np.random.default_rng(0)
    for i in range(12):
        path = tmp_path / "pictures" / ("dark", "light")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 100, (8, 8, 3)) + 150 * (i % 2)
        Image.fromarray(pixels.astype("uint8")).save(path)
    return tmp_path / "pictures"


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["features", *map(str, words)])
    return int(caught.value.code or 0)


SMALL = ("--width", "4", "--side", "8", "--epochs", "2", "--batch-size", "6", "--device", "cpu")


@pytest.mark.parametrize("encoder", ["simclr", "random"])
def test_the_same_seed_gives_the_same_features(
    pictures: Path, tmp_path: Path, encoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, other = (tmp_path / f"{name}.npz" for name in "abc")
    words = (pictures, "--encoder", encoder, *SMALL, "--json")
    assert run(*words, "--out", first) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rows"], said["features"], said["encoder"]) == (12, 32, encoder)
    assert run(*words, "--out", second) == 0
    assert run(*words, "--out", other, "--seed", "1") == 0
    features = read_features(first)
    assert features.class_names == ("dark", "light")
    assert features.y is not None
    assert features.y.bincount().tolist() == [6, 6]
    assert features.x.equal(read_features(second).x)
    assert not features.x.equal(read_features(other).x)


def test_a_kept_run_of_simclr_goes_on(pictures: Path, tmp_path: Path) -> None:
    words = (pictures, *SMALL, "-q", "--run", tmp_path / "run", "--out")
    assert run(*words, tmp_path / "a.npz") == 0
    assert (tmp_path / "run" / "metrics.csv").exists()
    assert run(*words, tmp_path / "b.npz") == 0
    assert read_features(tmp_path / "a.npz").x.equal(read_features(tmp_path / "b.npz").x)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--encoder", "resnet"), "encoder must be one of effnetlite0"),
        (("--encoder", "minilm"), "encoder minilm does not take images"),
        (("--batch-size", "13"), "batch_size must lie in 2 to 12"),
        (("--epochs", "-1"), "epochs must"),
        (("--width", "0"), "width must"),
        (("--side", "0"), "side must"),
    ],
)
def test_a_bad_option_is_one_line_and_leaves_nothing(
    pictures: Path,
    tmp_path: Path,
    words: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(pictures, *SMALL, *words, "--out", tmp_path / "f.npz") == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("*.npz*"))


def test_a_bad_source_or_target_is_one_line(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("nowhere", "--out", tmp_path / "f.npz") == 2
    assert "a folder of images" in capsys.readouterr().err
    assert run(pictures, "--out", tmp_path / "f.csv") == 2
    assert "out must end in .npz" in capsys.readouterr().err
    (pictures / "dark" / "0.png").write_bytes(b"not an image")
    (pictures / "dark" / "2.png").write_bytes(b"")
    assert run(pictures, *SMALL, "--out", tmp_path / "f.npz") == 2
    said = capsys.readouterr().err
    assert "2 of 12" in said
    assert "0.png" in said
    assert not list(tmp_path.glob("*.npz*"))
    (tmp_path / "empty.txt").write_text("\n\n")
    assert run(tmp_path / "empty.txt", "--encoder", "minilm", "--out", tmp_path / "f.npz") == 2
    assert "has no text" in capsys.readouterr().err
