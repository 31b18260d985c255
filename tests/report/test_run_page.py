"""A page for every run folder, whatever is missing from it, and what its blocks say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from difformer.blocks import Section, Table, number
from difformer.compare.comparison import Comparison, Row
from difformer.data.dataset import Dataset
from difformer.data.snapshots import TemporalDataset
from difformer.errors import DifformerError, RunError
from difformer.report.page import render_page, safe_json
from difformer.report.predictions import calibration_block, confusion_blocks, regression_blocks
from difformer.report.run_page import settings_section, write_report
from difformer.train.folder import Run

Make = Callable[..., Dataset]
Train = Callable[..., Path]


def text_of(path: Path) -> str:
    """The page without plotly: what is ours."""
    return re.sub(r"<script>.*?</script>", "", path.read_text(encoding="utf-8"), flags=re.S)


def data_of(path: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), flags=re.S)
    assert found is not None
    return json.loads(found[1])


def test_a_run_of_several_seeds_has_all_its_sections(
    tmp_path: Path, blobs: Make, trained: Train
) -> None:
    data = blobs(60, classes=3, names=("a", "b", "c", "never"))
    path = write_report(trained(tmp_path / "run", data, seeds=3, num_layers=2), dataset=data)
    assert path == tmp_path / "run" / "report.html"
    text, page = text_of(path), data_of(path)
    wanted = ["results", "curves", "predictions", "energy", "diffusivity", "states", "cost"]
    assert re.findall(r'<section id="(\w+)"', text) == [*wanted, "settings"]
    said = ["over 3 seeds", "±", "Of seed 0, the first with a model", "Split thirds: 20 train, 20"]
    said.append("Classes without a test row: never.")
    assert all(words in text for words in said)
    assert {"curve-loss", "curve-accuracy", "calibration", "energy-layers"} <= set(page["plots"])
    panels = [panel["title"] for panel in page["explorer"]["panels"]]
    assert panels == ["After layer 1", "After layer 2, the last"]


@pytest.mark.parametrize(
    "gone", ["config.toml", "result.json", "metrics.csv", "split.json", "model.safetensors"]
)
@pytest.mark.parametrize("damage", [False, True], ids=["missing", "damaged"])
def test_a_missing_part_is_named_and_the_rest_is_shown(
    folder: Path, blobs: Make, gone: str, damage: bool
) -> None:
    if damage:
        (folder / gone).write_bytes(b"\x00\xff{not this")
    else:
        (folder / gone).unlink()
    text = text_of(write_report(folder, dataset=blobs()))
    assert gone in text
    assert 'class="missing"' in text
    assert len(re.findall("<section", text)) >= 4


def test_data_that_is_nowhere_is_named(folder: Path) -> None:
    text = text_of(write_report(folder))
    assert "What needs the trained model on its data is left out" in text
    assert "blobs" in text
    assert 'id="curves"' in text


def test_a_folder_that_is_no_run_and_a_place_that_is_none_are_errors(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="is not a run folder: it does not exist"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="none of its files can be read"):
        write_report(tmp_path / "empty")
    with pytest.raises(DifformerError, match="cannot write"):
        write_report(folder, out=folder / "result.json" / "page.html")  # a file is no folder


@pytest.mark.parametrize(
    "model",
    [
        {"num_layers": 1},
        {"hidden_channels": 1},
        {"kernel": "sigmoid", "system": "difformer-a"},
        {"kernel": "constant"},
        {"kernel": "identity"},
        {"source": 0.2, "num_layers": 4},
        {"num_heads": 2, "learn_qk": True},
        {"system": "mlp"},
    ],
    ids=str,
)
def test_any_shape_of_model_has_a_page(
    tmp_path: Path, blobs: Make, trained: Train, model: dict[str, Any]
) -> None:
    data = blobs()
    path = write_report(trained(tmp_path / "run", data, **model), dataset=data)
    panels = data_of(path)["explorer"]["panels"]
    assert len(panels) == 1 + ("system" not in model or "kernel" in model)
    for panel in panels:
        x, y = panel["points"]["line" if model.get("hidden_channels") == 1 else "pca"]
        assert len(x) == len(y) == 60
    assert ("The model is not a DIFFormer" in text_of(path)) == (model == {"system": "mlp"})


@pytest.mark.parametrize("system", ["mlp", "forest"])
def test_the_settings_are_those_that_the_system_uses(system: str, tmp_path: Path) -> None:
    config = {"system": system, "train": {"lr": 0.5, "seed": 3}}
    section = settings_section(Run({}, config=config))
    settings = [row for block in section.blocks for row in getattr(block, "rows", [])]
    assert ["seed", "3"] in settings
    assert (["lr", "0.5"] in settings) == (system == "mlp")


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_other_tasks_have_a_page(tmp_path: Path, blobs: Make, trained: Train, task: str) -> None:
    plain = blobs(60)
    y = plain.x[:, :2].clone() if task == "regression" else (plain.x[:, :2] > 0).float()
    y[3, 1] = float("nan")
    data = Dataset("blobs", plain.x, y, task)
    page = data_of(write_report(trained(tmp_path / "run", data), dataset=data))
    assert ("predicted" if task == "regression" else "calibration") in page["plots"]
    # A row with some of its values has no mean of them.
    assert [i for i, value in enumerate(page["explorer"]["value"]) if value is None] == [3]
    assert len(page["explorer"]["guess"]) == 60


def test_more_rows_than_points_are_sampled_and_said_so(
    tmp_path: Path, blobs: Make, trained: Train
) -> None:
    data = blobs(300)
    path = write_report(trained(tmp_path / "run", data), dataset=data, max_points=50)
    assert "50 of 300 rows are drawn" in text_of(path)
    explorer = data_of(path)["explorer"]
    assert len(explorer["rows"]) == 50
    drawn = set(range(50))
    for panel in explorer["panels"]:
        assert {*panel["edges"]["source"], *panel["edges"]["target"]} <= drawn


def test_the_page_does_not_depend_on_when_it_is_written(folder: Path, blobs: Make) -> None:
    data = blobs()
    first = write_report(folder, dataset=data, projection="pca").read_bytes()
    assert write_report(folder, dataset=data, projection="pca").read_bytes() == first


def test_snapshots_are_never_mixed(tmp_path: Path, trained: Train) -> None:
    """Of data over time, states and energies are those of one snapshot."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 3, generator=generator), torch.randn(60, 1, generator=generator)
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    data = TemporalDataset("weeks", x, y, "regression", num_nodes=6, edges=((edges, None),))
    path = write_report(trained(tmp_path / "run", data), dataset=data)
    assert "Of the last of 10 snapshots" in text_of(path)
    assert len(data_of(path)["explorer"]["rows"]) == 6
    assert "predicted" in data_of(path)["plots"]


# --- a comparison ----------------------------------------------------------------------------


def record(**changes: Any) -> str:
    runs = {
        name: {s: {"val": v, "test": v, "seconds": 1.0} for s, v in zip("ab", values, strict=True)}
        for name, values in {"mlp": (0.5, 0.6), "gcn": (0.7, 0.9)}.items()
    }
    rows = [Row(name, runs[name], memory=2**20) for name in runs]
    rows.append(Row("lp", cannot="needs <b>a graph</b>"))
    found = Comparison("blobs", "accuracy", ("a", "b"), 0, tuple(rows), True)
    return json.dumps({**found.to_json(), "command": "difformer compare blobs", **changes})


def test_a_comparison_has_its_page_also_if_nothing_ran(tmp_path: Path) -> None:
    kept = tmp_path / "comparison.json"
    kept.write_text(record())
    text = write_report(tmp_path).read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    said = ["Comparison on blobs", "GCN", "80.0 ± 14.1", "best", "-25.0 [", "compare blobs"]
    said += ["LP: needs &lt;b&gt;a graph", "before 2a0c100"]
    assert [words for words in said if words not in text] == []
    kept.write_text(record(commit="5" * 12))
    assert "5" * 12 in write_report(tmp_path).read_text(encoding="utf-8")
    rows = [row for row in json.loads(record())["rows"] if row["cannot"]]
    kept.write_text(record(rows=rows))
    assert "needs &lt;b&gt;" in write_report(tmp_path).read_text(encoding="utf-8")
    kept.write_text("{}")
    with pytest.raises(RunError, match="cannot be read"):
        write_report(tmp_path)


# --- blocks ----------------------------------------------------------------------------------


def test_columns_of_words_begin_at_the_left_and_numbers_end_at_the_right() -> None:
    rows = [("GCN", "Cora, 140 labels", "81.5"), ("MLP", "digits", "cannot run"), ("a", "–", "1")]
    table = Table("figures", ("Method", "Data", "Accuracy"), rows)
    assert table.texts == [True, True, False]
    counted = [("a", "5 columns", "0.5 to 0.9", "–"), ("b", "–", "57 %", "word")]
    assert Table("", tuple("abcd"), counted).texts == [True, True, False, True]
    page = render_page("a page", [Section("a", "A section", [table])])
    assert '<td class="text">Cora, 140 labels</td><td>81.5</td>' in page
    assert '<th scope="col" class="text">Data</th><th scope="col">Accuracy</th>' in page


def test_json_cannot_end_its_script_element() -> None:
    value = {"</script>": ["<!--", "&amp;", float("nan"), torch.pi, "\u2028"]}
    text = safe_json(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["</script>"][:2] == ["<!--", "&amp;"]
    assert json.loads(text)["</script>"][2] is None


def test_numbers_have_the_digits_that_people_read() -> None:
    assert number(14_670.2) == "14,670"
    assert number(2960.5) == "2,960"
    assert number(0.91234) == "0.9123"
    assert number(1.2e-7) == "1.2e-07"
    assert number(1699999996112388.2, 12) == "1,699,999,996,112,388"  # all digits if they matter


def test_confusion_counts_every_row_once_and_many_classes_are_a_list() -> None:
    output = torch.eye(3)[torch.tensor([0, 0, 1, 2, 2])]
    table = confusion_blocks(output, torch.tensor([0, 1, 1, 2, 0]), ["a", "b", "c"], "test")[0]
    assert [row[1:] for row in table.rows] == [
        ["1", "0", "1", "2", "0.500", "0.500"],
        ["1", "1", "0", "2", "0.500", "1.000"],
        ["0", "0", "1", "1", "1.000", "0.500"],
    ]
    output, y = torch.eye(40)[torch.arange(40) % 39], torch.arange(40)
    blocks = confusion_blocks(output, y, [f"c{i}" for i in range(40)], "test")
    assert blocks[0].rows == [["c39", "c0", "1"]]


@pytest.mark.parametrize(
    ("sure", "y", "said"),
    [
        (0.75, [0, 0, 0, 1], "error 0; on the whole well balanced"),
        (0.99, [0, 1] * 5, "error 0.49; on the whole over-confident"),
    ],
)
def test_calibration_compares_what_is_said_with_what_is_right(
    sure: float, y: list[int], said: str
) -> None:
    block = calibration_block(torch.tensor([[sure, 1 - sure]] * len(y)), torch.tensor(y), "test")
    assert f"calibration {said}" in block.caption
    assert block.table is not None
    assert block.table.rows == [[f"{sure}", f"{y.count(0) / len(y):g}", str(len(y))]]


def test_residuals_are_predicted_minus_true_and_many_rows_are_sampled() -> None:
    truth, guess = torch.tensor([[1.0], [2.0], [float("nan")]]), torch.tensor([[1.5], [1.0], [9.0]])
    _, block = regression_blocks(guess, truth, "held-out", name="y")
    assert block.data[1]["x"] == [1.5, 1.0]
    assert block.data[1]["y"] == [0.5, -1.0]
    y = torch.randn(6000, generator=torch.Generator().manual_seed(0))
    block, _ = regression_blocks(y + 1, y, "test")
    assert "5,000 of 6,000 sampled" in block.caption
    assert "mean squared error 1" in block.caption
