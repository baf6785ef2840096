"""The affine warp of 256 digits of 28 px onto 64 px, ours beside torch's parts and kornia, on a GPU.

`python benchmarks/warp.py`. README.md in this folder says what is compared.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
import torch
import torch.nn.functional as F
from torch import Tensor

from orbitset.orbits.affine import AffineRanges, sample_affine, warp, warp_reference

NUM, SIZE_PX, CANVAS_PX = 256, 28, 64


def by_torch(images: Tensor, matrices: Tensor) -> Tensor:
    """affine_grid and grid_sample, as their documentation joins them; the matrices are given."""
    grid = F.affine_grid(matrices, [NUM, 1, CANVAS_PX, CANVAS_PX], align_corners=False)
    return F.grid_sample(images.float() / 255, grid, padding_mode="zeros", align_corners=False)


def timed_ms(call: Callable[[], Any], rounds: int = 50) -> tuple[float, float]:
    """One call and the wait for it, as a caller sees it."""
    for _ in range(10):
        call()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return record.median_and_spread(times)


def on_gpu_ms(call: Callable[[], Any], calls: int = 20) -> float:
    """On the GPU alone: many calls recorded and replayed, so that launching costs nothing."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    times = []
    for _ in range(11):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / calls)
    return record.median_and_spread(times)[0]


def kernels_of(call: Callable[[], Any]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    return sum(event.count for event in found.key_averages() if event.device_time_total > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=record.RESULTS / "warp-cuda.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import kornia.augmentation as K

    results = record.environment("kornia")
    results["hardware"]["gpu"] = torch.cuda.get_device_name()
    generator = torch.Generator().manual_seed(0)
    shape = (NUM, 1, SIZE_PX, SIZE_PX)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).cuda()
    params = sample_affine(NUM, AffineRanges(), generator).cuda()
    matrices = torch.randn(NUM, 2, 3, generator=generator).cuda()
    pad = (CANVAS_PX - SIZE_PX) // 2
    padded = F.pad(images.float() / 255, (pad, pad, pad, pad))
    shift = 15 / CANVAS_PX
    augment = K.RandomAffine(
        degrees=90.0, translate=(shift, shift), scale=(0.7, 1.3), shear=(-17.0, 17.0), p=1.0
    )
    calls = {
        "orbitset": lambda: warp(images, params, CANVAS_PX),
        "orbitset, reference": lambda: warp_reference(images, params, CANVAS_PX),
        "affine_grid + grid_sample": lambda: by_torch(images, matrices),
        "kornia RandomAffine": lambda: augment(padded),
    }
    rows = results["rows"] = []
    for name, call in calls.items():
        median, spread = timed_ms(call)
        row = {"name": name, "ms": round(median, 4), "iqr_ms": round(spread, 4)}
        row["kernels"] = kernels_of(call)
        row["on_gpu_ms"] = None if "kornia" in name else round(on_gpu_ms(call), 5)
        rows.append(row)
        print(row)
    differ = (warp(images, params, CANVAS_PX) - warp_reference(images, params, CANVAS_PX)).abs()
    results["largest_difference_in_grey_levels"] = round(255 * differ.max().item(), 4)
    ours, kornia = rows[0], rows[-1]
    checks = {
        "the affine warp is one kernel": ours["kernels"] == 1,
        "and takes 0.1 ms or less": ours["ms"] <= 0.1,
        "within one grey level of the reference": results["largest_difference_in_grey_levels"] <= 1,
        "at least ten times kornia's RandomAffine": kornia["ms"] >= 10 * ours["ms"],
    }
    results["requirements"] = [
        {"text": text, "met": bool(met), "missed_by": []} for text, met in checks.items()
    ]
    print("largest difference, grey levels:", results["largest_difference_in_grey_levels"])
    record.print_requirements(results["requirements"])
    record.write(options.out, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
