"""Contrastive losses on the cosines of codes, as pure functions.

Codes of any length are normalised first, and everything is computed in float32 at least. The orbit of every
code is a number of at least 0.

Shapes: N codes of D entries, M codes to compare them with, O orbits.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from orbitset.precision import at_least_float32, products_in


def unit_codes(codes_ND: Tensor) -> Tensor:
    """Codes with length 1, in float32 or float64."""
    return F.normalize(at_least_float32(codes_ND), dim=1)


def info_nce_loss(
    codes: Tensor,
    orbits: Tensor,
    *,
    temperature: Tensor | float,
    memory: Tensor | None = None,
    memory_orbits: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of finding an image's orbit among all other images.   [Khosla et al. 2020, L_out]

    For each i with positives P(i): -mean over p in P(i) of log(exp(s_ip) / sum over a != i of exp(s_ia)),
    where s is the cosine over the temperature; then the mean over these i. A code whose orbit has no other is
    no anchor; a batch of such codes gives 0 that still carries a gradient. A memory gives further codes to
    compare with; those of orbit -1 do not count.

    >>> codes = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    >>> round(info_nce_loss(codes, torch.tensor([0, 0, 1]), temperature=1.0).item(), 4)
    0.3133
    """
    anchors_ND = unit_codes(codes)
    others_MD, orbit_M = anchors_ND, orbits
    if memory is not None and memory_orbits is not None:
        others_MD = torch.cat([anchors_ND, memory.to(anchors_ND.dtype)])
        orbit_M = torch.cat([orbits, memory_orbits])
    is_left_out_NM = _is_self(orbits, len(orbit_M)) | (orbit_M < 0)
    is_positive_NM = (orbits[:, None] == orbit_M) & ~is_left_out_NM
    count_N = is_positive_NM.sum(1)
    logits_NM = _without(_cosines(anchors_ND, others_MD) / temperature, is_left_out_NM)
    errors_N = torch.where(is_positive_NM, -logits_NM.log_softmax(1), 0).sum(1)
    loss = (errors_N / count_N.clamp(min=1)).sum() / (count_N > 0).sum().clamp(min=1)
    return loss + _nan_if_any(codes)


def sigmoid_loss(
    codes: Tensor, orbits: Tensor, *, temperature: Tensor | float, bias: Tensor | float
) -> Tensor:
    """Every pair of images by itself: of one orbit or not?   [Zhai et al. 2023, eq. 1]

    The mean over i of the sum over j != i of -log sigmoid(z_ij (s_ij + bias)), where s is the cosine over the
    temperature and z is 1 for images of one orbit and -1 for others.

    >>> codes = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    >>> loss = sigmoid_loss(codes, torch.tensor([0, 0, 1]), temperature=1.0, bias=0.0)
    >>> round(loss.item(), 4)
    1.133
    """
    unit_ND = unit_codes(codes)
    logits_NN = _cosines(unit_ND, unit_ND) / temperature + bias
    signed_NN = torch.where(orbits[:, None] == orbits, logits_NN, -logits_NN)
    errors_NN = -F.logsigmoid(signed_NN)
    is_self_NN = _is_self(orbits, len(orbits))
    loss = torch.where(is_self_NN, 0, errors_NN).sum() / max(1, len(orbits))
    return loss + _nan_if_any(codes)


def prototype_loss(
    codes: Tensor,
    orbits: Tensor,
    prototypes: Tensor,
    is_known: Tensor,
    *,
    temperature: Tensor | float,
) -> Tensor:
    """Cross-entropy of finding an image's orbit among prototypes.   [Snell et al. 2017; Li et al. 2021]

    The mean over i of -log(exp(s_io) / sum over known orbits q of exp(s_iq)), where o is the orbit of i,
    which must be known, and s is the cosine of a code and a prototype over the temperature.

    >>> codes, prototypes = torch.tensor([[3.0, 0.0]]), torch.eye(2)
    >>> known = torch.tensor([True, True])
    >>> round(prototype_loss(codes, torch.tensor([0]), prototypes, known, temperature=1.0).item(), 4)
    0.3133
    """
    unit_ND = unit_codes(codes)
    logits_NO = _cosines(unit_ND, prototypes.to(unit_ND.dtype)) / temperature
    return F.cross_entropy(_without(logits_NO, ~is_known), orbits)


def multi_similarity_loss(
    codes: Tensor,
    orbits: Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float = 0.1,
) -> Tensor:
    """Pairs of images that are hard to tell: a soft pull between members of an orbit, and a sharp push on the
    nearest others.   [Wang et al. 2019, eqs. 11 to 15]

    For each i, with cosines c: log(1 + sum over its hard p of exp(-alpha (c_ip - base))) / alpha, plus
    log(1 + sum over its hard q of exp(beta (c_iq - base))) / beta; then the mean over all i. A p of the same
    orbit is hard if its cosine is less than `epsilon` above that of the nearest q of another orbit. A q is
    hard if its cosine is less than `epsilon` below that of the farthest p.

    >>> codes = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    >>> multi_similarity_loss(codes, torch.tensor([0, 0, 1])).item()
    0.0
    """
    if len(codes) == 0:
        return codes.sum()
    unit_ND = unit_codes(codes)
    cosines_NN = _cosines(unit_ND, unit_ND)
    is_same_NN = orbits[:, None] == orbits
    is_member_NN = is_same_NN & ~_is_self(orbits, len(orbits))
    nearest_N1 = cosines_NN.masked_fill(is_same_NN, -torch.inf).amax(1, keepdim=True)
    farthest_N1 = cosines_NN.masked_fill(~is_member_NN, torch.inf).amin(1, keepdim=True)
    is_pulled_NN = is_member_NN & (cosines_NN - epsilon < nearest_N1)
    is_pushed_NN = ~is_same_NN & (cosines_NN + epsilon > farthest_N1)
    pull_N = _soft_sum(-alpha * (cosines_NN - base), is_pulled_NN) / alpha
    push_N = _soft_sum(beta * (cosines_NN - base), is_pushed_NN) / beta
    return (pull_N + push_N).mean() + _nan_if_any(codes)


def _soft_sum(logits_NN: Tensor, is_counted_NN: Tensor) -> Tensor:
    """log(1 + the sum of exp over what is counted), (N,)."""
    return F.softplus(_without(logits_NN, ~is_counted_NN).logsumexp(1))


def orbit_means(unit_ND: Tensor, orbit_N: Tensor) -> Tensor:
    """For each code the mean direction of its orbit's codes: (N, D), with equal rows for one orbit.

    >>> orbit_means(torch.eye(2), torch.tensor([4, 4])).tolist()
    [[0.7071..., 0.7071...], [0.7071..., 0.7071...]]
    """
    same_NN = orbit_N[:, None] == orbit_N
    with products_in("ieee", unit_ND.device):
        means_ND = F.normalize(same_NN.to(unit_ND.dtype) @ unit_ND, dim=1)
    # rounding may differ between rows: all of an orbit take its first
    return means_ND[same_NN.int().argmax(1)]


def _cosines(unit_ND: Tensor, others_MD: Tensor) -> Tensor:
    with products_in("ieee", unit_ND.device):
        return unit_ND @ others_MD.T


def _is_self(orbit_N: Tensor, num: int) -> Tensor:
    rows = torch.arange(num, device=orbit_N.device)
    return rows[: len(orbit_N), None] == rows


def _without(logits_NM: Tensor, is_left_out: Tensor) -> Tensor:
    """Logits that have no part in a softmax. They stay finite: a row may have no others."""
    return logits_NM.masked_fill(is_left_out, torch.finfo(logits_NM.dtype).min)


def _nan_if_any(codes_ND: Tensor) -> Tensor:
    """0, or NaN if a code is not finite: as an image without positives it would be passed over."""
    return 0 * at_least_float32(codes_ND.detach()).sum()
