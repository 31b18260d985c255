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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import product
from typing import Any, cast

from difformer.data.registry import DATASETS
from difformer.files import natural, read_toml
from difformer.jobs.job import Experiment
from difformer.metrics import METRICS
from difformer.settings import check_keys
from difformer.systems.registry import FORECASTS, SYSTEMS

Published = tuple[float, float | None] | str
SELECTORS = ("systems", "columns", "variants", "protocols")
CHANGES = ("data", "model", "train", "choose", "budget", "splits", "seeds", "note", "skip")


@dataclass(frozen=True)
class Column:
    name: str
    title: str
    dataset: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    metric: str | None = None


@dataclass(frozen=True)
class Protocol:
    """Which splits, and which seeds on each of them."""

    name: str
    title: str
    splits: tuple[str, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Variant:
    name: str
    title: str
    systems: tuple[str, ...]
    varied: Mapping[str, Any]  # options of a grid: no rule overrides them
    recipe: str | None = None
    model: Mapping[str, Any] = field(default_factory=dict[str, Any])
    train: Mapping[str, Any] = field(default_factory=dict[str, Any])
    choose: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    lowest: str | None = None


@dataclass(frozen=True)
class Cell:
    """One figure to measure: a system and its settings on a column by a protocol."""

    system: str
    column: Column
    variant: Variant
    protocol: Protocol
    model: Mapping[str, Any]
    train: Mapping[str, Any]
    note: str | None = None
    skip: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    choose: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    budget: int | None = None

    @property
    def name(self) -> str:
        """Unique in its table, and the name of its result file."""
        return f"{self.column.name}.{self.system}.{self.variant.name}.{self.protocol.name}"

    def experiments(self) -> list[Experiment]:
        """One experiment per split, each with all the seeds."""
        return [
            Experiment.make(
                self.column.dataset,
                system=self.system,
                recipe=self.variant.recipe,
                split=split,
                seeds=self.protocol.seeds,
                data={**self.column.data, **self.data},
                model=self.model,
                train=self.train,
            )
            for split in self.protocol.splits
        ]


@dataclass(frozen=True)
class Spec:
    """One published table or figure."""

    name: str
    title: str
    note: str
    metric: str
    beside: str | None
    percent: bool
    systems: tuple[str, ...]
    columns: Mapping[str, Column]
    protocols: Mapping[str, Protocol]
    variants: Mapping[str, Variant]
    published: Mapping[str, Mapping[str, Published]]
    rules: Sequence[Mapping[str, Any]] = ()
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    budget: int | None = None

    def cells(
        self,
        *,
        systems: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        variants: Sequence[str] | None = None,
        protocols: Sequence[str] | None = None,
    ) -> list[Cell]:
        """The chosen cells, column by column; None chooses all. ValueError for an unknown name."""
        chosen = {
            "systems": _choose("models", systems, self.systems),
            "columns": _choose("datasets", columns, list(self.columns)),
            "variants": _choose("variants", variants, list(self.variants)),
            "protocols": _choose("protocols", protocols, list(self.protocols)),
        }
        every = product(*(chosen[key] for key in ("columns", "systems", "variants", "protocols")))
        return [
            self._cell(system, column, variant, protocol)
            for column, system, variant, protocol in every
            if system in self.variants[variant].systems
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
        return (self.columns[column].metric if column in self.columns else None) or self.metric

    def _cell(self, system: str, column: str, variant: str, protocol: str) -> Cell:
        kind, how = self.variants[variant], self.protocols[protocol]
        names = dict(zip(SELECTORS, (system, column, variant, protocol), strict=True))
        cell = Cell(system, self.columns[column], kind, how, dict(kind.model), dict(kind.train))
        cell = replace(cell, choose=dict(kind.choose), budget=self.budget)
        for rule in self.rules:
            if all(names[key] in rule.get(key, (names[key],)) for key in SELECTORS):
                cell = _changed(cell, rule)
        return replace(cell, model={**cell.model, **kind.varied})


def list_specs() -> list[str]:
    """The names of all specs."""
    found = [p.name.removesuffix(".toml") for p in _folder().iterdir() if p.name.endswith(".toml")]
    return sorted(found, key=natural)


def load_spec(name: str) -> Spec:
    """The spec of that name; ValueError lists the known ones."""
    if name not in list_specs():
        raise ValueError(f"table must be one of {', '.join(list_specs())}, got {name!r}")
    return parse_spec(name, (_folder() / f"{name}.toml").read_text(encoding="utf-8"))


def parse_spec(name: str, text: str) -> Spec:
    """A spec from TOML text; ValueError names the unknown key or the wrong value.

    Every cell is made once, so that a wrong setting is found here and not hours into a run.
    """
    try:
        content = read_toml(text)
    except ValueError as error:
        raise ValueError(f"spec {name} is not TOML: {error}") from error
    top = ("title", "note", "metric", "beside", "percent", "budget", "systems", "columns")
    top = (*top, "protocols", "variants")
    check_keys(content, (*top, "published", "reasons", "cells"), f"spec {name}")
    for key in ("title", "metric", "systems", "columns", "protocols", "variants"):
        if not content.get(key):
            raise ValueError(f"spec {name} must give {key}")
    systems = tuple(content["systems"])
    _known(f"spec {name}: systems", systems, {**SYSTEMS, **FORECASTS})
    spec = Spec(
        name=name,
        title=content["title"],
        note=content.get("note", ""),
        metric=content["metric"],
        beside=content.get("beside"),
        percent=content.get("percent", False),
        systems=systems,
        columns={n: _column(name, n, c) for n, c in content["columns"].items()},
        protocols={n: _protocol(name, n, c) for n, c in content["protocols"].items()},
        variants={v.name: v for n, c in content["variants"].items() for v in _variants(name, n, c)},
        published=_published(name, content.get("published", {}), content["columns"]),
        rules=content.get("cells", []),
        reasons=content.get("reasons", {}),
        budget=content.get("budget"),
    )
    _known(f"spec {name} [reasons]", spec.reasons, systems)
    for variant in spec.variants.values():
        other = [variant.lowest] if variant.lowest is not None else []
        _known(f"spec {name} [variants.{variant.name}]: lowest", other, spec.variants)
    for rule in spec.rules:
        check_keys(rule, (*SELECTORS, *CHANGES), f"spec {name} [[cells]]")
        _lists(f"spec {name} [[cells]]", rule.get("choose", {}))
        for key in SELECTORS:
            _known(f"spec {name} [[cells]]: {key}", rule.get(key, ()), getattr(spec, key))
    for cell in spec.cells():
        try:
            cell.experiments()
        except ValueError as error:
            raise ValueError(f"spec {name}, {cell.name}: {error}") from error
    return spec


def _changed(cell: Cell, rule: Mapping[str, Any]) -> Cell:
    runs = {key: tuple(rule[key]) for key in ("splits", "seeds") if key in rule}
    changed: dict[str, Any] = {"protocol": replace(cell.protocol, **runs)}
    for key in CHANGES:
        if key in rule and key not in runs:
            value = rule[key]
            changed[key] = {**getattr(cell, key), **value} if isinstance(value, dict) else value
    return replace(cell, **changed)


def _column(spec: str, name: str, given: Mapping[str, Any]) -> Column:
    check_keys(given, ("title", "dataset", "data", "metric"), f"spec {spec} [columns.{name}]")
    dataset = given.get("dataset", name)
    _known(f"spec {spec} [columns.{name}]: dataset", [dataset], DATASETS)
    kept: dict[str, Any] = {"name": name, "title": name, "dataset": dataset, **given}
    return Column(**kept)


def _protocol(spec: str, name: str, given: Mapping[str, Any]) -> Protocol:
    check_keys(given, ("title", "splits", "seeds"), f"spec {spec} [protocols.{name}]")
    splits, seeds = tuple(given.get("splits", ())), tuple(given.get("seeds", ()))
    if not splits or not seeds:
        raise ValueError(f"spec {spec} [protocols.{name}] must give splits and seeds")
    return Protocol(name, given.get("title", name), splits, seeds)


def _variants(spec: str, name: str, given: Mapping[str, Any]) -> list[Variant]:
    where = f"spec {spec} [variants.{name}]"
    keys = ("title", "systems", "recipe", "model", "train", "grid", "choose", "lowest")
    check_keys(given, keys, where)
    systems = tuple(given.get("systems", SYSTEMS))
    _known(f"{where}: systems", systems, {**SYSTEMS, **FORECASTS})
    _lists(where, given.get("choose", {}))
    grid = cast("dict[str, list[Any]]", given.get("grid", {}))
    rest = {key: value for key, value in given.items() if key not in ("grid", "systems", "title")}
    found: list[Variant] = []
    for values in product(*grid.values()):
        varied = dict(zip(grid, values, strict=True))
        point = ",".join(f"{key}={value}" for key, value in varied.items())
        full, title = name, given.get("title", name)
        if point:
            full, title = f"{name}:{point}", f"{title}, {point}"
        found.append(Variant(full, title, systems, varied, **rest))
    return found


def _published(
    spec: str, given: Mapping[str, Mapping[str, Any]], columns: Mapping[str, Any]
) -> dict[str, dict[str, Published]]:
    found: dict[str, dict[str, Published]] = {}
    for system, figures in given.items():
        check_keys(figures, columns, f"spec {spec} [published.{system}]")
        found[system] = {}
        for column, value in figures.items():
            text = isinstance(value, str)
            found[system][column] = value if text else (value[0], value[1] if value[1:] else None)
    return found


def _lists(where: str, choose: Mapping[str, Any]) -> None:
    for key, values in choose.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{where}: choose.{key} must be a list of values, got {values!r}")


def _known(where: str, names: Any, known: Any) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{where} must be among {', '.join(known)}, got {name!r}")


def _choose(what: str, names: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    _known(what, names or (), known)
    return [name for name in known if names is None or name in names]


def _folder() -> Any:
    return files("difformer_paper") / "specs"
