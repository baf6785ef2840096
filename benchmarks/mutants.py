"""Change the code of one package a little, many times, and list the changes that no test notices.

Each mutant is one small change in a copy of the tree. It meets the mirror test of its file first, and if that
passes, all tests and doctests of its package. `make mutants` draws 50 from each of four packages.
"""

import argparse
import ast
import copy
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SWAPS = """Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, Add Sub, Mult Div, BitAnd BitOr, LShift RShift,
    And Or, min max, any all, amin amax, argmin argmax, minimum maximum, floor ceil,
    sin cos, float64 float32"""
SWAP = {a: b for pair in SWAPS.split(",") for a, b in (pair.split(), pair.split()[::-1])}
SWAP |= {"FloorDiv": "Div", "Mod": "Mult", "Pow": "Mult"}
SWAP |= {"round": "floor", "cumsum": "sum", "sqrt": "abs", "double": "float"}
NO_NUMBERS = {"device", "strict", "hint", "name"}
"""Keywords that change nothing on the CPU where a call is right"""
SKIPPED = (ast.Raise, ast.JoinedStr, ast.arg, ast.Import, ast.ImportFrom)
"""What a reader sees rather than a number, and types"""


def changes(node: ast.AST) -> Iterator[str]:
    """What could stand in the place of a node."""

    def changed(**fields: object) -> str:
        other = copy.copy(node)
        vars(other).update(fields)
        return ast.unparse(other) if isinstance(node, ast.stmt) else f"({ast.unparse(other)})"

    def swapped(operator: ast.AST) -> list[ast.AST]:
        name = type(operator).__name__
        return [getattr(ast, SWAP[name])()] if name in SWAP else []

    match node:
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) | ast.BoolOp(op=operator):
            yield from (changed(op=other) for other in swapped(operator))
        case ast.Compare(ops=[operator, *rest]):
            yield from (changed(ops=[other, *rest]) for other in swapped(operator))
        case ast.UnaryOp(operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield changed(value=not value)
        case ast.Constant(value=int(value)):
            yield changed(value=value + 1)
        case ast.Constant(value=float(value)):
            yield changed(value=2 * value + 0.5)
        case ast.IfExp(body=body, orelse=orelse):
            yield changed(body=orelse, orelse=body)
        case ast.Name(id="min" | "max" | "any" | "all" as name):
            yield changed(id=SWAP[name])
        case ast.Attribute(attr=name) if name in SWAP:
            yield changed(attr=SWAP[name])
        case ast.Call(keywords=keywords):
            for keyword in keywords:
                if keyword.arg not in NO_NUMBERS:
                    yield changed(keywords=[other for other in keywords if other is not keyword])
    if isinstance(node, ast.AugAssign | ast.Expr) and not isinstance(node.value, ast.Constant):
        yield "pass"


def nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below that compute or decide something."""
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, SKIPPED):
                    yield child
                    yield from nodes(child)


def mutants(source: Path, package: str) -> Iterator[dict]:
    """Every change of every file of the package: a stretch of bytes, and what stands there instead."""
    for path in sorted((source / package).rglob("*.py")):
        text, starts = path.read_bytes(), [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for node in nodes(ast.parse(text)):
            for new in changes(node):
                start = starts[node.lineno - 1] + node.col_offset
                end = starts[node.end_lineno - 1] + node.end_col_offset
                name, old = path.relative_to(source).as_posix(), text[start:end].decode()
                yield {"file": name, "line": node.lineno, "start": start, "old": old, "new": new}


def run_pytest(tree: Path, tests: tuple[str, ...]) -> None:
    """In a process of its own, whose exit status is pytest's."""
    os.setpgrp()
    os.chdir(tree)
    sys.path.insert(0, str(tree / "src"))
    os.environ |= {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    with open(tree / "log.txt", "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    shutil.rmtree(tree / ".hypothesis", ignore_errors=True)
    import pytest

    sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]))


def outcome(tree: Path, tests: tuple[str, ...], timeout: float) -> str:
    """What the tests say: "passed", "failed", or "timeout"."""
    process = multiprocessing.get_context("fork").Process(target=run_pytest, args=(tree, tests))
    process.start()
    process.join(timeout)
    if is_late := process.is_alive():
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return "timeout" if is_late else "failed" if process.exitcode else "passed"


def judge(tree: Path, mutant: dict, stages: list[tuple[str, ...]], limits: dict) -> str:
    """Run the stages of tests until one notices the mutant."""
    path = tree / "src/orbitset" / mutant["file"]
    text, old, start = path.read_bytes(), mutant["old"].encode(), mutant["start"]
    if not text.startswith(old, start):
        sys.exit(f"{mutant['file']}:{mutant['line']} has changed; draw anew")
    for stage in stages:
        if stage not in limits:
            began = time.perf_counter()
            if outcome(tree, stage, 1800) != "passed":
                sys.exit(f"{' '.join(stage)} fails without a mutant; see {tree / 'log.txt'}")
            limits[stage] = 30 + 4 * (time.perf_counter() - began)
        path.write_bytes(text[:start] + mutant["new"].encode() + text[start + len(old) :])
        try:
            result = outcome(tree, stage, limits[stage])
        finally:
            path.write_bytes(text)
        if result != "passed":
            return f"{result} by {'package' if stage == stages[-1] else 'mirror'}"
    return "survived"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("package", help="folder in src/orbitset, e.g. losses")
    add("--tree", type=Path, default=Path(__file__).parents[1], help="root of the code")
    add("--count", type=int, default=50, help="how many mutants are drawn")
    add("--seed", type=int, default=0, help="seed of the draw")
    add("--out", type=Path, default=Path("runs/mutants.json"), help="file of results")
    add("--work", type=Path, default=Path("runs/mutants"), help="folder for the copy")
    add("--again", type=Path, help="run only the survivors in this file of results")
    add("--also", nargs="*", default=[], help="more tests for the last stage")
    options = parser.parse_args()
    tree, package = options.work.resolve() / f"{options.package}-{os.getpid()}", options.package
    unneeded = shutil.ignore_patterns(".*", "__pycache__", "mutants", "runs", "site")
    shutil.copytree(options.tree, tree, ignore=unneeded)
    if options.again:
        earlier = json.loads(options.again.read_text())["mutants"]
        drawn = [mutant for mutant in earlier if mutant.get("outcome") == "survived"]
    else:
        every = list(mutants(tree / "src/orbitset", package))
        drawn = random.Random(options.seed).sample(every, min(options.count, len(every)))
    import scipy.stats  # noqa: F401  these load for seconds, and a mutant's process forks from here
    import sklearn.metrics  # noqa: F401
    import torch  # noqa: F401

    options.out.parent.mkdir(parents=True, exist_ok=True)
    limits: dict[tuple[str, ...], float] = {}
    for number, mutant in enumerate(drawn, 1):
        mirror = f"tests/{package}/test_{Path(mutant['file']).stem}.py"
        last = (f"tests/{package}", f"src/orbitset/{package}", *options.also)
        stages = [(mirror,)] * (tree / mirror).exists() + [last]
        mutant["outcome"] = judge(tree, mutant, stages, limits)
        old, new = (" ".join(mutant[side].split()) for side in ("old", "new"))
        place = f"{mutant['file']}:{mutant['line']}"
        print(f"{number}/{len(drawn)} {mutant['outcome']:18} {place}: {old}  ->  {new}", flush=True)
        about = {"package": package, "tree": str(options.tree), "seed": options.seed}
        options.out.write_text(json.dumps({**about, "mutants": drawn}, indent=1) + "\n")
    print(f"{sum(m['outcome'] == 'survived' for m in drawn)} of {len(drawn)} survived")
    shutil.rmtree(tree)


if __name__ == "__main__":
    main()
