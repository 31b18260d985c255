"""The thread beside the model: PyTorch computes alone in it, and as before everywhere else."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from difformer.train.batches import background_worker


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_only_the_worker_computes_alone(three_threads):
    worker = background_worker()
    with worker, ThreadPoolExecutor(1) as other:
        assert worker.submit(torch.get_num_threads).result() == 1
        assert torch.get_num_threads() == 3
        assert other.submit(torch.get_num_threads).result() == 3
