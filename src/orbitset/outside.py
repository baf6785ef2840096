"""Code from outside the package, named `package.module:name`: which of it may run, and how it is imported.

Code that the user names may run: on the command line, or in Python. Code that a file names, such as the
`config.json` of a run or the `model.json` of a model, runs only if the user trusts its module, by `--trust`,
`orbitset.load(…, trust=…)` or `ORBITSET_TRUST`. The modules that are trusted are kept in that environment
variable, so that processes that are started inherit them.
"""

import difflib
import importlib
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import TracebackType
from typing import Any

from orbitset.errors import ConfigError

TRUSTED = "ORBITSET_TRUST"
"""Environment variable with the modules that are trusted, separated by commas"""
_MODULE = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_NAME = re.compile(rf"{_MODULE}:[^\W\d]\w*")
_LONGEST = 300
"""Characters of an error of outside code that are printed"""


def is_name(text: str) -> bool:
    """Whether a text has the form `package.module:name`.

    >>> is_name("my_losses:info_nce"), is_name("../evil:run"), is_name("a:b:c")
    (True, False, False)
    """
    return _NAME.fullmatch(text) is not None


def trust(modules: str | Iterable[str]) -> None:
    """Let code of these modules run, in this process and in those that it starts, whoever names it.

    A package stands for all its modules. Of `package.module:name` the module is trusted.
    """
    texts = [modules] if isinstance(modules, str) else modules
    names = [name.partition(":")[0].strip() for text in texts for name in text.split(",")]
    for name in names:
        if not re.fullmatch(_MODULE, name):
            raise ConfigError(
                f"{name!r} cannot be trusted; name a module, such as my_package.losses"
            )
    os.environ[TRUSTED] = ",".join(dict.fromkeys([*_trusted(), *names]))


def check_trust(names: Mapping[str, str], named_by: Path | str) -> None:
    """Refuse code that a file names, unless the user trusts it. Nothing is imported or looked for before.

    `names` says what each name is of: `{"my_losses:info_nce": "loss"}`. Where `named_by` is the folder of a
    run or of a model, code that lies in it is refused in any case: it came with the folder.
    """
    modules = dict.fromkeys(_module_of(name, what) for name, what in names.items())
    refused = [module for module in modules if not _is_trusted(module)]
    if refused:
        kinds = ", ".join(
            f"the {what} {name}"
            for name, what in names.items()
            if _module_of(name, what) in refused
        )
        raise ConfigError(
            f"{named_by} names {kinds}; code that a file names runs only if you trust it",
            hint=_how_to_trust(",".join(refused)),
        )
    folder = Path(named_by)
    for module in modules:
        if folder.is_dir() and module not in sys.modules and _lies_in(folder, module):
            raise ConfigError(
                f"the module {module} lies in {folder}, which names it; code that comes with a model or a "
                "run is never run",
                hint="if you have read it, and want it to run, move it out of that folder",
            )


def import_named(name: str, *, what: str) -> Any:
    """What `package.module:name` stands for; modules are also looked for in the current folder.

    The user names it, and so trusts its module; where a file does, `check_trust` comes first.
    """
    module_name = _module_of(name, what)
    trust(module_name)
    try:
        with _current_folder_last():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the user's own code
        if isinstance(error, ConfigError):
            raise
        is_missing = isinstance(error, ModuleNotFoundError) and (
            f"{module_name}.".startswith(f"{error.name}.")
        )
        reason = str(error) if is_missing else described_error(error)
        raise ConfigError(
            f"cannot import the {what} {name}: {reason}",
            hint="install its package, or call orbitset from the folder in which it lies"
            if is_missing
            else None,
        ) from None
    attribute = name.partition(":")[2]
    if not hasattr(module, attribute):
        near = difflib.get_close_matches(attribute, dir(module), 1)
        raise ConfigError(
            f"{module_name} has no {attribute}" + (f"; did you mean {near[0]}?" if near else "")
        )
    return getattr(module, attribute)


def user_traceback(error: BaseException) -> TracebackType | None:
    """The traceback of an error from the first frame in trusted code on; None if there is no such frame."""
    trace = error.__traceback__
    while trace and not _is_trusted(str(trace.tb_frame.f_globals.get("__name__"))):
        trace = trace.tb_next
    return trace


def described_error(error: BaseException) -> str:
    """Type and message of an error in trusted code, and the line of that code which it came from. Of a long
    message, such as the names of all weights that do not fit, it is the beginning."""
    place, trace = "", user_traceback(error)
    while trace is not None:
        if _is_trusted(str(trace.tb_frame.f_globals.get("__name__"))):
            file = Path(trace.tb_frame.f_code.co_filename).absolute()
            if file.is_relative_to(Path.cwd()):
                file = file.relative_to(Path.cwd())
            place = f" ({file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    message = textwrap.shorten(str(error), _LONGEST, placeholder=" …")
    return f"{type(error).__name__}: {message}{place}"


def command() -> str:
    """The command line of this process; the name of the program stands for wherever it lies."""
    return shlex.join(["orbitset" if _is_command() else Path(sys.argv[0]).name, *sys.argv[1:]])


def _is_command() -> bool:
    program = Path(sys.argv[0])
    return program.stem == "orbitset" or program.parts[-2:] == ("orbitset", "__main__.py")


def _how_to_trust(modules: str) -> str:
    if _is_command():
        return f"if you trust that code: {command()} --trust {modules}"
    return (
        f'if you trust that code: orbitset.load(…, trust="{modules}"), or set {TRUSTED}={modules}'
    )


def _trusted() -> list[str]:
    names = (name.strip() for name in os.environ.get(TRUSTED, "").split(","))
    return [name for name in names if name]


def _is_trusted(module: str) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in _trusted())


def _module_of(name: str, what: str) -> str:
    if not is_name(name):
        raise ConfigError(f"the {what} {name!r} is not understood; write package.module:name")
    return name.partition(":")[0]


def _lies_in(folder: Path, module: str) -> bool:
    """Whether a module would be imported from a folder; found without importing any of its packages."""
    places: list[str] | None = [*sys.path, ""]
    parts = module.split(".")
    for index in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: index + 1]), places)
        if spec is None:
            return False
        places = list(spec.submodule_search_locations or [])
        files = [Path(spec.origin)] if spec.has_location and spec.origin else map(Path, places)
        for file in files:
            # a link in the folder, and what a link elsewhere leads to in it
            if any(
                path.is_relative_to(folder.resolve()) for path in (file.absolute(), file.resolve())
            ):
                return True
    return False


@contextmanager
def _current_folder_last() -> Iterator[None]:
    """Modules are also looked for in the current folder, after those that are installed."""
    sys.path.append("")
    try:
        yield
    finally:
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index("")]
