"""A Data of PyTorch Geometric in a .pt file: read without executing anything in it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from difformer.data.graphs import read_pyg
from difformer.errors import DataError


def graph(n: int = 12) -> Data:
    generator = torch.Generator().manual_seed(0)
    masks = {f"{part}_mask": torch.arange(n) % 3 == i for i, part in enumerate(("train", "val"))}
    return Data(
        x=torch.randn(n, 4, generator=generator),
        y=torch.arange(n) % 2,
        edge_index=torch.randint(n, (2, 30), generator=generator),
        test_mask=torch.arange(n) % 3 == 2,
        **masks,
    )


@pytest.mark.parametrize(
    "form",
    [
        lambda data: data,
        lambda data: data.to_dict(),
        lambda data: (data.to_dict(), None, Data),  # a saved dataset
        lambda data: (data, None),  # an older one
    ],
)
def test_a_graph_is_read_in_every_form_that_it_is_saved_in(form: Any, tmp_path: Path) -> None:
    data = graph()
    torch.save(form(data), tmp_path / "g.pt")
    found = read_pyg(tmp_path / "g.pt")
    assert (found.name, found.task) == ("g", "multiclass")
    for part in ("x", "y", "edge_index"):
        assert torch.equal(getattr(found, part), data[part])
    assert found.split("given").test.tolist() == [2, 5, 8, 11]


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("hidden", ["alone", "in a Data", "in a pickle"])
def test_code_in_a_file_is_not_executed(hidden: str, tmp_path: Path) -> None:
    evil = Evil(tmp_path / "executed")
    data = graph()
    data.note = evil
    if hidden == "in a pickle":
        (tmp_path / "g.pt").write_bytes(pickle.dumps(evil))
    else:
        torch.save(evil if hidden == "alone" else data, tmp_path / "g.pt")
    with pytest.raises(DataError, match="holds more than tensors and a Data"):
        read_pyg(tmp_path / "g.pt")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read"),
        (b"PK\x03\x04 not a zip", "cannot be read"),
        (torch.zeros(3), "must hold one Data"),
        ((graph().to_dict(), {"x": torch.zeros(2)}, Data), "must hold one Data"),
        ({"x": torch.zeros(3, 2)}, "must have x and y"),
        ({"x": [1, 2], "y": [0, 1]}, "cannot be read"),
        ({**graph().to_dict(), "edge_index": torch.full((2, 3), 99)}, "99"),
    ],
    ids=str,
)
def test_what_is_no_graph_is_one_line(content: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "g.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(DataError, match=reason) as error:
        read_pyg(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_train_takes_a_pt_file_and_opens_the_run_again(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    torch.save(graph(60), "folder/g.pt")
    done = cli("train", "folder/g.pt", "--epochs", "2", "--no-report")
    assert done.code == 0, done.err
    assert "given: 20 train, 20 val, 20 test" in done.out
    assert (tmp_path / "runs" / "g-difformer-s-1" / "result.json").exists()
    assert cli("report", "runs/g-difformer-s-1").code == 0
    assert "--nodes must be a table" in cli.refused(
        "train", "--nodes", "folder/g.pt", "--label", "y"
    )
    assert "none.pt cannot be read: No such file" in cli.refused("train", "none.pt")
