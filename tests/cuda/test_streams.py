"""On a CPU all is done in order. What a GPU does beside is in tests/test_gpu_kernels.py."""

import torch

from orbitset.cuda.streams import Second, joined


def test_a_cpu_has_no_second_stream():
    second, done = Second(torch.device("cpu")), []
    second.catch_up()
    with second.work(), joined(torch.device("cpu")):
        done.append("beside")
    second.join()
    assert done == ["beside"]
