"""What decides a run: defaults, recipes, what is given, and back from a config."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from difformer.jobs.job import Experiment, read_config_file
from difformer.nn.config import DEFAULT_RECIPE, RECIPES
from difformer.systems.registry import SYSTEMS
from difformer.train.folder import plain


def test_difformer_takes_its_default_recipe_and_what_is_given_wins() -> None:
    experiment = Experiment.make("cora", model={"tau": 0.25})
    assert experiment.recipe == DEFAULT_RECIPE
    assert experiment.model["tau"] == 0.25
    others = {k: v for k, v in RECIPES[DEFAULT_RECIPE].items() if k != "tau"}
    assert {k: experiment.model[k] for k in others} == others
    s, a = (Experiment.make("cora", system=f"difformer-{x}").model for x in "sa")
    assert {k for k in s if s[k] != a[k]} == {"kernel"}


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_an_experiment_that_survives_its_config_file(
    name: str, tmp_path: Path
) -> None:
    experiment = Experiment.make("cora", system=name, split="random:1", train={"patience": "none"})
    written = plain({**experiment.config(), "train": asdict(experiment.train)})
    file = tmp_path / "config.toml"
    file.write_text(tomli_w.dumps(written), encoding="utf-8")
    assert Experiment.make(**read_config_file(file)) == experiment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("datset = 'cora'", r"no key 'datset' \(did you mean 'dataset'\?\)"),
        ("dataset = 'cora'\n[train]\nepoch = 3", r"\[train\] has no key 'epoch'"),
        ("dataset = 'cora'\n[train]\nepochs = 'many'", "epochs must be a whole number"),
        ("dataset = 'cora'\nmodel = 3", r"model must be a section"),
    ],
)
def test_a_config_file_with_an_unknown_key_or_a_wrong_value_is_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_config_file(file)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"system": "mlp", "model": {"tao": 0.1}}, r"model \(mlp\) has no key 'tao'"),
        ({"system": "mlp", "recipe": "paper"}, "recipe must be left out for mlp"),
        ({"recipe": "stabel"}, "recipe must be one of .*stable.*, got 'stabel'"),
        *(({"seeds": seeds}, "seeds must be") for seeds in ([], [1, 1], [-1], ["0"], 3)),
    ],
)
def test_an_option_that_is_none_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Experiment.make("cora", **options)
