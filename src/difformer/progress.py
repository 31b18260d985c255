"""How far a long task is: a bar on a terminal's stderr, and nothing elsewhere. No torch here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def progress(
    title: str, total: float | None = None, *, count: str = "share", quiet: bool = False
) -> Generator[Callable[..., None], None, None]:
    """A function that moves a bar: step(completed=..., description=..., note=...).

    Args:
        total: where `completed` ends; None if it is not known.
        count: what is counted: "bytes", "steps", or the "share" that is done.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda **_: None
        return
    from rich import progress as rich
    from rich.console import Console

    counts = {"bytes": rich.DownloadColumn, "steps": rich.MofNCompleteColumn}
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        counts.get(count, rich.TaskProgressColumn)(),
        rich.TimeRemainingColumn(),
        rich.TextColumn("{task.fields[note]}"),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda **changes: bar.update(task, **changes)
