"""Sharding and training with Ray on a real cluster: two nodes of this machine, one is killed.

Everything that talks to Ray is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
write_csv = pytest.importorskip("pyarrow.csv").write_csv
pytest.importorskip("duckdb")
if find_spec("ray") is None:
    pytest.skip("Ray is not installed: make ray", allow_module_level=True)

N, EPOCHS = 120, 150
# Rows that stay where they are, and rows that are brought together by a part computed beforehand,
# as for every other partition.
CASES = [("range", "parquet"), ("streaming", "csv")]
LONG = ("--epochs", EPOCHS, "--patience", EPOCHS, "--checkpoint-every", 0, "--no-report")
OPTIONS = (*LONG, "--hidden-channels", 8, "--threads", 1, "-q")
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "240",  # a busy machine
    "RAY_worker_niceness": "0",
    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
}
# Starts the nodes, says where, removes the second when told to, and ends with its input.
NODES = """
import sys
from ray.cluster_utils import Cluster
small = {"num_cpus": 2, "object_store_memory": 100 * 2**20}
nodes = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
second = nodes.add_node(**small)
print("address", nodes.address, flush=True)
for line in sys.stdin:
    nodes.remove_node(second, allow_graceful=False)
    print("killed one", flush=True)
nodes.shutdown()
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Callable[[], str]]]:
    """The address of a cluster, from outside, and what kills one of its nodes."""
    log, pipe = tmp_path_factory.mktemp("nodes") / "log", subprocess.PIPE
    words = [sys.executable, "-c", NODES]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            words, env=ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=errors, text=True
        ) as process,
    ):
        told, lines = process.stdin, process.stdout
        assert told is not None
        assert lines is not None

        def said(word: str) -> str:
            found = (line.removeprefix(word).strip() for line in lines if line.startswith(word))
            return next(found, "") or pytest.fail(f"it did not say {word}: {log.read_text()}")

        def kill() -> str:
            told.write("kill\n")
            told.flush()
            return said("killed")

        yield said("address"), kill


def python(*words: object) -> str:
    """Run Python, which must succeed, and return what it said on stderr."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


# Shards with both engines in one process, since connecting takes long; then asks for too much.
SHARDS = """
import json, sys
from pathlib import Path
from difformer.app.cli import main

def difformer(*words):
    try:
        main([str(word) for word in words])
    except SystemExit as ended:
        return int(ended.code or 0)

address, folder, cases = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
ray = ("--engine", "ray", "--address", address)
columns = ("--id", "name", "--label", "way", "--parts", 4, "--memory", "12GB", "-q")
for partition, kind in cases:
    given = ("--nodes", folder / f"nodes-*.{kind}", "--edges", folder / f"edges.{kind}", *columns)
    for engine, where in ((), "one"), (ray, "ray"):
        out = folder / f"{partition}-{where}"
        code = difformer("shard", out, *given, "--partition", partition, *engine)
        assert code == 0, (partition, where)
out = folder / "many"
code = difformer("train", folder / "range-one", "--out", out, *ray, "--workers", 9, "--epochs", 1)
assert code == 2, code
given = ("--nodes", folder / "nodes-*.csv", "--edges", folder / "bad.parquet", *columns)
assert difformer("shard", folder / "bad", *given, *ray) == 2
"""


@pytest.fixture(scope="module")
def made(nodes: tuple[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Parts of one machine and of the cluster by each partition, and what was said."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3))
    names: Any = [f"u{i}" for i in range(N)]
    columns = {"name": names, **{f"x{j}": x[:, j] for j in range(3)}, "way": x[:, 0] > 0}
    table = pa.table(columns)
    for number, first in enumerate((0, 50)):  # two files, as a large table has
        piece = table.slice(first, 50 if first == 0 else N)
        pq.write_table(piece, folder / f"nodes-{number}.parquet", row_group_size=30)
        write_csv(piece, folder / f"nodes-{number}.csv")
    ends = [[names[i] for i in rng.integers(N, size=300)] for _ in range(2)]
    ends[0][:4] = ["nobody", "u3", "u4", " u4"]
    ends[1][:4] = ["u1", "u3", "u5", "u5"]
    weights = rng.integers(1, 9, 300).astype(np.float32)
    edges = pa.table({"from": ends[0], "to": ends[1], "weight": weights})
    pq.write_table(edges, folder / "edges.parquet")
    bad = edges.set_column(2, "weight", [pa.array(-weights)])
    pq.write_table(bad, folder / "bad.parquet")
    write_csv(edges, folder / "edges.csv")
    return folder, python("-c", SHARDS, nodes[0], folder, json.dumps(CASES))


@pytest.mark.parametrize("partition", [partition for partition, _ in CASES])
def test_a_cluster_makes_the_parts_of_one_machine(made: tuple[Path, str], partition: str) -> None:
    one, ray = (made[0] / f"{partition}-{where}" for where in ("one", "ray"))
    files = sorted(p.relative_to(one) for p in one.rglob("*.npy"))
    assert len(files) == 4 * 9
    assert files == sorted(p.relative_to(ray) for p in ray.rglob("*.npy"))
    for file in [*files, Path("manifest.json")]:
        assert (ray / file).read_bytes() == (one / file).read_bytes(), file


def test_what_a_cluster_cannot_do_is_one_line(made: tuple[Path, str]) -> None:
    lacks, bad = [line for line in made[1].splitlines() if line.startswith("error: ")]
    assert "training with 9 workers asks for 9 processors, the cluster has 4" in lacks
    assert "sharding on the cluster: " in bad
    assert bad.endswith("column 'weight' must hold finite weights, 0 or more, in every row")


def epochs_of(out: Path) -> int:
    file = out / "metrics.csv"
    return len(file.read_text().splitlines()) - 1 if file.exists() else 0


def test_a_run_whose_node_is_killed_ends_with_the_bytes_it_would_have_had(
    made: tuple[Path, str], nodes: tuple[str, Callable[[], str]], tmp_path: Path
) -> None:
    parts = made[0] / "range-ray"
    two = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "difformer")
    python(*two, "train", parts, "--out", tmp_path / "calm", *OPTIONS)
    out, (address, kill) = tmp_path / "run", nodes
    ray = ("--engine", "ray", "--workers", 2, "--address", address)
    words = ("train", parts, "--out", out, *ray, *OPTIONS)
    with (tmp_path / "said").open("w") as said:
        job = subprocess.Popen(
            [sys.executable, "-m", "difformer", *map(str, words)],
            env=ENVIRONMENT,
            stdout=said,
            stderr=said,
        )
        while epochs_of(out) < 5 and job.poll() is None:
            time.sleep(0.02)
        kill()
        reached = epochs_of(out)
        code = job.wait(timeout=600)
    assert code == 0, (tmp_path / "said").read_text()
    assert reached < EPOCHS  # it was killed in the middle
    names = ("model.safetensors", "metrics.csv", "predictions-00001-of-00002.parquet")
    for name in names:
        assert (out / name).read_bytes() == (tmp_path / "calm" / name).read_bytes(), name
    assert not (out / ".ray").exists()
