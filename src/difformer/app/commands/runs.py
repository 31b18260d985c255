"""difformer report, runs, energy, predict, serve and export: what finished runs are good for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from difformer.app import options as shared
from difformer.app.options import DataDir, Json, Overwrite, RunFolder, argument, flag
from difformer.app.output import print_blocks, print_json, say
from difformer.app.service.server import Limits
from difformer.errors import DifformerError
from difformer.files import counted

MOST_COMPARED = 8  # runs whose settings fit side by side in a terminal


def report(
    run: RunFolder,
    out: Annotated[
        Path | None, shared.out("FILE", "Where the page goes.", default="RUN/report.html")
    ] = None,
    projection: Annotated[
        str,
        flag(
            "auto|pca|tsne",
            "How states are drawn in two dimensions; auto: t-SNE where there are few rows.",
        ),
    ] = "auto",
    points: Annotated[int, flag("N", "Rows drawn; more are sampled.", min=2)] = 20_000,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write the page of a run: one HTML file that needs no network.

    Example: difformer report runs/cora-difformer-s-1

    The page shows curves, results, confusion, calibration, energies, states and diffusivities. It
    names what is missing, such as files of the folder or the data, and shows the rest.
    """
    from difformer.report.run_page import write_report

    path = write_report(run, data_dir=data_dir, projection=projection, max_points=points, out=out)
    if json:
        print_json({"page": str(path), "bytes": path.stat().st_size})
    else:
        print(f"look at {path}")


def runs(
    paths: Annotated[
        list[Path] | None, argument("[PATH]...", "Run folders, or folders of runs. [runs]")
    ] = None,
    out: Annotated[Path | None, shared.out("FILE.html", "Also write a page.")] = None,
    json: Json = False,
) -> None:
    """List runs of every kind, and compare them: results, cost, and the settings that differ.

    Example: difformer runs runs/cora-difformer-s-1 runs/cora-gcn-1 --out runs.html

    A run is a folder of train or compare, or a result file of reproduce.
    """
    from difformer.report.compare_page import differing_table, runs_table, write_runs
    from difformer.runs.run import differing_settings, find_runs, summary

    found = [run for path in paths or [Path("runs")] for run in find_runs(path)]
    if not found:
        raise ValueError(
            f"PATH must hold a run, none is in {', '.join(map(str, paths or ['runs']))}"
        )
    if out is not None:
        write_runs(found, out)
    if json:
        listed = [summary(run) for run in found]
        return print_json({"runs": listed, "differing": differing_settings(found)})
    print_blocks([runs_table(found)])
    if paths is not None and 1 < len(found) <= MOST_COMPARED:
        print_blocks([differing_table(found)])
    return None if out is None else print(f"look at {out}")


def energy(
    run: RunFolder,
    seed: Annotated[int | None, flag("N", "The run of this seed.", usual="the first")] = None,
    weight: Annotated[float | None, flag("X", "The energy's weight λ.", usual="1/rows")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Check that the energy falls from layer to layer of a trained model (Theorem 1).

    Example: difformer energy runs/cora-difformer-s-1

    Prints for every layer the energy of the state that enters it, after the bare diffusion step
    of the theorem, and after the trained layer. If the energy rises, it says which part of the
    layer raises it.
    """
    if weight is not None and not 0 < weight < float("inf"):
        raise ValueError(f"--weight must be a finite number above 0, got {weight!r}")
    from difformer.data.snapshots import TemporalDataset
    from difformer.jobs.rows import last_snapshot
    from difformer.nn.model import DIFFormer
    from difformer.report.energy import check_energy, energy_blocks
    from difformer.runs.open import load_run

    loaded = load_run(run, seed=seed, data_dir=data_dir).look_inside()
    if not isinstance(loaded.model, DIFFormer):
        raise DifformerError(f"{run} holds a {loaded.system}: only DIFFormer has energies")
    data, graph = loaded.dataset, loaded.graph
    if isinstance(data, TemporalDataset):  # rows of two snapshots never meet
        data, graph = last_snapshot(data)
    check = check_energy(loaded.model, data.x, graph, weight=weight)
    if json:
        return print_json(check)
    print(f"{loaded.title}: E(Z, k) with λ = {check['lambda']:.3g}")
    return print_blocks(energy_blocks(check))


def predict(
    run: RunFolder,
    out: Annotated[str, shared.out("FILE.csv", "Where predictions go; - is standard output.")],
    table: Annotated[Path | None, argument("FILE", "New rows; see below.")] = None,
    series: Annotated[
        Path | None,
        flag(
            "FILE",
            "In place of FILE: newer values, whose next steps are forecast without refitting.",
        ),
    ] = None,
    edges: Annotated[
        Path | None,
        flag("FILE", "Id, id (and weight): what joins new rows to known ones and to one another."),
    ] = None,
    known: Annotated[
        Path | None,
        flag(
            "FILE",
            "With a run of `train --series --known`: the same columns for the newer values.",
        ),
    ] = None,
    level: Annotated[
        float | None,
        flag(
            "SHARE",
            "Add intervals (of numbers) or sets (of classes) that hold the truth this often, such "
            "as 0.9.",
        ),
    ] = None,
    no_header: shared.NoHeader = False,
    overwrite: Overwrite = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Predict new rows with a trained model, none depending on the others.

    Example: difformer predict runs/table-1 new.csv -o out.csv

    For a run of `train --nodes` FILE has the columns of training, in any format; other columns
    are ignored. The output gives the label of each row, the probability of every class, and the
    known rows that weigh most in it. A row with the id and the values of a row of training is
    answered as in training. A note names cells that are unlike all of training. For a run on a
    dataset FILE has one column per feature, in order; for a run of `train --series` it is a series
    of the same nodes, whose next steps are forecast.
    """
    from difformer.data.table.encoder import Drift
    from difformer.runs.answer import predict_run

    given = table or series
    if given is None or (table is not None and series is not None):
        raise ValueError("FILE must be given, or --series FILE: what to predict")
    if json and out == "-":
        raise ValueError("--json must be left out with -o -: both write to standard output")
    drift = Drift()
    count = predict_run(
        run,
        given,
        out,
        edges=edges,
        known=known,
        level=level,
        overwrite=overwrite,
        header=not no_header,
        data_dir=data_dir,
        tell=lambda note: say(f"note: {note}"),
        drift=drift,
    )
    if json:
        print_json({"rows": count, "out": out, "drift": drift.to_json()})
    else:
        say(f"{counted(count, 'row')} predicted into {'standard output' if out == '-' else out}")


def serve(
    run: Annotated[Path, argument("RUN", "The folder of a run of `train --nodes`.")],
    host: Annotated[
        str, flag("HOST", "The address to listen on; 0.0.0.0 is every one.")
    ] = "127.0.0.1",
    port: Annotated[int, flag("N", "The port to listen on.", min=1, max=65535)] = 8000,
    max_bytes: Annotated[int, flag("N", "The most bytes per request.", min=1)] = Limits.bytes,
    max_rows: Annotated[int, flag("N", "The most rows per request.", min=1)] = Limits.rows,
    max_connections: Annotated[
        int, flag("N", "The most connections at a time; of one client half.", min=1)
    ] = Limits.connections,
    seconds: Annotated[
        float, flag("X", "Seconds a header, or a body, may take to arrive.", min=0.1)
    ] = Limits.seconds,
    idle: Annotated[
        float, flag("X", "Seconds a connection may stay open between two requests.", min=1)
    ] = Limits.idle,
    level: Annotated[
        float | None, flag("SHARE", "Add intervals or sets of this level, such as 0.9.")
    ] = None,
    token: Annotated[
        str | None,
        flag("TEXT", "What clients must send as a Bearer token.", envvar="DIFFORMER_TOKEN"),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        flag(
            "HOST",
            "A host name that clients may use besides localhost and the address; may be repeated, "
            "and * is any.",
        ),
    ] = None,
) -> None:
    """Answer predictions over HTTP until stopped.

    Example: difformer serve runs/table-1 --port 8000

    GET / is a page to type a row into; POST /predict takes {"rows": [{column: value}]} and
    optionally "edges": [[id, id]]; GET /docs is a help page, /health and /metrics are for
    machines. A wrong request is answered with a 4xx and one line that says what is wrong, too much
    work with a 503. Give the token by the environment variable: other users of the machine can
    see the options of a command.
    """
    from difformer.app.service.app import Service
    from difformer.app.service.server import listen, make_server
    from difformer.jobs.own import OwnRun
    from difformer.runs.run import need_kind

    need_kind(run, ("table",), "serve")
    if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
        raise ValueError("--token must be printable ASCII characters, at least one")
    named = f"[{host}]" if ":" in host else host
    limits = Limits(
        bytes=max_bytes, rows=max_rows, connections=max_connections, seconds=seconds, idle=idle
    )
    answers = OwnRun.load(run, level=level)
    with listen(host, port) as listening:
        say(f"http://{named}:{port}/ (Ctrl-C stops)")
        app = Service(answers, limits, token=token, hosts=(host, *(allowed_host or ())))
        make_server(app, limits).run([listening])


def export(
    run: RunFolder,
    onnx: Annotated[Path, flag("FILE", "Where the model goes, as ONNX.")],
    overwrite: Overwrite = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write the model of a run as ONNX, and check that it answers as the run does.

    Example: difformer export runs/table-1 --onnx model.onnx

    The file predicts any number of new rows without edges, and needs neither the data nor
    difformer. Its input x has one number per column of the table: a number as it is, a date as
    days since 1970, a category by its place in the list in the file's metadata, NaN where missing.
    For a run on a dataset x has its features. The output y has the probability of every class, or
    the predicted numbers.
    """
    from difformer.app.onnx import export_run

    if onnx.exists() and not overwrite:
        raise ValueError(f"{onnx} is there already: add --overwrite to replace it")
    found = export_run(run, onnx, data_dir=data_dir)
    if json:
        return print_json({"file": str(onnx), **found._asdict()})
    return say(
        f"{onnx}: x has {counted(len(found.inputs), 'column')}, y has {', '.join(found.outputs)}; "
        f"its answers for {counted(found.rows, 'row')} are those of the run to "
        f"{found.difference:.1g}"
    )
