"""What a person is told when a task of a cluster fails; `tests/test_cli_cluster.py` runs one."""

from __future__ import annotations

from typing import Any

import pytest

from difformer.errors import DataError
from difformer.shards.cluster import _finished  # pyright: ignore[reportPrivateUsage]

exceptions: Any = pytest.importorskip("ray.exceptions")


class Failing:
    """As a dataset of Ray whose task raised an error, to which Ray appends its advice."""

    def materialize(self) -> None:
        advice = "Failed to apply UDF transform after 1/1 attempts (total backoff 0.0s). To change"
        cause = DataError(f"edges.csv: column 'w' is bad\n{advice}")
        raise exceptions.RayTaskError("keyed", "Traceback ...", cause).as_instanceof_cause()


def test_the_error_of_a_task_is_its_own_line() -> None:
    with pytest.raises(DataError) as caught:
        _finished(Failing())
    assert str(caught.value) == "sharding on the cluster: edges.csv: column 'w' is bad"
