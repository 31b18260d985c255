"""Sentences of errors: what is refused, and the one line that says why."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from doors import answer, call, numbers, write, write_edges, write_links, write_series, write_table

OWN = "train --nodes table.csv --id name -q --no-report --epochs 1"
LABEL = f"{OWN} --label y"

OPTIONS = (
    "trian",
    "train",
    "train cora --epoch 3",
    "train cora --epochs 0",
    "train cora --epochs three",
    "train cora --lr -1",
    "train cora --tau 2",
    "train cora --dropout 1.5",
    "train cora --kernel round",
    "train cora --recipe best",
    "train cora --device tpu",
    "train cora --num-heads 2",
    "train cora --graph-weight 2",
    "train cora --optimizer sgd",
    "train cora --patience 0",
    "train cora --pick-by luck",
    "train cora --split half",
    "train cora --split ratio:1/2",
    "train cora --seeds 0",
    "train cora --batch-size 9999 --epochs 1",
    "train nowhere",
    "train cora -m transformer",
    "train cora -m gcn --tau 0.5",
    "train cora --seeds a",
    "train cora --config unknown.toml --lr none",
    "train cora --resume",
    "train cora --data-dir nowhere",
    "train digits -m difformer --lr 1",
    "train digits -m forest --epochs 9",
    "train digits -m mlp --tau 0.2",
    "train digits --set epocs=3",
    "train digits --set lr=0",
    "train --steps 3",
    "train cora --edges links.csv",
    "train cora --places places.csv",
    "train cora --no-header",
    "train cora -m gcn --set depth=3",
    "train cora -m gcn --set num_layers=zero",
    "train cora -m gcn --set num_layers",
    "train digits -m gcn --epochs 1",
    "train cora --config missing.toml",
    "train cora --config bad.toml",
    "train cora --config unknown.toml",
    "train cora --engine spark",
    "train cora --workers 2",
    "train cora --label y",
    "train cora --known series.csv",
    "datasets fetch nowhere",
    "compare cora --models gcn,nothing",
    "compare cora --splits 0",
    "compare digits --label y",
    "tune digits --search luck",
    "tune digits --model mlp --set width=3",
    "tune table.csv",
    "tune cora --model nothing",
    "tune cora --trials 0",
    "reproduce",
    "reproduce table99",
    "reproduce table4 --splits random:0",
    "reproduce table2 --models nothing --show",
    "reproduce table2 --datasets nothing --show",
    "features digits --out x.txt",
    "features digits --encoder nothing --out x.npz",
    "features nowhere --out x.npz",
    "serve nowhere",
)
TABLES = (
    "train --nodes missing.csv --label y",
    OWN,
    f"{OWN} --label w",
    "train --nodes table.csv --id nobody --label y",
    f"{LABEL} --label name",
    f"{LABEL} --kind a=round",
    f"{LABEL} --kind c=number",
    f"{LABEL} --kind town=number",
    f"{LABEL} --kind town=date",
    f"{LABEL} --task ranking",
    f"{LABEL} --task regression",
    f"{LABEL} --kind y=number",
    f"{LABEL} --split public",
    f"{LABEL} -m nothing",
    f"train cora {LABEL[6:]}",
    f"{LABEL} --lr 0.1",
    f"{LABEL} --set tau=2",
    f"{LABEL} --set epochs=0",
    f"{LABEL} --kind a",
    "train --nodes ragged.csv --label y",
    "train --nodes empty.csv --label y",
    "train --nodes heads.csv --label y",
    "train --nodes twice.csv --label y",
    "train --nodes same.csv --label y --id name",
    "train --nodes noid.csv --label y --id name",
    "train --nodes one.csv --label y --epochs 1",
    "train --nodes unlabelled.csv --label y",
    "train --nodes bytes.csv --label y",
    "compare table.csv --label w",
    "compare table.csv",
)
EDGES = (
    "train table.csv --label y --edges edges.csv",
    f"{LABEL} --edges missing.csv",
    f"{LABEL} --edges stranger.csv",
    f"{LABEL} --edges short.csv",
    f"{LABEL} --edges weights.csv",
    f"{LABEL} --edges negative.csv",
    "train --nodes table.csv --label y --edges edges.csv --id town",
)
SERIES = (
    "train --series missing.csv",
    "train --series words.csv",
    "train --series few.csv",
    "train --series series.csv --edges stranger.csv",
    "train --series series.csv --set lags=0",
    "train --series series.csv --set lags=100",
    "train --series series.csv --set colour=red",
    "train --series series.csv --set transform=cube",
    "train --series series.csv --known nothing.csv",
    "train --series series.csv --label n0",
    "train cora --series series.csv",
    "train --series series.csv --split random:0",
    "train --series series.csv --data-dir d",
    "train --series series.csv --consistency 1",
    "train --series series.csv --set consistency=1",
    "train --series series.csv --model gcn",
    "train --series series.csv --recipe pap",
    "train --series series.csv --places places.csv",
)
RUNS = (
    "report nowhere",
    "report empty",
    "predict nowhere table.csv -o out.csv",
    "predict own -o out.csv",
    "predict own missing.csv -o out.csv",
    "predict own fewer.csv -o out.csv",
    "predict own words.csv -o out.csv",
    "predict own table.csv -o table.csv",
    "predict own table.csv -o out.csv --level 90",
    "predict own table.csv -o out.csv --edges stranger.csv",
    "predict own --series series.csv -o out.csv",
    "predict named table.csv -o out.csv",
    "predict series -o out.csv",
    "predict series --series few.csv -o out.csv",
    "predict series --series other.csv -o out.csv",
    "energy gcn",
    "energy own --weight -1",
    "energy named --seed 5",
    "export gcn --onnx model.onnx",
    "export own --onnx table.csv",
    "runs nowhere",
    "runs empty",
    "report own --points 1",
    "report own --projection umap",
    "train cora -m gcn --epochs 1 --out gcn",
    "train cora -m gcn --epochs 2 --out gcn --resume",
    "report damaged-config",
    "predict damaged-weights table.csv -o out.csv",
    "predict no-weights table.csv -o out.csv",
)
SHARDS = (
    "shard new --nodes missing.csv --label y",
    "shard new --nodes table.csv --label w",
    "shard new --nodes table.csv --label y --id nobody --edges edges.csv",
    "shard new --nodes table.csv --label y --parts 0",
    "shard new --nodes table.csv --label y --parts 1000",
    "shard new --nodes table.csv --label y --split half",
    "shard new --nodes table.csv --label y --split column:town",
    "shard new --nodes table.csv --label y --memory lots",
    "shard new --nodes table.csv --label y --partition round",
    "shard new --nodes table.csv --label y --engine spark",
    "shard new --nodes table.csv --label y --id name --edges words.csv",
    "shard new --nodes same.csv --label y --id name --edges edges.csv --parts 2",
    "shard new --nodes table.csv --label y --features missing.npy",
    "train parts --split random:0",
    "train parts --seeds 2",
    "train parts -m gcn",
    "train parts --neighbours 3",
    "train parts --batch-size 100",
    "train parts --monitor energy",
    "train parts --partition metis",
    "train broken",
    "train cut --epochs 1",
    "predict nowhere parts -o out.csv",
)


def files() -> None:
    """Good inputs and bad ones."""
    write_table()
    write_edges()
    write_series()
    write_links()
    rows = ["r0,1,up", "r1,2,down", "r2,3,up", "r3,4,down", "r4,5,up", "r5,6,down"]
    head = "name,a,y"
    for name, lines in {
        "ragged.csv": [head, *rows, "r6,1"],
        "empty.csv": [],
        "heads.csv": [head],
        "twice.csv": ["a,a,y", "1,2,up", "2,3,down"],
        "same.csv": [head, *rows, "r0,1,up"],
        "noid.csv": [head, *rows, ",1,up"],
        "one.csv": [head, *[row.replace("down", "up") for row in rows]],
        "unlabelled.csv": [head, *[f"r{i},{i}," for i in range(5)]],
        "fewer.csv": ["name,a,town", "q0,1,Rome"],
        "stranger.csv": ["source,target", "r0,r1", "r2,nobody"],
        "short.csv": ["source,target", "r0,r1", "r2"],
        "weights.csv": ["source,target,weight", "r0,r1,1", "r1,r2,heavy"],
        "negative.csv": ["source,target,weight", "r0,r1,1", "r1,r2,-1"],
        "few.csv": ["day,n0,n1,n2,n3", "2024-01-01,1,2,3,4", "2024-01-02,2,3,4,5"],
        "other.csv": ["day,m0", *[f"2024-03-{d:02},{d}" for d in range(1, 20)]],
        "nothing.csv": ["day,holiday", "2024-01-01,1"],
        "places.csv": ["node,x,y", "n0,1,2", "m9,2,3"],
        "bad.toml": ["[train", "epochs = 3"],
        "unknown.toml": ['dataset = "cora"', "[train]", "colour = 3"],
    }.items():
        write(name, lines)
    table = Path("table.csv").read_text().splitlines()
    write("words.csv", [table[0], "q0,large,1,Rome,2024-01-01,,,,"])
    Path("bytes.csv").write_bytes(b"name,a,y\nr0,\xff\xfe,up\n")


def run_folders() -> None:
    """Runs of each kind, and copies that are damaged."""
    import shutil

    answer(*shlex.split(f"{OWN} --label y --recipe stable --hidden-channels 8 --out own"))
    named = ("--epochs", 1, "--no-report", "-q", "--hidden-channels", 4)
    answer("train", "cora", *named, "--out", "named")
    answer("train", "cora", "-m", "gcn", *named[:4], "--out", "gcn")
    answer("train", "--series", "series.csv", *named[:4], "--out", "series")
    Path("empty").mkdir()
    for name in ("result", "config", "weights"):
        shutil.copytree("own", f"damaged-{name}")
    shutil.copytree("own", "no-weights")
    Path("damaged-result/result.json").write_text("{", encoding="utf-8")
    Path("damaged-config/config.toml").write_text("[own\n", encoding="utf-8")
    weights = Path("damaged-weights/estimator.safetensors")
    weights.write_bytes(weights.read_bytes()[:500])
    Path("no-weights/estimator.safetensors").unlink()


def shard_folders() -> None:
    """A folder of parts, and two that are damaged."""
    import shutil

    nodes = ("--nodes", "table.csv", "--edges", "edges.csv", "--id", "name", "--label", "y")
    answer("shard", "parts", *nodes, "--parts", 2, "-q")
    shutil.copytree("parts", "broken")
    Path("broken/manifest.json").write_text("{", encoding="utf-8")
    shutil.copytree("parts", "cut")
    Path("cut/part-00001/x.npy").unlink()


def refused(commands: tuple[str, ...], *folders: Callable[[], None]) -> dict[str, str]:
    """The exit code and the one line of each command that is refused."""
    files()
    for make in folders:
        make()
    return {line: sentence(line) for line in commands}


def sentence(line: str) -> str:
    """The last line on stderr of a command, after its exit code."""
    done = call(*shlex.split(line))
    said = done.err.strip().splitlines() or ["nothing is said"]
    return f"{done.code} {said[-1].replace(os.getcwd(), 'HERE')}"


X = np.array(numbers(20, 3))
Y = np.arange(20) % 2


def python() -> dict[str, str]:
    """Calls of the public names that raise, and what they say."""
    import difformer as d

    files()
    wrong: dict[str, Callable[[], Any]] = {
        "unfitted": lambda: d.DIFFormerClassifier().predict(X),
        "epochs": lambda: d.DIFFormerClassifier(epochs=0).fit(X, Y),
        "lr": lambda: d.DIFFormerClassifier(lr=-1.0).fit(X, Y),
        "recipe": lambda: d.DIFFormerClassifier(recipe="best").fit(X, Y),
        "options": lambda: d.DIFFormerClassifier(recipe="stable", options={"a": 1}).fit(X, Y),
        "graph": lambda: d.DIFFormerClassifier(graph="ring").fit(X, Y),
        "one class": lambda: d.DIFFormerClassifier().fit(X, np.zeros(20)),
        "lengths": lambda: d.DIFFormerClassifier().fit(X, Y[:5]),
        "missing": lambda: d.DIFFormerClassifier().fit(np.where(X > 1, np.nan, X), Y),
        "infinite": lambda: d.DIFFormerClassifier().fit(np.where(X > 1, np.inf, X), Y),
        "one row": lambda: d.DIFFormerClassifier().fit(X[0], Y),
        "edges": lambda: d.DIFFormerClassifier().fit(X, Y, graph=np.array([[0, 1], [1, 99]])),
        "columns": lambda: (
            d.DIFFormerRegressor(recipe="stable", epochs=1).fit(X, X[:, 0]).predict(X[:, :2])
        ),
        "regressor": lambda: d.DIFFormerRegressor().fit(X, np.array(["a"] * 20)),
        "validation": lambda: d.DIFFormerRegressor(validation_fraction=2).fit(X, X[:, 0]),
        "lags": lambda: d.DIFFormerForecaster(lags=0).fit(X),
        "short series": lambda: d.DIFFormerForecaster(lags=50).fit(X),
        "steps": lambda: d.DIFFormerForecaster(epochs=1).fit(X).predict(0),
        "dataset": lambda: d.load_dataset("nowhere"),
        "run": lambda: d.load_run("nowhere"),
        "table": lambda: d.read_table("table.csv", label="w"),
        "no table": lambda: d.read_table("missing.csv", label="y"),
        "model": lambda: d.DIFFormer(3, 4, 2, tau=2.0),
        "kernel": lambda: d.DIFFormer(3, 4, 2, kernel="round"),
        "file": lambda: d.DIFFormerClassifier.load("table.csv"),
        "conv": lambda: d.DIFFormerConv(3, 2, num_heads=0),
    }
    return {name: raised(wrong[name]) for name in wrong}


def raised(function: Callable[[], Any]) -> str:
    """The type and the sentence of the error that a call raises."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace(os.getcwd(), "HERE")
    return "nothing is raised"


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "errors-options": partial(refused, OPTIONS),
    "errors-tables": partial(refused, TABLES),
    "errors-edges": partial(refused, EDGES),
    "errors-series": partial(refused, SERIES),
    "errors-runs": partial(refused, RUNS, run_folders),
    "errors-shards": partial(refused, SHARDS, shard_folders),
    "errors-python": python,
}
