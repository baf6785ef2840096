"""Who the rendered heads are: what is drawn for a person, and what for each of their sessions.

A trait is a plain number. Lengths are in units of about 10 cm; x runs to the right of a frontal picture, y up
and z out of the face; the point between the eyes of a mean head is near (0, 0, 0.9). Traits are made of
uniform numbers, which every machine draws alike.
"""

import math
from dataclasses import dataclass

import torch

from orbitset.seeds import stream

VERSION = 1
"""Part of every stream: another version is other people."""

Traits = dict[str, float]

PERSON_TRAITS: dict[str, tuple[float, float]] = {
    "width": (1.0, 0.05),
    "height": (1.0, 0.035),
    "depth": (1.0, 0.04),
    "cranium_width": (0.745, 0.025),
    "forehead_out": (0.0, 0.035),
    "face_width": (0.57, 0.03),
    "face_out": (0.26, 0.02),
    "jaw_width": (0.45, 0.05),
    "jaw_y": (-0.66, 0.06),
    "jaw_thick": (0.17, 0.025),
    "chin_y": (-1.0, 0.05),
    "chin_out": (0.70, 0.045),
    "chin_size": (0.16, 0.03),
    "chin_width": (0.23, 0.04),
    "cheek_x": (0.36, 0.025),
    "cheek_y": (-0.22, 0.04),
    "cheek_size": (0.15, 0.02),
    "plump": (0.15, 0.05),
    "ridge": (0.085, 0.022),
    "ridge_y": (0.20, 0.025),
    "eye_x": (0.315, 0.028),
    "eye_y": (0.0, 0.02),
    "eye_size": (1.0, 0.11),
    "eye_deep": (0.0, 0.02),
    "eye_tilt": (0.02, 0.03),
    "nasion_out": (0.86, 0.025),
    "nose_hump": (0.0, 0.03),
    "nose_y": (-0.36, 0.05),
    "nose_out": (1.09, 0.045),
    "nose_tip": (0.095, 0.016),
    "nose_wing": (0.115, 0.022),
    "mouth_y": (-0.66, 0.035),
    "mouth_width": (0.25, 0.03),
    "lip": (1.0, 0.22),
    "lip_out": (0.0, 0.02),
    "ear_size": (1.0, 0.13),
    "ear_angle": (0.45, 0.14),
    "ear_y": (-0.10, 0.04),
    "neck": (0.46, 0.05),
    "skin": (0.50, 0.12),
    "shine": (0.10, 0.04),
    "lip_tone": (0.68, 0.11),
    "brow_thick": (0.036, 0.011),
    "brow_dark": (0.62, 0.16),
    "brow_y": (0.235, 0.022),
    "brow_arch": (0.05, 0.03),
    "brow_tilt": (-0.012, 0.028),
    "brow_long": (0.19, 0.022),
    "brow_x": (0.31, 0.025),
    "iris": (0.15, 0.06),
    "under_eye": (0.12, 0.08),
    "blotch": (0.10, 0.03),
    "freckles": (0.02, 0.10),
    "hair_tone": (0.12, 0.08),
    "hair_volume": (0.10, 0.035),
    "hairline": (0.72, 0.06),
    "hair_curl": (0.022, 0.008),
}
"""The mean and the standard deviation of each trait; no draw is further than three of them from the mean."""

SESSION_TRAITS: dict[str, tuple[float, float]] = {
    "smile": (0.35, 0.4),
    "brow_raise": (0.01, 0.025),
    "eye_open": (1.0, 0.1),
    "yaw": (0.0, 0.03),
    "pitch": (0.0, 0.03),
    "roll": (0.0, 0.02),
    "shift_x": (0.0, 0.02),
    "shift_y": (0.0, 0.025),
    "hair_change": (0.0, 0.02),
    "clothes": (0.25, 0.11),
    "exposure": (1.0, 0.09),
    "gamma": (2.0, 0.09),
    "noise": (1.6, 0.25),
}
"""Likewise; angles are in radians, noise in grey levels."""


@dataclass(frozen=True)
class Head:
    """A person in a session: traits by name, moles (x, y, size, depth), waves of texture (x, y, z, phase)"""

    traits: Traits
    moles: tuple[tuple[float, ...], ...]
    waves: tuple[tuple[float, ...], ...]

    def __getitem__(self, name: str) -> float:
        return self.traits[name]


def draw_head(*, seed: int, person: int, session: int) -> Head:
    """Person and session are counted from zero; neither depends on how many there are."""
    generator = stream("heads", VERSION, seed, "person", person)
    traits = _bells(PERSON_TRAITS, generator)
    chance = torch.rand(12, generator=generator).tolist()
    traits["skin"] = max(0.20, min(0.80, traits["skin"]))
    traits["hair_tone"] = max(0.03, traits["hair_tone"] + (0.22 if chance[0] < 0.25 else 0.0))
    traits["bald"] = float(chance[1] < 0.07)
    traits["hair_long"] = 0.3 + 0.7 * chance[2] / 0.35 if chance[2] < 0.35 else 0.0
    may_have_beard = traits["hair_long"] == 0 and chance[3] < 0.4
    traits["beard"] = 0.15 + 0.45 * chance[4] if may_have_beard else 0.0
    traits["moustache"] = 0.2 + 0.4 * chance[6] if may_have_beard and chance[5] < 0.6 else 0.0
    traits["fringe"] = 0.28 * float(chance[7] < 0.18)
    traits["recede"] = 0.22 * float(chance[8] < 0.15)
    traits["wears_glasses"] = float(chance[9] < 0.35)
    traits["frame_round"] = chance[10]
    traits["frame_tone"] = 0.04 + 0.25 * chance[11] ** 2
    moles = torch.rand(7, 4, generator=generator).tolist()
    waves = torch.rand(10, 4, generator=generator).tolist()
    traits |= _draw_session(traits, seed=seed, person=person, session=session)
    return Head(traits, tuple(map(_mole, moles)), tuple(map(_wave, waves)))


def _draw_session(person_traits: Traits, *, seed: int, person: int, session: int) -> Traits:
    """What differs from day to day: expression, hair, glasses, pose, clothes and camera."""
    generator = stream("heads", VERSION, seed, "session", person, session)
    traits = _bells(SESSION_TRAITS, generator)
    chance = torch.rand(5, generator=generator).tolist()
    traits["smile"] = max(-0.3, traits["smile"])
    traits["mouth_open"] = 0.03 + 0.06 * chance[1] if chance[0] < 0.3 else 0.0
    traits["clothes"] = max(0.05, traits["clothes"])
    traits["noise"] = max(0.5, traits["noise"])
    chance_of_glasses = 0.75 if person_traits["wears_glasses"] else 0.04
    traits["glasses"] = float(chance[2] < chance_of_glasses)
    traits["hair_volume"] = max(0.05, person_traits["hair_volume"] + traits["hair_change"])
    traits["hair_curl"] = min(person_traits["hair_curl"], 0.3 * traits["hair_volume"])
    if chance[3] < 0.25:  # cut, or grown and combed back
        traits["hair_long"] = 0.45 * chance[4] if person_traits["hair_long"] > 0 else 0.0
        traits["fringe"] = 0.28 - person_traits["fringe"] if chance[4] < 0.5 else 0.0
    return traits


def _bells(table: dict[str, tuple[float, float]], generator: torch.Generator) -> Traits:
    """One number per entry, from a bell-shaped sum of three uniform numbers."""
    unit = (torch.rand(len(table), 3, generator=generator).double().sum(1) - 1.5) * 2
    rows = zip(table.items(), unit.tolist(), strict=True)
    return {name: mean + spread * number for (name, (mean, spread)), number in rows}


def _mole(draws: list[float]) -> tuple[float, ...]:
    x, y, size, depth = draws
    return 1.1 * x - 0.55, 1.5 * y - 0.95, 0.018 + 0.03 * size**2, 0.1 + 0.5 * depth


def _wave(draws: list[float]) -> tuple[float, ...]:
    """A direction on the sphere scaled to 3 to 9 radians per unit length, and a phase."""
    up, round_, pace, phase = draws
    height = 2 * up - 1
    flat = math.sqrt(1 - height * height)
    angle, speed = 2 * math.pi * round_, 3 + 6 * pace
    return (
        speed * flat * math.cos(angle),
        speed * height,
        speed * flat * math.sin(angle),
        2 * math.pi * phase,
    )
