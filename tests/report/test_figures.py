"""The paper's figures: the numbers behind them, and studies that can be gone on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from difformer.core.diffusivity import Sigmoid, Simple
from difformer.errors import RunError
from difformer.jobs.rows import run_experiment
from difformer_paper.figures import FIGURES, looked, make_figure, measured
from difformer_paper.figures.drawing import Work
from difformer_paper.measure import CellResult, read_results, result_path
from difformer_paper.specs import load_spec


def test_the_flow_of_figure_3_goes_down_its_energy() -> None:
    """The flow is a positive multiple of the energy's negative gradient, by autograd."""
    points = looked.random_points()
    generator = torch.Generator().manual_seed(0)
    grid = torch.rand(20, 2, dtype=torch.float64, generator=generator).requires_grad_()
    for kind in (Simple(), Sigmoid()):
        field = looked.field_of(kind, grid, points)
        (gradient,) = torch.autograd.grad(field["energy"].sum(), grid)
        cosine = torch.cosine_similarity(field["flow"].detach(), -gradient, dim=1)
        torch.testing.assert_close(cosine, torch.ones_like(cosine))


def drawn(name: str, out: Path, **options: Any) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in make_figure(name, out, **options)}


def test_a_figure_has_the_same_bytes_each_time_and_another_name_is_an_error(tmp_path: Path) -> None:
    assert drawn("fig3", tmp_path / "a") == drawn("fig3", tmp_path / "b")
    with pytest.raises(ValueError, match="figure must be one of fig2a, .*, got 'fig1'"):
        make_figure("fig1", tmp_path)
    assert len(FIGURES) == 8


def test_an_ablation_is_measured_by_its_spec_once_and_drawn(tmp_path: Path, cli: Any) -> None:
    words = ["reproduce", "fig2a", "--datasets", "digits", "--seeds", "1", "--out", str(tmp_path)]
    variants = ",".join(f"diffusivity:kernel={k}" for k in ("identity", "constant", "simple"))
    words += ["--variants", variants]
    done = cli(*words)
    assert done.code == 0
    assert str(tmp_path / "fig2a" / "fig2a.svg") in done.out
    assert done.err.count("(1 runs)") == 3
    (kept, *_) = read_results(tmp_path, "fig2a")
    assert kept.settings["data"] == {"sample": 3000}
    assert kept.settings["model"]["kernel"] == "constant"
    text = (tmp_path / "fig2a" / "README.md").read_text(encoding="utf-8")
    assert "1 run per point, 60 epochs" in text
    before = {p: p.read_bytes() for p in (tmp_path / "fig2a").iterdir()}
    assert cli(*words).code == 0  # what is there is drawn, not trained again
    assert {p: p.read_bytes() for p in (tmp_path / "fig2a").iterdir()} == before


def keep(root: Path, figure: str, column: str, system: str, variant: str, *values: float) -> None:
    """The result file of one cell with these test accuracies."""
    spec = load_spec(figure)
    (cell,) = spec.cells(systems=[system], columns=[column], variants=[variant])
    (experiment,) = cell.experiments()
    runs = [
        {"split": "random:0", "seed": i, "metrics": {"test": {"accuracy": value}}}
        for i, value in enumerate(values)
    ]
    settings = {"model": dict(experiment.model), "train": {"epochs": 60}}
    path = result_path(root, spec, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = CellResult(
        figure, cell.name, system, column, variant, "seeds", column, "c", settings, [], {}, "", "1"
    )
    path.write_text(replace(made, runs=runs).to_json(), encoding="utf-8")


def test_a_summary_is_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    keep(tmp_path, "fig2a", "digits", "difformer-s", "diffusivity:kernel=simple", 0.5, 0.7)
    keep(tmp_path, "fig2a", "digits", "difformer-s", "diffusivity:kernel=constant", 0.1)
    keep(tmp_path, "fig2a", "digits", "difformer-s", "diffusivity:kernel=sigmoid", 0.2)
    drawn = measured.ablation(Work("fig2a", "", tmp_path / "fig2a", (), None))
    first, _, second = drawn.tables["summary"]
    shared = {"dataset": "digits", "system": "difformer-s"}
    assert first == {**shared, "diffusivity": "constant", "mean": 0.1, "std": "", "seeds": 1}
    std = round(0.02**0.5, 5)
    assert second == {**shared, "diffusivity": "simple", "mean": 0.6, "std": std, "seeds": 2}
    (said,) = drawn.says
    assert "-s 60.0 ± 14.1 %, -a 20.0 %, the best of the paper's others (constant) 10.0 %" in said
    assert said.endswith("This agrees with the paper's ablation.")


def test_depth_is_drawn_and_put_into_words(tmp_path: Path) -> None:
    for tau, layers, value in ((0.1, 2, 0.6), (0.1, 32, 0.8), (0.5, 2, 0.8), (0.5, 32, 0.7)):
        variant = f"step:tau={tau},num_layers={layers}"
        keep(tmp_path, "fig2b", "cora", "difformer-s", variant, value)
    for layers, value in ((2, 0.8), (32, 0.4)):
        keep(tmp_path, "fig2b", "cora", "gcn", f"depth:num_layers={layers}", value)
    make_figure("fig2b", tmp_path)
    text = (tmp_path / "fig2b" / "README.md").read_text(encoding="utf-8")
    assert "τ = 0.1: 60.0 % at K = 2, 80.0 % at K = 32." in text
    assert "As in the paper, a large step does well with few layers" in text
    assert "loss of the large step at depth is seen: 10.0 points" in text
    assert "GCN goes from 80.0 % at K = 2 to 40.0 % at K = 32." in text


def test_a_system_looks_the_same_in_every_panel(tmp_path: Path) -> None:
    for column, system in (("citeseer", "densegat"), ("citeseer", "gcn"), ("pubmed", "gcn")):
        keep(tmp_path, "fig5", column, system, "depth:num_layers=2", 0.8)
    drawn = measured.depth(Work("fig5", "", tmp_path / "fig5", (), None))
    looks: list[tuple[str, str]] = []
    for ax in drawn.figure.axes:
        handles, labels = ax.get_legend_handles_labels()
        line = dict(zip(labels, handles, strict=True))["GCN"].lines[0]
        looks.append((line.get_color(), line.get_marker()))
    assert len(looks) == 2
    assert looks[0] == looks[1]


@pytest.mark.parametrize("name", ["fig2a", "fig2b", "fig4", "fig5", "fig6", "fig7", "fig8"])
def test_committed_results_are_of_the_settings_that_the_spec_states(name: str) -> None:
    spec = load_spec(name)
    wanted = {cell.name: cell for cell in spec.cells()}
    results = read_results(Path(__file__).parents[2] / "results", name)
    assert results
    for result in results:
        cell = wanted[result.cell]
        assert all(run["epochs"] <= cell.train["epochs"] for run in result.runs)
        assert result.settings["train"].items() >= dict(cell.train).items()
        assert result.settings["model"].items() >= dict(cell.model).items()


def test_states_are_drawn_again_from_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looked, "MOST_POINTS", 60)
    monkeypatch.setattr(looked, "EDGES", 20)
    run = tmp_path / "run"
    (experiment,) = load_spec("fig7").cells()[-1].experiments()  # its data is always at hand
    run_experiment(replace(experiment, train=replace(experiment.train, epochs=1)), folder=run)
    assert drawn("fig7", tmp_path, runs=[run]) == drawn("fig7", tmp_path)
    with pytest.raises(RunError, match=r"points.csv is not there: give --fresh to measure fig7"):
        make_figure("fig7", tmp_path / "never")


def test_chickenpox_is_trained_by_its_spec_and_drawn_again_without_its_models(
    tmp_path: Path, data_root: Path, cli: Any
) -> None:
    words = ["reproduce", "fig8", "--out", str(tmp_path), "--data-dir", str(data_root)]
    assert cli(*words).code == 0
    lines = (tmp_path / "fig8" / "weights.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 4 * 20 * 20
    assert len(read_results(tmp_path, "fig8")) == 2
    before = {p: p.read_bytes() for p in (tmp_path / "fig8").iterdir()}
    assert str(tmp_path / "fig8" / "fig8.svg") in cli(*words, "--show").out
    assert {p: p.read_bytes() for p in (tmp_path / "fig8").iterdir()} == before
