"""Fuzzed files of tensors: models, frozen models, estimators and checkpoints."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from mutate import VALUES, change_value, damage_bytes, dumps

from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.errors import DifformerError
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.nn.frozen import FrozenDIFFormer
from difformer.nn.model import DIFFormer
from difformer.tensorfiles import read_tensors, write_tensors
from difformer.train.batches import FullBatch
from difformer.train.loop import fit
from difformer.train.objective import objective_for
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

PROBE = torch.linspace(-2, 2, 5 * 6, dtype=torch.float64).reshape(5, 6)


def prepare_models(root: Path) -> None:
    with seeded(0):
        model = DIFFormer(6, 8, 3).double()
    model.save(root / "model.safetensors")
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model.freeze(x).save(root / "frozen.safetensors")
    y = (x[:, 0] > 0).long()
    own = DIFFormerClassifier(epochs=2, hidden_channels=8, random_state=0, graph="knn")
    own.fit(x.numpy(), y.numpy()).save(root / "estimator.safetensors")


def forge(source: Path, target: Path, kind: str, draw: Random) -> None:
    """A file with a right checksum over a description or tensors that were changed."""
    tensors, description = read_tensors(source, kind)
    if draw.random() < 0.7:
        description = change_value(description, draw, tuple(v for v in VALUES if v != "\ud800"))
        if not isinstance(description, dict):
            description = {}
    else:
        name = draw.choice(sorted(tensors))
        t = tensors[name]
        changes: list[Callable[[], Any]] = [
            lambda: t[:0] if t.ndim else t.reshape(1),
            lambda: torch.cat([t, t]) if t.ndim else t.expand(2),
            lambda: t.reshape(-1),
            lambda: t.to(torch.float16),
            lambda: t.to(torch.int64),
            lambda: t.to(torch.bool),
            lambda: torch.full_like(t, -1),
            lambda: torch.full_like(t, 2**62) if not t.is_floating_point() else t * 1e3,
            lambda: t.to(torch.float64) * float("nan"),
            lambda: None,
        ]
        new = draw.choice(changes)()
        tensors.pop(name)
        if new is not None:
            tensors[name if draw.random() < 0.9 else "other"] = new
    try:
        write_tensors(target, kind, tensors, description)
    except (ValueError, TypeError, OverflowError, RecursionError):  # no such file can be written
        shutil.copy(source, target)


def damage_header(content: bytes, draw: Random) -> bytes:
    """The JSON header of a safetensors file changed, its length made to fit or not."""
    size = int.from_bytes(content[:8], "little")
    header = change_value(json.loads(content[8 : 8 + size]), draw)
    text = dumps(header, draw)
    length = len(text) if draw.random() < 0.9 else draw.choice((0, 2**40, len(text) * 2))
    return length.to_bytes(8, "little") + text + content[8 + size :]


def tensors_case(
    name: str, kind: str, use: Callable[[Path], Any]
) -> Callable[[Path, Path, Random], None]:
    def case(root: Path, place: Path, draw: Random) -> None:
        source, path = root / f"{name}.safetensors", place / f"{name}.safetensors"
        way = draw.random()
        if way < 0.4:
            forge(source, path, kind, draw)
            found = use(path)
            assert np.isfinite(found).all(), "an answer that is not finite"
            return
        damage = damage_bytes if way < 0.7 else damage_header
        path.write_bytes(damage(source.read_bytes(), draw))
        found = use(path)
        assert np.array_equal(found, use(source)), "another answer from a damaged file"

    return case


def use_model(path: Path) -> Any:
    with torch.no_grad():
        return DIFFormer.load(path).double()(PROBE).numpy()


def use_frozen(path: Path) -> Any:
    with torch.no_grad():
        return FrozenDIFFormer.load(path)(PROBE).numpy()


def use_estimator(path: Path) -> Any:
    estimator = DIFFormerClassifier.load(path)
    try:
        return estimator.predict_proba(PROBE.numpy())
    except ValueError as error:  # a forged description wants other columns
        raise DifformerError(str(error)) from error


def train_small(folder: Path, epochs: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 4, generator=generator)
    data = Dataset("toy", x, (x[:, 0] > 0).long())
    split = Split("toy", list(range(10)), list(range(10, 20)), list(range(20, 30)))
    with seeded(0):
        model = DIFFormer(4, 4, 2, dropout=0.5)
    settings = TrainSettings(epochs=epochs, threads=1, checkpoint_every=0)
    batch, objective = FullBatch(data, split), objective_for(data.task)
    return fit(model, batch, objective, split, settings, folder=folder)


CHECKPOINT = "checkpoint.safetensors"


def prepare_checkpoint(root: Path) -> None:
    """A run cut short after two of three epochs, and the same one whole."""
    train_small(root / "whole", 3)
    pid = os.fork()
    if pid == 0:
        import difformer.train.loop as loop

        saved, count = loop.save_checkpoint, 0

        def save(*words: Any) -> None:
            nonlocal count
            saved(*words)
            count += 1
            if count == 2:
                os._exit(0)

        loop.save_checkpoint = save
        train_small(root / "cut", 3)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0, "no checkpoint was written"
    assert (root / "cut" / CHECKPOINT).exists()


def checkpoint_case(root: Path, place: Path, draw: Random) -> None:
    folder = place / "cut"
    shutil.copytree(root / "cut", folder)
    source, path, way = root / "cut" / CHECKPOINT, folder / CHECKPOINT, draw.random()
    if way < 0.5:
        forge(source, path, "checkpoint", draw)
    else:
        damage = damage_bytes if way < 0.75 else damage_header
        path.write_bytes(damage(source.read_bytes(), draw))
    train_small(folder, 3)
    if way >= 0.5:
        name = "model.safetensors"
        same = (folder / name).read_bytes() == (root / "whole" / name).read_bytes()
        assert same, "other weights after a damaged checkpoint"
