"""The orbit joint loss, the paper's equation, and its reconstruction term alone.

Shapes: N codes of k entries, N images of d pixel values.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from orbitset import kernels
from orbitset.errors import check_choice
from orbitset.losses.triplet import Reduction, triplet_terms

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
    is_plain = images.dtype == targets.dtype == torch.float32 and not targets.requires_grad
    if is_plain and len(images) and kernels.serve(images, targets):
        from orbitset.kernels.squared_error import SquaredError

        by_images = 1 / len(images) if reduction == "mean" else 1
        error: Tensor = SquaredError.apply(images, targets, weight * by_images)
        return error
    squares_N = (images - targets).square().flatten(1).sum(1)
    return weight * (squares_N.mean() if reduction == "mean" else squares_N.sum())


def orbit_joint_loss(
    codes: Tensor,
    rectified: Tensor | None,
    canonical: Tensor,
    triplets: tuple[Tensor, Tensor, Tensor] | None,
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
    the code size k; scale="own-dimension" swaps the two. With rectify_weight 0 it is the orbit triplet
    loss, with discriminate_weight 0 the orbit encoder; what a term of weight 0 needs may be None.

    >>> import torch
    >>> codes, images = torch.randn(4, 8), torch.rand(4, 1, 6, 6)
    >>> triplets = (torch.tensor([0]), torch.tensor([1]), torch.tensor([2]))
    >>> loss = orbit_joint_loss(codes, images, images, triplets, margin=0.2)
    >>> bool(loss.total == loss.discriminate), loss.rectify.item()
    (True, 0.0)
    """
    hinge = None
    if discriminate_weight:
        if triplets is None:
            raise ValueError("the discriminate term needs triplets; mine them from the codes")
        hinge = triplet_terms(codes, triplets, margin=margin, valid=valid, reduction=reduction)
    by_discriminate, by_rectify = factors(codes, canonical, scale)
    return joined(
        None if hinge is None else (discriminate_weight * by_discriminate * hinge[0], hinge[1]),
        rectified,
        canonical,
        rectify_weight=rectify_weight * by_rectify,
        reduction=reduction,
    )


def factors(codes: Tensor, canonical: Tensor, scale: Scale) -> tuple[float, float]:
    """What the discriminate and the rectify term are multiplied with, beside their weights."""
    check_choice("scale", scale, get_args(Scale))
    by_pixels, by_code = 1 / canonical.shape[1:].numel(), 1 / codes.shape[1]
    return (by_pixels, by_code) if scale == "as-printed" else (by_code, by_pixels)


def joined(
    discriminate: tuple[Tensor, Tensor] | None,
    rectified: Tensor | None,
    canonical: Tensor,
    *,
    rectify_weight: float,
    reduction: Reduction,
) -> JointLoss:
    """`orbit_joint_loss` with the weighted discriminate term and its active fraction at hand."""
    if not rectify_weight:
        term, active = discriminate or (canonical.new_zeros(()), canonical.new_zeros(()))
        return JointLoss(term, term, torch.zeros_like(term), active)
    if rectified is None:
        raise ValueError("the rectify term needs the rectified images; pass model(images)[1]")
    rectify = _weighted_error(rectified, canonical, rectify_weight, reduction)
    if discriminate is None:
        return JointLoss(rectify, *(torch.zeros_like(rectify), rectify, torch.zeros_like(rectify)))
    return JointLoss(discriminate[0] + rectify, discriminate[0], rectify, discriminate[1])
