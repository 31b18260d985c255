"""A missing extra is one line with the command that installs it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import reload
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from difformer.app.encoders import _lite0, minilm  # type: ignore[attr-defined]
from difformer.app.onnx import export_run
from difformer.app.service import app
from difformer.app.service.server import make_server
from difformer.compare.tune import tune
from difformer.core.graph import Graph
from difformer.data.graphs import read_pyg
from difformer.data.neighbours import _index  # type: ignore[attr-defined]
from difformer.data.registry import load_dataset
from difformer.data.table.files import _parquet  # type: ignore[attr-defined]
from difformer.errors import DifformerError
from difformer.estimators.backtest import Backtest
from difformer.jobs.job import Experiment
from difformer.shards.engine import Engine
from difformer.shards.far import connect
from difformer.systems import system
from difformer.systems.registry import SYSTEMS
from difformer.train.callbacks import TensorBoard
from difformer.train.parts import _metis  # type: ignore[attr-defined]
from difformer_paper.figures.drawing import style

REPOSITORY = Path(__file__).resolve().parent.parent
EDGES = torch.tensor([[0, 1], [1, 2]])
USES: dict[str, tuple[str, Callable[[], Any]]] = {
    "optuna": ("tune", lambda: tune(Experiment.make("digits", system="mlp"), trials=1)),
    "faiss": ("knn", lambda: _index(torch.randn(5, 2), 2, "euclidean")),
    "pyarrow": ("parquet", lambda: next(iter(_parquet(Path("x.parquet"), 10)))),
    "pymetis": ("scale", lambda: _metis(Graph.from_edges(EDGES, 3), 2)),
    "duckdb": ("shards", lambda: Engine(Path("none"), 4 * 10**9, 0, lambda *_: None)),
    "ray": ("ray", lambda: connect(None)),
    "starlette": ("serve", lambda: reload(app)),
    "prometheus_client": ("serve", lambda: reload(app)),
    "uvicorn": ("serve", lambda: make_server(None)),
    "tensorboard": ("tensorboard", lambda: TensorBoard("logs").on_start(SimpleNamespace(epoch=0))),  # type: ignore[arg-type]
    "onnx": ("onnx", lambda: export_run("none", "none.onnx")),
    "onnxruntime": ("onnx", lambda: export_run("none", "none.onnx")),
    "onnxscript": ("onnx", lambda: export_run("none", "none.onnx")),
    "efficientnet_lite_pytorch": ("features", lambda: _lite0()),
    "torch_geometric": ("gnn", lambda: read_pyg("none.pt")),
    "matplotlib": ("paper", lambda: style().__enter__()),
    "sentence_transformers": ("features", lambda: minilm(None, None)),  # type: ignore[arg-type]
}


def extras() -> set[str]:
    """The names of the extras in pyproject.toml."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    section = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
    return set(re.findall(r"^(\w+) = \[", section, re.MULTILINE))


@pytest.mark.parametrize("package", USES)
def test_a_missing_package_is_named_with_the_command(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra, use = USES[package]
    # torch.utils.tensorboard stays imported, and with it what it took from the package.
    modules = (package, f"torch.utils.{package}")
    for name in [n for n in sys.modules if any(n == d or n.startswith(f"{d}.") for d in modules)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DifformerError) as caught:
        use()
    assert f"needs: pip install 'difformer[{extra}]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_system_whose_package_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "find_spec", lambda name: None)
    cora = load_dataset("cora")
    assert SYSTEMS["grand"].needs(cora) == "needs torchdiffeq: pip install 'difformer[paper]'"
    assert SYSTEMS["gat-tuned"].needs(cora) == "needs torch_geometric: pip install 'difformer[gnn]'"


def test_a_backtest_without_classical_forecasts_says_what_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "statsforecast", None)
    reason = Backtest.reason.__get__(SimpleNamespace(values=torch.zeros(3, 2)))
    assert reason == "AutoETS and AutoARIMA need: pip install 'difformer[forecast]'"


def test_every_extra_for_users_is_tried() -> None:
    tried = {extra for extra, _ in USES.values()} | {"forecast"}  # the one above
    assert tried | {"all", "dev", "docs"} == extras()


def test_every_extra_that_is_named_exists() -> None:
    named = {extra for extra, _ in USES.values()}
    named |= {system.EXTRAS[kind.package] for kind in SYSTEMS.values() if kind.package}
    for path in (REPOSITORY / "src").rglob("*.py"):
        named |= set(re.findall(r"missing_extra\([^()]*\"(\w+)\"\)", path.read_text("utf-8")))
    assert named == extras() & named
