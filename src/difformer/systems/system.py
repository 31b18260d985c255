"""System: a named way to go from data to a trained model, and what it costs. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, make_dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from difformer.settings import COUNT, RATE, Options, option

if TYPE_CHECKING:
    from torch import nn

    from difformer.data.dataset import Dataset


UNTRAINED = ("seed", "device", "threads", "checkpoint_every")
"""The options of the training loop that systems use which it does not train."""
OURS = "difformer.systems.difformer"  # the module of the model that all of our systems share
FLOAT = 4  # bytes
EXTRAS = {"torch_geometric": "gnn", "torchdiffeq": "paper"}  # what installs a package
ALL_TASKS = ("multiclass", "multilabel", "regression")
CLASSES = ("multiclass",)
LABELS = ("multiclass", "multilabel")
ONE_ANSWER = ("multiclass", "regression")


def settings(*groups: Mapping[str, Any], base: type[Options] = Options, **own: Any) -> Any:
    """A settings class of these options, in this order, after those of `base`.

    An option is of the type of its default; one without is of text if it has choices, else a
    number.
    """
    named = {name: each for group in (*groups, own) for name, each in group.items()}
    kinds: list[tuple[str, Any, Any]] = []
    for name, each in named.items():
        none = "str | None" if each.metadata["choices"] else "float | None"
        kinds.append((name, none if each.default is None else type(each.default), each))
    return make_dataclass("Settings", kinds, bases=(base,), frozen=True, kw_only=True)


def keep_states(config: Any, n: int, e: int, p: int, c: int) -> float:
    """How many numbers of 4 bytes, for n rows, e directed edges, p features and c outputs.

    States kept for the backward pass, a sparse adjacency, first weights with Adam's moments.
    """
    width, heads = getattr(config, "hidden_channels", 16), getattr(config, "num_heads", 1)
    layers = getattr(config, "num_layers", 2)
    return 4 * n * width * heads * layers + 5 * e + 4 * p * width * heads


@dataclass(frozen=True)
class System:
    """What the experiments need to know about a method; no code depends on its name.

    Args:
        name: what the command line calls it.
        title: what a table calls it.
        model: "module.callable", dotted, called as (in_channels, out_channels, config) when
            a model is built.
        config: every option, its default and help: see `settings`.
        graph: the graph it takes: the data's own ("given"), neighbours by features ("knn"), every
            pair ("dense"), or "none".
        needs_graph: cannot run without the data's own graph.
        all_pairs: every row may depend on every other.
        tasks: the tasks it can learn.
        package: one that it needs beyond the dependencies.
        defaults: values of `config` that differ from its defaults.
        train: values of `TrainSettings` that differ from its defaults; empty if nothing is trained.
        space: option -> values worth trying, beyond the learning rate and weight decay.
        numbers: what a table calls it where it predicts numbers; `title` where empty.
        cost: a rough estimate of what a training step keeps, see `keep_states`.
    """

    name: str
    title: str
    model: str
    config: type[Options]
    _: KW_ONLY
    graph: Literal["given", "knn", "dense", "none"] = "given"
    needs_graph: bool = False
    all_pairs: bool = False
    tasks: tuple[str, ...] = ALL_TASKS
    package: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    train: Mapping[str, Any] = field(default_factory=dict[str, Any])
    space: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    numbers: str = ""
    cost: Callable[[Any, int, int, int, int], float] = keep_states

    def title_for(self, task: str) -> str:
        """What a table calls it for a task."""
        return (self.numbers or self.title) if task == "regression" else self.title

    @property
    def module(self) -> str:
        """The module of its model, which several systems may share."""
        return self.model.rpartition(".")[0]

    @property
    def trained(self) -> bool:
        """Whether the training loop trains it; a library fits the others."""
        return bool(self.train)

    def uses(self, name: str) -> bool:
        """Whether it uses an option of the training loop."""
        return self.trained or name in UNTRAINED

    def on_neighbours(self, *search: str) -> System:
        """The same model on the kNN graph; `search` names what to tune besides k."""
        return replace(
            self,
            name=f"{self.name}-knn",
            title=f"{self.title}-kNN",
            config=settings(NEIGHBOURS, self.config.__dataclass_fields__),
            graph="knn",
            needs_graph=False,
            space={
                "k": (5, 10, 20, 40),
                "metric": ("cosine", "euclidean"),
                "mutual": (False, True),
                **{name: self.space[name] for name in search},
            },
        )

    def configure(self, **options: Any) -> Any:
        """This system's config with these options; ValueError names a wrong one."""
        known = self.config.names()
        for name in options:
            if name not in known:
                raise ValueError(
                    f"{self.name} takes no option {name!r}; its options: {', '.join(known)}"
                )
        return self.config(**{**self.defaults, **options})

    def build(self, config: Any, in_channels: int, out_channels: int) -> nn.Module:
        """The model, with weights drawn from torch's global generator."""
        build = getattr(import_module(self.module), self.model.rpartition(".")[2])
        return build(in_channels, out_channels, config)

    def needs(self, dataset: Dataset) -> str | None:
        """Why it cannot run on this kind of data, or None."""
        if self.needs_graph and not dataset.num_edges:
            return "needs a graph, the data has none"
        if dataset.task not in self.tasks:
            return f"learns {' and '.join(self.tasks)} only, the data is {dataset.task}"
        if self.package is not None and find_spec(self.package) is None:
            extra = EXTRAS.get(self.package, "all")
            return f"needs {self.package}: pip install 'difformer[{extra}]'"
        return None

    def bytes_needed(self, dataset: Dataset, config: Any) -> int:
        """A rough estimate of the memory of one training step on this data, in bytes."""
        n = dataset.num_rows
        edges = {
            "none": 0,
            "dense": 0,
            "knn": 2 * n * min(getattr(config, "k", 0), n),
            "given": dataset.num_edges + n if dataset.num_edges else 0,
        }[self.graph]
        return int(FLOAT * self.cost(config, n, edges, dataset.num_features, dataset.num_outputs))


# Options that several systems share.
NEIGHBOURS: dict[str, Any] = {
    "k": option(10, "neighbours per row in the kNN graph, which is then made undirected", COUNT),
    "metric": option("cosine", "distance between features", ("cosine", "euclidean")),
    "mutual": option(False, "join two rows only if each is among the other's nearest"),
    "weights": option("uniform", "weights of the edges", ("uniform", "similarity")),
}
WIDTH: dict[str, Any] = {
    "hidden_channels": option(64, "width of the hidden states", COUNT),
    "dropout": option(0.5, "dropout on the hidden states", RATE),
    "input_dropout": option(0.5, "dropout on the input features", RATE),
}
STACK = WIDTH | {"num_layers": option(2, "number of layers", COUNT)}
NORM = {"norm": option(None, "normalisation between layers", ("batch", "layer"))}
PERCEPTRON = (STACK | NORM) | {
    "standardise": option(False, "give dense columns mean 0 and deviation 1, by all rows")
}
SCALE = "divide the features by the mean size of their entries that are not zero"
# With what makes classic graph networks strong.
CONVOLUTIONS = (STACK | NORM) | {
    "residual": option(False, "add a linear map of each layer's input to its output"),
    "head": option(False, "end with a linear layer rather than with a convolution"),
    "scale_features": option(False, SCALE),
}
ATTENTION = CONVOLUTIONS | {
    "num_heads": option(8, "heads of the hidden layers, concatenated", COUNT),
    "out_heads": option(1, "heads of the last layer, averaged", COUNT),
    "attention_dropout": option(0.6, "dropout on the attention weights", RATE),
}
KIPF = {"lr": 0.01, "weight_decay": 5e-4}  # how Kipf and Welling train a GCN
SLOW = {"lr": 0.01, "weight_decay": 5e-3}
