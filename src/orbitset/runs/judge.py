"""What judges a training: scores of an evaluation, the best of several, when to end, and rows of results."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from orbitset.errors import ConfigError
from orbitset.evaluation.score import Score
from orbitset.outside import import_named
from orbitset.protocols import Protocol, encoding_with, raw_pixels
from orbitset.protocols.contract import Encode, Measure, Scores, evaluate
from orbitset.recipes.experiment import Experiment
from orbitset.results.row import Row
from orbitset.runs.ignoring import Ignoring
from orbitset.training.fit import TrainConfig

Record = dict[str, Any]
"""A line of metrics.jsonl"""
_LEAST_SHARE = 0.1
"""The share of a training before which it is not judged whether its scores still rise"""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Chooses among the evaluations of a training by their scores on validation images."""

    measure: str
    has_useful_start: bool
    """Whether the evaluation before training counts, because the model began with useful weights"""

    def eligible(self, records: Sequence[Record]) -> list[Record]:
        """The evaluations that may be the best."""
        return [*records] if self.has_useful_start else [*records[1:]]

    def best(self, records: Sequence[Record]) -> Record:
        """The evaluation with the best score, the first of several."""
        eligible = self.eligible(records) or [*records]
        # scores are compared by top-1 where some record is older than the measure
        measure = self.measure if all(self.measure in record for record in eligible) else "top1"
        return max(eligible, key=lambda record: float(record[measure]["va"][0]))

    def is_last_best(self, records: Sequence[Record]) -> bool:
        """Whether the last evaluation is better than all before."""
        return bool(self.eligible(records)) and self.best(records) is records[-1]

    def is_start_best(self, records: Sequence[Record]) -> bool:
        """Whether none is better than the one before training, which counts."""
        return self.has_useful_start and self.best(records) is records[0]

    def stopped_rising_at(
        self, records: Sequence[Record], train: TrainConfig, steps: int
    ) -> int | None:
        """The step of the best evaluation, if as many later ones as `train.patience` are no better.

        Evaluations in the first tenth of the training do not count, nor those before the backbone learns,
        unless it never does.
        """
        eligible = self.eligible(records)
        if train.patience is None or not eligible:
            return None
        best_step: int = self.best(records)["step"]
        begins_at = train.head_first if train.head_first < 1 else 0.0
        first = steps * max(_LEAST_SHARE, begins_at)
        waited = sum(record["step"] > max(best_step, first) for record in eligible)
        return best_step if waited >= train.patience else None


class Judge:
    """Evaluates the model of a training: its protocol's scores, and those of measures from outside."""

    def __init__(
        self, config: Experiment, protocol: Protocol, ignoring: Ignoring | None = None
    ) -> None:
        self.config, self.protocol, self.ignoring = config, protocol, ignoring
        about = protocol.about
        if ignoring is not None:
            protocol.about = replace(about, measures={**about.measures, **ignoring.measures})
        self.frozen: Scores | None = None
        """The scores of what training has to beat, where codes before its first step are not that: the
        features of a pretrained network, or codes that ignore nothing. The next record takes them."""
        self.measures = _imported_measures(config.measures, protocol.about.measures)
        self.choice = Choice(measure=about.chosen_by, has_useful_start=config.begins_useful)

    @property
    def kept_by(self) -> str:
        """The measure by which the best weights are chosen, in words."""
        measure = self.choice.measure
        return self.protocol.about.measures.get(measure, measure)

    def why_end(self, records: Sequence[Record], steps: int) -> str | None:
        """Why a training of so many steps need not go on, if that is so."""
        step = self.choice.stopped_rising_at(records, self.config.train, steps)
        if step is None:
            return None
        return f"{self.kept_by} of validation images has not risen since step {step:,}"

    def encoding(self, model: nn.Module) -> Encode:
        return encoding_with(model, precision=self.config.train.precision)

    def scores(self, encode: Encode) -> Scores:
        scores = evaluate(self.protocol, encode, self.measures)
        return scores if self.ignoring is None else {**scores, **self.ignoring.scores(encode)}

    def record(self, model: Any) -> Record:
        """The scores of an evaluation, as a record of metrics.jsonl has them."""
        encode = self.encoding(model)
        with nullcontext() if self.ignoring is None else self.ignoring.erased(model, encode):
            record = _plain(self.scores(encode))
        if self.frozen is not None:
            record["frozen"], self.frozen = _plain(self.frozen), None
        return record

    def validated(self, scores: Scores) -> float | None:
        """The score by which weights are chosen; None without validation images."""
        score = scores[self.choice.measure]
        sides = score.sides if isinstance(score, Score) else {}
        return sides["va"][0] if "va" in sides else None

    def rows(self, records: list[Record]) -> list[Row]:
        """Raw pixels, the encoder before training and the encoder after it, by every measure."""
        config, pixels = self.config, self.scores(raw_pixels)
        last = self.choice.best(records) if config.keeps_best else records[-1]
        start = records[0].get("frozen", records[0])
        scores: list[tuple[str, str, Score]] = []
        for name, score in pixels.items():
            if isinstance(score, Score) and name in last:  # it is not in runs that are older
                of_start, of_last = (Score.from_json(record[name]) for record in (start, last))
                scores += [("pixels", name, score), (config.start, name, of_start)]
                scores.append((config.method, name, of_last))
            elif name in self.protocol.about.measures and not isinstance(score, Score):
                scores.append((config.method, name, Score(mean=last[name])))
        further = self.protocol.rows(records)
        scores += [(config.method, name, score) for name, score in further.items()]
        return [self._row(method, name, score, pixels) for method, name, score in scores]

    def _row(self, method: str, name: str, score: Score, pixels: Scores) -> Row:
        suffix = "" if self.config.evaluation.on == "test" else "_validation"
        unanswerable: Any = pixels.get("unanswerable") if name.startswith("top1") else None
        row = Row.of(method, f"{name}{suffix}", score, unanswerable=unanswerable)
        return replace(row, cut_down=self.config.cut_down)


def _imported_measures(specs: Sequence[str], others: Mapping[str, str]) -> dict[str, Measure]:
    """The measures from outside by name, which no other has."""
    measures: dict[str, Measure] = {}
    for spec in specs:
        name = spec.partition(":")[2]
        if name in (*others, *measures):
            raise ConfigError(f"two measures are called {name}; rename the function of {spec}")
        measures[name] = import_named(spec, what="measure")
    return measures


def _plain(scores: Scores) -> Record:
    return {
        name: score.to_json() if isinstance(score, Score) else score
        for name, score in scores.items()
    }
