import torch

from orbitset import precision
from orbitset.precision import in_bfloat16


def test_auto_precision_asks_the_cpu(monkeypatch):
    cpu = torch.device("cpu")
    for has in (True, False):
        monkeypatch.setattr(precision, "_cpu_has_bfloat16", lambda has=has: has)
        assert in_bfloat16("auto", cpu) is has
        assert in_bfloat16("bfloat16", cpu) and not in_bfloat16("float32", cpu)
