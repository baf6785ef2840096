"""Ways to bring codes to one scale. The paper leaves it open; the margin of a triplet means little without.

  none     codes as the last layer gives them
  batch    every entry to mean 0 and variance 1 over the batch, then a learned scale and shift
  unit     every code to length 1
  sphere   the batch's mean taken off, then every code to length sqrt(D): all directions are used from the
           start, where `unit` begins with all codes in nearly one, and entries keep a size of about 1

Shapes: N codes of D entries.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CodeNorm = Literal["none", "batch", "unit", "sphere"]


class UnitNorm(nn.Module):
    """Codes to length 1."""

    def forward(self, codes_ND: Tensor) -> Tensor:
        return F.normalize(codes_ND, dim=1)


class SphereNorm(nn.Module):
    """Codes seen from their mean, to length sqrt(D). Outside training the mean is a running one.

    >>> SphereNorm(2)(torch.tensor([[5.0, 5.0], [6.0, 6.0]])).round().tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    """

    running_mean: Tensor

    def __init__(self, code_size: int, *, momentum: float = 0.1, eps: float = 1e-6) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.register_buffer("running_mean", torch.zeros(code_size))

    def forward(self, codes_ND: Tensor) -> Tensor:
        mean_D = self.running_mean
        if self.training:
            mean_D = codes_ND.mean(0)
            self.running_mean.lerp_(mean_D.detach().to(self.running_mean.dtype), self.momentum)
        centred = codes_ND - mean_D
        return centred * (centred.square().mean(1, keepdim=True) + self.eps).rsqrt()


def build_code_norm(kind: CodeNorm, code_size: int) -> nn.Module:
    match kind:
        case "none":
            return nn.Identity()
        case "batch":
            return nn.BatchNorm1d(code_size)
        case "unit":
            return UnitNorm()
        case "sphere":
            return SphereNorm(code_size)
