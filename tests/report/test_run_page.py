"""A page for every run folder, whatever is missing from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from difformer.blocks import number
from difformer.data.dataset import Dataset
from difformer.data.snapshots import TemporalDataset
from difformer.errors import DifformerError, RunError
from difformer.report.page import safe_json
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
    data = blobs()
    path = write_report(trained(tmp_path / "run", data, seeds=3, num_layers=2), dataset=data)
    assert path == tmp_path / "run" / "report.html"
    text, page = text_of(path), data_of(path)
    wanted = ["results", "curves", "predictions", "energy", "diffusivity", "states", "cost"]
    assert re.findall(r'<section id="(\w+)"', text) == [*wanted, "settings"]
    said = ("over 3 seeds", "±", "Of seed 0, the first with a model", "Split thirds: 20 train, 20")
    assert all(words in text for words in said)
    assert {"curve-loss", "curve-accuracy", "calibration", "energy-layers"} <= set(page["plots"])
    panels = [panel["title"] for panel in page["explorer"]["panels"]]
    assert panels == ["After layer 1", "After layer 2, the last"]


@pytest.mark.parametrize(
    "gone",
    ["config.toml", "result.json", "metrics.csv", "split.json", "model.safetensors"],
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
    section = settings_section(Run({}, config={"system": system, "train": {"lr": 0.5, "seed": 3}}))
    settings = [row for block in section.blocks for row in getattr(block, "rows", [])]
    assert ["seed", "3"] in settings
    assert (["lr", "0.5"] in settings) == (system == "mlp")


def test_a_class_without_examples_is_said_to_be_empty(
    tmp_path: Path, blobs: Make, trained: Train
) -> None:
    data = blobs(60, classes=3, names=("a", "b", "c", "never"))
    text = text_of(write_report(trained(tmp_path / "run", data), dataset=data))
    assert "Classes without a test row: never." in text


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_other_tasks_have_a_page(tmp_path: Path, blobs: Make, trained: Train, task: str) -> None:
    plain = blobs(60)
    y = plain.x[:, :2].clone() if task == "regression" else (plain.x[:, :2] > 0).float()
    y[3, 1] = float("nan")
    data = Dataset("blobs", plain.x, y, task)
    path = write_report(trained(tmp_path / "run", data), dataset=data)
    assert ("predicted" if task == "regression" else "calibration") in data_of(path)["plots"]


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


def test_json_cannot_end_its_script_element() -> None:
    value = {"</script>": ["<!--", "&amp;", float("nan"), torch.pi, "\u2028"]}
    text = safe_json(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["</script>"][:2] == ["<!--", "&amp;"]
    assert json.loads(text)["</script>"][2] is None


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


def test_rows_with_known_influences_have_their_image(monkeypatch: pytest.MonkeyPatch) -> None:
    from difformer.data.registry import load_dataset
    from difformer.report import states as explorer

    monkeypatch.setattr(explorer, "MOST_IMAGES", 10)
    found = explorer.row_images(load_dataset("digits"), list(range(100)), first=[3, 5, 8])
    assert found is not None
    shown = [i for i, uri in enumerate(found) if uri]
    assert {3, 5, 8} < set(shown)
    assert len(shown) <= 10


def test_large_numbers_are_written_out() -> None:
    assert number(14_670.2) == "14,670"
    assert number(2960.5) == "2,960"
    assert number(0.91234) == "0.9123"
    assert number(1.2e-7) == "1.2e-07"
    assert number(1699999996112388.2, 12) == "1,699,999,996,112,388"  # all digits if they matter
