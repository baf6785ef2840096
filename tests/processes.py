"""Processes of their own that begin at once: each is forked from one that has imported the package."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["orbitset.runs.train", "orbitset.report", __name__])


class Process:
    """A call in a process of its own; used as `subprocess.Popen` is."""

    def __init__(self, call, *arguments):
        self._folder = Path(tempfile.mkdtemp(prefix="orbitset-process-"))
        self._streams = [self._folder / name for name in ("stdout", "stderr")]
        begin = (self._streams, dict(os.environ), call, arguments)
        self._process = CONTEXT.Process(target=_begin, args=begin)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def communicate(self, timeout=600):
        """Waits for its end; gives its stdout and stderr."""
        self._process.join(timeout)
        if self.poll() is None:
            self._process.kill()
            raise subprocess.TimeoutExpired(str(self._process), timeout)
        printed, said = (path.read_text() if path.exists() else "" for path in self._streams)
        shutil.rmtree(self._folder)
        return printed, said


def started(*arguments):
    """The command line, in the current folder."""
    return Process(_call_orbitset, list(map(str, arguments)))


def run_python(code):
    """The code, and what `subprocess.run` would give."""
    process = Process(exec, code, {"__name__": "__main__"})
    printed, said = process.communicate()
    return subprocess.CompletedProcess(code, process.returncode, printed, said)


def get_context(method):
    """Stands in for that of `multiprocessing`, for what would spawn."""
    assert method == "spawn"

    def process(*, target, args, daemon):
        return CONTEXT.Process(
            target=_with_environment, args=(dict(os.environ), target, args), daemon=daemon
        )

    return SimpleNamespace(Process=process, Pipe=CONTEXT.Pipe)


def _begin(streams, environment, call, arguments):
    for number, path in enumerate(streams, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    # it hears Ctrl-C even where the tests run in the background, which does not
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _with_environment(environment, call, arguments)


def _with_environment(environment, call, arguments):
    os.environ.clear()
    os.environ.update(environment)
    call(*arguments)


def _call_orbitset(arguments):
    from orbitset.cli.main import main

    sys.path.insert(0, os.getcwd())  # as `python -m orbitset` has it
    sys.argv = ["orbitset", *arguments]
    main()
