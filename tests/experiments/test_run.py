"""From an experiment to a result, and from a run folder back to its model."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from difformer.data.dataset import Batch, Dataset
from difformer.data.registry import load_dataset
from difformer.data.split import Split
from difformer.errors import RunError
from difformer.jobs import rows as run_module
from difformer.jobs.job import Experiment
from difformer.jobs.rows import CannotRunError, choose_split, load_data, run_experiment
from difformer.machine import commit
from difformer.runs.open import load_run
from difformer.systems.registry import SYSTEMS
from difformer.train.batches import predict
from difformer.train.callbacks import Callback
from difformer.train.folder import FitResult, Run

QUICK = {"epochs": 2, "lr": 0.01}
SMALL = {"num_layers": 2, "hidden_channels": 8}
DIGITS = load_dataset("digits")


def make(**options: object) -> Experiment:
    given = {"model": SMALL, "train": QUICK, "split": "random:0"}
    return Experiment.make("digits", **{**given, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one seed, and one of two; the second seed is that of the first run."""
    folder = tmp_path_factory.mktemp("runs")
    for name, seeds in (("one", [1]), ("two", [0, 1])):
        run_experiment(make(seeds=seeds), dataset=DIGITS, folder=folder / name)
    return folder


def test_a_seed_has_its_files_and_its_bits_alone_and_among_others(runs: Path) -> None:
    alone, among = runs / "one", runs / "two" / "seed-1"
    names = {"config.toml", "split.json", "metrics.csv", "model.safetensors", "result.json"}
    for folder in (alone, among):
        assert {path.name for path in folder.iterdir()} == names
    assert (runs / "two" / "result.json").exists()
    for name in ("metrics.csv", "model.safetensors"):
        assert (alone / name).read_bytes() == (among / name).read_bytes()
    found = {seed: load_run(runs / "two", dataset=DIGITS, seed=seed).folder for seed in (None, 1)}
    assert found == {None: runs / "two" / "seed-0", 1: among}
    with pytest.raises(RunError, match="has no seed-7"):
        load_run(runs / "two", dataset=DIGITS, seed=7)


def test_seeds_are_summed_up_by_mean_and_sample_deviation_and_more_are_added(
    tmp_path: Path,
) -> None:
    class Count(Callback):
        started = 0

        def on_start(self, fit: Any) -> None:
            Count.started += 1

    run_experiment(make(seeds=[3, 4]), dataset=DIGITS, folder=tmp_path)
    more = make(seeds=[3, 4, 5])
    run = run_experiment(more, dataset=DIGITS, folder=tmp_path, callbacks=lambda _: [Count()])
    assert Count.started == 1
    values = [fit.metrics["test"]["accuracy"] for fit in run.fits.values()]
    wanted = (statistics.mean(values), statistics.stdev(values))
    assert run.mean_std("test", "accuracy") == pytest.approx(wanted)
    summary = json.loads((tmp_path / "result.json").read_text())
    assert tuple(summary["metrics"]["test"]["accuracy"].values()) == pytest.approx(wanted)
    assert set(summary["seeds"]) == {"3", "4", "5"}
    assert (summary["commit"], summary["interrupted"]) == (commit(), False)
    with pytest.raises(RunError, match=r"train\.lr: 0\.01 there, 0\.2 now"):
        run_experiment(make(seeds=[6, 7], train={**QUICK, "lr": 0.2}), folder=tmp_path)
    assert not (tmp_path / "seed-6").exists()


def test_a_mean_over_seeds_is_unknown_where_one_of_them_is() -> None:
    fits = {
        f"seed {seed}": FitResult({"val": {"mse": value}}, 1, 1, "epochs", [], 1.0)
        for seed, value in ((0, 1.0), (1, math.nan))
    }
    run = Run(fits)
    assert math.isnan(run.mean("val", "mse"))
    assert run.to_json()["metrics"]["val"]["mse"] == {"mean": None, "std": None}
    assert run.state == "finished"
    assert Run(dict(list(fits.items())[:1])).mean("val", "mse") == 1.0


def test_an_interrupted_seed_ends_the_rest_and_goes_on_later(runs: Path, tmp_path: Path) -> None:
    class Interrupt(Callback):
        def on_epoch(self, fit: Any) -> None:
            if fit.settings.seed == 1 and fit.epoch == 1:
                raise KeyboardInterrupt

    options: Any = {"dataset": DIGITS, "folder": tmp_path}
    job = make(seeds=[0, 1, 2])
    cut = run_experiment(job, callbacks=lambda _: [Interrupt()], **options)
    assert cut.interrupted
    assert list(cut.fits) == ["seed 0", "seed 1"]
    assert json.loads((tmp_path / "result.json").read_text())["interrupted"]
    assert not run_experiment(job, **options).interrupted
    whole, alone = tmp_path / "seed-1" / "metrics.csv", runs / "one" / "metrics.csv"
    assert whole.read_bytes() == alone.read_bytes()


def test_a_run_neither_goes_on_nor_opens_with_what_is_changed(runs: Path, tmp_path: Path) -> None:
    folder, split = runs / "one", DIGITS.split("random:0")
    data = replace(DIGITS, y=DIGITS.y.roll(1))
    other = make(seeds=[1], model={**SMALL, "tau": 0.2})
    for job, rows, reason in (
        (make(seeds=[1]), data, r"another configuration \(fingerprint: "),
        (other, DIGITS, r"model.tau: .* there, 0.2 now"),
    ):
        with pytest.raises(RunError, match=reason):
            run_experiment(job, dataset=rows, split=split, folder=folder)
    with pytest.raises(RunError, match="digits has changed since"):
        load_run(folder, dataset=data)
    for name, reason in ((".", "is not a run folder"), ("nowhere", "does not exist")):
        with pytest.raises(RunError, match=reason):
            load_run(tmp_path / name)


@pytest.mark.parametrize("system", ["difformer-s", "mlp", "lp-knn"])
def test_a_run_folder_gives_the_model_back(system: str, tmp_path: Path) -> None:
    model = {} if system == "lp-knn" else {"hidden_channels": 8}
    result = run_experiment(make(system=system, model=model), dataset=DIGITS, folder=tmp_path)
    loaded = load_run(tmp_path, dataset=DIGITS)
    assert loaded.system == system
    with torch.no_grad():
        rows = torch.arange(DIGITS.num_rows)
        output = predict(loaded.model, Batch(DIGITS.x, DIGITS.y, loaded.graph, rows)).output
    test = loaded.split.test
    accuracy = float((output.argmax(1)[test] == DIGITS.y[test]).double().mean())
    assert accuracy == result.fits["seed 0"].metrics["test"]["accuracy"]


def test_the_model_and_an_edge_list_give_the_logits_of_the_run(tmp_path: Path) -> None:
    """Edges once, in one direction, without loops, as they are in files: as README calls it."""
    ring = torch.stack([torch.arange(60), (torch.arange(60) + 1) % 60])
    data = replace(DIGITS, x=DIGITS.x[:60], y=DIGITS.y[:60], edge_index=ring)
    split = Split("own", torch.arange(30), torch.arange(30, 40), torch.arange(40, 60))
    result = run_experiment(make(), dataset=data, split=split, folder=tmp_path)
    loaded = load_run(tmp_path, dataset=data)
    with torch.no_grad():
        logits = loaded.model(data.x, data.edge_index)
        apart = loaded.model(data.x)
        run = predict(loaded.model, Batch(data.x, data.y, loaded.graph, torch.arange(60))).output
    assert torch.equal(logits, run)
    assert float((logits - apart).abs().max()) > 1e-3  # the edges count
    loss = torch.nn.functional.cross_entropy(logits[split.test], data.y[split.test])
    assert float(loss) == pytest.approx(result.fits["seed 0"].metrics["test"]["loss"], rel=1e-5)


def test_a_system_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    needy = next(s.name for s in SYSTEMS.values() if s.needs_graph)
    recomputed = {"model": {}, "train": {**QUICK, "recompute": True}}
    for system, options, reason in (
        (needy, {"model": {}}, f"{needy} cannot run on digits: it needs a graph"),
        ("mlp", recomputed, "mlp cannot be recomputed"),
    ):
        with pytest.raises(CannotRunError, match=reason):
            run_experiment(make(system=system, **options), dataset=DIGITS)
    monkeypatch.setattr(run_module, "available_memory", lambda: 1000)
    with pytest.raises(CannotRunError, match=r"mlp on digits would take about \d+\.\d GB"):
        run_experiment(make(system="mlp", model={}), dataset=DIGITS)


def test_neighbours_are_a_graph_where_there_is_none(tmp_path: Path) -> None:
    experiment = make(data={"neighbours": 3})
    data = load_data(experiment)
    assert data.edge_index is not None
    assert int(torch.bincount(data.edge_index[1]).min()) >= 3
    (tmp_path / "t.csv").write_text("name,x,y\na,1,p\nb,2,q\nc,3,p\n")
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    more = {"label": "y", "id": "name", "edges": str(tmp_path / "e.csv"), "neighbours": 1}
    with pytest.raises(ValueError, match="neighbours must be left out for t: it has a graph"):
        load_data(Experiment.make(str(tmp_path / "t.csv"), data=more))
    run_experiment(experiment, folder=tmp_path / "run")
    assert load_run(tmp_path / "run").graph is not None


def test_the_automatic_split_is_the_datas_own_or_a_random_one() -> None:
    assert choose_split(DIGITS, "auto").name == "random:0"
    own = DIGITS.split("random:3")
    assert choose_split(replace(DIGITS, splits={"mine": own}), "auto") is own
    few = Dataset("few", DIGITS.x[:100], DIGITS.y[:100])
    assert choose_split(few, "auto").name == "ratio:0.5/0.25/0.25:0"


def test_recomputing_layers_changes_no_result() -> None:
    plain, again = (
        run_experiment(make(train={**QUICK, "recompute": recompute}), dataset=DIGITS)
        for recompute in (False, True)
    )
    for part, values in plain.fits["seed 0"].metrics.items():
        assert again.fits["seed 0"].metrics[part] == pytest.approx(values, rel=1e-5)
