"""Save a fitted estimator as one safetensors file: arrays as tensors, the rest as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from difformer.core.diffusivity import Diffusivity
from difformer.core.graph import Graph
from difformer.data.split import Split
from difformer.data.table.encoder import TableEncoder
from difformer.errors import DataError, ModelFileError
from difformer.estimators.views import FittedMember
from difformer.files import MISREAD
from difformer.tensorfiles import read_tensors, write_tensors

E = TypeVar("E", bound="SaveMixin")

_MEMBER = "member."
_CSR = ("data", "indices", "indptr")
_FITTED = ("kernel_", "best_epoch_", "n_iter_", "validation_", "candidates_", "choice_")


class SaveMixin:
    """`save` and `load` for the estimators."""

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to one file; unlike a pickle, it is safe to read."""
        check_is_fitted(self, "frozen_")
        me: Any = self
        own, rest = me._packed()
        tensors = {**own, **_rows(me)}
        members: list[dict[str, Any]] = []
        for index, member in enumerate(me.members_):
            packed, described = member.pack()
            members.append(described)
            tensors |= {f"{_MEMBER}{index}.{name}": tensor for name, tensor in packed.items()}
        given = {**me.get_params(deep=False), "checkpoint": None}  # a folder on this machine
        description = {
            "class": type(self).__name__,
            "params": {name: _plain(name, value) for name, value in given.items()},
            "members": members,
            "fitted": {name: _plain(name, getattr(me, name)) for name in _FITTED},
            "encoder": None if me.encoder_ is None else me.encoder_.to_json(),
            "n_features": int(me.n_features_in_),
            "features": [str(n) for n in getattr(me, "feature_names_in_", [])],
            "neighbours": None if me._neighbours is None else list(me._neighbours.shape),
            "ids": me.ids_,
            **rest,
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
            for name in _FITTED:
                setattr(estimator, name, fitted[name])
            estimator.history_ = []
            estimator.members_ = [
                FittedMember.unpack(path, _under(f"{_MEMBER}{index}.", tensors), one, kernel)
                for index, one in enumerate(description["members"])
            ]
            estimator.frozen_ = estimator.members_[0].frozen
            _restore_rows(estimator, tensors, description)
            estimator._unpacked(tensors, description, str(path))
            estimator._keep(tensors["outputs"].numpy())
            estimator._check_loaded()
        except (*MISREAD, DataError) as error:
            raise ModelFileError(f"{path}: not a whole {cls.__name__} ({error})") from error
        return estimator

    def _check_loaded(self) -> None:
        """Predict one row of zeros, so that wrong shapes show here and not later."""
        me: Any = self
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


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _rows(me: Any) -> dict[str, Tensor]:
    """The tensors that describe the rows of fit."""
    graph, near = me.graph_, me._neighbours
    kept = {
        "embedding": me.embedding_,
        "before_last": me._before_last,
        "outputs": me._outputs,
        "split.train": me.split_.train,
        "split.val": me.split_.val,
        "digests": me._digests.view(np.int64).copy(),
        "held_out.rows": getattr(me, "held_out_rows_", None),
        "held_out.outputs": getattr(me, "held_out_outputs_", None),
        "held_out.scores": me.held_out_scores_,
        "graph.edges": None if graph is None else graph.edge_index,
        "graph.weight": None if graph is None else graph.edge_weight,
    }
    if sparse.issparse(near):
        kept |= {f"neighbours.{name}": getattr(near, name) for name in _CSR}
    else:
        kept["neighbours.data"] = near
    found = {name: value for name, value in kept.items() if value is not None}
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in found.items()}


def _restore_rows(me: Any, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    me.embedding_, me._before_last = tensors["embedding"].numpy(), tensors["before_last"]
    n, me._n_features_out = me.embedding_.shape
    text = description["encoder"]
    me.encoder_ = None if text is None else TableEncoder.from_json(text)
    parts = (tensors["split.train"], tensors["split.val"], torch.empty(0, dtype=torch.int64))
    me.split_ = Split("fit", *parts).check(n)
    ids = description["ids"]
    me.ids_ = None if ids is None else tuple(str(name) for name in ids)
    if me.ids_ is not None and len(me.ids_) != n:
        raise ValueError(f"{len(me.ids_)} ids for {n} rows")
    if "held_out.rows" in tensors:
        me.held_out_rows_ = tensors["held_out.rows"].numpy()
        me.held_out_outputs_ = tensors["held_out.outputs"].numpy()
        known = torch.cat([me.split_.train, me.split_.val]).numpy()
        if not np.isin(me.held_out_rows_, known).all():
            raise ValueError("held-out rows are not labelled rows of fit")
        if me.held_out_rows_.shape != me.held_out_outputs_.shape[:1]:
            raise ValueError("held-out rows and outputs differ in number")
    scores = tensors.get("held_out.scores")
    me.held_out_scores_ = None if scores is None else scores.numpy()
    me.graph_ = None
    if "graph.edges" in tensors:
        me.graph_ = Graph.from_edges(tensors["graph.edges"], n, tensors.get("graph.weight"))
    me._digests = tensors["digests"].numpy().view(np.uint64)
    if me._digests.shape != (n,):
        raise ValueError(f"{len(me._digests)} digests for {n} rows")
    me._neighbours = _unpack_neighbours(description["neighbours"], tensors)


def _unpack_neighbours(shape: Any, tensors: dict[str, Tensor]) -> Any:
    if shape is None:
        return None
    shape = tuple(shape)
    if "neighbours.indices" in tensors:
        arrays = tuple(tensors[f"neighbours.{name}"].numpy() for name in _CSR)
        matrix = sparse.csr_matrix(arrays, shape=shape)
        matrix.check_format(full_check=True)
        return matrix
    features = tensors["neighbours.data"].numpy()
    if features.shape != shape:
        raise ValueError("neighbours are not of the stated shape")
    return features


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
