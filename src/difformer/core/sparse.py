"""A constant sparse matrix times a dense one, prepared for the backward pass."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.draws import dropout
from difformer.core.tiled import HALF

_INT32_MAX = 2**31 - 1


class SparseMatrix:
    """A constant (n, m) matrix in compressed rows; `A @ X` costs O(nonzeros · width).

    forward  Y = A X,   backward  ∂X = Aᵀ ∂Y.

    The transpose is made once (or is the matrix itself when it is symmetric), so that neither
    direction ever sorts, converts or scatters. The values are constants: no gradient flows to them.
    `A @ X`, `A[rows]`, `A.shape` and `A.to_dense()` are those of a dense tensor.
    """

    def __init__(
        self, csr: Tensor, transpose: Tensor | None = None, order: Tensor | None = None
    ) -> None:
        """Wrap `csr`, to read and not to write; `transpose=csr` declares the matrix symmetric."""
        self.csr, self._transpose = csr, transpose
        self._order = order  # transpose values = values[order]; with a transpose of its own

    @classmethod
    def from_sorted(
        cls,
        row: Tensor,
        col: Tensor,
        value: Tensor,
        shape: tuple[int, int],
        symmetric: bool = False,
    ) -> SparseMatrix:
        """Build from coordinates sorted by row, then column, without duplicates: O(nonzeros)."""
        counts = torch.bincount(row, minlength=shape[0])
        csr = _assemble(_starts(counts), col, value, shape)
        return cls(csr, csr if symmetric else None)

    @classmethod
    def from_csr(cls, csr: Tensor) -> SparseMatrix:
        """Wrap a `torch.sparse_csr` tensor (or convert a COO one), in O(nonzeros)."""
        if csr.layout != torch.sparse_csr:
            csr = csr.to_sparse_csr()
        return cls(_with(csr, csr.values()))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return (self.csr.shape[0], self.csr.shape[1])

    @property
    def symmetric(self) -> bool:
        """Whether it was declared, or found, to be its own transpose."""
        return self._transpose is self.csr

    @property
    def nonzeros(self) -> int:
        """How many values are stored."""
        return int(self.csr.values().numel())

    @property
    def values(self) -> Tensor:
        """The stored values, row by row."""
        return self.csr.values()

    @property
    def transpose(self) -> Tensor:
        """The transpose, built on first use."""
        if self._transpose is None:
            row, col, value = self.coo
            self._order = order = torch.argsort(col * self.shape[0] + row)
            shape = (self.shape[1], self.shape[0])
            turned = SparseMatrix.from_sorted(col[order], row[order], value[order], shape)
            self._transpose = turned.csr
        return self._transpose

    @property
    def T(self) -> SparseMatrix:  # noqa: N802 (as a tensor calls it)
        """Its transpose, sharing both forms."""
        return SparseMatrix(self.transpose, self.csr)

    @cached_property
    def coo(self) -> tuple[Tensor, Tensor, Tensor]:
        """(row, column, value) of every stored entry, row by row."""
        row = torch.repeat_interleave(self.csr.crow_indices().diff().long())
        return row, self.csr.col_indices().long(), self.values

    def to(self, like: Tensor) -> SparseMatrix:
        """The same matrix with the dtype and device of `like`; itself when they agree already."""
        if self.csr.dtype == like.dtype and self.csr.device == like.device:
            return self
        csr, other, order = self.csr.to(like.device, like.dtype), self._transpose, self._order
        if other is not None:
            other = csr if self.symmetric else other.to(like.device, like.dtype)
        return SparseMatrix(csr, other, None if order is None else order.to(like.device))

    def to_dense(self) -> Tensor:
        """The matrix as a dense (n, m) tensor."""
        return self.csr.to_dense()

    def __matmul__(self, x: Tensor) -> Tensor:
        """A X for a dense (m, width) X; differentiable in X."""
        if torch.compiler.is_compiling():
            # Compressed rows cannot be traced; the same sum by scattering can.
            row, col, value = self.coo
            messages = x.index_select(0, col) * value.to(x.dtype).unsqueeze(-1)
            return x.new_zeros(self.shape[0], x.shape[1]).index_add(0, row, messages)
        return _Product.apply(x, self)

    def add_product(self, out: Tensor, x: Tensor, scale: float) -> None:
        """out += scale · A X in place; no gradient is recorded."""
        _multiply(self.csr, x, out, scale)

    def add_transposed_product(self, out: Tensor, x: Tensor, scale: float) -> None:
        """out += scale · Aᵀ X in place; no gradient is recorded."""
        _multiply(self.transpose, x, out, scale)

    def dropout(self, rate: float) -> SparseMatrix:
        """Each stored value zero with probability `rate`, else scaled by 1 / (1 − rate)."""
        return self if rate == 0.0 else self.with_values(dropout(self.values, rate))

    def with_values(self, values: Tensor) -> SparseMatrix:
        """The same entries with other values, in O(nonzeros)."""
        flipped = self.transpose
        if flipped is self.csr:
            raise ValueError("values must stay as they are in a matrix declared symmetric")
        # The transpose is updated too; constant features have one after their first backward pass.
        assert self._order is not None
        turned = _with(flipped, values[self._order])
        return SparseMatrix(_with(self.csr, values), turned, self._order)

    def unit_rows(self) -> SparseMatrix:
        """Each row scaled to unit length, in O(nonzeros); a zero row stays zero."""
        row, _, value = self.coo
        square = value.new_zeros(self.shape[0]).index_add_(0, row, value.square())
        scale = square.clamp_min(torch.finfo(value.dtype).tiny).rsqrt()
        return SparseMatrix(_with(self.csr, value * scale[row]))

    def __getitem__(self, rows: slice | Tensor) -> SparseMatrix:
        """The chosen rows as a separate matrix; a range, in O(rows), shares the stored values."""
        crow, col = self.csr.crow_indices(), self.csr.col_indices()
        if isinstance(rows, slice):
            first, last, _ = rows.indices(self.shape[0])
            crow = crow[first : max(first, last) + 1]
            entries: slice | Tensor = slice(int(crow[0]), int(crow[-1]))
            crow = crow - crow[0]
        else:
            start, counts = crow[rows].long(), crow[rows + 1].long() - crow[rows]
            crow = _starts(counts)
            each = torch.repeat_interleave(counts)
            entries = (start - crow[:-1])[each] + torch.arange(each.numel(), device=rows.device)
        shape = (crow.numel() - 1, self.shape[1])
        return SparseMatrix(_assemble(crow, col[entries], self.values[entries], shape))


class _Product(torch.autograd.Function):
    """Y = A X with ∂X = Aᵀ ∂Y from the prepared transpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: SparseMatrix) -> Tensor:
        ctx.matrix = matrix
        return _multiply(matrix.csr, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _multiply(ctx.matrix.transpose, grads[0]), None


def _multiply(csr: Tensor, x: Tensor, out: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """scale · A X, added to `out` in place if it is given."""
    if x.dtype in HALF and out is None:
        # The CPU has no half-precision product; summing many neighbours wants float32 anyway.
        return _multiply(csr.to(torch.float32), x.float()).to(x.dtype)
    if csr.dtype != x.dtype:
        csr = csr.to(x.dtype)
    # addmm with beta=0 writes once; `@` would first fill a fresh tensor with zeros.
    beta, into = (0, x.new_empty(csr.shape[0], x.shape[1])) if out is None else (1, out)
    if csr.values().numel() == 0 or x.numel() == 0:
        return into.zero_() if out is None else into
    return torch.addmm(into, csr, x.contiguous(), beta=beta, alpha=scale, out=into)


def _starts(counts: Tensor) -> Tensor:
    """Where each row's entries begin, and the end of the last, from their number in each row."""
    return F.pad(counts.cumsum(0), (1, 0))


def _assemble(crow: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int]) -> Tensor:
    # 32-bit indices halve the bytes read and spare the library a conversion in every product.
    if max(value.numel(), *shape) <= _INT32_MAX:
        crow, col = crow.int(), col.int()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Ss]parse.*")
        return torch.sparse_csr_tensor(crow, col, value, size=shape, check_invariants=False)


def _with(csr: Tensor, values: Tensor) -> Tensor:
    """The same pattern with other values; the indices are shared."""
    return _assemble(csr.crow_indices(), csr.col_indices(), values, (csr.shape[0], csr.shape[1]))
