"""Two small sets of real faces, observed in orbits as Multi-PIE is; their numbers do not compare with its.

pie32: CMU PIE in aligned crops of 32 pixels, 66 people x 5 cameras x 21 flashes. Its labels were inferred
from the order of files; an independent check recovered 97 % of the cameras, so that 3 % are uncertain. It may
not be shown: nothing is kept from which a face could be seen.
pointing04: INRIA's head poses, 15 people x 2 sessions x 93 poses, crops of 64 pixels.

All settings are those of rendered heads: nothing was chosen on either set.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from orbitset.datasets.source import Manifest, open_source
from orbitset.datasets.table import ImageTable
from orbitset.errors import DataError
from orbitset.orbits.observed import ObservedConfig, OnProblem
from orbitset.recipes.faces import METHODS, FaceSet, Split
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
_PIE32_SPLITS = 5


def _by_identity(table: ImageTable) -> list[Split]:
    """Five splits by identity: 33 people to train, 16 to choose a stopping time on, 17 to score."""
    people = sorted(set(table.columns["identity"]))
    if len(people) < 4:
        raise DataError(f"{table.source} has {len(people)} identities; 4 are needed for a split")
    half = len(people) // 2
    quarter = half + (len(people) - half) // 2
    splits = []
    for number in range(_PIE32_SPLITS):
        order = torch.randperm(len(people), generator=stream("identities", number)).tolist()
        parts = (order[:half], order[half:quarter], order[quarter:])
        identities = (tuple(people[at] for at in sorted(part)) for part in parts)
        splits.append(Split(f"identities-{number}", *identities))
    return splits


@dataclass(frozen=True, kw_only=True)
class RealFaces(FaceSet):
    """A set of faces that all methods are trained on with all splits."""

    splits: Callable[[ImageTable], list[Split]]
    images: int
    """Images of every training"""
    rows: int
    """Rows of the whole set"""
    seeds: int

    def study(
        self,
        root: Path | None = None,
        *,
        methods: Sequence[str] | None = None,
        images: int | None = None,
        seeds: int | None = None,
        on_problem: OnProblem | None = None,
    ) -> Study:
        """All methods on all splits; it is cut down if it has fewer images or rows than the whole."""
        seeds = self.seeds if seeds is None else seeds
        check_seeds(seeds)
        data = self.name if root is None else str((root / "manifest.csv").resolve())
        source = open_source(data)
        assert isinstance(source, Manifest)
        factors = tuple(dict.fromkeys((*self.orbits.factors, self.split_by, self.view)))
        table = source.table(on_problem=on_problem or self.orbits.on_problem).require(factors)
        cuts = what_is_cut(methods, METHODS, images, self.images)
        if len(table) < self.rows:
            cuts.insert(0, f"{len(table):,} images instead of {self.rows:,}")
        lines, splits = [], self.splits(table)
        usable_values = usable(table, self.orbits).columns[self.split_by]
        for split in splits:
            count = sum(value in split.train for value in usable_values)
            if not count:
                values = f"{self.split_by} {', '.join(split.train)}"
                raise DataError(f"{table.source} has no {values} to train on")
            epochs = (self.images if images is None else images) / count
            for method in named_methods(methods, METHODS):
                config = self.experiment(method, split, epochs, data=data, on_problem=on_problem)
                lines.append(Line(label=method, split=split.name, config=config))
        return Study(
            name=self.name,
            lines=tuple(lines),
            seeds=tuple(range(seeds)),
            cut_down=cut_down_mark(cuts),
        )


PIE32 = RealFaces(
    name="pie32",
    orbits=ObservedConfig(
        orbit=("identity", "flash"), canonical="camera=c27", label="identity", on_problem="stop"
    ),
    split_by="identity",
    splits=_by_identity,
    view="camera",
    alike="flash",
    images=PIE32_IMAGES,
    rows=6_930,
    seeds=1,
    is_private=True,
)
"""An orbit is a person's cameras at one flash, its target the frontal one."""

POINTING04 = RealFaces(
    name="pointing04",
    orbits=ObservedConfig(
        orbit=("person", "session", "tilt"), canonical="pan=0", label="person", on_problem="skip"
    ),
    split_by="session",
    splits=lambda _: [Split("1-2", ("1",), (), ("2",)), Split("2-1", ("2",), (), ("1",))],
    view="pan",
    alike="tilt",
    images=POINTING04_IMAGES,
    rows=2_790,
    seeds=3,
)
"""An orbit is the pans of a person at one tilt, its target the frontal one. One session is trained on and the
other scored at the end of training, both ways. The two poses that look straight up and down have no other pan
and must be left out."""
