"""A constant sparse matrix times a dense one, prepared for the backward pass."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from difformer.core.dropout import dropout

__all__ = ["SparseMatrix"]

_INT32_MAX = 2**31 - 1


class SparseMatrix:
    """A constant (n, m) matrix in compressed rows; `matmul` costs O(nonzeros · width).

    forward  Y = A X,   backward  ∂X = Aᵀ ∂Y.

    The transpose is made once (or is the matrix itself when it is symmetric), so that neither
    direction ever sorts, converts or scatters. The values are constants: no gradient flows to them.
    """

    def __init__(
        self, csr: Tensor, transpose: Tensor | None = None, order: Tensor | None = None
    ) -> None:
        """Wrap `csr`; `transpose=csr` declares the matrix symmetric and saves its copy."""
        self._csr = csr
        self._transpose = transpose
        self._order = order  # transpose values = values[order]; with a transpose of its own
        self._coo: tuple[Tensor, Tensor, Tensor] | None = None

    @classmethod
    def from_coo(
        cls,
        row: Tensor,
        col: Tensor,
        value: Tensor,
        shape: tuple[int, int],
        symmetric: bool = False,
    ) -> SparseMatrix:
        """Build from coordinates in any order, without duplicates, in O(nonzeros log nonzeros)."""
        csr = _csr(row, col, value, shape)
        return cls(csr, csr if symmetric else None)

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
        crow = torch.zeros(shape[0] + 1, dtype=torch.int64, device=row.device)
        torch.cumsum(torch.bincount(row, minlength=shape[0]), 0, out=crow[1:])
        csr = _assemble(crow, col, value, shape)
        return cls(csr, csr if symmetric else None)

    @classmethod
    def from_csr(cls, csr: Tensor) -> SparseMatrix:
        """Wrap a `torch.sparse_csr` tensor (or convert a COO one), in O(nonzeros)."""
        if csr.layout != torch.sparse_csr:
            csr = csr.to_sparse_csr()
        return cls(_narrow(csr))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return (self._csr.shape[0], self._csr.shape[1])

    @property
    def symmetric(self) -> bool:
        """Whether it was declared, or found, to be its own transpose."""
        return self._transpose is self._csr

    @property
    def nonzeros(self) -> int:
        """How many values are stored."""
        return int(self._csr.values().numel())

    @property
    def csr(self) -> Tensor:
        """The matrix as a `torch.sparse_csr` tensor, to read and not to write."""
        return self._csr

    @property
    def values(self) -> Tensor:
        """The stored values, row by row."""
        return self._csr.values()

    @property
    def transpose(self) -> Tensor:
        """The prepared transpose, built on first use, which may never come."""
        if self._transpose is None:
            row, col, value = self.coo
            self._order = torch.argsort(col * self.shape[0] + row)
            self._transpose = _csr(col, row, value, (self.shape[1], self.shape[0]))
        return self._transpose

    @property
    def coo(self) -> tuple[Tensor, Tensor, Tensor]:
        """(row, column, value) of every stored entry, row by row."""
        if self._coo is None:
            counts = self._csr.crow_indices().diff()
            row = torch.repeat_interleave(counts.long())
            self._coo = (row, self._csr.col_indices().long(), self._csr.values())
        return self._coo

    def to(self, like: Tensor) -> SparseMatrix:
        """The same matrix with the dtype and device of `like`; itself when they agree already."""
        if self._csr.dtype == like.dtype and self._csr.device == like.device:
            return self
        csr = self._csr.to(device=like.device, dtype=like.dtype)
        if self._transpose is None:
            return SparseMatrix(csr)
        symmetric = self._transpose is self._csr
        other = csr if symmetric else self._transpose.to(device=like.device, dtype=like.dtype)
        order = None if self._order is None else self._order.to(like.device)
        return SparseMatrix(csr, other, order)

    def matmul(self, x: Tensor) -> Tensor:
        """A X for a dense (m, width) X; differentiable in X."""
        if torch.compiler.is_compiling():
            # Compressed rows cannot be traced; the same sum by scattering can.
            row, col, value = self.coo
            messages = x.index_select(0, col) * value.to(x.dtype).unsqueeze(-1)
            return x.new_zeros(self.shape[0], x.shape[1]).index_add(0, row, messages)
        return _Product.apply(x, self)

    def add_product(self, out: Tensor, x: Tensor, scale: float) -> None:
        """out += scale · A X in place; no gradient is recorded."""
        _add_product(self._csr, out, x, scale)

    def add_transposed_product(self, out: Tensor, x: Tensor, scale: float) -> None:
        """out += scale · Aᵀ X in place; no gradient is recorded."""
        _add_product(self.transpose, out, x, scale)

    def dropout(self, rate: float) -> SparseMatrix:
        """Each stored value zero with probability `rate`, else scaled by 1 / (1 − rate)."""
        return self if rate == 0.0 else self.with_values(dropout(self.values, rate))

    def with_values(self, values: Tensor) -> SparseMatrix:
        """The same entries with other values, in O(nonzeros)."""
        flipped = self.transpose
        if flipped is self._csr:
            raise ValueError("other values of a matrix declared symmetric would break its symmetry")
        # The transpose is updated too; constant features have one after their first backward pass.
        assert self._order is not None
        turned = _with(flipped, values[self._order])
        return SparseMatrix(_with(self._csr, values), turned, self._order)

    def unit_rows(self) -> SparseMatrix:
        """Each row scaled to unit length, in O(nonzeros); a zero row stays zero."""
        row, _, value = self.coo
        square = value.new_zeros(self.shape[0]).index_add_(0, row, value.square())
        scale = square.clamp_min(torch.finfo(value.dtype).tiny).rsqrt()
        return SparseMatrix(_with(self._csr, value * scale[row]))

    def block(self, rows: slice) -> SparseMatrix:
        """A range of rows as a separate matrix, in O(rows): the stored values are shared."""
        crow = self._csr.crow_indices()[rows.start : rows.stop + 1]
        entries = slice(int(crow[0]), int(crow[-1]))
        shape = (crow.numel() - 1, self.shape[1])
        col, value = self._csr.col_indices()[entries], self.values[entries]
        return SparseMatrix(_assemble(crow - crow[0], col, value, shape))

    def rows(self, index: Tensor) -> SparseMatrix:
        """The chosen rows as a separate matrix, in O(their nonzeros)."""
        crow = self._csr.crow_indices().long()
        start, counts = crow[index], crow[index + 1] - crow[index]
        new_row = torch.repeat_interleave(counts)
        offset = torch.arange(new_row.numel(), device=index.device)
        offset = offset - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        source = start[new_row] + offset
        return SparseMatrix.from_coo(
            new_row,
            self._csr.col_indices().long()[source],
            self.values[source],
            (int(index.numel()), self.shape[1]),
        )


class _Product(torch.autograd.Function):
    """Y = A X with ∂X = Aᵀ ∂Y from the prepared transpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: SparseMatrix) -> Tensor:
        ctx.matrix = matrix
        return _multiply(matrix.csr, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _multiply(ctx.matrix.transpose, grads[0]), None


def _multiply(csr: Tensor, x: Tensor) -> Tensor:
    x = x.contiguous()
    if x.dtype in (torch.bfloat16, torch.float16):
        # The CPU has no half-precision product; summing many neighbours wants float32 anyway.
        return _multiply(csr.to(torch.float32), x.float()).to(x.dtype)
    if csr.dtype != x.dtype:
        csr = csr.to(x.dtype)
    out = x.new_empty(csr.shape[0], x.shape[1])
    if csr.values().numel() == 0 or x.numel() == 0:
        return out.zero_()
    # addmm with beta=0 writes into `out` once; `@` would first fill a fresh tensor with zeros.
    return torch.addmm(out, csr, x, beta=0, out=out)


def _add_product(csr: Tensor, out: Tensor, x: Tensor, scale: float) -> None:
    if csr.values().numel() and x.numel():
        torch.addmm(out, csr, x.contiguous(), alpha=scale, out=out)


def _csr(row: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int]) -> Tensor:
    order = torch.argsort(row * shape[1] + col)
    row, col, value = row[order], col[order], value[order]
    counts = torch.bincount(row, minlength=shape[0])
    crow = torch.zeros(shape[0] + 1, dtype=torch.int64, device=row.device)
    torch.cumsum(counts, 0, out=crow[1:])
    return _assemble(crow, col, value, shape)


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


def _narrow(csr: Tensor) -> Tensor:
    shape = (csr.shape[0], csr.shape[1])
    return _assemble(csr.crow_indices(), csr.col_indices(), csr.values(), shape)
