"""System: a named way to go from data to a trainable model, and what it costs. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, make_dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from difformer.settings import COUNT, RATE, Options, option

if TYPE_CHECKING:
    from torch import nn

    from difformer.data.dataset import Dataset


GraphKind = Literal["given", "knn", "dense", "none"]
UNTRAINED = ("seed", "device", "threads", "checkpoint_every")
"""The options of the training loop that systems use which it does not train."""
OURS = "difformer.systems.difformer"  # the module of the model that all of our systems share
FLOAT = 4  # bytes
ALL_TASKS = ("multiclass", "multilabel", "regression")


class Config(Options):
    """Options of a system, and a rough estimate of what a training step with them takes."""

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """How many numbers of 4 bytes, for n rows, e directed edges, p features and c outputs.

        As it stands: states kept for the backward pass, a sparse adjacency, first weights with
        Adam's moments.
        """
        width, heads = getattr(self, "hidden_channels", 16), getattr(self, "num_heads", 1)
        layers = getattr(self, "num_layers", 2)
        return 4 * n * width * heads * layers + 5 * e + 4 * p * width * heads


@dataclass(frozen=True, kw_only=True)
class Neighbours(Options):
    """Options of the kNN graph, which validation can choose like those of a model."""

    k: int = option(10, "neighbours per row in the kNN graph, which is then made undirected", COUNT)
    metric: str = option("cosine", "distance between features", ("cosine", "euclidean"))
    mutual: bool = option(False, "join two rows only if each is among the other's nearest")
    weights: str = option("uniform", "weights of the edges", ("uniform", "similarity"))


@dataclass(frozen=True)
class System:
    """What the experiments need to know about a method; no code depends on its name.

    Args:
        name: what the command line calls it.
        title: what a table calls it.
        model: "module.callable", dotted, called as (in_channels, out_channels, config) when
            a model is built.
        config: a frozen keyword-only dataclass type: every option, its default and help.
        graph: the graph it takes: the data's own ("given"), neighbours by features ("knn"), every
            pair ("dense"), or "none".
        needs_graph: cannot run without the data's own graph.
        all_pairs: every row may depend on every other.
        tasks: the tasks it can learn.
        package, extra: a package it needs beyond the dependencies, and the extra that installs it.
        defaults: values of `config` that differ from the dataclass's defaults.
        train: values of `TrainSettings` that differ from its defaults; empty if nothing is trained.
        space: option -> values worth trying, beyond the learning rate and weight decay.
        numbers: what a table calls it where it predicts numbers; `title` where empty.
    """

    name: str
    title: str
    model: str
    config: type[Config]
    _: KW_ONLY
    graph: GraphKind = "given"
    needs_graph: bool = False
    all_pairs: bool = False
    tasks: tuple[str, ...] = ALL_TASKS
    package: str | None = None
    extra: str = "all"
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    train: Mapping[str, Any] = field(default_factory=dict[str, Any])
    space: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    numbers: str = ""

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
            config=make_dataclass(
                f"{self.config.__name__}KNN",
                (),
                bases=(self.config, Neighbours),
                frozen=True,
                kw_only=True,
            ),
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
        module, _, name = self.model.rpartition(".")
        return getattr(import_module(module), name)(in_channels, out_channels, config)

    def needs(self, dataset: Dataset) -> str | None:
        """Why it cannot run on this kind of data, or None."""
        if self.needs_graph and not dataset.num_edges:
            return "needs a graph, the data has none"
        if dataset.task not in self.tasks:
            return f"learns {' and '.join(self.tasks)} only, the data is {dataset.task}"
        if self.package is not None and find_spec(self.package) is None:
            return f"needs {self.package}: pip install 'difformer[{self.extra}]'"
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
        return int(FLOAT * config.numbers(n, edges, dataset.num_features, dataset.num_outputs))


CLASSES = ("multiclass",)
LABELS = ("multiclass", "multilabel")
KIPF = {"lr": 0.01, "weight_decay": 5e-4}  # how Kipf and Welling train a GCN
SCALE = "divide the features by the mean size of their entries that are not zero"


@dataclass(frozen=True, kw_only=True)
class Width(Config):
    """A network on states of one width."""

    hidden_channels: int = option(64, "width of the hidden states", COUNT)
    dropout: float = option(0.5, "dropout on the hidden states", RATE)
    input_dropout: float = option(0.5, "dropout on the input features", RATE)


@dataclass(frozen=True, kw_only=True)
class Stack(Width):
    """Several layers of one width."""

    num_layers: int = option(2, "number of layers", COUNT)


@dataclass(frozen=True, kw_only=True)
class NormedStack(Stack):
    """Layers with a normalisation between them."""

    norm: str | None = option(None, "normalisation between layers", ("batch", "layer"))


@dataclass(frozen=True, kw_only=True)
class Perceptron(NormedStack):
    """A perceptron on each row's features."""

    standardise: bool = option(False, "give dense columns mean 0 and deviation 1, by all rows")


@dataclass(frozen=True, kw_only=True)
class Convolutions(NormedStack):
    """Convolutions, with what makes classic graph networks strong."""

    residual: bool = option(False, "add a linear map of each layer's input to its output")
    head: bool = option(False, "end with a linear layer rather than with a convolution")
    scale_features: bool = option(False, SCALE)


@dataclass(frozen=True, kw_only=True)
class GATConfig(Convolutions):
    """Graph attention; `hidden_channels` is the width of one head."""

    num_heads: int = option(8, "heads of the hidden layers, concatenated", COUNT)
    out_heads: int = option(1, "heads of the last layer, averaged", COUNT)
    attention_dropout: float = option(0.6, "dropout on the attention weights", RATE)

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """Scores and weights per edge, head and layer, and both ends as int64; no message."""
        layers = self.num_layers - (not self.head)
        heads = self.num_heads * layers + (0 if self.head else self.out_heads)
        return super().numbers(n, e, p, c) + e * (7 * heads + 4)
