"""DIFFormer: transformers derived from energy-constrained diffusion.

Names load on first use (PEP 562), so that importing the package, or asking the command line for
help, does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from difformer.lazy import lazy_names

__version__ = "0.1.0"


if TYPE_CHECKING:
    from difformer.core.diffusion import Diffusion
    from difformer.core.diffusivity import Diffusivity
    from difformer.core.graph import Graph
    from difformer.data.dataset import Dataset
    from difformer.data.registry import list_datasets, load_dataset
    from difformer.data.split import Split
    from difformer.data.tables import read_table
    from difformer.estimators.classifier import DIFFormerClassifier
    from difformer.estimators.folds import LabelledKFold
    from difformer.estimators.forecaster import DIFFormerForecaster
    from difformer.estimators.regressor import DIFFormerRegressor
    from difformer.experiments.loaded import load_run
    from difformer.nn.conv import DIFFormerConv
    from difformer.nn.frozen import FrozenDIFFormer
    from difformer.nn.model import DIFFormer

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "core.diffusion": ("Diffusion",),
        "core.diffusivity": ("Diffusivity",),
        "core.graph": ("Graph",),
        "data.dataset": ("Dataset",),
        "data.registry": ("list_datasets", "load_dataset"),
        "data.split": ("Split",),
        "data.tables": ("read_table",),
        "estimators.classifier": ("DIFFormerClassifier",),
        "estimators.folds": ("LabelledKFold",),
        "estimators.forecaster": ("DIFFormerForecaster",),
        "estimators.regressor": ("DIFFormerRegressor",),
        "experiments.loaded": ("load_run",),
        "nn.conv": ("DIFFormerConv",),
        "nn.frozen": ("FrozenDIFFormer",),
        "nn.model": ("DIFFormer",),
    },
)
