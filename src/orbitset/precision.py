"""In which precision float32 matrix products are taken on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch


@contextmanager
def products_in(precision: Literal["ieee", "tf32"], device: torch.device) -> Iterator[None]:
    """Matrix products of float32 in exactly this precision on a GPU, whatever is set around; no autocast."""
    products = torch.backends.cuda.matmul
    before, products.fp32_precision = products.fp32_precision, precision
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        products.fp32_precision = before
