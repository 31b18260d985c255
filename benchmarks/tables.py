"""Write the tables of docs/ from the result files of benchmarks: python -m benchmarks.tables

A page has a mark `<!-- NAME -->` in front of each table. TABLES lists them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from benchmarks import all_pair_tables, hostile_tables, scale_tables, suite_tables
from benchmarks.measure import percent, result_file
from difformer.machine import commit_of
from difformer.statistics import paired_difference

Maker = Callable[[dict[str, Any]], list[list[str]]]  # of the rows of a table, header first
DOCS = tuple(
    Path("docs") / f"{name}.md"
    for name in (
        "all_pair",
        "defaults",
        "estimators",
        "reliability",
        "reproduce",
        "scale",
        "speed",
        "temporal",
    )
)


def few_labels(results: dict[str, Any]) -> list[list[str]]:
    first, *_ = results
    header = [
        "method",
        "accuracy, %",
        "first row minus this, points",
        "splits won by the first row",
    ]
    rows = [header]
    for name, found in results.items():
        figure = percent(found["accuracy_mean"], found["accuracy_std"])
        row = [f"`{name}`" if "(" in name else name, figure, "", ""]
        if name != first and not name.startswith("wine"):
            ours, theirs = results[first]["accuracy"], found["accuracy"]
            row[2] = paired_difference(ours, theirs).shown(100)
            won = sum(a > b for a, b in zip(ours, theirs, strict=True))
            row[3] = f"{won} of {len(ours)}"
        rows.append(row)
    return rows


def time_to_model(results: dict[str, Any]) -> list[list[str]]:
    rows = [["data", "difformer, s", "GCN, s", "ratio", "ratio of processor seconds"]]
    for name, found in results.items():
        if "pairs" not in found:
            rows.append([name, f"{found['seconds']:.1f}", "", "", ""])
            continue
        times = [
            f"{median(pair[system]['seconds'] for pair in found['pairs']):.0f}"
            for system in ("ours", "gcn")
        ]
        ratios = [f"{found[f'ratio_{what}']:.2f}" for what in ("seconds", "processor_seconds")]
        rows.append([name, *times, *ratios])
    return rows


def frozen_distance(results: dict[str, Any]) -> list[list[str]]:
    header = ["data", "new rows", "same label", "mean distance", "largest distance"]
    rows = [[*header, "accuracy, frozen", "accuracy, run again"]]
    for name, r in results.items():
        distances = [r["mean_probability_distance"], r["largest_probability_distance"]]
        shown = [f"{d:.4f}" for d in distances]
        hits = [f"{percent(r[key])} %" for key in ("accuracy_frozen", "accuracy_run_again")]
        rows.append([name, str(r["new"]), f"{percent(r['same_label'])} %", *shown, *hits])
    return rows


GROWTH = {
    "difformer": "`DIFFormerClassifier()`",
    "difformer_knn": '`DIFFormerClassifier(graph="knn")`',
    "label_spreading": '`LabelSpreading(kernel="rbf")`',
    "label_spreading_knn": '`LabelSpreading(kernel="knn")`',
}


def fit_growth(results: dict[str, Any]) -> list[list[str]]:
    size = f"{results['features']} features, {results['epochs']} epochs of DIFFormer"
    rows = [[size, *GROWTH.values()]]
    for name, found in results.items():
        if name.endswith(" rows"):
            cells = [
                f if isinstance(f, str) else f"{f['seconds']:.1f} s, {f['megabytes']:.0f} MB"
                for f in (found.get(key, "not measured") for key in GROWTH)
            ]
            rows.append([f"{int(name.split()[0]):,} rows", *cells])
    return rows


def alone_recipe(results: dict[str, Any]) -> list[list[str]]:
    rows = [["form, no graph", "accuracy, %", "first row minus this, points"]]
    for name, r in results.items():
        behind = percent(r["behind_mean"], r["behind_std"]) if r["behind"] else ""
        rows.append([name, percent(r["accuracy_mean"], r["accuracy_std"]), behind])
    return rows


def kernel_choice(results: dict[str, Any]) -> list[list[str]]:
    header = ["digits, ten labels per class", "`kernel`", "accuracy, %", "seconds per fit"]
    rows = [[*header, "-a chosen"]]
    for name, r in results.items():
        graph, kernel = name.split(", ")
        figure = percent(r["accuracy_mean"], r["accuracy_std"])
        picked = f"{r['sigmoid']} of {len(r['accuracy'])}" if kernel == "auto" else ""
        rows.append([graph, f'`"{kernel}"`', figure, f"{r['seconds_median']:.0f}", picked])
    return rows


def simclr(r: dict[str, Any]) -> list[list[str]]:
    """The loss of SimCLR, and a linear probe of its features and of random weights."""
    rows = [[f"ResNet-18 of width {r['made']['width']}, {r['images']:,} images", "linear probe, %"]]
    titles = {"simclr": f"SimCLR, {r['made']['epochs']} epochs", "random": "random weights"}
    for name, title in titles.items():
        rows.append([title, percent(r[f"probe_{name}_mean"], r[f"probe_{name}_std"])])
    rows.append(["loss of the watched views", f"{r['loss_first']:.2f} to {r['loss_last']:.2f}"])
    rows.append(["same seed, same features", "yes" if r["same_seed_same_features"] else "no"])
    return rows


def service_load(r: dict[str, Any]) -> list[list[str]]:
    header = ["clients", "requests", "errors", "requests per second", "processor time per request"]
    header += ["median", "95th percentile", "longest"]
    times = [r["seconds_median"], r["seconds_95_percent"], r["seconds_longest"]]
    numbers = [r["clients"], r["requests"], r["errors"], round(r["requests_a_second"])]
    worked = r.get("processor_ms_a_request")
    each = "not measured" if worked is None else f"{worked:.1f} ms"
    return [header, [*map(str, numbers), each, *(f"{t:.2f} s" for t in times)]]


def ratios(results: dict[str, Any], *, first: str, theirs: str) -> list[list[str]]:
    rows = [[first, "difformer", theirs, "speed-up", "interquartile range"]]
    for name, r in results.items():
        times = [f"{r[key]:,.1f} ms" for key in ("ours_ms", "theirs_ms")]
        low, high = r["spread"]
        rows.append([name, *times, f"{r['speed_up']:.2f}", f"{low:.2f} to {high:.2f}"])
    return rows


def memory(results: dict[str, Any]) -> list[list[str]]:
    rows = [["training step", "extra memory", "seconds"]]
    return rows + [[n, f"{r['extra_mb']:,} MB", f"{r['seconds']:.1f}"] for n, r in results.items()]


def limit(results: dict[str, Any]) -> list[list[str]]:
    m = results["machine"]
    about = f"{m['square_flops'] / 1e9:.0f} Gflop/s and {m['bytes'] / 1e9:.1f} GB/s"
    shapes = f"{m['thin_flops'] / 1e9:.0f} (-s) and {m['tile_flops'] / 1e9:.0f} Gflop/s (-a)"
    shares = ["of the limit", "of our shapes"]
    rows = [["all-pair average", "forward", *shares, "with backward", *shares]]
    for name, r in results.items():
        if name != "machine":
            cells = [
                cell
                for part in ("forward", "step")
                for cell in (
                    f"{r[part + '_seconds']:.2f} s",
                    f"{100 * r[part + '_share']:.0f} %",
                    f"{100 * r[part + '_share_own']:.0f} %",
                )
            ]
            rows.append([name, *cells])
    return [*rows, [f"the machine: {about}; with our shapes {shapes}", *[""] * 6]]


def profiles(results: dict[str, Any]) -> list[list[str]]:
    rows = [["step", "ms", "share of the time per operator"]]
    for name, r in results.items():
        parts = [
            f"`{o['name']}` {100 * o['share']:.0f} % in {o['calls']:,.0f} calls"
            for o in r["operators"]
        ]
        parts.append(f"other operators {100 * r['others_share']:.0f} %")
        parts.append(f"Python {100 * r['python_share']:.0f} %")
        rows.append([name, f"{r['ms']:,.0f}", ", ".join(parts)])
    return rows


def neighbour_classes(results: dict[str, Any]) -> list[list[str]]:
    kinds = list(next(iter(results.values())))
    shares = [[name, *(f"{100 * r[kind]:.0f} %" for kind in kinds)] for name, r in results.items()]
    return [["ends of an edge in one class", *kinds], *shares]


def equal_weights(results: dict[str, Any]) -> list[list[str]]:
    header = ["weight times rows", "weight decay", "epoch", "before training", "at that epoch"]
    shown = [
        [name, str(r["weight_decay"]), str(r["epoch"])]
        + ["{:.3f} to {:.3f}".format(*r[when]) for when in ("untrained", "trained")]
        for name, r in results.items()
    ]
    return [header, *shown]


def growth(results: dict[str, Any]) -> list[list[str]]:
    step = ["rows", "seconds per step", "extra memory", "exponent"]
    rows = [["one layer, width 64", *step, "weights computed in, s", "peak, MB"]]
    for name, found in results.items():
        for n, r in found["rows"].items():
            cells = [f"{int(n):,}", f"{r['seconds']:.3f}", f"{r['extra_mb']:,.0f} MB", ""]
            once = [f"{r[key]:,.0f}" if key in r else "" for key in ("made_seconds", "made_mb")]
            rows.append([name, *cells, *once])
        rows[-1][step.index("exponent") + 1] = f"{found['exponent']:.2f}"
    return rows


def imports(results: dict[str, Any]) -> list[list[str]]:
    rows = [["command", "processor seconds", "relative to `import torch`"]]
    for name, r in results.items():
        rows.append([f"`{name}`", f"{r['seconds']:.2f}", f"{r['of_import_torch']:.2f}"])
    return rows


COVERED = {
    "sets": ("of prediction sets", "classes in a set", "{:.2f}"),
    "intervals": ("of prediction intervals", "width, standard deviations", "{:.2f}"),
    "series": ("of forecasts, later half of the origins", "", ""),
}


def coverage(results: dict[str, Any]) -> list[list[str]]:
    rows = [["data, level 90 %", "splits", "contain the true value, %", "size", "accuracy, or R²"]]
    for kind, (title, unit, form) in COVERED.items():
        found = {name: records for name, records in results[kind].items() if records}
        for name, records in found.items():
            each = [100 * record["coverage"] for record in records.values()]
            spread = f" ± {stdev(each):.1f}" if len(each) > 1 else ""
            sizes = [record["size"] for record in records.values() if "size" in record]
            good = [r.get("accuracy", r.get("r2")) for r in records.values()]
            rows.append(
                [
                    name,
                    str(len(each)),
                    f"{mean(each):.1f}{spread}",
                    form.format(mean(sizes)) if sizes else "",
                    f"{mean(good):.2f}" if None not in good else "",
                ]
            )
        if kind != "series":
            total = mean(100 * mean(r["coverage"] for r in own.values()) for own in found.values())
            rows.append([f"**mean {title}**", "", f"**{total:.1f}**", unit, ""])
    return rows


def intervals(results: dict[str, Any]) -> list[list[str]]:
    rows = [["steps", "series", "contain the true value, %", "mean width / right width"]]
    for steps, sizes in results.items():
        for nodes, seeds in sizes.items():
            covered = [each["coverage"] for each in seeds.values()]
            width = mean(each["width"] for each in seeds.values())
            rows.append([steps, nodes, percent(mean(covered), stdev(covered)), f"{width:.2f}"])
    return rows


def forecast_peers(results: dict[str, Any]) -> list[list[str]]:
    """Errors divided by those of the best simple forecast of each series."""
    names = list(dict.fromkeys(n for seeds in results.values() for e in seeds.values() for n in e))
    rows = [["series", "seeds", *names]]
    total: dict[str, list[float]] = {name: [] for name in names}
    for family, seeds in results.items():
        row = [family, str(len(seeds))]
        for name in names:
            each = [
                errors[name] / min(e for n, e in errors.items() if n != "DIFFormer")
                for errors in seeds.values()
                if name in errors
            ]
            row.append(f"{mean(each):.2f}" if each else "")
            total[name] += [mean(each)] if each else []
        rows.append(row)
    return [*rows, ["**mean**", "", *(f"**{mean(total[name]):.2f}**" for name in names)]]


def _named(makers: Sequence[Maker], file: str | None = None) -> dict[str, tuple[str, Maker]]:
    """Tables by the names of their functions; by default a result file has that name, too."""
    return {maker.__name__: (file or maker.__name__, maker) for maker in makers}


OWN = (
    few_labels,
    forecast_peers,
    time_to_model,
    coverage,
    intervals,
    frozen_distance,
    fit_growth,
    alone_recipe,
    kernel_choice,
    simclr,
    service_load,
    memory,
    limit,
    profiles,
    neighbour_classes,
    equal_weights,
    growth,
    imports,
    scale_tables.large,
    scale_tables.scale,
    scale_tables.outofcore,
)
# The result file and the function of every table.
TABLES: dict[str, tuple[str, Maker]] = {
    **_named(OWN),
    "steps": ("steps", partial(ratios, first="training step", theirs="transcription")),
    "peers": ("peers", partial(ratios, first="training step", theirs="peer")),
    **_named(suite_tables.MAKERS, "suite"),
    **_named(all_pair_tables.MAKERS, "all_pair"),
    **_named(hostile_tables.MAKERS, "hostile"),
    **_named((scale_tables.scale_sent, scale_tables.scale_paper), "scale"),
    **_named((scale_tables.outofcore_alone,), "outofcore"),
    **_named((scale_tables.outofcore_paper,), "sizes/outofcore_full"),
    **_named((scale_tables.outofcore_weak,), "sizes/outofcore_weak"),
    "outofcore_1m": ("sizes/outofcore_1m", scale_tables.outofcore),
    "outofcore_full": ("sizes/outofcore_full", scale_tables.outofcore),
}


def table(name: str) -> str:
    """A table as Markdown, with the command, the date, the machine and the commit."""
    file, maker = TABLES[name]
    path = result_file(file)
    if not path.exists():
        return "Not measured.\n"
    content = json.loads(path.read_text("utf-8"))
    rows = maker(content["results"])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "| --- " * len(rows[0]) + "|")
    machine = content["machine"]
    about = f"{machine['cores']} cores at load {machine['load']:.0f}, torch {machine['torch']}"
    about = f"{about}, {commit_of(content)}"
    return "\n".join(lines) + f"\n\n`{content['command']}`, {content['date']}, {about}.\n"


def filled(text: str) -> str:
    """The page with the current content of every marked table."""
    for name in TABLES:
        mark = f"<!-- {name} -->"
        after = rf"{re.escape(mark)}\n(?:\|.*\n)*(?:\n`python.*\n|Not measured\.\n)?"
        text = re.sub(after, lambda _, m=mark, n=name: f"{m}\n{table(n)}", text)
    return text


if __name__ == "__main__":
    for page in DOCS:
        page.write_text(filled(page.read_text("utf-8")), "utf-8")
