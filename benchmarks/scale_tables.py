"""The tables of docs/scale.md: measured constants, and what they say of larger clusters."""

from __future__ import annotations

from typing import Any

# Name, processes, cores each, gigabytes each, gigabits a second each. Assumptions, not measured.
CLUSTERS = (
    ("16 machines, 64 cores, 512 GB, 25 Gb/s", 16, 64, 512, 25),
    ("128 machines, 64 cores, 512 GB, 100 Gb/s", 128, 64, 512, 100),
    ("1,024 machines, 64 cores, 512 GB, 100 Gb/s", 1024, 64, 512, 100),
)
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
    r = results[f"width {WIDTH}"]
    mu = results["layer_bytes_recomputed"]
    alpha = 1e-9 * r["row_width2_ns"] * r["recompute_ratio"]
    beta = 1e-9 * r["edge_width_ns"] * r["recompute_ratio"]
    header = ["rows", "cluster", "arithmetic, s a step", "sending, s a step"]
    rows = [[*header, "memory of each, GB", "fits"]]
    for n in (10**8, 10**9):
        e = DEGREE * n
        for name, p, cores, gigabytes, rate in CLUSTERS:
            work = LAYERS * (alpha * n * WIDTH**2 + beta * e * WIDTH) / (p * cores)
            b = e / (20 * p)
            # The forward pass sends twice, as it is computed again.
            sent = LAYERS * 3 * 4 * ((WIDTH + 1) ** 2 + b * WIDTH)
            memory = (4 * n * FEATURES + 8 * e + mu * LAYERS * n * WIDTH) / p / 1e9
            cells = [f"{figure:.2g}" for figure in (work, 8 * sent / (rate * 1e9), memory)]
            cells[2] = f"{memory:.0f}" if memory >= 10 else cells[2]
            fits = "yes" if memory < 0.8 * gigabytes else "no"
            rows.append([f"{n:,}", name, *cells, fits])
    return rows


EDGE_STAGES = ("counting edges", "reading edges", "writing edges")


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
            many = "process" if which == "1" else "processes"
            told = f"read {r['read'] / 1e9:.1f} GB, sent {r['sent'] / 1e6:.0f} MB"
            if which != "1" and "train 1" in results:
                one = results["train 1"]["processor_seconds"]
                told += f"; each computes {r['processor_seconds'] / int(which) / one:.2f} of one's"
            rows.append([f"an epoch on {which} {many}", *cells(r), told])
    return rows


def outofcore_1m(results: dict[str, Any]) -> list[list[str]]:
    return outofcore(results)


def outofcore_full(results: dict[str, Any]) -> list[list[str]]:
    return outofcore(results)


def outofcore_paper(results: dict[str, Any]) -> list[list[str]]:
    """What the full size says about larger ones: everything grows with rows and edges."""
    shard, train = results["shard range"], results.get("train 1")
    edges = sum(shard["stages"].get(stage, 0.0) for stage in EDGE_STAGES)
    per_edge = edges / results["edges"]
    per_row = (shard["processor_seconds"] - edges) / results["rows"]
    degree = results["edges"] // results["rows"]
    rows = [["rows", "edges in the file", "sharded, core hours", "on the disk, TB"]]
    rows[0] += ["an epoch in batches, core hours"] if train else []
    for n in (10**8, 10**9):
        hours = n * (per_row + degree * per_edge) / 3600
        disk = n * shard["bytes_on_disk"] / results["rows"] / 1e12
        row = [f"{n:,}", f"{degree * n:,}", f"{hours:.1f}", f"{disk:.2f}"]
        if train:
            row.append(f"{n * train['processor_seconds'] / results['rows'] / 3600:.1f}")
        rows.append(row)
    return rows
