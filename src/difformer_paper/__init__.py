"""The reproduction of the paper on top of `difformer`: rivals, datasets, tables and figures.

It imports the library, never the other way round. `difformer` finds what is named here by the
entry points of pyproject.toml, so that `difformer train cora -m gdc` is one command.
"""

from __future__ import annotations

# Each command's module, and its line in `difformer --help`.
COMMANDS = {
    "demo": ("difformer_paper.demo", "See DIFFormer learn from few labels, in a minute."),
    "reproduce": (
        "difformer_paper.reproduce",
        "Measure a published table or figure again, beside what was published.",
    ),
}
ENCODERS = {
    "simclr": ("difformer_paper.simclr", "images"),
    "random": ("difformer_paper.simclr", "images"),
}
