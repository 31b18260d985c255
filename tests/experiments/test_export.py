"""difformer export --onnx: the file answers as the run does, for any number of rows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from difformer.app import onnx as export
from difformer.app.onnx import export_run
from difformer.data.table.encoder import TableEncoder
from difformer.data.table.read import read_table
from difformer.errors import DifformerError
from difformer.estimators.forms import View, learn_view
from difformer.estimators.rows import Rows
from difformer.jobs.own import OwnRun
from difformer.jobs.table import train_own

onnxruntime = pytest.importorskip("onnxruntime", reason="export needs the extra onnx")

DRAW = random.Random(0)
N = 60
SIZE = [DRAW.gauss(3 * (i % 2), 1) for i in range(N)]
TABLE: dict[str, Any] = {
    "size": [None if i % 17 == 0 else size for i, size in enumerate(SIZE)],
    "colour": [("red", "blue", "green")[(i + (DRAW.random() < 0.3)) % 3] for i in range(N)],
    "day": [f"{1 + i % 28:02d}.01.2020" for i in range(N)],
    "kind": [("fish", "ape")[i % 2] for i in range(N)],
    "weight": [100 + 10 * size for size in SIZE],
    "height": [size - 2 for size in SIZE],
}
QUICK = {"epochs": 3, "hidden_channels": 8, "recipe": "stable"}


def trained(folder: Path, label: str | list[str], **params: Any) -> OwnRun:
    labels = ("kind", "weight", "height")
    own = {k: v for k, v in TABLE.items() if k not in labels or k in label}
    train_own(read_table(own, label), folder, {**QUICK, **params})
    return OwnRun.load(folder)


def answered(path: Path, rows: Any) -> Any:
    return onnxruntime.InferenceSession(path).run(None, {"x": np.array(rows, np.float64)})[0]


def test_the_file_of_a_table_takes_its_cells_and_finds_neighbours(cli: Any, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "kind", graph="knn")
    out = tmp_path / "model.onnx"
    done = cli("export", str(tmp_path / "run"), "--onnx", str(out), "--json")
    told = json.loads(done.out)
    assert told["difference"] < 1e-7
    assert (told["inputs"], told["outputs"]) == (["size", "colour", "day"], ["ape", "fish"])
    kept = onnxruntime.InferenceSession(out).get_modelmeta().custom_metadata_map["difformer"]
    columns = json.loads(kept)["columns"]
    assert columns[1]["values"] == ["blue", "green", "red"]
    # The same rows as a person has them: a missing size, an unknown colour, days since 1970.
    table = {"size": [1.5, None], "colour": ["green", "pink"], "day": ["31.12.2019", "05.01.2020"]}
    features = run.encoder.encode_chunk(table, 1)
    wanted = run.estimator.predict_proba(Rows(features, None))
    cells = [[1.5, 1, 18261], [np.nan, -1, 18266]]
    np.testing.assert_allclose(answered(out, cells), wanted, atol=1e-6)
    np.testing.assert_allclose(answered(out, cells[1:]), wanted[1:], atol=1e-6)
    assert "is there already" in cli.refused("export", str(tmp_path / "run"), "--onnx", str(out))


def test_numbers_come_in_their_own_units(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", ["weight", "height"], graph=None, kernel="sigmoid")
    found = export_run(tmp_path / "run", tmp_path / "m.onnx")
    assert found.outputs == ("weight", "height")
    assert found.difference < 1e-7
    features = run.encoder.encode_chunk({"size": [2.0], "colour": ["red"], "day": ["07.01.2020"]})
    wanted = run.estimator.predict(Rows(features, None))
    np.testing.assert_allclose(answered(tmp_path / "m.onnx", [[2.0, 2, 18268]]), wanted, atol=1e-4)


@pytest.mark.parametrize("kind", ["standard", "common", "steps", "near", "plain"])
def test_every_view_is_the_same_in_the_file(kind: str) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4)) * [1, 10, 100, 3]
    rows[:, 3] = np.round(rows[:, 3])
    encoder = TableEncoder.of_numbers(rows, list("abcd"))
    x = torch.from_numpy(encoder.encode_array(rows))
    view = View("plain") if kind == "plain" else learn_view(kind, x, encoder)
    assert view is not None
    program = export._program(export._Model(view.apply), x.numpy())
    found = export._answers(program.model_proto.SerializeToString(), x.numpy())
    np.testing.assert_allclose(found, view.apply(x).numpy(), atol=1e-6)


def test_a_run_on_a_dataset_takes_its_features(cli: Any, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    words = ("--epochs", "1", "--hidden-channels", "8", "--no-report", "--out", run)
    assert cli("train", "digits", *words).code == 0
    done = cli("export", run, "--onnx", str(tmp_path / "m.onnx"))
    assert done.code == 0, done.err
    assert answered(tmp_path / "m.onnx", np.zeros((3, 64))).sum(1) == pytest.approx([1, 1, 1])


def test_what_cannot_be_exported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = [
        f"likes {('apples', 'pears', 'plums')[i % 3]} and tree {i % 7} or {i}" for i in range(N)
    ]
    train_own(
        read_table({"note": text, "size": SIZE, "kind": TABLE["kind"]}, "kind"),
        tmp_path / "text",
        {**QUICK, "graph": None},
    )
    with pytest.raises(DifformerError, match="column 'note' is text"):
        export_run(tmp_path / "text", tmp_path / "m.onnx")
    trained(tmp_path / "run", "kind", graph=None)
    answers = export._answers
    monkeypatch.setattr(export, "_answers", lambda content, rows: answers(content, rows) + 0.01)
    with pytest.raises(DifformerError, match="the answers of the exported model differ"):
        export_run(tmp_path / "run", tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()
    (tmp_path / "series").mkdir()
    (tmp_path / "series" / "series.json").write_text("{}")
    with pytest.raises(DifformerError, match="is a run on a series"):
        export_run(tmp_path / "series", tmp_path / "m.onnx")
