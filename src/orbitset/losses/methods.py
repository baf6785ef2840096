"""The paper's methods as objectives: what to ask of a batch once it has been encoded.

An objective is called as objective(codes, batch, rectified) and gives named terms, of which `loss` is
the one that is minimised; `rectified` is None unless `uses_rectified`. Any function of that form can be
trained with: see `objective`.

An objective that says `is_replayable` promises to work on the GPU alone, on tensors whose shapes depend on
the batch's only: nothing read back, nothing drawn on the host, no Python state. Its step can be recorded.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from orbitset.errors import ConfigError, check_choice
from orbitset.kernels.streams import beside
from orbitset.losses.exemplar import exemplar_loss
from orbitset.losses.joint import Scale, factors, joined, reconstruction_loss
from orbitset.losses.mining import Variant, check_variant
from orbitset.losses.triplet import REPLAYABLE, Reduction, mined_terms

Method = Literal["OJ", "OT", "OE", "ST", "EX", "AE"]
Terms = Mapping[str, Tensor]


class BatchLike(Protocol):
    """What an objective may look at; `orbitset.orbits.Batch` is one."""

    @property
    def images(self) -> Tensor: ...
    @property
    def orbits(self) -> Tensor: ...
    @property
    def canonical(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor | None: ...
    @property
    def max_members(self) -> int: ...
    @property
    def seed(self) -> int: ...


class OrbitJoint(nn.Module):
    """OJ: discriminate and rectify. With rectify_weight 0 it is OT, with discriminate_weight 0 it is OE.

    A term of weight 0 is not computed. `active` is the fraction of triplets inside the margin.
    """

    def __init__(
        self,
        *,
        margin: float = 0.2,
        discriminate_weight: float = 1.0,
        rectify_weight: float = 1.0,
        scale: Scale = "as-printed",
        reduction: Reduction = "mean",
        mining: Variant = "semihard-else-farthest",
    ) -> None:
        super().__init__()
        if discriminate_weight == rectify_weight == 0:
            raise ConfigError("both weights are 0; give at least one of the two terms a weight")
        check_variant(mining)
        self.margin, self.mining = margin, mining
        self.discriminate_weight, self.rectify_weight = discriminate_weight, rectify_weight
        self.scale, self.reduction = scale, reduction
        self.uses_rectified = rectify_weight != 0
        self.is_replayable = mining in REPLAYABLE

    def forward(self, codes: Tensor, batch: BatchLike, rectified: Tensor | None) -> Terms:
        canonical = batch.canonical
        by_discriminate, by_rectify = factors(codes, canonical, self.scale)

        def discriminate() -> tuple[Tensor, Tensor]:
            hinge, active = mined_terms(
                codes,
                batch.orbits,
                self.mining,
                margin=self.margin,
                reduction=self.reduction,
                max_members=batch.max_members,
                seed=batch.seed,
            )
            return self.discriminate_weight * by_discriminate * hinge, active

        loss = joined(
            beside(codes, discriminate) if self.discriminate_weight else None,
            rectified,
            canonical,
            rectify_weight=self.rectify_weight * by_rectify,
            reduction=self.reduction,
        )
        terms = {"loss": loss.total}
        if self.discriminate_weight:
            terms |= {"discriminate": loss.discriminate, "active": loss.active}
        if self.rectify_weight:
            terms["rectify"] = loss.rectify
        return terms


class SupervisedTriplet(nn.Module):
    """ST: the triplet term with classes in place of orbits."""

    uses_rectified = False

    def __init__(
        self,
        *,
        margin: float = 0.2,
        reduction: Reduction = "mean",
        mining: Variant = "semihard-else-farthest",
    ) -> None:
        super().__init__()
        check_variant(mining)
        self.margin, self.reduction, self.mining = margin, reduction, mining
        self.is_replayable = mining in REPLAYABLE

    def forward(self, codes: Tensor, batch: BatchLike, rectified: Tensor | None) -> Terms:
        if batch.labels is None:
            raise ConfigError("ST learns from class labels, and these images have none")
        hinge, active = mined_terms(
            codes,
            batch.labels,
            self.mining,
            margin=self.margin,
            reduction=self.reduction,
            seed=batch.seed,
        )
        return {"loss": hinge, "discriminate": hinge, "active": active}


class Exemplar(nn.Module):
    """EX: one class per orbit, told apart by a linear classifier that is learned and then thrown away."""

    uses_rectified = False
    is_replayable = True

    def __init__(self, *, code_size: int, num_orbits: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(code_size, num_orbits)

    def forward(self, codes: Tensor, batch: BatchLike, rectified: Tensor | None) -> Terms:
        loss = exemplar_loss(codes, batch.orbits, self.classifier.weight, self.classifier.bias)
        return {"loss": loss, "classify": loss}


class Autoencoder(nn.Module):
    """AE: give back the input."""

    uses_rectified = True
    is_replayable = True

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, codes: Tensor, batch: BatchLike, rectified: Tensor | None) -> Terms:
        assert rectified is not None
        loss = reconstruction_loss(rectified, batch.images, reduction=self.reduction)
        return {"loss": loss, "reconstruct": loss}


class Classified(nn.Module):
    """Any objective, and beside it class labels where some images have them: the orbits then regularise a
    classifier, as in the paper, or the classes the codes.

    A linear classifier is learned and then thrown away. Labels below 0 are of no class and do not count;
    `right` is the fraction of the others that it gets right.
    """

    def __init__(
        self, objective: nn.Module, *, weight: float, code_size: int, num_classes: int
    ) -> None:
        super().__init__()
        self.objective, self.weight = objective, weight
        self.classifier = nn.Linear(code_size, num_classes)
        self.uses_rectified = bool(getattr(objective, "uses_rectified", False))
        self.is_replayable = bool(getattr(objective, "is_replayable", False))

    def forward(self, codes: Tensor, batch: BatchLike, rectified: Tensor | None) -> Terms:
        if batch.labels is None:
            raise ConfigError("classes are learned from labels, and these images have none")
        terms = self.objective(codes, batch, rectified)
        scores = self.classifier(codes)
        count = (batch.labels >= 0).sum().clamp(min=1)
        error = F.cross_entropy(
            scores, batch.labels.clamp(min=-1), ignore_index=-1, reduction="sum"
        )
        classify = self.weight * error / count
        is_right = scores.argmax(1) == batch.labels
        return {
            **terms,
            "loss": terms["loss"] + classify,
            "classes": classify,
            "right": is_right.sum() / count,
        }


class _Function(nn.Module):
    def __init__(
        self, function: Callable[..., Terms], uses_rectified: bool, is_replayable: bool
    ) -> None:
        super().__init__()
        self.function, self.uses_rectified = function, uses_rectified
        self.is_replayable = is_replayable

    def forward(self, codes: Tensor, batch: BatchLike, rectified: Tensor | None) -> Terms:
        return self.function(codes, batch, rectified)


def objective(
    *, uses_rectified: bool = False, is_replayable: bool = False
) -> Callable[[Callable[..., Terms]], nn.Module]:
    """Make an objective of a function of (codes, batch, rectified) that gives {"loss": …}.

    `is_replayable` is a promise, see above: with it a step on a GPU is recorded once and replayed.

    >>> @objective()
    ... def spread_out(codes, batch, rectified):
    ...     return {"loss": -codes.var(0).sum()}
    """
    return lambda function: _Function(function, uses_rectified, is_replayable)


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The objective's numbers; which of them a method uses is said by its class."""

    margin: float | None = None
    """None: by margin_fraction, or 0.2 if the code has no norm"""
    margin_fraction: float = 0.125
    """Of the usual squared distance of two codes"""
    discriminate_weight: float = 1.0
    """lambda1 of the paper"""
    rectify_weight: float = 1.0
    """lambda2 of the paper"""
    classify_weight: float = 0.0
    """Of class labels beside the orbits, for images that have one"""
    scale: Scale = "as-printed"
    reduction: Reduction = "mean"
    mining: Variant = "semihard-else-farthest"

    def __post_init__(self) -> None:
        if not 0 <= self.classify_weight < math.inf:
            raise ConfigError(
                f"loss.classify_weight is {self.classify_weight}; give a number of at least 0"
            )
        if self.margin is not None and not self.margin > 0:
            raise ConfigError(f"loss.margin is {self.margin}; give a number above 0")
        if not 0 < self.margin_fraction <= 2:
            raise ConfigError(
                f"loss.margin_fraction is {self.margin_fraction}; give a number above 0 and at most 2, "
                "beyond which no two codes lie"
            )
        for name in ("discriminate_weight", "rectify_weight"):
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"loss.{name} is {getattr(self, name)}; give a number above 0 "
                    "(OT leaves the rectify term out, OE the discriminate term)"
                )
        check_choice("loss.scale", self.scale, get_args(Scale))
        check_choice("loss.reduction", self.reduction, get_args(Reduction))
        check_variant(self.mining)


def build_loss(
    method: Method,
    config: LossConfig,
    *,
    code_size: int,
    num_orbits: int,
    num_classes: int = 0,
    default_margin: float = 0.2,
) -> nn.Module:
    """The objective a method and its numbers describe; the default is for a margin left open."""
    made = _of_method(method, config, code_size, num_orbits, default_margin)
    if not config.classify_weight:
        return made
    if num_classes < 2:
        raise ConfigError(
            f"loss.classify_weight asks for classes, and the images that are trained on have {num_classes}; "
            "give labels of at least 2, or a weight of 0"
        )
    return Classified(
        made, weight=config.classify_weight, code_size=code_size, num_classes=num_classes
    )


def _of_method(
    method: Method, config: LossConfig, code_size: int, num_orbits: int, default_margin: float
) -> nn.Module:
    margin = default_margin if config.margin is None else config.margin
    match method:
        case "OJ" | "OT" | "OE":
            return OrbitJoint(
                margin=margin,
                discriminate_weight=0 if method == "OE" else config.discriminate_weight,
                rectify_weight=0 if method == "OT" else config.rectify_weight,
                scale=config.scale,
                reduction=config.reduction,
                mining=config.mining,
            )
        case "ST":
            return SupervisedTriplet(
                margin=margin, reduction=config.reduction, mining=config.mining
            )
        case "EX":
            return Exemplar(code_size=code_size, num_orbits=num_orbits)
        case "AE":
            return Autoencoder(reduction=config.reduction)


def as_objective(loss: Any) -> nn.Module:
    if isinstance(loss, nn.Module):
        return loss
    positional = [
        p
        for p in inspect.signature(loss).parameters.values()
        if p.default is p.empty and p.kind is not p.KEYWORD_ONLY
    ]
    uses = len(positional) > 2

    def call(codes: Tensor, batch: BatchLike, rectified: Tensor | None) -> Terms:
        terms = loss(codes, batch, rectified) if uses else loss(codes, batch)
        return terms if isinstance(terms, Mapping) else {"loss": terms}

    return _Function(call, uses, False)
