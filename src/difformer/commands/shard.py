"""difformer shard: a dataset in parts on the disk, from tables larger than memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from difformer.commands.output import print_json, print_table, say
from difformer.commands.own import parse_kinds
from difformer.commands.shared import Address, Id, Json, Kinds, Label, Quiet, Task
from difformer.data.shards.parts import PARTITIONERS
from difformer.data.shards.settings import ShardSettings
from difformer.experiments.tables import Table

ENGINES = ("duckdb", "ray")
DEFAULT: dict[str, Any] = {each.name: each.default for each in fields(ShardSettings)}


def command(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the parts are put.")],
    nodes: Annotated[
        list[str],
        typer.Option(
            "--nodes",
            metavar="FILES",
            help="Tables of one layout, .parquet or .csv: a file, a folder or a pattern such as "
            "'nodes-*.parquet'. May be repeated.",
        ),
    ],
    edges: Annotated[
        list[str] | None,
        typer.Option(
            "--edges",
            metavar="FILES",
            help="Likewise: source, target, maybe weight.",
            show_default=False,
        ),
    ] = None,
    label: Label = None,
    id: Id = None,
    kind: Kinds = None,
    task: Task = None,
    split: Annotated[
        str,
        typer.Option(
            "--split",
            metavar="SPLIT",
            help="ratio:A/B/C[:SEED], each row drawn by its number; or column:NAME, whose cells "
            "say train, val or test.",
        ),
    ] = DEFAULT["split"],
    parts: Annotated[
        int, typer.Option("--parts", help="How many; the most processes that can train.")
    ] = DEFAULT["parts"],
    partition: Annotated[
        str,
        typer.Option(
            "--partition",
            metavar="|".join(PARTITIONERS),
            help="Which rows go together: those next to one another in the file, any, or those "
            "with edges between them (metis holds the graph in memory, streaming does not).",
        ),
    ] = DEFAULT["partition"],
    features: Annotated[
        list[str] | None,
        typer.Option(
            "--features",
            metavar="FILE.npy",
            help="More features, one row per node: what `difformer features` wrote of its text. "
            "May be repeated.",
            show_default=False,
        ),
    ] = None,
    neighbours: Annotated[
        int,
        typer.Option(
            "--neighbours",
            metavar="K",
            help="Without --edges: join each row to its K nearest by features (exact, by faiss).",
        ),
    ] = DEFAULT["neighbours"],
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="The most this process may hold.")
    ] = DEFAULT["memory"],
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="|".join(ENGINES),
            help="What joins and sorts: DuckDB on this machine, or Ray on a cluster.",
        ),
    ] = ENGINES[0],
    address: Address = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn tables larger than memory into parts to train from.

    Example: difformer shard parts --nodes users.parquet --label y --id user --edges follows.parquet

    Then: torchrun --nproc-per-node 4 -m difformer train parts --out run

    Columns are typed and scaled, ids mapped, edges carried both ways and sorted by the row they
    enter. A call that was cut off goes on where it was. Dangling and repeated edges are counted.
    """
    from difformer.data.shards.cluster import connect
    from difformer.data.shards.prepare import make_shards
    from difformer.train.memory import peak_memory, resident_memory

    settings = ShardSettings(
        nodes=nodes,
        label=label or (),
        id=id,
        edges=edges or (),
        task=task,
        kinds=parse_kinds(kind),
        split=split,
        parts=parts,
        partition=partition,
        memory=memory,
        features=features or (),
        neighbours=neighbours,
    )
    if engine not in ENGINES:
        raise ValueError(f"--engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    cluster = engine == "ray"
    if address is not None and not cluster:
        raise ValueError("--address must come with --engine ray")
    if cluster:
        connect(address)
    with _bar(quiet or json) as tell:
        manifest = make_shards(settings, out, tell=tell, held=resident_memory(), cluster=cluster)
    found = dict(manifest.found)
    rows = [("rows", f"{manifest.rows:,}"), ("features", f"{manifest.features:,}")]
    rows += [(name, f"{manifest.size(name):,}") for name in ("train", "val", "test")]
    rows += [(name, f"{count:,}") for name, count in found.items()]
    if manifest.graph:
        rows += [("edges kept, each way", f"{manifest.edges - manifest.rows:,}")]
        rows += [(f"cut by {manifest.partition}", f"{manifest.cut:.1%}")]
    peak = peak_memory()
    if json:
        sizes = {name: manifest.size(name) for name in ("train", "val", "test")}
        counts = {"rows": manifest.rows, "features": manifest.features, "edges": manifest.edges}
        more = {"cut": manifest.cut, "partition": manifest.partition, "parts": len(manifest.parts)}
        document = {"folder": str(out), **counts, **sizes, **more, **found, "peak_memory": peak}
        print_json(document)
        return
    print_table(Table(("", manifest.name), tuple(rows)))
    say("" if peak is None else f"held at most {peak / 1e9:.2f} GB", quiet=quiet or peak is None)
    print(f"{len(manifest.parts)} parts in {out}; train with: difformer train {out}")


@contextmanager
def _bar(quiet: bool) -> Generator[Callable[[str, float | None], None], None, None]:
    """Tells the stage and how far it is, on stderr; nothing where that is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda stage, share: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def tell(stage: str, share: float | None) -> None:
            bar.update(task, description=stage, completed=share or 0.0)

        yield tell
