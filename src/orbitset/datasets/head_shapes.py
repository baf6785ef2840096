"""The shape of a head as signed distances: smooth unions of ellipsoids and tapered rods, minus hollows.

A distance is below zero inside. It is a good estimate near the surface and never much too large, so that rays
can walk by it. Left and right are alike: all is said for x >= 0.

Shapes: three tensors x, y, z of any one shape make a `Point`.
"""

import math

import torch
from torch import Tensor

from orbitset.datasets.head_people import Head

Point = tuple[Tensor, Tensor, Tensor] | Tensor
"""x, y and z"""
Place = tuple[float, float, float]


def skin_distance(point: Point, head: Head) -> Tensor:
    """Head, face, ears and neck."""
    p = _fold(point, head)
    distance = _skull(p, head)
    for with_part in (_eyes, _nose, _mouth):
        distance = with_part(distance, p, head)
    neck = _rod(p, (0.0, -0.5, -0.22), (0.0, -2.2, -0.38), head["neck"], head["neck"] + 0.05)
    distance = _join(distance, neck, 0.14)
    return _join(distance, _ear(p, head), 0.05) * _shrink(head)


def hair_distance(point: Point, head: Head) -> Tensor:
    """A layer on the skull that thins out at the hairline, and for long hair a fall behind the face."""
    x, y, z = _fold(point, head)
    volume, long = head["hair_volume"], head["hair_long"]
    curls = (13 * x + 3 * (5 * y + 2 * z).sin()).sin() * (12 * z + 3 * (4 * x - 3 * y).sin()).sin()
    line = head["hairline"] + head["recede"] * (0.25 - 2 * (x - 0.3).abs()).clamp(min=0)
    above = y - (line - head["fringe"] - 0.45 * x * x) + 0.018 * (29 * x + 2 * (17 * z).sin()).sin()
    behind = 0.02 + 0.2 * ((y + 0.2) / 0.25).clamp(-1, 1) - z
    within = -_meet(-_meet(above, behind, 0.08), -0.52 - y, 0.1)
    depth = (within / 0.2).clamp(-1, 1)
    hair = _cranium((x, y, z), head) - depth * (volume + head["hair_curl"] * curls)
    if long > 0:
        radii = (0.69 + volume, 1.0 + 0.5 * long, 0.64 + volume)
        fall = _ellipsoid((x, y, z), (0.0, -0.3, -0.3), radii) - head["hair_curl"] * curls
        front = z - 0.16 - 0.25 * (y - 0.1).clamp(0, 0.5)
        fall = _meet(_meet(fall, front, 0.12), -0.5 - long - y, 0.12)
        hair = _join(hair, fall, 0.12)
    return hair * _shrink(head)


def clothes_distance(point: Point) -> Tensor:
    """Shoulders and a collar."""
    x, y, z = point
    p = (x.abs(), y, z)
    shoulders = _ellipsoid(p, (0.0, -2.25, -0.32), (1.75, 0.62, 0.62))
    collar = _rod(p, (0.0, -1.45, -0.3), (0.0, -2.2, -0.3), 0.56, 0.8)
    return _join(shoulders, collar, 0.25)


def scene_distance(point: Point, head: Head) -> Tensor:
    """The nearest of all that is there."""
    nearest = torch.minimum(skin_distance(point, head), clothes_distance(point))
    return nearest if head["bald"] else torch.minimum(nearest, hair_distance(point, head))


def face_point(point: Point, head: Head) -> Point:
    """The point in the proportions of a mean head, not folded; what is painted on the skin is said there."""
    x, y, z = point
    return x / head["width"], y / head["height"], z / head["depth"]


def _fold(point: Point, head: Head) -> Point:
    x, y, z = face_point(point, head)
    return x.abs(), y, z


def _shrink(head: Head) -> float:
    return min(head["width"], head["height"], head["depth"])


def _cranium(p: Point, head: Head) -> Tensor:
    ball = _ellipsoid(p, (0.0, 0.28, -0.08), (head["cranium_width"], 0.86, 0.93))
    forehead_z = 0.24 + head["forehead_out"]
    return _join(ball, _ellipsoid(p, (0.0, 0.38, forehead_z), (0.60, 0.50, 0.58)), 0.2)


def _skull(p: Point, head: Head) -> Tensor:
    face = _ellipsoid(p, (0.0, -0.28, head["face_out"]), (head["face_width"], 0.80, 0.60))
    drop = 0.7 * head["mouth_open"]
    chin_y = head["chin_y"] - drop
    jaw_end = (head["chin_width"] * 0.8, chin_y + 0.03, head["chin_out"] - 0.16)
    jaw = _rod(p, (head["jaw_width"], head["jaw_y"], 0.08), jaw_end, head["jaw_thick"], 0.13)
    chin_radii = (head["chin_width"], head["chin_size"], head["chin_size"])
    chin = _ellipsoid(p, (0.0, chin_y, head["chin_out"]), chin_radii)
    cheek_size = head["cheek_size"] * (1 + 0.12 * max(0.0, head["smile"]))
    cheek_y = head["cheek_y"] + 0.05 * max(0.0, head["smile"])
    cheek = _ellipsoid(p, (head["cheek_x"], cheek_y, 0.54), (cheek_size, 0.13, cheek_size))
    plump = _ellipsoid(p, (0.30, -0.62, 0.42), (head["plump"] + 0.06, 0.24, head["plump"] + 0.08))
    arch = _rod(p, (0.40, cheek_y, 0.46), (0.63, -0.14, 0.0), 0.10, 0.11)
    side = _ellipsoid(p, (head["face_width"] - 0.10, -0.36, 0.06), (0.22, 0.42, 0.46))
    distance = _cranium(p, head)
    for part in (face, side, jaw, plump):
        distance = _join(distance, part, 0.22)
    for part in (chin, cheek, arch):
        distance = _join(distance, part, 0.16)
    ridge_y = head["ridge_y"] + head["brow_raise"]
    ridge = _rod(p, (0.08, ridge_y - 0.02, 0.78), (0.45, ridge_y - 0.03, 0.57), head["ridge"], 0.06)
    return _join(distance, ridge, 0.15)


def _eyes(distance: Tensor, p: Point, head: Head) -> Tensor:
    x, y, size = head["eye_x"], head["eye_y"], head["eye_size"]
    depth = -head["eye_deep"]
    socket = _ellipsoid(p, (x, y + 0.02, 0.93 + depth), (0.21, 0.125, 0.20))
    distance = _meet(distance, -socket, 0.12)
    ball = _ellipsoid(p, (x, y, 0.635 + depth), (0.165 * size, 0.125 * size, 0.145))
    return _join(distance, ball, 0.03)


def _nose(distance: Tensor, p: Point, head: Head) -> Tensor:
    tip_y, out, tip = head["nose_y"], head["nose_out"], head["nose_tip"]
    nasion = (0.0, 0.06, head["nasion_out"] - 0.06)
    middle = (0.0, (tip_y + 0.06) / 2, (nasion[2] + out - tip) / 2 + 0.01 + head["nose_hump"])
    end = (0.0, tip_y, out - tip)
    distance = _join(distance, _rod(p, nasion, middle, 0.062, 0.07), 0.09)
    distance = _join(distance, _rod(p, middle, end, 0.068, tip), 0.06)
    wing_x = head["nose_wing"]
    wing = _ellipsoid(p, (wing_x, tip_y - 0.03, out - 0.23), (0.07, 0.07, 0.11))
    distance = _join(distance, wing, 0.06)
    nostril = _ellipsoid(p, (0.55 * wing_x, tip_y - 0.105, out - 0.17), (0.028, 0.035, 0.045))
    return _meet(distance, -nostril, 0.03)


def _mouth(distance: Tensor, p: Point, head: Head) -> Tensor:
    x, y, z = p
    open_, lip, wide = head["mouth_open"], head["lip"], mouth_half_width(head)
    bent = (x, y - mouth_bend(x, head), z + 0.9 * x * x)
    place = head["mouth_y"]
    out = 0.80 + head["lip_out"] + 0.3 * (head["chin_out"] - 0.7)
    muzzle = _ellipsoid(p, (0.0, place, out - 0.20), (0.32, 0.27, 0.27))
    distance = _join(distance, muzzle, 0.12)
    upper = (0.0, place + 0.04 * lip + open_ * 0.4, out)
    lower = (0.0, place - 0.05 * lip - open_ * 0.8, out - 0.01)
    thick = 0.085 + 0.025 * lip
    distance = _join(distance, _ellipsoid(bent, upper, (wide, 0.05 * lip, thick)), 0.05)
    distance = _join(distance, _ellipsoid(bent, lower, (0.85 * wide, 0.06 * lip, thick)), 0.05)
    hollow = (0.0, place - 0.2 * open_, out + 0.14)
    radii = (0.9 * wide, 0.012 + 0.75 * open_, 0.08 + 1.2 * open_)
    return _meet(distance, -_ellipsoid(bent, hollow, radii), 0.03)


def mouth_half_width(head: Head) -> float:
    return head["mouth_width"] * (1 + 0.16 * max(0.0, head["smile"]))


def mouth_bend(x: Tensor, head: Head) -> Tensor:
    """How much higher the mouth is at x than in the middle."""
    return (1.0 * head["smile"] - 0.15) * x * x


def _ear(p: Point, head: Head) -> Tensor:
    """A tilted shell whose back stands out, with a bowl in it."""
    x, y, z = p
    sin, cos = math.sin(head["ear_angle"]), math.cos(head["ear_angle"])
    x, y, z = x - head["cranium_width"] - 0.01, y - head["ear_y"], z + 0.08
    y, z = 0.97 * y - 0.22 * z, 0.97 * z + 0.22 * y
    local = (x * cos + z * sin, y, z * cos - x * sin)
    size = head["ear_size"]
    shell = _ellipsoid(local, (0.0, 0.0, 0.0), (0.055, 0.31 * size, 0.19 * size))
    bowl = _ellipsoid(local, (0.06, 0.0, 0.03), (0.05, 0.18 * size, 0.09 * size))
    return _meet(shell, -bowl, 0.03)


def _ellipsoid(p: Point, centre: Place, radii: Place) -> Tensor:
    x, y, z = ((axis - at) / radius for axis, at, radius in zip(p, centre, radii, strict=True))
    squares = x * x, y * y, z * z
    unit = (squares[0] + squares[1] + squares[2]).sqrt()
    a, b, c = (1 / (radius * radius) for radius in radii)
    slope = (squares[0] * a + squares[1] * b + squares[2] * c).sqrt()
    distance: Tensor = unit * (unit - 1) / slope.clamp(min=1e-3)
    return distance


def _rod(p: Point, start: Place, end: Place, start_radius: float, end_radius: float) -> Tensor:
    """A rod with round ends, whose radius grows from start to end."""
    step = [to - at for at, to in zip(start, end, strict=True)]
    square = sum(length * length for length in step)
    x, y, z = (axis - at for axis, at in zip(p, start, strict=True))
    along = ((x * step[0] + y * step[1] + z * step[2]) / square).clamp(0, 1)
    x, y, z = x - along * step[0], y - along * step[1], z - along * step[2]
    radius = along * (end_radius - start_radius) + start_radius
    distance: Tensor = (x * x + y * y + z * z).sqrt() - radius
    return distance


def _join(a: Tensor, b: Tensor, blend: float) -> Tensor:
    """The union, with a fillet of the given width."""
    near = (blend - (a - b).abs()).clamp(min=0)
    return torch.minimum(a, b) - near * near * (0.25 / blend)


def _meet(a: Tensor, b: Tensor, blend: float) -> Tensor:
    """What is in both, with a rounded edge."""
    near = (blend - (a - b).abs()).clamp(min=0)
    return torch.maximum(a, b) + near * near * (0.25 / blend)
