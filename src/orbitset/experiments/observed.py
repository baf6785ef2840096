"""Observed orbits, evaluated by verification and retrieval: the paper's faces.

What is tested on was not trained on. On each part of it the AUC over all pairs says whether images of one
label are nearer than those of two, and top-1 how often the nearest image has the query's label, after those
that would be too easy to find are left out.
"""

import io
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orbitset.datasets.decode import Progress
from orbitset.datasets.images import fingerprint
from orbitset.datasets.named import load_observed
from orbitset.datasets.observed import ObservedImages
from orbitset.datasets.video import frames_of
from orbitset.encoders import Encoder
from orbitset.errors import DataError, check_choice
from orbitset.evaluation.exclusion import Near, Rule, Same
from orbitset.evaluation.labelled import Labelled
from orbitset.evaluation.retrieval import Retrieval, retrieve
from orbitset.evaluation.verification import verify
from orbitset.experiments.arrays import to_uint8, tsne_points
from orbitset.experiments.config import ObservedExperiment, VideoConfig
from orbitset.experiments.rows import best, row, without_splits
from orbitset.experiments.task import Encode, encoding_with, raw_pixels
from orbitset.orbits.batches import OrbitBatches
from orbitset.orbits.observed import (
    ObservedOrbits,
    SeveralClasses,
    choose_targets,
    classes_of_orbits,
    group_orbits,
)
from orbitset.seeds import stream

MEASURES = ("auc", "top1")
_ENCODE_BATCH = 500
_STRIP_ROWS = 4
_MISTAKES = 2
_MOST_TSNE_POINTS = 2_600


class ObservedTask:
    """What a training on observed orbits learns from, and how it is scored."""

    def __init__(
        self, config: ObservedExperiment, device: str, on_progress: Progress | None = None
    ) -> None:
        self.config = config
        self.device = device
        orbits, evaluation = config.orbits, config.evaluation
        factors = (*orbits.factors, evaluation.split_by, *evaluation.exclude)
        video = config.video or VideoConfig()
        seen, self.left_out = load_observed(
            config.data,
            orbit=orbits.orbit,
            target=orbits.target,
            factors=tuple(dict.fromkeys(factors)),
            size_px=orbits.size_px,
            is_colour=orbits.is_colour,
            min_members=orbits.min_members,
            on_problem=orbits.on_problem,
            crops=orbits.crops,
            segments=video.segments,
            trained_share=video.trained_share,
            is_kept=not config.is_private,
            device=device,
            on_progress=on_progress,
        )
        channels, height, width = seen.images.shape[1:]
        if height != width:
            raise DataError(
                f"images have {width}x{height} px; give orbits.size_px, and they are fitted into squares"
            )
        self.image_shape = (channels, height)
        _check_orbits(seen, orbits.orbit, evaluation.split_by)
        parts = {
            name: seen.where(evaluation.split_by, self._present(seen, name))
            for name in ("train", "validation", "test")
        }
        self.train = parts["train"]
        self.sides = {"te": parts["test"]}
        if evaluation.validation:
            self.sides["va"] = parts["validation"]
        self.unused = len(seen) - sum(map(len, parts.values()))
        used = (*evaluation.train, *evaluation.validation, *evaluation.test)
        values = seen.values[evaluation.split_by]
        self.unused_values = [value for value in values if value not in used]
        trained = self._orbits(self.train, has_classes=orbits.classes is not None)
        count = orbits.orbits_per_batch
        if self.left_out:  # there may be fewer orbits than were counted when the batch was chosen
            count = min(count, len(trained))
        self.batches = OrbitBatches(
            trained,
            orbits_per_batch=count,
            members_per_batch=orbits.members_per_batch,
            weighting=orbits.weighting,
            alike_N=None if orbits.alike is None else self._values_of(trained, orbits.alike),
            alike_values=min(orbits.alike_values, count),
            seed=config.seed,
        )

    def _values_of(self, trained: ObservedOrbits, factor: str) -> Tensor:
        """What orbits are to have in common with others in a batch."""
        value_O = self.train.factors[factor][trained.canonical_row_N.cpu()]
        if len(value_O.unique()) == len(value_O):
            raise DataError(f"no two orbits that are trained on have the same {factor}")
        return value_O

    @property
    def about_data(self) -> dict[str, Any] | None:
        """To be told apart from others: how many images, and what they hold. Rendered ones do not change."""
        if self.config.data.partition(":")[0] == "heads":
            return None
        parts = (self.train, *self.sides.values())
        tensors = [each for part in parts for each in (part.images, *part.factors.values())]
        return {"images": sum(map(len, parts)), "sha256": fingerprint(*tensors)}

    def _present(self, seen: ObservedImages, part: str) -> list[str]:
        """The values a part was given, but for those all of whose images were left out."""
        by = self.config.evaluation.split_by
        asked = list(getattr(self.config.evaluation, part))
        there = [value for value in asked if value in seen.values.get(by, ())]
        return there if self.left_out and (there or not asked) else asked

    def _orbits(self, seen: ObservedImages, *, has_classes: bool = False) -> ObservedOrbits:
        asked = self.config.orbits
        target = None
        if asked.target is not None:
            factor, value = asked.target
            target = (factor, seen.values[factor].index(value))
        orbit_N, canonical_O = group_orbits(dict(seen.factors), asked.orbit, target)
        if target is None:
            canonical_O = choose_targets(asked.chosen, seen.images, orbit_N)
        labels_O = None
        if has_classes and asked.classes is not None:
            labels_O = _classes(seen, asked.classes, orbit_N)
        elif self._label in asked.orbit:
            labels_O = seen.factors[self._label][canonical_O]
        return ObservedOrbits(seen.images, orbit_N, canonical_O, labels_O, device=self.device)

    @property
    def _label(self) -> str:
        assert self.config.orbits.label is not None
        return self.config.orbits.label

    @property
    def rule(self) -> Rule | None:
        """What retrieval leaves out: images of the query's label that share one of the factors with it, and
        frames of its moment."""
        shared: Rule | None = None
        evaluation = self.config.evaluation
        for factor in evaluation.exclude:
            shared = Same(factor) if shared is None else shared | Same(factor)
        rule = None if shared is None else Same(self._label) & shared
        if not evaluation.apart:
            return rule
        moment = Same("video") & Near("frame", evaluation.apart)
        return moment if rule is None else rule | moment

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """What a record of metrics.jsonl says."""
        return self._scores(encoding_with(model, precision=self.config.train.precision))

    def _scores(self, encode: Encode) -> dict[str, Any]:
        found = {
            side: self.score(self.encode(encode, seen), seen) for side, seen in self.sides.items()
        }
        metrics: dict[str, Any] = {}
        for name in MEASURES:
            once = {"mean": found["te"][name], "sd": None, "n": 1, "repeated": "runs"}
            sides = {side: [scores[name]] for side, scores in found.items()}
            metrics[name] = once | (sides if "va" in sides else {})
        if unanswerable := found["te"]["unanswerable"]:
            metrics["unanswerable"] = unanswerable
        return metrics

    def score(self, codes: Labelled, seen: ObservedImages) -> dict[str, float]:
        """AUC and top-1 of the codes of images, and how many queries nothing could answer."""
        answered = self.retrieved(codes, seen)
        if answered.num_unanswerable == len(codes):
            raise DataError(
                f"no test image has another of its {self._label} to find, once those that share its "
                f"{' or '.join(self.config.evaluation.exclude)} are left out",
                hint="name fewer factors in evaluation.exclude",
            )
        try:
            auc = verify(codes, fars=()).auc
        except ValueError as error:
            raise DataError(f"the test images cannot be scored: {error}") from None
        return {
            "auc": auc,
            "top1": answered.precision_at(1),
            "unanswerable": answered.num_unanswerable,
        }

    def retrieved(self, codes: Labelled, seen: ObservedImages, **options: Any) -> Retrieval:
        """What every image finds among the others, but for what the experiment leaves out."""
        factors = {name: ids.to(codes.codes.device) for name, ids in seen.factors.items()}
        if self.config.evaluation.apart:
            factors["frame"] = frames_of(seen).to(codes.codes.device)
        return retrieve(codes, factors=factors, exclude=self.rule, **options)

    def encode(self, encode: Encode, seen: ObservedImages) -> Labelled:
        codes = [encode(self._shown(images)) for images in seen.images.split(_ENCODE_BATCH)]
        return Labelled(torch.cat(codes), seen.factors[self._label].to(codes[0].device))

    def _shown(self, images: Tensor) -> Tensor:
        return images.to(self.device).float().div_(255)

    def rows(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Raw pixels, the encoder before training, and the encoder after it; with validation images also
        where these would have stopped it."""
        pixels = self._scores(raw_pixels)
        unanswerable = {"unanswerable": pixels.get("unanswerable", 0)}
        is_begun = self.config.init is not None
        chosen = best(records, is_begun=is_begun) if self.config.keeps_best else records[-1]
        rows = []
        for name in MEASURES:
            more = unanswerable if name == "top1" else {}
            rows.append(row("pixels", name, without_splits(pixels[name]), **more))
            rows.append(row(self.config.start, name, without_splits(records[0][name]), **more))
            rows.append(row(self.config.method, name, without_splits(chosen[name]), **more))
            if "va" in self.sides and len(records) > 1:
                stopped = max(records[1:], key=lambda record: record[name]["va"][0])
                summary = without_splits(stopped[name]) | {"epoch": stopped["epoch"]}
                rows.append(row(self.config.method, f"{name}_stopped", summary, **more))
        return rows

    @torch.inference_mode()
    def arrays(self, model: Encoder) -> bytes:
        """What the figures are drawn from; of private images nothing that was one."""
        arrays: dict[str, Tensor] = {}
        encode = encoding_with(model, precision=self.config.train.precision)
        test = self.sides["te"]
        evaluation = self.config.evaluation
        if not self.config.is_private:
            if evaluation.tsne_labels:
                arrays |= self._in_the_plane(encode, test)
            if evaluation.pictures:
                arrays |= self._pictures(model, encode, test)
        buffer = io.BytesIO()
        found: dict[str, Any] = {name: of.cpu().numpy() for name, of in arrays.items()}
        np.savez_compressed(buffer, **found)
        return buffer.getvalue()

    def _in_the_plane(self, encode: Encode, test: ObservedImages) -> dict[str, Tensor]:
        """The codes of the first few labels, evenly thinned if they are many."""
        ids = test.factors[self._label]
        first = ids.unique()[: self.config.evaluation.tsne_labels]
        chosen = torch.isin(ids, first).nonzero().squeeze(1)
        chosen = chosen[:: -(-len(chosen) // _MOST_TSNE_POINTS)]
        codes = self.encode(encode, test[chosen])
        if len(codes) < 10:
            return {}
        points = tsne_points(codes.codes, self.config.evaluation.seed)
        return {"tsne": points, "tsne_labels": codes.labels}

    def _pictures(self, model: Encoder, encode: Encode, test: ObservedImages) -> dict[str, Tensor]:
        """Random queries with their targets, what was found for them and what is decoded from them; and the
        first mistakes in the order of all queries, since there may be none among those."""
        found = self.retrieved(self.encode(encode, test), test)
        answerable = found.answerable_Q.nonzero().squeeze(1).cpu()
        generator = stream("pictures", self.config.evaluation.seed)
        order = answerable[torch.randperm(len(answerable), generator=generator)]
        nearest_Q, is_hit_Q = found.nearest_QK[:, 0].cpu(), found.is_hit_QK[:, 0].cpu()
        orbits = self._orbits(test)
        orbit_N = group_orbits(dict(test.factors), self.config.orbits.orbit)[0]

        def shown(queries: Tensor) -> dict[str, Tensor]:
            targets = orbits.canonical_row_N.cpu()[orbit_N[queries]]
            return {
                "query": test.images[queries],
                "canonical": test.images[targets],
                "nearest": test.images[nearest_Q[queries]],
                "rectified": to_uint8(model.rectify(self._shown(test.images[queries]))),
            }

        asked = order[: self.config.evaluation.pictures]
        mistakes = order[~is_hit_Q[order]][:_MISTAKES]
        strips = torch.arange(min(_STRIP_ROWS, len(orbits)))
        widest = int(orbits.size_N.min())
        members = [
            orbits.members(
                strip.expand(widest).to(self.device), torch.arange(widest, device=self.device)
            )
            for strip in strips
        ]
        arrays = shown(asked) | {
            "is_hit": is_hit_Q[asked],
            "members": to_uint8(torch.stack(members)),
        }
        if len(mistakes):
            arrays |= {f"mistake_{name}": images for name, images in shown(mistakes).items()}
        return arrays


def _check_orbits(seen: ObservedImages, orbit: tuple[str, ...], split_by: str) -> None:
    """Refuse a split that cuts orbits: part of what is tested on would be trained on."""
    if split_by in orbit:
        return
    orbit_N = group_orbits(dict(seen.factors), orbit)[0]
    both = torch.stack([orbit_N, seen.factors[split_by]], 1).unique(dim=0)
    cut = (both[:, 0].bincount() > 1).nonzero().squeeze(1)
    if len(cut):
        row = int((orbit_N == cut[0]).nonzero()[0])
        name = ", ".join(f"{one} {seen.values[one][seen.factors[one][row]]}" for one in orbit)
        raise DataError(
            f"{len(cut):,} orbits have members with several values of {split_by}, the first is ({name}): "
            "part of what is tested on would be trained on",
            hint=f"split by a factor that orbits share, or name {split_by} among them",
        )


def _classes(seen: ObservedImages, factor: str, orbit_N: Tensor) -> Tensor:
    """The class of each orbit, -1 where none of its members has one."""
    check_choice("orbits.classes", factor, seen.values)
    values = seen.values[factor]
    number = torch.tensor([at if value else -1 for at, value in enumerate(values)])
    class_N = number[seen.factors[factor]]
    try:
        class_O = classes_of_orbits(class_N, orbit_N)
    except SeveralClasses as error:
        both = sorted(values[int(class_N[row])] for row in error.rows)
        raise DataError(
            f"members of one orbit have the {factor} {' and '.join(both)}; give an orbit one class"
        ) from None
    if class_O.max() < 1:
        raise DataError(
            f"the images that are trained on have {int(class_O.max()) + 1} classes of {factor}; at least 2 "
            "are needed"
        )
    return class_O
