"""Figure 8: the strongest pairs are the strongest, and three files are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from difformer.data.snapshots import from_windows
from difformer.nn.model import DIFFormer
from difformer.report.fig8 import draw_snapshots, snapshot_edges


def test_the_strongest_pairs_of_each_snapshot_are_drawn_and_listed(tmp_path: Path) -> None:
    series = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
    data = from_windows("toy", series, 4, ((ring, None),))
    torch.manual_seed(0)
    model = DIFFormer(4, 4, 1).eval()
    found = snapshot_edges(model, data, snapshots=(0, 5), top=7)
    weights = model.diffusivity(data.x[30:36], ring)
    assert isinstance(weights, torch.Tensor)
    apart = weights[~torch.eye(6, dtype=torch.bool)]
    assert found[1].weight == pytest.approx(sorted(apart.tolist(), reverse=True)[:7], rel=1e-5)
    assert found[1].target == pytest.approx(data.y[30:36, 0].tolist())
    files = draw_snapshots({"DIFFormer-s": found, "DIFFormer-a": found}, tmp_path)
    assert [file.name for file in files] == ["fig8.png", "fig8.svg", "fig8.csv"]
    assert len(files[2].read_text().splitlines()) == 1 + 2 * 2 * 7
    before = files[1].read_bytes()
    draw_snapshots({"DIFFormer-s": found, "DIFFormer-a": found}, tmp_path)
    assert files[1].read_bytes() == before
    with pytest.raises(ValueError, match="snapshots must lie in 0 to 25, got 26"):
        snapshot_edges(model, data, snapshots=(26,))
