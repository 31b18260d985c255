"""Published tables as data: settings, splits, seeds and the published figure of every cell.

A spec is a TOML file in `specs/`. Its rows are systems, its columns datasets; a *variant* is a
named set of settings, a *protocol* a kind of split with its seeds. A cell is one of each. Rules
(`[[cells]]`) set what differs for some of them, a later rule over an earlier one:

    title, note, metric ("accuracy"), percent (true: figures in per cent),
    beside (another metric, its mean in brackets after each figure),
    budget (the most settings that a search by validation tries for a cell; a rule may change it)
    systems = ["mlp", ...]                        the rows, in order
    [columns.cora]      title, dataset (the column's name unless given), data = {load options},
                        metric (the table's unless given)
    [protocols.random]  title, splits = [...], seeds = [...]: every split with every seed
    [variants.stable]   title, systems, recipe, model = {...}, train = {...},
                        grid = {tau = [0.1, 0.5]}: one variant for each combination,
                        choose = {lr = [0.01, 0.05]}: what `choose.py` picks by validation,
                        lowest = "other": the variant at the settings of the lowest error
    [published.mlp]     cora = [56.1, 1.6]        mean and deviation, or "out of memory"
    [[cells]]           systems, columns, variants, protocols: which (default: all); then any of
                        data, model, train, choose, budget, splits, seeds, note,
                        skip = "the reason"
    [reasons]           mlp = "why its figures are below the published ones, or missing"

No torch here: `difformer reproduce --help` lists the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import product
from typing import Any

from difformer.data.registry import DATASETS
from difformer.files import natural, read_toml
from difformer.jobs.job import Experiment
from difformer.metrics import METRICS
from difformer.settings import check_keys
from difformer.systems.registry import FORECASTS, SYSTEMS

Published = tuple[float, float | None] | str
Named = Mapping[str, Mapping[str, Any]]
SELECTORS = ("systems", "columns", "variants", "protocols")
CHANGES = ("data", "model", "train", "choose", "budget", "splits", "seeds", "note", "skip")
NEEDED = ("title", "metric", "systems", "columns", "protocols", "variants")
PLAIN = ("title", "note", "metric", "beside", "percent", "budget", "reasons")
PARTS = {
    "columns": ("title", "dataset", "data", "metric"),
    "protocols": ("title", "splits", "seeds"),
    "variants": ("title", "systems", "recipe", "model", "train", "grid", "choose", "lowest"),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One figure to measure: a system and its settings on a column by a protocol."""

    system: str
    column: str
    variant: str
    protocol: str
    dataset: str
    splits: tuple[str, ...]
    seeds: tuple[int, ...]
    recipe: str | None
    lowest: str | None
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    train: Mapping[str, Any]
    choose: Mapping[str, Sequence[Any]]
    budget: int | None
    note: str | None = None
    skip: str | None = None

    @property
    def name(self) -> str:
        """Unique in its table, and the name of its result file."""
        return f"{self.column}.{self.system}.{self.variant}.{self.protocol}"

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Split and seed of every run."""
        return list(product(self.splits, self.seeds))

    def experiments(self) -> list[Experiment]:
        """One experiment per split, each with all the seeds."""
        how: dict[str, Any] = {"data": self.data, "model": self.model, "train": self.train}
        how |= {"system": self.system, "recipe": self.recipe, "seeds": self.seeds}
        return [Experiment.make(self.dataset, split=split, **how) for split in self.splits]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One published table or figure; its columns, protocols and variants as in its file.

    Each of them has a title, a column also its dataset, and a variant, which is one point of its
    grid, the options of that point as `varied`: no rule overrides them.
    """

    name: str
    title: str
    metric: str
    systems: tuple[str, ...]
    columns: Named
    protocols: Named
    variants: Named
    published: Mapping[str, Mapping[str, Published]]
    rules: Sequence[Mapping[str, Any]]
    note: str = ""
    beside: str | None = None
    percent: bool = False
    budget: int | None = None
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])

    def cells(self, **names: Sequence[str] | None) -> list[Cell]:
        """The chosen cells, column by column; None chooses all. ValueError for an unknown name.

        Args:
            names: of the systems, columns, variants and protocols.
        """
        chosen: list[list[str]] = []
        for key, told in zip(SELECTORS, ("models", "datasets", *SELECTORS[2:]), strict=True):
            known, wanted = list(getattr(self, key)), names.get(key)
            _known(told, wanted or (), known)
            chosen.append([name for name in known if wanted is None or name in wanted])
        systems, columns, *others = chosen
        return [
            self._cell(system, column, variant, protocol)
            for column, system, variant, protocol in product(columns, systems, *others)
            if system in self.variants[variant]["systems"]
        ]

    @property
    def unit(self) -> tuple[int, int]:
        """What figures are multiplied by, and their decimals."""
        return (100, 1) if self.percent else (1, 3)

    def sign(self, column: str) -> int:
        """1 if a higher figure is better in a column, else −1."""
        return METRICS[self.metric_of(column)].better

    def shown(self, value: float) -> str:
        """A figure as text, in the unit of the table."""
        scale, digits = self.unit
        return f"{value * scale:.{digits}f}" if value < 100 else f"{value:,.0f}"

    def metric_of(self, column: str) -> str:
        """The metric shown for a column."""
        return self.columns.get(column, {}).get("metric") or self.metric

    def _cell(self, system: str, column: str, variant: str, protocol: str) -> Cell:
        where, how, runs = self.columns[column], self.variants[variant], self.protocols[protocol]
        names = dict(zip(SELECTORS, (system, column, variant, protocol), strict=True))
        cell = Cell(
            system=system,
            column=column,
            variant=variant,
            protocol=protocol,
            dataset=where["dataset"],
            data=where.get("data", {}),
            splits=tuple(runs["splits"]),
            seeds=tuple(runs["seeds"]),
            recipe=how.get("recipe"),
            lowest=how.get("lowest"),
            model=how.get("model", {}),
            train=how.get("train", {}),
            choose=how.get("choose", {}),
            budget=self.budget,
        )
        for rule in self.rules:
            if all(name in rule.get(key, (name,)) for key, name in names.items()):
                changed = {key: rule[key] for key in CHANGES if key in rule}
                for key, value in changed.items():
                    if isinstance(value, dict):
                        changed[key] = {**getattr(cell, key), **value}
                    elif isinstance(value, list):
                        changed[key] = tuple(value)
                cell = replace(cell, **changed)
        return replace(cell, model={**cell.model, **how["varied"]})


def list_specs() -> list[str]:
    """The names of all specs."""
    found = [p.name.removesuffix(".toml") for p in _folder().iterdir() if p.name.endswith(".toml")]
    return sorted(found, key=natural)


def load_spec(name: str) -> Spec:
    """The spec of that name; ValueError lists the known ones."""
    _known("table", [name], list_specs(), "one of")
    return parse_spec(name, (_folder() / f"{name}.toml").read_text(encoding="utf-8"))


def parse_spec(name: str, text: str) -> Spec:
    """A spec from TOML text; ValueError names the unknown key or the wrong value.

    Every cell is made once, so that a wrong setting is found here and not hours into a run.
    """
    try:
        content = read_toml(text)
    except ValueError as error:
        raise ValueError(f"spec {name} is not TOML: {error}") from error
    check_keys(content, dict.fromkeys((*PLAIN, *NEEDED, "published", "cells")), f"spec {name}")
    for key in NEEDED:
        if not content.get(key):
            raise ValueError(f"spec {name} must give {key}")
    systems = tuple(content["systems"])
    _known(f"spec {name}: systems", systems, {**SYSTEMS, **FORECASTS})
    parts = {
        kind: {n: _part(f"spec {name} [{kind}.{n}]", n, kind, c) for n, c in content[kind].items()}
        for kind in PARTS
    }
    spec = Spec(
        name=name,
        **{key: content[key] for key in PLAIN if key in content},
        systems=systems,
        columns=parts["columns"],
        protocols=parts["protocols"],
        variants={k: v for n, form in parts["variants"].items() for k, v in _points(n, form)},
        published=_published(name, content.get("published", {}), content["columns"]),
        rules=content.get("cells", []),
    )
    _known(f"spec {name} [reasons]", spec.reasons, systems)
    for variant, form in spec.variants.items():
        other = [form["lowest"]] if "lowest" in form else []
        _known(f"spec {name} [variants.{variant}]: lowest", other, spec.variants)
    for rule in spec.rules:
        check_keys(rule, (*SELECTORS, *CHANGES), f"spec {name} [[cells]]")
        _lists(f"spec {name} [[cells]]", rule)
        for key in SELECTORS:
            _known(f"spec {name} [[cells]]: {key}", rule.get(key, ()), getattr(spec, key))
    for cell in spec.cells():
        try:
            cell.experiments()
        except ValueError as error:
            raise ValueError(f"spec {name}, {cell.name}: {error}") from error
    return spec


def _part(where: str, name: str, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A column, protocol or variant with its title, and what else it must have."""
    check_keys(given, PARTS[kind], where)
    if kind == "protocols" and not (given.get("splits") and given.get("seeds")):
        raise ValueError(f"{where} must give splits and seeds")
    part: dict[str, Any] = {"title": name, **given}
    if kind == "columns":
        _known(f"{where}: dataset", [part.setdefault("dataset", name)], DATASETS)
    if kind == "variants":
        systems = part.setdefault("systems", tuple(SYSTEMS))
        _known(f"{where}: systems", systems, {**SYSTEMS, **FORECASTS})
        _lists(where, part)
    return part


def _points(name: str, form: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The variants of one name, one for each point of its grid."""
    grid: dict[str, list[Any]] = form.pop("grid", {})
    for values in product(*grid.values()):
        varied = dict(zip(grid, values, strict=True))
        point = ",".join(f"{key}={value}" for key, value in varied.items())
        title = f"{form['title']}, {point}" if point else form["title"]
        yield f"{name}:{point}" if point else name, {**form, "title": title, "varied": varied}


def _published(
    spec: str, given: Mapping[str, Mapping[str, Any]], columns: Mapping[str, Any]
) -> dict[str, dict[str, Published]]:
    """Each figure as its mean and deviation, which may be None, or as what the paper says."""
    for system, figures in given.items():
        check_keys(figures, columns, f"spec {spec} [published.{system}]")
    return {
        system: {
            column: value if isinstance(value, str) else (value[0], value[1] if value[1:] else None)
            for column, value in figures.items()
        }
        for system, figures in given.items()
    }


def _lists(where: str, given: Mapping[str, Any]) -> None:
    for key, values in given.get("choose", {}).items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{where}: choose.{key} must be a list of values, got {values!r}")


def _known(where: str, names: Iterable[str], known: Iterable[str], how: str = "among") -> None:
    known = list(known)
    for name in names:
        if name not in known:
            raise ValueError(f"{where} must be {how} {', '.join(known)}, got {name!r}")


def _folder() -> Any:
    return files("difformer_paper") / "specs"
