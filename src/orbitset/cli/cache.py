"""The command that lists and clears the cache."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from orbitset.cli.options import Json, say
from orbitset.errors import ConfigError

OlderThan = Annotated[
    float | None,
    typer.Option("--older-than", metavar="DAYS", help="Only entries not used for so many days."),
]
app = typer.Typer(invoke_without_command=True)


@app.callback()
def cache(context: typer.Context, older_than: OlderThan = None, as_json: Json = False) -> None:
    """List or clear the cache: decoded images, frames of videos, rendered heads, compiled code.

    Without a command, it lists what is cached.

    Example: orbitset cache --older-than 30
    """
    _check_days(older_than)
    if context.invoked_subcommand is not None:
        return
    from orbitset.datasets.cache import LIMIT, entries, limit_bytes
    from orbitset.files import cache_folder

    listed = [entry for entry in entries() if entry.days_unused >= (older_than or 0)]
    total = sum(entry.bytes for entry in listed)
    if as_json:
        rows = [asdict(entry) for entry in listed]
        print(json.dumps({"folder": str(cache_folder()), "bytes": total, "entries": rows}))
        return
    for entry in listed:
        source = entry.source or "written by an older version"
        print(f"{entry.kind:<8} {_megabytes(entry.bytes):>12}  {entry.used[:10]}  {source}")
    entry_count = f"{len(listed):,} entr{'y' if len(listed) == 1 else 'ies'}"
    limit = f"limit {limit_bytes() / 1e9:g} GB, ${LIMIT}"
    print(f"{cache_folder()}: {entry_count}, {_megabytes(total)} ({limit})")


@app.command("clear")
def cache_clear(older_than: OlderThan = None, as_json: Json = False) -> None:
    """Remove what is cached; it is made again when it is needed. Downloaded data sets stay.

    Example: orbitset cache clear --older-than 30
    """
    from orbitset.datasets.cache import clear

    _check_days(older_than)
    removed = clear(older_than_days=older_than or 0.0)
    total = sum(entry.bytes for entry in removed)
    if as_json:
        rows = [asdict(entry) for entry in removed]
        print(json.dumps({"bytes": total, "removed": rows}))
    else:
        say(f"removed {len(removed):,} entries, {_megabytes(total)}")


def _check_days(older_than: float | None) -> None:
    if older_than is not None and not older_than >= 0:
        raise ConfigError(f"--older-than is {older_than:g}; give a number of days, at least 0")


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
