"""DIFFormer: transformers derived from energy-constrained diffusion.

Names load on first use (PEP 562), so that importing the package, or asking the command line for
help, does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"


if TYPE_CHECKING:
    from difformer.core.diffusion import Diffusion
    from difformer.core.diffusivity import Diffusivity
    from difformer.core.graph import Graph
    from difformer.data.dataset import Dataset
    from difformer.data.registry import list_datasets, load_dataset
    from difformer.data.split import Split
    from difformer.data.table.read import read_table
    from difformer.estimators.classifier import DIFFormerClassifier
    from difformer.estimators.forecaster import DIFFormerForecaster
    from difformer.estimators.labels import LabelledKFold
    from difformer.estimators.regressor import DIFFormerRegressor
    from difformer.nn.conv import DIFFormerConv
    from difformer.nn.frozen import FrozenDIFFormer
    from difformer.nn.model import DIFFormer
    from difformer.runs.open import load_run

__all__ = [
    "DIFFormer",
    "DIFFormerClassifier",
    "DIFFormerConv",
    "DIFFormerForecaster",
    "DIFFormerRegressor",
    "Dataset",
    "Diffusion",
    "Diffusivity",
    "FrozenDIFFormer",
    "Graph",
    "LabelledKFold",
    "Split",
    "__version__",
    "list_datasets",
    "load_dataset",
    "load_run",
    "read_table",
]

_HOMES = {
    "core.diffusion": ("Diffusion",),
    "core.diffusivity": ("Diffusivity",),
    "core.graph": ("Graph",),
    "data.dataset": ("Dataset",),
    "data.registry": ("list_datasets", "load_dataset"),
    "data.split": ("Split",),
    "data.table.read": ("read_table",),
    "estimators.classifier": ("DIFFormerClassifier",),
    "estimators.forecaster": ("DIFFormerForecaster",),
    "estimators.labels": ("LabelledKFold",),
    "estimators.regressor": ("DIFFormerRegressor",),
    "nn.conv": ("DIFFormerConv",),
    "nn.frozen": ("FrozenDIFFormer",),
    "nn.model": ("DIFFormer",),
    "runs.open": ("load_run",),
}
_HOME = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # from now on found without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
