"""A run is a folder; everything shown anywhere is made from such folders.

config.json        the configuration
environment.json   versions, commit, device, seed, when
metrics.jsonl      a line for each evaluation, without wall-clock times, so that equal runs are equal files
timing.jsonl       how long each stretch between evaluations took
results.json       rows of figures: method, metric, mean, s.d., what was repeated and how often
arrays.npz         t-SNE points, curves, uint8 images for the figures
model.safetensors  the trained weights; model.json says how to use them, model-card.md how good they are
known.safetensors  codes of training images, for the model's confidence
left_out.json      rows of the data that were not used, and why; only if there are any
checkpoint/        what a training is resumed from, until it is finished
figures/, report.html
"""

import datetime
import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from orbitset.errors import RunError
from orbitset.files import append, ordinary, remove_parts, write_atomically
from orbitset.limits import parse_json
from orbitset.outside import command, is_name

PACKED = "trainings.jsonl"
"""A packed study has this in place of the folders of its trainings; see results/recorded.py"""
_NAMING = ("method", "methods", "protocol", "measures", "data", "backbone")
"""The settings that may name code from outside the package"""
_WRITTEN = (
    "results.json",
    PACKED,
    *(f"checkpoint/{name}.safetensors" for name in ("latest", "previous", "new")),
    "metrics.jsonl",
    "timing.jsonl",
    "notes.jsonl",
    "arrays.npz",
    "model.json",
    "model-card.md",
    "known.safetensors",
    "model.safetensors",
    "left_out.json",
    *(f"tables/results.{suffix}" for suffix in ("md", "tex", "csv", "json")),
    "tables/tests.csv",
    "report.html",
    "environment.json",
)
"""In the order of their removal: first what makes a folder look like a run to resume"""
_FIGURES = "figures/.written"
"""The names of the figures that were written, a line each: beside them may lie those of others"""
_RECORDED = ("results.json", "metrics.jsonl", "arrays.npz", "environment.json")

Kind = Literal["run", "demo", "study", "search"]


class Run:
    """Paths of a run folder, and reading and writing that survives being killed at any moment."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run, and not only some other program's config.json."""
        try:
            config = parse_json(ordinary(self / "config.json").read_text())
        except (OSError, ValueError):
            return False
        return (
            isinstance(config, dict) and "name" in config and bool({"method", "runs"} & set(config))
        )

    @property
    def is_finished(self) -> bool:
        return self.has_results and (self / "model.safetensors").is_file()

    @property
    def has_results(self) -> bool:
        """Whether it is finished, apart from the weights, which a recorded run does not come with."""
        return all((self / name).is_file() for name in _RECORDED) and not self.is_stopped

    @property
    def is_stopped(self) -> bool:
        """Whether its results are those of a training that was stopped, and can go on."""
        results = self.read_json("results.json") if self.is_trained else None
        return isinstance(results, dict) and "stopped" in results

    @property
    def is_trained(self) -> bool:
        """Whether its training ended or was stopped. All but its records may have been removed since."""
        return (self / "results.json").is_file()  # the last thing a training writes

    @property
    def is_begun(self) -> bool:
        """Whether its training got as far as its first record or checkpoint."""
        names = ("results.json", "metrics.jsonl", "model.safetensors", "checkpoint/*.safetensors")
        return any(path.stat().st_size for name in names for path in self.path.glob(name))

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, while training."""
        return self / "checkpoint"

    @property
    def kind(self) -> Kind:
        """A single training, or what holds several: a demo, a study, a search for settings."""
        config = self.config if self.exists else {}
        marks: dict[str, Kind] = {"lines": "study", "trials": "search", "runs": "demo"}
        return next((kind for key, kind in marks.items() if key in config), "run")

    @property
    def command(self) -> str:
        """The command that makes such a folder."""
        verbs = {"study": "reproduce", "search": "tune", "demo": "demo", "run": "train"}
        is_named = self.kind in ("study", "search")
        return verbs[self.kind] + (f" {shlex.quote(self.config['name'])}" if is_named else "")

    def refuse_search(self, wish: str) -> None:
        """An error if the folder holds a search, which keeps no weights and is no result."""
        if self.kind == "search":
            raise RunError(
                f"{self.path} holds a search for settings, which cannot be {wish}",
                hint=f"its table: {self.resume_command}",
                is_usage=True,
            )

    @property
    def resume_command(self) -> str:
        """The command that goes on with it."""
        return self._trusting(f"{self.command} --resume --out")

    @property
    def ways_on(self) -> str:
        """What can be done with a run that is not finished, as a hint."""
        resume = f"go on with it: {self.resume_command}"
        if self.kind != "run" or not any(self.checkpoints.glob("*.safetensors")):
            return resume
        return f"{resume}\nmake a model of what it has learned so far: {self._trusting('finish')}"

    def _trusting(self, words: str) -> str:
        modules = dict.fromkeys(_modules_of(self.config if self.exists else {}))
        modules.pop("timm", None)  # networks of timm are not code of the user's
        trust = f" --trust {','.join(modules)}" if modules else ""
        return f"orbitset {words} {shlex.quote(str(self.path))}{trust}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let only one process at a time write the folder; the lock ends with the process."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(self / ".lock").acquire(timeout=0)
        except Timeout:
            raise RunError(f"another process is writing {self.path}; wait for it to end") from None
        with lock:
            yield

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.read_json("config.json")
        return config

    def check_free(self, *, overwrite: bool = False, kind: Kind = "run") -> None:
        """Refuse a folder that a new run must not be written into; touches nothing."""
        foreign = None
        if self.exists and self.kind != kind:
            foreign = f"holds a {self.kind}"
        elif self.path.exists() and not self.path.is_dir():
            foreign = "is a file"
        elif self.path.is_dir() and not self.exists and any(map(_is_foreign, self.path.iterdir())):
            foreign = "is not empty and holds no run"
        if foreign is not None:
            raise RunError(
                f"{self.path} {foreign}; choose another folder with --out", is_usage=True
            )
        if self.exists and not overwrite and (kind != "run" or self.is_begun):
            raise RunError(
                f"{self.path} already holds a run",
                hint="add --resume to go on with it, --overwrite to start anew, "
                "or --out to use another folder",
                is_usage=True,
            )

    def create(
        self, config: Mapping[str, Any], *, overwrite: bool = False, kind: Kind = "run"
    ) -> None:
        """Start the folder; with `overwrite` what an earlier run wrote there is removed."""
        self.check_free(overwrite=overwrite, kind=kind)
        for name in self.config.get("runs", ()) if self.exists else ():
            Run(self / name).remove()  # before anything is new, lest a kill leave old beside new
        self.path.mkdir(parents=True, exist_ok=True)
        remove_parts(self.path)
        self.clear()
        self.write_json("config.json", config)

    def remove(self) -> None:
        """Remove all that a run wrote, and the folder if nothing is left in it."""
        if not self.exists:
            return
        self.clear()
        remove_parts(self.path)
        for name in ("config.json", ".lock"):
            (self / name).unlink(missing_ok=True)
        for folder in (self.path, self.path.parent):
            if not any(folder.iterdir()):
                folder.rmdir()

    def require_model(self) -> None:
        """An error that says what can be done, if this is a training from which no model was made yet."""
        is_made = self.is_trained or (self / "model.json").exists()
        if self.exists and self.kind == "run" and not is_made:
            message = f"{self.path} holds a run that is not finished"
            raise RunError(message, hint=self.ways_on, is_usage=True)

    def note_environment(self, *, device: str, seed: int, **more: Any) -> None:
        """Write the hardware and versions that this runs with, after those it was begun with, and `more`."""
        environment = describe_environment(device=device, seed=seed)
        environment |= {name: value for name, value in more.items() if value is not None}
        if (self / "environment.json").exists():
            first = self.read_json("environment.json")
            environment = {**first, "resumed": [*first.get("resumed", []), environment]}
        self.write_json("environment.json", environment)

    def require(self) -> "Run":
        """This run, or an error that says how to make one."""
        if self.exists:
            return self
        if (self / "config.json").is_file():
            raise RunError(f"{self / 'config.json'} is damaged, or belongs to another program")
        start = f"orbitset train affine-digits --out {shlex.quote(str(self.path))}"
        raise RunError(
            f"there is no run folder at {self.path}",
            hint=None if self.path.exists() else f"start one with: {start}",
            is_usage=True,
        )

    def read_json(self, name: str) -> Any:
        try:
            return parse_json(ordinary(self / name).read_text())
        except FileNotFoundError:
            raise RunError(
                f"{self.path} has no {name}: the run is not finished", hint=self.ways_on
            ) from None
        except ValueError as error:
            raise RunError(f"{self / name} is damaged: {error}") from None

    def write_json(self, name: str, content: Any) -> None:
        text = json.dumps(without_nan(content), indent=2, allow_nan=False)
        write_atomically(self / name, f"{text}\n".encode())

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        append(self / name, json.dumps(without_nan(record), allow_nan=False) + "\n")

    def records(self, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
        """The complete lines of a file of JSON lines; a last one cut off by a kill is left out."""
        if not (self / name).is_file():
            return []
        try:
            lines = (self / name).read_text().split("\n")[:-1]
            records = [parse_json(line) for line in lines]
        except ValueError as error:
            raise RunError(f"{self / name} is damaged: {error}") from None
        if not all(isinstance(record, dict) and "step" in record for record in records):
            raise RunError(f"{self / name} is damaged: a line is not a record of a step")
        return records

    def rewind(self, name: str, step: int) -> None:
        """Drop the lines after a step, which were written after the checkpoint that is resumed from."""
        records = [record for record in self.records(name) if record["step"] <= step]
        text = "".join(json.dumps(record) + "\n" for record in records)
        write_atomically(self / name, text.encode())

    def write_figures(self, figures: Mapping[str, bytes]) -> None:
        """Write figures by their names, which are noted first, so that `clear` knows them."""
        if figures:
            if (self / "figures").is_symlink():
                raise RunError(
                    f"{self / 'figures'} is a link; remove it, so that figures lie in the run"
                )
            names = dict.fromkeys([*self._figure_names(), *figures])
            write_atomically(self / _FIGURES, "".join(f"{name}\n" for name in names).encode())
        for name, content in figures.items():
            write_atomically(self / "figures" / name, content)

    def clear(self) -> None:
        """Remove what a run wrote, except its configuration; files of others stay."""
        figures = [f"figures/{name}" for name in self._figure_names()]
        self._remove([*_WRITTEN, *figures, _FIGURES])

    def remove_results(self) -> None:
        """Remove the results and the model of a training that was stopped, before there are others."""
        self._remove(["results.json", "model.json"])

    def remove_checkpoint(self) -> None:
        """Remove the checkpoints, each of which is at least three times as large as the weights."""
        self._remove([name for name in _WRITTEN if name.startswith("checkpoint/")])

    def _figure_names(self) -> list[str]:
        path = self / _FIGURES
        names = path.read_text().splitlines() if path.is_file() else []
        return [name for name in names if Path(name).name == name and name != ".."]

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self / name).unlink(missing_ok=True)
        for folder in (self / "checkpoint", self / "figures", self / "tables"):
            if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()


def _modules_of(content: Any, key: str = "") -> Iterator[str]:
    """The modules from outside the package that a configuration names, at any depth."""
    if isinstance(content, Mapping):
        for inner, value in content.items():
            yield from _modules_of(value, inner)
    elif isinstance(content, list):
        for value in content:
            yield from _modules_of(value, key)
    elif key in _NAMING and isinstance(content, str) and is_name(content.removesuffix("-STN")):
        yield content.partition(":")[0]


def _is_foreign(path: Path) -> bool:
    """Whether a file is none that a run which was killed in its first moment leaves."""
    return path.name != ".lock" and not re.fullmatch(r"\.config\.json\.\d+\.part", path.name)


def without_nan(content: Any) -> Any:
    """The content with None where a number is not finite, which JSON cannot hold."""
    if isinstance(content, Mapping):
        return {key: without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def describe_environment(*, device: str, seed: int) -> dict[str, Any]:
    """Versions, commit, hardware, seed and command: what is needed to understand a figure later."""
    import numpy
    import torch

    import orbitset

    is_cuda = device.startswith("cuda")
    return {
        "command": command(),
        "commit": _commit(),
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "device": torch.cuda.get_device_name(device) if is_cuda else _processor(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            "orbitset": orbitset.__version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "scikit-learn": importlib.metadata.version("scikit-learn"),
        },
    }


def _commit() -> str | None:
    """The commit of the source that runs: from git, or from $ORBITSET_COMMIT where git is absent."""
    if commit := os.environ.get("ORBITSET_COMMIT"):
        return commit
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        known = subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True)
        if known.returncode:
            return None
        described = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True
        )
        return described.stdout.strip() or None
    except OSError:
        return None


def _processor() -> str:
    cpus = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)", cpus.read_text() if cpus.exists() else "", re.M)
    model = named[1].strip() if named else platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores"
