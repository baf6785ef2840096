"""Two small sets of real faces, observed in orbits as Multi-PIE is; their numbers do not compare with its.

pie32: CMU PIE in aligned crops of 32 pixels, 66 people x 5 cameras x 21 flashes. Its labels were inferred
from the order of files; an independent check recovered 97 % of the cameras, so that 3 % are uncertain. It may
not be shown: nothing is kept from which a face could be seen.
pointing04: INRIA's head poses, 15 people x 2 sessions x 93 poses, crops of 64 pixels. Batches are those that
`orbitset train` chooses for it, and so is the length, 100 epochs.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from orbitset.config import with_settings
from orbitset.datasets.manifest import read_manifest
from orbitset.datasets.named import manifest_of
from orbitset.datasets.table import ImageTable
from orbitset.encoders.rectifying import EncoderConfig
from orbitset.errors import DataError
from orbitset.experiments.config import ObservedExperiment, PairsConfig
from orbitset.experiments.faces import (
    CHANNELS,
    CHOSEN,
    METHODS,
    Split,
    batches_by,
    check_seeds,
    chosen_methods,
    cut_down_mark,
    evaluated_often,
    face_encoder,
    what_is_cut,
)
from orbitset.experiments.methods import Method, objective_of
from orbitset.experiments.study import Line, Study
from orbitset.orbits.observed import ObservedConfig
from orbitset.seeds import stream
from orbitset.training.fit import TrainConfig

PIE32_IMAGES, POINTING04_IMAGES = 200_000, 136_500
"""Shown in every training of a study"""
PIE32_SPLITS, POINTING04_SEEDS = 5, 3


def pie32_study(
    root: Path | None = None,
    *,
    methods: Sequence[str] | None = None,
    images: int | None = None,
    seeds: int = 1,
) -> Study:
    """Five splits by identity: 33 people to train, 16 to choose a stopping time on, 17 to score."""
    table = _table("pie32", root, ("identity", "camera", "flash"))
    people = sorted(set(table.columns["identity"]))
    if len(people) < 4:
        raise DataError(f"{table.source} has {len(people)} identities; 4 are needed for a split")
    half = len(people) // 2
    quarter = half + (len(people) - half) // 2
    splits = []
    for number in range(PIE32_SPLITS):
        order = torch.randperm(len(people), generator=stream("identities", number)).tolist()
        parts = (order[:half], order[half:quarter], order[quarter:])
        named = (tuple(people[at] for at in sorted(part)) for part in parts)
        splits.append(Split(f"identities-{number}", *named))
    orbits = ObservedConfig(orbit=("identity", "flash"), canonical="camera=c27", label="identity")
    return _study(
        "pie32",
        _data("pie32", root),
        table,
        splits,
        orbits,
        PairsConfig(split_by="identity", train=("a",), test=("b",), exclude=("camera", "flash")),
        methods=methods,
        images=images,
        whole=PIE32_IMAGES,
        seeds=seeds,
        encoder=face_encoder(),
        batches=functools.partial(batches_by, "flash"),
        is_private=True,
    )


def pointing04_study(
    root: Path | None = None,
    *,
    methods: Sequence[str] | None = None,
    images: int | None = None,
    seeds: int = POINTING04_SEEDS,
) -> Study:
    """Trained on one session and scored on the other at the end of training, both ways. The two poses that
    look straight up and down have no other pan and are left out."""
    orbits = ObservedConfig(
        orbit=("person", "session", "tilt"), canonical="pan=0", label="person", on_problem="skip"
    )
    return _study(
        "pointing04",
        _data("pointing04", root),
        _table("pointing04", root, ("person", "session", "pan", "tilt")),
        [Split("1-2", ("1",), (), ("2",)), Split("2-1", ("2",), (), ("1",))],
        orbits,
        PairsConfig(split_by="session", train=("a",), test=("b",), exclude=("pan", "tilt")),
        methods=methods,
        images=images,
        whole=POINTING04_IMAGES,
        seeds=seeds,
        encoder=EncoderConfig(channels=CHANNELS, code_size=1024),  # there is one light
        batches=lambda _: {"orbits_per_batch": 6, "members_per_batch": 13},
    )


def _data(name: str, root: Path | None) -> str:
    return name if root is None else str((root / "manifest.csv").resolve())


def _table(name: str, root: Path | None, columns: Sequence[str]) -> ImageTable:
    return read_manifest(manifest_of(_data(name, root))).require(columns)


def _study(
    name: str,
    data: str,
    table: ImageTable,
    splits: Sequence[Split],
    orbits: ObservedConfig,
    evaluation: PairsConfig,
    *,
    methods: Sequence[str] | None,
    images: int | None,
    whole: int,
    seeds: int,
    encoder: EncoderConfig,
    batches: Callable[[Method], dict[str, Any]],
    is_private: bool = False,
) -> Study:
    check_seeds(seeds)
    lines = []
    for split in splits:
        shown = sum(has in split.train for has in table.columns[evaluation.split_by])
        if not shown:
            raise DataError(f"{table.source} has no {evaluation.split_by} {', '.join(split.train)}")
        for method in chosen_methods(methods, METHODS):
            config = ObservedExperiment(
                name=name,
                data=data,
                method=method,
                orbits=replace(orbits, **batches(method)),
                encoder=encoder,
                train=TrainConfig(),
                evaluation=replace(
                    evaluation, train=split.train, validation=split.validation, test=split.test
                ),
                is_private=is_private,
            )
            config = with_settings(config, CHOSEN[objective_of(method)])
            config = evaluated_often(config, (images or whole) / shown)
            lines.append(Line(label=method, split=split.name, config=config))
    return Study(
        name=name,
        lines=tuple(lines),
        seeds=tuple(range(seeds)),
        cut_down=cut_down_mark(what_is_cut(methods, METHODS, images, whole)),
    )
