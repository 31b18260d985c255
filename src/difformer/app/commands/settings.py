"""difformer settings: every setting of a model, of the training loop and of a series."""

from __future__ import annotations

from typing import Annotated

from difformer.app.options import KERNELS, Json, argument, series_options, shown_default
from difformer.app.output import print_json, print_table
from difformer.blocks import Table
from difformer.settings import options_of
from difformer.systems.registry import SYSTEMS, get_system
from difformer.train.settings import TrainSettings

HEAD = ("name", "default", "range", "meaning")


def command(
    model: Annotated[str, argument("[MODEL]", f"{', '.join(SYSTEMS)}. [difformer-s]")] = (
        "difformer-s"
    ),
    json: Json = False,
) -> None:
    """List what --set takes: every setting of a model, of training and of --series.

    Example: difformer settings gcn

    Each has its name, its default, its range and its meaning. On the command line a setting is
    given as --set name=value, and in a file for --config in its section, [model] or [train].
    """
    system = get_system(model)
    groups = {
        system.title: options_of(system.config),
        "Training": {k: v for k, v in options_of(TrainSettings).items() if system.uses(k)},
    }
    if model in KERNELS:
        known = {name for options in groups.values() for name in options}
        groups["Series"] = {k: v for k, v in series_options().items() if k not in known}
    rows = {
        group: [(n, shown_default(n, model), each.range, each.help) for n, each in options.items()]
        for group, options in groups.items()
    }
    if json:
        found = [dict(zip(HEAD, row, strict=True), of=of) for of in rows for row in rows[of]]
        return print_json({"model": model, "settings": found})
    for group, cells in rows.items():
        print_table(Table("", HEAD, cells), group)
    return None
