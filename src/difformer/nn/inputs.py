"""What a model is given, checked and prepared once: features, graphs, linear maps of them."""

from __future__ import annotations

import math
import weakref
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.core.draws import generator
from difformer.core.rows import check_finite, check_within
from difformer.core.sparse import SparseMatrix


def check_features(x: Tensor, width: int, dtype: torch.dtype) -> Tensor | SparseMatrix:
    """Features (n, width) for a model of this dtype, or a ValueError that says what is wrong."""
    if x.dim() != 2 or x.shape[1] != width:
        raise ValueError(f"x must have shape (n, {width}), got {tuple(x.shape)}")
    if x.shape[0] == 0:
        raise ValueError("x must have at least one row, got none")
    if not x.dtype.is_floating_point:
        raise ValueError(f"x must be of a floating-point type, got {x.dtype}")
    check_finite("x", x)
    # Squares of states, in LayerNorm and in norms, and their sums must not overflow.
    check_within("x", x, torch.finfo(dtype).max ** 0.5 / 2**10)
    return x if x.layout == torch.strided else SparseMatrix.from_csr(x)


def of_data(data: Any, *given: Any) -> tuple[Tensor, Any, Any, Any]:
    """The arguments of `forward` from a Data of PyTorch Geometric."""
    x = getattr(data, "x", None)
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be a tensor, or a Data with x, got {type(data).__name__}")
    if any(each is not None for each in given):
        raise ValueError(
            "edge_index, edge_weight and batch must be left out with a Data: it has them"
        )
    edge_index, edge_weight, batch = (
        getattr(data, name, None) for name in ("edge_index", "edge_weight", "batch")
    )
    return x, edge_index, edge_weight, batch


M = TypeVar("M", bound=nn.Module)


class Linear(nn.Linear):
    """`torch.nn.Linear`; the same seed gives the same bits as in torch."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5), generator=generator())
        if self.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            nn.init.uniform_(self.bias, -bound, bound, generator=generator())


class IdentityLinear(Linear):
    """A linear layer that starts as the identity, once per head: x -> (x, ..., x)."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)
        for head in self.weight.data.split(self.in_features):
            nn.init.eye_(head)


class _SteadyLinear(Linear):
    """A linear layer whose rows have the same bits at any position in a block.

    The weights are transposed, contiguous and padded to a multiple of eight columns, and the bias
    is added separately: a fused bias, or another alignment, sends the last rows of a tile through a
    kernel that rounds in another order.
    """

    def forward(self, input: Tensor) -> Tensor:
        weight = F.pad(self.weight.T, (0, -self.out_features % 8)).contiguous()
        out = (input @ weight)[:, : self.out_features]
        return out if self.bias is None else out + self.bias  # pyright: ignore[reportUnnecessaryComparison]


def make_steady(model: M) -> M:
    """The model, every linear layer of it giving the same bits wherever a row is in its block."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.__class__ = _SteadyLinear
    return model


class TracedGraph:
    """Ã V by gather and scatter, for torch.export and torch.compile: no shape depends on values."""

    def __init__(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        norm: str,
        dtype: torch.dtype,
    ) -> None:
        source, target = edge_index[0], edge_index[1]
        weight = torch.ones_like(source, dtype=dtype)
        key = target * num_nodes + source
        if edge_weight is not None:
            key, weight = _merged(key, edge_weight.to(dtype), "sum")
        source, target = key % num_nodes, key // num_nodes
        key = torch.cat([key, source * num_nodes + target])
        key, weight = _merged(key, weight.repeat(2), "amax")
        self.source, self.target = key % num_nodes, key // num_nodes
        weight = torch.where(self.source == self.target, 0.0, weight)
        if norm == "row":
            into = weight.new_zeros(num_nodes).index_add(0, self.target, weight)
            into = into.clamp_min(torch.finfo(weight.dtype).tiny)
            self.loop = torch.zeros_like(into).unsqueeze(-1)
            self.weight = (weight / into[self.target]).unsqueeze(-1)
            return
        scale = weight.new_ones(num_nodes).index_add(0, self.target, weight).rsqrt()
        self.loop = scale.square().unsqueeze(-1)
        self.weight = (weight * (scale[self.target] * scale[self.source])).unsqueeze(-1)

    def propagate(self, value: Tensor) -> Tensor:
        """Ã V, (n, d)."""
        messages = value.index_select(0, self.source) * self.weight.to(value.dtype)
        return (value * self.loop.to(value.dtype)).index_add(0, self.target, messages)


def _merged(key: Tensor, weight: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """Sorted keys; the weights of repeated ones are reduced into the first, the others get 0."""
    key, order = key.sort()
    first = torch.cat([key[:1] >= 0, key[1:] != key[:-1]])
    group = first.long().cumsum(0) - 1
    total = torch.zeros_like(weight).scatter_reduce(
        0, group, weight[order], reduce, include_self=False
    )
    return key, torch.where(first, total[group], 0.0)


T = TypeVar("T")


class Remembered(Generic[T]):
    """Cache the last result computed from tensors, so that full-batch training prepares it once.

    The same tensors, not equal ones: identity and PyTorch's own counter of in-place changes are
    compared. The counter does not see changes through ``.data`` or through a NumPy array that
    shares the memory: with `content` the bytes are compared too, at about a nanosecond per byte (on
    a CPU). Threads may share one: each gets its own result. Copies start empty.
    """

    def __init__(self, *, content: bool = False) -> None:
        self._content = content
        # One tuple, read and written at once: another thread never sees half of it.
        self._kept: tuple[tuple[Any, ...], T] | None = None

    def get(self, tensors: tuple[Tensor | None, ...], extra: Any, make: Callable[[], T]) -> T:
        """The result of `make`, computed again only if a tensor or `extra` has changed."""
        # Tensors made in inference mode cannot be used in training.
        own = (extra, torch.is_inference_mode_enabled())
        key = (own, *(self._mark(t) for t in tensors))
        kept = self._kept
        if kept is not None and key[0] == kept[0][0] and len(key) == len(kept[0]):
            pairs = zip(key[1:], kept[0][1:], strict=True)
            if all(_same(now, before) for now, before in pairs):
                return kept[1]
        made = make()
        self._kept = key, made
        return made

    def _mark(self, tensor: Tensor | None) -> tuple[Any, ...] | None:
        """The tensor, its number of changes and its bytes' checksum; None where one is unknown."""
        if tensor is None:
            return None
        version = None if tensor.is_inference() else tensor._version
        total = None
        if self._content and tensor.device.type == "cpu" and tensor.layout == torch.strided:
            total = zlib.crc32(tensor.detach().contiguous().view(-1).numpy().data)
        return weakref.ref(tensor), version, total

    def __reduce__(self) -> tuple[Callable[[], Remembered[T]], tuple[()]]:
        """How it is copied and pickled: without what it holds."""
        return partial(Remembered, content=self._content), ()


def _same(now: tuple[Any, ...] | None, before: tuple[Any, ...] | None) -> bool:
    if now is None or before is None:
        return now is before
    # Without a counter and without bytes, a change cannot be detected.
    unknown = now[1] is None and now[2] is None
    return not unknown and now[0]() is before[0]() and now[1:] == before[1:]
