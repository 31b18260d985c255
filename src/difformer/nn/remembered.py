"""A memory of one: what was made from some tensors, while those same tensors come back."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import Tensor

__all__ = ["Remembered"]

T = TypeVar("T")


class Remembered(Generic[T]):
    """Keep the last thing made from tensors, so that full-batch training prepares it once.

    The same tensors, not equal ones: identity and PyTorch's own counter of in-place changes are
    compared. A sparse tensor's values are taken as constant. Copies of a model start without it.
    """

    def __init__(self) -> None:
        self._key: tuple[Any, ...] = ()
        self._made: T | None = None

    def get(self, tensors: tuple[Tensor | None, ...], extra: Any, make: Callable[[], T]) -> T:
        """What `make` returns, made anew only when a tensor or `extra` has changed."""
        key = (extra, *(_fingerprint(t) for t in tensors))
        if self._made is None or not self._matches(key, tensors):
            self._key, self._made = key, make()
        return self._made

    def _matches(self, key: tuple[Any, ...], tensors: tuple[Tensor | None, ...]) -> bool:
        if len(key) != len(self._key) or key[0] != self._key[0]:
            return False
        for tensor, (reference, version) in zip(tensors, self._key[1:], strict=True):
            now = None if reference is None else reference()
            if now is not tensor or (tensor is not None and tensor._version != version):
                return False
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> Remembered[T]:
        return Remembered()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Remembered, ()


def _fingerprint(tensor: Tensor | None) -> tuple[Any, int]:
    return (None, 0) if tensor is None else (weakref.ref(tensor), tensor._version)
