"""Jobs: everything that determines a run, complete before it starts. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.errors import RunError
from difformer.files import read_toml
from difformer.nn.config import (
    ALONE_RECIPE,
    DEFAULT_RECIPE,
    RECIPES,
    DIFFormerConfig,
)
from difformer.settings import NONE, check_keys, check_options, options_of
from difformer.systems.registry import get_system
from difformer.train.settings import TrainSettings

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset

AUTO_SPLIT = "auto"  # the split that comes with the data, else random:0
KEYS = ("dataset", "system", "recipe", "split", "seeds", "data", "model", "train")
FINGERPRINT = "fingerprint"  # of a run's data, in its config.toml; not a setting


@dataclass(frozen=True, kw_only=True)
class OwnTable:
    """The arguments of `read_table`."""

    nodes: str
    label: str | list[str]
    id: str | None = None
    edges: str | None = None
    task: str | None = None
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    header: bool | None = None  # True, but not written to the folders of runs, as before

    @property
    def name(self) -> str:
        return Path(self.nodes).name

    def read(self) -> Dataset:
        """The table as a Dataset."""
        from difformer.data.table.read import read_table

        return read_table(self.nodes, **self.options())

    def options(self) -> dict[str, Any]:
        """The options of `read_table` that are given."""
        return {k: v for k, v in asdict(self).items() if k != "nodes" and v not in (None, {})}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A system on a dataset: which split, which seeds, and the value of every option.

    Made by `Experiment.make`, which fills in missing options from the system's own defaults and the
    recipe.
    """

    dataset: str
    system: str
    recipe: str | None
    split: str
    seeds: tuple[int, ...]
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])  # see `load_data`
    model: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the system, all of them
    train: TrainSettings = field(default_factory=TrainSettings)

    @classmethod
    def make(
        cls,
        dataset: str,
        *,
        system: str = "difformer-s",
        recipe: str | None = None,
        split: str = AUTO_SPLIT,
        seeds: Sequence[int] | None = None,
        data: Mapping[str, Any] | None = None,
        model: Mapping[str, Any] | None = None,
        train: Mapping[str, Any] | None = None,
    ) -> Experiment:
        """An experiment with what is given, and every other option at its default.

        Args:
            recipe: a name in `nn.recipes.RECIPES`; None takes the default one for DIFFormer, and
                none for the other systems.
            seeds: None for ``train["seed"]`` alone.

        >>> Experiment.make("digits", system="mlp", model={"dropout": 0.1}).model["dropout"]
        0.1
        """
        kind = get_system(system)
        recipe = recipe_for(system, recipe)
        settings = RECIPES[recipe] if recipe else {}
        trained = {f.name for f in fields(TrainSettings)}
        of_model = {k: v for k, v in settings.items() if k not in trained}
        of_train = {k: v for k, v in settings.items() if k in trained}
        given = check_options(kind.config, model or {}, f"model ({system})")
        config = kind.configure(**{**of_model, **kind.defaults, **given})
        loop = check_options(TrainSettings, train or {}, "train")
        train_settings = TrainSettings(**{**kind.train, **of_train, **loop})
        return cls(
            dataset=dataset,
            system=system,
            recipe=recipe,
            split=split,
            seeds=(train_settings.seed,) if seeds is None else _checked_seeds(seeds),
            data=dict(data or {}),
            model={f.name: getattr(config, f.name) for f in fields(kind.config)},
            train=train_settings,
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str = "the config") -> Experiment:
        """The experiment described by a config.toml, a run's own or a hand-written one."""
        check_keys(config, KEYS, where)
        if "dataset" not in config:
            raise ValueError(f'{where} must name a dataset: dataset = "cora"')
        sections: dict[str, Any] = {**config, "train": complete(config.get("train", {}))}
        return cls.make(**sections)

    def config(self) -> dict[str, Any]:
        """What config.toml holds beside the training settings; None is written as "none".

        The seeds are left out: a folder of three seeds may be continued to five.
        """
        model = {k: NONE if v is None else v for k, v in self.model.items()}
        found: dict[str, Any] = {"dataset": self.dataset, "system": self.system}
        found |= {"recipe": self.recipe} if self.recipe else {}
        found |= {"split": self.split}
        return found | ({"data": dict(self.data)} if self.data else {}) | {"model": model}

    @property
    def title(self) -> str:
        """One short line for a progress bar."""
        return f"{get_system(self.system).title} on {self.dataset}"


def recipe_for(system: str, recipe: str | None, *, graph: bool = True) -> str | None:
    """The recipe of a system: the named one, or DIFFormer's default with or without a graph."""
    takes = issubclass(get_system(system).config, DIFFormerConfig)
    if recipe is None:
        return (DEFAULT_RECIPE if graph else ALONE_RECIPE) if takes else None
    if recipe not in RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, got {recipe!r}")
    if not takes:
        raise ValueError(f"recipe must be left out for {system}: recipes are DIFFormer's")
    return recipe


def complete(train: Mapping[str, Any]) -> dict[str, Any]:
    """The training settings of a run's own config.toml, in which a missing key means none.

    A run writes all its settings, but TOML has no None. So in a section with every key that cannot
    be none, the missing ones are none, not their default.
    """
    options = options_of(TrainSettings)
    whole = all(name in train or option.optional for name, option in options.items())
    return {**({n: NONE for n, o in options.items() if o.optional} if whole else {}), **train}


def read_config_file(path: Path) -> dict[str, Any]:
    """A config file as nested dicts, its keys and option names checked."""
    try:
        config = read_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunError(f"cannot read the config {path}: {reason}") from error
    config.pop(FINGERPRINT, None)
    check_keys(config, KEYS, str(path))
    for name in ("data", "model", "train"):
        if not isinstance(config.get(name, {}), dict):
            raise ValueError(f"{path}: {name} must be a section, [{name}], got {config[name]!r}")
    config["train"] = complete(config.get("train", {}))
    check_options(TrainSettings, config["train"], f"{path} [train]")
    return config


def _checked_seeds(seeds: Any) -> tuple[int, ...]:
    found = tuple(seeds) if isinstance(seeds, list | tuple | range) else ()
    if (
        not found
        or len(set(found)) != len(found)
        or any(type(s) is not int or s < 0 for s in found)
    ):
        raise ValueError(f"seeds must be one or more different whole numbers, got {seeds!r}")
    return found
