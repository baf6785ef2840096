"""Write docs/cli.md from the --help of every command; with --check, only say whether it is current."""

import os
import subprocess
import sys
from pathlib import Path

from orbitset.cli.main import command_names

PAGE = Path(__file__).parent / "cli.md"


def reference() -> str:
    parts = ["# Command line\n\nMade from `--help` by `make docs`.\n"]
    for command in command_names():
        done = subprocess.run(
            [sys.executable, "-m", "orbitset", *command, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"},
        )
        text = done.stdout.replace("python -m orbitset", "orbitset").strip()
        parts.append(f"## orbitset {' '.join(command)}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(reference())
    elif PAGE.read_text() != reference():
        sys.exit("docs/cli.md is not current; run make docs")
