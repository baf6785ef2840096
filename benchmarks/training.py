"""Images per second through a whole training step, ours beside what one would write without it.

`python benchmarks/training.py --device cuda` (or cpu). README.md in this folder says what is compared.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import record
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from orbitset.encoders import RectifyingEncoder
from orbitset.orbits import AffineOrbits, OrbitBatches
from orbitset.orbits.affine import AffineRanges, sample_affine, warp_reference
from orbitset.precision import in_bfloat16
from orbitset.training.monitors import Monitor
from orbitset.training.optimizer import adam, groups_of
from orbitset.training.steps import choose_steps

CANVAS_PX, CODE_SIZE, MARGIN, MEMBERS = 64, 1024, 256.0, 4
METHODS = ("OJ", "OT", "OE", "EX", "ST", "AE")
PEER, STRONG = "PML + DataLoader", "PML + torch.compile, augmented on the device"
Step = Callable[[], int]
"""Does one training step and says how many images it took."""


def digits(num: int) -> tuple[Tensor, Tensor]:
    """Noise in the shape of MNIST: what is in the images does not change the work."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (num, 1, 28, 28), dtype=torch.uint8, generator=generator)
    return images, torch.arange(num) % 10


def network(device: str) -> RectifyingEncoder:
    torch.manual_seed(0)
    return RectifyingEncoder(size_px=CANVAS_PX, code_size=CODE_SIZE, code_norm="batch").to(device)


def objective(method: str, num: int) -> nn.Module:
    """The objective of a method; in versions to compare with, it is built in another way."""
    try:
        from orbitset.losses import LossConfig, build_loss
    except ImportError:
        from orbitset.losses import Autoencoder, Exemplar, OrbitJoint, SupervisedTriplet
    else:
        sizes = {"code_size": CODE_SIZE, "num_orbits": num, "default_margin": MARGIN}
        built: nn.Module = build_loss(method, LossConfig(), **sizes)
        return built
    return {
        "OJ": lambda: OrbitJoint(margin=MARGIN),
        "OT": lambda: OrbitJoint(margin=MARGIN, rectify_weight=0),
        "OE": lambda: OrbitJoint(discriminate_weight=0),
        "ST": lambda: SupervisedTriplet(margin=MARGIN),
        "EX": lambda: Exemplar(code_size=CODE_SIZE, num_orbits=num),
        "AE": lambda: Autoencoder(),
    }[method]()


def ours(method: str, engine: str, batch: int, num: int, device: str) -> tuple[Step, str]:
    images, labels = (part.to(device) for part in digits(num))
    orbits = AffineOrbits(images, labels, canvas_px=CANVAS_PX)
    batches = OrbitBatches(orbits, orbits_per_batch=batch // MEMBERS, members_per_batch=MEMBERS)
    model = network(device)
    loss = objective(method, num).to(device)
    steps, how = choose_steps(
        engine,
        model,
        loss,
        adam(groups_of(model, loss), rate=1e-3),
        batches,
        Monitor(),
        use_bfloat16=in_bfloat16("auto", torch.device(device)),
    )
    model.train()
    position = 0

    def step() -> int:
        nonlocal position
        steps(position)
        position += 1
        return batches.images_before(position) - batches.images_before(position - 1)

    return step, how


class Augmented(Dataset[tuple[Tensor, Tensor, int]]):
    """Digits in the middle of the canvas, transformed one by one as they are asked for."""

    def __init__(self, num: int) -> None:
        pad = (CANVAS_PX - 28) // 2
        self.images = F.pad(digits(num)[0], (pad, pad, pad, pad))
        from torchvision.transforms import v2

        self.transform = v2.RandomAffine(
            degrees=90,
            translate=(15 / CANVAS_PX, 15 / CANVAS_PX),
            scale=(0.7, 1.3),
            shear=(-17, 17),
            interpolation=v2.InterpolationMode.BILINEAR,
        )
        self.to_float = v2.ToDtype(torch.float32, scale=True)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        image = self.images[index]
        return self.to_float(self.transform(image)), self.to_float(image), index


class Plain(Dataset[tuple[Tensor, int]]):
    """Digits on the canvas; a batch is transformed afterwards."""

    def __init__(self, num: int) -> None:
        pad = (CANVAS_PX - 28) // 2
        self.images = F.pad(digits(num)[0], (pad, pad, pad, pad))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index].float() / 255, index


def loaded(batch: int, num: int, workers: int) -> tuple[Iterator[Any], str]:
    """Batches of (images, canonical images, ids) for ever, and what transforms them."""
    from pytorch_metric_learning.samplers import MPerClassSampler

    try:
        data: Dataset[Any] = Augmented(num)
        by, augment = "torchvision transforms in the workers", None
    except ImportError:
        import kornia.augmentation as K

        data, by = Plain(num), "kornia on the batch"
        augment = K.RandomAffine(
            degrees=90.0,
            translate=(15 / CANVAS_PX, 15 / CANVAS_PX),
            scale=(0.7, 1.3),
            shear=(-17.0, 17.0),
            p=1.0,
        )
    sampler = MPerClassSampler(
        list(range(num)), MEMBERS, batch, length_before_new_iter=1000 * batch
    )
    loader = DataLoader(
        data,
        batch,
        sampler=sampler,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
    )

    def forever() -> Iterator[Any]:
        while True:
            for item in loader:
                if augment is None:
                    yield item
                else:
                    yield augment(item[0]), item[0], item[1]

    return forever(), f"{by}, {workers} workers"


def on_device(batch: int, num: int, device: str) -> Iterator[Any]:
    """The same batches from digits that lie on the device, transformed there."""
    images = digits(num)[0].to(device)
    generator = torch.Generator().manual_seed(0)
    identity = torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.0]], device=device)
    while True:
        orbit = torch.randint(num, (batch // MEMBERS,)).repeat_interleave(MEMBERS)
        rows = images[orbit.to(device, non_blocking=True)]
        params = sample_affine(batch, AffineRanges(), generator).to(device, non_blocking=True)
        moved = warp_reference(rows, params, CANVAS_PX)
        yield moved, warp_reference(rows, identity.expand(batch, 5), CANVAS_PX), orbit


def theirs(
    items: Iterator[Any], model: nn.Module, device: str, *, use_bfloat16: bool = True
) -> Step:
    """The joint loss from pytorch-metric-learning's parts: triplets and a squared error."""
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import TripletMarginMiner

    distance = LpDistance(normalize_embeddings=False, power=2)
    miner = TripletMarginMiner(MARGIN, type_of_triplets="semihard", distance=distance)
    triplet = TripletMarginLoss(MARGIN, distance=distance)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-12, fused=True)
    by_pixels, by_code = 1 / CANVAS_PX**2, 1 / CODE_SIZE

    def step() -> int:
        images, canonical, orbit = (part.to(device, non_blocking=True) for part in next(items))
        with torch.autocast(device, torch.bfloat16, enabled=use_bfloat16):
            codes, rectified = model(images.contiguous(memory_format=torch.channels_last))
        found = triplet(codes, orbit, miner(codes, orbit))
        error = (rectified - canonical).square().flatten(1).sum(1).mean()
        optimizer.zero_grad(set_to_none=True)
        (by_pixels * found + by_code * error).backward()
        optimizer.step()
        return len(images)

    return step


def images_per_second(step: Step, device: str, *, seconds: float, rounds: int, warm_up: int) -> Any:
    """Of each round, after a warm-up; the device is waited for at both ends."""
    for _ in range(warm_up):
        step()
    rates = []
    for _ in range(rounds):
        wait(device)
        start, images = time.perf_counter(), 0
        while time.perf_counter() - start < seconds or not images:
            images += step()
        wait(device)
        rates.append(images / (time.perf_counter() - start))
    return record.median_and_spread(rates)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--batches", type=int, nargs="+", metavar="B")
    parser.add_argument("--seconds", type=float, help="of a round")
    parser.add_argument("--workers", type=int, help="of the DataLoader; the cores by default")
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled peer out")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    is_gpu = options.device == "cuda"
    sizes = options.batches or ([256, 1024] if is_gpu else [256])
    seconds = options.seconds or (1.0 if is_gpu else 8.0)
    num = 50_000 if is_gpu else 5_000
    results = record.environment("pytorch-metric-learning", "torchvision", "kornia")
    if is_gpu:
        results["hardware"]["gpu"] = torch.cuda.get_device_name()
        torch.backends.cudnn.benchmark = True
    rows: list[dict[str, Any]] = []
    results |= {"seed": 0, "canvas_px": CANVAS_PX, "orbits": num, "rows": rows}

    def measure(name: str, batch: int, method: str, how: str, step: Step, **pace: Any) -> None:
        pace = {"seconds": seconds, "rounds": 5 if is_gpu else 3, "warm_up": 3} | pace
        rate, spread = images_per_second(step, options.device, **pace)
        row = {"name": name, "method": method, "batch": batch, "how": how}
        rows.append(row | {"images_per_s": round(rate), "iqr": round(spread)})
        print(f"{name:46}{method:4}{batch:6}{rate:12,.0f} images/s  ±{spread:8,.0f}  {how}")
        sys.stdout.flush()

    for batch in sizes:
        for method in METHODS if is_gpu else ("OJ",):
            step, how = ours(method, "auto", batch, num, options.device)
            # on a GPU the first steps of every size of batch are not typical
            if not is_gpu:
                how += ", bfloat16" if in_bfloat16("auto", torch.device("cpu")) else ", float32"
            measure("orbitset", batch, method, how, step, warm_up=250 if is_gpu else 1)
        if is_gpu:
            step, how = ours("OJ", "reference", batch, num, options.device)
            measure("orbitset, reference", batch, "OJ", how, step, warm_up=50)
        workers = options.workers or torch.get_num_threads()
        is_bfloat16 = in_bfloat16("auto", torch.device(options.device))
        on_cpu = [(0, is_bfloat16), (1, is_bfloat16), *([(0, False)] if is_bfloat16 else [])]
        for count, use_bfloat16 in [(workers, True)] if is_gpu else on_cpu:
            items, how = loaded(batch, num, count)
            step = theirs(items, network(options.device), options.device, use_bfloat16=use_bfloat16)
            how += ", bfloat16" if use_bfloat16 else ", float32"
            # longer than the batches that were loaded ahead last
            slow = {"seconds": 5 * seconds, "warm_up": 100} if is_gpu else {"warm_up": 1}
            measure(PEER, batch, "OJ", how, step, **slow)
        if is_gpu and not options.no_compile:
            model = torch.compile(network(options.device))
            step = theirs(on_device(batch, num, options.device), model, options.device)
            measure(STRONG, batch, "OJ", "grid_sample on the GPU", step, warm_up=20)
    results["requirements"] = requirements(rows, is_gpu)
    record.print_requirements(results["requirements"])
    name = f"training-{options.device}.json"
    record.write(options.out or record.RESULTS / name, results)
    return 0


def requirements(rows: list[dict[str, Any]], is_gpu: bool) -> list[dict[str, Any]]:
    """What the project asks of itself, with how far this run was from it."""
    rates: dict[tuple[str, int], float] = {}
    for row in rows:
        if row["method"] == "OJ":
            key = (row["name"], row["batch"])
            rates[key] = max(rates.get(key, 0), row["images_per_s"])
    asked: list[tuple[str, dict[str, float]]] = []
    for batch, least in ((256, 120_000), (1024, 165_000)):
        if is_gpu and ("orbitset", batch) in rates:
            share = {f"{rates['orbitset', batch]:,} images/s": rates["orbitset", batch] / least}
            asked.append((f"OJ at batch {batch}: at least {least:,} images/s", share))
    times = 10.0 if is_gpu else 1.5
    beaten = {
        f"batch {batch}: {rates['orbitset', batch] / rate:.2f} times": rates["orbitset", batch]
        / rate
        / times
        for (name, batch), rate in rates.items()
        if name == PEER
    }
    asked.append((f"at least {times:g} times the images/s of {PEER}", beaten))
    return [
        {
            "text": text,
            "met": all(value >= 1 for value in found.values()) if found else None,
            "measured": list(found),
            "missed_by": [where for where, value in found.items() if value < 1],
        }
        for text, found in asked
    ]


if __name__ == "__main__":
    sys.exit(main())
