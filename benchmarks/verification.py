"""Exact AUC over all pairs and top-1 retrieval, ours beside others: `python benchmarks/verification.py`.

README.md in this folder says how it is measured. As for mining, each side lives in a process of its own,
and the two take turns; on the CPU the main process never imports torch.
"""

import argparse
import multiprocessing
import resource
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import mining
import record

SEED, NUM_ENTRIES, NUM_CLASSES, NUM_VIEWS, NUM_LIGHTS = 0, 1024, 129, 13, 20
NOISE = 3.5  # times the spread of the class means: an AUC of about 0.9
WHOLE = NUM_CLASSES * NUM_VIEWS * NUM_LIGHTS
LIMIT_S, LIMIT_GIB = 600, 16
PAST_TIME, PAST_MEMORY = f"ran past {LIMIT_S} s", f"needs more than {LIMIT_GIB} GiB"
ROW_BUDGET_S, LONG_S = 30, 30
TINY = 300
SKLEARN, TORCHMETRICS, PML = "scikit-learn", "torchmetrics", mining.PML
TOLERANCE = {SKLEARN: 1e-9, TORCHMETRICS: 1e-4, PML: 1e-9}
ON_CUDA = (TORCHMETRICS, None)


@dataclass(frozen=True)
class Task:
    name: str
    variant: str
    peer: str | None


COMPARED = (
    Task("auc", "all pairs", SKLEARN),
    Task("auc", "all pairs", TORCHMETRICS),
    Task("top-1", "all others", PML),
)
ALONE = (
    Task("auc", "all pairs", None),
    Task("top-1", "the paper's exclusion", None),
)


def make_codes(num: int, device: str) -> tuple[Any, Any, dict[str, Any]]:
    """Noisy codes around class means, labels, and the factors that a rule asks about."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    row = torch.arange(num)
    person, rest = row % NUM_CLASSES, row // NUM_CLASSES
    factors = {"person": person, "view": rest % NUM_VIEWS, "light": rest // NUM_VIEWS}
    means = torch.randn(NUM_CLASSES, NUM_ENTRIES, generator=generator)
    codes = torch.randn(num, NUM_ENTRIES, generator=generator).mul_(NOISE).add_(means[person])
    factors = {name: ids.to(device) for name, ids in factors.items()}
    return codes.to(device), factors["person"], factors


Call = Callable[[Any, Any, dict[str, Any]], float]


def build_ours(task: Task) -> Call:
    from orbitset.evaluation.exclusion import Same
    from orbitset.evaluation.labelled import Labelled
    from orbitset.evaluation.retrieval import retrieve
    from orbitset.evaluation.verification import verify

    if task.name == "auc":
        return lambda codes, labels, _: verify(Labelled(codes, labels), fars=()).auc
    rule = Same("person") & (Same("view") | Same("light"))
    exclude = None if task.variant == "all others" else rule
    return lambda codes, labels, factors: retrieve(
        Labelled(codes, labels), factors=factors, exclude=exclude
    ).precision_at(1)


def build_theirs(task: Task) -> Call:
    if task.peer == PML:
        from pytorch_metric_learning.distances import LpDistance
        from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
        from pytorch_metric_learning.utils.inference import CustomKNN

        knn = CustomKNN(LpDistance(normalize_embeddings=False))
        wanted = ("precision_at_1",)
        calculator = AccuracyCalculator(include=wanted, k=1, knn_func=knn)
        return lambda codes, labels, _: calculator.get_accuracy(codes, labels)[wanted[0]]
    if task.peer == SKLEARN:
        from sklearn.metrics import roc_auc_score

        def by_sklearn(codes: Any, labels: Any, _: Any) -> float:
            distance, same = all_pairs(codes, labels)
            return roc_auc_score(same.numpy(), distance.neg_().numpy())

        return by_sklearn
    from torchmetrics.functional.classification import binary_auroc

    def by_torchmetrics(codes: Any, labels: Any, _: Any) -> float:
        distance, same = all_pairs(codes, labels)
        # it takes scores outside of 0 to 1 for logits
        score = distance.div_(distance.max()).neg_().add_(1)
        return float(binary_auroc(score, same.int(), thresholds=None, validate_args=False))

    return by_torchmetrics


def all_pairs(codes: Any, labels: Any) -> tuple[Any, Any]:
    """Distances and kinds of all pairs by a matrix product in float64, faster than scipy's pdist."""
    import torch

    points = codes.double()
    squares = points.square().sum(1)
    distance = torch.addmm(squares, points, points.T, alpha=-2).add_(squares[:, None])
    is_pair = torch.ones_like(distance, dtype=torch.bool).triu_(1)
    return distance[is_pair].clamp_(min=0), (labels[:, None] == labels)[is_pair]


def serve(pipe: Any, task: Task, side: mining.Side, num: int, device: str) -> None:
    """Answer each "run" with (seconds, peak extra MiB) and "value" with the result, or with an error text."""
    warnings.simplefilter("ignore")
    import torch

    call = build_ours(task) if side == "ours" else build_theirs(task)
    inputs = make_codes(num, device)
    call(*make_codes(TINY, device))
    is_cuda = device == "cuda"
    resident, mapped = mining.resident_and_mapped_bytes()
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
        resident = torch.cuda.memory_allocated()
    elif mapped:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (mapped + LIMIT_GIB * 2**30, hard))
    pipe.send(torch.get_num_threads())
    value = None
    while request := pipe.recv():
        try:
            if request == "value":
                pipe.send(value)
                continue
            start = perf_counter()
            value = float(call(*inputs))  # waits for the device
            elapsed_s = perf_counter() - start
            peak = torch.cuda.max_memory_allocated() if is_cuda else mining.peak_bytes()
            pipe.send((elapsed_s, max(0, peak - resident) / mining.MIB))
        except (RuntimeError, MemoryError) as error:
            is_memory = isinstance(error, MemoryError) or "memory" in str(error)
            pipe.send(PAST_MEMORY if is_memory else str(error)[:200])


class Worker(mining.Worker):
    """As for mining, with this file's work and a longer limit."""

    def __init__(self, task: Task, side: mining.Side, num: int, device: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        job = (theirs, task, side, num, device)
        self._process = context.Process(target=serve, args=job, daemon=True)
        self._process.start()
        theirs.close()
        self.failure = self.extra_mib = None
        self.times_s = []
        self.num_threads = self._receive()

    def _receive(self) -> Any:
        if not self._pipe.poll(LIMIT_S):
            self.failure = PAST_TIME
            self.close()
            return None
        return super()._receive()


def measure(task: Task, num: int, device: str, repeats: int) -> dict[str, Any]:
    sides: tuple[mining.Side, ...] = ("ours", "theirs") if task.peer else ("ours",)
    workers = {side: Worker(task, side, num, device) for side in sides}
    first_s = {side: worker.run() for side, worker in workers.items()}
    slowest_s = max(first_s.values())
    n = max(3, min(repeats, int(ROW_BUDGET_S / max(1e-9, slowest_s))))
    if slowest_s > LONG_S:  # too long to be repeated for warmth
        for side, worker in workers.items():
            worker.times_s.append(first_s[side])
    for turn in range(n - (slowest_s > LONG_S)):
        for worker in list(workers.values())[:: -1 if turn % 2 else 1]:
            worker.times_s.append(worker.run())
    size = {"N": num, "D": NUM_ENTRIES, "classes": NUM_CLASSES}
    row: dict[str, Any] = {"name": task.name, "variant": task.variant, "size": size}
    row |= mining.summary("ours", workers["ours"]) | {"peer": task.peer}
    row |= mining.summary("theirs", workers.get("theirs")) | {"unit": "ms", "n": n, "ratio": None}
    if row["ours"] is not None and row["theirs"] is not None:
        row["ratio"] = round(row["theirs"] / row["ours"], 3)
    failures = [f"{side}: {w.failure}" for side, w in workers.items() if w.failure]
    row["did_not_finish"] = "; ".join(failures) or None
    values = [workers[side].ask("value") for side in sides]
    row["value"], row["difference"], row["agrees"] = values[0], None, None
    if task.peer and not failures:
        row["difference"] = abs(values[0] - values[1])
        row["agrees"] = row["difference"] <= TOLERANCE[task.peer]
    row["threads"] = workers["ours"].num_threads
    for worker in workers.values():
        worker.close()
    return row


def requirements(rows: list[dict[str, Any]], device: str) -> list[dict[str, Any]]:
    """What the project asks of itself; `met` is null where this run did not measure it."""
    alone = {(row["name"], row["variant"]): row for row in rows if row["size"]["N"] == WHOLE}
    limits = {"auc": 150, "top-1": 60} if device == "cpu" else {"auc": 1}
    asked = []
    for task in ALONE:
        row = alone.get((task.name, task.variant))
        if task.name not in limits:
            continue
        text = f"{task.name} of {WHOLE:,} codes, {task.variant}: at most {limits[task.name]} s"
        asked.append(_requirement(text, row, "ours", 1000 * limits[task.name], "ms"))
        text = f"{task.name} of {WHOLE:,} codes, {task.variant}: at most 1 GiB more"
        asked.append(_requirement(text, row, "ours_extra_mib", 1024, "MiB"))
    return asked


def _requirement(
    text: str, row: dict[str, Any] | None, key: str, most: float, unit: str
) -> dict[str, Any]:
    if row is None:
        return {"text": text, "met": None, "missed_by": []}
    value = row[key]
    missed_by = [] if value is not None and value <= most else [f"{value} {unit}"]
    return {"text": text, "met": not missed_by, "missed_by": missed_by}


def print_table(rows: list[dict[str, Any]]) -> None:
    titles = "".join(f"{title:>{width + 2}}" for title, _, _, width in mining.COLUMNS)
    print(f"{'name':7}{'':23}{'peer':25}{'N':>6}{titles}")
    for row in rows:
        cells = [
            "-".rjust(width + 2) if row[key] is None else f"{row[key]:{width + 2},.{digits}f}"
            for _, key, digits, width in mining.COLUMNS
        ]
        is_slower = row["ratio"] is not None and row["ratio"] < 1
        print(_label(row) + "".join(cells) + (" slower" if is_slower else ""))
    print("\nms: median of one call. ratio: theirs / ours. MiB: peak beyond the set-up.\n")
    for row in rows:
        if row["did_not_finish"]:
            print(f"did not finish: {_label(row)}: {row['did_not_finish']}")
        if row["agrees"] is False:
            print(f"NOT THE SAME RESULT: {_label(row)}: off by {row['difference']:g}")


def _label(row: dict[str, Any]) -> str:
    return f"{row['name']:7}{row['variant']:23}{row['peer'] or '-':25}{row['size']['N']:6}"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    sizes = [1000, 2000, 4000, 8000]
    parser.add_argument("--sizes", type=int, nargs="*", default=sizes, metavar="N")
    parser.add_argument("--whole", type=int, default=WHOLE, metavar="N", help="ours alone; 0: none")
    parser.add_argument("--repeats", type=int, default=15, help="timed calls at most, at least 3")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(arguments)


def main() -> int:
    options = parse(sys.argv[1:])
    is_cpu = options.device == "cpu"
    peers = (SKLEARN, TORCHMETRICS, PML) if is_cpu else (TORCHMETRICS,)
    result = record.environment(*peers)
    if absent := [name for name, found in result["versions"].items() if found is None]:
        print(f"error: {', '.join(absent)} not installed", file=sys.stderr)
        print("\nhint: pip install -e '.[bench]', or use `make bench`", file=sys.stderr)
        return 1
    result |= {"seed": SEED, "noise": NOISE, "device": options.device}
    if not is_cpu:
        import torch

        result["hardware"]["gpu"] = torch.cuda.get_device_name()
    jobs = [(task, num) for num in options.sizes for task in COMPARED]
    jobs += [(task, options.whole) for task in ALONE if options.whole]
    rows: list[dict[str, Any]] = []
    result["rows"] = rows
    for task, num in jobs:
        if not is_cpu and task.peer not in ON_CUDA:
            continue
        rows.append(measure(task, num, options.device, options.repeats))
        print(_label(rows[-1]), rows[-1]["ours"], rows[-1]["theirs"], file=sys.stderr, flush=True)
    result["requirements"] = requirements(rows, options.device)
    record.write(options.out or record.RESULTS / f"verification-{options.device}.json", result)
    print_table(rows)
    record.print_requirements(result["requirements"])
    return 1 if any(row["agrees"] is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
