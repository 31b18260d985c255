"""Every system by name. To add one: a file with `build`, a config, and an entry here. No torch."""

from __future__ import annotations

from dataclasses import replace

from difformer.baselines import configs, memory
from difformer.baselines.system import ALL_TASKS, System

__all__ = ["FORECASTS", "SYSTEMS", "get_system"]

CLASSES = ("multiclass",)
LABELS = ("multiclass", "multilabel")
_KIPF = {"lr": 0.01, "weight_decay": 5e-4}

# Several systems are one model with other defaults: `replace` says in what they differ.
_DIFFORMER = System(
    name="difformer-s",
    title="DIFFormer-s",
    module="difformer",
    config=configs.DIFFormerOptions,
    graph="given",
    all_pairs=True,
    memory=memory.linear,
    train={"lr": 0.01, "weight_decay": 0.01, "epochs": 200},
    space={"num_layers": (2, 4, 8), "graph_weight": (0.5, 0.9), "dropout": (0.2, 0.5)},
)
_GRAND = System(
    name="grand-l",
    title="GRAND-l",
    module="grand",
    config=configs.GRANDConfig,
    graph="given",
    memory=memory.solver,
    needs_graph=True,
    package="torchdiffeq",
    train={"lr": 0.02, "weight_decay": 5e-4},
    space={"time": (4.0, 8.0, 16.0), "dropout": (0.2, 0.5)},
)
_LP = System(
    name="lp",
    title="LP",
    module="lp",
    config=configs.LPConfig,
    graph="given",
    memory=memory.labels,
    needs_graph=True,
    tasks=LABELS,
    space={"alpha": (0.5, 0.9, 0.99)},
)
_MANIREG = System(
    name="manireg",
    title="ManiReg",
    module="manireg",
    config=configs.ManiRegConfig,
    graph="given",
    memory=memory.linear,
    needs_graph=True,
    train={"lr": 0.01, "weight_decay": 5e-3},
    space={"penalty": (0.1, 1.0, 10.0), "hidden_channels": (16, 64, 256)},
)
_GCN = System(
    name="gcn",
    title="GCN",
    module="gcn",
    config=configs.GCNConfig,
    graph="given",
    memory=memory.linear,
    needs_graph=True,
    train=_KIPF,
    space={"hidden_channels": (16, 64, 256), "num_layers": (2, 3), "dropout": (0.2, 0.5)},
)
_GAT = System(
    name="gat",
    title="GAT",
    module="gat",
    config=configs.GATConfig,
    graph="given",
    memory=memory.by_edge,
    needs_graph=True,
    train={"lr": 0.005, "weight_decay": 5e-4},
    space={"hidden_channels": (8, 16), "out_heads": (1, 8), "dropout": (0.4, 0.6)},
)
_GLCN = System(
    name="glcn",
    title="GLCN",
    module="glcn",
    config=configs.GLCNConfig,
    graph="given",
    memory=memory.edge_weights,
    needs_graph=True,
    train={"lr": 0.005, "weight_decay": 5e-4},
    space={"penalty": (0.001, 0.01, 0.1), "hidden_channels": (30, 70)},
)

_ALL = (
    _DIFFORMER,
    replace(
        _DIFFORMER,
        name="difformer-a",
        title="DIFFormer-a",
        memory=memory.tiled,
        defaults={"kernel": "sigmoid"},
    ),
    replace(
        _DIFFORMER,
        name="difformer-g",
        title="DIFFormer, graph term only",
        all_pairs=False,
        needs_graph=True,
        defaults={"kernel": "identity"},
    ),
    System(
        name="mlp",
        title="MLP",
        module="mlp",
        config=configs.MLPConfig,
        graph="none",
        memory=memory.linear,
        train={"lr": 0.01, "weight_decay": 5e-3},
        space={"hidden_channels": (16, 64, 256), "dropout": (0.2, 0.5)},
    ),
    _LP,
    _MANIREG,
    _GCN,
    _GAT,
    System(
        name="sgc",
        title="SGC",
        module="sgc",
        config=configs.SGCConfig,
        graph="given",
        memory=memory.features,
        needs_graph=True,
        train={"lr": 0.2, "weight_decay": 5e-6},
        space={"steps": (2, 4, 8)},
    ),
    replace(
        _GCN,
        name="gcn-knn",
        title="GCN-kNN",
        config=configs.GCNKNNConfig,
        graph="knn",
        needs_graph=False,
        space={"k": (5, 10, 20, 40), "hidden_channels": (16, 64, 256)},
    ),
    replace(
        _GAT,
        name="gat-knn",
        title="GAT-kNN",
        config=configs.GATKNNConfig,
        graph="knn",
        needs_graph=False,
        space={"k": (5, 10, 20, 40), "hidden_channels": (8, 16)},
    ),
    replace(
        _GAT,
        name="densegat",
        title="Dense GAT",
        module="densegat",
        graph="dense",
        memory=memory.running_sums,
        needs_graph=False,
        all_pairs=True,
        defaults={
            "hidden_channels": 16,
            "num_heads": 1,
            "dropout": 0.5,
            "attention_dropout": 0.0,
            "input_dropout": 0.5,
            "residual": True,
        },
        train={"lr": 0.01, "weight_decay": 5e-4},
        space={"hidden_channels": (8, 16), "dropout": (0.2, 0.5)},
    ),
    replace(
        _LP,
        name="lp-knn",
        title="LP-kNN",
        config=configs.LPKNNConfig,
        graph="knn",
        needs_graph=False,
        space={"k": (5, 10, 20, 40), "alpha": (0.5, 0.9, 0.99)},
    ),
    replace(
        _MANIREG,
        name="manireg-knn",
        title="ManiReg-kNN",
        config=configs.ManiRegKNNConfig,
        graph="knn",
        needs_graph=False,
        space={"k": (5, 10, 20, 40), "penalty": (0.1, 1.0, 10.0)},
    ),
    System(
        name="lds",
        title="LDS",
        module="lds",
        config=configs.LDSConfig,
        graph="given",
        memory=memory.bilevel,
        needs_graph=True,
        tasks=CLASSES,
        train={"lr": 0.01, "weight_decay": 5e-4, "epochs": 100},
        space={"theta_lr": (0.1, 1.0), "hidden_channels": (16, 32)},
    ),
    _GLCN,
    replace(
        _GLCN,
        name="glcn-knn",
        title="GLCN-kNN",
        config=configs.GLCNKNNConfig,
        graph="knn",
        needs_graph=False,
        space={"k": (5, 10, 20, 40), "penalty": (0.001, 0.01, 0.1)},
    ),
    _GRAND,
    replace(_GRAND, name="grand", title="GRAND", defaults={"nonlinear": True, "method": "euler"}),
    replace(_GRAND, name="grandpp", title="GRAND++", defaults={"source": True, "method": "euler"}),
    System(
        name="gdc",
        title="GDC",
        module="gdc",
        config=configs.GDCConfig,
        graph="given",
        memory=memory.dense_square,
        needs_graph=True,
        train=_KIPF,
        space={"alpha": (0.05, 0.1), "top_k": (64, 128), "hidden_channels": (16, 64)},
    ),
    System(
        name="graphheat",
        title="GraphHeat",
        module="heat",
        config=configs.HeatConfig,
        graph="given",
        memory=memory.linear,
        needs_graph=True,
        train=_KIPF,
        space={"scale": (1.0, 3.5, 5.0), "hidden_channels": (16, 64)},
    ),
    System(
        name="dgc",
        title="DGC-Euler",
        module="dgc",
        config=configs.DGCConfig,
        graph="given",
        memory=memory.features,
        needs_graph=True,
        train={"lr": 0.2, "weight_decay": 1e-5},
        space={"time": (3.8, 5.3, 6.0)},
    ),
    System(
        name="nodeformer",
        title="NodeFormer",
        module="nodeformer",
        config=configs.NodeFormerConfig,
        graph="given",
        all_pairs=True,
        memory=memory.gumbel,
        train={"lr": 0.001, "weight_decay": 5e-3},
        space={"hidden_channels": (32, 64), "bias_order": (1, 2), "penalty": (0.1, 1.0)},
    ),
    replace(
        _GCN,
        name="gcn-tuned",
        title="GCN (tuned)",
        defaults={
            "hidden_channels": 512,
            "num_layers": 3,
            "dropout": 0.7,
            "input_dropout": 0.0,
            "head": True,
            "scale_features": True,
        },
        train={"lr": 0.001, "weight_decay": 5e-4},
        space={
            "num_layers": (2, 3),
            "hidden_channels": (256, 512),
            "dropout": (0.5, 0.7),
            "residual": (False, True),
            "norm": (None, "batch", "layer"),
        },
    ),
    replace(
        _GAT,
        name="gat-tuned",
        title="GAT (tuned)",
        defaults={
            "hidden_channels": 512,
            "num_heads": 1,
            "num_layers": 3,
            "dropout": 0.2,
            "attention_dropout": 0.0,
            "input_dropout": 0.0,
            "residual": True,
            "head": True,
            "scale_features": True,
        },
        train={"lr": 0.001, "weight_decay": 5e-4},
        space={
            "num_layers": (2, 3),
            "hidden_channels": (256, 512),
            "dropout": (0.2, 0.5),
            "residual": (False, True),
            "norm": (None, "batch", "layer"),
        },
    ),
    System(
        name="sgformer",
        title="SGFormer",
        module="sgformer",
        config=configs.SGFormerConfig,
        graph="given",
        all_pairs=True,
        memory=memory.linear,
        needs_graph=True,
        tasks=CLASSES,
        train={"lr": 0.01, "weight_decay": 5e-4},
        defaults={"graph_layers": 4},
        space={"graph_layers": (2, 4), "graph_weight": (0.5, 0.8), "dropout": (0.2, 0.5)},
    ),
)
assert all(task in ALL_TASKS for system in _ALL for task in system.tasks)

SYSTEMS: dict[str, System] = {system.name: system for system in _ALL}

# Forecasts without a network: their features are the lags of a series, so they are no systems for
# tables, but a table of forecasts must show them.
FORECASTS: dict[str, System] = {
    name: System(
        name=name,
        title=title,
        module="naive",
        config=configs.NaiveConfig,
        graph="none",
        memory=memory.features,
        tasks=("regression",),
        defaults={"rule": rule},
        space={"ridge": (0.0, 1.0, 10.0, 100.0)} if rule in ("node", "pooled") else {},
    )
    for name, title, rule in (
        ("last-value", "last value", "last"),
        ("mean-of-lags", "mean of the lags", "mean"),
        ("node-ar", "linear AR, one a node", "node"),
        ("pooled-ar", "linear AR, one for all", "pooled"),
    )
}


def get_system(name: str) -> System:
    """The system of that name; ValueError lists the known ones.

    >>> get_system("mlp").title
    'MLP'
    """
    if name in FORECASTS:
        return FORECASTS[name]
    if name not in SYSTEMS:
        raise ValueError(f"model must be one of {', '.join(SYSTEMS)}, got {name!r}")
    return SYSTEMS[name]
