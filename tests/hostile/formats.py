"""What is fuzzed: for each format whole samples, damage, and a use whose answer can be checked.

A use returns nothing where the answer is right, raises a DifformerError where the file is refused,
and raises AssertionError where the answer is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz_runs import prepare_runs, requests_case, run_case
from fuzz_tables import (
    csv_case,
    edges_case,
    jsonl_case,
    npz_case,
    parquet_case,
    series_case,
)
from fuzz_tensors import (
    checkpoint_case,
    prepare_checkpoint,
    prepare_models,
    tensors_case,
    use_estimator,
    use_frozen,
    use_model,
)


@dataclass(frozen=True)
class Format:
    """`prepare(root)` makes the samples; `case(root, place, draw)` damages one and uses it."""

    prepare: Callable[[Path], None]
    case: Callable[[Path, Path, Random], None]


FORMATS: dict[str, Format] = {
    "csv": Format(prepare_runs, csv_case),
    "jsonl": Format(prepare_runs, jsonl_case),
    "parquet": Format(prepare_runs, parquet_case),
    "npz": Format(prepare_runs, npz_case),
    "edges": Format(prepare_runs, edges_case),
    "series": Format(prepare_runs, series_case),
    "model": Format(prepare_models, tensors_case("model", "model", use_model)),
    "frozen": Format(prepare_models, tensors_case("frozen", "frozen", use_frozen)),
    "estimator": Format(prepare_models, tensors_case("estimator", "estimator", use_estimator)),
    "checkpoint": Format(prepare_checkpoint, checkpoint_case),
    "run": Format(prepare_runs, run_case),
    "requests": Format(prepare_runs, requests_case),
}
