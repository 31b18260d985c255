"""What a run folder holds, and that it can be read back."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from difformer.data.split import Split
from difformer.errors import RunError
from difformer.machine import commit
from difformer.train.callbacks import Callback
from difformer.train.folder import read_config, read_metrics, read_result


def test_a_run_folder_holds_what_the_design_says(problem, tmp_path):
    config = {"data": {"name": "toy"}, "model": {"widths": (4, 5), "kernel": None}}
    model, result = problem.fit(tmp_path, config=config)
    names = ["config.toml", "metrics.csv", "model.safetensors", "result.json", "split.json"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    written = read_config(tmp_path / "config.toml")
    assert written["model"] == {"widths": [4, 5]}  # None is a key that is not there
    assert written["train"]["lr"] == 0.05
    assert Split.load(tmp_path / "split.json") == problem.split
    weights = load_file(tmp_path / "model.safetensors")
    assert weights["linear.weight"].equal(model.linear.weight)
    assert read_result(tmp_path) == result
    content = json.loads((tmp_path / "result.json").read_text())
    assert content["metrics"]["test"]["accuracy"] == result.metrics["test"]["accuracy"]
    assert content["commit"] == commit()


def test_metrics_have_a_row_an_evaluated_epoch_and_can_be_watched(problem, tmp_path):
    class Look(Callback):
        def on_evaluate(self, fit, row):
            row["energy_1"] = float(fit.epoch) / 3  # a column of its own

        def on_epoch(self, fit):
            assert read_metrics(tmp_path / "metrics.csv") == fit.history

    _, result = problem.with_settings(eval_every=3).fit(tmp_path, callbacks=[Look()])
    header = (tmp_path / "metrics.csv").read_text().splitlines()[0].split(",")
    parts = [f"{part}_{name}" for part in ("train", "val") for name in ("loss", "accuracy")]
    assert header[:2] == ["epoch", "loss"]
    assert set(parts) < set(header)
    assert not any("sec" in name or "time" in name or "test" in name for name in header)
    assert [row["energy_1"] for row in result.history] == [1, 2, 3, 4]
    assert read_metrics(tmp_path / "metrics.csv") == result.history


def test_a_model_may_write_its_own_file(problem, tmp_path):
    class Own(type(problem.model())):
        def save(self, path):
            from safetensors.torch import save_file

            save_file(self.state_dict(), path, metadata={"config": "{}"})

    model, _ = problem.fit(tmp_path, model=lambda: Own(5, 3))
    again, _ = problem.fit(tmp_path, model=lambda: Own(5, 3))
    assert again.linear.weight.equal(model.linear.weight)
    assert not list(tmp_path.glob(".*"))


def test_sparse_state_is_refused_with_the_remedy(problem, tmp_path):
    def model():
        model = problem.model()
        model.register_buffer("graph", torch.eye(3).to_sparse())
        return model

    with pytest.raises(ValueError, match=r"'graph' is not: register .* persistent=False"):
        problem.fit(tmp_path, model=model)


def test_a_number_that_is_none_is_null_in_json_and_nan_when_read(problem, tmp_path):
    _, result = problem.fit(tmp_path)
    result.metrics["test"]["loss"] = float("nan")
    text = json.dumps(result.to_json(), allow_nan=False)
    (tmp_path / "result.json").write_text(text)
    read = read_result(tmp_path)
    assert read is not None
    assert read.metrics["test"]["loss"] != read.metrics["test"]["loss"]


def test_damaged_files_are_one_clear_line(problem, tmp_path):
    problem.fit(tmp_path)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(RunError, match=r"result\.json cannot be read"):
        problem.fit(tmp_path)
    (tmp_path / "config.toml").write_text("= no")
    with pytest.raises(RunError, match=r"config\.toml cannot be read"):
        problem.fit(tmp_path)
