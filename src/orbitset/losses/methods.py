"""The paper's methods as objectives, which turn the codes of a batch into what is minimised."""

import torch.nn.functional as F
from torch import Tensor, nn

from orbitset.errors import ConfigError
from orbitset.losses.exemplar import exemplar_loss
from orbitset.losses.joint import Scale, orbit_joint_loss, reconstruction_loss
from orbitset.losses.mining import Variant, check_variant
from orbitset.losses.objective import BatchLike, Objective, Terms, as_objective
from orbitset.losses.terms import RECTIFY, Term
from orbitset.losses.triplet import Mining, Reduction, mined_terms

_ACTIVE = Term("fraction of triplets inside the margin", is_part=False)
_SILENT = (
    "hardly a triplet is inside the margin, so that it no longer teaches anything; raise the margin (--set "
    "loss.margin_fraction=…), take another --method or train for less"
)
_DISCRIMINATE = Term(
    "distances within orbits are smaller than between them, by the margin",
    when_silent=_SILENT,
    alone="OT",
    to_balance="lower --set loss.discriminate_weight=…",
)


class OrbitJoint(Objective):
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

    @property
    def about_terms(self) -> dict[str, Term]:
        terms: dict[str, Term] = {}
        if self.discriminate_weight:
            terms |= {"discriminate": _DISCRIMINATE, "active": _ACTIVE}
        if self.rectify_weight:
            other = "--set loss.scale=own-dimension or " * (self.scale == "as-printed")
            terms["rectify"] = RECTIFY._replace(
                to_balance=f"set {other}a lower loss.rectify_weight"
            )
        return terms

    def forward(self, codes: Tensor, batch: BatchLike, rectified: Tensor | None) -> Terms:
        loss = orbit_joint_loss(
            codes,
            rectified,
            batch.canonical,
            Mining(batch.orbits, self.mining, batch.max_members, batch.seed),
            margin=self.margin,
            discriminate_weight=self.discriminate_weight,
            rectify_weight=self.rectify_weight,
            scale=self.scale,
            reduction=self.reduction,
        )
        terms = {"loss": loss.total}
        if self.discriminate_weight:
            terms |= {"discriminate": loss.discriminate, "active": loss.active}
        if self.rectify_weight:
            terms["rectify"] = loss.rectify
        return terms


class SupervisedTriplet(Objective):
    """ST: the triplet term with classes in place of orbits."""

    @property
    def about_terms(self) -> dict[str, Term]:
        meaning = "distances within classes are smaller than between them, by the margin"
        return {"discriminate": _DISCRIMINATE._replace(meaning=meaning), "active": _ACTIVE}

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

    def forward(self, codes: Tensor, batch: BatchLike, rectified: Tensor | None) -> Terms:
        if batch.labels is None:
            raise ConfigError("ST learns from class labels, and these images have none")
        mining = Mining(batch.labels, self.mining, seed=batch.seed)
        hinge, active = mined_terms(codes, mining, margin=self.margin, reduction=self.reduction)
        return {"loss": hinge, "discriminate": hinge, "active": active}


class Exemplar(Objective):
    """EX: one class per orbit, told apart by a linear classifier that is learned and then thrown away."""

    @property
    def about_terms(self) -> dict[str, Term]:
        return {"classify": Term("every image is told from those of other orbits by a classifier")}

    def __init__(self, *, code_size: int, num_orbits: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(code_size, num_orbits)

    def forward(self, codes: Tensor, batch: BatchLike, rectified: Tensor | None) -> Terms:
        loss = exemplar_loss(codes, batch.orbits, self.classifier.weight, self.classifier.bias)
        return {"loss": loss, "classify": loss}


class Autoencoder(Objective):
    """AE: give back the input."""

    uses_rectified = True

    @property
    def about_terms(self) -> dict[str, Term]:
        return {"reconstruct": Term("the decoded images are near the images themselves")}

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, codes: Tensor, batch: BatchLike, rectified: Tensor | None) -> Terms:
        assert rectified is not None
        loss = reconstruction_loss(rectified, batch.images, reduction=self.reduction)
        return {"loss": loss, "reconstruct": loss}


class Classified(Objective):
    """Any objective, and beside it class labels where some images have them: the orbits then regularise a
    classifier, as in the paper, or the classes the codes.

    A linear classifier is learned and then thrown away. Labels below 0 are of no class and do not count;
    `right` is the fraction of the others that it gets right.
    """

    def __init__(
        self, objective: nn.Module, *, weight: float, code_size: int, num_classes: int
    ) -> None:
        super().__init__()
        self.objective, self.weight = as_objective(objective), weight
        self.classifier = nn.Linear(code_size, num_classes)
        self.uses_rectified = self.objective.uses_rectified
        self.shapes_codes = self.objective.shapes_codes

    @property
    def about_terms(self) -> dict[str, Term | str]:
        return {
            **self.objective.about_terms,
            "classes": Term("a classifier of the labels", to_balance="lower classify_weight"),
            "right": Term("fraction of the labels that the classifier gets right", is_part=False),
        }

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
