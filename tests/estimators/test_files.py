"""Saved estimators: the same bits when loaded, and damaged files refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from difformer import DIFFormerClassifier, DIFFormerRegressor
from difformer.errors import ModelFileError
from difformer.tensorfiles import read_tensors, write_tensors

Array = NDArray[Any]
Iris = tuple[Array, Array]


@pytest.mark.parametrize("which", ["alone", "joined"])
def test_a_saved_or_pickled_model_gives_the_same_bits(
    which: str, iris: Iris, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model: DIFFormerClassifier = request.getfixturevalue(which)
    model.save(tmp_path / "m.safetensors")
    new = iris[0] + 0.1
    for other in (
        DIFFormerClassifier.load(tmp_path / "m.safetensors"),
        pickle.loads(pickle.dumps(model)),  # noqa: S301
    ):
        assert np.array_equal(other.predict_proba(new), model.predict_proba(new))
        assert np.array_equal(other.transduction_, model.transduction_)
        assert other.get_params() == model.get_params()


def test_a_file_from_elsewhere_or_tampered_with_is_refused(
    alone: DIFFormerClassifier, tmp_path: Path
) -> None:
    path = tmp_path / "m.safetensors"
    alone.save(path)
    with pytest.raises(ModelFileError, match="holds a DIFFormerClassifier"):
        DIFFormerRegressor.load(path)
    content = path.read_bytes()
    for damage in (content[:-10], content[: len(content) // 2], b"x" * 100, b"\x80\x04]."):
        path.write_bytes(damage)
        with pytest.raises(ModelFileError, match=str(path)):
            DIFFormerClassifier.load(path)
    nan = np.array([np.nan]).tobytes()
    path.write_bytes(content[:-8] + nan)
    with pytest.raises(ModelFileError, match="changed after it was written"):
        DIFFormerClassifier.load(path)
    path.write_bytes(content)
    tensors, description = read_tensors(path, "estimator")
    tensors["embedding"][0, 0] = float("nan")
    write_tensors(path, "estimator", tensors, description)
    with pytest.raises(ModelFileError, match="NaN or infinity"):
        DIFFormerClassifier.load(path)
