"""The paper's figures: the numbers behind them, and studies that can be gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from difformer.core.diffusivity import Sigmoid, Simple
from difformer.report.figures import (
    FIGURES,
    ablation,
    chickenpox,
    depth,
    make_figure,
    penalty,
    states,
    studies,
)
from difformer.train.settings import TrainSettings


def test_the_flow_of_figure_3_goes_down_its_energy() -> None:
    """The flow is a positive multiple of the energy's negative gradient, by autograd."""
    points = penalty.random_points()
    grid = torch.rand(20, 2, dtype=torch.float64, requires_grad=True)
    for kind in (Simple(), Sigmoid()):
        field = penalty.field_of(kind, grid, points)
        (gradient,) = torch.autograd.grad(field["energy"].sum(), grid)
        cosine = torch.cosine_similarity(field["flow"].detach(), -gradient, dim=1)
        torch.testing.assert_close(cosine, torch.ones_like(cosine))


def test_a_figure_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    first = {p.name: p.read_bytes() for p in make_figure("fig3", tmp_path / "a")}
    second = {p.name: p.read_bytes() for p in make_figure("fig3", tmp_path / "b")}
    assert first == second


def test_an_unknown_figure_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="figure must be one of fig2a, .*, got 'fig1'"):
        make_figure("fig1", tmp_path)
    assert len(FIGURES) == 8


def test_an_ablation_is_measured_once_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ablation, "DATASETS", {"fig2a": ("digits", "stl10")})
    monkeypatch.setattr(ablation, "SEEDS", (0,))
    monkeypatch.setattr(ablation, "MODEL", {"num_layers": 1, "hidden_channels": 4})
    monkeypatch.setattr(ablation, "TRAIN", {"epochs": 1})
    monkeypatch.setenv("DIFFORMER_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(studies, "load_dataset", _only_digits(studies.load_dataset))
    said: list[str] = []
    make_figure("fig2a", tmp_path, say=said.append)
    assert len(said) == 6
    text = (tmp_path / "fig2a" / "README.md").read_text(encoding="utf-8")
    assert "stl10 is left out" in text
    rows = studies.read_rows(tmp_path / "fig2a" / "runs.csv")
    assert [r["diffusivity"] for r in rows] == list(ablation.KINDS)
    make_figure("fig2a", tmp_path, say=said.append)
    assert len(said) == 6
    make_figure("fig2a", tmp_path, draw_only=True, say=said.append)
    assert (tmp_path / "fig2a" / "fig2a.svg").stat().st_size > 5000


def _only_digits(load: Any) -> Any:
    from difformer.errors import DataError

    def found(name: str, *given: Any) -> Any:
        if name != "digits":
            raise DataError(f"{name}: nowhere")
        return load(name, *given)

    return found


def test_a_summary_is_mean_and_deviation_over_seeds() -> None:
    rows = [{"k": "a", "accuracy": 0.5}, {"k": "a", "accuracy": 0.7}, {"k": "b", "accuracy": 0.1}]
    found = studies.summary(rows, ["k"])
    assert found[0] == {"k": "a", "mean": 0.6, "std": round(0.02**0.5, 5), "seeds": 2}
    assert found[1] == {"k": "b", "mean": 0.1, "std": "", "seeds": 1}


def test_depth_is_drawn_and_put_into_words(tmp_path: Path) -> None:
    folder = tmp_path / "fig2b"
    folder.mkdir()
    rows = [
        {"dataset": "cora", "system": s, "tau": t, "layers": k, "seed": 0, "accuracy": a}
        for s, t, k, a in (
            ("DIFFormer-s", "0.1", "2", 0.6),
            ("DIFFormer-s", "0.1", "32", 0.8),
            ("DIFFormer-s", "0.5", "2", 0.8),
            ("DIFFormer-s", "0.5", "32", 0.7),
            ("GCN", "", "2", 0.8),
            ("GCN", "", "32", 0.4),
        )
    ]
    from difformer.report.figures.drawing import csv_of

    (folder / "runs.csv").write_text(csv_of(rows))
    make_figure("fig2b", tmp_path, draw_only=True)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "τ = 0.1: 60.0 % at K = 2, 80.0 % at K = 32." in text
    assert "As in the paper, a large step does well with few layers" in text
    assert "loss of the large step at depth is seen: 10.0 points" in text
    assert "GCN goes from 80.0 % at K = 2 to 40.0 % at K = 32." in text
    assert depth.PLANS["cora"].depths[-1] == 32


def test_states_are_drawn_again_from_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "DATASETS", {"fig7": ("digits",)})
    monkeypatch.setattr(states, "MODEL", {"num_layers": 2, "hidden_channels": 4})
    monkeypatch.setattr(states, "TRAIN", {"epochs": 1})
    monkeypatch.setattr(states, "MOST_POINTS", 60)
    monkeypatch.setattr(states, "EDGES", 20)
    first = {p.name: p.read_bytes() for p in make_figure("fig7", tmp_path)}
    again = {p.name: p.read_bytes() for p in make_figure("fig7", tmp_path, draw_only=True)}
    assert first["fig7.svg"] == again["fig7.svg"]
    assert first["README.md"] == again["README.md"]


def test_chickenpox_is_trained_and_drawn(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chickenpox, "TRAIN", TrainSettings(epochs=1))
    make_figure("fig8", tmp_path, data_dir=data_root)
    lines = (tmp_path / "fig8" / "weights.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 4 * 20 * 20
