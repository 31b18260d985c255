"""What models are given, checked and remembered: model files, features, a Data of PyG."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from difformer.core.rows import check_finite, check_within
from difformer.core.sparse import SparseMatrix
from difformer.errors import ModelFileError
from difformer.nn.config import DIFFormerConfig

if TYPE_CHECKING:
    from difformer.core.diffusivity import Diffusivity
    from difformer.nn.model import DIFFormer


# Layers may have no tensors, so their number cannot be checked; more than this are rejected.
MOST_LAYERS = 1000
WIDTHS = ("in_channels", "hidden_channels", "out_channels")
_LAYER = "layers.0."

M = TypeVar("M", bound="DIFFormer")
T = TypeVar("T")


def describe_model(model: DIFFormer) -> dict[str, Any]:
    """The widths and options of a model as plain values."""
    from difformer.core.diffusivity import Diffusivity

    config = {name: getattr(model.config, name) for name in DIFFormerConfig.names()}
    if isinstance(config["kernel"], Diffusivity):
        config["kernel"] = None
    return {"config": config, **{name: getattr(model, name) for name in WIDTHS}}


def build_model(
    cls: type[M],
    path: Path,
    description: dict[str, Any],
    tensors: dict[str, Tensor],
    kernel: Diffusivity | None,
) -> M:
    """The described model with these weights; nothing is built before their shapes are checked."""
    from difformer.core.diffusivity import KERNELS

    try:
        config = dict(description["config"])
        widths = [description[n] for n in WIDTHS]
        if kernel is not None:
            config["kernel"] = kernel
        elif config["kernel"] is None:
            raise ModelFileError(
                f"{path}: saved with a custom diffusivity: pass it as kernel=..., "
                f"or one of {', '.join(KERNELS)}"
            )
        depth = DIFFormerConfig(**config).num_layers
        # On the meta device: only the shapes of one layer are needed.
        with torch.device("meta"):
            one = cls(*widths, **{**config, "num_layers": 1}).state_dict()
        dtype = _check(path, tensors, one, depth)
        with torch.device("meta"):
            model = cls(*widths, **config)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ModelFileError(
            f"{path}: its description does not fit a DIFFormer ({error})"
        ) from error
    model.load_state_dict({name: t.to(dtype) for name, t in tensors.items()}, assign=True)
    return model


def _check(
    path: Path, tensors: dict[str, Tensor], one: dict[str, Tensor], depth: int
) -> torch.dtype:
    """Check a file's tensors against those of a model of one layer and the expected depth."""
    layer = {n.removeprefix(_LAYER): t for n, t in one.items() if n.startswith(_LAYER)}
    if depth > max(MOST_LAYERS, len(tensors)):
        raise ModelFileError(f"{path}: describes {depth} layers, but has {len(tensors)} tensors")
    expected = {name: t.shape for name, t in one.items() if not name.startswith(_LAYER)}
    for index in range(depth if layer else 0):
        expected |= {f"layers.{index}.{name}": t.shape for name, t in layer.items()}
    for name in sorted(expected.keys() ^ tensors.keys()):
        what = "misses" if name in expected else "has an unknown"
        raise ModelFileError(f"{path}: {what} tensor {name!r}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name]:
            raise ModelFileError(
                f"{path}: tensor {name!r} has shape {tuple(tensor.shape)}, "
                f"expected {tuple(expected[name])}"
            )
        if not tensor.is_floating_point():
            raise ModelFileError(f"{path}: tensor {name!r} must be floating-point: {tensor.dtype}")
        if not bool(torch.isfinite(tensor).all()):
            raise ModelFileError(f"{path}: tensor {name!r} holds NaN or infinity")
    return next(iter(tensors.values())).dtype


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
    edge_index, edge_weight = (getattr(data, name, None) for name in ("edge_index", "edge_weight"))
    return x, edge_index, edge_weight, getattr(data, "batch", None)


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
        self._kept: tuple[tuple[Any, ...], list[Any], T] | None = None

    def get(self, tensors: tuple[Tensor | None, ...], extra: Any, make: Callable[[], T]) -> T:
        """The result of `make`, computed again only if a tensor or `extra` has changed."""
        # Tensors made in inference mode cannot be used in training.
        key = (extra, torch.is_inference_mode_enabled(), *map(self._state, tensors))
        kept = self._kept
        if kept is not None and key == kept[0]:
            same = (seen() is tensor for seen, tensor in zip(kept[1], tensors, strict=True))
            if all(same):
                return kept[2]
        made = make()
        self._kept = key, [_nothing if t is None else weakref.ref(t) for t in tensors], made
        return made

    def _state(self, tensor: Tensor | None) -> object:
        """The number of changes of a tensor and its bytes' checksum, where either is known."""
        if tensor is None:
            return None
        version = None if tensor.is_inference() else tensor._version
        total = None
        if self._content and tensor.device.type == "cpu" and tensor.layout == torch.strided:
            total = zlib.crc32(tensor.detach().contiguous().view(-1).numpy().data)
        # Without a counter and without bytes a change cannot be seen: like nothing else.
        return object() if version is None and total is None else (version, total)

    def __reduce__(self) -> tuple[Callable[[], Remembered[T]], tuple[()]]:
        """How it is copied and pickled: without what it holds."""
        return partial(Remembered, content=self._content), ()


def _nothing() -> None:
    """What stands for a reference to no tensor."""
