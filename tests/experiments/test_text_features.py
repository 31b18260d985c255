"""Texts become a mapped file of features, some lines in memory at a time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from difformer.app.encoders import FeatureSettings, write_text_features
from difformer.data.raw import Texts
from difformer.errors import DataError


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lines held at once, of an encoder that counts letters."""
    held: list[int] = []

    def count(texts: Texts, settings: Any) -> Any:
        held.append(len(texts.texts))
        counts = [[text.count(letter) for letter in "abc"] for text in texts.texts]
        return SimpleNamespace(x=torch.tensor(counts).float())

    monkeypatch.setattr("difformer.app.encoders.make_features", count)
    return held


def test_each_line_is_a_row_also_an_empty_one(tmp_path: Path, most: list[int]) -> None:
    (tmp_path / "t.txt").write_text("abba\n\ncab\nb\nccc")
    settings = FeatureSettings(encoder="minilm")
    shape = write_text_features(tmp_path / "t.txt", tmp_path / "x.npy", settings, size=2)
    assert shape == (5, 3)
    found = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert found.tolist() == [[2, 2, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 3]]
    assert most == [2, 2, 1]


def test_what_is_no_text_leaves_no_file(tmp_path: Path, most: list[int]) -> None:
    settings = FeatureSettings(encoder="minilm")
    (tmp_path / "none.txt").write_text("")
    with pytest.raises(DataError, match=r"none\.txt has no text"):
        write_text_features(tmp_path / "none.txt", tmp_path / "x.npy", settings)
    (tmp_path / "bad.txt").write_bytes(b"ab\n" * 9000 + b"\xff\xfe\n")
    with pytest.raises(DataError, match=r"bad\.txt is not UTF-8 text"):
        write_text_features(tmp_path / "bad.txt", tmp_path / "x.npy", settings, size=100)
    assert not (tmp_path / "x.npy").exists()
