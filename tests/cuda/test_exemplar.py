"""On a CPU, where it is right too; on a GPU it is in tests/test_gpu_losses.py."""

import pytest
import torch
import torch.nn.functional as F

from orbitset.cuda import exemplar


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_chunks_change_neither_loss_nor_gradient(monkeypatch, rows):
    generator = torch.Generator().manual_seed(0)
    codes, weight, bias = (
        torch.randn(shape, dtype=torch.float64, generator=generator)
        for shape in ((7, 4), (11, 4), (11,))
    )
    orbit = torch.tensor([0, 10, 3, 3, 5, 9, 1])
    parts = [[t.clone().requires_grad_() for t in (codes, weight, bias)] for _ in range(2)]
    whole = F.cross_entropy(F.linear(*parts[0]), orbit)
    a, b, c = parts[1]
    monkeypatch.setattr(exemplar, "CHUNK_BYTES", rows * 11 * 8)
    chunked = exemplar.linear_cross_entropy(a, orbit, b, c)
    torch.testing.assert_close(chunked, whole)
    (3 * whole).backward()
    (3 * chunked).backward()
    for one, other in zip(*parts, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
