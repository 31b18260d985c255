"""Experiments: what is run, the published tables as data, and the results beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from difformer.lazy import lazy_names

if TYPE_CHECKING:
    from difformer.experiments.experiment import Experiment
    from difformer.experiments.loaded import LoadedRun, load_run
    from difformer.experiments.run import CannotRunError, run_experiment
    from difformer.experiments.specs import Spec, list_specs, load_spec

__all__ = [
    "CannotRunError",
    "Experiment",
    "LoadedRun",
    "Spec",
    "list_specs",
    "load_run",
    "load_spec",
    "run_experiment",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "experiment": ("Experiment",),
        "loaded": ("LoadedRun", "load_run"),
        "run": ("CannotRunError", "run_experiment"),
        "specs": ("Spec", "list_specs", "load_spec"),
    },
)
