"""Images of a report: members of orbits, what is decoded from codes, and what retrieval finds."""

from collections.abc import Mapping, Sequence

import numpy as np

from orbitset.report import blocks, figures
from orbitset.report.blocks import Block, Figures
from orbitset.results.recorded import Training

Arrays = Mapping[str, np.ndarray]
_Rows = list[tuple[str, Sequence[np.ndarray | None]]]
_Hits = dict[str, Sequence[bool | None]]
_OJS, _EXS = "OJ's top-1", "EX's top-1"
_COLUMNS = 10
_MEMBERS = 13
_DECODING = ("AE", "OE", "OJ")
_RULE = (
    "Of queries that were drawn at random, in their order: the first six where OJ and EX are both right; "
    "then the first two where only OJ is, where only EX is, and where both are wrong, as far as there are "
    "any. {mistakes}Green frames are right, red ones wrong."
)
_FOLLOW = (
    "Last come the first mistakes in the order of all queries of a method that makes none among these, "
    "without the other's answer. "
)
_FLAWLESS = "OJ makes no mistake among them. "


def show(
    trainings: Mapping[str, Training], methods: Sequence[str], shown_in: Figures
) -> list[Block]:
    """The sections with images, as far as the trainings recorded any."""
    arrays = {label: training.arrays for label, training in trainings.items()}
    arrays = {label: of_method for label, of_method in arrays.items() if "members" in of_method}
    if not arrays:
        return []
    first = next(iter(arrays.values()))
    figure = figures.member_strips(first["members"][:, :_MEMBERS])
    caption = "Members of a few held-out orbits."
    sections = [blocks.heading("Orbits"), shown_in.show("orbits", figure, caption)]
    if "query" in first:
        return [*sections, *_retrieved(arrays, shown_in), *_decoded_queries(arrays, shown_in)]
    return [*sections, *_rectified(arrays, shown_in)]


def _rectified(arrays: Mapping[str, Arrays], shown_in: Figures) -> list[Block]:
    """What methods decode from transformed images, or spatial transformers make of them."""
    first, sections = next(iter(arrays.values())), []
    inputs = [("canonical", first["canonical"]), ("transformed", first["transformed"])]
    decoded = [(label, arrays[label]["rectified"]) for label in _DECODING if label in arrays]
    if decoded:
        method, images = decoded[-1]
        name = "decoded" if method == "AE" else "rectified"
        figure = figures.image_rows(_cut([*inputs, (name, images)]))
        caption = f"Held-out images, each under a random transformation, {name} by {method}."
        if method == "AE":
            caption += " An autoencoder gives back its input; nothing asks it to rectify."
        sections += [blocks.heading("Rectified"), shown_in.show("rectified", figure, caption)]
    transformed = [
        (label, arrays[label]["rectified"])
        for label in ("ST-STN", "OT-STN", "OJ")
        if label in arrays
    ]
    if len(transformed) > 1:
        figure = figures.image_rows(_cut([("input", first["transformed"]), *transformed]))
        caption = (
            "What the spatial transformers show their encoders, with class labels (ST-STN) and without "
            "(OT-STN), and what OJ decodes."
        )
        sections += [
            blocks.heading("Against spatial transformers"),
            shown_in.show("stn", figure, caption),
        ]
    if len(decoded) > 1:
        figure = figures.image_columns(_cut([*inputs, *decoded]))
        names = " and ".join(label for label, _ in decoded)
        caption = f"The canonical image, the input image, and what {names} decode from it."
        sections += [blocks.heading("Decoded"), shown_in.show("decoded", figure, caption)]
    return sections


def _cut(rows: Sequence[tuple[str, np.ndarray]]) -> list[tuple[str, np.ndarray]]:
    return [(label, images[:_COLUMNS]) for label, images in rows]


def _retrieved(arrays: Mapping[str, Arrays], shown_in: Figures) -> list[Block]:
    """What is nearest to queries, for OJ and EX or for OJ alone."""
    if "OJ" not in arrays:
        return []
    if "EX" in arrays:
        rows, hits = _retrieval_rows(arrays["OJ"], arrays["EX"])
        has_followed = any(None in of_method for of_method in hits.values())
        mistakes = _FOLLOW * has_followed + _FLAWLESS * (False not in hits[_OJS])
        caption = _RULE.format(mistakes=mistakes)
    else:
        rows, hits = _answers_of(arrays["OJ"])
        caption = (
            "The first eight random queries that OJ answers right, and the first two it does not."
        )
    figure = figures.image_rows(rows, hits)
    return [blocks.heading("Retrieval"), shown_in.show("retrieval", figure, caption)]


def _decoded_queries(arrays: Mapping[str, Arrays], shown_in: Figures) -> list[Block]:
    decoded = [(label, arrays[label]["rectified"]) for label in _DECODING if label in arrays]
    if not decoded:
        return []
    first = next(iter(arrays.values()))
    inputs = [("canonical", first["canonical"]), ("query", first["query"])]
    figure = figures.image_columns(_cut([*inputs, *decoded]))
    caption = "Random held-out images, their targets, and what is decoded from their codes."
    caption += _errors(arrays)
    return [blocks.heading("Rectified"), shown_in.show("decoded", figure, caption)]


def _errors(arrays: Mapping[str, Arrays]) -> str:
    """How far rectified images are from their targets, where that was learned."""
    shares, count = [], 0
    for label in ("OE", "OJ"):
        if label in arrays:
            target, decoded = (
                arrays[label][name].astype(float) for name in ("canonical", "rectified")
            )
            count, variance = len(target), np.square(target - target.mean(0)).mean()
            if variance > 0:
                shares.append(f"{label} {np.square(decoded - target).mean() / variance:.2f}")
    if not shares:
        return ""
    return (
        f" The squared error over {count} of them, as a share of the variance of the targets: "
        f"{', '.join(shares)}."
    )


def _answers_of(oj: Arrays) -> tuple[_Rows, _Hits]:
    right, wrong = _first(oj["is_hit"], 8), _first(~oj["is_hit"], 2)
    rows: _Rows = []
    for label, name in (("canonical", "canonical"), ("query", "query"), (_OJS, "nearest")):
        mistakes = oj.get(f"mistake_{name}", oj[name][wrong])
        rows.append((label, [*oj[name][right], *mistakes]))
    return rows, {_OJS: [at < len(right) for at in range(len(rows[0][1]))]}


def _retrieval_rows(oj: Arrays, ex: Arrays) -> tuple[_Rows, _Hits]:
    # heads that two kinds of devices rendered may differ by a grey level
    difference = np.abs(oj["query"].astype(float) - ex["query"].astype(float)).mean()
    if oj["query"].shape != ex["query"].shape or difference > 1:
        raise ValueError("OJ and EX have different queries")
    is_oj, is_ex = oj["is_hit"], ex["is_hit"]
    both = [
        *_first(is_oj & is_ex, 6),
        *_first(is_oj & ~is_ex, 2),
        *_first(~is_oj & is_ex, 2),
        *_first(~is_oj & ~is_ex, 2),
    ]
    images: dict[str, list[np.ndarray | None]] = {
        "canonical": [*oj["canonical"][both]],
        "query": [*oj["query"][both]],
        _OJS: [*oj["nearest"][both]],
        _EXS: [*ex["nearest"][both]],
        "rectified": [*oj["rectified"][both]],
    }
    hits: dict[str, list[bool | None]] = {_OJS: is_oj[both].tolist(), _EXS: is_ex[both].tolist()}
    for own, other, arrays in ((_OJS, _EXS, oj), (_EXS, _OJS, ex)):
        if False in hits[own]:
            continue
        for at in range(len(arrays.get("mistake_query", ()))):
            for name in ("canonical", "query"):
                images[name].append(arrays[f"mistake_{name}"][at])
            images[own].append(arrays["mistake_nearest"][at])
            images[other].append(None)
            images["rectified"].append(arrays["mistake_rectified"][at] if own == _OJS else None)
            hits[own].append(False)
            hits[other].append(None)
    return list(images.items()), dict(hits)


def _first(chosen: np.ndarray, most: int) -> list[int]:
    places: list[int] = np.flatnonzero(chosen)[:most].tolist()
    return places
