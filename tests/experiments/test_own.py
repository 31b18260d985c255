"""From a person's table to a run folder, and to predictions for new rows in files."""

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
from difformer.jobs import table as peers
from difformer.jobs.own import OwnRun
from difformer.jobs.table import NAMED_UP_TO, PEERS, simple_peers, train_own
from difformer.machine import commit
from difformer.runs.answer import predict_run

HEADER = ("name", "size", "colour", "note", "kind")
ONE_FORM = {"hidden_channels": 16, "kernel": "simple", "early_stopping": True}


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


def write(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = HEADER) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    own = read_table(write(folder / "t.csv", make_rows(90)), "kind", id="name")
    train_own(own, folder / "run", {"epochs": 25, "hidden_channels": 16})
    return folder / "run"


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_holds_its_files_and_fills_the_empty_labels(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    made = {"config.toml", "split.json", "estimator.safetensors", "result.json"}
    assert names == {*made, "metrics.csv", "held_out.csv", "predictions.csv"}
    result = json.loads((run / "result.json").read_text())
    assert result["commit"] == commit()
    assert {"linear, standard", "sharp, standard"} <= set(result["tried"])
    filled = lines(run / "predictions.csv")
    assert len(filled) == 60
    right = [row["kind"] == ("fish", "ape")[int(row["name"][1:]) % 2] for row in filled]
    assert sum(right) > 50


def test_simple_peers_are_scored_on_the_same_held_out_labels(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = json.loads((run / "result.json").read_text())["peers"]
    assert {one["system"] for one in found} == set(PEERS)
    values = [one["value"] for one in found]
    assert values == sorted(values, reverse=True)
    own = read_table(run.parent / "t.csv", "kind", id="name")
    split = Split.load(run / "split.json")
    monkeypatch.setattr(peers, "PEERS", ("logistic", "knn"))
    again = [one for one in found if one["system"] in ("logistic", "knn")]
    assert simple_peers(own, split) == again
    guess = max((own.y[split.train] == c).float().mean().item() for c in (0, 1))
    assert values[0] > guess


def test_without_validation_rows_peers_are_scored_by_folds_of_the_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = read_table(write(tmp_path / "t.csv", make_rows(60)), "kind", id="name")
    labelled = (own.y >= 0).nonzero().flatten()
    all_rows = Split("all", labelled, labelled[:0], labelled[:0])
    found = simple_peers(own, all_rows)
    assert {one["system"] for one in found} == set(PEERS)
    spoiled = replace(own, y=torch.where(own.y >= 0, own.y, torch.randint(0, 2, own.y.shape)))
    spread = ("label-spreading", "self-training")
    monkeypatch.setattr(peers, "PEERS", spread)  # those that take rows without a label, too
    again = [one for one in found if one["system"] in spread]
    assert simple_peers(spoiled, all_rows) == again  # other rows' labels are not used
    one_each = Split("few", [int((own.y == c).nonzero()[0]) for c in (0, 1)], [], [])
    assert simple_peers(own, one_each) == []


def test_numbers_are_predicted_by_the_peers_that_can_and_large_tables_by_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(str(i), str(2.5 * i + 0.1)) for i in range(40)]
    own = read_table(write(tmp_path / "t.csv", rows, ("size", "weight")), "weight")
    split = Split("halves", range(0, 40, 2), range(1, 40, 2), [])
    found = simple_peers(own, split)
    assert {one["system"] for one in found} == {"logistic", "forest", "boosting", "knn"}
    assert [one["value"] for one in found] == sorted(one["value"] for one in found)
    assert found[0]["metric"] == "rmse"
    monkeypatch.setattr(peers, "PEERS_UP_TO", 39)
    assert simple_peers(own, split) == []


def test_a_killed_run_goes_on_to_the_same_bits(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from difformer.estimators.search import Search

    settings = {"epochs": 25, "hidden_channels": 16}
    own = read_table(run.parent / "t.csv", "kind", id="name")
    judge, calls = Search.judge, list[int]()

    def dies(self: Any, form: Any) -> None:
        judge(self, form)
        calls.append(1)
        if len(calls) in (1, 6):  # after the first form, and among the later ones
            raise RuntimeError("killed")

    monkeypatch.setattr(Search, "judge", dies)
    for resume in (False, True):
        with pytest.raises(RuntimeError, match="killed"):
            train_own(own, tmp_path / "run", settings, resume=resume)
        with pytest.raises(RunError, match="is not a finished run"):
            OwnRun.load(tmp_path / "run")
    train_own(own, tmp_path / "run", settings, resume=True)
    for name in ("estimator.safetensors", "predictions.csv", "metrics.csv", "split.json"):
        assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes(), name
    finished = json.loads((tmp_path / "run" / "result.json").read_text())
    assert train_own(own, tmp_path / "run", settings, resume=True)[0] == finished
    with pytest.raises(RunError, match=r"another configuration \(own\.epochs"):
        train_own(own, tmp_path / "run", {"epochs": 26, "hidden_channels": 16}, resume=True)
    other = read_table(write(tmp_path / "o.csv", make_rows(90, start=1)), "kind", id="name")
    with pytest.raises(RunError, match=r"data\.fingerprint"):
        train_own(other, tmp_path / "run", settings, resume=True)


def test_ctrl_c_while_forms_are_compared_leaves_a_run_that_can_be_resumed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from difformer.estimators.search import Search

    settings = {"epochs": 2, "hidden_channels": 16}
    own = read_table(run.parent / "t.csv", "kind", id="name")

    def interrupt(self: Any, form: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Search, "judge", interrupt)
        assert train_own(own, tmp_path / "run", settings) == ({"interrupted": True}, None)
    assert train_own(own, tmp_path / "run", settings, resume=True)[1] is not None


def test_new_rows_get_label_probability_and_influential_rows(run: Path, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", make_rows(20, start=200))
    assert predict_run(run, new, tmp_path / "out.csv") == 20
    found = lines(tmp_path / "out.csv")
    chances = ["probability of ape", "probability of fish"]
    assert list(found[0]) == ["name", "kind", "probability", *chances, "influential"]
    assert sum(r["kind"] == ("fish", "ape")[int(r["name"][1:]) % 2] for r in found) > 16
    assert all(0.5 <= float(row["probability"]) <= 1 for row in found)
    assert all(row["influential"].startswith("r") for row in found)
    # The label column may be left out.
    write(new, [r[:-1] for r in make_rows(20, start=200)], HEADER[:-1])
    predict_run(run, new, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "out.csv").read_bytes()


def test_regression_predicts_numbers(tmp_path: Path) -> None:
    table = {"a": [i / 10 for i in range(60)], "y": [i / 5 if i % 2 else None for i in range(60)]}
    own = read_table(table, "y")
    train_own(own, tmp_path / "run", {"epochs": 40, "graph": "knn", **ONE_FORM})
    predict_run(tmp_path / "run", {"a": [1.23, 4.56]}, tmp_path / "out.csv")
    found = lines(tmp_path / "out.csv")
    assert list(found[0]) == ["id", "y", "influential"]
    assert float(found[0]["y"]) < float(found[1]["y"])


def test_what_is_not_a_run_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a finished run"):
        OwnRun.load(tmp_path)
    own = read_table(write(tmp_path / "t.csv", make_rows(30)), "kind", id="name")
    with pytest.raises(RunError, match="holds a run already"):
        train_own(own, run)
    for name in ("estimator.safetensors", "result.json"):
        copy = shutil.copytree(run, tmp_path / name.replace(".", "-"))
        (copy / name).write_bytes(b'{"task": "multiclass"')
        with pytest.raises(DifformerError, match=name.split(".")[0] + "|not a finished run"):
            OwnRun.load(copy)
    shutil.copytree(run, tmp_path / "copy")
    other = OwnRun.load(run).estimator.set_params(epochs=3)
    other.save(tmp_path / "copy" / "estimator.safetensors")
    with pytest.raises(RunError, match=r"estimator\.safetensors is not the file that the run"):
        OwnRun.load(tmp_path / "copy")


def test_new_ids_must_be_different(run: Path, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", make_rows(2, start=5) + make_rows(1, start=5))
    with pytest.raises(DataError, match="row 3, column 'name': the id 'r5' comes twice"):
        predict_run(run, new, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_influential_rows_are_not_named_for_large_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert NAMED_UP_TO == 5000
    monkeypatch.setattr("difformer.jobs.table.NAMED_UP_TO", 50)
    own = read_table(write(tmp_path / "t.csv", make_rows(60)), "kind", id="name")
    params = {"epochs": 2, "graph": None, **ONE_FORM}
    train_own(own, tmp_path / "run", params)
    assert "influential" not in lines(tmp_path / "run" / "predictions.csv")[0]
    train_own(own, tmp_path / "asked", params, influential=2)
    assert "influential" in lines(tmp_path / "asked" / "predictions.csv")[0]
