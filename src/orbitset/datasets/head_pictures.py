"""Pictures of a head: rays walk to its surface once per view, then all lights shine on what they met.

Distances are kept on a grid, so that a step of a ray costs the same however much a head is made of; only the
last steps and the normals use the shape itself.

Shapes: V views, L lights, R rays, M rays that meet something, S x S pixels; X, Y, Z steps of the grid. Places
and directions are of three numbers, the first axis of a tensor.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from orbitset.datasets.head_paint import paint
from orbitset.datasets.head_people import Head
from orbitset.datasets.head_shapes import Place, Point, face_point, scene_distance

LOW, HIGH = (-1.75, -1.85, -1.5), (1.75, 1.55, 1.5)
"""The corners of the box that is looked at; the grid holds the half with x >= 0."""
GRID_STEP = 0.036
EXTENT, CENTRE, CAMERA_AWAY = 3.1, (0.0, -0.12, 0.02), 11.0
RAYS_PER_PIXEL = 2
"""Along each side of a pixel."""
RAYS_AT_ONCE = 2**18
"""A limit on memory; the pictures do not depend on it."""


@dataclass(frozen=True)
class Light:
    """The strength of the room's light, and a lamp: its strength, degrees to the right and degrees up."""

    room: float
    lamp: float
    right: float
    up: float

    @property
    def frontal(self) -> float:
        """About the light on what faces the front."""
        cos = math.cos(math.radians(self.right)) * math.cos(math.radians(self.up))
        return self.room + 0.7 * self.lamp * max(0.0, cos)


LIGHTS = (
    Light(0.62, 0.0, 0.0, 0.0),
    *(Light(0.075, 0.78, float(right), 8.0) for right in range(-90, 91, 15)),
    *(Light(0.075, 0.78, float(right), 50.0) for right in (-70, -35, 0, 35, 70)),
    Light(0.42, 0.30, 0.0, 78.0),
)
"""A bright room; 13 flashes in a dim room, from left to right of a frontal picture; five more from above; a
bright room with a lamp on the ceiling. Lights keep their place when the head is seen from another side."""


@dataclass(frozen=True)
class _Surface:
    """The points that rays meet: where they are, which way they face, whence they are seen, their paint."""

    point_3M: Tensor
    normal_3M: Tensor
    seen_along_3M: Tensor
    tone_M: Tensor
    gloss_M: Tensor
    open_M: Tensor


class _Field:
    """The distances of a head on a grid, read by linear interpolation."""

    def __init__(self, head: Head, device: torch.device) -> None:
        x, y, z = (
            torch.linspace(low, high, round((high - low) / GRID_STEP) + 1).to(device)
            for low, high in zip((0.0, *LOW[1:]), HIGH, strict=True)
        )
        slabs = []
        at_once = 8 if device.type == "cpu" else len(z)  # in the cache, or in few launches
        for some_z in z.split(at_once):
            back, up, right = torch.meshgrid(some_z, y, x, indexing="ij")
            slabs.append(scene_distance((right, up, back), head))
        self.distance_11ZYX = torch.cat(slabs)[None, None]

    def __call__(self, point: Tensor) -> Tensor:
        x, y, z = point
        right = x.abs() * (2 / HIGH[0]) - 1
        up = (y - LOW[1]) * (2 / (HIGH[1] - LOW[1])) - 1
        back = (z - LOW[2]) * (2 / (HIGH[2] - LOW[2])) - 1
        place = torch.stack([right, up, back], dim=-1)[None, None, None]
        return F.grid_sample(
            self.distance_11ZYX, place, padding_mode="border", align_corners=True
        ).flatten()


def picture(
    head: Head,
    *,
    degrees: Sequence[float],
    shifts: Sequence[tuple[float, float]],
    lights: Sequence[int],
    size_px: int,
    device: torch.device,
) -> Tensor:
    """The light that reaches the camera, (V, L, S, S) on the device; one is about white paper in full light.

    Each view has the angle of the camera and how far its picture is shifted.
    """
    field = _Field(head, device)
    side = size_px * RAYS_PER_PIXEL
    views = list(zip(degrees, shifts, strict=True))
    at_once = max(1, RAYS_AT_ONCE // side**2)
    parts = []
    for start in range(0, len(views), at_once):
        origin, way = _rays(head, views[start : start + at_once], side, device)
        lit_LR = _look(head, field, origin, way, lights)
        parts.append(F.avg_pool2d(lit_LR.view(len(lights), -1, side, side), RAYS_PER_PIXEL))
    return torch.cat(parts, dim=1).transpose(0, 1)


def _look(
    head: Head, field: _Field, origin_3R: Tensor, way_3R: Tensor, lights: Sequence[int]
) -> Tensor:
    """What each ray sees in each light, (L, R)."""
    reach_R, met_M = _walk(field, origin_3R, way_3R)
    start_3M, way_3M = origin_3R[:, met_M], way_3R[:, met_M]
    for _ in range(2):
        reach_R[met_M] += 0.9 * scene_distance(start_3M + way_3M * reach_R[met_M], head)
    point_3M = start_3M + way_3M * reach_R[met_M]
    normal_3M = _normal(point_3M, head)
    openness_M = _openness(field, point_3M, normal_3M)
    surface = _Surface(point_3M, normal_3M, way_3M, *paint(point_3M, head), openness_M)
    frame_R = _glasses(head, origin_3R, way_3R, reach_R)
    pictures = []
    for light in (LIGHTS[number] for number in lights):
        lit_R = torch.full_like(reach_R, 0.01 + 0.05 * light.frontal)
        lit_R[met_M] = _shade(head, field, surface, light)
        pictures.append(lit_R + frame_R * (0.35 * head["frame_tone"] * light.frontal - lit_R))
    return torch.stack(pictures)


def _dot(a: Point, b: Point | Place) -> Tensor:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _rays(
    head: Head, views: Sequence[tuple[float, tuple[float, float]]], side: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Where each ray starts and which way it goes, in the frame of the head, (3, R) each."""
    offset = ((torch.arange(side, dtype=torch.float64) + 0.5) / side - 0.5) * EXTENT
    right, down = (part.flatten() for part in torch.meshgrid(offset, offset, indexing="xy"))
    origins, ways = [], []
    for degrees, (shift_x, shift_y) in views:
        sin, cos = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
        x, y = right + shift_x, shift_y - down
        way = (cos * x - sin * CAMERA_AWAY, y, -sin * x - cos * CAMERA_AWAY)
        length = _dot(way, way).sqrt()
        ways.append(torch.stack(_turn(head, (way[0] / length, way[1] / length, way[2] / length))))
        camera = [torch.full_like(x, part * CAMERA_AWAY) for part in (sin, 0.0, cos)]
        start = _turn(head, (camera[0], camera[1], camera[2]))
        origins.append(torch.stack([part + at for part, at in zip(start, CENTRE, strict=True)]))
    origin_3R, way_3R = (torch.cat(parts, dim=1).float().to(device) for parts in (origins, ways))
    return origin_3R, way_3R


def _turn(head: Head, direction: Point) -> tuple[Tensor, Tensor, Tensor]:
    """A direction of the room as the slightly turned head has it."""
    x, y, z = direction
    sin, cos = math.sin(head["yaw"]), math.cos(head["yaw"])
    x, z = cos * x + sin * z, cos * z - sin * x
    sin, cos = math.sin(head["pitch"]), math.cos(head["pitch"])
    y, z = cos * y + sin * z, cos * z - sin * y
    sin, cos = math.sin(head["roll"]), math.cos(head["roll"])
    return cos * x + sin * y, cos * y - sin * x, z


def _walk(field: _Field, origin_3R: Tensor, way_3R: Tensor) -> tuple[Tensor, Tensor]:
    """How far each ray goes (R,), and the rows (M,) of those that meet a surface within the box."""
    step_3R = way_3R.where(way_3R.abs() > 1e-6, 1e-6)
    low, high = (origin_3R.new_tensor(corner)[:, None] for corner in (LOW, HIGH))
    to_low, to_high = (low - origin_3R) / step_3R, (high - origin_3R) / step_3R
    near = torch.minimum(to_low, to_high).amax(0)
    far = torch.maximum(to_low, to_high).amin(0)
    reach = torch.minimum(near, far)
    rows = (near < far).nonzero()[:, 0]
    met = []
    for _ in range(10):
        start, way = origin_3R[:, rows] + way_3R[:, rows] * reach[rows], way_3R[:, rows]
        gone = gap = torch.zeros_like(start[0])
        for _ in range(4):  # those who are there or past the box are looked for only now and then
            gap = field(start + gone * way)
            gone = gone + 0.95 * gap
        reach[rows] += gone
        is_there = gap.abs() < 0.012
        met.append(rows[is_there])
        rows = rows[~is_there & (reach[rows] < far[rows])]
        if not len(rows):
            break
    far_R = far + 1  # behind everything
    met_M = torch.cat(met).sort().values
    far_R[met_M] = reach[met_M]
    return far_R, met_M


def _normal(point_3M: Tensor, head: Head) -> Tensor:
    """The direction in which distance grows fastest (3, M), from four differences."""
    normal = torch.zeros_like(point_3M)
    for corner in ((1, -1, -1), (-1, -1, 1), (-1, 1, -1), (1, 1, 1)):
        way = point_3M.new_tensor(corner)[:, None]
        normal += way * scene_distance(point_3M + 0.008 * way, head)
    return normal / _dot(normal, normal).sqrt().clamp(min=1e-6)


def _openness(field: _Field, point_3M: Tensor, normal_3M: Tensor) -> Tensor:
    """How much of the room each point sees, by how fast distance grows along the normal."""
    hidden = torch.zeros_like(point_3M[0])
    for step, weight in ((0.06, 2.2), (0.14, 1.3), (0.30, 0.6)):
        hidden = hidden + weight * (step - field(point_3M + step * normal_3M)).clamp(min=0)
    return (1 - hidden).clamp(0.15, 1)


def _shade(head: Head, field: _Field, surface: _Surface, light: Light) -> Tensor:
    """The light (M,) that the points send to the camera: the room's, and the lamp's where it is seen."""
    from_above_M = 0.72 + 0.28 * surface.normal_3M[1]
    lit_M = surface.tone_M * surface.open_M * from_above_M * light.room
    if light.lamp == 0:
        return lit_M
    up, right = math.radians(light.up), math.radians(light.right)
    parts = (math.cos(up) * math.sin(right), math.sin(up), math.cos(up) * math.cos(right))
    x, y, z = torch.tensor(parts, dtype=torch.float64)
    to_31 = torch.stack(_turn(head, (x, y, z)))[:, None].to(lit_M)
    facing_M = _dot(surface.normal_3M, to_31)
    rows = (facing_M > 0).nonzero()[:, 0]
    normal = surface.normal_3M[:, rows]
    half = to_31 - surface.seen_along_3M[:, rows]
    mirror = _dot(normal, half) / _dot(half, half).sqrt().clamp(min=1e-3)
    back = surface.tone_M[rows] + surface.gloss_M[rows] * mirror.clamp(min=0) ** 24
    clear = _clear(field, surface.point_3M[:, rows] + 0.03 * normal, to_31)
    lit_M[rows] += light.lamp * facing_M[rows] * back * clear
    return lit_M


def _clear(field: _Field, start: Tensor, to_31: Tensor) -> Tensor:
    """One where the way to the lamp is clear, none where it is barred; between, where it is narrow."""
    gone = torch.full_like(start[0], 0.03)
    clear = torch.ones_like(gone)
    for _ in range(10):
        gap = field(start + gone * to_31)
        clear = torch.minimum(clear, 0.5 + 7.0 * gap / gone)
        gone = gone + gap.clamp(0.05, 0.35)
    clear = clear.clamp(0, 1)
    return clear * clear * (3 - 2 * clear)


def _glasses(head: Head, origin: Point, way: Point, reach_R: Tensor) -> Tensor:
    """How much of each ray the frame of the glasses stops, (R,): two rims with a bridge, and two arms."""
    if not head["glasses"]:
        return torch.zeros_like(reach_R)
    origin, way = face_point(origin, head), face_point(way, head)
    origin = (origin[0], origin[1] - head["eye_y"], origin[2])
    x, y, _, is_seen = _cross(origin, way, (0.0, 0.0, 1.0), 0.90, reach_R)
    power = 2 + 2.5 * (1 - head["frame_round"])
    across, up = (x.abs() - 0.33).abs() / 0.225, (y + 0.02).abs() / 0.17
    ring = (across**power + up**power) ** (1 / power)
    rim = _line((ring - 1) * 0.19, 0.018)
    bridge = _line(y - 0.03, 0.015) * (x.abs() < 0.1)
    stopped = torch.maximum(rim, bridge) * is_seen
    for side in (-1.0, 1.0):
        _, y, z, is_seen = _cross(origin, way, (side, 0.0, 0.15), 0.70, reach_R)
        arm = _line(y - 0.05, 0.016) * (z < 0.90) * (z > -0.1)
        stopped = torch.maximum(stopped, arm * is_seen)
    return stopped


def _cross(
    origin: Point, way: Point, normal: Place, away: float, reach_R: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where rays cross a plane, and whether they do so at an angle and before they meet anything."""
    slope = _dot(way, normal)
    is_steep = slope.abs() > 0.05
    reach = (away - _dot(origin, normal)) / slope.where(is_steep, 1.0)
    x, y, z = (at + reach * step for at, step in zip(origin, way, strict=True))
    return x, y, z, is_steep & (reach < reach_R + 0.02)


def _line(distance: Tensor, half_width: float) -> Tensor:
    return (0.5 - (distance.abs() - half_width) / 0.02).clamp(0, 1)
