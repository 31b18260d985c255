"""The collectives of sharded training, each with its gradient and a count of what it sends.

Every process holds some of the rows and the loss of the whole is the sum of the processes' losses,
so the gradient of a sum over processes is again a sum over processes, and the gradient of rows
sent is rows sent back.
"""

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
