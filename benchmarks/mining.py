"""Triplet mining and loss, ours beside two public libraries, on the CPU: `python benchmarks/mining.py`.

README.md in this folder says what is measured and how. The main process stays small and never imports
torch: each side of a comparison lives in a process of its own, and the two take turns.
"""

import argparse
import multiprocessing
import os
import resource
import statistics
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import record

SEED, MARGIN, NUM_ENTRIES, NUM_MEMBERS, NUM_CLASSES = 0, 0.2, 1024, 4, 10
LIMIT_S, LIMIT_GIB = 120, 16
PAST_TIME, PAST_MEMORY = f"ran past {LIMIT_S} s", f"needs more than {LIMIT_GIB} GiB"
ROW_BUDGET_S = 20  # repeats beyond three are given up when a row would take longer
TURN_S = 0.1  # short calls are repeated in a turn
TINY = 32  # codes in the first warm-up, which loads libraries before memory is measured
MIB = 2**20
PML, ST = "pytorch-metric-learning", "sentence-transformers"
SHORT = {PML: "PML", ST: "ST", None: "-"}
Side = Literal["ours", "theirs"]


@dataclass(frozen=True)
class Batch:
    """B codes: normal, or scaled to length 1; in orbits of 4 members, or in 10 classes."""

    num: int
    is_classes: bool = False
    is_unit: bool = False

    def size(self) -> dict[str, Any]:
        groups = {"classes": NUM_CLASSES} if self.is_classes else {"K": NUM_MEMBERS}
        unit = {"unit": True} if self.is_unit else {}
        return {"B": self.num, "D": NUM_ENTRIES, **groups, **unit}


@dataclass(frozen=True)
class Task:
    name: str
    variant: str
    peer: str | None


TASKS = (
    Task("mine-semihard", "semihard", PML),
    Task("mine-semihard", "semihard-else-farthest", None),
    Task("triplet-semihard", "semihard-else-farthest", ST),
    Task("triplet-semihard", "semihard", PML),
)


def make_batch(batch: Batch, dtype: str = "float32") -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(SEED)
    codes = torch.randn(batch.num, NUM_ENTRIES, generator=generator)
    if batch.is_unit:
        codes = torch.nn.functional.normalize(codes)
    row = torch.arange(batch.num)
    orbit = row % NUM_CLASSES if batch.is_classes else row // NUM_MEMBERS
    return codes.to(getattr(torch, dtype)).requires_grad_(), orbit


def build(task: Task, side: Side) -> Callable[[Any, Any], Any]:
    """(codes, orbits) -> triplets for a mining task, the loss for a triplet task."""
    if side == "ours":
        from orbitset.losses import TripletLoss, TripletMiner

        if task.name == "mine-semihard":
            return TripletMiner(task.variant, margin=MARGIN)
        return TripletLoss(mining=task.variant, margin=MARGIN)
    if task.peer == ST:
        from sentence_transformers.losses import (
            BatchHardTripletLossDistanceFunction,
            BatchSemiHardTripletLoss,
        )

        metric = partial(BatchHardTripletLossDistanceFunction.euclidean_distance, squared=True)
        loss = BatchSemiHardTripletLoss(None, metric, MARGIN)
        return lambda codes, orbit: loss.batch_semi_hard_triplet_loss(orbit, codes)
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import TripletMarginMiner

    distance = LpDistance(normalize_embeddings=False, power=2)
    miner = TripletMarginMiner(MARGIN, type_of_triplets="semihard", distance=distance)
    loss = TripletMarginLoss(MARGIN, distance=distance)
    if task.name == "mine-semihard":
        return miner
    return lambda codes, orbit: loss(codes, orbit, miner(codes, orbit))


def run_once(call: Callable[[Any, Any], Any], codes: Any, orbit: Any) -> float:
    """Seconds for one call, with its backward pass where it gives a loss."""
    codes.grad = None
    start = perf_counter()
    result = call(codes, orbit)
    if not isinstance(result, tuple):
        result.backward()
    return perf_counter() - start


def run_turn(call: Callable[[Any, Any], Any], codes: Any, orbit: Any) -> float:
    """The median of the calls that a turn has time for; the first, which finds threads asleep and caches full
    of the other side's data, counts only where it is the only one."""
    times_s = [run_once(call, codes, orbit)]
    while sum(times_s) < TURN_S:
        times_s.append(run_once(call, codes, orbit))
    return statistics.median(times_s[1:] or times_s)


def agrees(task: Task, batch: Batch) -> bool:
    """Whether both sides do the same work; in float64, where rounding leaves no doubtful triplet."""
    import torch

    from orbitset.losses import TripletMiner, paired_distances

    codes, orbit = make_batch(batch, "float64")
    ours, theirs = (build(task, side)(codes, orbit) for side in ("ours", "theirs"))
    if task.name == "mine-semihard":
        keys = [((a * batch.num + p) * batch.num + n).sort().values for a, p, n in (ours, theirs)]
        return torch.equal(*keys)
    # Each library averages the hinges in its own way: so both averages are made from ours.
    anchor, positive, negative = TripletMiner(task.variant, margin=MARGIN)(codes, orbit)
    ap, an = (paired_distances(codes, anchor, other) for other in (positive, negative))
    hinges = (ap - an + MARGIN).clamp(min=0)
    count = anchor.bincount(minlength=batch.num).clamp(min=1)
    our_average = (hinges / count[anchor]).sum() / batch.num
    their_average = hinges.mean() if task.peer == ST else hinges[hinges > 0].mean()
    gradients = [torch.autograd.grad(loss, codes)[0] for loss in (their_average, theirs)]
    return (
        torch.allclose(our_average, ours, rtol=1e-8)
        and torch.allclose(their_average, theirs, rtol=1e-8)
        and bool((gradients[0] - gradients[1]).norm() < 1e-8 * gradients[1].norm())
    )


def peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_and_mapped_bytes() -> tuple[int, int]:
    try:
        mapped, resident = Path("/proc/self/statm").read_text().split()[:2]
    except OSError:  # not Linux
        return peak_bytes(), 0
    return int(resident) * os.sysconf("SC_PAGESIZE"), int(mapped) * os.sysconf("SC_PAGESIZE")


def serve(pipe: Any, task: Task | None, side: Side, batch: Batch) -> None:
    """Answer each "run" with (seconds, peak extra MiB) and "check" with a bool, or with an error text.

    Without a task, a run allocates 64 MiB: the check of the memory figures.
    """
    warnings.simplefilter("ignore")
    import torch

    call = build(task, side) if task else lambda codes, orbit: (torch.ones(16 * MIB),)
    codes, orbit = make_batch(batch)
    if task:
        run_once(call, *make_batch(Batch(TINY)))
    resident, mapped = resident_and_mapped_bytes()
    if mapped:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (mapped + LIMIT_GIB * 2**30, hard))
    pipe.send(torch.get_num_threads())
    while request := pipe.recv():
        try:
            if request == "check":
                pipe.send(agrees(task, batch))
            else:
                elapsed_s = run_turn(call, codes, orbit)
                pipe.send((elapsed_s, max(0, peak_bytes() - resident) / MIB))
        except (RuntimeError, MemoryError) as error:
            is_memory = isinstance(error, MemoryError) or "allocate memory" in str(error)
            pipe.send(PAST_MEMORY if is_memory else str(error)[:200])


class Worker:
    """One side; after the first failure `failure` says why and every answer is None."""

    def __init__(self, task: Task | None, side: Side, batch: Batch) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, task, side, batch), daemon=True)
        self._process.start()
        theirs.close()
        self.failure: str | None = None
        self.times_s: list[float] = []
        self.extra_mib: float | None = None
        self.num_threads = self._receive()

    def ask(self, request: str) -> Any:
        if self.failure:
            return None
        self._pipe.send(request)
        return self._receive()

    def run(self) -> float:
        answer = self.ask("run")
        if answer is None:
            return 0.0
        elapsed_s, self.extra_mib = answer
        return elapsed_s

    def close(self) -> None:
        self._process.kill()
        self._process.join()

    def _receive(self) -> Any:
        try:
            answer = self._pipe.recv() if self._pipe.poll(LIMIT_S) else PAST_TIME
        except EOFError:
            self._process.join()
            answer = f"ended with exit code {self._process.exitcode}"
        if isinstance(answer, str):
            self.failure = answer
            self.close()
            return None
        return answer


def measure(task: Task, batch: Batch, repeats: int) -> dict[str, Any]:
    sides: tuple[Side, ...] = ("ours", "theirs") if task.peer else ("ours",)
    workers = {side: Worker(task, side, batch) for side in sides}
    slowest_s = max(worker.run() for worker in workers.values())
    if slowest_s < 5:
        slowest_s = max(worker.run() for worker in workers.values())
    n = max(3, min(repeats, int(ROW_BUDGET_S / max(1e-9, slowest_s))))
    for turn in range(n):
        for worker in list(workers.values())[:: -1 if turn % 2 else 1]:
            worker.times_s.append(worker.run())
    row: dict[str, Any] = {"name": task.name, "variant": task.variant, "size": batch.size()}
    row |= summary("ours", workers["ours"]) | {"peer": task.peer}
    row |= summary("theirs", workers.get("theirs")) | {"unit": "ms", "n": n}
    row["ratio"] = None
    if row["ours"] is not None and row["theirs"] is not None:
        row["ratio"] = round(row["theirs"] / row["ours"], 3)
    failures = [f"{side}: {w.failure}" for side, w in workers.items() if w.failure]
    row["did_not_finish"] = "; ".join(failures) or None
    row["agrees"] = workers["theirs"].ask("check") if task.peer else None
    row["unchecked"] = workers["theirs"].failure if task.peer and not failures else None
    for worker in workers.values():
        worker.close()
    return row


def summary(side: Side, worker: Worker | None) -> dict[str, float | None]:
    if worker is None or worker.failure:
        return {side: None, f"{side}_iqr": None, f"{side}_extra_mib": None}
    median, spread = record.median_and_spread(worker.times_s)
    return {
        side: round(1000 * median, 3),
        f"{side}_iqr": round(1000 * spread, 3),
        f"{side}_extra_mib": round(worker.extra_mib, 1),
    }


def check_memory(result: dict[str, Any]) -> None:
    """Note what the memory figure says of a tensor of known size, and torch's own settings."""
    worker = Worker(None, "ours", Batch(TINY))
    worker.run()
    worker.close()
    result["hardware"]["torch_threads"] = worker.num_threads
    result["memory_check"] = {"allocated_mib": 64, "measured_mib": round(worker.extra_mib or 0, 1)}


def requirements(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the project asks of itself; `met` is null where this run did not measure it."""
    at_1024 = [row for row in rows if row["size"]["B"] == 1024]
    mining = {label(row): leanness(row) for row in at_1024 if row["name"] == "mine-semihard"}
    pml = {label(row): speed(row) / 10 for row in at_1024 if row["peer"] == PML}
    st = {label(row): speed(row) for row in rows if row["peer"] == ST}
    asked = (
        ("mining at B=1024 takes at most 100 MiB", mining),
        (f"at B=1024 at least 10 times as fast as {PML}", pml),
        (f"no slower than {ST} at any size", st),
    )
    results = []
    for text, headroom in asked:
        missed_by = [where for where, value in headroom.items() if value < 1]
        met = not missed_by if headroom else None
        results.append({"text": text, "met": met, "missed_by": missed_by})
    return results


def leanness(row: dict[str, Any]) -> float:
    return 0 if row["ours"] is None else 100 / max(0.1, row["ours_extra_mib"])


def speed(row: dict[str, Any]) -> float:
    """The ratio; a peer stopped by a limit is beaten, an error on either side counts against us."""
    if row["did_not_finish"] in (f"theirs: {PAST_TIME}", f"theirs: {PAST_MEMORY}"):
        return float("inf")
    return row["ratio"] or 0


COLUMNS = (  # title, key, digits, width
    ("ours ms", "ours", 1, 10),
    ("theirs ms", "theirs", 1, 11),
    ("ratio", "ratio", 2, 8),
    ("ours MiB", "ours_extra_mib", 1, 10),
    ("theirs MiB", "theirs_extra_mib", 1, 12),
)


def print_table(rows: list[dict[str, Any]]) -> None:
    titles = "".join(f"{title:>{width}}" for title, _, _, width in COLUMNS)
    print(f"{'name':17}{'peer':5}{'size':18}" + titles)
    for row in rows:
        cells = [
            "-".rjust(width) if row[key] is None else f"{row[key]:{width}.{digits}f}"
            for _, key, digits, width in COLUMNS
        ]
        is_slower = row["ratio"] is not None and row["ratio"] < 1
        print(f"{label(row):40}" + "".join(cells) + (" slower" if is_slower else ""))
    print(f"\nPML = {PML}, ST = {ST}, - = our default mining, alone")
    print("ms: median of one call. ratio: theirs / ours. MiB: peak beyond the set-up.\n")
    for row in rows:
        for key in ("did_not_finish", "unchecked"):
            if row[key]:
                print(f"{key.replace('_', ' ')}: {label(row)}: {row[key]}")
        if row["agrees"] is False:
            print(f"NOT THE SAME WORK: {label(row)}")


def label(row: dict[str, Any]) -> str:
    size = row["size"]
    groups = f"{size['classes']} classes" if "classes" in size else f"K={size['K']}"
    batch = f"B={size['B']} {groups}" + (" unit" if "unit" in size else "")
    return f"{row['name']:17}{SHORT[row['peer']]:5}{batch}"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 4096], metavar="B")
    parser.add_argument("--repeats", type=int, default=15, help="timed calls at most, at least 3")
    parser.add_argument("--out", type=Path, default=record.RESULTS / "mining-cpu.json")
    options = parser.parse_args(arguments)
    if any(num < TINY or num % NUM_MEMBERS for num in options.sizes):
        parser.error(f"--sizes must be multiples of {NUM_MEMBERS} from {TINY} up")
    return options


def main() -> int:
    options = parse(sys.argv[1:])
    result = record.environment("orbitset", PML, ST)
    if absent := [name for name, found in result["versions"].items() if found is None]:
        print(f"error: {', '.join(absent)} not installed", file=sys.stderr)
        print("\nhint: pip install -e '.[bench]', or use `make bench`", file=sys.stderr)
        return 1
    result |= {"seed": SEED, "margin": MARGIN}
    check_memory(result)
    small = [num for num in options.sizes if num <= 1024]
    batches = [Batch(num) for num in options.sizes]
    batches += [Batch(num, is_classes=True) for num in small]
    batches += [Batch(num, is_unit=True) for num in small]
    rows = result["rows"] = []
    for batch in batches:
        for task in TASKS:
            print(label(vars(task) | {"size": batch.size()}), file=sys.stderr, flush=True)
            rows.append(measure(task, batch, options.repeats))
    result["requirements"] = requirements(rows)
    record.write(options.out, result)
    print_table(rows)
    record.print_requirements(result["requirements"])
    return 1 if any(row["agrees"] is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
