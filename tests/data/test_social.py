"""The generated network has the asked size, a heavy tail, and labels that the graph helps with."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

import numpy as np
import pytest
import torch

from difformer.data.registry import load_dataset
from difformer.errors import DataError
from difformer_paper.datasets import social as social_module


@pytest.fixture(scope="module")
def social():
    return load_dataset("social", rows=5000, edges=60_000)


def test_it_has_the_asked_size_a_heavy_tail_and_both_splits_of_pokec(social):
    assert social.x.shape == (5000, 65)
    assert social.edge_index.shape == (2, 60_000)
    keys = social.edge_index[0] * 5000 + social.edge_index[1]
    assert keys.unique().numel() == 60_000
    assert (social.edge_index[0] != social.edge_index[1]).all()
    degree = torch.bincount(social.edge_index.flatten(), minlength=5000)
    assert degree.max() > 8 * degree.median()
    sizes = {name: [len(s.train), len(s.val), len(s.test)] for name, s in social.splits.items()}
    assert sizes == {"paper": [500, 500, 4000], "released": [2500, 1250, 1250]}


def test_equal_seeds_give_equal_data(social):
    again = load_dataset("social", rows=5000, edges=60_000)
    assert again.x.equal(social.x)
    assert again.y.equal(social.y)
    assert again.edge_index.equal(social.edge_index)
    other = load_dataset("social", rows=5000, edges=60_000, seed=1)
    assert not other.y.equal(social.y)


def test_labels_depend_on_attributes_and_on_friends(social):
    from sklearn.linear_model import LogisticRegression

    both = torch.cat([social.edge_index, social.edge_index.flip(0)], dim=1)
    mean = torch.zeros(5000, 65).index_add_(0, both[1], social.x[both[0]])
    mean /= torch.bincount(both[1], minlength=5000).clamp_min(1).unsqueeze(1)
    split = social.splits["released"]

    def accuracy(x):
        model = LogisticRegression(max_iter=500).fit(x[split.train], social.y[split.train])
        return model.score(x[split.test], social.y[split.test])

    own, friends = accuracy(social.x), accuracy(torch.cat([social.x, mean], dim=1))
    assert 0.6 < own < friends - 0.03 < 0.9
    assert abs(float(social.y.float().mean()) - 0.5) < 0.1


def test_features_may_live_in_a_mapped_file(social, tmp_path):
    file = tmp_path / "deep" / "x.npy"
    for _ in range(2):  # written, then found
        mapped = load_dataset("social", rows=5000, edges=60_000, features=str(file))
        assert mapped.x.equal(social.x)
        assert mapped.y.equal(social.y)
        assert [p.name for p in file.parent.iterdir()] == ["x.npy"]
    before = file.read_bytes()
    mapped.x[0, 0] = 7  # the tensor's own, not the file's
    assert file.read_bytes() == before


def test_processes_that_need_the_mapped_file_write_it_once(monkeypatch, tmp_path):
    pytest.importorskip("fcntl")
    begun, goes_on = Event(), Event()
    fills = []
    fill = social_module._fill

    def slow(*args):
        fills.append(args)
        begun.set()
        assert goes_on.wait(timeout=30)
        return fill(*args)

    monkeypatch.setattr(social_module, "_fill", slow)
    with ThreadPoolExecutor(2) as pool:
        options = {"rows": 50, "edges": 100, "features": str(tmp_path / "x.npy")}
        first = pool.submit(load_dataset, "social", **options)
        assert begun.wait(timeout=30)
        second = pool.submit(load_dataset, "social", **options)
        wait([second], timeout=0.5)
        goes_on.set()
        assert first.result().x.equal(second.result().x)
    assert len(fills) == 1


def test_a_file_of_another_shape_is_not_overwritten(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 65), dtype=np.float32))
    with pytest.raises(DataError, match="must hold \\(50, 65\\) float32, it holds \\(3, 65\\)"):
        load_dataset("social", rows=50, edges=100, features=str(tmp_path / "x.npy"))


@pytest.mark.parametrize("options", [{"rows": 3}, {"rows": 50, "edges": 50 * 49}])
def test_impossible_sizes_are_named(options):
    with pytest.raises(ValueError, match=r"(rows|edges) must"):
        load_dataset("social", **options)
