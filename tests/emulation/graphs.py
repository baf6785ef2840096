"""Recorded steps on a CPU: a stand-in for CUDA graphs that notes operations and does them again.

What is recorded is what a GPU would be given: operations of torch on the tensors of the moment. Python
between them is not repeated, and results go where they went the first time.
"""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves


class EmulatedGraph:
    """Stands in for `torch.cuda.CUDAGraph`."""

    def __init__(self):
        self.operations = []

    def replay(self):
        with torch._C._AutoDispatchBelowAutograd():
            for func, args, kwargs, results in self.operations:
                again = tree_leaves(func(*args, **kwargs))
                for result, value in zip(tree_leaves(results), again, strict=True):
                    if isinstance(result, torch.Tensor) and result.data_ptr() != value.data_ptr():
                        result.copy_(value)


class _Recording(TorchDispatchMode):
    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        self.graph.operations.append((func, args, kwargs or {}, results))
        return results


def is_recording():
    return isinstance(_get_current_dispatch_mode(), _Recording)


@contextmanager
def _recorded(graph, **_):
    """Nothing is done while it is recorded: buffers and weights are put back."""
    before = [(tensor, tensor.detach().clone()) for tensor in _recorded.kept()]
    with _Recording(graph):
        yield
    with torch.no_grad():
        for tensor, value in before:
            tensor.copy_(value)


def emulate_graphs(monkeypatch, kept):
    """`kept()` gives all tensors that outlive a step: weights, buffers, sums of the monitor."""
    stream = SimpleNamespace(
        wait_stream=lambda other: None,
        wait_event=lambda event: None,
        record_event=lambda: None,
        device_index=0,
        device=torch.device("cpu"),
    )
    _recorded.kept = kept
    for name, value in {
        "CUDAGraph": EmulatedGraph,
        "Stream": lambda **_: stream,
        "graph": _recorded,
        "graph_pool_handle": lambda: None,
        "current_stream": lambda *_: stream,
        "stream": lambda stream: nullcontext(),
        "set_stream": lambda stream: None,
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": torch.set_rng_state,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *_: None, raising=False)
