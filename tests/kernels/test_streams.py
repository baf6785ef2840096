"""On a CPU all is done in order. What a GPU does beside is in tests/test_gpu_kernels.py."""

import torch

from orbitset import kernels
from orbitset.kernels.streams import Second, beside, mark_made


def test_a_cpu_has_no_second_stream():
    second, done = Second(torch.device("cpu")), []
    second.catch_up()
    with second.work():
        done.append("beside")
    second.join()
    assert done == ["beside"]


def test_work_beside_a_tensor_that_nobody_marked_is_done_in_order():
    codes = torch.ones(2, requires_grad=True)
    mark_made(codes)  # which a CPU does not
    (total,) = beside(codes, lambda: (codes.sum(),))
    total.backward()
    assert total == 2 and torch.equal(codes.grad, torch.ones(2))
    assert beside(codes, lambda: None) is None


def test_without_kernels_nothing_is_marked(monkeypatch):
    monkeypatch.setattr(kernels, "serve", lambda *tensors: False)
    monkeypatch.setattr(torch.cuda, "current_stream", None)
    mark_made(torch.ones(1))
