"""Reports: the HTML page of a run, tables, and the figures of the paper.

Names load on first use, so that the command line can ask for help without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from difformer.lazy import lazy_names

if TYPE_CHECKING:
    from difformer.report.blocks import Note, Plot, Section, Table
    from difformer.report.compare_page import write_comparison
    from difformer.report.energy import check_energy
    from difformer.report.page import write_page
    from difformer.report.run_page import write_report
    from difformer.report.runs_page import write_runs

__all__ = [
    "Note",
    "Plot",
    "Section",
    "Table",
    "check_energy",
    "write_comparison",
    "write_page",
    "write_report",
    "write_runs",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "blocks": ("Note", "Plot", "Section", "Table"),
        "compare_page": ("write_comparison",),
        "energy": ("check_energy",),
        "page": ("write_page",),
        "run_page": ("write_report",),
        "runs_page": ("write_runs",),
    },
)
