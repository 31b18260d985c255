"""difformer features: a feature file from images or text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from difformer.commands.output import DataDir, Json, Quiet, print_json
from difformer.data.registry import raw_datasets
from difformer.experiments.encoders import ENCODERS

DATASETS = ", ".join(raw_datasets())
NAMES = ", ".join(f"{name} ({encoder.takes})" for name, encoder in ENCODERS.items())


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help=f"{DATASETS}, a folder of images, or a .txt file with one text per line.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The .npz to write.")],
    encoder: Annotated[
        str, typer.Option("--encoder", metavar="NAME", help=f"One of {NAMES}.")
    ] = "simclr",
    epochs: Annotated[int, typer.Option("--epochs", help="Of SimCLR.")] = 100,
    lr: Annotated[float, typer.Option("--lr", help="Of SimCLR.")] = 0.001,
    width: Annotated[int, typer.Option("--width", help="Width of ResNet-18's first stage.")] = 64,
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="Images per step of SimCLR.")
    ] = 256,
    side: Annotated[
        int, typer.Option("--side", help="Pixels per side, of a folder's images.")
    ] = 32,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")] = "auto",
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="FOLDER", help="Keep SimCLR's run here, and go on with it."),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn images or text into features.

    Example: difformer features cifar10 --encoder effnetlite0 --out cifar10.npz

    The file is used as `features`: load_dataset("cifar10", features="cifar10.npz").
    """
    from difformer.data.features import write_features
    from difformer.experiments.encoders.features import load_source, make_features
    from difformer.experiments.encoders.settings import FeatureSettings
    from difformer.train.callbacks import Progress
    from difformer.train.settings import TrainSettings

    if out.suffix != ".npz":
        raise ValueError(f"out must end in .npz, got {str(out)!r}")
    settings = FeatureSettings(
        encoder=encoder,
        width=width,
        batch_size=batch_size,
        train=TrainSettings(
            epochs=epochs,
            lr=lr,
            weight_decay=1e-6,
            schedule="cosine",
            warmup=min(5, epochs // 10),
            eval_every=max(1, epochs // 20),
            seed=seed,
            device=device,
        ),
    )
    rows = load_source(source, data_dir, side=side)
    progress = [Progress("SimCLR", quiet=quiet or json)]
    features = make_features(rows, settings, folder=run, callbacks=progress)
    path = write_features(out, features)
    n, width = features.x.shape
    if json:
        print_json({"file": str(path), "rows": n, "features": width, "encoder": encoder})
    else:
        print(f"{path}: {n} rows of {width} features by {encoder}")
