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
    if images.shape != targets.shape:
        raise ValueError(
            f"images have shape {tuple(images.shape)} but targets {tuple(targets.shape)}; "
            "give one target of the same size per image"
        )
    check_choice("reduction", reduction, get_args(Reduction))
    squares_N = _squared_errors(images, targets)
    return squares_N.mean() if reduction == "mean" else squares_N.sum()


def _squared_errors(images: Tensor, targets: Tensor) -> Tensor:
    is_plain = images.dtype == targets.dtype == torch.float32 and not targets.requires_grad
    if is_plain and kernels.serve(images, targets):
        from orbitset.kernels.squared_error import SquaredErrors

        errors: Tensor = SquaredErrors.apply(images, targets)
        return errors
    return (images - targets).square().flatten(1).sum(1)


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
    return joined(
        codes,
        rectified,
        canonical,
        hinge,
        discriminate_weight=discriminate_weight,
        rectify_weight=rectify_weight,
        scale=scale,
        reduction=reduction,
    )


def joined(
    codes: Tensor,
    rectified: Tensor | None,
    canonical: Tensor,
    hinge: tuple[Tensor, Tensor] | None,
    *,
    discriminate_weight: float,
    rectify_weight: float,
    scale: Scale,
    reduction: Reduction,
) -> JointLoss:
    """`orbit_joint_loss` with the hinge and its active fraction at hand."""
    check_choice("scale", scale, get_args(Scale))
    by_pixels, by_code = 1 / canonical.shape[1:].numel(), 1 / codes.shape[1]
    if scale == "own-dimension":
        by_pixels, by_code = by_code, by_pixels
    discriminate = rectify = active = codes.new_zeros(())
    if hinge is not None:
        discriminate, active = discriminate_weight * by_pixels * hinge[0], hinge[1]
    if rectify_weight:
        if rectified is None:
            raise ValueError("the rectify term needs the rectified images; pass model(images)[1]")
        error = reconstruction_loss(rectified, canonical, reduction=reduction)
        rectify = rectify_weight * by_code * error
    return JointLoss(discriminate + rectify, discriminate, rectify, active)
