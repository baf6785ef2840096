"""The orbit joint loss, the paper's equation, and its reconstruction term alone.

Shapes: N codes of k entries, N images of d pixel values.
"""

from typing import Literal, NamedTuple, get_args

from torch import Tensor

from orbitset.dispatch import accelerated
from orbitset.errors import check_choice
from orbitset.losses.triplet import Mining, Reduction, mined_terms, triplet_terms

Scale = Literal["as-printed", "own-dimension"]


class JointLoss(NamedTuple):
    """The loss, the two weighted terms it is the sum of, and the fraction of triplets inside the margin."""

    total: Tensor
    discriminate: Tensor
    rectify: Tensor
    active: Tensor


def reconstruction_loss(
    images: Tensor, targets: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Squared norm of the difference of each image to its target; then the mean or sum over images.

    With canonical images as targets this is the rectify term [paper, eq. orbit_loss, L_e]; with the
    inputs themselves, the autoencoder.

    >>> import torch
    >>> reconstruction_loss(torch.ones(5, 1, 2, 2), torch.zeros(5, 1, 2, 2)).item()
    4.0
    """
    return _weighted_error(images, targets, 1.0, reduction)


def _weighted_error(images: Tensor, targets: Tensor, weight: float, reduction: Reduction) -> Tensor:
    if images.shape != targets.shape:
        raise ValueError(
            f"images have shape {tuple(images.shape)} but targets {tuple(targets.shape)}; "
            "give one target of the same size per image"
        )
    check_choice("reduction", reduction, get_args(Reduction))
    return _squared_error(images, targets, weight, reduction)


@accelerated("squared_error")
def _squared_error(images: Tensor, targets: Tensor, weight: float, reduction: Reduction) -> Tensor:
    squares_N = (images - targets).square().flatten(1).sum(1)
    return weight * (squares_N.mean() if reduction == "mean" else squares_N.sum())


def orbit_joint_loss(
    codes: Tensor,
    rectified: Tensor | None,
    canonical: Tensor,
    triplets: tuple[Tensor, Tensor, Tensor] | Mining | None,
    *,
    margin: float,
    valid: Tensor | None = None,
    discriminate_weight: float = 1.0,
    rectify_weight: float = 1.0,
    scale: Scale = "as-printed",
    reduction: Reduction = "mean",
) -> JointLoss:
    """Mean or sum over x_i of lambda1/d L_t + lambda2/k L_e.   [paper, eq. orbit_loss]

    The paper divides the term in code space by the number of pixels d and the term in pixel space by
    the code size k; scale="own-dimension" swaps the two. Triplets are rows, or a `Mining` that says how to
    choose them. With rectify_weight 0 it is the orbit triplet loss, with discriminate_weight 0 the orbit
    encoder; what a term of weight 0 needs may be None.

    >>> import torch
    >>> codes, images = torch.randn(4, 8), torch.rand(4, 1, 6, 6)
    >>> triplets = (torch.tensor([0]), torch.tensor([1]), torch.tensor([2]))
    >>> loss = orbit_joint_loss(codes, images, images, triplets, margin=0.2)
    >>> bool(loss.total == loss.discriminate), loss.rectify.item()
    (True, 0.0)
    """
    check_choice("scale", scale, get_args(Scale))
    d, k = canonical.shape[1:].numel(), codes.shape[1]
    over_t, over_e = (d, k) if scale == "as-printed" else (k, d)
    discriminate = active = rectify = canonical.new_zeros(())
    if discriminate_weight:
        if triplets is None:
            raise ValueError("the discriminate term needs triplets; mine them from the codes")
        if isinstance(triplets, Mining):
            hinge, active = mined_terms(codes, triplets, margin=margin, reduction=reduction)
        else:
            hinge, active = triplet_terms(
                codes, triplets, margin=margin, valid=valid, reduction=reduction
            )
        discriminate = discriminate_weight * (1 / over_t) * hinge
    if rectify_weight:
        if rectified is None:
            raise ValueError("the rectify term needs the rectified images; pass model(images)[1]")
        rectify = _weighted_error(rectified, canonical, rectify_weight * (1 / over_e), reduction)
    return JointLoss(discriminate + rectify, discriminate, rectify, active)
