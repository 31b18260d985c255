"""What is told when a task or a worker of a cluster fails; tests/test_cli_cluster.py runs one."""

from __future__ import annotations

from typing import Any

import pytest

from difformer.errors import DataError
from difformer.jobs.shards import _first  # pyright: ignore[reportPrivateUsage]
from difformer.shards.far import _finish  # pyright: ignore[reportPrivateUsage]


class FailedError(Exception):
    """As Ray Train's error: what each worker raised."""

    def __init__(self, message: str, **failures: Exception) -> None:
        super().__init__(message)
        self.worker_failures = {int(name[1:]): each for name, each in failures.items()}


class WrappedError(Exception):
    """As Ray Train wraps what a worker raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("Traceback (most recent call last):\n ...")
        self._base_exc = cause


def test_the_worker_that_says_what_to_do_is_named_before_those_that_lost_it() -> None:
    lost = WrappedError(RuntimeError("Connection closed by peer"))
    changed = WrappedError(DataError("part-00003/x.npy changed after it was written"))
    said = _first(FailedError("Training failed due to worker errors:\n...", r0=lost, r1=changed))
    assert said == "rank 1 of the cluster: part-00003/x.npy changed after it was written"
    assert (
        _first(FailedError("many", r0=lost)) == "rank 0 of the cluster: Connection closed by peer"
    )
    said = _first(FailedError("no\nworker could be started"))
    assert said == "training on the cluster failed: no worker could be started"


def test_the_error_of_a_task_is_its_own_line() -> None:
    exceptions: Any = pytest.importorskip("ray.exceptions")
    advice = "Failed to apply UDF transform after 1/1 attempts (total backoff 0.0s). To change"

    class Failing:  # as a dataset of Ray whose task raised an error, to which Ray adds its advice
        def materialize(self) -> None:
            cause = DataError(f"edges.csv: column 'w' is bad\n{advice}")
            raise exceptions.RayTaskError("keyed", "Traceback ...", cause).as_instanceof_cause()

    with pytest.raises(DataError) as caught:
        _finish(Failing())
    assert str(caught.value) == "sharding on the cluster: edges.csv: column 'w' is bad"
