"""difformer features: a feature file from images or text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from difformer.commands.output import print_json
from difformer.commands.shared import DataDir, Json, Quiet, argument, option
from difformer.data.registry import raw_datasets
from difformer.experiments.encoders import ENCODERS
from difformer.experiments.encoders.settings import FeatureSettings

DATASETS = ", ".join(raw_datasets())
USUAL = FeatureSettings()
NAMES = ", ".join(f"{name} ({encoder.takes})" for name, encoder in ENCODERS.items())


def command(
    source: Annotated[
        str,
        argument(
            "SOURCE", f"{DATASETS}, a folder of images, or a .txt file with one text per line."
        ),
    ],
    out: Annotated[
        Path,
        option(
            "--out",
            "-o",
            metavar="FILE",
            help="The .npz to write; of a .txt also .npy, line by line.",
        ),
    ],
    encoder: Annotated[
        str, typer.Option("--encoder", metavar="NAME", help=f"One of {NAMES}.")
    ] = USUAL.encoder,
    epochs: Annotated[int, typer.Option("--epochs", help="Of SimCLR.")] = USUAL.train.epochs,
    lr: Annotated[float, typer.Option("--lr", help="Of SimCLR.")] = USUAL.train.lr,
    width: Annotated[
        int, typer.Option("--width", help="Width of ResNet-18's first stage.")
    ] = USUAL.width,
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="Images per step of SimCLR.")
    ] = USUAL.batch_size,
    side: Annotated[
        int, typer.Option("--side", help="Pixels per side, of a folder's images.")
    ] = 32,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = (
        USUAL.train.seed
    ),
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")] = (
        USUAL.train.device
    ),
    run: Annotated[
        Path | None,
        option("--run", metavar="FOLDER", help="Keep SimCLR's run here, and go on with it."),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn images or text into features.

    Example: difformer features cifar10 --encoder effnetlite0 --out cifar10.npz

    The file is used as `features`: load_dataset("cifar10", features="cifar10.npz"). A .npy of the
    texts of a table goes to its parts: difformer shard ... --features texts.npy.
    """
    from difformer.data.features import write_features
    from difformer.experiments.encoders.features import (
        load_source,
        make_features,
        write_text_features,
    )
    from difformer.train.callbacks import Progress

    if out.suffix not in (".npz", ".npy"):
        raise ValueError(f"out must end in .npz, or .npy for a file of texts, got {str(out)!r}")
    settings = FeatureSettings(
        encoder=encoder,
        width=width,
        batch_size=batch_size,
        train=replace(
            USUAL.train,
            epochs=epochs,
            lr=lr,
            warmup=min(USUAL.train.warmup, epochs // 10),
            eval_every=max(1, epochs // 20),
            seed=seed,
            device=device,
        ),
    )
    if out.suffix == ".npy":
        path = Path(source).expanduser()
        if path.suffix != ".txt" or not path.is_file():
            raise ValueError(f"source must be a .txt file for a .npy, got {source!r}")
        n, width = write_text_features(path, out, settings)
        _tell(out, n, width, encoder, json)
        return
    rows = load_source(source, data_dir, side=side)
    progress = [Progress("SimCLR", quiet=quiet or json)]
    features = make_features(rows, settings, folder=run, callbacks=progress)
    path = write_features(out, features)
    n, width = features.x.shape
    _tell(path, n, width, encoder, json)


def _tell(path: Path, rows: int, width: int, encoder: str, json: bool) -> None:
    if json:
        print_json({"file": str(path), "rows": rows, "features": width, "encoder": encoder})
    else:
        print(f"{path}: {rows} rows of {width} features by {encoder}")
