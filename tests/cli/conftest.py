"""The command line as its users call it."""

import io
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from orbitset.cli.main import main


@pytest.fixture(scope="session")
def orbitset():
    """What a process would give, from this one, which has torch loaded already."""

    def call(*arguments, **environment):
        command = ["orbitset", *map(str, arguments)]
        printed, said = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setattr(sys, "argv", command)
            for name, value in {"COLUMNS": "80", **environment}.items():
                patch.setenv(name, value)
            with redirect_stdout(printed), redirect_stderr(said):
                main()
        return subprocess.CompletedProcess(
            command, ended.value.code, printed.getvalue(), said.getvalue()
        )

    return call


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


@pytest.fixture(scope="session")
def fails():
    """One sentence on stderr, nothing on stdout, the exit code asked for."""

    def check(done, code, *texts):
        assert done.returncode == code, done.stderr
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert done.stderr.startswith("error: ")
        for text in texts:
            assert text in done.stderr

    return check
