"""The table of methods: the one place that names them.

A method is an objective, with its settings, its default settings for each family of experiments and its
colour. `+R` in a name adds the rectifying decoder to an objective of later years than the paper's. `NAME-STN`
puts a spatial transformer in front of the encoder. A name such as `my_losses:info_nce` is
a loss from outside the package: see `outside_loss.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

from orbitset.errors import check_choice
from orbitset.losses import (
    Autoencoder,
    Exemplar,
    HardInfoNCE,
    InfoNCE,
    OrbitJoint,
    OrbitPrototypes,
    SigmoidPairs,
    SupervisedTriplet,
)
from orbitset.outside import is_name
from orbitset.recipes.losses import LossSettings, settings_type

Family = Literal["affine-mnist", "faces", "own-images"]
STN = "-STN"


def _batch(members: int) -> tuple[str, str]:
    """Batches of 256 images with so many members of each orbit."""
    return f"orbits.members_per_batch={members}", f"orbits.orbits_per_batch={256 // members}"


def _on_sphere(learning_rate: float, members: int) -> tuple[str, ...]:
    return "encoder.code_norm=sphere", f"train.learning_rate={learning_rate}", *_batch(members)


_FACES_BATCH_NORM = ("encoder.code_norm=batch",)
_FACES_SPHERE = ("encoder.code_norm=sphere", "train.learning_rate=0.003")
_FACES_TRIPLETS = (*_FACES_SPHERE, "loss.margin_fraction=0.4")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to learn codes."""

    name: str
    title: str
    """The field's or the paper's name for it"""
    settings: type[LossSettings]
    """The dataclass of its numbers, with a method `build(context)` that gives the objective"""
    colour: str | None = None
    compares_members: bool = False
    """A batch needs two members of an orbit"""
    compares_orbits: bool = False
    """A batch needs two orbits"""
    needs_labels: bool = False
    learns_classifier: bool = False
    """The objective has weights of its own, a classifier"""
    has_transformer: bool = False
    members_per_batch: int = 4
    """Members of each orbit in a batch of a user's own images"""
    images_per_batch: int = 120
    """Images in such a batch, about"""
    most_epochs: float | None = None
    """Longest useful training on affine MNIST"""
    defaults: Mapping[Family, tuple[str, ...]] = field(default_factory=dict)
    """Settings for a family of experiments: what the paper leaves open, from searches on validation images"""
    transformer_defaults: Mapping[Family, tuple[str, ...]] = field(default_factory=dict)
    """Further settings with a spatial transformer in front"""

    @property
    def has_margin(self) -> bool:
        return any(setting.name == "margin" for setting in fields(self.settings))

    def default_settings(self, family: Family) -> tuple[str, ...]:
        settings = self.defaults.get(family, _OUTSIDE_DEFAULTS[family])
        more = self.transformer_defaults.get(family, ()) if self.has_transformer else ()
        return (*settings, *more)


_OUTSIDE_DEFAULTS: dict[Family, tuple[str, ...]] = {
    "affine-mnist": _on_sphere(0.003, 4),
    "faces": _FACES_SPHERE,
    "own-images": _FACES_SPHERE,
}
"""For losses from outside the package, which nobody has searched settings for"""

_RECTIFY = partial(OrbitJoint, discriminate_weight=0, margin=0.2, mining="semihard-else-farthest")
"""It has no triplets, and so no use for their margin and their mining, which are no settings of OE"""
_UNIT = ("encoder.code_norm=unit", "train.learning_rate=0.002")
_APART = (*_UNIT, "loss.shapes_codes=false", "encoder.decoder=free")
"""The decoder learns from codes as they are: on the development sets codes that it shapes retrieve worse."""
_OWN_TRIPLETS = (*_FACES_TRIPLETS, "train.learning_rate=0.002")


def _of_cosines(
    name: str,
    title: str,
    objective: Callable[..., Any],
    colours: tuple[str, str],
    *,
    compares_images: bool,
) -> tuple[Method, Method]:
    """A method that looks at the cosines of codes, and the same with the rectifying decoder.

    In batches of a user's own images many orbits meet. Nothing was searched for affine MNIST and faces.
    `compares_images` says that a batch needs two members of an orbit, and two orbits.
    """

    def method(name: str, title: str, objective: Callable[..., Any], colour: str) -> Method:
        return Method(
            name=name,
            title=title,
            settings=settings_type(name, objective, is_outside=False),
            colour=colour,
            defaults={
                "affine-mnist": (*_UNIT, *_batch(4)),
                "faces": _UNIT,
                "own-images": _APART if name.endswith("+R") else _UNIT,
            },
            compares_members=compares_images,
            compares_orbits=compares_images,
        )

    return (
        method(name, title, partial(objective, rectify_weight=0, shapes_codes=True), colours[0]),
        method(f"{name}+R", f"{title}, with a rectifying decoder", objective, colours[1]),
    )


PAPER_METHODS = ("OJ", "OT", "OE", "ST", "EX", "AE")
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="OJ",
            title="orbit joint",
            settings=settings_type("OJ", OrbitJoint, is_outside=False),
            colour="#c8384e",
            compares_members=True,
            compares_orbits=True,
            defaults={
                "affine-mnist": (
                    *_on_sphere(0.018, 2),
                    "loss.discriminate_weight=0.03",
                    "loss.margin_fraction=1",
                    "loss.mining=all",
                ),
                "faces": _FACES_TRIPLETS,
                "own-images": (*_OWN_TRIPLETS, "loss.scale=own-dimension"),
            },
        ),
        Method(
            name="OT",
            title="orbit triplet",
            settings=settings_type("OT", partial(OrbitJoint, rectify_weight=0), is_outside=False),
            colour="#dd8a1b",
            compares_members=True,
            compares_orbits=True,
            defaults={
                "affine-mnist": (
                    "encoder.code_norm=none",
                    "train.learning_rate=0.0017",
                    *_batch(8),
                    "loss.mining=all",
                    "loss.margin=165",
                ),
                "faces": _FACES_TRIPLETS,
                "own-images": _OWN_TRIPLETS,
            },
            transformer_defaults={"affine-mnist": ("train.transformer_rate=0.01",)},
        ),
        Method(
            name="OE",
            title="orbit encode",
            settings=settings_type("OE", _RECTIFY, is_outside=False),
            colour="#00798c",
            defaults={
                "affine-mnist": _on_sphere(0.018, 1),
                "faces": _FACES_SPHERE,
                "own-images": _FACES_SPHERE,
            },
        ),
        Method(
            name="ST",
            title="supervised triplet",
            settings=settings_type("ST", SupervisedTriplet, is_outside=False),
            colour="#30518e",
            compares_orbits=True,
            needs_labels=True,
            defaults={
                "affine-mnist": (*_on_sphere(0.0125, 2), "loss.margin_fraction=0.053"),
                "faces": (*_FACES_BATCH_NORM, "loss.margin_fraction=0.125"),
                "own-images": (*_FACES_BATCH_NORM, "loss.margin_fraction=0.125"),
            },
            transformer_defaults={"affine-mnist": ("train.transformer_rate=0.03",)},
        ),
        Method(
            name="EX",
            title="exemplar",
            settings=settings_type("EX", Exemplar, is_outside=False),
            colour="#5a9367",
            learns_classifier=True,
            most_epochs=1.0,  # a longer training knows the images by heart (docs/log.md)
            defaults={
                "affine-mnist": (*_on_sphere(0.0003, 1), "train.adam_eps=1e-6"),
                "faces": _FACES_BATCH_NORM,
                "own-images": _FACES_BATCH_NORM,
            },
        ),
        Method(
            name="AE",
            title="autoencoder",
            settings=settings_type("AE", Autoencoder, is_outside=False),
            colour="#7d8597",
            defaults={
                "affine-mnist": _on_sphere(0.029, 2),
                "faces": _FACES_BATCH_NORM,
                "own-images": _FACES_BATCH_NORM,
            },
        ),
        *_of_cosines("IN", "InfoNCE", InfoNCE, ("#7b3fa0", "#b98bd6"), compares_images=True),
        *_of_cosines(
            "IM",
            "InfoNCE + multi-similarity",
            HardInfoNCE,
            ("#3d4f9f", "#98a4d9"),
            compares_images=True,
        ),
        *_of_cosines("SG", "sigmoid", SigmoidPairs, ("#8a5a2b", "#c9a27a"), compares_images=True),
        *_of_cosines(
            "PR", "prototypes", OrbitPrototypes, ("#d64f9a", "#f2a3cb"), compares_images=False
        ),
    )
}
"""The paper's methods in its order, then those of later years"""


def base_name(name: str) -> str:
    """The method's name without a spatial transformer.

    >>> base_name("OT-STN")
    'OT'
    """
    return name.removesuffix(STN)


def has_transformer(name: str) -> bool:
    return name.endswith(STN)


def is_outside(name: str) -> bool:
    """Whether a name is that of a loss from outside the package."""
    return is_name(base_name(name))


def parse_method(name: str) -> str:
    """The method's name as the table writes it; that of a loss from outside stays as it is.

    >>> parse_method("ot-stn"), parse_method("my_losses:info_nce")
    ('OT-STN', 'my_losses:info_nce')
    """
    if is_outside(name):
        return name
    check_choice("method", name.upper(), [*METHODS, *(f"{known}{STN}" for known in METHODS)])
    return name.upper()


def built_in(name: str) -> Method | None:
    """The table's method of that name; None for a loss from outside, which would have to be imported."""
    method = METHODS.get(base_name(name))
    if method is None or not has_transformer(name):
        return method
    return replace(
        method, name=name, title=f"{method.title}, spatial transformer", has_transformer=True
    )


def colour_of(name: str) -> str | None:
    """The method's colour in figures; with a spatial transformer that of the method without."""
    method = METHODS.get(base_name(name))
    return None if method is None else method.colour
