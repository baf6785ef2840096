"""The page of a run, a demo or a study, made from what was recorded, and the figures it shows as files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbitset.config import to_dict
from orbitset.errors import RunError
from orbitset.files import write_atomically
from orbitset.pages import render
from orbitset.protocols.contract import About
from orbitset.protocols.exclusions import left_out_in_words
from orbitset.report import blocks, figures, pictures, tables
from orbitset.report.blocks import Block, Figures
from orbitset.results.recorded import RecordedStudy, Training, read_recorded, read_training
from orbitset.results.stopping import about
from orbitset.run_folder import Run

_STOPPED = (
    "The checkpoint of each method is chosen on one half of a random split of the test orbits, and scored on "
    "the other half: its mean and s.d. are over splits, with seeds averaged within each. Other readings of "
    "OJ keep the settings that were chosen for it. Raw pixels and the untrained encoder need no checkpoint: "
    "they are scored on all test images, and their s.d. is over draws."
)
_STOPPED_BY_PART = (
    "The checkpoint of each method is chosen for each measure on a part of the data that is neither "
    "trained on nor scored; “sides swapped” scores that part and chooses on the other. The s.d. is over "
    "splits of the data, each trained anew, with seeds averaged within each."
)
_AT_END = (
    "Scored at the end of training. The s.d. is over splits of the data, each trained anew, with seeds "
    "averaged within each; the interval is over seeds."
)
_GEOMETRY = (
    "The paper calls an embedding ε-invariant when images of one orbit lie within squared distance ε and all "
    "others beyond it: both curves at 1 for one ε. The dotted line is the margin α of the methods that have "
    "one; that ε = α follows only for codes of bounded length."
)


@dataclass(frozen=True)
class _Page:
    """What a page shows."""

    name: str
    trainings: Mapping[str, Training]
    """One for each method or line of the table, by its label"""
    methods: Sequence[str]
    """The labels of those that figures show"""
    results: Mapping[str, Any]
    recorded: RecordedStudy | None
    note: str | None
    figures: Figures

    @property
    def first(self) -> Training:
        return next(iter(self.trainings.values()))

    @property
    def protocol(self) -> About:
        return about(self.first)

    @property
    def measures(self) -> list[str]:
        """Those that are drawn against epochs: the protocol's and the user's own."""
        own = [name.partition(":")[2] for name in self.first.config.measures]
        return [*self.protocol.curves, *own]

    @property
    def curves(self) -> Mapping[str, Sequence[dict[str, Any]]]:
        """Measures against epochs of each method."""
        if self.recorded is not None:
            curves: dict[str, Any] = self.results["curves"]
            return {label: curves[label] for label in self.methods if label in curves}
        return {label: training.records for label, training in self.trainings.items()}


def write_report(run: Run, results: dict[str, Any] | None = None) -> Path:
    """Draw all figures of a finished run, of a demo or of a study, and write report.html.

    Results are those in the folder, or new ones, which then go there. Nothing is written unless all of it
    could be made.
    """
    run.require().refuse_search("reported")
    content = run.read_json("results.json") if results is None else results
    try:
        page = _read(run, content)
        text = _render(page)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise RunError(f"{run.path} is damaged: {error!r}") from error
    if results is not None:
        run.write_json("results.json", results)
    tables.write_tables(
        run / "tables", content["rows"], content.get("tests", []), page.protocol.measures
    )
    run.write_figures(page.figures.files)
    path = run / "report.html"
    write_atomically(path, text.encode())
    return path


def _read(run: Run, results: Mapping[str, Any]) -> _Page:
    config = run.config
    marks = dict.fromkeys(row.get("cut_down") for row in results["rows"])
    figures_of = Figures("; ".join(filter(None, marks)) or None)
    recorded = None
    if run.kind == "study":
        recorded = read_recorded(run)
        study, scored = recorded.study, {row["method"] for row in results["rows"]}
        seed = results["seeds"][0]
        firsts = {label: study.lines_of(label)[0] for label in study.labels if label in scored}
        trainings = {label: recorded.trainings[line.path(seed)] for label, line in firsts.items()}
        methods = [label for label, line in firsts.items() if line.role == "method"]
    else:
        singles = [read_training(Run(run / name)) for name in config.get("runs", [""])]
        trainings = {training.config.method: training for training in singles}
        methods = list(trainings)
    return _Page(
        config["name"], trainings, methods, results, recorded, config.get("note"), figures_of
    )


def _render(page: _Page) -> str:
    labels = f"{len(page.methods)} methods" if page.recorded else ", ".join(page.methods)
    environment = page.recorded.environment if page.recorded else page.first.environment
    config = page.first.config
    seeds = page.recorded.study.seeds if page.recorded else [config.seed]
    origin = [
        *([] if page.recorded else [f"Data {config.data}"]),
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
        environment["device"],
        environment["started_at"][:10],
        f"commit {environment['commit'] or 'unknown'}",
    ]
    return render(
        "report.html",
        title=f"orbitset · {page.name}",
        heading=f"{page.name}: {labels}",
        origin=[tables.capitalised(origin[0]), *origin[1:]],
        command=environment.get("command") if page.recorded else None,
        baselines=tuple(tables.BASELINES),
        blocks=[
            *_notes(page),
            *_results(page),
            *_curves(page),
            *_geometry(page),
            *pictures.show(page.trainings, page.methods, page.figures),
            *_weights(page),
            *_times(page),
            *_settings(page),
        ],
    )


def _notes(page: _Page) -> list[Block]:
    """What a reader should know before any number."""
    kinds = page.results.get("environments", [])
    mixed = "; ".join(
        f"{kind['runs']} on {kind['device']}, torch {kind['torch']}, commit {kind['commit']}"
        for kind in kinds
    )
    partial = [training for training in page.trainings.values() if training.left_out]
    lists = [training.file_of("left_out.json") for training in partial]
    is_validated = page.first.config.evaluation.on == "validation"
    lost = max((row.get("unanswerable") or 0 for row in page.results["rows"]), default=0)
    return blocks.notes(
        page.note,
        page.figures.cut_down,
        "Scored on validation images; the test images were left out." if is_validated else None,
        f"Not all runs are of one kind: {mixed}." if len(kinds) > 1 else None,
        f"Some of the data could not be used: {lists[0]} says what, and why." if lists else None,
        f"{lost:,} queries have nothing to find and are not scored." if lost else None,
        *(
            f"{label}, {note}"
            for label, training in (page.trainings.items() if page.recorded is None else ())
            for note in training.results.get("notes", ())
        ),
    )


def _results(page: _Page) -> list[Block]:
    """A table of scores and one of tests for each measure; those that are not drawn are folded up."""
    sections = [blocks.heading("Results"), blocks.paragraph(_how(page))]
    for metric in dict.fromkeys(row["metric"] for row in page.results["rows"]):
        rows, tests, seeds = (
            [row for row in page.results.get(kind, []) if row["metric"] == metric]
            for kind in ("rows", "tests", "over_seeds")
        )
        parts = [blocks.table(*tables.score_cells(rows))]
        parts += [blocks.paragraph(text) for text in tables.about_p(rows)]
        if about_tests := page.results.get("about_tests"):
            parts.append(blocks.paragraph(about_tests))
        if tests:
            parts.append(_tests(tests))
        if seeds:
            text = "Differences seed by seed say how much another training would change."
            parts += [blocks.paragraph(text), _over_seeds(seeds)]
        name = tables.capitalised(tables.metric_name(metric, page.protocol.measures))
        if metric in page.measures:
            sections += [blocks.heading(name), *parts]
        else:
            sections.append(blocks.details(name, *parts))
    return sections


def _how(page: _Page) -> str:
    """How codes were judged, and in a study how checkpoints were chosen."""
    texts = [page.protocol.how]
    config = page.first.config
    if excluded := config.evaluation.exclude:
        label = page.protocol.label
        texts.append(f"Left out are images of the same {label} {left_out_in_words(excluded)}.")
    if config.encoder.contrast == "local":
        texts.append("Every encoder sees the local contrast of images; raw pixels are as they are.")
    if page.recorded is not None:
        is_stopped = page.protocol.has_swapped_sides
        by_part = _STOPPED_BY_PART if is_stopped else _AT_END
        texts.append(_STOPPED if page.protocol.paired_over == "splits" else by_part)
    return " ".join(texts)


def _tests(tests: Sequence[Mapping[str, Any]]) -> Block:
    cells = [
        [
            f"{test['method']} − {test['against']}",
            tables.name_test(test["test"]),
            tables.format_difference(test["difference"], test),
            *(tables.format_p(test[name]) for name in ("p", "p_bonferroni", "p_holm")),
        ]
        for test in tests
    ]
    head = ["difference", "test", "mean (95 %)", "p", "Bonferroni", "Holm"]
    return blocks.table(head, cells)


def _over_seeds(pairs: Sequence[Mapping[str, Any]]) -> Block:
    cells = [
        [
            f"{pair['method']} − {pair['against']}",
            tables.format_difference(pair["mean"], pair),
            f"{pair['repeats']} seeds",
        ]
        for pair in pairs
    ]
    return blocks.table(["difference", "mean (95 %)", "over"], cells)


def _curves(page: _Page) -> list[Block]:
    sections = [blocks.heading("Against epochs")]
    rows = page.results["rows"]
    pixels = {row["metric"]: row["mean"] for row in rows if row["method"] == "pixels"}
    is_drawn = any(row["repeated"] == "draws" for row in rows)
    over = "draws of the labelled images" if is_drawn else "trainings"
    for measure in page.measures:
        name = tables.metric_name(measure, page.protocol.measures)
        figure = figures.accuracy_curves(
            list(page.curves.items()), pixels.get(measure), measure, name
        )
        caption = f"{tables.capitalised(name)} during training, on held-out images"
        if page.recorded is not None:
            counts = sorted({curve[0][measure]["n"] for curve in page.curves.values()})
            caption += f", mean over {' or '.join(map(str, counts))} trainings"
        has_band = any(point[measure]["sd"] for curve in page.curves.values() for point in curve)
        caption += f"; the band is one s.d. over {over}." if has_band else "."
        sections.append(page.figures.show(measure, figure, caption))
    return sections


def _geometry(page: _Page) -> list[Block]:
    """Codes in the plane for each method and, but for studies, invariance against epsilon."""
    cards, sections = [], []
    arrays = {label: page.trainings[label].arrays for label in page.methods}
    for label, of_method in arrays.items():
        if "epsilons" in of_method and page.recorded is None:
            margin = float(of_method["margin"]) if "margin" in of_method else None
            figure = figures.invariance_curves(of_method, margin, label)
            caption = "Same-orbit pairs within ε, and other pairs beyond it."
            cards.append(page.figures.show(f"invariance-{label}", figure, caption))
    if cards:
        sections += [blocks.heading("Invariance"), blocks.paragraph(_GEOMETRY), blocks.grid(cards)]
    points = {label: own for label, own in arrays.items() if "tsne" in own}
    if points:
        first = next(iter(points.values()))
        figure = figures.tsne_maps(
            [(label, of["tsne"]) for label, of in points.items()],
            first["tsne_labels"],
            names=first.get("tsne_names"),
        )
        caption = (
            "Codes of the same held-out images at the end of training, in the plane by t-SNE, coloured by "
            f"{page.protocol.label}."
        )
        sections += [
            blocks.heading("Codes in the plane"),
            page.figures.show("tsne", figure, caption),
        ]
    return sections


def _weights(page: _Page) -> list[Block]:
    if not page.results.get("ratios"):
        return []
    caption = (
        "One seed and a fifth of the length for each point; all other settings, the margin and the learning "
        "rate among them, are those of OJ. The bars are one s.d. over splits."
    )
    figure = figures.ratio_curve(page.results["ratios"])
    title = "Weight of the two terms"
    return [blocks.heading(title), page.figures.show("ratio", figure, caption)]


def _times(page: _Page) -> list[Block]:
    if page.recorded is None:
        return []
    seconds, study, cells = page.results["seconds"], page.recorded.study, []
    for label in page.trainings:
        paths = {line.path(seed) for line, seed in study.runs() if line.label == label}
        done = [training for path, training in page.recorded.trainings.items() if path in paths]
        images = done[0].records[-1]["images"]
        cells.append([label, f"{images:,}", str(len(done)), f"{seconds[label]:,.0f} s"])
    text = (
        "Trainings with their evaluations, summed up though several may have run side by side: "
        f"{sum(seconds.values()) / 60:.1f} minutes in all, those for curves included."
    )
    head = ["method", "images per training", "trainings", "time"]
    return [blocks.heading("Time"), blocks.paragraph(text), blocks.table(head, cells)]


def _settings(page: _Page) -> list[Block]:
    sections = [blocks.heading("Configuration and environment")]
    for label, training in page.trainings.items():
        sections.append(blocks.as_json(f"{label}, configuration", to_dict(training.config)))
        sections.append(blocks.as_json(f"{label}, environment", training.environment))
    return sections
