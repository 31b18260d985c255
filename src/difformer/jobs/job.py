"""Jobs: everything that determines a run, complete before it starts. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from difformer.errors import RunError
from difformer.files import read_toml, reason_of
from difformer.nn.config import ALONE_RECIPE, DEFAULT_RECIPE, RECIPES, DIFFormerConfig
from difformer.settings import NONE, check_keys, check_options, options_of
from difformer.systems.registry import get_system
from difformer.train.settings import TrainSettings

AUTO_SPLIT = "auto"  # the split that comes with the data, else random:0
KEYS = ("dataset", "system", "recipe", "split", "seeds", "data", "model", "train")
FINGERPRINT = "fingerprint"  # of a run's data, in its config.toml; not a setting


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
    data: Mapping[str, Any]  # see `load_data`
    model: Mapping[str, Any]  # of the system, all of them
    train: TrainSettings

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
        of_model, of_train = dict(RECIPES[recipe] if recipe else {}), dict(kind.train)
        for name in of_model.keys() & options_of(TrainSettings).keys():
            of_train[name] = of_model.pop(name)
        of_model |= kind.defaults
        of_model |= check_options(kind.config, model or {}, f"model ({system})")
        of_train |= check_options(TrainSettings, train or {}, "train")
        config, loop = kind.configure(**of_model), TrainSettings(**of_train)
        return cls(
            dataset=dataset,
            system=system,
            recipe=recipe,
            split=split,
            seeds=(loop.seed,) if seeds is None else _checked_seeds(seeds),
            data=dict(data or {}),
            model={name: getattr(config, name) for name in kind.config.names()},
            train=loop,
        )

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
    optional = {name for name, option in options_of(TrainSettings).items() if option.optional}
    whole = options_of(TrainSettings).keys() <= train.keys() | optional
    return {**(dict.fromkeys(optional, NONE) if whole else {}), **train}


def read_config_file(path: Path) -> dict[str, Any]:
    """A config file as the arguments of `Experiment.make`, its keys and option names checked."""
    try:
        config = read_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read the config {path}: {reason_of(error)}") from error
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
