"""Training steps (forward, backward and Adam), compared with the transcription of the paper.

python -m benchmarks.steps [cora pubmed million a8000 ...]      writes results/benchmarks/steps.json

Every case is measured twice: as in a script, where each large tensor needs new memory pages, and
with freed memory kept for both sides, as the commands that train keep it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import Ratio, alternate, equal_outputs, write_results
from benchmarks.transcription import Transcription
from difformer import DIFFormer, Graph, load_dataset
from difformer.train.memory import keep_freed_memory

SETTINGS: dict[str, dict[str, Any]] = {
    "cora": {"num_layers": 8, "dropout": 0.2, "qk_norm": "tensor"},
    "cora-row": {"num_layers": 8, "dropout": 0.2, "qk_norm": "row"},
    "pubmed": {"num_layers": 8, "dropout": 0.2, "qk_norm": "tensor"},
    "pubmed-row": {"num_layers": 8, "dropout": 0.2, "qk_norm": "row"},
    "cora-a": {"num_layers": 8, "kernel": "sigmoid"},
    "million": {"num_layers": 1, "qk_norm": "tensor"},
    "million-row": {"num_layers": 1, "qk_norm": "row"},
    "a8000": {"num_layers": 1, "kernel": "sigmoid"},
}
"""The released settings where there are such: width 64, one head, no layer-wise transformation.

Both readings of the norm of query and key: the released code's (whole tensor) and the equations'.
"""

KEPT = ", freed memory kept"


def problem(case: str) -> tuple[Tensor, Tensor, Tensor | None, int]:
    """Features (dense and as they come), edges with loops, outputs."""
    case = case.removesuffix("-row")
    if case in ("cora", "pubmed", "cora-a"):
        data = load_dataset(case.removesuffix("-a"))
        loops = torch.arange(data.num_rows).repeat(2, 1)
        assert data.edge_index is not None
        edges = torch.cat([data.edge_index, loops], dim=1)
        return data.x.to_dense(), data.x, edges, data.num_outputs
    torch.manual_seed(0)
    rows = {"million": 1_000_000, "a8000": 8_000}[case]
    x = torch.randn(rows, 64)
    if case == "a8000":
        return x, x, None, 2
    half = torch.randint(rows, (2, 5 * rows))
    return x, x, torch.cat([half, half.flip(0)], dim=1).unique(dim=1), 2


def stepper(
    model: nn.Module, x: Tensor, graph: Any, target: Tensor, fused: bool = False
) -> Callable[[], Tensor]:
    """One training step a call; returns the loss. `fused` is the Adam of our training loop."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.01, fused=fused)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x, graph), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def ours(case: str, x: Tensor, edges: Tensor | None, outputs: int) -> tuple[DIFFormer, Any]:
    """Our model of a case and the graph it is given."""
    torch.manual_seed(0)
    model = DIFFormer(x.shape[1], 64, outputs, use_weight=False, **SETTINGS[case])
    return model, None if edges is None else Graph.from_edges(edges, x.shape[0])


def our_step(case: str) -> Callable[[], Tensor]:
    """Our training step of a case alone."""
    _, x, edges, outputs = problem(case)
    model, graph = ours(case, x, edges, outputs)
    return stepper(model, x, graph, torch.randint(outputs, (x.shape[0],)), fused=True)


def measure(case: str, title: str) -> Ratio:
    """The ratio for one case, after a check that both give the same outputs."""
    dense, x, edges, outputs = problem(case)
    model, graph = ours(case, x, edges, outputs)
    theirs = Transcription(copy.deepcopy(model))
    model.eval()
    theirs.eval()
    with torch.no_grad():
        difference = equal_outputs(case, model(x, graph), theirs(dense, edges))
    model.train()
    theirs.train()
    target = torch.randint(outputs, (x.shape[0],))
    ratio = alternate(
        case,
        stepper(model, x, graph, target, fused=True),
        stepper(theirs, dense, edges, target),
        tolerance=None,
        least=3,
    )
    return replace(ratio, name=title, largest_difference=difference)


def main() -> None:
    """Measure the chosen cases and write the result file."""
    cases = sys.argv[1:] or list(SETTINGS)
    results: dict[str, Any] = {}
    rounds = [(case, "") for case in cases] + [(case, KEPT) for case in cases]
    for case, kept in rounds:
        if kept:
            keep_freed_memory()
        name = case + kept
        results[name] = measure(case, name)
        results[name].show("transcription")
    write_results("steps", results, words=" ".join(cases))


if __name__ == "__main__":
    main()
