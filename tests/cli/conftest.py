"""The command line as its users call it."""

import pytest


@pytest.fixture(scope="session")
def start():
    """Begins the command line in a process of its own."""
    from processes import started

    return started


@pytest.fixture(autouse=True)
def _timed_briefly(monkeypatch):
    """Commands that time training steps take one."""
    monkeypatch.setattr("orbitset.runs.length._TIMED_S", 0.0)
