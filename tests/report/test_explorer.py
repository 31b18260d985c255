"""The states of the rows in two dimensions, and the values they are coloured by."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from difformer.data.dataset import Dataset
from difformer.jobs.job import OwnTable
from difformer.jobs.table import train_own
from difformer.report.run_page import write_report
from difformer.report.states import project


def explorer_of(page: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return json.loads(found[1])["explorer"]


@pytest.mark.parametrize("how", ["pca", "tsne"])
def test_states_on_one_line_are_not_drawn_on_one_line(how: str) -> None:
    place = torch.randn(80, 1, generator=torch.Generator().manual_seed(0))
    drawn = project(place @ torch.randn(1, 4, generator=torch.Generator().manual_seed(1)), how)
    assert bool(drawn.isfinite().all())
    height = drawn[:, 1]
    assert float(height.max() - height.min()) > 0.02 * float(drawn[:, 0].max() - drawn[:, 0].min())
    assert height.unique().numel() > 3
    # Across, rows keep their order and their distances.
    across = np.corrcoef(drawn[:, 0].numpy(), place[:, 0].numpy())[0, 1]
    assert abs(across) == pytest.approx(1)


def test_states_in_a_plane_are_drawn_to_scale() -> None:
    state = torch.randn(80, 2, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(torch.pdist(project(state, "pca")), torch.pdist(state))


def test_a_row_without_a_value_is_drawn_with_its_prediction(tmp_path: Path) -> None:
    """In the units of the label, and not as 0."""
    draw = np.random.default_rng(0)
    size = draw.normal(size=120)
    lines = [f"r{i},{s:.4f},{1000 + 50 * s:.3f}" for i, s in enumerate(size)]
    lines = [line.rsplit(",", 1)[0] + "," if i % 3 == 0 else line for i, line in enumerate(lines)]
    (tmp_path / "t.csv").write_text("\n".join(["name,size,price", *lines]) + "\n")
    table = OwnTable(nodes=str(tmp_path / "t.csv"), label="price", id="name")
    data = table.read()
    _, run = train_own(data, tmp_path / "run", {"epochs": 30, "hidden_channels": 8}, table=table)
    assert run is not None
    explorer = explorer_of(write_report(tmp_path / "run", dataset=data))
    assert [value is None for value in explorer["value"]] == [i % 3 == 0 for i in range(120)]
    predicted = run.estimator.transduction_.ravel()
    np.testing.assert_allclose(explorer["guess"], predicted, rtol=1e-3)
    assert min(explorer["guess"]) > 500


def test_a_row_with_some_of_its_values_has_no_mean_of_them(
    tmp_path: Path, blobs: Callable[..., Dataset], trained: Callable[..., Path]
) -> None:
    plain = blobs(60)
    y = plain.x[:, :2].clone()
    y[3, 1] = float("nan")
    data = Dataset("blobs", plain.x, y, "regression")
    explorer = explorer_of(write_report(trained(tmp_path / "run", data), dataset=data))
    assert [i for i, value in enumerate(explorer["value"]) if value is None] == [3]
    assert len(explorer["guess"]) == 60
