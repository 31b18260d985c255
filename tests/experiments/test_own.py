"""From a person's table to a run folder beside simple peers, killed, resumed, or not a run."""

from __future__ import annotations

import csv
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from difformer.data.split import Split
from difformer.data.table.read import read_table
from difformer.errors import DataError, DifformerError, RunError
from difformer.estimators.search import Search
from difformer.jobs import table as peers
from difformer.jobs.own import OwnRun
from difformer.jobs.table import NAMED_UP_TO, PEERS, simple_peers, train_own
from difformer.machine import commit
from difformer.runs.answer import predict_run

HEADER = ("name", "size", "colour", "note", "kind")
SETTINGS = {"epochs": 25, "hidden_channels": 16}


def make_rows(n: int, start: int = 0) -> list[tuple[str, ...]]:
    draw = random.Random(start)
    rows: list[tuple[str, ...]] = []
    for i in range(start, start + n):
        kind = i % 2
        size = f"{draw.gauss(3 * kind, 1):.3f}"
        colour = ("red", "blue")[kind] if draw.random() < 0.8 else "green"
        note = ("likes to swim in the sea", "likes to climb in the trees")[kind]
        rows.append((f"r{i}", size, colour, note, ("fish", "ape")[kind] if i % 3 == 0 else ""))
    return rows


def table(rows: list[tuple[str, ...]]) -> dict[str, list[str]]:
    return {name: list(cells) for name, cells in zip(HEADER, zip(*rows, strict=True), strict=True)}


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


OWN = read_table(table(make_rows(90)), "kind", id="name")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "run"
    train_own(OWN, folder, SETTINGS)
    return folder


def test_a_run_holds_its_files_and_fills_the_empty_labels(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    made = {"config.toml", "split.json", "estimator.safetensors", "result.json"}
    assert names == {*made, "metrics.csv", "held_out.csv", "predictions.csv"}
    result = json.loads((run / "result.json").read_text())
    assert result["commit"] == commit()
    assert {"linear, standard", "sharp, standard"} <= set(result["tried"])
    filled = lines(run / "predictions.csv")
    assert len(filled) == 60
    assert sum(row["kind"] == ("fish", "ape")[int(row["name"][1:]) % 2] for row in filled) > 50


def test_simple_peers_are_scored_on_the_same_held_out_labels(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = json.loads((run / "result.json").read_text())["peers"]
    assert {one["system"] for one in found} == set(PEERS)
    values = [one["value"] for one in found]
    assert values == sorted(values, reverse=True)
    split = Split.load(run / "split.json")
    monkeypatch.setattr(peers, "PEERS", ("logistic", "knn"))
    again = [one for one in found if one["system"] in ("logistic", "knn")]
    assert simple_peers(OWN, split) == again
    assert values[0] > max((OWN.y[split.train] == c).float().mean().item() for c in (0, 1))


def test_without_validation_rows_peers_are_scored_by_folds_of_the_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labelled = (OWN.y >= 0).nonzero().flatten()
    all_rows = Split("all", labelled, labelled[:0], labelled[:0])
    found = simple_peers(OWN, all_rows)
    assert {one["system"] for one in found} == set(PEERS)
    spoiled = replace(OWN, y=torch.where(OWN.y >= 0, OWN.y, torch.randint(0, 2, OWN.y.shape)))
    spread = ("label-spreading", "self-training")
    monkeypatch.setattr(peers, "PEERS", spread)  # those that take rows without a label, too
    again = [one for one in found if one["system"] in spread]
    assert simple_peers(spoiled, all_rows) == again  # other rows' labels are not used
    one_each = Split("few", torch.tensor([0, 3]), labelled[:0], labelled[:0])
    assert OWN.y[one_each.train].tolist() in ([0, 1], [1, 0])
    assert simple_peers(OWN, one_each) == []


def test_numbers_are_predicted_by_the_peers_that_can_and_large_tables_by_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = read_table(
        {"size": list(range(40)), "weight": [2.5 * i + 0.1 for i in range(40)]}, "weight"
    )
    rows = torch.arange(40)
    split = Split("halves", rows[::2], rows[1::2], rows[:0])
    found = simple_peers(own, split)
    assert {one["system"] for one in found} == {"logistic", "forest", "boosting", "knn"}
    assert [one["value"] for one in found] == sorted(one["value"] for one in found)
    assert found[0]["metric"] == "rmse"
    monkeypatch.setattr(peers, "PEERS_UP_TO", 39)
    assert simple_peers(own, split) == []


def test_a_killed_run_goes_on_to_the_same_bits(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, judge, calls = tmp_path / "run", Search.judge, list[int]()

    def dies(self: Any, form: Any) -> None:
        judge(self, form)
        calls.append(1)
        if len(calls) in (1, 6):  # after the first form, and among the later ones
            raise RuntimeError("killed")
        if len(calls) == 8:  # Ctrl-C while forms are compared
            raise KeyboardInterrupt

    monkeypatch.setattr(Search, "judge", dies)
    for resume in (False, True):
        with pytest.raises(RuntimeError, match="killed"):
            train_own(OWN, folder, SETTINGS, resume=resume)
        with pytest.raises(RunError, match="is not a finished run"):
            OwnRun.load(folder)
    assert train_own(OWN, folder, SETTINGS, resume=True) == ({"interrupted": True}, None)
    train_own(OWN, folder, SETTINGS, resume=True)
    for name in ("estimator.safetensors", "predictions.csv", "metrics.csv", "split.json"):
        assert (folder / name).read_bytes() == (run / name).read_bytes(), name
    finished = json.loads((folder / "result.json").read_text())
    assert train_own(OWN, folder, SETTINGS, resume=True)[0] == finished
    other = read_table(table(make_rows(90, start=1)), "kind", id="name")
    for data, settings, reason in (
        (OWN, {**SETTINGS, "epochs": 26}, r"another configuration \(own\.epochs"),
        (other, SETTINGS, r"data\.fingerprint"),
    ):
        with pytest.raises(RunError, match=reason):
            train_own(data, folder, settings, resume=True)


def test_new_rows_get_label_probability_and_influential_rows(run: Path, tmp_path: Path) -> None:
    new, out = table(make_rows(20, start=200)), tmp_path / "out.csv"
    assert predict_run(run, new, out) == 20
    found, text = lines(out), out.read_bytes()
    chances = ["probability of ape", "probability of fish"]
    assert list(found[0]) == ["name", "kind", "probability", *chances, "influential"]
    assert sum(r["kind"] == ("fish", "ape")[int(r["name"][1:]) % 2] for r in found) > 16
    assert all(0.5 <= float(row["probability"]) <= 1 for row in found)
    assert all(row["influential"].startswith("r") for row in found)
    new.pop("kind")  # the label column may be left out
    predict_run(run, new, out, overwrite=True)
    assert out.read_bytes() == text
    twice = table(make_rows(2, start=5) + make_rows(1, start=5))
    with pytest.raises(DataError, match="row 3, column 'name': the id 'r5' comes twice"):
        predict_run(run, twice, tmp_path / "never.csv")
    assert not (tmp_path / "never.csv").exists()


def test_what_is_not_a_run_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a finished run"):
        OwnRun.load(tmp_path)
    with pytest.raises(RunError, match="holds a run already"):
        train_own(OWN, run)
    for name in ("estimator.safetensors", "result.json"):
        copy = shutil.copytree(run, tmp_path / name.replace(".", "-"))
        (copy / name).write_bytes(b'{"task": "multiclass"')
        with pytest.raises(DifformerError, match=name.split(".")[0] + "|not a finished run"):
            OwnRun.load(copy)
    copy = shutil.copytree(run, tmp_path / "copy")
    OwnRun.load(run).estimator.set_params(epochs=3).save(copy / "estimator.safetensors")
    with pytest.raises(RunError, match=r"estimator\.safetensors is not the file that the run"):
        OwnRun.load(copy)


def test_influential_rows_are_not_named_for_large_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert NAMED_UP_TO == 5000
    monkeypatch.setattr(peers, "NAMED_UP_TO", 50)
    params = {"epochs": 2, "graph": None, "kernel": "simple", "early_stopping": True}
    for influential in (None, 2):
        train_own(OWN, tmp_path / f"{influential}", params, influential=influential)
        header = lines(tmp_path / f"{influential}" / "predictions.csv")[0]
        assert ("influential" in header) == (influential is not None)
