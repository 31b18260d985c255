"""From an experiment to a result, and from a run folder back to its model."""

from __future__ import annotations

import json
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
from difformer.jobs.rows import (
    CannotRunError,
    choose_split,
    load_data,
    run_experiment,
)
from difformer.machine import commit
from difformer.runs.open import load_run
from difformer.systems.registry import SYSTEMS
from difformer.train.batches import predict
from difformer.train.callbacks import Callback

QUICK = {"epochs": 2, "lr": 0.01}


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def make(**options: object) -> Experiment:
    given = {"model": {"num_layers": 2, "hidden_channels": 8}, "train": QUICK, "split": "random:0"}
    return Experiment.make("digits", **{**given, **options})  # type: ignore[arg-type]


def test_one_seed_is_a_folder_and_several_are_one_each(digits: Dataset, tmp_path: Path) -> None:
    run_experiment(make(), dataset=digits, folder=tmp_path / "one")
    run_experiment(make(seeds=[0, 1]), dataset=digits, folder=tmp_path / "two")
    names = {"config.toml", "split.json", "metrics.csv", "model.safetensors", "result.json"}
    assert {p.name for p in (tmp_path / "one").iterdir()} == names
    assert {p.name for p in (tmp_path / "two" / "seed-1").iterdir()} == names
    assert (tmp_path / "two" / "result.json").exists()


def test_a_seed_has_the_same_bits_alone_and_among_others(digits: Dataset, tmp_path: Path) -> None:
    run_experiment(make(seeds=[1]), dataset=digits, folder=tmp_path / "one")
    run_experiment(make(seeds=[0, 1]), dataset=digits, folder=tmp_path / "two")
    alone, among = tmp_path / "one", tmp_path / "two" / "seed-1"
    for name in ("metrics.csv", "model.safetensors"):
        assert (alone / name).read_bytes() == (among / name).read_bytes()


def test_seeds_are_summed_up_by_mean_and_sample_deviation_and_more_are_added(
    digits: Dataset, tmp_path: Path
) -> None:
    class Count(Callback):
        started = 0

        def on_start(self, fit: Any) -> None:
            Count.started += 1

    run_experiment(make(seeds=[3, 4]), dataset=digits, folder=tmp_path)
    more = make(seeds=[3, 4, 5])
    run = run_experiment(more, dataset=digits, folder=tmp_path, callbacks=lambda _: [Count()])
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


def test_an_interrupted_seed_ends_the_rest_and_goes_on_later(
    digits: Dataset, tmp_path: Path
) -> None:
    class Interrupt(Callback):
        def on_epoch(self, fit: Any) -> None:
            if fit.settings.seed == 1 and fit.epoch == 1:
                raise KeyboardInterrupt

    job, options = make(seeds=[0, 1, 2]), {"dataset": digits, "folder": tmp_path}
    cut = run_experiment(job, callbacks=lambda _: [Interrupt()], **options)
    assert cut.interrupted
    assert list(cut.fits) == ["seed 0", "seed 1"]
    assert json.loads((tmp_path / "result.json").read_text())["interrupted"]
    whole = run_experiment(job, **options)
    assert not whole.interrupted
    alone = run_experiment(make(seeds=[1]), dataset=digits)
    assert whole.fits["seed 1"].history == alone.fits["seed 1"].history


def test_a_run_neither_goes_on_nor_opens_with_changed_data(digits: Dataset, tmp_path: Path) -> None:
    run_experiment(make(), dataset=digits, folder=tmp_path)
    changed = replace(digits, y=digits.y.roll(1))
    split = digits.split("random:0")
    with pytest.raises(RunError, match=r"another configuration \(fingerprint: "):
        run_experiment(make(), dataset=changed, split=split, folder=tmp_path)
    with pytest.raises(RunError, match="digits has changed since"):
        load_run(tmp_path, dataset=changed)


@pytest.mark.parametrize("system", ["difformer-s", "mlp", "lp-knn"])
def test_a_run_folder_gives_the_model_back(system: str, digits: Dataset, tmp_path: Path) -> None:
    model = {} if system == "lp-knn" else {"hidden_channels": 8}
    result = run_experiment(make(system=system, model=model), dataset=digits, folder=tmp_path)
    loaded = load_run(tmp_path, dataset=digits)
    assert loaded.system == system
    with torch.no_grad():
        rows = torch.arange(digits.num_rows)
        output = predict(loaded.model, Batch(digits.x, digits.y, loaded.graph, rows)).output
    test = loaded.split.test
    accuracy = float((output.argmax(1)[test] == digits.y[test]).double().mean())
    assert accuracy == result.fits["seed 0"].metrics["test"]["accuracy"]


def test_the_model_and_an_edge_list_give_the_logits_of_the_run(
    digits: Dataset, tmp_path: Path
) -> None:
    """Edges once, in one direction, without loops, as they are in files: as README calls it."""
    ring = torch.stack([torch.arange(60), (torch.arange(60) + 1) % 60])
    data = replace(digits, x=digits.x[:60], y=digits.y[:60], edge_index=ring)
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


def test_the_run_of_a_seed_can_be_named(digits: Dataset, tmp_path: Path) -> None:
    run_experiment(make(seeds=[2, 5]), dataset=digits, folder=tmp_path)
    assert load_run(tmp_path, dataset=digits).folder.name == "seed-2"
    assert load_run(tmp_path, dataset=digits, seed=5).folder.name == "seed-5"
    with pytest.raises(RunError, match="has no seed-7"):
        load_run(tmp_path, dataset=digits, seed=7)


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        load_run(tmp_path)
    with pytest.raises(RunError, match="does not exist"):
        load_run(tmp_path / "nowhere")


def test_a_run_of_another_configuration_is_not_gone_on_with(
    digits: Dataset, tmp_path: Path
) -> None:
    run_experiment(make(), dataset=digits, folder=tmp_path)
    changed = make(model={"num_layers": 2, "hidden_channels": 8, "tau": 0.2})
    with pytest.raises(RunError, match=r"model.tau: .* there, 0.2 now"):
        run_experiment(changed, dataset=digits, folder=tmp_path)


def test_a_system_that_needs_a_graph_says_so(digits: Dataset) -> None:
    needy = next(s.name for s in SYSTEMS.values() if s.needs_graph)
    with pytest.raises(CannotRunError, match=f"{needy} cannot run on digits: it needs a graph"):
        run_experiment(Experiment.make("digits", system=needy), dataset=digits)


def test_a_system_that_is_too_large_says_what_it_would_take(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "available_memory", lambda: 1000)
    with pytest.raises(CannotRunError, match=r"mlp on digits would take about \d+\.\d GB"):
        run_experiment(Experiment.make("digits", system="mlp"), dataset=digits)


def test_neighbours_are_a_graph_where_there_is_none(digits: Dataset, tmp_path: Path) -> None:
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


def test_the_automatic_split_is_the_datas_own_or_a_random_one(digits: Dataset) -> None:
    assert choose_split(digits, "auto").name == "random:0"
    own = digits.split("random:3")
    assert choose_split(replace(digits, splits={"mine": own}), "auto") is own
    few = Dataset("few", digits.x[:100], digits.y[:100])
    assert choose_split(few, "auto").name == "ratio:0.5/0.25/0.25:0"


def test_recomputing_layers_changes_no_result(digits: Dataset) -> None:
    runs = [
        run_experiment(make(train={**QUICK, "recompute": again}), dataset=digits)
        for again in (False, True)
    ]
    metrics = [run.fits["seed 0"].metrics for run in runs]
    for part, values in metrics[0].items():
        assert metrics[1][part] == pytest.approx(values, rel=1e-5)
    options = {"system": "mlp", "model": {}, "train": {**QUICK, "recompute": True}}
    with pytest.raises(CannotRunError, match="mlp cannot be recomputed"):
        run_experiment(make(**options), dataset=digits)
