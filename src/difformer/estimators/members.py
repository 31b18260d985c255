"""The models that an estimator predicts with, and the one safetensors file that it is saved in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from difformer.core.diffusivity import Diffusivity
from difformer.core.graph import Graph
from difformer.data.dataset import Edges
from difformer.data.split import Split
from difformer.data.table.encoder import TableEncoder
from difformer.errors import DataError, ModelFileError
from difformer.estimators.forms import View
from difformer.estimators.rows import to_tensor
from difformer.files import MISREAD
from difformer.nn.frozen import FrozenDIFFormer
from difformer.nn.layer import DiffusionLayer
from difformer.tensorfiles import read_tensors, write_tensors

E = TypeVar("E", bound="SaveMixin")

TENSORS = {
    "embedding": "embedding_",
    "before_last": "_before_last",
    "outputs": "_outputs",
    "digests": "_digests",
    "held_out.rows": "held_out_rows_",
    "held_out.outputs": "held_out_outputs_",
    "held_out.scores": "held_out_scores_",
    "target_mean": "_mean",
    "target_scale": "_scale",
}
"""The arrays of an estimator by their names in a file; a file leaves out those that are None."""
FITTED = ("kernel_", "best_epoch_", "n_iter_", "validation_", "candidates_", "choice_")
CSR = ("data", "indices", "indptr")


@dataclass(frozen=True)
class Member:
    """One model that predicts; several are averaged by their weights.

    Args:
        name: the name of its form and of its view of the features.
        temperature: its outputs are divided by this before they become probabilities.
    """

    name: str
    view: View
    frozen: FrozenDIFFormer
    weight: float = 1.0
    temperature: float = 1.0

    @property
    def meets(self) -> bool:
        """Whether rows influence one another in it."""
        layer = self.frozen.model.layers[-1]
        assert isinstance(layer, DiffusionLayer)
        return self.frozen.num_known is not None or not layer.diffusivity.local

    def seen(self, features: Any) -> Tensor:
        """Encoded features through its view, dense, in float64."""
        return self.view.apply(to_tensor(features)).to_dense().double()

    def _used(self, edges: Edges | None) -> Edges | tuple[None, None]:
        """The edges, unless the model was fitted without a graph."""
        return (None, None) if edges is None or self.frozen.num_known is None else edges

    def run(self, features: Any, edges: Edges | None, *, encode: bool = False) -> Tensor:
        """Outputs (m, outputs) of new rows, or their states; edges from rows of fit to these."""
        run = self.frozen.encode if encode else self.frozen.forward
        return run(self.seen(features), *self._used(edges))

    def weights(self, features: Any, before: Tensor, edges: Edges | None) -> Tensor:
        """The weight (m, n) of each row of fit in the last step of each new row.

        `before` (n, hidden_channels) are the states of the rows of fit before that step.
        """
        return self.frozen.weights(self.seen(features), before, *self._used(edges))

    def weights_in_fit(self, rows: Tensor, before: Tensor, graph: Graph | None) -> Tensor:
        """The weights of all other rows of fit in the last step of some rows of fit."""
        pairs = self.frozen.weights_in_fit(rows, before)
        if graph is not None and self.frozen.num_known is not None:
            model = self.frozen.model
            target, source, value = model.normalised(graph).adjacency[rows].coo
            near = torch.zeros_like(pairs).index_put_((target, source), value.to(pairs))
            w = model.config.graph_weight
            pairs = pairs + near if w is None else torch.lerp(pairs, near, w)
        return pairs.scatter_(1, rows[:, None], 0.0)

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Its tensors and its description, for a part of a file."""
        tensors, described = self.frozen.pack()
        tensors = {f"frozen.{name}": tensor for name, tensor in tensors.items()}
        tensors |= {f"view.{name}": tensor for name, tensor in self.view.arrays.items()}
        own = {"name": self.name, "weight": self.weight, "temperature": self.temperature}
        return tensors, {**own, "view": self.view.kind, "frozen": described}

    @classmethod
    def unpack(
        cls, path: Path, tensors: dict[str, Tensor], described: Any, kernel: Diffusivity | None
    ) -> Member:
        """The member that `pack` described."""
        frozen, view = (under(f"{part}.", tensors) for part in ("frozen", "view"))
        return cls(
            str(described["name"]),
            View(described["view"], view),
            FrozenDIFFormer.unpack(path, frozen, described["frozen"], kernel=kernel),
            float(described["weight"]),
            float(described["temperature"]),
        )


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, by the rest of their names."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


class SaveMixin:
    """`save` and `load` for the estimators: arrays as tensors, the rest as JSON."""

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to one file; unlike a pickle, it is safe to read."""
        check_is_fitted(self, "frozen_")
        me: Any = self
        tensors = _tensors(me)
        members: list[dict[str, Any]] = []
        for index, member in enumerate(me.members_):
            packed, described = member.pack()
            members.append(described)
            tensors |= {f"member.{index}.{name}": tensor for name, tensor in packed.items()}
        given = {**me.get_params(deep=False), "checkpoint": None}  # a folder on this machine
        description = {
            "class": type(self).__name__,
            "params": {name: _plain(name, value) for name, value in given.items()},
            "members": members,
            "fitted": {name: _plain(name, getattr(me, name)) for name in FITTED},
            "encoder": None if me.encoder_ is None else me.encoder_.to_json(),
            "n_features": int(me.n_features_in_),
            "features": [str(n) for n in getattr(me, "feature_names_in_", [])],
            "neighbours": None if me._neighbours is None else list(me._neighbours.shape),
            "ids": me.ids_,
            **me._described(),
        }
        write_tensors(Path(path), "estimator", tensors, description)

    @classmethod
    def load(cls: type[E], path: str | Path, *, kernel: Diffusivity | None = None) -> E:
        """Read what `save` wrote; `kernel` is needed if your own diffusivity was used."""
        path = Path(path)
        tensors, description = read_tensors(path, "estimator")
        made = description.get("class")
        if made != cls.__name__:
            raise ModelFileError(f"{path}: holds a {made}, not a {cls.__name__}")
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ModelFileError(f"{path}: tensor {name!r} holds NaN or infinity")
        try:
            params = dict(description["params"])
            if kernel is not None:
                params["kernel"] = kernel
            estimator: Any = cls(**params)
            estimator.n_features_in_ = int(description["n_features"])
            if description["features"]:
                estimator.feature_names_in_ = np.array(description["features"], dtype=object)
            fitted = {"choice_": "", **description["fitted"]}
            for name in FITTED:
                setattr(estimator, name, fitted[name])
            estimator.history_ = []
            estimator.members_ = [
                Member.unpack(path, under(f"member.{index}.", tensors), one, kernel)
                for index, one in enumerate(description["members"])
            ]
            estimator.frozen_ = estimator.members_[0].frozen
            _restore_rows(estimator, tensors, description)
            estimator._restore(description)
            estimator._keep(estimator._outputs)
            _check_loaded(estimator)
        except (*MISREAD, DataError) as error:
            raise ModelFileError(f"{path}: not a whole {cls.__name__} ({error})") from error
        return estimator


def _tensors(me: Any) -> dict[str, Tensor]:
    """What is known of the rows of fit."""
    graph, near = me.graph_, me._neighbours
    kept = {name: getattr(me, own, None) for name, own in TENSORS.items()}
    kept |= {"split.train": me.split_.train, "split.val": me.split_.val}
    kept["digests"] = me._digests.view(np.int64).copy()
    if graph is not None:
        kept |= {"graph.edges": graph.edge_index, "graph.weight": graph.edge_weight}
    if sparse.issparse(near):
        kept |= {f"neighbours.{name}": getattr(near, name) for name in CSR}
    else:
        kept["neighbours.data"] = near
    found = {name: value for name, value in kept.items() if value is not None}
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in found.items()}


def _restore_rows(me: Any, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    for name, own in TENSORS.items():
        if name in tensors:
            setattr(me, own, tensors[name].numpy())
    n, me._n_features_out = me.embedding_.shape
    me._before_last, me._digests = tensors["before_last"], me._digests.view(np.uint64)
    me.held_out_scores_ = getattr(me, "held_out_scores_", None)
    text = description["encoder"]
    me.encoder_ = None if text is None else TableEncoder.from_json(text)
    parts = (tensors["split.train"], tensors["split.val"], torch.empty(0, dtype=torch.int64))
    me.split_ = Split("fit", *parts).check(n)
    ids = description["ids"]
    me.ids_ = None if ids is None else tuple(map(str, ids))
    for name, rows in (("ids", me.ids_ or me._digests), ("digests", me._digests)):
        if len(rows) != n:
            raise ValueError(f"{len(rows)} {name} for {n} rows")
    if "held_out.rows" in tensors:
        known = torch.cat([me.split_.train, me.split_.val]).numpy()
        if not np.isin(me.held_out_rows_, known).all():
            raise ValueError("held-out rows are not labelled rows of fit")
        if me.held_out_rows_.shape != me.held_out_outputs_.shape[:1]:
            raise ValueError("held-out rows and outputs differ in number")
    me.graph_ = None
    if "graph.edges" in tensors:
        me.graph_ = Graph.from_edges(tensors["graph.edges"], n, tensors.get("graph.weight"))
    shape, me._neighbours = description["neighbours"], None
    if shape is not None and "neighbours.indices" in tensors:
        arrays = tuple(tensors[f"neighbours.{name}"].numpy() for name in CSR)
        me._neighbours = sparse.csr_matrix(arrays, shape=tuple(shape))
        me._neighbours.check_format(full_check=True)
    elif shape is not None:
        me._neighbours = tensors["neighbours.data"].numpy()
        if list(me._neighbours.shape) != shape:
            raise ValueError("neighbours are not of the stated shape")


def _check_loaded(me: Any) -> None:
    """Predict one row of zeros, so that wrong shapes show here and not later."""
    width = me.n_features_in_ if me.encoder_ is None else me.encoder_.width
    n = me.embedding_.shape[0]
    for name, tensor in (("outputs", me._outputs), ("before_last", me._before_last)):
        if tensor.shape[0] != n:
            raise ValueError(f"{name} has {tensor.shape[0]} rows, embedding {n}")
    zero = np.zeros((1, width), np.float32)
    for member in me.members_:
        if member.frozen.num_known not in (None, n):
            raise ValueError(f"{member.frozen.num_known} known rows, embedding has {n}")
        outputs = member.run(zero, None).shape[1]
        if me._outputs.shape[1] != outputs:
            raise ValueError(f"outputs are {me._outputs.shape[1]} wide, not {outputs}")


def _plain(name: str, value: Any) -> Any:
    """A value that JSON can store."""
    if isinstance(value, Diffusivity):
        return None  # it is given again to `load`
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, dict):
        return {str(k): _plain(name, v) for k, v in value.items()}
    if name == "random_state" and not isinstance(value, int | None):
        return None  # the state of a generator is not a setting
    if name == "class_weight" and not isinstance(value, str | None):
        return None  # only used by fit; JSON would turn its keys into texts
    if isinstance(value, str | int | float | bool | list | None):
        return value
    raise ValueError(f"{name} must be a plain value to be saved, got {value!r}")
