"""Where the time of a training step goes, operator by operator.

python -m benchmarks.profiles          writes results/benchmarks/profiles.json

The time of an operator is its own time on the calling thread, without the operators it calls. The
rest is Python between operators. Products of sparse matrices have the names of dense ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import limit, peers, steps
from benchmarks.measure import write_results
from difformer.train.memory import keep_freed_memory

SHOWN = 6  # operators of a case


def profiled(step: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """Milliseconds a step, in all and by operator, the largest first."""
    step()
    step()
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    plain = 1e3 * (time.perf_counter() - begin) / repeats
    with profile(activities=[ProfilerActivity.CPU]) as found:
        begin = time.perf_counter()
        for _ in range(repeats):
            step()
        whole = 1e3 * (time.perf_counter() - begin) / repeats
    operators = [
        (e.key.removeprefix("aten::"), e.self_cpu_time_total / 1e3 / repeats, e.count / repeats)
        for e in found.key_averages()
    ]
    operators.sort(key=lambda entry: -entry[1])
    return {
        "ms": plain,
        "ms_profiled": whole,
        "operators": [
            {"name": n, "ms": ms, "share": ms / whole, "calls": calls}
            for n, ms, calls in operators[:SHOWN]
        ],
        "others_share": sum(ms for _, ms, _ in operators[SHOWN:]) / whole,
        "python_share": max(0.0, 1 - sum(ms for _, ms, _ in operators) / whole),
    }


def few_rows() -> Callable[[], Any]:
    """Cora's step with next to no arithmetic: what is left is the cost of calling operators."""
    x, edges = torch.randn(64, 64), torch.randint(64, (2, 256))
    model, graph = steps.ours("cora", x, edges, 7)
    return steps.stepper(model, x, graph, torch.randint(7, (64,)), fused=True)


def cases() -> dict[str, tuple[Callable[[], Callable[[], Any]], int]]:
    """Name: what makes the step, and how often it is run."""
    return {
        "Cora, -s, whole-tensor norm, 8 layers": (lambda: steps.our_step("cora"), 30),
        "the same model on 64 rows": (few_rows, 30),
        "Pubmed, -s, whole-tensor norm, 8 layers": (lambda: steps.our_step("pubmed"), 10),
        "all pairs, -a, 8,000 rows, own queries and keys": (
            lambda: peers.our_pairs(8000, tied=False),
            3,
        ),
        "average, -s, row norm, 1,000,000 rows": (
            lambda: limit.stepper("-s, row norm, 1,000,000 rows")[1],
            3,
        ),
        "average, -a, 16,000 rows": (lambda: limit.stepper("-a, 16,000 rows")[1], 2),
    }


def main() -> None:
    """Profile every case, on kept memory like every training command, and write the result file."""
    keep_freed_memory()
    results: dict[str, Any] = {}
    for name, (make, repeats) in cases().items():
        found = results[name] = profiled(make(), repeats)
        print(f"{name}: {found['ms']:.1f} ms a step, {found['ms_profiled']:.1f} profiled")
        for o in found["operators"]:
            print(f"  {o['name']:40} {100 * o['share']:5.1f} %  {o['calls']:7.1f} calls")
        print(f"  {'other operators':40} {100 * found['others_share']:5.1f} %")
        print(f"  {'Python between them':40} {100 * found['python_share']:5.1f} %", flush=True)
    write_results("profiles", results)


if __name__ == "__main__":
    main()
