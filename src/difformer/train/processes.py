"""What the processes of a job send each other, with gradients, and -a round a ring of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from difformer.core.tiled import sigmoid_sums, sigmoid_sums_backward
from difformer.errors import DifformerError


class Comm:
    """The processes of a job, from the view of one of them. A job of one process sends nothing.

    `sent` counts, by purpose, the bytes this process has handed to collectives: forward and
    backward. (A ring all-reduce then moves 2 (P − 1)/P times as many over the wire.)
    """

    def __init__(self, *, alone: bool = False) -> None:
        alone = alone or not dist.is_available() or not dist.is_initialized()
        self.rank = 0 if alone else dist.get_rank()
        self.size = 1 if alone else dist.get_world_size()
        self.sent: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"rank {self.rank} of {self.size}"

    def sum(self, value: Tensor, purpose: str) -> Tensor:
        """The sum over processes, on each of them; differentiable."""
        return value if self.size == 1 else _Sum.apply(value, self, purpose)

    def sums(self, values: Sequence[Tensor], purpose: str) -> list[Tensor]:
        """The sum over processes of each of some tensors, in one message; differentiable."""
        total = self.sum(torch.cat([value.reshape(-1) for value in values]), purpose)
        pieces = total.split([value.numel() for value in values])
        return [piece.view(value.shape) for piece, value in zip(pieces, values, strict=True)]

    def exchange(
        self, rows: Tensor, send: list[int], receive: list[int], purpose: str = "plan"
    ) -> Tensor:
        """Send rows to each process and receive theirs, in order of rank; differentiable.

        rows (Σ send, ...) -> (Σ receive, ...). Rows that a process keeps do not count as sent.
        """
        return rows if self.size == 1 else _Exchange.apply(rows, send, receive, self, purpose)

    def gather_rows(self, rows: Tensor) -> Tensor:
        """All processes' rows (n_r, ...) joined in order of rank; differentiable."""
        if self.size == 1:
            return rows
        counts = self.counts(rows.shape[0])
        index = torch.arange(rows.shape[0], device=rows.device).repeat(self.size)
        return self.exchange(rows[index], [rows.shape[0]] * self.size, counts, "rows")

    def deal(self, numbers: list[int]) -> list[int]:
        """One number to each process, and one from each, in order of rank."""
        one = [1] * self.size
        return self.exchange(torch.tensor(numbers), one, one).tolist()

    def counts(self, number: int) -> list[int]:
        """A number from each process, in order of rank."""
        return self.deal([number] * self.size)

    def span(self, count: int) -> tuple[slice, int]:
        """Where this process's `count` rows lie among those of all, and how many there are."""
        counts = self.counts(count)
        start = sum(counts[: self.rank])
        return slice(start, start + count), sum(counts)

    def agree(self, **parts: object) -> None:
        """Raise a DifformerError on every process if they differ; it names the first difference."""
        for name, part in parts.items():
            digest = hashlib.sha256(repr(part).encode()).hexdigest()
            found = self.counts(int(digest[:15], 16))
            others = [str(rank) for rank, number in enumerate(found) if number != found[0]]
            if others:
                with suppress(RuntimeError):  # the first to end must not disconnect the others
                    self.barrier()
                raise DifformerError(
                    f"all processes must have the same {name}: "
                    f"{'rank' if len(others) == 1 else 'ranks'} {', '.join(others)} "
                    f"{'differs' if len(others) == 1 else 'differ'} from rank 0"
                )

    def broadcast(self, value: Tensor) -> Tensor:
        """Rank 0's values, on each process, in place."""
        if self.size > 1:
            dist.broadcast(value, 0)
        return value

    def barrier(self) -> None:
        """Wait for every process."""
        self.counts(0)

    def shift(self, block: Tensor, receive: tuple[int, ...], purpose: str) -> Tensor:
        """Send a block to the next process of the ring, and receive the previous one's."""
        out = block.new_empty(receive)
        self.sent[purpose] += block.nbytes
        steps = [
            dist.P2POp(dist.isend, block.contiguous(), (self.rank + 1) % self.size),
            dist.P2POp(dist.irecv, out, (self.rank - 1) % self.size),
        ]
        for work in dist.batch_isend_irecv(steps):
            work.wait()
        return out


ALONE = Comm(alone=True)
"""The job of one process."""


def _all_reduce(value: Tensor, comm: Comm, purpose: str) -> Tensor:
    total = value.detach().clone(memory_format=torch.contiguous_format)
    comm.sent[purpose] += total.nbytes
    dist.all_reduce(total)
    return total


class _Sum(torch.autograd.Function):
    """y = Σ_r x_r on every process;  ∂x = Σ_r ∂y_r."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, comm: Comm, purpose: str) -> Tensor:
        ctx.plan = (comm, purpose)
        return _all_reduce(value, comm, purpose)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return _all_reduce(grads[0], *ctx.plan), None, None


def _all_to_all(
    rows: Tensor, send: list[int], receive: list[int], comm: Comm, purpose: str
) -> Tensor:
    out = rows.new_empty(sum(receive), *rows.shape[1:])
    others = rows.shape[0] - send[comm.rank]
    comm.sent[purpose] += others * rows.nbytes // max(1, rows.shape[0])
    dist.all_to_all_single(out, rows.contiguous(), receive, send)
    return out


class _Exchange(torch.autograd.Function):
    """Rows go out, their gradients come back the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, send: list[int], receive: list[int], comm: Comm, purpose: str
    ) -> Tensor:
        ctx.plan = (receive, send, comm, purpose)
        return _all_to_all(rows, send, receive, comm, purpose)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return _all_to_all(grads[0], *ctx.plan), None, None, None, None


def ring_average(q: Tensor, k: Tensor, v: Tensor, comm: Comm) -> Tensor:
    """Σ_j σ(q_i·k_j) v_j / Σ_j σ(q_i·k_j) over all processes' rows j.

    q, k (h, n_r, d), v (h, n_r, e) of this process -> (h, n_r, e).
    """
    heads = max(q.shape[0], k.shape[0], v.shape[0])
    q, k, v = (t.expand(heads, -1, -1) for t in (q, k, v))
    return _Ring.apply(q, k, v, comm)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, comm: Comm) -> Tensor:
        q, block = q.contiguous(), torch.cat([k, v], dim=-1)
        counts = comm.counts(k.shape[1])
        ctx.save_for_backward(q, block)
        out = q.new_zeros(q.shape[0], q.shape[1], v.shape[2])
        mass = q.new_zeros(q.shape[0], q.shape[1], 1)
        for step in range(comm.size):
            block = _next(block, counts, step, comm)
            if q.shape[1] and block.shape[1]:
                key, value = _halves(block, q.shape[2])
                sums = sigmoid_sums(q, key, value)
                out += sums[0]
                mass += sums[1]
        ctx.comm, ctx.counts = comm, counts
        out.div_(mass)
        ctx.out, ctx.mass = out, mass
        return out.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        q, block = ctx.saved_tensors
        comm, counts = ctx.comm, ctx.counts
        scaled = grads[0] / ctx.mass
        left = torch.cat([scaled, -(scaled * ctx.out).sum(-1, keepdim=True)], dim=-1)
        dq, gradient = torch.zeros_like(q), torch.zeros_like(block)
        for step in range(comm.size):
            block = _next(block, counts, step, comm)
            gradient = _next(gradient, counts, step, comm)
            if q.shape[1] and block.shape[1]:
                _add_gradients(q, block, left, dq, gradient)
        gradient = _next(gradient, counts, comm.size, comm)  # home
        return dq, *_halves(gradient, q.shape[2]), None


def _add_gradients(q: Tensor, block: Tensor, left: Tensor, dq: Tensor, gradient: Tensor) -> None:
    key, value = _halves(block, q.shape[2])
    right = torch.cat([value, value.new_ones(*value.shape[:-1], 1)], dim=-1)
    dk, dv = torch.zeros_like(key), torch.zeros_like(value)
    for h in range(q.shape[0]):
        sigmoid_sums_backward(q[h], key[h], left[h], right[h], dq[h], dk[h], dv[h])
    gradient += torch.cat([dk, dv], dim=-1)


def _next(block: Tensor, counts: list[int], step: int, comm: Comm) -> Tensor:
    """The block held in this step: it comes from the process `step` places before."""
    if step == 0:
        return block
    origin = (comm.rank - step) % comm.size
    return comm.shift(block, (block.shape[0], counts[origin], block.shape[2]), "ring")


def _halves(block: Tensor, width: int) -> tuple[Tensor, Tensor]:
    return block[..., :width].contiguous(), block[..., width:].contiguous()
