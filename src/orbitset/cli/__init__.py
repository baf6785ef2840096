"""The command line."""

from orbitset.cli.main import main

__all__ = ["main"]
