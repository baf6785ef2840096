"""The command line as its users call it."""

import signal
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def start():
    """A process of its own, which hears Ctrl-C even where the tests run in the background, which does not."""

    def begin(*arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "orbitset", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return begin
