"""FrozenDIFFormer: predictions for new rows, each of which depends on the row alone."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.core.context import Pairs
from difformer.core.diffusivity import Diffusivity
from difformer.core.graph import Graph
from difformer.core.tiled import tiles
from difformer.errors import ModelFileError
from difformer.files import MISREAD
from difformer.nn.exchange import KEY, FrozenLayer, Incoming, Known, Passage, degrees, under
from difformer.nn.inputs import build_model, describe_model
from difformer.nn.layer import DiffusionLayer, make_steady
from difformer.nn.model import DIFFormer
from difformer.tensorfiles import read_tensors, write_tensors

# Rows per block, the last one padded with zeros: every product then has the same shape, and a row's
# prediction the same bits, whichever rows come with it.
BLOCK = 64


class FrozenDIFFormer(nn.Module):
    """A DIFFormer with the contexts of one dataset: a new row costs O(K d²) and needs no data.

    Each layer keeps the Context (for -s d² + 2 d + 1 numbers per head; for -a the keys and values),
    the mean over rows if the model centres, and, only when frozen with a graph, every known row's
    value and degree, so that a new row may have edges from known rows. A new row is influenced by
    the known rows, but not they by it; that is the one difference from running everything again. A
    row's prediction has the same bits alone, in any batch and in any order (on a CPU, for hidden
    widths that are multiples of eight, and an even number of features where rows are compared by
    these; for others it is the same up to rounding).
    """

    def __init__(
        self, model: DIFFormer, layers: list[FrozenLayer], degree: Tensor | None, loops: bool
    ) -> None:
        super().__init__()
        self.model = make_steady(model.eval().requires_grad_(False))
        self._frozen = layers
        self._degree = degree  # (n,) out-degree of each known row
        self._loops = loops  # whether every known row has a self-loop, so that a new one has too

    @classmethod
    def from_model(
        cls,
        model: DIFFormer,
        x: Tensor,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
    ) -> FrozenDIFFormer:
        """Run the rows once and keep what a new row needs; the model itself is copied."""
        copy = deepcopy(model).requires_grad_(False)
        copy.eval()
        copy.share_fixed(model)
        with torch.no_grad():
            return cls.from_passages(copy, copy.passages(x, edge_index, edge_weight))

    @classmethod
    @torch.no_grad()
    def from_passages(cls, model: DIFFormer, passages: list[Passage]) -> FrozenDIFFormer:
        """Keep what a new row needs from a run without dropout; the model is not copied."""
        layers, start = [FrozenLayer.of(passage) for passage in passages], passages[0]
        if start.compared is not None and start.layer.query is None and KEY in layers[0].tensors:
            shared = {KEY: layers[0].tensors[KEY]}  # all layers compare the same rows
            layers = [FrozenLayer(each.kind, each.tensors | shared) for each in layers]
        return cls(model, layers, *degrees(start.exchange.graph, start.first))

    def forward(
        self, x: Tensor, edge_index: Tensor | None = None, edge_weight: Tensor | None = None
    ) -> Tensor:
        """Outputs (m, out_channels) for new rows x (m, in_channels), dense or sparse.

        `edge_index` (2, e) has known rows, or new ones, as sources (first row; new row i is n + i)
        and new rows as targets (second row). With edges between new rows all are processed at once,
        and a row depends on those it is joined to.
        """
        return self._by_blocks(x, edge_index, edge_weight, output=True)

    def encode(
        self, x: Tensor, edge_index: Tensor | None = None, edge_weight: Tensor | None = None
    ) -> Tensor:
        """The last states (m, hidden_channels) of new rows."""
        return self._by_blocks(x, edge_index, edge_weight, output=False)

    @property
    def _last_layer(self) -> DiffusionLayer:
        return cast("DiffusionLayer", self.model.layers[-1])

    @property
    def num_known(self) -> int | None:
        """How many rows it was frozen on, if frozen with a graph; else None."""
        return None if self._degree is None else self._degree.numel()

    def weights(
        self,
        x: Tensor,
        known: Tensor,
        edge_index: Tensor | None = None,
        edge_weight: Tensor | None = None,
        *,
        compared: Tensor | None = None,
    ) -> Tensor:
        """What the last layer multiplies each known row's value by, (m, n), averaged over heads.

        (1 − w) Ŝ_ij + w Ã_ij, or Ŝ_ij + Ã_ij where the graph is added. O(m n d).

        Args:
            x: (m, in_channels) new rows.
            known: (n, hidden_channels) the known rows' states before the last layer.
            compared: (n, p) what the known rows are compared by, if that is not their states and
                the keys were not kept. Without it all weights are 0.
        """
        z = self._by_blocks(x, edge_index, edge_weight, output=False, layers=-1)
        with torch.no_grad():
            pairs = self._pair_weights(x, z, known, compared)
            incoming = self._incoming(edge_index, edge_weight, x.shape[0])
            if incoming is None:
                return pairs
            old = incoming.source < known.shape[0]
            ends = (incoming.target[old], incoming.source[old])
            near = torch.zeros_like(pairs).index_put_(ends, incoming.weight[old], accumulate=True)
            w = self.model.config.graph_weight
            return pairs + near if w is None else torch.lerp(pairs, near, w)

    def _pair_weights(self, x: Tensor, z: Tensor, known: Tensor, compared: Tensor | None) -> Tensor:
        """Ŝ of the last layer (m, n) for new rows x whose states before it are z."""
        module, kept = self._last_layer, self._frozen[-1].context
        exchange = Known(self._frozen[-1], self.model.compared_landmarks())
        if isinstance(kept, Pairs):
            k = kept.key
        elif module.diffusivity.local or (
            compared is None and self.model.config.compare != "state"
        ):
            # Rows do not interact, or the known rows were not kept.
            return z.new_zeros(x.shape[0], known.shape[0])
        else:
            k = module.project(known, compared, exchange)[1]
        dense, parts = self._dense(x), list[Tensor]()
        # In blocks of one size, so that no bit depends on the other rows of a batch.
        for rows in tiles(x.shape[0], BLOCK):
            part = _padded(dense[rows])
            mine = self._comparison(part, self.model.embed(part))
            q = module.project(_padded(z[rows]), mine, exchange)[0]
            parts.append(module.diffusivity.weights(q, k).mean(-3)[: rows.stop - rows.start])
        return torch.cat(parts)

    def weights_in_fit(self, rows: Tensor, known: Tensor) -> Tensor:
        """Ŝ of the last layer (r, n) for some of the known rows; `known` as in `weights`."""
        module, kept = self._last_layer, self._frozen[-1].context
        with torch.no_grad():
            if self.model.config.compare == "state":
                q, k, _ = module.project(known)
            elif isinstance(kept, Pairs) and module.query is None:
                q = k = kept.key
            else:
                return known.new_zeros(rows.numel(), known.shape[0])
            return module.diffusivity.weights_of(rows, q, k).mean(-3)

    @property
    def numel(self) -> int:
        """How many numbers are stored besides the model's own."""
        return sum(t.numel() for n, t in self.pack()[0].items() if not n.startswith("model."))

    def save(self, path: str | Path) -> None:
        """Write one safetensors file: the weights, and what is frozen."""
        write_tensors(Path(path), "frozen", *self.pack())

    @classmethod
    def load(cls, path: str | Path, *, kernel: Diffusivity | None = None) -> FrozenDIFFormer:
        """Read what `save` wrote."""
        return cls.unpack(Path(path), *read_tensors(Path(path), "frozen"), kernel=kernel)

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Its tensors and its description, for a file or a part of one."""
        tensors = {f"model.{n}": t for n, t in self.model.state_dict().items()}
        for index, layer in enumerate(self._frozen):
            for name, tensor in layer.tensors.items():
                # A key that all layers share is kept once.
                if not (index and name == KEY and tensor is tensors[f"layer.0.{KEY}"]):
                    tensors[f"layer.{index}.{name}"] = tensor
        kinds = [layer.kind for layer in self._frozen]
        if self._degree is not None:
            tensors["degree"] = self._degree
        description = describe_model(self.model)
        return tensors, {**description, "contexts": kinds, "loops": self._loops}

    @classmethod
    def unpack(
        cls,
        path: Path,
        tensors: dict[str, Tensor],
        description: dict[str, Any],
        *,
        kernel: Diffusivity | None = None,
    ) -> FrozenDIFFormer:
        """What `pack` gave, or a ModelFileError that names the file and what is wrong in it."""
        model = build_model(DIFFormer, path, description, under("model.", tensors), kernel)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ModelFileError(f"{path}: tensor {name!r} holds NaN or infinity")
        try:
            shared = {KEY: tensors[f"layer.0.{KEY}"]} if f"layer.0.{KEY}" in tensors else {}
            layers = [
                FrozenLayer(kind, shared | under(f"layer.{index}.", tensors))
                for index, kind in enumerate(description["contexts"])
            ]
            if len(layers) != len(model.layers):
                raise ValueError(f"{len(layers)} contexts for {len(model.layers)} layers")
            degree = tensors.get("degree")
            for value in (layer.tensors["value"] for layer in layers if "value" in layer.tensors):
                if degree is None or len(degree) != len(value):
                    raise ValueError("values and degrees must be of the same rows")
            frozen = cls(model, layers, degree, bool(description["loops"]))
            # Run one row of zeros: this reveals shapes and types that do not match.
            zeros = torch.zeros(1, model.in_channels, dtype=next(model.parameters()).dtype)
            if not bool(torch.isfinite(frozen(zeros)).all()):
                raise ValueError("its answers are not finite")
            return frozen
        except MISREAD as error:
            raise ModelFileError(f"{path}: its frozen part is incomplete ({error})") from error

    def _apply(self, fn: Any, recurse: bool = True) -> FrozenDIFFormer:
        """Moves and casts also apply to the frozen tensors."""
        super()._apply(fn, recurse)
        kept = {id(t): t for layer in self._frozen for t in layer.tensors.values()}
        # What layers share is moved once, so that they go on sharing it.
        moved = {key: fn(tensor) for key, tensor in kept.items()}
        self._frozen = [
            FrozenLayer(layer.kind, {name: moved[id(t)] for name, t in layer.tensors.items()})
            for layer in self._frozen
        ]
        self._degree = None if self._degree is None else fn(self._degree)
        return self

    def _by_blocks(
        self,
        x: Tensor,
        edge_index: Tensor | None,
        edge_weight: Tensor | None,
        output: bool,
        layers: int | None = None,
    ) -> Tensor:
        """The states of new rows after `layers` layers (all if None), or their outputs."""
        if torch.compiler.is_compiling():
            z = self._encode(x, None)
            return self.model.decode(z) if output else z
        features = self._dense(x)
        incoming = self._incoming(edge_index, edge_weight, x.shape[0])
        parts: list[Tensor] = []
        at_once = x.shape[0] if incoming is not None and incoming.joined else BLOCK
        with torch.no_grad():
            for rows in tiles(x.shape[0], at_once):
                size = rows.stop - rows.start
                z = self._encode(
                    _padded(features[rows]), None if incoming is None else (incoming, rows), layers
                )
                parts.append((self.model.decode(z) if output else z)[:size])
        return torch.cat(parts)

    def _dense(self, x: Tensor) -> Tensor:
        return self.model.check_features(x).to_dense()

    def _comparison(self, x: Tensor, first: Tensor) -> Tensor | None:
        """What new rows are compared by, the same for all layers if none learns it."""
        exchange = Known(self._frozen[0], self.model.compared_landmarks())
        return self.model.comparison(x, first, exchange)

    def _encode(
        self,
        x: Tensor,
        edges: tuple[Incoming, slice] | None,
        layers: int | None = None,
        compared: Tensor | None = None,
    ) -> Tensor:
        """The last states; `compared` where what rows are compared by has been prepared already."""
        first = z = self.model.embed(x)
        compared = self._comparison(x, first) if compared is None else compared
        loops = None if self._degree is None else self._loops
        landmarks = self.model.compared_landmarks()
        for module, kept in list(zip(self.model.layers, self._frozen, strict=True))[:layers]:
            z = module(z, first, Known(kept, landmarks, loops, edges), compared)
        return z

    def _incoming(
        self, edge_index: Tensor | None, edge_weight: Tensor | None, num_new: int
    ) -> Incoming | None:
        if self._degree is None:
            if edge_index is not None:
                raise ValueError("edge_index must be None: the model was frozen without a graph")
            return None
        if edge_index is None:
            edge_index = torch.zeros(2, 0, dtype=torch.int64)
        known = self._degree.numel()
        if edge_index.dim() != 2 or edge_index.shape[0] != 2:
            raise ValueError(f"edge_index must have shape (2, e), got {tuple(edge_index.shape)}")
        for line, count, what in ((0, known + num_new, "known and new"), (1, num_new, "new")):
            ids = edge_index[line]
            low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, 0)
            if low < 0 or high >= max(1, count):
                raise ValueError(
                    f"edge_index must name {what} rows 0 to {count - 1} in line {line}, "
                    f"got {low if low < 0 else high}"
                )
        norm = self.model.config.graph_norm
        return Incoming(edge_index, edge_weight, self._degree, num_new, self._loops, norm)


def _padded(rows: Tensor) -> Tensor:
    """Rows (..., m, p) followed by zeros, (..., BLOCK, p) or more."""
    return F.pad(rows, (0, 0, 0, max(0, BLOCK - rows.shape[-2])))
