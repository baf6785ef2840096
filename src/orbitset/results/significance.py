"""Lines of a table, and whether one beats another.

Seeds are averaged within a split before testing, since they share it. Splits overlap and share trainings, so
that beside the paper's paired t-test stand the Nadeau-Bengio correction, Wilcoxon's test and intervals over
seeds. Where there is one split, seeds are the repeats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, get_args

import numpy as np

from orbitset.evaluation.statistics import Correction, Test, adjusted_p, compare_with, mean_interval
from orbitset.recipes.methods import is_outside
from orbitset.results.row import Row
from orbitset.results.stopping import Scores

_LEVEL = 0.05
_PAPERS = ("EX", "OT", "OE")
"""What the paper tests OJ against; p is corrected for these, whether or not all were trained"""


def is_significant(p: float | None) -> bool:
    """Whether p is below 0.05, by which tables set it in bold."""
    return p is not None and p < _LEVEL


def score_row(
    label: str, measure: str, scores: Scores, tests: Sequence[Mapping[str, Any]] = ()
) -> Row:
    """A line of the table: mean and s.d. over repeats, interval over seeds, and the test against it that
    respects overlapping splits, if these were what was repeated."""
    repeats = scores.repeats
    row = Row(
        method=label,
        metric=measure,
        mean=float(repeats.mean()),
        sd=float(repeats.std(ddof=1)) if len(repeats) > 1 else None,
        n=len(repeats),
        repeated=scores.repeated,
        seeds=len(scores.by_seed),
        epoch=float(np.median(scores.epoch_SR)),
    )
    if len(scores.by_seed) > 1:
        interval = mean_interval(scores.by_seed)
        row = replace(row, seeds_low=interval.low, seeds_high=interval.high)
    own = {test["test"]: test for test in tests if test["against"] == label}
    chosen = own.get("corrected-t", own.get("paired-t"))
    if chosen is None:
        return row
    return replace(row, **{name: chosen[name] for name in ("p_corrected", "test", "correction")})


def paired_tests(
    reference: str,
    scores: Mapping[str, Scores],
    *,
    correction: Correction = "bonferroni",
    comparisons: int | None = None,
    tested_share: float = 1.0,
) -> list[dict[str, Any]]:
    """The reference against every other, by each test. p is corrected for so many comparisons: those made
    here, or those that belong together elsewhere, whether or not all were made. `tested_share` is the size of
    a split's test part over that of the part beside it, 1 for halves; seeds share nothing, and need no
    correction for that."""
    repeats = {label: of_label.repeats.tolist() for label, of_label in scores.items()}
    repeated = scores[reference].repeated
    tests: tuple[Test, ...] = get_args(Test)
    rows = []
    for test in tests if repeated == "splits" else [t for t in tests if t != "corrected-t"]:
        results = compare_with(reference, repeats, test=test, test_share=tested_share)
        missing = [1.0] * max(0, (comparisons or 0) - len(results))
        p = [result.p for result in results.values()] + missing
        corrected = {name: adjusted_p(p, name) for name in ("bonferroni", "holm", "none")}
        for number, (against, result) in enumerate(results.items()):
            rows.append(
                {
                    "method": reference,
                    "against": against,
                    **asdict(result),
                    "repeated": repeated,
                    "p_corrected": corrected[correction][number],
                    "p_bonferroni": corrected["bonferroni"][number],
                    "p_holm": corrected["holm"][number],
                    "correction": correction
                    if correction == "none"
                    else f"{correction} x {len(p)}",
                }
            )
    return rows


def planned_tests(
    scores: Mapping[str, Scores], tested_share: float = 1.0
) -> tuple[list[dict[str, Any]], str | None]:
    """The tests of a study, and why there are none if so. OJ is tested against the methods that the paper
    tests it against and against losses from outside; without OJ, the first method against every other."""
    reference = "OJ" if "OJ" in scores else next(iter(scores))
    others = [label for label in scores if label != reference]
    if reference == "OJ":
        others = [label for label in others if label in _PAPERS or is_outside(label)]
    num_repeats, over = len(scores[reference].repeats), scores[reference].repeated
    tested = [label for label in others if len(scores[label].repeats) == num_repeats]
    why_not = None
    if not others:
        why_not = f"nothing was trained that {reference} is tested against."
    elif num_repeats < 2:
        why_not = (
            f"tests are paired over {over} and need at least two; {reference} has {num_repeats}."
        )
    elif not tested:
        why_not = f"no other method was scored on the {num_repeats} {over} of {reference}."
    if why_not is not None:
        return [], f"No test of significance: {why_not}"
    compared = {label: of for label, of in scores.items() if label in (reference, *tested)}
    family = {*tested, *(_PAPERS if reference == "OJ" else ())}
    return paired_tests(
        reference, compared, comparisons=len(family), tested_share=tested_share
    ), None


def over_seeds(
    scores: Mapping[str, Scores], pairs: Sequence[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Differences of methods, seed by seed: what another training would change."""
    rows = []
    for method, against in pairs:
        if method in scores and against in scores and len(scores[method].by_seed) > 1:
            interval = mean_interval(scores[method].by_seed - scores[against].by_seed)
            rows.append({"method": method, "against": against, **asdict(interval)})
    return rows
