"""Log training to TensorBoard, and to Weights & Biases or MLflow if they are installed."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from difformer.jobs.job import Experiment
from difformer.jobs.rows import run_experiment
from difformer.train.callbacks import Callback, TensorBoard


class Tracker(Callback):
    def __init__(self, log: Any) -> None:
        self.log = log  # takes the numbers of an evaluated epoch, and its step

    def on_evaluate(self, fit: Any, row: dict[str, Any]) -> None:
        self.log({name: value for name, value in row.items() if name != "epoch"}, step=fit.epoch)


seen: list[dict[str, float]] = []
callbacks = [TensorBoard("logs"), Tracker(lambda row, step: seen.append({**row, "step": step}))]
if find_spec("wandb"):  # `wandb login` first, and no mode, to see them on its site
    callbacks.append(Tracker(import_module("wandb").init(project="digits", mode="offline").log))
if find_spec("mlflow"):
    callbacks.append(Tracker(import_module("mlflow").log_metrics))
run_experiment(Experiment.make("digits", train={"epochs": 20}), callbacks=lambda seed: callbacks)
print(f"{len(seen)} rows, the last: {seen[-1]}; look: tensorboard --logdir logs")
assert len(seen) == 20
