"""The command line as its users call it."""

import pytest


@pytest.fixture(scope="session")
def start():
    """Begins the command line in a process of its own."""
    from processes import started

    return started
