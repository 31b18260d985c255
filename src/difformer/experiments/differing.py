"""In which settings the rows of a table differ from another variant of the same system.

In a page, `settings=VARIANT` in a marker of tables.py lists them.
"""

from __future__ import annotations

from typing import Any

from difformer.experiments.specs import Cell
from difformer.experiments.tables import View

__all__ = ["differing_settings"]


def differing_settings(view: View, base: str) -> str:
    """One list item per system and variant that was measured: its settings where they differ."""
    if base not in view.spec.variants:
        raise ValueError(f"settings must be one of {', '.join(view.spec.variants)}, got {base!r}")
    items: dict[str, dict[str, dict[str, str]]] = {}
    for line in view.lines():
        if line.variant.name == base or not any(line.cells):
            continue
        item = items.setdefault(f"{line.title}, {line.variant.title}", {})
        for name, title in zip(view.names, view.titles, strict=True):
            ours, other = (
                view.spec.cells(
                    systems=[line.system],
                    columns=[name],
                    variants=[variant],
                    protocols=[line.protocol.name],
                )[0]
                for variant in (line.variant.name, base)
            )
            item.setdefault(title, {})[line.protocol.title] = _changes(ours, other)
    return "\n".join(
        f"- {who}: {'; '.join(_told(*column) for column in columns.items())}."
        for who, columns in items.items()
    )


def _told(title: str, by_protocol: dict[str, str]) -> str:
    """The settings of one column, and where they are not the same, those of each kind of split."""
    first, *others = dict.fromkeys(by_protocol.values())
    if not others:
        return f"{title} {first}"
    return f"{title} " + ", ".join(f"{words} ({how})" for how, words in by_protocol.items())


def _changes(cell: Cell, other: Cell) -> str:
    ours, theirs = _settings(cell), _settings(other)
    changed = [f"`{key}` {value}" for key, value in ours.items() if theirs.get(key) != value]
    return ", ".join(changed) or "the same"


def _settings(cell: Cell) -> dict[str, Any]:
    experiment = cell.experiments()[0]
    return {**experiment.data, **experiment.model, **vars(experiment.train)}
