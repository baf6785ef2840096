"""On which device and in which precision networks run, and float32 matrix products are taken on a GPU."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from orbitset.errors import ConfigError, check_choice

Precision = Literal["auto", "float32", "bfloat16"]


def check_device(name: Any) -> None:
    """Refuse a device that torch does not know, or that this machine does not have."""
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here: {reason}") from None


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


def in_bfloat16(precision: Precision, device: torch.device) -> bool:
    """Whether convolutions run in bfloat16: where asked for, and by default where that is fast."""
    check_choice("precision", precision, get_args(Precision))
    if precision != "auto":
        return precision == "bfloat16"
    return device.type == "cuda" or (device.type == "cpu" and _cpu_has_bfloat16())


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half-precision numbers as float32; others as they are."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


@functools.cache
def _cpu_has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 itself; others do it by way of float32, which is slower."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
