"""Figures drawn from run folders: each function gives a matplotlib figure and knows no models."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

COLOURS = {
    "OJ": "#c8384e",
    "OT": "#dd8a1b",
    "OE": "#00798c",
    "ST": "#30518e",
    "EX": "#5a9367",
    "AE": "#7d8597",
}
_GREY, _INK = "#9aa3af", "#1f2937"
_CELL_IN = 0.62
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


def accuracy_curves(
    curves: Sequence[tuple[str, list[dict[str, Any]]]], baseline: float | None
) -> Figure:
    """One-shot accuracy against epochs for each method; the band is one s.d. over draws."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.subplots()
        if baseline is not None:
            axes.axhline(baseline, color=_GREY, lw=1, ls=":", label="raw pixels")
        for method, records in curves:
            epoch = np.array([record["epoch"] for record in records])
            mean = np.array([record["accuracy"]["mean"] for record in records])
            sd = np.array([record["accuracy"]["sd"] for record in records])
            colour = COLOURS.get(method, _INK)
            axes.fill_between(epoch, mean - sd, mean + sd, color=colour, alpha=0.15, lw=0)
            axes.plot(epoch, mean, color=colour, lw=2, marker="o", ms=3.5, label=method)
        axes.set(xlabel="epochs", ylabel="one-shot accuracy", ylim=(0, None), xlim=(0, None))
        axes.legend(loc="upper left", ncols=2)
    return figure


def rectification_grid(arrays: dict[str, np.ndarray], decoded: str = "rectified") -> Figure:
    """Canonical, transformed and rectified test images, a column each."""
    labels = {"canonical": "canonical", "transformed": "transformed", "rectified": decoded}
    return _grid([(label, arrays[key]) for key, label in labels.items()])


def member_strips(members: np.ndarray) -> Figure:
    """Members of a few orbits, an orbit per row, the canonical one first."""
    return _grid([(f"orbit {row + 1}", images) for row, images in enumerate(members)])


def tsne_map(points: np.ndarray, labels: np.ndarray, title: str) -> Figure:
    """Test codes in the plane by t-SNE, coloured by class."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.6, 4.2), layout="constrained")
        axes = figure.subplots()
        classes = np.unique(labels)
        colours = matplotlib.colormaps["tab10" if len(classes) <= 10 else "tab20"]
        for index, label in enumerate(classes):
            chosen = labels == label
            x, y = points[chosen].T
            colour = colours(index % colours.N)
            axes.scatter(x, y, s=7, color=colour, lw=0, label=str(label))
        axes.set(xticks=[], yticks=[])
        axes.set_title(title, loc="left", color=_INK)
        for spine in axes.spines.values():
            spine.set_visible(False)
        if len(classes) <= 20:
            axes.legend(
                loc="center left", bbox_to_anchor=(1, 0.5), markerscale=2, handletextpad=0.1
            )
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


def _grid(rows: Sequence[tuple[str, np.ndarray]]) -> Figure:
    """Labelled rows of images, (columns, channels, height, width) uint8 each."""
    columns = len(rows[0][1])
    label_in = 1.0
    size = (label_in + columns * _CELL_IN, len(rows) * _CELL_IN)
    figure = Figure(figsize=size)
    for row, (label, images) in enumerate(rows):
        bottom = 1 - (row + 1) / len(rows)
        figure.text(0, bottom + 0.5 / len(rows), label, va="center", fontsize=10, color=_INK)
        for column, image in enumerate(images):
            left = (label_in + column * _CELL_IN) / size[0]
            box = (left, bottom, 0.94 * _CELL_IN / size[0], 0.94 / len(rows))
            axes = figure.add_axes(box)
            axes.imshow(image.transpose(1, 2, 0).squeeze(), cmap="gray", vmin=0, vmax=255)
            axes.axis("off")
    return figure
