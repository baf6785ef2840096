"""The paper's faces: Multi-PIE by its sessions, and what can stand in for it.

In the 2-1-1 splits two sessions are trained on, of the others the lower is to choose a stopping time on and
the higher to score; the swapped result is given as well. In the 3-1 splits the fourth session is scored
against epochs. Heads are rendered with Multi-PIE's design.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orbitset.config import with_settings
from orbitset.datasets import heads, multi_pie
from orbitset.datasets.source import MULTI_PIE
from orbitset.encoders.config import EncoderConfig
from orbitset.orbits.observed import ObservedConfig, OnProblem
from orbitset.protocols import PairsSettings
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.length import evaluated_often
from orbitset.recipes.outside_loss import method_named
from orbitset.recipes.study import (
    Line,
    Role,
    Study,
    check_seeds,
    cut_down_mark,
    named_methods,
    what_is_cut,
)

METHODS = ("OJ", "EX", "OT", "OE", "ST", "AE")
ONCE = ("ST", "AE")
"""Methods that the paper's table does not have; they are trained on two splits only"""
IMAGES = 300_000
"""Images of every training"""
SMALL_IMAGES = 60_000
PAPER: dict[str, dict[str, dict[str, float]]] = {
    "OJ": {"auc": {"mean": 0.94, "sd": 0.012}, "top1": {"mean": 0.95, "sd": 0.029}},
    "EX": {
        "auc": {"mean": 0.90, "sd": 0.007, "p": 6e-3},
        "top1": {"mean": 0.80, "sd": 0.035, "p": 2e-2},
    },
    "OT": {
        "auc": {"mean": 0.93, "sd": 0.008, "p": 6e-1},
        "top1": {"mean": 0.97, "sd": 0.004, "p": 8e-1},
    },
    "OE": {
        "auc": {"mean": 0.87, "sd": 0.026, "p": 4e-2},
        "top1": {"mean": 0.99, "sd": 0.002, "p": 8e-2},
    },
}
"""The paper's table for Multi-PIE, stopped early as ours"""
ORBIT = ("person", "light", "session")
"""An orbit is the views of a person in one light and session, its target the frontal one."""
CHANNELS, _SMALL_CHANNELS = (64, 128, 256, 512), (16, 32, 64, 128)


@dataclass(frozen=True)
class Split:
    """One way of dividing the data."""

    name: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]


def splits_2_1_1(sessions: Sequence[str] = multi_pie.SESSIONS) -> list[Split]:
    """Two to train; of the others the lower to choose a stopping time on, the higher to score.

    >>> [split.name for split in splits_2_1_1()]
    ['12-3-4', '13-2-4', '14-2-3', '23-1-4', '24-1-3', '34-1-2']
    """
    splits = []
    for train in itertools.combinations(sessions, 2):
        lower, higher = (session for session in sessions if session not in train)
        splits.append(Split(f"{''.join(train)}-{lower}-{higher}", train, (lower,), (higher,)))
    return splits


def splits_3_1(sessions: Sequence[str] = multi_pie.SESSIONS) -> list[Split]:
    """
    >>> [split.name for split in splits_3_1()]
    ['234-1', '134-2', '124-3', '123-4']
    """
    splits = []
    for test in sessions:
        train = tuple(session for session in sessions if session != test)
        splits.append(Split(f"{''.join(train)}-{test}", train, (), (test,)))
    return splits


@dataclass(frozen=True, kw_only=True)
class FaceSet:
    """A set of faces, and how its images become orbits; as Multi-PIE is by default."""

    name: str
    orbits: ObservedConfig
    split_by: str = "session"
    view: str = "view"
    """The factor that is not to matter"""
    alike: str = "light"
    """The factor that batches go by"""
    channels: tuple[int, ...] = CHANNELS
    is_private: bool = False

    def experiment(
        self,
        method: str,
        split: Split,
        epochs: float,
        *,
        data: str,
        on_problem: OnProblem | None = None,
    ) -> Experiment:
        """One method on one split. Whatever the method, the encoder looks at local contrast: no loss brings
        the lights of a person together (docs/decisions/0009). As in the paper, a person's images with the
        same view, or alike in what batches go by, are not among those to be found."""
        chosen = method_named(method)
        config = Experiment(
            name=self.name,
            data=data,
            method=method,
            protocol="pairs",
            loss=chosen.settings(),
            orbits=replace(
                self.orbits,
                on_problem=on_problem or self.orbits.on_problem,
                **_batches_by(self.alike, method),
            ),
            encoder=EncoderConfig(channels=self.channels, code_size=1024, contrast="local"),
            evaluation=PairsSettings(
                split_by=self.split_by,
                train=split.train,
                validation=split.validation,
                test=split.test,
                exclude=(self.view, self.alike),
            ),
            is_private=self.is_private,
        )
        return evaluated_often(with_settings(config, chosen.default_settings("faces")), epochs)


def _batches_by(factor: str, method: str) -> dict[str, Any]:
    """Batches of about 72 images, as in the paper: members of an orbit are dealt out evenly, so that 4 of 13
    are 4 or 5, and 4 of 5 are all. For methods that push orbits apart they go by a factor that should not do
    it for them."""
    batches: dict[str, Any] = {"orbits_per_batch": 18, "members_per_batch": 4}
    if method_named(method).compares_members:
        batches |= {"alike": factor, "alike_values": 2}
    return batches


def heads_study(
    *,
    methods: Sequence[str] | None = None,
    images: int | None = None,
    seeds: int = 1,
    is_small: bool = False,
) -> Study:
    """Rendered heads at full size, or 20 people in 6 lights at 32 pixels with a smaller encoder."""
    people, lights = (20, 6) if is_small else (heads.PEOPLE, len(heads.LIGHTS))
    whole = SMALL_IMAGES if is_small else IMAGES
    orbits = ObservedConfig(
        orbit=ORBIT, canonical="view=0", label="person", size_px=32 if is_small else 64
    )
    default = ("OJ", "OT") if is_small else METHODS
    cuts = []
    if is_small:
        cuts.append(
            f"{people} people, {lights} lights, 32 pixels, 16 to 128 channels, 2 of 6 splits"
        )
    return _by_session(
        FaceSet(name="heads", orbits=orbits, channels=_SMALL_CHANNELS if is_small else CHANNELS),
        f"heads:{people}x{lights}" if is_small else "heads",
        named_methods(methods, default),
        seeds=seeds,
        images=whole if images is None else images,
        per_session=people * lights * len(heads.VIEWS),
        table=splits_2_1_1()[::5] if is_small else splits_2_1_1(),  # the first and the last
        curves=[] if is_small else splits_3_1()[2:],  # half of them, for what they cost
        papers={},
        cuts=[*cuts, *what_is_cut(methods or default, METHODS, images, whole)],
    )


def multi_pie_study(
    root: Path,
    *,
    methods: Sequence[str] | None = None,
    images: int | None = None,
    seeds: int = 1,
    crops: str | None = None,
    on_problem: OnProblem = "stop",
) -> Study:
    """The paper's own experiment, on a folder that holds Multi-PIE."""
    scan = multi_pie.scan_multi_pie(root)
    orbits = ObservedConfig(
        orbit=ORBIT,
        canonical=f"view={multi_pie.CANONICAL}",
        label="person",
        size_px=64,
        crops=crops,
        on_problem=on_problem,
    )
    cuts = what_is_cut(methods, METHODS, images, IMAGES)
    if len(scan.subjects) < 129:
        cuts.append(f"{len(scan.subjects)} subjects instead of 129")
    if scan.missing:
        cuts.append(f"{len(scan.missing):,} images missing, the first is {scan.missing[0]}")
    return _by_session(
        FaceSet(name="multi-pie", orbits=orbits),
        f"{MULTI_PIE}{root.resolve()}",
        named_methods(methods, METHODS),
        seeds=seeds,
        images=IMAGES if images is None else images,
        per_session=len(scan.table) // len(multi_pie.SESSIONS),
        table=splits_2_1_1(),
        curves=splits_3_1(),
        papers=PAPER,
        cuts=cuts,
    )


def _by_session(
    faces: FaceSet,
    data: str,
    methods: Sequence[str],
    *,
    seeds: int,
    images: int,
    per_session: int,
    table: Sequence[Split],
    curves: Sequence[Split],
    papers: Mapping[str, Mapping[str, Mapping[str, float]]],
    cuts: Sequence[str],
) -> Study:
    """Lines split by split, so that a table can be had early. Methods that the paper's table does not have
    are trained on the first two splits only."""
    check_seeds(seeds)
    roles: tuple[tuple[Role, Sequence[Split]], ...] = (("method", table), ("curve", curves))
    lines = [
        Line(
            label=method,
            split=split.name,
            role=role,
            config=faces.experiment(
                method, split, images / (per_session * len(split.train)), data=data
            ),
            paper=papers.get(method, {}),
        )
        for role, splits in roles
        for number, split in enumerate(splits)
        for method in methods
        if method not in ONCE or number < 2
    ]
    return Study(
        name=faces.name, lines=tuple(lines), seeds=tuple(range(seeds)), cut_down=cut_down_mark(cuts)
    )
