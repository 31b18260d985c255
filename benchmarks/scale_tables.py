"""The tables of docs/scale.md: measured constants, and what they say of larger clusters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from difformer.data.shards.prepare import METIS_BYTES

# Name, processes, cores each, gigabytes each, gigabits a second each. Assumptions, not measured.
CLUSTERS = (
    ("16 machines, 64 cores, 512 GB, 25 Gb/s", 16, 64, 512, 25),
    ("128 machines, 64 cores, 512 GB, 100 Gb/s", 128, 64, 512, 100),
    ("1,024 machines, 64 cores, 512 GB, 100 Gb/s", 1024, 64, 512, 100),
)
SCALE = Path("results/benchmarks/scale.json")
FULL = Path("results/benchmarks/sizes/outofcore_full.json")
WIDTH, LAYERS, FEATURES, DEGREE = 128, 3, 100, 20
NAMES = {
    "ours": "random partitions, an epoch",
    "theirs": "the same layers fed by the loader",
    "printed": "the same model as the paper prints it, fed by the loader",
    "printed_kept": "the same, freed memory kept",
    "feed_only": "partitions alone, no model",
    "loader_only": "the loader alone, no model",
    "full": "all rows at once, recomputed, an epoch of one step",
    "evaluation": "all rows evaluated in chunks",
}


def large(results: dict[str, Any]) -> list[list[str]]:
    size = f"{results['rows']:,} rows, {results['edges']:,} edges"
    header = [size, "batches timed", "s a batch", "of it in the model's steps"]
    rows = [[*header, "processor s a batch", "peak memory"]]
    for name, title in NAMES.items():
        if name in results:
            r = results[name]
            number, inside = r["batches"], r.get("seconds_in_steps")
            share = "" if inside is None else f"{inside / number:.1f}"
            times = [f"{r['seconds_a_batch']:.1f}", share, f"{r['processor_seconds'] / number:.1f}"]
            rows.append([title, str(number), *times, f"{r['peak_mb'] / 1000:.1f} GB"])
    for key, title in (
        ("speed_up", "loader with our layers / ours"),
        ("speed_up_printed", "loader with the printed algorithms / ours"),
        ("speed_up_printed_kept", "the same, freed memory kept / ours"),
        ("speed_up_feeding", "feeding alone"),
    ):
        if key in results:
            ratios = [f"{results[k]:.1f} ×" for k in (key, f"{key}_processor")]
            rows.append([title, "", ratios[0], "", ratios[1], ""])
    return rows


def scale(results: dict[str, Any]) -> list[list[str]]:
    rows = [["width", "α, ns", "β, ns", "time with recomputing"]]
    for name, r in results.items():
        if name.startswith("width "):
            figures = [f"{r['row_width2_ns']:.3f}", f"{r['edge_width_ns']:.2f}"]
            rows.append([name[6:], *figures, f"{r['recompute_ratio']:.2f} ×"])
    kept, again = results["layer_bytes_a_row_and_width"], results["layer_bytes_recomputed"]
    rows.append(["μ, bytes", f"{kept:.1f}", "recomputed", f"{again:.1f}"])
    return rows


def scale_sent(results: dict[str, Any]) -> list[list[str]]:
    r = results["sent"]
    d, layers, b = r["width"], r["layers"], r["boundary_rows"]
    context, boundary = layers * 2 * 4 * (d * d + 2 * d + 1), layers * 2 * 4 * b * d
    return [
        ["", "counted, bytes", "formula"],
        ["all-pair term", f"{r['context']:,}", f"{context:,}"],
        [f"graph term, {b:,} boundary rows", f"{r['boundary']:,}", f"{boundary:,}"],
        ["gradients", f"{r['gradients']:,}", "4 · parameters"],
        [f"one all-reduce of the Context, width {d}", f"{r['all_reduce_ms']:.2f} ms", ""],
    ]


def scale_paper(results: dict[str, Any]) -> list[list[str]]:
    """States are kept where they fit, else computed again, which sends the forward pass again."""
    r = results[f"width {WIDTH}"]
    header = ["rows", "cluster", "states", "arithmetic, s a step", "sending, s a step"]
    rows = [[*header, "memory of each, GB", "fits"]]
    ways = (
        ("kept", results["layer_bytes_a_row_and_width"], 1.0, 2),
        ("computed again", results["layer_bytes_recomputed"], r["recompute_ratio"], 3),
    )
    for n in (10**8, 10**9):
        e = DEGREE * n
        for name, p, cores, gigabytes, rate in CLUSTERS:
            for states, mu, slower, passes in ways:
                memory = (4 * n * FEATURES + 8 * e + mu * LAYERS * n * WIDTH) / p / 1e9
                alpha, beta = 1e-9 * r["row_width2_ns"] * slower, 1e-9 * r["edge_width_ns"] * slower
                work = LAYERS * (alpha * n * WIDTH**2 + beta * e * WIDTH) / (p * cores)
                sent = LAYERS * passes * 4 * ((WIDTH + 1) ** 2 + e / (20 * p) * WIDTH)
                fits = memory < 0.8 * gigabytes
                if fits or states == ways[-1][0]:
                    cells = [f"{figure:.2g}" for figure in (work, 8 * sent / (rate * 1e9), memory)]
                    cells[2] = f"{memory:.0f}" if memory >= 10 else cells[2]
                    rows.append([f"{n:,}", name, states, *cells, "yes" if fits else "no"])
                    break
    return rows


EDGE_STAGES = ("counting edges", "reading edges", "writing edges")
LEARNING = ("looking at labels", "learning columns")
PLACING = ("reading edges", "partitioning by streaming", "sorting edges by part")
HOW = {
    "": "",
    "a core each": ", a core and a thread each",
    "all cores": ", threads that fill the machine",
}


def outofcore(results: dict[str, Any]) -> list[list[str]]:
    size = f"{results['rows']:,} rows × {results['features']}, {results['edges']:,} edges"
    rows = [[f"{size}, {results['memory']} per process", "s", "processor s", "peak memory", ""]]

    def cells(r: dict[str, Any]) -> list[str]:
        return [
            f"{r['seconds']:.0f}",
            f"{r['processor_seconds']:.1f}",
            f"{r['peak_mb'] / 1000:.2f} GB",
        ]

    if "duckdb_sort" in results:
        rows.append(["DuckDB's own sort of the edges", *cells(results["duckdb_sort"]), ""])
    for name, r in sorted(results.items(), key=lambda item: item[0].split(" ")[0]):
        kind, _, which = name.partition(" ")
        if kind == "shard":
            told = f"cut {r['cut']:.0%}; {r['edges']:,} edges kept"
            rows.append([f"sharded by {which}", *cells(r), told])
            edges = sum(r["stages"].get(stage, 0.0) for stage in EDGE_STAGES)
            if which == "range" and "limit" in results.get("duckdb_sort", {}):
                speed = results["duckdb_sort"]["processor_seconds"] / edges
                told = f"{speed:.0%} of the speed of DuckDB's own sort"
                rows.append(["of it, ids mapped and edges sorted", "", f"{edges:.1f}", "", told])
        elif kind == "train":
            world, _, how = which.partition(" ")
            many = "process" if world == "1" else "processes"
            told = f"read {r['read'] / 1e9:.1f} GB, sent {r['sent'] / 1e6:.0f} MB"
            one = results.get(f"train 1 {how}".strip())
            if world != "1" and one:
                each = r["processor_seconds"] / int(world) / one["processor_seconds"]
                told += f"; {r['seconds'] / one['seconds']:.2f} of one's time, "
                told += f"each computes {each:.2f} of one's"
            rows.append([f"an epoch on {world} {many}{HOW[how]}", *cells(r), told])
    return rows


def outofcore_weak(results: dict[str, Any]) -> list[list[str]]:
    """Processor seconds of each process where rows and edges grow with the processes."""
    header = ["processes", "rows of all", "batch of all", "processor s of each", "asked of files"]
    rows = [[*header, "sent by each", "s in messages", "of them on the processor"]]
    for name, r in results.items():
        if name.startswith("weak "):
            _, world, how = name.split(" ", 2)
            p = int(world)
            batch = results["batch_size"] * (p if how == "a batch each" else 1)
            sizes = [world, f"{p * results['rows']:,}", f"{batch:,}"]
            bytes_each = [f"{r['read'] / p / 1e9:.2f} GB", f"{r['sent'] / p / 1e6:.0f} MB"]
            waiting = [f"{r[k] / p:.2f}" for k in ("message_seconds", "message_processor_seconds")]
            rows.append([*sizes, f"{r['processor_seconds'] / p:.1f}", *bytes_each, *waiting])
    return rows


def outofcore_alone(results: dict[str, Any]) -> list[list[str]]:
    """What one process does before the others, at larger sizes: time grows with rows or edges.

    Columns are taken from the full size, where what is done once counts little.
    """
    full, step = (json.loads(path.read_text())["results"] for path in (FULL, SCALE))
    learned = sum(full["shard range"]["stages"][s] for s in LEARNING) / full["rows"]
    streamed = results["shard streaming"]["stages"]
    placed = sum(streamed[stage] for stage in PLACING) / results["edges"]
    degree = results["edges"] // results["rows"]
    header = ["rows", "edges in the file", "columns learned, core hours"]
    rows = [
        [*header, "parts streamed, core hours", "METIS holds, TB", "a step on 1,024 machines, s"]
    ]
    seconds = {int(row[0].replace(",", "")): row[3] for row in scale_paper(step)[1:]}
    for n in (10**8, 10**9):
        hours = [f"{each / 3600:.2f}" for each in (n * learned, n * degree * placed)]
        held = f"{2 * degree * n * METIS_BYTES / 1e12:.2f}"
        rows.append([f"{n:,}", f"{degree * n:,}", *hours, held, seconds[n]])
    return rows


def outofcore_1m(results: dict[str, Any]) -> list[list[str]]:
    return outofcore(results)


def outofcore_full(results: dict[str, Any]) -> list[list[str]]:
    return outofcore(results)


def outofcore_paper(results: dict[str, Any]) -> list[list[str]]:
    """What the full size says about larger ones: everything grows with rows and edges."""
    shard, train = results["shard range"], results["train 1 a core each"]
    edges = sum(shard["stages"].get(stage, 0.0) for stage in EDGE_STAGES)
    per_edge = edges / results["edges"]
    per_row = (shard["processor_seconds"] - edges) / results["rows"]
    degree = results["edges"] // results["rows"]
    header = ["rows", "edges in the file", "sharded, core hours", "on the disk, TB"]
    rows = [[*header, "an epoch in batches, core hours"]]
    for n in (10**8, 10**9):
        hours = n * (per_row + degree * per_edge) / 3600
        disk = n * shard["bytes_on_disk"] / results["rows"] / 1e12
        epoch = n * train["processor_seconds"] / results["rows"] / 3600
        sizes = [f"{n:,}", f"{degree * n:,}", f"{hours:.1f}", f"{disk:.2f}"]
        rows.append([*sizes, f"{epoch:.1f}"])
    return rows
