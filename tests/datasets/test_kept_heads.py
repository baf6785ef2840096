import pytest
import torch

from orbitset.datasets import kept_heads
from orbitset.datasets.heads import render_heads
from orbitset.datasets.kept_heads import load_heads


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Heads with one view and session each, so that the tests are quick."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls = []

    def render(**options):
        calls.append(options)
        return render_heads(**options, views=["0"], sessions=1)

    monkeypatch.setattr(kept_heads, "render_heads", render)
    return calls


def test_heads_are_rendered_once(cache):
    first, second = (load_heads(2, 3, size_px=8) for _ in range(2))
    assert len(cache) == 1
    assert torch.equal(first.images, second.images)
    assert first.values == second.values
    assert all(torch.equal(ids, second.factors[name]) for name, ids in first.factors.items())
    load_heads(2, 3, size_px=12)
    load_heads(2, 3, size_px=8, seed=1)
    assert len(cache) == 3


def test_a_damaged_or_unwritable_cache_does_no_harm(cache, tmp_path, monkeypatch):
    wanted = load_heads(1, 2, size_px=8)
    (kept,) = (tmp_path / "cache" / "orbitset" / "heads").iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert torch.equal(load_heads(1, 2, size_px=8).images, wanted.images)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert torch.equal(load_heads(1, 2, size_px=8).images, wanted.images)
