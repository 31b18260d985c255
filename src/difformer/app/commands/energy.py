"""difformer energy: check Theorem 1 on the states of a trained model."""

from __future__ import annotations

from typing import Annotated

from difformer.app.options import DataDir, Json, RunFolder, flag
from difformer.app.output import print_blocks, print_json
from difformer.errors import DifformerError


def command(
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
        return print_json(check.to_json())
    print(f"{loaded.title}: E(Z, k) with λ = {check.weight:.3g}")
    return print_blocks(energy_blocks(check))
