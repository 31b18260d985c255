"""difformer shard: tables larger than memory become a dataset in parts on disk."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from difformer.app.asked import parse_kinds
from difformer.app.options import Address, Id, Json, Kinds, Label, NoHeader, Quiet, Task, flag
from difformer.app.output import print_json, print_table, say
from difformer.blocks import Table
from difformer.files import counted
from difformer.progress import progress
from difformer.shards.partition import PARTITIONERS, ShardSettings

ENGINES = ("duckdb", "ray")
DEFAULT: dict[str, Any] = {each.name: each.default for each in fields(ShardSettings)}

Nodes = Annotated[
    list[str],
    flag(
        "FILES",
        "Tables of one layout, .parquet or .csv: a file, a folder or a pattern such as "
        "'nodes-*.parquet'. May be repeated.",
    ),
]
Edges = Annotated[
    list[str] | None,
    flag(
        "FILES", "Tables with the columns source, target and, optionally, weight. May be repeated."
    ),
]
Split = Annotated[
    str,
    flag(
        "SPLIT",
        "ratio:A/B/C[:SEED], each row drawn by its number; or column:NAME, whose cells say train, "
        "val or test.",
    ),
]
Partition = Annotated[
    str,
    flag(
        "|".join(PARTITIONERS),
        "Which rows are in one part: neighbours in the file (range), any rows (hash), or rows with "
        "edges between them (metis holds the graph in memory, streaming does not).",
    ),
]
Features = Annotated[
    list[str] | None,
    flag(
        "FILE.npy",
        "More features, one row per node, such as those `difformer features` makes of texts. May "
        "be repeated.",
    ),
]
NEAREST = "Without --edges: join each row to its K nearest by features (exact, by faiss)."
WHERE = "Where ids are joined and edges sorted: on this machine (duckdb), or on a cluster (ray)."


def command(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the parts are written.")],
    nodes: Nodes,
    edges: Edges = None,
    label: Label = None,
    id: Id = None,
    no_header: NoHeader = False,
    kind: Kinds = None,
    task: Task = None,
    split: Split = DEFAULT["split"],
    parts: Annotated[
        int, flag("", "Number of parts; at most so many processes can train.")
    ] = DEFAULT["parts"],
    partition: Partition = DEFAULT["partition"],
    features: Features = None,
    neighbours: Annotated[int, flag("K", NEAREST)] = DEFAULT["neighbours"],
    memory: Annotated[str, flag("SIZE", "Most memory this process may use.")] = DEFAULT["memory"],
    engine: Annotated[str, flag("|".join(ENGINES), WHERE)] = ENGINES[0],
    address: Address = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn tables larger than memory into parts to train from.

    Example: difformer shard parts --nodes users.parquet --label y --id user --edges follows.parquet

    Then: torchrun --nproc-per-node 4 -m difformer train parts --out run

    Columns are typed and scaled, ids become row numbers, and edges are stored in both directions,
    sorted by the row they enter. Dangling and repeated edges are counted. An interrupted call
    resumes when it is repeated.
    """
    from difformer.data.split import PARTS
    from difformer.shards.build import make_shards
    from difformer.train.memory import peak_memory, resident_memory

    settings = ShardSettings(
        nodes=nodes,
        label=label or (),
        id=id,
        edges=edges or (),
        header=not no_header,
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
        from difformer.shards.far import connect

        connect(address)
    with progress("", 1.0, quiet=quiet or json) as step:

        def tell(stage: str, share: float | None) -> None:
            step(description=stage, completed=share or 0.0)

        manifest = make_shards(settings, out, tell=tell, held=resident_memory(), cluster=cluster)
    counts = {"rows": manifest.rows, "features": manifest.features}
    sizes = {name: manifest.size(name) for name in PARTS}
    peak = peak_memory()
    if json:
        counts["edges"] = manifest.edges
        more = {"cut": manifest.cut, "partition": manifest.partition, "parts": len(manifest.parts)}
        more = {**sizes, **more, **manifest.found, "peak_memory": peak}
        print_json({"folder": str(out), **counts, **more})
        return
    shown = {**counts, **sizes, **manifest.found}
    rows = [(name, f"{count:,}") for name, count in shown.items()]
    if manifest.graph:
        rows += [("edges kept, each way", f"{manifest.edges - manifest.rows:,}")]
        rows += [(f"cut by {manifest.partition}", f"{manifest.cut:.1%}")]
    print_table(Table("", ("", manifest.name), rows))
    if peak is not None:
        say(f"used at most {peak / 1e9:.2f} GB", quiet=quiet)
    print(f"{counted(len(manifest.parts), 'part')} in {out}; train with: difformer train {out}")
