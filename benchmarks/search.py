"""Search among many codes, ours beside bare faiss and brute force, on the CPU: `python benchmarks/search.py`.

README.md in this folder says what is measured and how. Each side lives in a process of its own, and the two
take turns.
"""

import argparse
import math
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import embedding
import numpy as np
import record

SEED, CODE_SIZE, PER_CENTRE, NOISE, K = 0, 256, 20, 0.5, 10
MANY = 1000
BATCHES = (1, MANY)
TURN_S = 0.5  # short calls are repeated in a turn
ROW_BUDGET_S, LONG_S, TURNS = 20, 30, 15
FAISS, TORCH = "faiss", "torch"
LEAST_RECALL, MOST_TIMES = 0.95, 1.2
SAME_RECALL = 0.02  # graphs are made by threads, so that no two are alike


@dataclass(frozen=True)
class Task:
    kind: str
    peer: str


TASKS = (Task("flat", FAISS), Task("flat", TORCH), Task("ivf", FAISS), Task("hnsw", FAISS))


class Searcher(Protocol):
    def build(self, codes_ND: np.ndarray) -> None: ...
    def search(self, query_QD: np.ndarray) -> Any: ...
    def rows(self, found: Any) -> np.ndarray: ...


def make_codes(num: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes around centres on a sphere, and queries that are others around the same centres."""
    rng = np.random.default_rng(SEED)
    centres = rng.standard_normal((max(1, num // PER_CENTRE), CODE_SIZE), np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    made = []
    for count in (num, MANY):
        codes = rng.standard_normal((count, CODE_SIZE), np.float32)
        codes *= NOISE / math.sqrt(CODE_SIZE)
        codes += centres[rng.integers(len(centres), size=count)]
        made.append(codes)
    return made[0], made[1]


class Ours:
    """An index of names in a folder."""

    def __init__(self, kind: Any, work: Path) -> None:
        self.kind, self.folder = kind, work / "index"

    def build(self, codes_ND: np.ndarray) -> None:
        from orbitset.search import Index

        self.index = Index.create(
            self.folder, model_id="none", code_size=CODE_SIZE, kind=self.kind, overwrite=True
        )
        self.index.add([str(row) for row in range(len(codes_ND))], codes_ND)

    def search(self, query_QD: np.ndarray) -> Any:
        return self.index.search(query_QD, K)

    def rows(self, found: Any) -> np.ndarray:
        return np.array(found.names).astype(np.int64)


class Faiss:
    """The same index of faiss, and no more than that."""

    def __init__(self, kind: str, work: Path) -> None:
        self.kind, self.file = kind, work / "index"

    def build(self, codes_ND: np.ndarray) -> None:
        import faiss

        num = len(codes_ND)
        if self.kind == "flat":
            self.index = faiss.IndexFlatL2(CODE_SIZE)
        elif self.kind == "hnsw":
            self.index = faiss.IndexHNSWFlat(CODE_SIZE, 32)
            self.index.hnsw.efSearch = 64
        else:
            lists = min(int(4 * math.sqrt(num)), num // 39)
            self.centres = faiss.IndexFlatL2(CODE_SIZE)
            self.index = faiss.IndexIVFFlat(self.centres, CODE_SIZE, lists)
            self.index.nprobe = math.ceil(lists / 16)
            sample = np.random.default_rng(SEED).permutation(num)[: 64 * lists]
            self.index.train(codes_ND[np.sort(sample)])
        self.index.add(codes_ND)
        faiss.write_index(self.index, str(self.file))

    def search(self, query_QD: np.ndarray) -> Any:
        return self.index.search(query_QD, K)

    def rows(self, found: Any) -> np.ndarray:
        return found[1]


class Torch:
    """Brute force: a product of matrices and the smallest entries of it."""

    def __init__(self, kind: str, work: Path) -> None:
        self.file = work / "index"

    def build(self, codes_ND: np.ndarray) -> None:
        import torch

        self.codes_ND = torch.from_numpy(codes_ND)
        self.squares_N = self.codes_ND.square().sum(1)
        self.step = max(1, 2**25 // len(codes_ND))
        with self.file.open("wb") as file:
            np.save(file, codes_ND)

    def search(self, query_QD: np.ndarray) -> Any:
        import torch

        parts = [
            torch.addmm(self.squares_N, query, self.codes_ND.T, alpha=-2).topk(K, largest=False)
            for query in torch.from_numpy(query_QD).split(self.step)
        ]
        return torch.cat([part.indices for part in parts])

    def rows(self, found: Any) -> np.ndarray:
        return found.numpy()


def serve(
    pipe: Any, build: Callable[[str, Path], Searcher], kind: str, work: Path, num: int
) -> None:
    """Answer "build" with seconds, a number of queries with seconds per query, and "rows" and "bytes"."""
    warnings.simplefilter("ignore")
    import torch

    codes_ND, query_QD = make_codes(num)
    work.mkdir(parents=True)
    searcher = build(kind, work)
    pipe.send(torch.get_num_threads())
    while request := pipe.recv():
        if request == "build":
            start = perf_counter()
            searcher.build(codes_ND)
            pipe.send(perf_counter() - start)
        elif request == "rows":
            pipe.send(searcher.rows(searcher.search(query_QD)))
        elif request == "bytes":
            pipe.send(sum(path.stat().st_size for path in work.rglob("*") if path.is_file()))
        else:
            pipe.send(run_turn(searcher, query_QD, request))


def run_turn(searcher: Searcher, query_QD: np.ndarray, batch: int) -> float:
    """Seconds per query, the median of the calls that a turn has time for."""
    times_s: list[float] = []
    while sum(times_s) < TURN_S and len(times_s) < MANY:
        at = len(times_s) * batch % MANY
        start = perf_counter()
        searcher.search(query_QD[at : at + batch])
        times_s.append(perf_counter() - start)
    return statistics.median(times_s[1:] or times_s) / batch


def measure(task: Task, work: Path, num: int) -> dict[str, Any]:
    theirs = {FAISS: Faiss, TORCH: Torch}[task.peer]
    workers = {
        side: embedding.Worker(serve, build, task.kind, work / side, num)
        for side, build in (("ours", Ours), ("theirs", theirs))
    }
    row: dict[str, Any] = {"kind": task.kind, "peer": task.peer}
    row |= {"size": {"N": num, "D": CODE_SIZE, "K": K}, "threads": workers["ours"].num_threads}
    row["build"] = in_turns(workers, "build", scale=1)
    for batch in BATCHES:
        row[f"query_{batch}"] = in_turns(workers, batch, scale=1000)
    for side, worker in workers.items():
        row[f"{side}_mib"] = round(worker.ask("bytes") / 2**20, 1)
        row[f"{side}_rows"] = worker.ask("rows")
        worker.close()
    return row


def in_turns(workers: dict[str, Any], request: Any, scale: float) -> dict[str, Any]:
    """Medians and spreads of both sides: of seconds for a build, of ms per query."""
    start = perf_counter()
    first_s = {side: worker.ask(request) for side, worker in workers.items()}
    elapsed_s = perf_counter() - start
    times_s: dict[str, list[float]] = {side: [] for side in workers}
    if elapsed_s > LONG_S:  # too long to be repeated
        times_s = {side: [first] for side, first in first_s.items()}
    else:
        for turn in range(max(3, min(TURNS, int(ROW_BUDGET_S / elapsed_s)))):
            for side, worker in list(workers.items())[:: -1 if turn % 2 else 1]:
                times_s[side].append(worker.ask(request))
    found: dict[str, Any] = {"unit": "s" if request == "build" else "ms"}
    for side, times in times_s.items():
        median, spread = record.median_and_spread(times) if len(times) > 1 else (times[0], None)
        found[side] = round(median * scale, 4)
        found[f"{side}_iqr"] = None if spread is None else round(spread * scale, 4)
    found["n"] = len(times_s["ours"])
    found["ours_over_theirs"] = round(found["ours"] / found["theirs"], 3)
    return found


def add_recall(rows: list[dict[str, Any]]) -> None:
    """Of the ten nearest by our flat index, which looks at every code in float64 where there is doubt."""
    truth = next(row["ours_rows"] for row in rows if row["kind"] == "flat")
    for row in rows:
        for side in ("ours", "theirs"):
            found = row.pop(f"{side}_rows")
            is_right = (found[:, :, None] == truth[:, None]).any(2)
            row[f"{side}_recall"] = round(float(is_right.mean()), 4)
        allowed = 0.001 if row["kind"] == "flat" else SAME_RECALL
        row["agrees"] = abs(row["ours_recall"] - row["theirs_recall"]) <= allowed


def requirements(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the project asks of itself."""
    recall = {
        label(row): row["ours_recall"] - LEAST_RECALL for row in rows if row["kind"] == "hnsw"
    }
    asked = [(f"hnsw finds at least {LEAST_RECALL:.0%} of the ten nearest", recall)]
    for key, what in (
        ("query_1", "one query"),
        (f"query_{MANY}", f"{MANY:,} queries"),
        ("build", "a build"),
    ):
        slack = {
            f"{label(row)}: {row[key]['ours_over_theirs']:.2f} times": MOST_TIMES
            - row[key]["ours_over_theirs"]
            for row in rows
            if row["peer"] == FAISS
        }
        asked.append((f"{what} takes at most {MOST_TIMES} times that of {FAISS}", slack))
    results = []
    for text, slack in asked:
        missed_by = [where for where, value in slack.items() if value < 0]
        results.append({"text": text, "met": not missed_by, "missed_by": missed_by})
    return results


def label(row: dict[str, Any]) -> str:
    return f"{row['kind']}, {row['peer']}"


def print_table(rows: list[dict[str, Any]]) -> None:
    keys = (("build", "build, s"), ("query_1", "ms, by 1"), (f"query_{MANY}", f"ms, by {MANY:,}"))
    print(f"{'kind':6}{'peer':8}{'':14}{'ours':>10}{'theirs':>10}{'ours/theirs':>13}{'n':>4}")
    for row in rows:
        for key, title in keys:
            found = row[key]
            slower = " slower" if found["ours_over_theirs"] > 1 else ""
            print(
                f"{row['kind']:6}{row['peer']:8}{title:14}{found['ours']:10.3f}{found['theirs']:10.3f}"
                f"{found['ours_over_theirs']:13.2f}{found['n']:4}{slower}"
            )
        for key, title, digits in (("recall", "recall@10", 3), ("mib", "MiB on disk", 1)):
            ours, theirs = row[f"ours_{key}"], row[f"theirs_{key}"]
            print(
                f"{row['kind']:6}{row['peer']:8}{title:14}{ours:10.{digits}f}{theirs:10.{digits}f}"
            )
    print("\nms: of one query, asked one by one or 1,000 at a time. Medians of n turns.\n")
    for row in rows:
        if not row["agrees"]:
            print(f"NOT THE SAME RESULT: {label(row)}")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codes", type=int, default=100_000, metavar="N")
    parser.add_argument("--out", type=Path, default=record.RESULTS / "search-cpu.json")
    options = parser.parse_args(arguments)
    if options.codes < MANY:
        parser.error(f"--codes must be at least {MANY}")
    return options


def main() -> int:
    options = parse(sys.argv[1:])
    result = record.environment("orbitset", "faiss-cpu")
    if result["versions"]["faiss-cpu"] is None:
        print("error: faiss-cpu not installed", file=sys.stderr)
        print("\nhint: pip install -e '.[bench,search]', or use `make bench`", file=sys.stderr)
        return 1
    result |= {"seed": SEED, "per_centre": PER_CENTRE, "noise": NOISE}
    rows: list[dict[str, Any]] = []
    for task in TASKS:
        print(f"{task.kind}, {task.peer}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(task, Path(folder), options.codes))
    add_recall(rows)
    result["rows"] = rows
    result["requirements"] = requirements(rows)
    record.write(options.out, result)
    print_table(rows)
    record.print_requirements(result["requirements"])
    return 1 if any(not row["agrees"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
