"""Two small sets of real faces, observed in orbits as Multi-PIE is; their numbers do not compare with its.

pie32: CMU PIE in aligned crops of 32 pixels, 66 people x 5 cameras x 21 flashes. Its labels were inferred
from the order of files; an independent check recovered 97 % of the cameras, so that 3 % are uncertain. It may
not be shown: nothing is kept from which a face could be seen.
pointing04: INRIA's head poses, 15 people x 2 sessions x 93 poses, crops of 64 pixels.

All settings are those of rendered heads: nothing was chosen on either set.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from orbitset.datasets.source import Manifest, open_source
from orbitset.datasets.table import ImageTable
from orbitset.errors import DataError
from orbitset.orbits.observed import ObservedConfig, OnProblem
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.faces import METHODS, Split, face_experiment
from orbitset.recipes.own_images import usable
from orbitset.recipes.study import (
    Line,
    Study,
    check_seeds,
    cut_down_mark,
    named_methods,
    what_is_cut,
)
from orbitset.seeds import stream

PIE32_IMAGES, POINTING04_IMAGES = 200_000, 136_500
"""Images of every training of a study"""
PIE32_SPLITS, POINTING04_SEEDS = 5, 3


def pie32_study(
    root: Path | None = None,
    *,
    methods: Sequence[str] | None = None,
    images: int | None = None,
    seeds: int = 1,
    on_problem: OnProblem = "stop",
) -> Study:
    """Five splits by identity: 33 people to train, 16 to choose a stopping time on, 17 to score."""
    factors = ("identity", "camera", "flash")
    data, table = _opened("pie32", root, factors, on_problem)
    people = sorted(set(table.columns["identity"]))
    if len(people) < 4:
        raise DataError(f"{table.source} has {len(people)} identities; 4 are needed for a split")
    half = len(people) // 2
    quarter = half + (len(people) - half) // 2
    splits = []
    for number in range(PIE32_SPLITS):
        order = torch.randperm(len(people), generator=stream("identities", number)).tolist()
        parts = (order[:half], order[half:quarter], order[quarter:])
        identities = (tuple(people[at] for at in sorted(part)) for part in parts)
        splits.append(Split(f"identities-{number}", *identities))
    describe = functools.partial(pie32, data=data, on_problem=on_problem)
    whole = {"whole_images": PIE32_IMAGES, "whole_rows": 6_930}
    return _study(describe, table, splits, methods, images, seeds, **whole)


def pie32(
    method: str, split: Split, epochs: float, *, data: str, on_problem: OnProblem = "stop"
) -> Experiment:
    """One method on one split: an orbit is a person's cameras at one flash, its target the frontal one."""
    config = face_experiment(
        "pie32",
        data,
        method,
        split,
        epochs,
        ObservedConfig(
            orbit=("identity", "flash"),
            canonical="camera=c27",
            label="identity",
            on_problem=on_problem,
        ),
        split_by="identity",
        view="camera",
        alike="flash",
    )
    return replace(config, is_private=True)


def pointing04_study(
    root: Path | None = None,
    *,
    methods: Sequence[str] | None = None,
    images: int | None = None,
    seeds: int = POINTING04_SEEDS,
    on_problem: OnProblem = "skip",
) -> Study:
    """Trained on one session and scored on the other at the end of training, both ways. The two poses that
    look straight up and down have no other pan and must be left out."""
    factors = ("person", "session", "pan", "tilt")
    data, table = _opened("pointing04", root, factors, on_problem)
    splits = [Split("1-2", ("1",), (), ("2",)), Split("2-1", ("2",), (), ("1",))]
    describe = functools.partial(pointing04, data=data, on_problem=on_problem)
    whole = {"whole_images": POINTING04_IMAGES, "whole_rows": 2_790}
    return _study(describe, table, splits, methods, images, seeds, **whole)


def pointing04(
    method: str, split: Split, epochs: float, *, data: str, on_problem: OnProblem = "skip"
) -> Experiment:
    """One method one way: an orbit is the pans of a person at one tilt, its target the frontal one."""
    return face_experiment(
        "pointing04",
        data,
        method,
        split,
        epochs,
        ObservedConfig(
            orbit=("person", "session", "tilt"),
            canonical="pan=0",
            label="person",
            on_problem=on_problem,
        ),
        split_by="session",
        view="pan",
        alike="tilt",
    )


def _opened(
    name: str, root: Path | None, factors: Sequence[str], on_problem: OnProblem
) -> tuple[str, ImageTable]:
    """What config.json calls the data, and the table of its images."""
    data = name if root is None else str((root / "manifest.csv").resolve())
    source = open_source(data)
    assert isinstance(source, Manifest)
    return data, source.table(on_problem=on_problem).require(factors)


def _study(
    describe: Callable[[str, Split, float], Experiment],
    table: ImageTable,
    splits: Sequence[Split],
    methods: Sequence[str] | None,
    images: int | None,
    seeds: int,
    *,
    whole_images: int,
    whole_rows: int,
) -> Study:
    """Lines of all methods on all splits; it is cut down if it has fewer images or rows than the whole."""
    check_seeds(seeds)
    cuts = what_is_cut(methods, METHODS, images, whole_images)
    if len(table) < whole_rows:
        cuts.insert(0, f"{len(table):,} images instead of {whole_rows:,}")
    lines = []
    for split in splits:
        example = describe(METHODS[0], split, 1.0)
        by = example.evaluation.split_by
        count = sum(value in split.train for value in usable(table, example.observed).columns[by])
        if not count:
            raise DataError(f"{table.source} has no {by} {', '.join(split.train)} to train on")
        epochs = (whole_images if images is None else images) / count
        lines += [
            Line(label=method, split=split.name, config=describe(method, split, epochs))
            for method in named_methods(methods, METHODS)
        ]
    return Study(
        name=example.name,
        lines=tuple(lines),
        seeds=tuple(range(seeds)),
        cut_down=cut_down_mark(cuts),
    )
