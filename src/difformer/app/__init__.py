"""What people call: the command line, the service, exports.

`difformer NAME` is `command` in `commands/NAME.py`, or NAME in the file that `FILES` names: a
function whose signature typer reads, or a Typer. The file is imported when the command is called.
What the help does not need (torch above all) is imported inside its functions. Other packages add
commands (see `difformer.extensions`).
"""

from __future__ import annotations

# In the order in which a new user needs them.
COMMANDS: dict[str, str] = {
    "datasets": "List the datasets, or fetch one.",
    "train": "Train a model on a dataset and keep the run in a folder.",
    "settings": "List every setting of a model and of training.",
    "compare": "Compare systems on the same splits, and say which is enough.",
    "tune": "Search for settings, by validation only.",
    "predict": "Predict new rows with a trained model.",
    "report": "Write the page of a run.",
    "runs": "List runs and compare them.",
    "energy": "Check that the energy falls from layer to layer of a trained model.",
    "shard": "Turn tables larger than memory into parts to train from.",
    "features": "Turn images or text into features.",
    "bench": "Measure how fast this machine runs it.",
    "serve": "Answer predictions over HTTP.",
    "export": "Write the model of a run as ONNX, checked against the run.",
}
FILES = {
    **dict.fromkeys(("datasets", "features", "settings"), "data"),
    **dict.fromkeys(("predict", "report", "runs", "energy", "serve", "export"), "runs"),
}
"""The file in `commands` of each command that shares one."""
