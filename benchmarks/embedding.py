"""Embedding a folder of JPEGs, ours beside a bare loop at its best: `python benchmarks/embedding.py`.

README.md in this folder says what is measured and how. As for mining, the main process never imports torch:
each side lives in a process of its own, and they take turns.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import mining
import record

SEED, SIZE_PX, CODE_SIZE = 0, 64, 256
WIDTH_PX, HEIGHT_PX, QUALITY, NUM_PATTERNS = 160, 120, 85, 256
PER_FOLDER = 1000
TINY = 64  # images of the first warm-up, after which memory is measured
TRIED, FINALISTS, TURNS = 1000, 6, 3
MEMORY_SIZES = (2000, 5000)  # and all of them
LIMIT_S = 1200
TOLERANCE = 1e-4  # of the length of a code
MOST_EXTRA_MIB = 16
OURS, PLAIN, BEST = "orbitset", "bare loop, plain", "bare loop, best"


@dataclass(frozen=True)
class Bare:
    """How a loop of Pillow and torch alone goes about it."""

    batch: int
    threads: int
    """That decode ahead, or 0"""
    torch_threads: int
    encodes_too: bool = False
    """Every thread encodes what it has decoded, instead of handing it on"""
    spins: bool = False
    """Whether threads of OpenMP wait as they do by default, or as shortly as those of our program"""

    def __str__(self) -> str:
        decoded = f"decoded by {self.threads} threads" if self.threads else "one after the other"
        work = f"{self.threads} threads do all" if self.encodes_too else decoded
        spins = ", spinning" if self.spins else ""
        return f"batches of {self.batch}, {work}, torch with {self.torch_threads}{spins}"


def variants(cores: int) -> list[Bare]:
    some = [
        Bare(batch, threads, torch_threads, encodes_too=encodes_too)
        for batch in (32, 64, 128, 256)
        for threads, torch_threads, encodes_too in (
            (0, cores, False),
            (1, 1, False),
            (1, cores, False),
            (2, 1, False),
            (2, cores, False),
            (4, cores, False),
            (cores, 1, True),
        )
    ]
    alone = [replace(how, spins=True) for how in some if how.threads == 0]
    return some + alone


def prepare(pipe: Any, work: Path, num: int) -> None:
    """Textured JPEGs in folders of 1,000, and an untrained model."""
    import torch

    from orbitset.encoders import EncoderConfig, build_encoder
    from orbitset.models import Description, Input, Model, Network, Trained, save_model_folder

    with ThreadPoolExecutor() as threads:
        for start in range(0, num, PER_FOLDER):
            folder = work / "images" / f"{start // PER_FOLDER:03}"
            folder.mkdir(parents=True)
            save = image_saver(folder)
            list(threads.map(save, range(start, min(start + PER_FOLDER, num))))
    torch.manual_seed(SEED)
    config = EncoderConfig(code_size=CODE_SIZE, code_norm="sphere")
    about = Description(
        id="untrained",
        input=Input(size_px=SIZE_PX, channels=3),
        network=Network(encoder=config),
        trained=Trained(name="benchmark", data="none", method="OJ", seed=SEED, images=0),
    )
    network = build_encoder(config, in_channels=3, size_px=SIZE_PX)
    save_model_folder(Model(network, about), work / "model")
    pipe.send(sum(path.stat().st_size for path in folder.iterdir()) / len(list(folder.iterdir())))


def image_saver(folder: Path) -> Callable[[int], None]:
    """Saves the image of a number: one of the patterns, moved and more or less bright."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(SEED)
    coarse = rng.integers(0, 256, (NUM_PATTERNS, HEIGHT_PX // 20, WIDTH_PX // 20, 3), np.uint8)
    grain = rng.integers(-16, 17, (HEIGHT_PX, WIDTH_PX, 1))
    patterns = [
        np.asarray(Image.fromarray(one).resize((WIDTH_PX, HEIGHT_PX), Image.Resampling.BICUBIC))
        for one in coarse
    ]

    def save(number: int) -> None:
        down, right, light = np.random.default_rng((SEED, number)).random(3)
        moved = np.roll(
            patterns[number % NUM_PATTERNS] + grain,
            (int(down * HEIGHT_PX), int(right * WIDTH_PX)),
            (0, 1),
        )
        pixels = (moved * (0.5 + light / 2)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:06}.jpg", quality=QUALITY)

    return save


def embed_bare(model: Any, folders: list[Path], out: Path, how: Bare) -> None:
    """What one would write without orbitset, for images that are upright, in colour and of one shape."""
    import numpy as np
    import torch
    from PIL import Image

    paths = sorted(path for folder in folders for path in folder.rglob("*.jpg"))
    groups = [paths[at : at + how.batch] for at in range(0, len(paths), how.batch)]
    height = round(SIZE_PX * HEIGHT_PX / WIDTH_PX)
    above = (SIZE_PX - height) // 2

    def read(group: list[Path]) -> np.ndarray:
        pixels = np.zeros((len(group), SIZE_PX, SIZE_PX, 3), np.uint8)
        for at, path in enumerate(group):
            with Image.open(path) as image:
                image.draft("RGB", (2 * SIZE_PX, 2 * SIZE_PX))
                small = image.resize((SIZE_PX, height), Image.Resampling.LANCZOS)
            pixels[at, above : above + height] = small
        return pixels

    @torch.inference_mode()
    def encode(pixels: np.ndarray) -> np.ndarray:
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)
        return model.network.encode(images).numpy()

    torch.set_num_threads(how.torch_threads)
    if not how.threads:
        codes = [encode(read(group)) for group in groups]
    elif how.encodes_too:
        with ThreadPoolExecutor(
            how.threads, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            codes = list(pool.map(lambda group: encode(read(group)), groups))
    else:
        codes = [encode(pixels) for pixels in ahead(read, groups, how.threads)]
    np.save(out, np.concatenate(codes))


def ahead(read: Callable[[Any], Any], groups: list[Any], num_threads: int) -> Iterator[Any]:
    """What is read of each group, by threads that are a group each ahead."""
    with ThreadPoolExecutor(num_threads) as pool:
        waiting: deque[Any] = deque()
        for group in groups:
            waiting.append(pool.submit(read, group))
            if len(waiting) > 2 * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def serve(pipe: Any, work: Path, spins: bool) -> None:
    """Answer (folders, file, how) with (seconds, peak extra MiB); ours is how None is done."""
    if not spins:
        os.environ["GOMP_SPINCOUNT"] = "1000"  # as our program has it; read when torch is loaded
    warnings.simplefilter("ignore")
    import torch

    from orbitset.models import load_model_folder
    from orbitset.uses.embedding import embed_to_file

    model = load_model_folder(work / "model")
    first = sorted((work / "images" / "000").iterdir())[:TINY]
    embed_to_file(model, first, work / "tiny.npy", overwrite=True)
    resident, _ = mining.resident_and_mapped_bytes()
    pipe.send(torch.get_num_threads())
    while request := pipe.recv():
        folders, out, how = request
        start = perf_counter()
        if how is None:
            embed_to_file(model, folders, out, overwrite=True)
        else:
            embed_bare(model, folders, out, how)
        elapsed_s = perf_counter() - start
        pipe.send((elapsed_s, max(0, mining.peak_bytes() - resident) / mining.MIB))


class Worker(mining.Worker):
    """As for mining, with any work and a longer limit."""

    def __init__(self, work: Callable[..., None], *job: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, *job), daemon=True)
        self._process.start()
        theirs.close()
        self.failure = self.extra_mib = None
        self.times_s = []
        self.num_threads = self._receive()

    def ask(self, request: Any) -> Any:
        answer = super().ask(request)
        if self.failure:
            raise RuntimeError(self.failure)
        return answer

    def _receive(self) -> Any:
        if not self._pipe.poll(LIMIT_S):
            self.failure = f"ran past {LIMIT_S} s"
            self.close()
            return None
        return super()._receive()


def find_best(work: Path, cores: int) -> tuple[Bare, list[dict[str, Any]]]:
    """The fastest bare loop on the first images: all are tried once, the best of them again in turns."""
    workers = {spins: Worker(serve, work, spins) for spins in (False, True)}
    folders = first_folders(work, TRIED)
    num = sum(len(list(folder.iterdir())) for folder in folders)

    def run(how: Bare) -> float:
        return workers[how.spins].ask((folders, work / "tried.npy", how))[0]

    tried = variants(cores)
    for spins in workers:  # warm-up
        run(next(how for how in tried if how.spins is spins))
    times_s = {how: [run(how)] for how in tried}
    finalists = sorted(tried, key=times_s.__getitem__)[:FINALISTS]
    for turn in range(TURNS):
        for how in finalists[:: -1 if turn % 2 else 1]:
            times_s[how].append(run(how))
    for worker in workers.values():
        worker.close()
    best = min(finalists, key=lambda how: statistics.median(times_s[how]))
    found = [
        asdict(how) | {"images_per_s": round(num / statistics.median(times)), "n": len(times)}
        for how, times in sorted(times_s.items(), key=lambda one: statistics.median(one[1]))
    ]
    return best, found


def compare(work: Path, num: int, sides: dict[str, Bare | None]) -> list[dict[str, Any]]:
    """Every side over all images, in turns."""
    workers = {
        name: Worker(serve, work, how is not None and how.spins) for name, how in sides.items()
    }
    out = {name: work / f"codes-{at}.npy" for at, name in enumerate(sides)}
    for name, worker in workers.items():  # warm-up
        worker.ask((first_folders(work, TRIED), out[name], sides[name]))
    for turn in range(TURNS):
        for name, worker in list(workers.items())[:: -1 if turn % 2 else 1]:
            request = ([work / "images"], out[name], sides[name])
            elapsed_s, worker.extra_mib = worker.ask(request)
            worker.times_s.append(elapsed_s)
        print(f"turn {turn + 1} of {TURNS}", file=sys.stderr, flush=True)
    rows = []
    for name, worker in workers.items():
        median, spread = record.median_and_spread(worker.times_s)
        row = {"name": name, "how": str(sides[name] or "embed_to_file"), "images": num, "n": TURNS}
        row |= {"seconds": round(median, 3), "seconds_iqr": round(spread, 3)}
        row |= {"images_per_s": round(num / median, 1), "extra_mib": round(worker.extra_mib, 1)}
        row["off_by"] = None if name == OURS else difference(out[OURS], out[name])
        row["agrees"] = None if name == OURS else row["off_by"] <= TOLERANCE
        row["threads"] = worker.num_threads
        rows.append(row)
        worker.close()
    for row in rows:
        row["ratio"] = None if row is rows[0] else round(row["seconds"] / rows[0]["seconds"], 3)
    return rows


def difference(ours: Path, theirs: Path) -> float:
    """The largest distance of two codes of one image, as a part of their length."""
    import numpy as np

    one, other = np.load(ours, "r"), np.load(theirs, "r")
    if one.shape != other.shape:
        return float("inf")
    length = np.linalg.norm(one, axis=1)
    return float((np.linalg.norm(one - other, axis=1) / length).max())


def growth(work: Path, num: int) -> list[dict[str, Any]]:
    """Peak memory of ours over more and more images, each in a process of its own."""
    rows = []
    for size in sorted({*(size for size in MEMORY_SIZES if size < num), num}):
        worker = Worker(serve, work, False)
        _, extra_mib = worker.ask((first_folders(work, size), work / "codes.npy", None))
        worker.close()
        rows.append({"images": size, "extra_mib": round(extra_mib, 1)})
    return rows


def first_folders(work: Path, num: int) -> list[Path]:
    return sorted((work / "images").iterdir())[: -(-num // PER_FOLDER)]


def requirements(rows: list[dict[str, Any]], memory: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the project asks of itself."""
    best = next(row for row in rows if row["name"] == BEST)
    slow = [] if best["ratio"] >= 0.8 else [f"{best['ratio']:.2f} of its speed"]
    grown_mib = memory[-1]["extra_mib"] - memory[0]["extra_mib"]
    large = [] if grown_mib <= MOST_EXTRA_MIB else [f"{grown_mib:.1f} MiB"]
    sizes = f"{memory[0]['images']:,} to {memory[-1]['images']:,}"
    return [
        {"text": "within 20 % of the best bare loop", "met": not slow, "missed_by": slow},
        {
            "text": f"at most {MOST_EXTRA_MIB} MiB more from {sizes} images",
            "met": not large if len(memory) > 1 else None,
            "missed_by": large,
        },
    ]


def print_table(rows: list[dict[str, Any]], memory: list[dict[str, Any]]) -> None:
    print(f"{'':18}{'images/s':>10}{'s':>9}{'iqr':>8}{'ratio':>8}{'MiB':>8}")
    for row in rows:
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        slower = " slower" if row["ratio"] is not None and row["ratio"] < 1 else ""
        print(
            f"{row['name']:18}{row['images_per_s']:10,.0f}{row['seconds']:9.2f}{row['seconds_iqr']:8.2f}"
            f"{ratio:>8}{row['extra_mib']:8.1f}{slower}"
        )
    print(f"\n{BEST}: {rows[-1]['how']}")
    print("ratio: their time / ours. MiB: peak beyond the set-up.\n")
    print(f"{'images':>8}{'MiB':>8}  of ours, each in a process of its own")
    for row in memory:
        print(f"{row['images']:8,}{row['extra_mib']:8.1f}")
    print()
    for row in rows:
        if row["agrees"] is False:
            print(f"NOT THE SAME CODES: {row['name']}: off by {row['off_by']:g}")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000, metavar="N")
    parser.add_argument("--out", type=Path, default=record.RESULTS / "embedding-cpu.json")
    options = parser.parse_args(arguments)
    if options.images < TINY:
        parser.error(f"--images must be at least {TINY}")
    return options


def main() -> int:
    options = parse(sys.argv[1:])
    num, cores = options.images, os.cpu_count() or 1
    result = record.environment("orbitset", "pillow")
    result |= {"seed": SEED, "image_px": [WIDTH_PX, HEIGHT_PX], "code_size": CODE_SIZE}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        made = Worker(prepare, work, num)
        made.close()
        result["bytes_per_image"] = round(made.num_threads)
        best, result["tried"] = find_best(work, cores)
        print(f"best of {len(result['tried'])} bare loops: {best}", file=sys.stderr, flush=True)
        sides = {OURS: None, PLAIN: Bare(64, 0, cores, spins=True), BEST: best}
        rows = result["rows"] = compare(work, num, sides)
        memory = result["memory"] = growth(work, num)
    result["requirements"] = requirements(rows, memory)
    record.write(options.out, result)
    print_table(rows, memory)
    record.print_requirements(result["requirements"])
    return 1 if any(row["agrees"] is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
