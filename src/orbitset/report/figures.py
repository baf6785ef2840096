"""Figures drawn from run folders: each function gives a matplotlib figure and knows no models."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from orbitset.recipes.methods import colour_of

_GREY, _INK = "#9aa3af", "#1f2937"
_RIGHT, _WRONG = "#2f9e44", "#c8384e"
_CELL_IN = 0.62
_LONGEST_NAME = 24
"""Characters of a name in a legend"""
_Edges = tuple[float, float, float, float]
"""Left, right, bottom and top, in inches"""
_STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6b7280",
    "axes.labelcolor": _INK,
    "xtick.color": "#4b5563",
    "ytick.color": "#4b5563",
    "legend.frameon": False,
}


def _strokes(labels: Sequence[str]) -> list[tuple[Any, str]]:
    """A colour and a dash for each label: the methods' own, with a transformer in dashes; if these would not
    tell all apart, one colour after the other."""
    own = [(colour_of(label) or _INK, "--" if label.endswith("-STN") else "-") for label in labels]
    if len(set(own)) == len(own):
        return own
    colours = matplotlib.colormaps["tab10"]
    return [(colours(number % colours.N), "-") for number in range(len(labels))]


def accuracy_curves(
    curves: Sequence[tuple[str, Sequence[dict[str, Any]]]],
    baseline: float | None,
    measure: str = "accuracy",
    name: str = "one-shot accuracy",
) -> Figure:
    """A measure against epochs for each method; the band is one s.d., over draws or over splits.

    A method with a spatial transformer has the colour of the method without, in dashes.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.subplots()
        if baseline is not None:
            axes.axhline(baseline, color=_GREY, lw=1, ls=":", label="raw pixels")
        strokes = _strokes([label for label, _ in curves])
        for (method, records), (colour, dashes) in zip(curves, strokes, strict=True):
            epoch = np.array([record["epoch"] for record in records])
            mean = np.array([record[measure]["mean"] for record in records])
            sd = np.array([record[measure]["sd"] or 0.0 for record in records])
            axes.fill_between(epoch, mean - sd, mean + sd, color=colour, alpha=0.12, lw=0)
            axes.plot(epoch, mean, dashes, color=colour, lw=2, marker="o", ms=3.5, label=method)
        axes.set(xlabel="epochs", ylabel=name, xlim=(0, None))
        axes.set_ylim(0 if measure == "accuracy" else max(0.0, axes.get_ylim()[0]), None)
        if len(curves) > 4:
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        else:
            axes.legend(loc="upper left", ncols=2)
    return figure


def member_strips(members: np.ndarray) -> Figure:
    """Members of a few orbits, an orbit per row, the canonical one first."""
    return image_rows([(f"orbit {row + 1}", images) for row, images in enumerate(members)])


def tsne_maps(
    maps: Sequence[tuple[str, np.ndarray]], labels: np.ndarray, names: np.ndarray | None = None
) -> Figure:
    """The same test images in the planes of several methods, in the same colours; `names` are those of the
    labels in ascending order."""
    columns = min(4, len(maps))
    rows = -(-len(maps) // columns)
    side = 4.2 if len(maps) == 1 else 2.4
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(columns * side + 0.5, rows * side), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes in panels:
            axes.axis("off")
        for axes, (title, points) in zip(panels, maps, strict=False):
            dots = _scatter_classes(axes, points, labels, size=7 if len(maps) == 1 else 3)
            axes.set_title(title, loc="left", color=_INK)
        if len(dots) <= 20:
            figure.legend(
                dots,
                [_shortened(str(name)) for name in (np.unique(labels) if names is None else names)],
                loc="outside right center",
                markerscale=2 if len(maps) == 1 else 3,
                handletextpad=0.1,
            )
    return figure


def _scatter_classes(
    axes: Any, points: np.ndarray, labels: np.ndarray, *, size: float
) -> list[Any]:
    classes = np.unique(labels)
    colours = matplotlib.colormaps["tab10" if len(classes) <= 10 else "tab20"]
    dots = []
    for index, label in enumerate(classes):
        colour = colours(index % colours.N)
        dots.append(axes.scatter(*points[labels == label].T, s=size, color=colour, lw=0))
    return dots


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def ratio_curve(points: Sequence[dict[str, Any]]) -> Figure:
    """Accuracy of OJ against lambda2 / lambda1."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(5.4, 3.6), layout="constrained")
        axes = figure.subplots()
        ratio = [point["ratio"] for point in points]
        mean = np.array([point["mean"] for point in points])
        sd = np.array([point["sd"] or 0.0 for point in points])
        axes.errorbar(ratio, mean, sd, color=colour_of("OJ"), lw=2, marker="o", ms=4.5, capsize=3)
        axes.set(xscale="log", xlabel="λ₂ / λ₁, rectify over discriminate", ylim=(0, None))
        axes.set_ylabel("one-shot accuracy of OJ")
    return figure


def invariance_curves(arrays: dict[str, np.ndarray], margin: float | None, title: str) -> Figure:
    """Invariance and selectivity against epsilon, with the margin marked."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        axes = figure.subplots()
        epsilons = arrays["epsilons"]
        axes.plot(epsilons, arrays["invariance"], color="#00798c", lw=2, label="invariance")
        axes.plot(epsilons, arrays["selectivity"], color="#c8384e", lw=2, label="selectivity")
        axes.set(xscale="log", xlabel="ε, squared distance", ylabel="fraction of pairs")
        axes.set(ylim=(0, 1.02), xlim=(epsilons[0], epsilons[-1]))
        if margin is not None and epsilons[0] <= margin <= epsilons[-1]:
            axes.axvline(margin, color=_GREY, lw=1, ls=":")
            axes.annotate("ε = α", (margin, 1.02), ha="center", va="bottom", color="#6b7280")
        axes.set_title(title, loc="left", color=_INK, pad=16)
        axes.legend(loc="center left")
    return figure


def image_columns(columns: Sequence[tuple[str, np.ndarray]]) -> Figure:
    """The same turned round: a labelled column per kind, a row per image."""
    count = len(columns[0][1])
    head_in, cell_in = 0.3, 0.8
    height = head_in + count * cell_in
    figure, axes = _sheet(len(columns) * cell_in, height)
    for column, (label, images) in enumerate(columns):
        left = column * cell_in
        middle = left + 0.47 * cell_in
        above = height - 0.5 * head_in
        axes.text(middle, above, label, ha="center", va="center", fontsize=9, color=_INK)
        for row, image in enumerate(images):
            _show(axes, image, left, height - head_in - (row + 1) * cell_in, 0.94 * cell_in)
    return figure


def image_rows(
    rows: Sequence[tuple[str, Sequence[np.ndarray | None] | np.ndarray]],
    hits: Mapping[str, Sequence[bool | None]] | None = None,
) -> Figure:
    """Labelled rows of images, (channels, height, width) uint8 each, or None for an empty place. Rows that
    `hits` names are framed by whether each image is right."""
    label_in = 1.0
    figure, axes = _sheet(label_in + len(rows[0][1]) * _CELL_IN, len(rows) * _CELL_IN)
    for row, (label, images) in enumerate(rows):
        bottom = (len(rows) - 1 - row) * _CELL_IN
        axes.text(0, bottom + 0.5 * _CELL_IN, label, va="center", fontsize=10, color=_INK)
        for column, image in enumerate(images):
            if image is None:
                continue
            edges = _show(axes, image, label_in + column * _CELL_IN, bottom, 0.94 * _CELL_IN)
            if hits is not None and label in hits:
                _frame(axes, edges, bool(hits[label][column]))
    return figure


def _sheet(width_in: float, height_in: float) -> tuple[Figure, Any]:
    """A figure whose coordinates are inches. One pair of axes for all images: many take seconds."""
    figure = Figure(figsize=(width_in, height_in))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width_in), ylim=(0, height_in))
    axes.axis("off")
    return figure, axes


def _show(axes: Any, image: np.ndarray, left: float, bottom: float, side: float) -> _Edges:
    """The whole image in the middle of a square."""
    _, height, width = image.shape
    x, y = (0.5 * (side - side * size / max(height, width)) for size in (width, height))
    edges = (left + x, left + side - x, bottom + y, bottom + side - y)
    grey = {"cmap": "gray", "vmin": 0, "vmax": 255}
    axes.imshow(image.transpose(1, 2, 0).squeeze(), extent=edges, aspect="auto", **grey)
    return edges


def _frame(axes: Any, edges: _Edges, is_right: bool) -> None:
    left, right, bottom, top = edges
    colour = _RIGHT if is_right else _WRONG
    axes.plot(
        [left, right, right, left, left], [bottom, bottom, top, top, bottom],
        color=colour, lw=2.2, solid_joinstyle="miter", clip_on=False,
    )  # fmt: skip
