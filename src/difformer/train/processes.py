"""The collectives of sharded training with their gradients, and -a round a ring of processes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from difformer.core.context import Context, Pairs
from difformer.core.tiled import sigmoid_sums, sigmoid_sums_backward
from difformer.errors import DifformerError

C = TypeVar("C", bound=Context)


class Comm:
    """The processes of a job, from the view of one of them. A job of one process sends nothing.

    `sent` counts, by purpose, the bytes this process has handed to collectives: forward and
    backward. (A ring all-reduce then moves 2 (P − 1)/P times as many over the wire.)
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        alone = not dist.is_available() or not dist.is_initialized()
        self.rank = 0 if alone else dist.get_rank(group)
        self.size = 1 if alone else dist.get_world_size(group)
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

    def merge(self, context: C) -> C:
        """The context of all processes' rows: one message, whatever the number of rows.

        For diffusivities that do not separate, the rows themselves are gathered.
        """
        if self.size == 1:
            return context
        fields = context.tensors()
        if isinstance(context, Pairs):
            parts = {name: self.gather_rows(t.transpose(0, -2)) for name, t in fields.items()}
            return type(context)(**{name: t.transpose(0, -2) for name, t in parts.items()})
        summed = self.sums(list(fields.values()), "context")
        return type(context)(**dict(zip(fields, summed, strict=True)))

    def exchange(self, rows: Tensor, send: list[int], receive: list[int], purpose: str) -> Tensor:
        """Send rows to each process and receive theirs, in order of rank; differentiable.

        rows (Σ send, ...) -> (Σ receive, ...).
        """
        if self.size == 1:
            return rows
        return _Exchange.apply(rows, send, receive, self, purpose)

    def gather_rows(self, rows: Tensor) -> Tensor:
        """All processes' rows (n_r, ...) joined in order of rank; differentiable."""
        if self.size == 1:
            return rows
        counts = self.counts(rows.shape[0])
        index = torch.arange(rows.shape[0], device=rows.device).repeat(self.size)
        send = [rows.shape[0]] * self.size
        return self.exchange(rows[index], send, counts, "rows")

    def deal(self, numbers: list[int]) -> list[int]:
        """One number to each process, and one from each, in order of rank."""
        one = [1] * self.size
        return self.swap(torch.tensor(numbers), one, one).tolist()

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

    def swap(self, values: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """`exchange` without a gradient, for indices and counts."""
        return values if self.size == 1 else all_to_all(values, send, receive, self, "plan")

    def sum_in_place(self, value: Tensor, purpose: str) -> Tensor:
        """The sum over processes without a gradient."""
        if self.size > 1:
            self._count(value, purpose)
            dist.all_reduce(value, group=self.group)
        return value

    def broadcast(self, value: Tensor) -> Tensor:
        """Rank 0's values, on each process, in place."""
        if self.size > 1:
            dist.broadcast(value, 0, group=self.group)
        return value

    def barrier(self) -> None:
        """Wait for every process."""
        self.counts(0)

    def shift(self, block: Tensor, receive: tuple[int, ...], purpose: str) -> Tensor:
        """Send a block to the next process of the ring, and receive the previous one's."""
        out = block.new_empty(receive)
        to, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        self._count(block, purpose)
        steps = [
            dist.P2POp(dist.isend, block.contiguous(), self._global(to), self.group),
            dist.P2POp(dist.irecv, out, self._global(before), self.group),
        ]
        for work in dist.batch_isend_irecv(steps):
            work.wait()
        return out

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def _count(self, value: Tensor, purpose: str) -> None:
        self.sent[purpose] += value.numel() * value.element_size()


def all_to_all(
    rows: Tensor, send: list[int], receive: list[int], comm: Comm, purpose: str
) -> Tensor:
    """One all-to-all of rows; the rows a process keeps are not counted as sent."""
    out = rows.new_empty(sum(receive), *rows.shape[1:])
    width = rows[:1].numel() if rows.shape[0] else 0
    comm.sent[purpose] += (rows.shape[0] - send[comm.rank]) * width * rows.element_size()
    dist.all_to_all_single(out, rows.contiguous(), receive, send, group=comm.group)
    return out


class _Sum(torch.autograd.Function):
    """y = Σ_r x_r on every process;  ∂x = Σ_r ∂y_r."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, comm: Comm, purpose: str) -> Tensor:
        ctx.comm, ctx.purpose = comm, purpose
        return comm.sum_in_place(value.detach().clone().contiguous(), purpose)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return ctx.comm.sum_in_place(grads[0].clone().contiguous(), ctx.purpose), None, None


class _Exchange(torch.autograd.Function):
    """Rows go out, their gradients come back the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, send: list[int], receive: list[int], comm: Comm, purpose: str
    ) -> Tensor:
        ctx.plan = (receive, send, comm, purpose)
        return all_to_all(rows, send, receive, comm, purpose)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return all_to_all(grads[0], *ctx.plan), None, None, None, None


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
            if step:
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
            if step:
                block = _next(block, counts, step, comm)
                gradient = _next(gradient, counts, step, comm)
            if q.shape[1] and block.shape[1]:
                _add_gradients(q, block, left, dq, gradient)
        if comm.size > 1:
            gradient = _next(gradient, counts, comm.size, comm)  # home
        dk, dv = _halves(gradient, q.shape[2])
        return dq, dk, dv, None


def _add_gradients(q: Tensor, block: Tensor, left: Tensor, dq: Tensor, gradient: Tensor) -> None:
    key, value = _halves(block, q.shape[2])
    right = torch.cat([value, value.new_ones(*value.shape[:-1], 1)], dim=-1)
    dk, dv = torch.zeros_like(key), torch.zeros_like(value)
    for h in range(q.shape[0]):
        sigmoid_sums_backward(q[h], key[h], left[h], right[h], dq[h], dk[h], dv[h])
    gradient += torch.cat([dk, dv], dim=-1)


def _next(block: Tensor, counts: list[int], step: int, comm: Comm) -> Tensor:
    """The block held in this step: it comes from the process `step` places before."""
    origin = (comm.rank - step) % comm.size
    return comm.shift(block, (block.shape[0], counts[origin], block.shape[2]), "ring")


def _halves(block: Tensor, width: int) -> tuple[Tensor, Tensor]:
    return block[..., :width].contiguous(), block[..., width:].contiguous()
