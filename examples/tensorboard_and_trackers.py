"""Watch training in TensorBoard, and in any tracker (Weights & Biases, MLflow) by a callback."""

from typing import Any

from difformer.experiments.experiment import Experiment
from difformer.experiments.run import run_experiment
from difformer.train import Callback, TensorBoard


class Tracker(Callback):
    """Hands every evaluated epoch's row to `log`: wandb.log, or mlflow.log_metrics."""

    def __init__(self, log: Any) -> None:
        self.log = log

    def on_evaluate(self, fit: Any, row: dict[str, Any]) -> None:
        self.log({name: value for name, value in row.items() if name != "epoch"}, step=fit.epoch)


seen: list[dict[str, float]] = []
experiment = Experiment.make("digits", train={"epochs": 20})
callbacks = [TensorBoard("logs"), Tracker(lambda row, step: seen.append({**row, "step": step}))]
result = run_experiment(experiment, callbacks=lambda seed: callbacks)
print(f"{len(seen)} rows, the last: {seen[-1]}")
print("look: tensorboard --logdir logs")
assert len(seen) == 20
