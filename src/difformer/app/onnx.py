"""A finished run as an ONNX file: its frozen model, checked against the run itself.

The file answers for any number of new rows, and needs neither the data nor difformer. For a run on
a table the input has one number per column: a number as it is, a date as days since 1970, a
category as its place in the list in the file's metadata, NaN for a missing value. For a run on a
dataset the input has its features.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from difformer.core.context import Pairs
from difformer.data.table.columns import Column, encode_numbers
from difformer.data.table.scales import FIGURES
from difformer.errors import DifformerError, missing_extra
from difformer.estimators.answering import USUAL
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.estimators.problem import Outcome
from difformer.estimators.rows import Rows
from difformer.estimators.views import FARTHEST, View
from difformer.files import json_text, write_atomic
from difformer.jobs.own import OwnRun
from difformer.runs.open import LoadedRun, load_run
from difformer.runs.run import need_kind

Array = NDArray[Any]

ROWS = 100  # rows that the file is checked on
CLOSE = 1e-5  # the largest difference that rounding may make, relative to the largest answer


@dataclass(frozen=True)
class Exported:
    """What was written, and the largest difference of its answers from the run's."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rows: int
    difference: float


def export_run(
    folder: str | Path, out: str | Path, *, data_dir: str | Path | None = None
) -> Exported:
    """Write the model of a run as ONNX, and compare it with the run on rows drawn like its own.

    Raises:
        DifformerError: the run cannot be exported, an extra is missing, or the answers differ.
    """
    folder, out = Path(folder), Path(out)
    if any(find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")):
        raise missing_extra("export --onnx", "onnx")
    if need_kind(folder, ("dataset", "table"), "export") == "table":
        model, told, rows, wanted = _of_table(OwnRun.load(folder))
    else:
        model, told, rows, wanted = _of_dataset(load_run(folder, data_dir=data_dir))
    program = _program(model, rows)
    program.model.metadata_props["difformer"] = json_text(told)
    content = program.model_proto.SerializeToString()
    found = _answers(content, rows)
    difference = float(np.abs(found - wanted).max() / max(1.0, float(np.abs(wanted).max())))
    if not difference < CLOSE:
        raise DifformerError(
            f"the answers of the exported model differ from those of {folder} by {difference:.2g}"
        )
    write_atomic(out, content)
    return Exported(tuple(told["inputs"]), tuple(told["outputs"]), len(rows), difference)


def _program(model: nn.Module, rows: Array) -> Any:
    dynamic = {"x": {0: torch.export.Dim("rows", min=2)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("onnxscript", "torch.onnx._internal.exporter._registration"):
            logging.getLogger(name).setLevel(logging.ERROR)
        exported = torch.export.export(
            model.eval(), (torch.from_numpy(rows[:7]),), dynamic_shapes=dynamic
        )
        return torch.onnx.export(
            exported, (), dynamo=True, verbose=False, input_names=["x"], output_names=["y"]
        )


def _answers(content: bytes, rows: Array) -> Array:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session: Any = onnxruntime.InferenceSession(
        content, options, providers=["CPUExecutionProvider"]
    )
    parts = [session.run(None, {"x": part})[0] for part in np.split(rows, [1, len(rows) // 2])]
    return np.concatenate(parts)


# --- runs on datasets --------------------------------------------------------------------------


class _OfFeatures(nn.Module):
    """Features to probabilities, or to numbers."""

    def __init__(self, frozen: nn.Module, outcome: Outcome) -> None:
        super().__init__()
        self.frozen, self.outcome = frozen, outcome

    def forward(self, x: Tensor) -> Tensor:
        return self.outcome.averaged(self.frozen(x))


def _of_dataset(run: LoadedRun) -> tuple[nn.Module, dict[str, Any], Array, Array]:
    data, model = run.dataset, _OfFeatures(run.freeze(), run.outcome)
    draw = np.random.default_rng(0)
    x = data.x[: min(ROWS, data.num_rows)].to_dense().double().numpy()
    rows = x + 0.1 * float(x.std()) * draw.normal(size=x.shape)
    with torch.no_grad():
        wanted = model(torch.from_numpy(rows)).numpy()
    outputs = data.class_names or tuple(str(i) for i in range(data.num_outputs))
    told = {
        "task": data.task,
        "inputs": [f"feature {i}" for i in range(data.num_features)],
        "outputs": list(outputs),
    }
    return model, told, rows, wanted


# --- runs on tables ----------------------------------------------------------------------------


def _of_table(run: OwnRun) -> tuple[nn.Module, dict[str, Any], Array, Array]:
    used = [column for column in run.encoder.columns if column.width]
    for column in used:
        if column.kind == "text":
            raise DifformerError(
                f"column {column.name!r} is text, which cannot be exported: train without it "
                f"(--kind {column.name!r}=skip)"
            )
    columns, model = [_column(column) for column in used], run.estimator
    told = {
        "task": model._outcome.task,  # pyright: ignore[reportPrivateUsage]
        "label": list(run.labels),
        "inputs": [column.name for column in used],
        "columns": columns,
        "outputs": list(run.classes or run.labels),
    }
    rows = _drawn(columns)
    module = _OfTable(run, columns)
    features = module.encode(torch.from_numpy(rows)).numpy()
    blocks = [_encoded(c, cells) for c, cells in zip(used, rows.T, strict=True)]
    encoded = np.hstack(blocks).astype(np.float32)
    if not np.allclose(features, encoded, atol=1e-5):
        raise DifformerError("the columns cannot be exported: the run encodes them differently")
    return module, told, rows, run.outputs(Rows(encoded, None))


def _column(column: Column) -> dict[str, Any]:
    names = ("values",) if column.kind == "category" else (*FIGURES, "flag")
    return {
        "name": column.name,
        "kind": column.kind,
        "written": column.learned.get("written"),
        **{name: column.learned[name] for name in names},
    }


def _drawn(columns: Sequence[Mapping[str, Any]]) -> Array:
    """Rows like those of the table, with missing values and unknown categories among them."""
    draw = np.random.default_rng(0)
    rows = np.empty((ROWS, len(columns)))
    for j, column in enumerate(columns):
        if column["kind"] == "category":
            rows[:, j] = draw.integers(-1, len(column["values"]), size=ROWS)
        else:
            rows[:, j] = np.round(column["mean"] + column["scale"] * draw.normal(size=ROWS), 6)
        rows[draw.random(ROWS) < 0.05, j] = np.nan
    return rows


def _encoded(column: Column, cells: Array) -> Array:
    """One column as the run itself encodes it."""
    if column.kind != "category":
        return encode_numbers(cells[:, None], [column])
    known = [*column.learned["values"], None]  # None is at -1 too
    return column.encode([None if cell != cell else known[int(cell)] for cell in cells], 1)


class _OfTable(nn.Module):
    """Cells (m, columns) in float64 to probabilities (m, classes) or numbers (m, targets)."""

    def __init__(self, run: OwnRun, columns: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.columns = columns
        # As tensors: the exporter makes plain numbers single precision, too coarse for dates.
        self.figures = [
            {n: torch.tensor(column[n], dtype=torch.float64) for n in FIGURES if n in column}
            for column in columns
        ]
        model: Any = run.estimator
        self.estimator = model
        self.each = [_OfMember(member) for member in model.members_]
        self.members = nn.ModuleList(self.each)
        # For each member the first that compares rows as it does: compared once for all of them.
        self.first = [next(a for a in self.each if a is b or b.compares_like(a)) for b in self.each]
        self.weights = [float(m.weight) for m in model.members_]
        self.temperatures = [float(m.temperature) for m in model.members_]
        self.near = None if model._neighbours is None else _Nearest(model)

    def encode(self, x: Tensor) -> Tensor:
        parts: list[Tensor] = []
        for j, (column, own) in enumerate(zip(self.columns, self.figures, strict=True)):
            cell = x[:, j]
            if column["kind"] == "category":
                values = torch.arange(len(column["values"]), dtype=x.dtype)
                parts.append((cell[:, None] == values).to(x.dtype))
                continue
            gone = cell.isnan()
            known = torch.where(gone, own["mean"], cell).clamp(own["low"], own["high"])
            scaled = (known - own["mean"]) / own["scale"]
            parts.append(torch.where(gone, torch.zeros_like(scaled), scaled)[:, None])
            if column["flag"]:
                parts.append(gone.to(x.dtype)[:, None])
        return torch.cat(parts, dim=1).float()

    def forward(self, x: Tensor) -> Tensor:
        features = self.encode(x)
        near = None if self.near is None else self.near.find(features)
        outputs: list[Tensor] = []
        compared: dict[_OfMember, Tensor | None] = {}
        for first, member in zip(self.first, self.each, strict=True):
            rows = _viewed(member.view, features).double()
            if first not in compared:
                compared[first] = member.compared(rows)
            outputs.append(member(rows, near, compared[first]))
        model = self.estimator
        parts = zip(outputs, self.weights, self.temperatures, strict=True)
        mean = torch.stack([model._outcome.averaged(o / t) * w for o, w, t in parts]).sum(0)
        if isinstance(model, DIFFormerClassifier):
            return mean
        scale, middle = (torch.from_numpy(v) for v in (model._scale, model._mean))
        return mean * scale + middle


class _OfMember(nn.Module):
    def __init__(self, member: Any) -> None:
        super().__init__()
        self.frozen, self.view = member.frozen, member.view
        self.graph = member.frozen.num_known is not None

    def compared(self, x: Tensor) -> Tensor | None:
        """What rows are compared by, if it does not depend on the member's weights; else None."""
        model = self.frozen.model
        return self.frozen._comparison(x, x) if model.config.compare == "input" else None

    def compares_like(self, other: _OfMember) -> bool:
        """Whether the other's `compared` is the same."""
        mine, theirs = self._compares(), other._compares()
        return (
            mine.keys() == theirs.keys()
            and bool(mine)
            and all(torch.equal(mine[k], theirs[k]) for k in mine)
        )

    def _compares(self) -> dict[str, Tensor]:
        """All that `compared` depends on besides the rows; empty if it is None."""
        model, context = self.frozen.model, self.frozen._frozen[0].context
        if model.config.compare != "input" or not isinstance(context, Pairs):
            return {}
        kernel = f"{self.view.kind} {model._layer.diffusivity!r}"
        return {kernel: context.key, **self.view.tensors()}

    def forward(self, x: Tensor, near: Any, compared: Tensor | None) -> Tensor:
        edges = (near, slice(0, 1)) if self.graph and near is not None else None
        return self.frozen.model.decode(self.frozen._encode(x, edges, None, compared))


def _viewed(view: View, features: Tensor) -> Tensor:
    """`View.apply` in torch."""
    if view.kind == "plain":
        return features
    if view.kind == "standard":
        return features.clamp(-FARTHEST, FARTHEST)
    if view.kind == "common":
        assert view.factors is not None
        return (features.double() * torch.from_numpy(view.factors)).float()
    kept = view.tensors()
    found = _near(features, kept) if view.kind == "near" else _steps(features, kept["knots"])
    return ((found - kept["shift"]) * kept["scale"]).float()


def _near(features: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
    apart = features.double().clamp(-FARTHEST, FARTHEST)[:, None, :] - kept["centres"]
    return (apart.square().sum(-1) / (-2 * kept["width"])).exp()


def _steps(features: Tensor, knots: Tensor) -> Tensor:
    low, gap = knots[:, :-1], knots.diff(dim=1)
    rise = features.double()[:, :, None] - low
    jump = (rise > 0).double()
    inside = torch.where(gap > 0, rise / torch.where(gap > 0, gap, 1.0), jump)
    return inside.clamp(0, 1).flatten(1)


class _Nearest:
    """The edges of new rows from their nearest known ones, as `FrozenDIFFormer` takes edges."""

    def __init__(self, model: Any) -> None:
        known = torch.from_numpy(np.asarray(model._neighbours, np.float64))
        self.known, self.count = known, min(int(model.n_neighbors), len(known))
        self.cosine, self.scaled = model._metric() == "cosine", bool(model.scale)
        frozen = next(m.frozen for m in model.members_ if m.frozen.num_known is not None)
        self.degree, self.loops = frozen._degree, frozen._loops
        self.row = frozen.model.config.graph_norm == "row"

    def find(self, features: Tensor) -> _Found:
        x = features.double()
        x = x.clamp(-USUAL, USUAL) if self.scaled else x
        if self.cosine:
            unit = torch.nn.functional.normalize(self.known, dim=-1)
            distance = -torch.nn.functional.normalize(x, dim=-1) @ unit.T
        else:
            distance = self.known.square().sum(-1) - 2 * x @ self.known.T
        return _Found(self, distance.topk(self.count, largest=False).indices)


@dataclass(frozen=True)
class _Found:
    near: _Nearest
    rows: Tensor  # (m, count)

    def average(self, rows: slice, value: Tensor, own: Tensor) -> Tensor:
        """Ã V of the new rows, as `_Incoming.average` makes it."""
        own_degree = float(self.near.count + self.near.loops)
        if self.near.row:
            weight = torch.full_like(self.rows, 1, dtype=value.dtype) / own_degree
        else:
            weight = (own_degree * self.near.degree[self.rows]).rsqrt()
        out = (value[self.rows] * weight.unsqueeze(-1)).sum(1)
        return out + own / own_degree if self.near.loops else out
