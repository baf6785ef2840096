"""Rendered heads: people seen from 13 views, in 20 lights and 4 sessions, as in a face database.

Who somebody is lies in the shape of the head and in the paint of the skin. Sessions change expression, hair,
glasses, clothes, pose and camera. View and light change the picture more than the person does. All that is
drawn depends on the seed and on the numbers of person, session and view alone: person 7 is the same in a set
of 20 as in one of 129.

Shapes: N images of one channel and S x S pixels, V views, L lights.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

import torch
from torch import Tensor

from orbitset.datasets.cache import Key, cached_pixels
from orbitset.datasets.head_people import VERSION as VERSION
from orbitset.datasets.head_people import draw_head
from orbitset.datasets.head_pictures import LIGHTS as LAMPS
from orbitset.datasets.head_pictures import picture
from orbitset.datasets.observed import ObservedImages
from orbitset.errors import ConfigError, DataError, check_choice
from orbitset.seeds import stream

VIEWS = tuple(str(degrees) for degrees in range(-90, 91, 15))
"""Degrees from the front of the face to the camera; at "90" the nose points to the left of the picture."""
LIGHTS = tuple(f"{light:02d}" for light in range(len(LAMPS)))
"""See `head_pictures`: a bright room, 13 flashes from left to right, 5 from above, a lamp on the ceiling."""
LIGHT_ORDER = (7, 3, 11, 0, 5, 9, 16, 1, 13, 14, 18, 19, 15, 17, 2, 12, 4, 10, 6, 8)
"""Which lights are there if fewer are asked for: the first of these, well spread."""
PEOPLE, SESSIONS = 129, 4
EXPOSURE = 1.25


def people_and_lights(spec: str) -> tuple[int | None, int | None]:
    """The numbers in a name such as heads:20x6; None for all.

    >>> people_and_lights("heads:20x6"), people_and_lights("heads")
    ((20, 6), (None, None))
    """
    if spec == "heads":
        return None, None
    people, _, lights = spec.removeprefix("heads:").partition("x")
    if not (people.isdecimal() and lights.isdecimal()):
        raise DataError(f"{spec} is not understood; give heads:20x6 for 20 people in 6 lights")
    return int(people), int(lights)


def load_heads(
    people: int | None = None,
    lights: int | None = None,
    *,
    size_px: int = 64,
    seed: int = 0,
    device: str = "cpu",
    on_progress: Callable[[int, int], None] | None = None,
) -> ObservedImages:
    """All views and sessions of so many people and lights, by default of all, rendered once and cached."""
    values = factors_of_heads(people, lights)
    people, lights = len(values["person"]), len(values["light"])

    def write(file: BinaryIO) -> tuple[tuple[int, ...], dict[str, tuple[str, ...]]]:
        heads = render_heads(
            people=people,
            lights=lights,
            size_px=size_px,
            seed=seed,
            device=device,
            on_progress=on_progress,
        )
        file.write(heads.images.numpy().tobytes())
        return tuple(heads.images.shape), dict(heads.values)

    inputs = (people, lights, size_px, seed, torch.device(device).type)
    source = f"heads:{people}x{lights}, {size_px} px, seed {seed}"
    images, values = cached_pixels(Key("heads", VERSION, source, inputs), write)
    return _numbered(torch.from_numpy(images), {name: tuple(of) for name, of in values.items()})


def render_heads(
    *,
    people: int = PEOPLE,
    views: Sequence[str] = VIEWS,
    lights: int = len(LIGHTS),
    sessions: int = SESSIONS,
    size_px: int = 64,
    seed: int = 0,
    device: str | torch.device = "cpu",
    on_progress: Callable[[int, int], None] | None = None,
) -> ObservedImages:
    """Grey images in the order of person, session, view and light, on the CPU whatever device renders them.

    `on_progress` is told after each session of a person how many are done, and of how many.

    >>> heads = render_heads(people=2, views=["0"], lights=3, sessions=1, size_px=8)
    >>> heads.images.shape, heads.values["light"]
    (torch.Size([6, 1, 8, 8]), ('03', '07', '11'))
    """
    values = factors_of_heads(people, lights, views, sessions)
    if size_px < 1:
        raise ConfigError(f"size_px is {size_px}; give at least 1")
    chosen = [LIGHTS.index(light) for light in values["light"]]
    degrees = [int(view) for view in views]
    images = []
    for person, session in itertools.product(range(people), range(sessions)):
        photographs = _photograph(
            person, session, degrees, chosen, size_px, seed, torch.device(device)
        )
        images.append(photographs.reshape(-1, 1, size_px, size_px))
        if on_progress is not None:
            on_progress(len(images), people * sessions)
    return _numbered(torch.cat(images), values)


def factors_of_heads(
    people: int | None = None,
    lights: int | None = None,
    views: Sequence[str] = VIEWS,
    sessions: int = SESSIONS,
) -> dict[str, tuple[str, ...]]:
    """The values of each factor for so many people and lights, by default for all."""
    people = PEOPLE if people is None else people
    lights = len(LIGHTS) if lights is None else lights
    for name, number in (("people", people), ("sessions", sessions)):
        if number < 1:
            raise ConfigError(f"{name} is {number}; give at least 1")
    if not 1 <= lights <= len(LIGHTS):
        raise ConfigError(f"lights is {lights}; give 1 to {len(LIGHTS)}")
    if not views or len(set(views)) < len(views):
        raise ConfigError(f"views is {list(views)}; give one or more, each once")
    for view in views:
        check_choice("view", view, VIEWS)
    return {
        "person": tuple(f"{person + 1:03d}" for person in range(people)),
        "session": tuple(str(session + 1) for session in range(sessions)),
        "view": tuple(views),
        "light": tuple(LIGHTS[light] for light in sorted(LIGHT_ORDER[:lights])),
    }


def _numbered(images: Tensor, values: Mapping[str, tuple[str, ...]]) -> ObservedImages:
    """Images in the order of the values of all factors, the last of which changes first."""
    numbers = torch.cartesian_prod(*(torch.arange(len(names)) for names in values.values()))
    return ObservedImages(images, dict(zip(values, numbers.T.contiguous(), strict=True)), values)


def _photograph(
    person: int,
    session: int,
    degrees: Sequence[int],
    lights: Sequence[int],
    size_px: int,
    seed: int,
    device: torch.device,
) -> Tensor:
    """All views and lights of one person in one session, (V, L, S, S) uint8."""
    head = draw_head(seed=seed, person=person, session=session)
    shifts, noises = [], []
    for angle in degrees:
        generator = stream("heads", VERSION, seed, "view", person, session, angle)
        x, y = (torch.rand(2, generator=generator).double() * 0.06 - 0.03).tolist()
        shifts.append((head["shift_x"] + x, head["shift_y"] + y))
        noise = torch.randn(len(LIGHTS), size_px, size_px, generator=generator)
        noises.append(noise[list(lights)])
    light_VLSS = picture(
        head, degrees=degrees, lights=lights, shifts=shifts, size_px=size_px, device=device
    )
    bright = (light_VLSS.cpu() * (EXPOSURE * head["exposure"])).clamp(0, 1) ** (1 / head["gamma"])
    grey = 255 * bright + head["noise"] * torch.stack(noises)  # as the camera of a session gives it
    return grey.round().clamp(0, 255).to(torch.uint8)
