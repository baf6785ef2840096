"""Finished trainings as they were recorded: a folder for each, or packed into the tables of their study.

A packed study is the folder of the study with three files in place of the folders of its trainings. A
training is named by its path in the study, such as OJ/seed-0, in each line and before each array's name:

trainings.jsonl    the environment, results and times of each training, and the data that it left out
metrics.jsonl      a line for each evaluation
arrays.npz         what figures are drawn from
"""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from orbitset.config import differences
from orbitset.errors import ConfigError, RunError
from orbitset.files import write_atomically
from orbitset.limits import parse_json, read_arrays
from orbitset.recipes.experiment import Experiment, read_experiment
from orbitset.recipes.study import Line, Study, read_study
from orbitset.run_folder import PACKED, Run, without_nan

_METRICS, _ARRAYS = "metrics.jsonl", "arrays.npz"


@dataclass(frozen=True, eq=False)
class Training:
    """What a finished training recorded."""

    path: Path
    """Its folder, or where that would be in the packed study"""
    config: Experiment
    environment: Mapping[str, Any]
    results: Mapping[str, Any]
    records: Sequence[dict[str, Any]]
    """A record for each evaluation"""
    times: Sequence[dict[str, Any]]
    """How long each stretch between evaluations took"""
    left_out: Mapping[str, Any] | None
    """Rows of the data that could not be used, and why"""
    archive: Path
    """The file of its arrays"""
    prefix: str = ""
    """How the names of its arrays begin in there"""

    def __truediv__(self, name: str) -> Path:
        """What an error calls a part of the record."""
        return self.path / name

    def file_of(self, name: str) -> Path:
        """The file that holds a part of the record."""
        return self.archive.with_name(PACKED) if self.prefix else self.path / name

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """What figures are drawn from."""
        try:
            arrays = read_arrays(self.archive, lambda name: name.startswith(self.prefix))
        except ValueError as error:
            raise RunError(f"{self.archive} is damaged: {error}") from None
        return {
            name.removeprefix(self.prefix): array
            for name, array in arrays.items()
            if array is not None
        }


@dataclass(frozen=True, eq=False)
class RecordedStudy:
    """A study and those of its trainings that are finished."""

    path: Path
    study: Study
    environment: Mapping[str, Any]
    trainings: Mapping[str, Training]
    """By their path in the study, in its order"""

    def finished(self, lines: Iterable[Line], seeds: Sequence[int]) -> list[Training]:
        """The finished trainings of these lines and seeds."""
        paths = [line.path(seed) for line in lines for seed in seeds]
        return [self.trainings[path] for path in paths if path in self.trainings]

    def has_all(self, lines: Sequence[Line], seeds: Sequence[int]) -> bool:
        return len(self.finished(lines, seeds)) == len(lines) * len(seeds)


def stored_study(run: Run) -> Study:
    """The study that a folder was started with."""
    config = run.require().config
    if run.kind != "study":
        raise RunError(f"{run.path} holds no study, but a run of {config['name']}", is_usage=True)
    try:
        return read_study(config)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{run / 'config.json'} is damaged: {error}") from None


def read_training(run: Run) -> Training:
    """A finished training from its folder."""
    results = _read(run, "results.json")  # says how to go on with a training that is not finished
    try:
        config = read_experiment(run.config)
    except ConfigError as error:
        raise RunError(f"{run / 'config.json'} cannot be used: {error}") from None
    records = run.records(_METRICS)
    if not (run / _METRICS).is_file() or not (run / _METRICS).read_bytes().endswith(b"\n"):
        raise RunError(f"{run / _METRICS} is damaged: its last line is cut off")
    has_list = (run / "left_out.json").is_file()
    return Training(
        path=run.path,
        config=config,
        environment=_read(run, "environment.json"),
        results=results,
        records=records,
        times=run.records("timing.jsonl"),
        left_out=_read(run, "left_out.json") if has_list else None,
        archive=run / _ARRAYS,
    )


def read_recorded(run: Run, study: Study | None = None) -> RecordedStudy:
    """The study in a folder, packed or not; a training that has a folder is read from there."""
    study = stored_study(run) if study is None else study
    packed = _packed(run, study) if (run / PACKED).is_file() else {}
    trainings = {}
    for line, seed in study.runs():
        path = line.path(seed)
        single = Run(run / path)
        _check_place(study, line, seed, single)
        if single.has_results:
            trainings[path] = read_training(single)
        elif path in packed:
            trainings[path] = packed[path]
    has_environment = (run / "environment.json").is_file()
    environment = _read(run, "environment.json") if has_environment else {}
    return RecordedStudy(run.path, study, environment, trainings)


def pack(recorded: RecordedStudy, out: Path) -> None:
    """Write a study into a few files, without the weights; `out` is new, empty or holds a packed study."""
    target = Run(out)
    is_packed = target.kind == "study" and (target / PACKED).is_file()
    if out.resolve() == recorded.path.resolve():
        raise RunError(f"{out} holds the study itself; choose another folder", is_usage=True)
    if out.exists() and not is_packed and (not out.is_dir() or any(out.iterdir())):
        raise RunError(
            f"{out} holds something other than a packed study; choose another folder", is_usage=True
        )
    out.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    trainings, metrics = [], []
    for path, training in recorded.trainings.items():
        named = ("environment", "results", "times", "left_out")
        trainings.append({"training": path} | {name: getattr(training, name) for name in named})
        metrics += [{"training": path, **record} for record in training.records]
        arrays |= {f"{path}/{name}": array for name, array in training.arrays.items()}
    target.write_json("config.json", recorded.study.describe())
    target.write_json("environment.json", recorded.environment)
    for name, rows in ((PACKED, trainings), (_METRICS, metrics)):
        lines = (json.dumps(without_nan(row), allow_nan=False) + "\n" for row in rows)
        write_atomically(out / name, "".join(lines).encode())
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomically(out / _ARRAYS, buffer.getvalue())


def _packed(run: Run, study: Study) -> dict[str, Training]:
    """The trainings in the tables of a packed study, by their path."""
    configs = {line.path(seed): study.config_of(line, seed) for line, seed in study.runs()}
    trainings = {}
    try:
        records: dict[str, list[dict[str, Any]]] = {}
        for record in run.records(_METRICS):
            records.setdefault(record.pop("training"), []).append(record)
        for text in (run / PACKED).read_text().splitlines():
            row = parse_json(text)
            path = row.pop("training")
            if path in configs:
                trainings[path] = Training(
                    path=run / path,
                    config=configs[path],
                    records=records[path],
                    archive=run / _ARRAYS,
                    prefix=f"{path}/",
                    **row,
                )
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise RunError(f"{run / PACKED} is damaged: {error!r}") from None
    return trainings


def _check_place(study: Study, line: Line, seed: int, run: Run) -> None:
    """Refuse a run in the place of another: copied, or of an earlier study in the same folder."""
    if not run.exists and run.has_results:
        raise RunError(f"{run / 'config.json'} is missing or damaged")
    if run.exists:
        changes = differences(read_experiment(run.config), study.config_of(line, seed))
        if changes:
            raise RunError(
                f"{run.path} is not the run of {line.name}, seed {seed}, that belongs there "
                f"({'; '.join(changes)})",
                hint="remove that folder, or start the study anew with --overwrite",
            )


def _read(run: Run, name: str) -> dict[str, Any]:
    content = run.read_json(name)
    if not isinstance(content, dict):
        raise RunError(f"{run / name} is damaged: it holds no names")
    return content
