"""Everything that is measured on a GPU: `python benchmarks/gpu.py`. Writes results/*-cuda.json and a plot."""

import argparse
import subprocess
import sys
from pathlib import Path

import record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=record.RESULTS, help="folder for the results")
    options = parser.parse_args()
    jobs = (
        ("warp.py", "--out", options.out / "warp-cuda.json"),
        ("training.py", "--device", "cuda", "--out", options.out / "training-cuda.json"),
        ("verification.py", "--device", "cuda", "--out", options.out / "verification-cuda.json"),
        (
            *("scaling.py", "--device", "cuda", "--out", options.out / "scaling-cuda.json"),
            *(
                []
                if options.out == record.RESULTS
                else ["--plot", options.out / "scaling-cuda.png"]
            ),
        ),
    )
    failed = [
        script
        for script, *arguments in jobs
        if subprocess.run([sys.executable, record.HERE / script, *map(str, arguments)]).returncode
    ]
    if failed:
        print(f"error: {', '.join(failed)} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
