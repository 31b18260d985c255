"""difformer energy: Theorem 1 on a trained model's own states."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from difformer.commands.output import DataDir, Json, print_json, print_table
from difformer.errors import DifformerError
from difformer.experiments.tables import Table


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)],
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", help="Which seed's run. [the first]", show_default=False
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(
            "--weight", metavar="X", help="The energy's weight λ. [1/rows]", show_default=False
        ),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Check the energy's descent (Theorem 1) on a trained model's own states.

    Example: difformer energy runs/cora-difformer-s-1

    For every layer: the energy of the state that enters, after the bare diffusion step of the
    theorem, and after the trained layer; where it rises, which part of the layer raises it.
    """
    if weight is not None and not 0 < weight < float("inf"):
        raise ValueError(f"--weight must be a finite number above 0, got {weight!r}")
    from difformer.data.snapshots import TemporalDataset
    from difformer.experiments.run import last_snapshot, load_run
    from difformer.nn.model import DIFFormer
    from difformer.report import check_energy

    loaded = load_run(run, seed=seed, data_dir=data_dir)
    if not isinstance(loaded.model, DIFFormer):
        raise DifformerError(f"{run} holds a {loaded.system}: only DIFFormer has energies")
    data, graph = loaded.dataset, loaded.graph
    if isinstance(data, TemporalDataset):  # rows of two snapshots never meet
        data, graph = last_snapshot(data)
    check = check_energy(loaded.model, data.x, graph, weight=weight)
    if json:
        return print_json(check.to_json())
    causes = list(check.layers[0].causes)
    rows = tuple(
        (
            str(layer.layer),
            f"{layer.start:.5g}",
            f"{layer.bare:.5g}",
            f"{layer.end:.5g}",
            "" if layer.falls is None else "falls" if layer.falls else "rises",
            *(f"{layer.causes[name]:+.4g}" for name in causes),
            f"{layer.tau:.3g}",
            f"{layer.safe_tau:.3g}",
        )
        for layer in check.layers
    )
    header = ("layer", "before", "bare step", "the layer", "", *causes, "τ", "safe τ")
    title = f"{loaded.title}: E(Z, k) with λ = {check.weight:.3g}"
    print_table(Table(header, rows, tuple(check.sentences())), title)
    return None
