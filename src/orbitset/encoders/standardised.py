"""A network behind the mean and s.d. that it expects of its images.

Shapes: N images of C x S x S.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Standardised(nn.Module):
    """A network behind the mean and s.d. that it expects of its images."""

    mean: Tensor
    sd: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], sd: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("sd", torch.tensor(sd)[:, None, None])

    def forward(self, images_NCSS: Tensor, **options: Any) -> Any:
        return self.network((images_NCSS - self.mean) / self.sd, **options)
