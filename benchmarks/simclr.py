"""SimCLR on a small subset of CIFAR-10: its features compared with those of random weights.

python -m benchmarks.simclr      writes results/benchmarks/simclr.json

Both encoders are the same ResNet-18 from the same seed; one is trained on the images without
labels, the other is not trained. A linear probe (logistic regression on standardised features) is
fitted on half of the images and scored on the other half, over five random halves.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from benchmarks.measure import write_results
from difformer.app.encoders.features import make_features
from difformer.app.encoders.settings import FeatureSettings
from difformer.data.raw import Images, load_raw
from difformer.train.callbacks import Callback
from difformer.train.checkpoint import Row
from difformer.train.loop import Fit
from difformer.train.settings import TrainSettings

IMAGES = 1200
SETTINGS = FeatureSettings(
    width=8,
    batch_size=128,
    train=TrainSettings(
        epochs=15, lr=0.003, weight_decay=1e-6, schedule="cosine", warmup=1, threads=1
    ),
)


class Losses(Callback):
    """The loss of the watched pairs of views, epoch by epoch."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_evaluate(self, fit: Fit, row: Row) -> None:
        self.values.append(float(row["loss"]))


def probe(x: Tensor, y: Tensor) -> list[float]:
    """Accuracy of the linear probe on the other half, a value a halving."""
    halves = StratifiedShuffleSplit(5, test_size=0.5, random_state=0)
    found: list[float] = []
    for train, test in halves.split(x, y):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=500))
        model.fit(x[train].numpy(), y[train].numpy())
        found.append(float(model.score(x[test].numpy(), y[test].numpy())))
    return found


def subset(images: Images, count: int) -> Images:
    """The same number of images of every class, the first ones of each."""
    classes = int(images.y.max()) + 1
    each = count // classes
    first = [(images.y == c).nonzero()[:each, 0] for c in range(classes)]
    return images.take(torch.cat(first).sort().values)


def main() -> None:
    torch.set_num_threads(1)
    images = subset(load_raw("cifar10"), IMAGES)
    losses = Losses()
    trained = make_features(images, SETTINGS, callbacks=[losses])
    random = make_features(images, replace(SETTINGS, encoder="random"))
    again = make_features(images, replace(SETTINGS, encoder="random"))
    results: dict[str, Any] = {
        "images": len(images.y),
        "made": json.loads(trained.made),
        "loss_first": losses.values[0],
        "loss_last": losses.values[-1],
        "losses": losses.values,
        "same_seed_same_features": bool(torch.equal(random.x, again.x)),
    }
    for name, features in {"simclr": trained, "random": random}.items():
        values = probe(features.x, images.y)
        results[f"probe_{name}"] = values
        results[f"probe_{name}_mean"] = statistics.mean(values)
        results[f"probe_{name}_std"] = statistics.stdev(values)
    write_results("simclr", results)


if __name__ == "__main__":
    main()
