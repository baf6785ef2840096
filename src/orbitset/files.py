"""Files that are whole or not there, and where those go that can be made again."""

import errno
import os
import re
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import platformdirs


def cache_folder() -> Path:
    """The user's folder for what can be fetched or made again.

    It is $XDG_CACHE_HOME/orbitset, or ~/.cache/orbitset, or what is usual on other systems.
    """
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root) / "orbitset"
    try:
        usual = Path.home() / ".cache" / "orbitset"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"cache-{os.getuid()}" / "orbitset"
    return usual if usual.is_dir() else platformdirs.user_cache_path("orbitset", appauthor=False)


def file_name(label: str) -> str:
    """A label as the name of a file or folder.

    >>> file_name("OJ, as printed")
    'OJ-as-printed'
    """
    return re.sub(r"[^\w.=-]+", "-", label).strip("-")


def ordinary(path: Path) -> Path:
    """The path itself; an OSError if it leads to a device or a named pipe, whose reader may wait for ever."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return path  # whoever opens it says what is wrong
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return path
    raise OSError(errno.EINVAL, "it is no ordinary file", str(path))


def why(error: Exception) -> str:
    """The reason that an error gives, without the number and the name that an OSError puts around it.

    >>> why(OSError(28, "No space left on device", "a.png"))
    'No space left on device'
    """
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def write_atomically(path: Path, content: bytes | Callable[[IO[bytes]], None]) -> None:
    """Write beside and rename, so that a reader finds the old content or the new, whole. Large content may be
    a function that writes into a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _of(path, error) from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def append(path: Path, text: str) -> None:
    """Add a text to a file, but not to what a link leads to, which may be any file of the user's."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)

    with naming(path), open(path, "a", opener=opened) as file:
        file.write(text)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Inside, an OSError that names no file, as that of a full disk, is one of this file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise _of(path, error) from None


def _of(path: Path, error: OSError) -> OSError:
    return OSError(error.errno, error.strerror, str(path))


def remove_parts(folder: Path, names: Collection[str] | None = None) -> None:
    """Remove what a killed `write_atomically` left behind; in a folder that others may write into just now,
    give the names of one's own files: then what a running process writes stays."""
    for part in folder.glob(".*.part"):
        match = re.fullmatch(r"\.(.+)\.(\d+)\.part", part.name, re.DOTALL)
        if match and (names is None or (match[1] in names and not _is_running(int(match[2])))):
            part.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
