"""What holds of every system: it runs, it learns, it says what it costs and why it cannot run."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from difformer.data.dataset import Dataset
from difformer.data.registry import load_dataset
from difformer.data.split import Split
from difformer.jobs.rows import graph_for
from difformer.nn.config import RECIPES
from difformer.systems.registry import SYSTEMS, get_system
from difformer.systems.system import OURS
from difformer.train.batches import FullBatch, predict
from difformer.train.objective import objective_for
from difformer.train.settings import TrainSettings
from tests.systems.small import SMALL, build, run

NAMES = list(SYSTEMS)
LIGHT: dict[str, dict[str, Any]] = {
    "gcn-tuned": {"hidden_channels": 64, "num_layers": 2, "dropout": 0.2},
    "gat-tuned": {"hidden_channels": 32, "num_layers": 2},
    "sgformer": {"dropout": 0.0, "input_dropout": 0.0, "graph_weight": 0.9},
    "glcn": {"dropout": 0.2, "input_dropout": 0.2},
    "glcn-knn": {"dropout": 0.0, "input_dropout": 0.0},
    "nodeformer": {"gumbels": 2, "num_heads": 1},
    "grand-l": {"time": 3.0, "method": "euler", "dropout": 0.2, "input_dropout": 0.2},
    "grand": {"time": 3.0, "dropout": 0.2, "input_dropout": 0.2},
    "grandpp": {"time": 3.0, "dropout": 0.2, "input_dropout": 0.2},
    "difformer-s": RECIPES["stable"] | {"num_layers": 2, "dropout": 0.2, "input_dropout": 0.2},
    "difformer-a": RECIPES["stable"] | {"num_layers": 1, "dropout": 0.2, "input_dropout": 0.2},
    "difformer-sharp": RECIPES["stable"] | {"num_layers": 2, "input_dropout": 0.2},
    "difformer-g": RECIPES["stable"] | {"num_layers": 2, "dropout": 0.2, "input_dropout": 0.2},
    "lds": {"inner_steps": 15, "samples": 1},
    "dgc": {"steps": 10},
    "gdc": {"top_k": 32},
    "densegat": {"dropout": 0.0, "input_dropout": 0.0},
    "boosting": {"iterations": 20, "max_leaf_nodes": 7, "min_samples_leaf": 2},
    "forest": {"trees": 100},
    "knn": {"k": 15},
    "label-spreading": {"k": 15, "alpha": 0.9},
}
EPOCHS = {"lds": 2, "nodeformer": 25, "manireg": 25, "gat-tuned": 15, "difformer-a": 10}


@pytest.mark.parametrize("name", NAMES)
def test_learns_cora_far_above_chance(name: str) -> None:
    cora, lr = load_dataset("cora"), 0.01 if name == "nodeformer" else 0.05
    train = {"epochs": EPOCHS.get(name, 20), "eval_every": 5, "lr": lr}
    _, result, _ = run(name, cora, cora.split("public"), train=train, **LIGHT.get(name, {}))
    assert result.metrics["test"]["accuracy"] > 0.5  # the largest class has a share of 0.30


# The default scales dense columns and sparse rows: they are not the same data to it.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "difformer"])
def test_sparse_features_give_what_dense_ones_do(name: str) -> None:
    known = [f.name for f in fields(get_system(name).config)]
    options: dict[str, Any] = {option: 0.0 for option in known if option.endswith("dropout")}
    options |= {k: v for k, v in {"gumbels": 0}.items() if name == "nodeformer"}
    fitted = get_system(name).module.endswith("fitted")  # "auto" would scale by the layout
    options |= {"scale": "unit"} if fitted and "scale" in known else {}
    outputs: list[Tensor] = []
    sparse = replace(SMALL, x=SMALL.x.to_sparse_csr())
    for dataset in (SMALL, sparse):
        model, batch = prepared(name, dataset, **options)
        model.eval()
        with torch.no_grad():
            outputs.append(predict(model, batch).output)
    torch.testing.assert_close(outputs[0], outputs[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_gradient_or_there_are_none(name: str) -> None:
    model, batch = prepared(name, SMALL)
    if name == "lds" or not list(model.parameters()):
        return  # its own step; nothing to train
    prediction = predict(model.train(), batch)
    loss = objective_for("multiclass").loss(prediction.output, batch)
    (loss if prediction.penalty is None else loss + prediction.penalty).backward()
    unused = [n for n, p in model.named_parameters() if p.grad is None]
    assert unused == []
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", [n for n in NAMES if SYSTEMS[n].needs_graph])
def test_says_what_it_needs_where_there_is_no_graph(name: str) -> None:
    bare = replace(SMALL, edge_index=None)
    assert "needs a graph" in str(get_system(name).needs(bare))
    if SYSTEMS[name].module == OURS:
        return  # the model runs without a graph; only a row named after its graph term cannot
    model, _ = prepared(name, SMALL)
    model.train()
    with pytest.raises(ValueError, match="edge_index must be given|observe"):
        model(bare.x[:10])


def test_options_of_the_neighbours_graph_reach_it() -> None:
    system = get_system("gcn-knn")
    plain, mutual, weighed = (
        graph_for(system, system.configure(**{"k": 4, **options}), SMALL)
        for options in ({}, {"mutual": True}, {"weights": "similarity"})
    )
    assert plain is not None
    assert mutual is not None
    assert weighed is not None
    assert mutual.num_edges < plain.num_edges == weighed.num_edges
    assert plain.edge_weight is None
    assert weighed.edge_weight is not None
    assert float(weighed.edge_weight.min()) < 1


def test_an_unknown_name_or_option_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="model must be one of .*gcn.*, got 'gnc'"):
        get_system("gnc")
    with pytest.raises(ValueError, match="gcn takes no option 'hidden'; its options: .*hidden_ch"):
        get_system("gcn").configure(hidden=3)
    with pytest.raises(ValueError, match="norm must be one of batch, layer or None, got 'group'"):
        get_system("gcn").configure(norm="group")


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_number_of_a_system_has_a_rule(name: str) -> None:
    """A bad one is refused when it is given, not by a library when the model is trained."""
    system = SYSTEMS[name]
    for option in fields(system.config):
        if re.search("int|float", str(option.type)) and option.name != "edge_bias":
            for wrong in (-1, float("nan"), "many"):
                with pytest.raises(ValueError, match=f"^{option.name} must .*, got {wrong!r}$"):
                    system.configure(**{option.name: wrong})


def test_a_task_a_system_cannot_learn_is_named() -> None:
    numbers = replace(SMALL, y=SMALL.y.float(), task="regression", class_names=())
    assert get_system("lds").needs(numbers) == "learns multiclass only, the data is regression"
    assert get_system("gcn").needs(numbers) is None


def test_every_option_has_help_and_every_space_names_options() -> None:
    for system in SYSTEMS.values():
        known = {f.name: f for f in fields(system.config)}
        assert all(f.metadata["help"] for f in known.values()), system.name
        assert set(system.space) <= set(known), system.name
        assert set(system.train) <= {f.name for f in fields(TrainSettings)}, system.name


LIBRARY_FREE = ("mlp", "manireg", "sgc", "dgc", "appnp", "nodeformer", "lds", "graphheat")


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        (
            "from difformer.systems.registry import SYSTEMS\n"
            "[s.configure() for s in SYSTEMS.values()]",
            "torch",
        ),
        (
            f"import {', '.join({get_system(n).module for n in (*LIBRARY_FREE, 'difformer')})}",
            "torch_geometric",
        ),
    ],
)
def test_systems_import_no_more_than_they_need(code: str, unwanted: str) -> None:
    words = [sys.executable, "-c", f"{code}\nimport sys; print({unwanted!r} in sys.modules)"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# Without a gradient step of the loop, or with work before the first step that is not kept.
ONCE = {"lp", "lp-knn", "lds", "sgc", "dgc", "gdc"}


@pytest.mark.parametrize("name", [n for n in NAMES if SYSTEMS[n].trained and n not in ONCE])
def test_an_estimate_covers_what_a_step_keeps_and_is_not_far_above_it(name: str) -> None:
    """Of the bytes that autograd keeps for the backward pass, with many edges per row."""
    draw = torch.Generator().manual_seed(0)
    half = torch.randint(1000, (2, 40_000), generator=draw)
    x, y = torch.randn(1000, 20, generator=draw), torch.arange(1000) % 4
    edges = torch.cat([half, half.flip(0)], 1)
    data = Dataset("crowded", x, y, edge_index=edges, class_names=tuple("abcd"))
    model, batch = prepared(name, data)
    kept: dict[int, tuple[int, Tensor]] = {}  # the tensor too: its address must not be used again

    def pack(tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        objective_for("multiclass").loss(predict(model.train(), batch).output, batch)
    system, bytes_kept = get_system(name), sum(size for size, _ in kept.values())
    estimate = system.bytes_needed(data, system.configure())
    inputs = 4 * data.x.numel() + 20 * (data.num_edges + data.num_rows)
    assert bytes_kept <= estimate <= 4 * (bytes_kept + inputs)


def test_estimates_grow_with_the_rows_and_allow_large_graphs() -> None:
    for system in SYSTEMS.values():
        small, large = (cost(system.name, n, 10 * n, 50, 5) for n in (1000, 10_000))
        assert 5 * small < large, system.name
    for name in ("densegat", "lds", "gdc"):  # look at all pairs and keep a few
        assert 4 * cost(name, 100_000, 10**6, 100, 5) < 5e9
    pokec = (1_632_803, 30_622_564 + 1_632_803, 65, 2)
    assert 4 * cost("gat", *pokec) < 16 * 2**30  # no message is made


def cost(name: str, *sizes: int) -> float:
    system = get_system(name)
    return system.cost(system.configure(), *sizes)


def prepared(name: str, dataset: Dataset, **options: Any) -> tuple[torch.nn.Module, Any]:
    system, model = get_system(name), build(name, dataset, seed=1, **options).train()
    n = dataset.num_rows
    split = Split("all", *torch.arange(n).split([n // 2, n - n // 2 - 5, 5]))
    graph = graph_for(system, system.configure(**options), dataset)
    batch = FullBatch(dataset, split, graph).observed()
    if hasattr(model, "observe"):
        model.observe(batch)
    return model, batch
