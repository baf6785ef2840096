"""What is painted on a head: how much light each point of its surface gives back.

Shapes: M points of a surface.
"""

import torch
from torch import Tensor

from orbitset.datasets import head_shapes as shapes
from orbitset.datasets.head_people import Head
from orbitset.datasets.head_shapes import Point


def paint(point: Point, head: Head) -> tuple[Tensor, Tensor]:
    """The share of light given back (M,), and the strength of the gloss (M,)."""
    face = shapes.face_point(point, head)
    tone, gloss = _skin(face, head)
    skin = shapes.skin_distance(point, head)
    if not head["bald"]:
        x, y, z = face
        strands = (
            1
            + 0.2 * (31 * x + 5 * (4 * y + z).sin()).sin() * (27 * z + 5 * (4 * y - x).sin()).sin()
        )
        is_hair = _soft(shapes.hair_distance(point, head) - skin, 0.02)
        tone = tone.lerp(head["hair_tone"] * strands, is_hair)
        gloss = gloss.lerp(torch.full_like(gloss, 0.05 + 0.2 * head["hair_tone"]), is_hair)
    is_cloth = _soft(shapes.clothes_distance(point) - skin, 0.02)
    tone = tone.lerp(torch.full_like(tone, head["clothes"]), is_cloth)
    return tone.clamp(0.015, 0.95), gloss * (1 - is_cloth)


def _skin(face: Point, head: Head) -> tuple[Tensor, Tensor]:
    x, y, z = face
    is_front = _soft(0.15 - z, 0.1)
    tone = head["skin"] * _texture(face, head)
    tone = tone * (1 - _hair_on_skin(face, head))
    tone = _lips(tone, face, head, is_front)
    brow = _brow(face, head) * is_front
    tone = tone.lerp(tone * (1 - head["brow_dark"]), brow)
    gloss = torch.full_like(tone, head["shine"])
    return _eye(tone, gloss, face, head, is_front)


def _texture(face: Point, head: Head) -> Tensor:
    """Blotches, freckles and moles of the person, as a factor."""
    x, y, z = face
    blotch = torch.zeros_like(x)
    for a, b, c, phase in head.waves:
        blotch = blotch + (a * x + b * y + c * z + phase).sin()
    texture = 1 + head["blotch"] * 0.45 * blotch
    if head["freckles"] > 0:
        spots = (53 * x + 31 * y + 2 * (37 * z).sin()).sin() * (
            47 * y - 29 * x + 2 * (41 * z).sin()
        ).sin()
        is_cheek = torch.exp(-((y + 0.2) ** 2) / 0.06) * _soft(0.4 - z, 0.2)
        texture = texture * (1 - 2.5 * head["freckles"] * is_cheek * (spots - 0.25).clamp(min=0))
    for at_x, at_y, size, depth in head.moles:
        spot = torch.exp(-((x - at_x) ** 2 + (y - at_y) ** 2) / size**2)
        texture = texture * (1 - depth * spot * _soft(0.25 - z, 0.1))
    return texture


def _hair_on_skin(face: Point, head: Head) -> Tensor:
    """How much beard, moustache and shaved scalp darken the skin."""
    x, y, z = face
    dark = torch.zeros_like(x)
    if head["beard"] > 0:
        line = -0.50 - 0.5 * (z - 0.35).clamp(min=0) + 0.25 * (0.3 - z).clamp(0, 0.4)
        is_beard = _soft(y - line, 0.2) * _soft(-0.12 - z, 0.1) * _soft(-1.12 - y, 0.1)
        dark = head["beard"] * is_beard
    if head["moustache"] > 0:
        middle = (head["nose_y"] - 0.1 + head["mouth_y"]) / 2 + 0.03 - 0.5 * x * x
        is_moustache = _soft((y - middle).abs() - 0.06, 0.04) * _soft(x.abs() - 0.24, 0.08)
        dark = torch.maximum(dark, head["moustache"] * is_moustache * _soft(0.5 - z, 0.1))
    if head["bald"]:
        is_scalp = _soft(torch.minimum(head["hairline"] - y, z - 0.1), 0.2) * _soft(-0.5 - y, 0.1)
        dark = torch.maximum(dark, 0.22 * is_scalp)
    return dark


def _brow(face: Point, head: Head) -> Tensor:
    x, y, _ = face
    along = (x.abs() - head["brow_x"]) / head["brow_long"]
    middle = head["brow_y"] + head["brow_raise"] * 1.3 + head["brow_tilt"] * along
    middle = middle + head["brow_arch"] * (0.35 - (along - 0.25) ** 2)
    thick = max(0.014, head["brow_thick"]) * (1.0 - 0.4 * along).clamp(min=0.3)
    return _soft((y - middle).abs() - thick, 0.03) * _soft(along.abs() - 1, 0.25)


def _eye(
    tone: Tensor, gloss: Tensor, face: Point, head: Head, is_front: Tensor
) -> tuple[Tensor, Tensor]:
    """White, iris and pupil between the lids, the dark line of the lashes, a shade below."""
    x, y, _ = face
    size = head["eye_size"]
    across = (x.abs() - head["eye_x"]) / (0.155 * size)
    up = y - head["eye_y"] - head["eye_tilt"] * across
    arch = (1 - across * across).clamp(min=0)
    open_ = head["eye_open"] * size * (1 - 0.15 * max(0.0, head["smile"]))
    over = up - 0.070 * open_ * arch
    under = -0.048 * open_ * arch - up
    below = torch.exp(-((up + 0.11) ** 2) / 0.0025 - across**2)
    tone = tone * (1 - head["under_eye"] * below)
    within = _soft(torch.maximum(over, under), 0.016) * _soft(across.abs() - 1, 0.1) * is_front
    lash = _soft((over - 0.008).abs() - 0.013, 0.016) * _soft(across.abs() - 1.08, 0.1) * is_front
    crease = _soft((over - 0.05).abs() - 0.004, 0.025) * _soft(across.abs() - 0.95, 0.2) * is_front
    radius = ((x.abs() - head["eye_x"]) ** 2 + (up - 0.006) ** 2).sqrt()
    ball = torch.full_like(tone, 0.52).lerp(
        torch.full_like(tone, max(0.05, head["iris"])), _soft(radius - 0.07, 0.014)
    )
    ball = ball.lerp(torch.full_like(tone, 0.02), _soft(radius - 0.034, 0.012))
    tone = tone * (1 - 0.25 * crease) * (1 - 0.7 * lash)
    return tone.lerp(ball, within), gloss.lerp(torch.full_like(gloss, 0.15), within)


def _lips(tone: Tensor, face: Point, head: Head, is_front: Tensor) -> Tensor:
    """Two lips, the line between them or the dark of an open mouth with the upper teeth."""
    x, y, _ = face
    wide, lip, open_ = shapes.mouth_half_width(head), head["lip"], head["mouth_open"]
    across = (x / wide).abs()
    arch = (1 - across * across).clamp(min=0)
    up = y - head["mouth_y"] - shapes.mouth_bend(x, head)
    bow = 1 - 0.25 * torch.exp(-((x / 0.05) ** 2))
    top = (0.072 * lip * bow + 0.4 * open_) * arch.sqrt()
    bottom = -(0.088 * lip + 0.8 * open_) * arch.sqrt()
    is_lip = _soft(torch.maximum(up - top, bottom - up), 0.03) * _soft(across - 1, 0.1) * is_front
    tone = tone.lerp(tone * head["lip_tone"], is_lip)
    gap_top, gap_bottom = 0.4 * open_ * arch + 0.008, -0.8 * open_ * arch - 0.008
    is_gap = _soft(torch.maximum(up - gap_top, gap_bottom - up), 0.02) * _soft(across - 1, 0.1)
    inside = torch.full_like(tone, 0.06)
    if open_ > 0 and head["smile"] > 0.3:
        inside = inside.lerp(torch.full_like(tone, 0.6), _soft(gap_top - 0.045 - up, 0.02))
    return tone.lerp(inside, 0.85 * is_gap * is_front)


def _soft(value: Tensor, width: float) -> Tensor:
    """One where the value is below zero, none where it is above, and a ramp of the given width between."""
    return (0.5 - value / width).clamp(0, 1)
