"""The program: its commands, and how it ends after an error.

Commands parse and print. Progress and messages go to stderr, data to stdout.
"""

import errno
import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from orbitset.cli import cache, data, finding, single, studies, using
from orbitset.cli.comparing import compare
from orbitset.cli.options import fail, say
from orbitset.cli.tuning import tune
from orbitset.errors import OrbitsetError
from orbitset.outside import described_error, user_traceback

# GNU OpenMP threads that wait by spinning starve each other when anything else runs on the machine.
# torch reads this when it is loaded, so it must be set before; a user's own choice stays.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

app = typer.Typer(
    name="orbitset",
    help="Image embeddings learned from orbit sets: discriminate-and-rectify encoders.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_ROOM = "make room on that disk, or choose a folder on another one"
_COMMANDS: tuple[Callable[..., None], ...] = (
    single.demo,
    single.train,
    single.finish,
    single.evaluate,
    single.report,
    studies.reproduce,
    compare,
    tune,
    using.embed,
    using.rectify,
    using.verify,
    using.export,
    finding.search,
    finding.dedupe,
    finding.classify,
)
for _command in _COMMANDS:
    app.command()(_command)
app.add_typer(finding.app, name="index")
app.add_typer(data.app, name="data")
app.add_typer(cache.app, name="cache")


def command_names() -> list[tuple[str, ...]]:
    """All commands, each with its group."""
    root: Any = typer.main.get_command(app)
    names: list[tuple[str, ...]] = []
    for name, command in root.commands.items():
        inside = getattr(command, "commands", None)
        is_command = inside is None or command.invoke_without_command
        names += [(name,)] * is_command + [(name, inner) for inner in inside or ()]
    return names


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from orbitset import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; every expected error is one sentence on stderr and an exit code."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may hold what cannot be printed
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False)
    except OrbitsetError as error:
        sys.exit(fail(error.message, error.hint, error.exit_code))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        hint = _ROOM if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
        sys.exit(fail(f"{error.strerror or error}{where}", hint, 1))
    except (MemoryError, RuntimeError) as error:
        from orbitset.memory import is_out_of_memory

        if not is_out_of_memory(error):
            sys.exit(_fail_outside(error))
        is_cuda = "CUDA" in str(error)
        where, other = (" on the GPU", "--device cpu, or ") if is_cuda else ("", "")
        hint = f"try {other}a smaller batch (--set orbits.orbits_per_batch=…) or smaller images"
        sys.exit(fail(f"not enough memory{where}", hint, 1))
    except Exception as error:  # what typer's parser raises; its classes move between versions
        if not hasattr(error, "format_message"):
            sys.exit(_fail_outside(error))
        sys.exit(fail(error.format_message(), _usage_hint(error), getattr(error, "exit_code", 2)))
    sys.exit(code if isinstance(code, int) else 0)


def _open_closed_streams() -> None:
    """A stream that was closed leads to nothing; else the next file that is opened would get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: the stream's
            setattr(sys, name, os.fdopen(nothing, "w" if number else "r", closefd=False))


def _fail_outside(error: Exception) -> int:
    """Say what failed in the user's own code, and show the frames from there on; raise other errors again."""
    frames = user_traceback(error)
    if frames is None:
        raise error
    say("Traceback (from your own code on):\n" + "".join(traceback.format_tb(frames)))
    return fail(described_error(error), None, 1)


def _usage_hint(error: Any) -> str:
    names: list[str] = []
    context = getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names, context = [context.info_name, *names], context.parent
    if not names:
        return "orbitset --help lists the commands, orbitset COMMAND --help their options"
    return f"orbitset {' '.join(names)} --help lists its options"
