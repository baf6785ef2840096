"""How time and memory grow with size: mining, one-shot evaluation, embedding and training, four sizes each.

`python benchmarks/scaling.py --device cpu` (or cuda) writes the figures and a plot with fitted exponents.
README.md in this folder says how.
"""

import argparse
import math
import multiprocessing
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record

CODE_SIZE, MEMBERS = 1024, 4
SIZES = {
    "cpu": {
        "mining": (512, 1024, 2048, 4096),
        "one-shot": (1000, 2000, 4000, 8000),
        "embedding": (256, 512, 1024, 2048),
        "training": (32, 64, 128, 256),
    },
    "cuda": {
        "mining": (1024, 2048, 4096, 8192),
        "one-shot": (5000, 10_000, 20_000, 40_000),
        "embedding": (5000, 10_000, 20_000, 40_000),
        "training": (256, 512, 1024, 2048),
    },
}
UNIT = {
    "mining": "codes in the batch",
    "one-shot": "queries, 100 draws of 10 labelled codes",
    "embedding": "images of 64 px",
    "training": "images in the batch",
}
MINING_LIMIT = {"time": "B² log B", "memory": "B²"}


def build(task: str, size: int, device: str) -> Callable[[], Any]:
    """A function that does the task once."""
    import torch

    generator = torch.Generator().manual_seed(0)
    if task == "mining":
        from orbitset.losses import distance_matrix, mine

        codes = torch.randn(size, CODE_SIZE, generator=generator).to(device)
        orbit = torch.arange(size, device=device) // MEMBERS
        return lambda: mine(distance_matrix(codes), orbit, max_members=MEMBERS)
    if task == "one-shot":
        from orbitset.evaluation import Labelled, draw_labelled_sets, knn_accuracy

        labels = torch.arange(size + 1000) % 10
        codes = torch.randn(size + 1000, CODE_SIZE, generator=generator).to(device)
        labels = labels.to(device)
        gallery = Labelled(codes[:1000], labels[:1000])
        queries = Labelled(codes[1000:], labels[1000:])

        def one_shot() -> object:
            sets = draw_labelled_sets(gallery.labels, shots=1, draws=100)
            return knn_accuracy(gallery, queries, labelled_sets=sets)

        return one_shot
    import training

    if task == "training":
        # orbits that every batch divides, so that all steps are of one size
        step, _ = training.ours("OJ", "auto", size, 20_480 if device == "cuda" else 2048, device)
        return step
    from orbitset.orbits import AffineOrbits
    from orbitset.protocols.encoding import encode_members, encoding_with

    model = training.network(device).eval()
    orbits = AffineOrbits(training.digits(size)[0].to(device), canvas_px=64, members=2)
    orbit = torch.arange(size, device=device)
    encode = encoding_with(model, precision="auto")
    return lambda: encode_members(encode, orbits, orbit, torch.ones_like(orbit))


def measure(task: str, size: int, device: str) -> tuple[float, float, float]:
    """Median seconds, their spread, and peak bytes beyond what was there before."""
    import torch

    warnings.simplefilter("ignore")
    call = build(task, size, device)
    if device == "cuda":
        for _ in range(60 if task == "training" else 3):
            call()
        torch.cuda.synchronize()
    # recorded steps hold their memory, so training is asked for all there is
    is_whole = device == "cuda" and task == "training"
    before = 0 if is_whole else _memory(device, reset=True)
    if device == "cpu":
        call()
    times = []
    while len(times) < 3 or (sum(times) < 2 and len(times) < 30):
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    median, spread = record.median_and_spread(times)
    peak = torch.cuda.max_memory_reserved() if is_whole else _memory(device) - before
    return median, spread, max(0, peak)


def _memory(device: str, reset: bool = False) -> int:
    if device == "cpu":
        if reset:
            return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    import torch

    if reset:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return torch.cuda.max_memory_allocated()


def _serve(pipe: Any, *job: Any) -> None:
    pipe.send(measure(*job))


def in_own_process(*job: Any) -> tuple[float, float, float]:
    """Each point starts afresh, so that peaks do not mix."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, *job))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def exponent(sizes: list[float], values: list[float]) -> float:
    """The slope of a line through the logarithms."""
    xs, ys = [math.log(size) for size in sizes], [math.log(max(value, 1e-12)) for value in values]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return over / sum((a - x) ** 2 for a in xs)


def requirements(curves: dict[str, Any]) -> list[dict[str, Any]]:
    """Mining: the growth from the smallest to the largest size against that of the limits."""
    mining = curves["mining"]
    low, high = mining["sizes"][0], mining["sizes"][-1]
    square = (high / low) ** 2
    allowed = {"time": square * math.log(high) / math.log(low), "memory": square}
    asked = []
    for what, key in (("time", "seconds"), ("memory", "bytes")):
        grown = mining[key][-1] / max(mining[key][0], 1e-12)
        missed = [] if grown <= allowed[what] else [f"{grown:.1f} times for {allowed[what]:.1f}"]
        text = f"mining no worse than {MINING_LIMIT[what]} in {what}"
        asked.append({"text": text, "met": not missed, "missed_by": missed})
    return asked


def plot(curves: dict[str, Any], hardware: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (key, label) in zip(
        figure.subplots(1, 2),
        (("seconds", "seconds"), ("bytes", "bytes beyond the inputs")),
        strict=True,
    ):
        for task, curve in curves.items():
            text = f"{task}, {curve[f'{key}_exponent']:.2f}"
            axes.loglog(curve["sizes"], curve[key], marker="o", label=text)
        axes.set_xlabel("size")
        axes.set_ylabel(label)
        axes.grid(True, which="both", alpha=0.2)
        axes.legend(title="fitted exponent", frameon=False)
    cpu = f"{hardware['cores']} cores of {hardware['cpu']}"
    figure.suptitle(f"Cost against size on {hardware.get('gpu') or cpu}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    results = record.environment()
    curves: dict[str, Any] = {}
    for task, sizes in SIZES[options.device].items():
        found = [in_own_process(task, size, options.device) for size in sizes]
        curve: dict[str, Any] = {"sizes": list(sizes), "unit": UNIT[task]}
        curve["seconds"] = [round(point[0], 6) for point in found]
        curve["seconds_iqr"] = [round(point[1], 6) for point in found]
        curve["bytes"] = [int(point[2]) for point in found]
        for key in ("seconds", "bytes"):
            curve[f"{key}_exponent"] = round(exponent(curve["sizes"], curve[key]), 3)
        curves[task] = curve
        print(f"{task:10} {UNIT[task]}: {', '.join(map(str, sizes))}")
        print(f"    seconds {curve['seconds']}, exponent {curve['seconds_exponent']:.2f}")
        mib = [round(value / 2**20, 1) for value in curve["bytes"]]
        print(f"    MiB     {mib}, exponent {curve['bytes_exponent']:.2f}", flush=True)
    if options.device == "cuda":
        import torch

        results["hardware"]["gpu"] = torch.cuda.get_device_name()
    results |= {"seed": 0, "device": options.device, "curves": curves}
    results["requirements"] = requirements(curves)
    record.print_requirements(results["requirements"])
    record.write(options.out or record.RESULTS / f"scaling-{options.device}.json", results)
    image = record.HERE.parent / "docs" / "images" / f"scaling-{options.device}.png"
    plot(curves, results["hardware"], options.plot or image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
