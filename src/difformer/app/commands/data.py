"""difformer datasets, features and settings: what there is to train on, and with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from difformer.app import options as shared
from difformer.app.encoders import (
    ENCODERS,
    FeatureSettings,
    load_source,
    make_features,
    write_text_features,
)
from difformer.app.options import (
    KERNELS,
    DataDir,
    Json,
    argument,
    flag,
    series_options,
    setting,
    shown_default,
)
from difformer.app.output import print_json, print_table
from difformer.blocks import Table
from difformer.data.registry import DATASETS, raw_datasets
from difformer.files import counted
from difformer.settings import options_of
from difformer.systems.registry import SYSTEMS, get_system
from difformer.train.settings import TrainSettings

HEAD = ("name", "default", "range", "meaning")
RAW = ", ".join(raw_datasets())
USUAL = FeatureSettings()
NAMES = ", ".join(f"{name} ({takes})" for name, (_, takes) in ENCODERS.items())

datasets = typer.Typer(add_completion=False, rich_markup_mode=None, invoke_without_command=True)


@datasets.callback()
def list_datasets(ctx: typer.Context, json: Json = False) -> None:
    """List the datasets, or fetch one.

    Example: difformer datasets fetch cora

    A dataset is looked for in --data-dir, then in $DIFFORMER_DATA, then in the cache. If it is in
    none of them, it is fetched when it is first used.
    """
    if ctx.invoked_subcommand is not None:
        return
    if json:
        print_json([{"name": name, "summary": entry.summary} for name, entry in DATASETS.items()])
        return
    rows = tuple((name, entry.summary) for name, entry in DATASETS.items())
    print_table(Table("", ("Name", "What it is"), rows))


@datasets.command()
def fetch(
    name: Annotated[str, argument("NAME", "A dataset's name.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Fetch a dataset into --data-dir or the cache, and verify its checksums.

    Example: difformer datasets fetch cora --data-dir ~/data
    """
    from difformer.data.registry import fetch_dataset

    folder = fetch_dataset(name, data_dir)
    if json:
        print_json({"name": name, "folder": None if folder is None else str(folder)})
    else:
        print(f"{name} is embedded" if folder is None else f"{name} is in {folder}")


def features(
    source: Annotated[
        str,
        argument("SOURCE", f"{RAW}, a folder of images, or a .txt file with one text per line."),
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
        found = make_features(rows, settings, folder=run, callbacks=progress)
        written, (n, d) = write_features(out, found), found.x.shape
    if json:
        print_json({"file": str(written), "rows": n, "features": d, "encoder": encoder})
    else:
        print(f"{written}: {counted(n, 'row')} of {counted(d, 'feature')} by {encoder}")


def settings(
    model: Annotated[str, argument("[MODEL]", f"{', '.join(SYSTEMS)}. [difformer-s]")] = (
        "difformer-s"
    ),
    json: Json = False,
) -> None:
    """List what --set takes: every setting of a model, of training and of --series.

    Example: difformer settings gcn

    Each has its name, its default, its range and its meaning. On the command line a setting is
    given as --set name=value, and in a file for --config in its section, [model] or [train].
    """
    system = get_system(model)
    groups = {
        system.title: options_of(system.config),
        "Training": {k: v for k, v in options_of(TrainSettings).items() if system.uses(k)},
    }
    if model in KERNELS:
        known = {name for options in groups.values() for name in options}
        groups["Series"] = {k: v for k, v in series_options().items() if k not in known}
    rows = {
        group: [(n, shown_default(n, model), each.range, each.help) for n, each in options.items()]
        for group, options in groups.items()
    }
    if json:
        found = [dict(zip(HEAD, row, strict=True), of=of) for of in rows for row in rows[of]]
        return print_json({"model": model, "settings": found})
    for group, cells in rows.items():
        print_table(Table("", HEAD, cells), group)
    return None
