"""What of the optimizer can be seen without a GPU; the rest is in tests/test_gpu_steps.py."""

import pytest
import torch
from torch import nn

from orbitset.cuda.adam import Adam


def test_hooks_are_called_once_for_a_step():
    weight = nn.Parameter(torch.ones(1))
    torch.optim.Adam([weight])  # after which torch calls hooks around its own step too
    weight.grad = torch.ones_like(weight)
    optimizer = Adam([weight], lr=0.1)
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    optimizer.step()
    assert called == ["before", "after"] and weight.item() == pytest.approx(0.9)
    assert optimizer.step(lambda: torch.tensor(3.0)) == 3
