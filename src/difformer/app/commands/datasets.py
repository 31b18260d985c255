"""difformer datasets: list the datasets, or fetch one."""

from __future__ import annotations

from typing import Annotated

import typer

from difformer.app.options import DataDir, Json, argument
from difformer.app.output import print_json, print_table
from difformer.blocks import Table
from difformer.data.registry import DATASETS

app = typer.Typer(add_completion=False, rich_markup_mode=None, invoke_without_command=True)


@app.callback()
def datasets(ctx: typer.Context, json: Json = False) -> None:
    """List the datasets, or fetch one.

    Example: difformer datasets fetch cora

    A dataset is looked for in --data-dir, then in $DIFFORMER_DATA, then in the cache. If it is in
    none of them, it is fetched when it is first used.
    """
    if ctx.invoked_subcommand is not None:
        return
    if json:
        print_json([{"name": name, "summary": entry.summary} for name, entry in DATASETS.items()])
        return
    rows = tuple((name, entry.summary) for name, entry in DATASETS.items())
    print_table(Table("", ("Name", "What it is"), rows))


@app.command()
def fetch(
    name: Annotated[str, argument("NAME", "A dataset's name.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Fetch a dataset into --data-dir or the cache, and verify its checksums.

    Example: difformer datasets fetch cora --data-dir ~/data
    """
    from difformer.data.registry import fetch_dataset

    folder = fetch_dataset(name, data_dir)
    if json:
        print_json({"name": name, "folder": None if folder is None else str(folder)})
    else:
        print(f"{name} is embedded" if folder is None else f"{name} is in {folder}")
