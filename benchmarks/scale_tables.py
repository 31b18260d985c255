"""The tables of docs/scale.md: measured figures, and estimates for larger clusters."""

from __future__ import annotations

from typing import Any

from benchmarks.measure import read_results, result_file
from difformer.shards.partition import METIS_BYTES

# Name, processes, cores each, gigabytes each, gigabits a second each. Assumptions, not measured.
CLUSTERS = (
    ("16 machines, 64 cores, 512 GB, 25 Gb/s", 16, 64, 512, 25),
    ("128 machines, 64 cores, 512 GB, 100 Gb/s", 128, 64, 512, 100),
    ("1,024 machines, 64 cores, 512 GB, 100 Gb/s", 1024, 64, 512, 100),
)
WIDTH, LAYERS, FEATURES, DEGREE = 128, 3, 100, 20
NAMES = {
    "ours": "random partitions, one epoch",
    "theirs": "the same layers with the loader",
    "printed": "the printed algorithms with the loader",
    "printed_kept": "the same, freed memory kept",
    "feed_only": "partitions only, no model",
    "loader_only": "the loader only, no model",
    "full": "all rows at once, recomputed, one step",
    "evaluation": "evaluation of all rows in chunks",
}


def large(results: dict[str, Any]) -> list[list[str]]:
    size = f"{results['rows']:,} rows, {results['edges']:,} edges"
    header = [size, "batches timed", "seconds per batch", "of which in the model"]
    rows = [[*header, "processor seconds per batch", "peak memory"]]
    for name, title in NAMES.items():
        if name in results:
            r = results[name]
            number, inside = r["batches"], r.get("seconds_in_steps")
            share = "" if inside is None else f"{inside / number:.1f}"
            times = [f"{r['seconds_a_batch']:.1f}", share, f"{r['processor_seconds'] / number:.1f}"]
            rows.append([title, str(number), *times, f"{r['peak_mb'] / 1000:.1f} GB"])
    for key, title in (
        ("speed_up", "the same layers with the loader / random partitions"),
        ("speed_up_printed", "the printed algorithms with the loader / random partitions"),
        ("speed_up_printed_kept", "the same, freed memory kept / random partitions"),
        ("speed_up_feeding", "the loader only / partitions only"),
    ):
        if key in results:
            ratios = [f"{results[k]:.1f} ×" for k in (key, f"{key}_processor")]
            rows.append([title, "", ratios[0], "", ratios[1], ""])
    return rows


def scale(results: dict[str, Any]) -> list[list[str]]:
    rows = [["width", "α, ns", "β, ns", "time with `--recompute`"]]
    for name, r in results.items():
        if name.startswith("width "):
            figures = [f"{r['row_width2_ns']:.3f}", f"{r['edge_width_ns']:.2f}"]
            rows.append([name[6:], *figures, f"{r['recompute_ratio']:.2f} ×"])
    kept, again = results["layer_bytes_a_row_and_width"], results["layer_bytes_recomputed"]
    rows.append(["μ, bytes", f"{kept:.1f}", "with `--recompute`", f"{again:.1f}"])
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
    header = ["rows", "cluster", "states", "arithmetic, s per step", "sending, s per step"]
    rows = [[*header, "memory per machine, GB", "fits"]]
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
    "a core each": ", one core and thread each",
    "all cores": ", threads on all cores",
}


def outofcore(results: dict[str, Any]) -> list[list[str]]:
    size = f"{results['rows']:,} rows × {results['features']}, {results['edges']:,} edges"
    rows = [
        [
            f"{size}, {results['memory']} per process",
            "seconds",
            "processor seconds",
            "peak memory",
            "",
        ]
    ]

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
                name = "of which mapping ids and sorting edges"
                rows.append([name, "", f"{edges:.1f}", "", told])
        elif kind == "train":
            world, _, how = which.partition(" ")
            many = "process" if world == "1" else "processes"
            told = f"read {r['read'] / 1e9:.1f} GB, sent {r['sent'] / 1e6:.0f} MB"
            one = results.get(f"train 1 {how}".strip())
            if world != "1" and one:
                each = r["processor_seconds"] / int(world) / one["processor_seconds"]
                told += f"; {r['seconds'] / one['seconds']:.2f} of the time of one process, "
                told += f"{each:.2f} of its processor time each"
            rows.append([f"one epoch, {world} {many}{HOW[how]}", *cells(r), told])
    return rows


def outofcore_weak(results: dict[str, Any]) -> list[list[str]]:
    """Processor seconds of each process where rows and edges grow with the processes."""
    header = ["processes", "rows", "batch size", "processor seconds per process"]
    header += ["read per process", "sent per process", "seconds in messages"]
    rows = [[*header, "of which on the processor"]]
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
    """Work of a single process at larger sizes: its time grows with the rows or the edges."""
    full = read_results(result_file("sizes/outofcore_full"))
    step = read_results(result_file("scale"))
    learned = sum(full["shard range"]["stages"][s] for s in LEARNING) / full["rows"]
    streamed = results["shard streaming"]["stages"]
    placed = sum(streamed[stage] for stage in PLACING) / results["edges"]
    degree = results["edges"] // results["rows"]
    header = ["rows", "edges in the file", "learning columns, core hours"]
    header += ["streaming partition, core hours", "memory of METIS, TB"]
    rows = [[*header, "one step on 1,024 machines, s"]]
    seconds = {int(row[0].replace(",", "")): row[3] for row in scale_paper(step)[1:]}
    for n in (10**8, 10**9):
        hours = [f"{each / 3600:.2f}" for each in (n * learned, n * degree * placed)]
        held = f"{2 * degree * n * METIS_BYTES / 1e12:.2f}"
        rows.append([f"{n:,}", f"{degree * n:,}", *hours, held, seconds[n]])
    return rows


def outofcore_paper(results: dict[str, Any]) -> list[list[str]]:
    """Estimates from the full size: everything grows with rows and edges."""
    shard, train = results["shard range"], results["train 1 a core each"]
    edges = sum(shard["stages"].get(stage, 0.0) for stage in EDGE_STAGES)
    per_edge = edges / results["edges"]
    per_row = (shard["processor_seconds"] - edges) / results["rows"]
    degree = results["edges"] // results["rows"]
    header = ["rows", "edges in the file", "sharding, core hours", "on disk, TB"]
    rows = [[*header, "one epoch in batches, core hours"]]
    for n in (10**8, 10**9):
        hours = n * (per_row + degree * per_edge) / 3600
        disk = n * shard["bytes_on_disk"] / results["rows"] / 1e12
        epoch = n * train["processor_seconds"] / results["rows"] / 3600
        sizes = [f"{n:,}", f"{degree * n:,}", f"{hours:.1f}", f"{disk:.2f}"]
        rows.append([*sizes, f"{epoch:.1f}"])
    return rows
