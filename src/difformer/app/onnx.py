"""A finished run as an ONNX file: its frozen model, checked against the run itself.

The file answers for any number of new rows, and needs neither the data nor difformer. For a run on
a table the input has one number per column: a number as it is, a date as days since 1970, a
category as its place in the list in the file's metadata, NaN for a missing value. For a run on a
dataset the input has its features.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from difformer.core.context import Pairs
from difformer.data.table.columns import Column, encode_numbers
from difformer.data.table.scales import FIGURES
from difformer.errors import DifformerError, missing_extra
from difformer.estimators.base import USUAL
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.estimators.rows import Rows
from difformer.files import json_text, write_atomic
from difformer.jobs.own import OwnRun
from difformer.nn.frozen import FrozenDIFFormer
from difformer.runs.open import LoadedRun, load_run
from difformer.runs.run import need_kind

Array = NDArray[Any]

ROWS = 100  # rows that the file is checked on
CLOSE = 1e-5  # the largest difference that rounding may make, relative to the largest answer


class Exported(NamedTuple):
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
    difference = float(np.abs(_answers(content, rows) - wanted).max())
    difference /= max(1.0, float(np.abs(wanted).max()))
    if not difference < CLOSE:
        raise DifformerError(
            f"the answers of the exported model differ from those of {folder} by {difference:.2g}"
        )
    write_atomic(out, content)
    return Exported(tuple(told["inputs"]), tuple(told["outputs"]), len(rows), difference)


class _Model(nn.Module):
    """A function of rows, and the frozen models that it calls."""

    def __init__(self, answer: Callable[[Tensor], Tensor], *frozen: FrozenDIFFormer) -> None:
        super().__init__()
        self.answer, self.frozen = answer, nn.ModuleList(frozen)

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(x)


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


def _of_dataset(run: LoadedRun) -> tuple[nn.Module, dict[str, Any], Array, Array]:
    data, frozen = run.dataset, run.freeze()
    model = _Model(lambda x: run.outcome.averaged(frozen(x)), frozen)
    draw = np.random.default_rng(0)
    x = data.x[: min(ROWS, data.num_rows)].to_dense().double().numpy()
    rows = x + 0.1 * float(x.std()) * draw.normal(size=x.shape)
    with torch.no_grad():
        wanted = model(torch.from_numpy(rows)).numpy()
    outputs = data.class_names or tuple(str(i) for i in range(data.num_outputs))
    inputs = [f"feature {i}" for i in range(data.num_features)]
    return model, {"task": data.task, "inputs": inputs, "outputs": list(outputs)}, rows, wanted


def _of_table(run: OwnRun) -> tuple[nn.Module, dict[str, Any], Array, Array]:
    used = [column for column in run.encoder.columns if column.width]
    for column in used:
        if column.kind == "text":
            raise DifformerError(
                f"column {column.name!r} is text, which cannot be exported: train without it "
                f"(--kind {column.name!r}=skip)"
            )
    estimator: Any = run.estimator
    told = {
        "task": estimator._outcome.task,
        "label": list(run.labels),
        "inputs": [column.name for column in used],
        "columns": [_described(column) for column in used],
        "outputs": list(run.classes or run.labels),
    }
    draw = np.random.default_rng(0)
    cells = np.stack([_drawn(column, draw) for column in used], axis=1)
    each = zip(used, cells.T, strict=True)
    wanted = run.outputs(Rows(np.hstack([_encoded(*one) for one in each]).astype("f4"), None))
    # As tensors: the exporter makes plain numbers single precision, too coarse for dates.
    figures = [
        {n: torch.tensor(c.learned[n], dtype=torch.float64) for n in FIGURES if n in c.learned}
        for c in used
    ]

    def answer(x: Tensor) -> Tensor:
        blocks = zip(used, figures, x.T, strict=True)
        return _answered(estimator, torch.cat([_traced(*one) for one in blocks], 1).float())

    return _Model(answer, *(member.frozen for member in estimator.members_)), told, cells, wanted


def _described(column: Column) -> dict[str, Any]:
    """What the file says of a column."""
    names = ("values",) if column.kind == "category" else (*FIGURES, "flag")
    written = column.learned.get("written")
    kept = {name: column.learned[name] for name in names}
    return {"name": column.name, "kind": column.kind, "written": written, **kept}


def _drawn(column: Column, draw: np.random.Generator) -> Array:
    """Cells like those of a column, with missing values and unknown categories among them."""
    learned = column.learned
    if column.kind == "category":
        cells = draw.integers(-1, len(learned["values"]), size=ROWS).astype(np.float64)
    else:
        cells = np.round(learned["mean"] + learned["scale"] * draw.normal(size=ROWS), 6)
    cells[draw.random(ROWS) < 0.05] = np.nan
    return cells


def _encoded(column: Column, cells: Array) -> Array:
    """One column as the run itself encodes it."""
    if column.kind != "category":
        return encode_numbers(cells[:, None], [column])
    known = [*column.learned["values"], None]  # None is at -1 too
    return column.encode([None if cell != cell else known[int(cell)] for cell in cells], 1)


def _traced(column: Column, own: dict[str, Tensor], cells: Tensor) -> Tensor:
    """One column as `_encoded` has it, in torch."""
    if column.kind == "category":
        return (cells[:, None] == torch.arange(column.width, dtype=cells.dtype)).to(cells.dtype)
    gone = cells.isnan()
    known = torch.where(gone, own["mean"], cells).clamp(own["low"], own["high"])
    scaled = (known - own["mean"]) / own["scale"]
    return torch.stack([torch.where(gone, 0.0, scaled), gone.to(cells.dtype)], 1)[:, : column.width]


def _answered(estimator: Any, features: Tensor) -> Tensor:
    """Probabilities (m, classes) or numbers (m, targets) of encoded rows, without their edges."""
    edges = None if estimator._neighbours is None else (_Nearest(estimator, features), slice(0, 1))
    outputs: list[Tensor] = []
    compared: dict[Any, Tensor | None] = {}  # once for all members that compare rows alike
    for member in estimator.members_:
        frozen, x = member.frozen, member.view.apply(features).double()
        config, pairs = frozen.model.config, isinstance(frozen._frozen[0].context, Pairs)
        alike: Any = (member.view.kind, str(config.kernel), config.sharpness, config.reach)
        alike = alike if pairs and frozen.model.compares_fixed_rows else member.name
        if alike not in compared:
            compared[alike] = frozen._comparison(x, x) if config.compare == "input" else None
        own = None if frozen.num_known is None else edges
        state = frozen._encode(x, own, None, compared[alike])
        output = frozen.model.decode(state) / member.temperature
        outputs.append(estimator._outcome.averaged(output) * member.weight)
    mean = torch.stack(outputs).sum(0)
    if isinstance(estimator, DIFFormerClassifier):
        return mean
    return mean * torch.from_numpy(estimator._scale) + torch.from_numpy(estimator._mean)


class _Nearest:
    """The edges of new rows from their nearest known ones, as `FrozenDIFFormer` takes edges."""

    def __init__(self, estimator: Any, features: Tensor) -> None:
        known = torch.from_numpy(np.asarray(estimator._neighbours, np.float64))
        x = features.double().clamp(-USUAL, USUAL) if estimator.scale else features.double()
        if estimator._metric() == "cosine":
            unit = torch.nn.functional.normalize(known, dim=-1)
            distance = -torch.nn.functional.normalize(x, dim=-1) @ unit.T
        else:
            distance = known.square().sum(-1) - 2 * x @ known.T
        count = min(int(estimator.n_neighbors), len(known))
        self.rows = distance.topk(count, largest=False).indices  # (m, count)
        frozen = next(m.frozen for m in estimator.members_ if m.frozen.num_known is not None)
        self.degree, self.loops = frozen._degree[self.rows], frozen._loops
        self.row, self.own_degree = frozen.model.config.graph_norm == "row", count + frozen._loops

    def average(self, rows: slice, value: Tensor, own: Tensor) -> Tensor:
        """Ã V of the new rows, as `Incoming.average` makes it."""
        scale = torch.tensor(1 / self.own_degree, dtype=value.dtype)
        weight = (scale / self.degree).sqrt()
        weight = torch.ones_like(weight) * scale if self.row else weight
        out = (value[self.rows] * weight.unsqueeze(-1)).sum(1)
        return out + own * scale if self.loops else out
