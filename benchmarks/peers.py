"""Losses of pytorch-metric-learning, as losses from outside the package: `--loss peers:sup_con`.

The miner and the numbers are those of its documentation.
"""

from functools import cache
from typing import Any

from torch import Tensor


def sup_con(codes: Tensor, batch: Any, *, temperature: float = 0.1) -> Tensor:
    loss: Tensor = _sup_con(temperature)(codes, batch.orbits)
    return loss


def multi_similarity(codes: Tensor, batch: Any, *, epsilon: float = 0.1) -> Tensor:
    loss, miner = _multi_similarity(epsilon)
    value: Tensor = loss(codes, batch.orbits, miner(codes, batch.orbits))
    return value


@cache
def _sup_con(temperature: float) -> Any:
    from pytorch_metric_learning.losses import SupConLoss

    return SupConLoss(temperature=temperature)


@cache
def _multi_similarity(epsilon: float) -> tuple[Any, Any]:
    from pytorch_metric_learning.losses import MultiSimilarityLoss
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    return MultiSimilarityLoss(alpha=2, beta=50, base=0.5), MultiSimilarityMiner(epsilon=epsilon)
