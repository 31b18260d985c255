"""DIFFormer: transformers derived from energy-constrained diffusion.

Names load on first use (PEP 562), so that importing the package, or asking the command line for
help, does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# To make a name public: add it here with its module, and to the imports below for type checkers.
_PUBLIC: dict[str, str] = {
    "DIFFormer": "difformer.nn.model",
    "DIFFormerClassifier": "difformer.estimators.classifier",
    "DIFFormerForecaster": "difformer.estimators.forecaster",
    "DIFFormerRegressor": "difformer.estimators.regressor",
    "Dataset": "difformer.data.dataset",
    "Diffusion": "difformer.core.diffusion",
    "Diffusivity": "difformer.core.diffusivity",
    "FrozenDIFFormer": "difformer.nn.frozen",
    "Graph": "difformer.core.graph",
    "Split": "difformer.data.split",
    "load_dataset": "difformer.data.registry",
    "list_datasets": "difformer.data.registry",
}

if TYPE_CHECKING:
    from difformer.core.diffusion import Diffusion
    from difformer.core.diffusivity import Diffusivity
    from difformer.core.graph import Graph
    from difformer.data.dataset import Dataset
    from difformer.data.registry import list_datasets, load_dataset
    from difformer.data.split import Split
    from difformer.estimators.classifier import DIFFormerClassifier
    from difformer.estimators.forecaster import DIFFormerForecaster
    from difformer.estimators.regressor import DIFFormerRegressor
    from difformer.nn.frozen import FrozenDIFFormer
    from difformer.nn.model import DIFFormer

__all__ = [
    "DIFFormer",
    "DIFFormerClassifier",
    "DIFFormerForecaster",
    "DIFFormerRegressor",
    "Dataset",
    "Diffusion",
    "Diffusivity",
    "FrozenDIFFormer",
    "Graph",
    "Split",
    "__version__",
    "list_datasets",
    "load_dataset",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'difformer' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
