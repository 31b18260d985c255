"""What a run looked like: one page for people, tables, and the figures of the paper.

Names load on first use, so that the command line can ask for help without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "Note": "difformer.report.blocks",
    "Plot": "difformer.report.blocks",
    "Section": "difformer.report.blocks",
    "Table": "difformer.report.blocks",
    "check_energy": "difformer.report.energy",
    "class_flow": "difformer.report.diffusivity",
    "concentration": "difformer.report.diffusivity",
    "top_pairs": "difformer.report.diffusivity",
    "write_comparison": "difformer.report.compare_page",
    "write_page": "difformer.report.page",
    "write_report": "difformer.report.run_page",
}

if TYPE_CHECKING:
    from difformer.report.blocks import Note, Plot, Section, Table
    from difformer.report.compare_page import write_comparison
    from difformer.report.diffusivity import class_flow, concentration, top_pairs
    from difformer.report.energy import check_energy
    from difformer.report.page import write_page
    from difformer.report.run_page import write_report

__all__ = [
    "Note",
    "Plot",
    "Section",
    "Table",
    "check_energy",
    "class_flow",
    "concentration",
    "top_pairs",
    "write_comparison",
    "write_page",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'difformer.report' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
