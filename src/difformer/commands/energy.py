"""difformer energy: Theorem 1 on a trained model's own states."""

from __future__ import annotations

from typing import Annotated

from difformer.commands.output import print_json, print_table
from difformer.commands.shared import DataDir, Json, RunFolder, option
from difformer.errors import DifformerError
from difformer.experiments.tables import Table


def command(
    run: RunFolder,
    seed: Annotated[
        int | None, option("--seed", metavar="N", help="Which seed's run.", default="the first")
    ] = None,
    weight: Annotated[
        float | None,
        option("--weight", metavar="X", help="The energy's weight λ.", default="1/rows"),
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
    from difformer.experiments.loaded import load_run
    from difformer.experiments.sources import last_snapshot
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
