"""What data hold, looked at before anyone trains on them."""

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orbitset.datasets.decode import image_problems
from orbitset.datasets.images import Splits
from orbitset.datasets.pictures import ImageFile, num_bytes, open_bytes
from orbitset.datasets.table import ImageTable, orbit_problems
from orbitset.datasets.video import Videos
from orbitset.errors import ConfigError, count_of

_MOST_NAMED = 8
_CHOSEN = ("first", "middle", "medoid")
"""Targets that every orbit has"""
_WORDS = {"ignored": "not images", "incomplete": "in some sessions only, and not used"}
_FAULTS = ("missing", "unexpected")


@dataclass(frozen=True)
class Check:
    """What data hold, and whether all of them can be used."""

    summary: dict[str, Any]
    """For programs"""
    lines: tuple[str, ...]
    """For people"""
    is_sound: bool = True
    orbits: tuple[tuple[str, tuple[tuple[str, ImageFile], ...]], ...] = ()
    """The first few orbits: the values that their members share, and these, each with its path"""

    def beside(self, *lines: str, **files: Sequence[str]) -> "Check":
        """The same with further lines and lists of files; missing and unexpected ones are faults."""
        added = [*lines]
        for kind, names in files.items():
            if kind in _FAULTS:
                added += [f"{kind}: {name}" for name in names]
            elif names:
                more = len(names) - _MOST_NAMED
                rest = f" and {more:,} more" if more > 0 else ""
                added.append(f"{_WORDS[kind]}: {', '.join(names[:_MOST_NAMED])}{rest}")
        return replace(
            self,
            summary=self.summary | {kind: list(names) for kind, names in files.items()},
            lines=(*self.lines, *added),
            is_sound=self.is_sound and not any(files.get(kind) for kind in _FAULTS),
        )


def check_table(
    source: str,
    table: ImageTable,
    orbit: Sequence[str] | None = None,
    target: tuple[str, str] | None = None,
) -> Check:
    """Decode every image of a table, and look at its orbits if it is known what an orbit is."""
    undecodable, all_sizes = image_problems(table)
    usable = table.without(undecodable, "skip")
    problems, members, orbits = [*usable.left_out], None, []
    if orbit is not None:
        problems += orbit_problems(usable, orbit, target)
        orbits = list(usable.orbits(orbit).items())
        counts = [len(places) for _, places in orbits]
        members = {
            "orbits": len(counts),
            "fewest": min(counts),
            "median": statistics.median(counts),
            "most": max(counts),
        }
    problems.sort(key=lambda problem: problem.row)
    sizes = {f"{size[0]}x{size[1]}": num for size, num in Counter(all_sizes).most_common()}
    factors = {name: len(set(values)) for name, values in usable.columns.items()}
    copies = _copies(usable)
    first = ", ".join(f"{num:,} of {size} px" for size, num in sizes.items())
    names = ", ".join(f"{name} ({num})" for name, num in factors.items())
    lines = [f"{source}: {count_of(len(usable), 'image')}; {first}", f"factors: {names or 'none'}"]
    if members is not None:
        words = f"{min(counts)} to {max(counts)} members, median {members['median']:g}"
        if min(counts) == max(counts):
            words = count_of(counts[0], "member") + " each" * (len(counts) > 1)
        lines.append(f"{count_of(len(counts), 'orbit')} with {words}")
    lines += [f"the same file: {', '.join(paths)}" for paths in copies]
    lines += [f"problem: {problem}" for problem in problems]
    summary = {
        "data": source,
        "images": len(usable),
        "sizes": sizes,
        "factors": factors,
        "orbits": members,
        "problems": [
            {"row": problem.row, "others": list(problem.others), "reason": problem.reason}
            for problem in problems
        ],
        "copies": copies,
        **dict.fromkeys((*_FAULTS, *_WORDS), ()),
    }
    files = tuple(
        (
            ", ".join(values),
            tuple((str(table.root / usable.paths[at]), usable.file(at)) for at in places),
        )
        for values, places in orbits[:_MOST_NAMED]
    )
    return Check(summary, tuple(lines), not problems, files)


def check_videos(source: str, videos: Videos) -> Check:
    """What became of each video."""
    lines = [f"{source}: {videos}"]
    for clip in videos.clips:
        cuts = f", {len(clip.cuts)} cuts" if clip.cuts else ""
        lines.append(f"  {clip.video}: {clip.frames:,} frames{cuts}, {clip.segments:,} segments")
    lines += [f"problem: {problem}" for problem in videos.problems]
    clips = [asdict(clip) for clip in videos.clips]
    problems = [str(problem) for problem in videos.problems]
    summary = {"data": source, "videos": clips, "problems": problems}
    return Check(summary, tuple(lines), not problems)


def check_splits(source: str, splits: Splits) -> Check:
    """How many images each part has, and their form."""
    train, labels = splits.train, splits.train.labels
    channels, *height_width = shape = list(train.images.shape[1:])
    num_classes = None if labels is None else len(labels.unique())
    sizes = {"train": len(train), "validation": len(splits.validation), "test": len(splits.test)}
    colour = "grey" if channels == 1 else "colour"
    purpose = "validate" if labels is None else "label from"
    line = (
        f"{source}: {sizes['train']:,} to train, {sizes['validation']:,} to {purpose}, "
        f"{sizes['test']:,} to test; {'x'.join(map(str, height_width))} px, {colour}, "
        f"{'no labels' if labels is None else f'{num_classes} classes'}"
    )
    return Check({"data": source, **sizes, "shape": shape, "classes": num_classes}, (line,))


def check_heads(source: str, factors: Mapping[str, Sequence[str]], size_px: int) -> Check:
    """How many images there are of rendered heads, which cannot be damaged."""
    counts = {name: len(values) for name, values in factors.items()}
    num_images, size = math.prod(counts.values()), f"{size_px}x{size_px}"
    lines = (
        f"{source}: {num_images:,} images; {size} px, grey, rendered when they are needed",
        f"factors: {', '.join(f'{name} ({num})' for name, num in counts.items())}",
    )
    summary = {"data": source, "images": num_images, "sizes": {size: num_images}, "factors": counts}
    return Check(summary, lines)


def parse_target(canonical: str | None) -> tuple[str, str] | None:
    """The factor and the value of `factor=value`; None for a target that every orbit has.

    >>> parse_target("view=front"), parse_target("medoid")
    (('view', 'front'), None)
    """
    if canonical is None or canonical in _CHOSEN:
        return None
    factor, _, value = canonical.partition("=")
    if not value:
        raise ConfigError(
            f"canonical is {canonical!r}; write it as factor=value, such as view=front"
        )
    return factor.strip(), value.strip()


def _copies(table: ImageTable) -> list[list[str]]:
    """Files with the same bytes; only those of one size are read."""
    by_size: dict[int, list[int]] = {}
    for at in {path: at for at, path in enumerate(table.paths)}.values():
        by_size.setdefault(num_bytes(table.file(at)), []).append(at)
    by_digest: dict[bytes, list[str]] = {}
    for places in by_size.values():
        for at in places if len(places) > 1 else ():
            with open_bytes(table.file(at)) as file:
                digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
            by_digest.setdefault(digest, []).append(table.paths[at])
    return [paths for paths in by_digest.values() if len(paths) > 1]
