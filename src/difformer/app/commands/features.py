"""difformer features: a feature file from images or text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from difformer.app import options as shared
from difformer.app.encoders import ENCODERS
from difformer.app.encoders.settings import FeatureSettings
from difformer.app.options import argument, flag, setting
from difformer.app.output import print_json
from difformer.data.registry import raw_datasets
from difformer.files import counted
from difformer.train.settings import TrainSettings

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
        Path, shared.out("FILE", "The .npz to write; of a .txt also .npy, line by line.")
    ],
    encoder: Annotated[str, flag("NAME", f"One of {NAMES}.")] = USUAL.encoder,
    epochs: shared.Epochs = USUAL.train.epochs,
    lr: Annotated[float, setting(TrainSettings, "lr")] = USUAL.train.lr,
    width: Annotated[int, flag("N", "Width of ResNet-18's first stage.")] = USUAL.width,
    batch_size: Annotated[int, flag("N", "Images per step of SimCLR.")] = USUAL.batch_size,
    side: Annotated[int, flag("N", "Pixels per side of a folder's images.")] = 32,
    seed: Annotated[int, setting(TrainSettings, "seed")] = USUAL.train.seed,
    device: Annotated[str, flag("NAME", "cpu, cuda, cuda:1, ... or auto.")] = USUAL.train.device,
    run: Annotated[Path | None, flag("FOLDER", "Keep SimCLR's run here, and resume it.")] = None,
    data_dir: shared.DataDir = None,
    json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Turn images or text into features.

    Example: difformer features cifar10 --encoder effnetlite0 --out cifar10.npz

    Load the file with load_dataset("cifar10", features="cifar10.npz"). A .npy with the texts of a
    table is for difformer shard ... --features texts.npy. Only the encoder simclr is trained:
    --epochs, --lr, --width, --batch-size and --run are its options.
    """
    from difformer.app.encoders.features import load_source, make_features, write_text_features
    from difformer.data.features import write_features
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
        written, (n, d) = out, write_text_features(path, out, settings)
    else:
        rows = load_source(source, data_dir, side=side)
        progress = [Progress("SimCLR", quiet=quiet or json)]
        features = make_features(rows, settings, folder=run, callbacks=progress)
        written, (n, d) = write_features(out, features), features.x.shape
    if json:
        print_json({"file": str(written), "rows": n, "features": d, "encoder": encoder})
    else:
        print(f"{written}: {counted(n, 'row')} of {counted(d, 'feature')} by {encoder}")
