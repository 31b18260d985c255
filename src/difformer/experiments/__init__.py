"""Experiments: what is run, the published tables as data, and the results beside them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from difformer.experiments.experiment import Experiment
    from difformer.experiments.run import CannotRunError, LoadedRun, load_run, run_experiment
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

# Loaded when asked for: the command line lists tables and options without torch.
_HOME = {
    "CannotRunError": "run",
    "Experiment": "experiment",
    "LoadedRun": "run",
    "Spec": "specs",
    "list_specs": "specs",
    "load_run": "run",
    "load_spec": "specs",
    "run_experiment": "run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
