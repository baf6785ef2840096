"""The encoder as scikit-learn's users expect one: fit, transform, rectify, kneighbors, in arrays.

Shapes: N images of H x W with C channels (2-D input: F features, the pixels of an image), D code entries,
S x S what the network sees.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from orbitset.config import from_dict
from orbitset.encoders import EncoderConfig, build_encoder
from orbitset.encoders.contrast import Contrast
from orbitset.encoders.erasing import erase, telling_directions
from orbitset.errors import ConfigError
from orbitset.orbits import ObservedOrbits, OrbitBatches
from orbitset.orbits.augmentation import Augmentation
from orbitset.orbits.observed import SeveralClasses, choose_targets, classes_of_orbits
from orbitset.recipes.losses import LossContext, build_loss
from orbitset.recipes.methods import METHODS, Method, parse_method
from orbitset.recipes.outside_loss import method_named, method_of
from orbitset.recipes.unused import belonging
from orbitset.training.fit import TrainConfig
from orbitset.training.fit import fit as train

_ENCODE_BATCH = 512
_MARGIN_FRACTION = 0.4
NO_ORBIT = -1
Orbits = ArrayLike | Callable[[np.ndarray], Any] | None


class OrbitEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learns codes from groups of images that show the same thing.

    Parameters
    ----------
    method : a method that needs no labels: OJ, OT, OE, EX, AE, IN, IM, SG or PR, the last four also with the
        decoder, as IM+R; or a loss of your own: a function (codes, batch) or (codes, batch, rectified) that
        gives a number, a class of such modules, or its name `package.module:loss`.
    code_size : length of a code.
    channels : width of each block of the network; each block halves the image.
    epochs : passes over all images.
    orbits_per_batch, members_per_batch : orbits in a batch and members of each, at most.
    learning_rate : maximum of the learning-rate schedule.
    loss_settings : settings of the loss, such as `{"margin_fraction": 0.2, "discriminate_weight": 3}` for
        OJ, whose margin is 0.4 of the usual squared distance of two codes by default.
    classify_weight : weight of a classification loss on the labels `y`, beside orbits.
    augment : whether training images change by small turns, crops, light and focus, each by its own draw.
    contrast : `given`, or `local`: the network sees local contrast instead of pixels.
    image_shape : (H, W) or (H, W, C) of images in rows of features; by default the smallest square.
    random_state : seed of weights and batches.
    device : where to train and encode.

    Attributes
    ----------
    network_ : the trained encoder, a `torch.nn.Module`.
    codes_ : codes of the training images, in which `kneighbors` searches.
    image_shape_ : (H, W, C) of the images it takes.

    >>> rng = np.random.default_rng(0)
    >>> images, orbits = rng.random((12, 8, 8)), np.repeat([0, 1, 2], 4)
    >>> encoder = OrbitEncoder(code_size=4, channels=(4,), epochs=1, random_state=0).fit(images, orbits)
    >>> encoder.transform(images).shape, encoder.rectify(images).shape
    ((12, 4), (12, 8, 8))
    """

    def __init__(
        self,
        method: str | Callable[..., Any] = "OJ",
        *,
        code_size: int = 64,
        channels: tuple[int, ...] = (16, 32, 64),
        epochs: float = 20.0,
        orbits_per_batch: int = 18,
        members_per_batch: int = 4,
        learning_rate: float = 3e-3,
        loss_settings: Mapping[str, Any] | None = None,
        classify_weight: float = 0.0,
        augment: bool = False,
        contrast: Contrast = "given",
        image_shape: tuple[int, ...] | None = None,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.code_size = code_size
        self.channels = channels
        self.epochs = epochs
        self.orbits_per_batch = orbits_per_batch
        self.members_per_batch = members_per_batch
        self.learning_rate = learning_rate
        self.loss_settings = loss_settings
        self.classify_weight = classify_weight
        self.augment = augment
        self.contrast = contrast
        self.image_shape = image_shape
        self.random_state = random_state
        self.device = device

    def fit(
        self,
        X: ArrayLike,
        orbits: Orbits = None,
        y: ArrayLike | None = None,
        *,
        ignore: ArrayLike | None = None,
    ) -> Self:
        """Learn from images and their orbits, which are any values, or a function from an image to its orbit.

        Images of orbit -1 are left out. Without orbits, labels `y` take their place; without both, every
        image is an orbit of its own. With `classify_weight`, labels are learned beside orbits; -1 means that
        an image has no label. Codes do not tell the values in `ignore` apart, such as the lights of images.
        """
        method = self._method()
        labels = y if self.classify_weight else None
        if self.classify_weight and (orbits is None or y is None):
            raise ValueError(
                "classify_weight is for labels beside orbits; give both, or a weight of 0"
            )
        orbits = y if orbits is None else orbits
        if not self.epochs > 0:
            raise ValueError(f"epochs is {self.epochs}; give a number above 0")
        images = self._checked(X, is_first=True)
        if callable(orbits):
            orbits = [orbits(image.copy()) for image in np.asarray(X)]
        orbit_N = _numbered(orbits, len(images))
        label_N = None if labels is None else _numbered(labels, len(images), "labels")
        ignored_N = None if ignore is None else _numbered(ignore, len(images), "ignore")
        seed = int(check_random_state(self.random_state).randint(2**31))
        self._scale(images)
        batches = self._batches(images, orbit_N, label_N, seed)
        _, in_channels, _, size_px = self._prepared(images[:1]).shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = build_encoder(self._encoder(), in_channels=in_channels, size_px=size_px)
            loss = self._loss(method, batches.orbits)
        self.network_ = network.to(self.device)
        train(
            self.network_,
            loss.to(self.device),
            batches,
            steps=max(1, batches.position_at(self.epochs)),
            config=TrainConfig(learning_rate=self.learning_rate, precision="float32"),
        )
        self.network_.eval()
        self.codes_ = self._encode(images)
        if ignored_N is not None:
            arrays = (self.codes_, ignored_N, orbit_N)
            erase(self.network_, telling_directions(*map(torch.from_numpy, arrays)))
            self.codes_ = self._encode(images)
        self._n_features_out = self.code_size
        return self

    def _method(self) -> Method:
        if not isinstance(self.method, str):
            return method_of(getattr(self.method, "__name__", "loss"), self.method)
        try:
            method = method_named(parse_method(self.method))
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if method.needs_labels or method.has_transformer:
            known = ", ".join(name for name, row in METHODS.items() if not row.needs_labels)
            raise ValueError(
                f"method is {self.method!r}; choose {known} or a loss of your own "
                "(for labels give them as orbits)"
            )
        return method

    def _encoder(self) -> EncoderConfig:
        return EncoderConfig(
            channels=tuple(self.channels),
            code_size=self.code_size,
            code_norm="sphere",
            contrast=self.contrast,
        )

    def _batches(
        self, images: np.ndarray, orbit_N: np.ndarray, label_N: np.ndarray | None, seed: int
    ) -> OrbitBatches:
        """Batches of the images that have an orbit."""
        has_orbit = orbit_N >= 0
        if not has_orbit.any():
            raise ValueError("no image has an orbit: all are -1")
        levels = self._prepared(images)[torch.from_numpy(has_orbit)].mul(255).round().byte()
        orbit = torch.from_numpy(np.unique(orbit_N[has_orbit], return_inverse=True)[1]).long()
        label_O = None if label_N is None else _of_orbits(label_N[has_orbit], orbit)
        targets = choose_targets("medoid", levels, orbit)
        observed = ObservedOrbits(levels, orbit, targets, label_O, device=self.device)
        return OrbitBatches(
            observed,
            orbits_per_batch=min(self.orbits_per_batch, len(observed)),
            members_per_batch=min(self.members_per_batch, int(orbit.bincount().max())),
            augmentation=Augmentation.moderate(levels.shape[-1]) if self.augment else None,
            seed=seed,
        )

    def _loss(self, method: Method, orbits: Any) -> nn.Module:
        """The objective of the method, with classes beside it where there are labels."""
        names = {setting.name for setting in fields(method.settings)}
        own = dict(self.loss_settings or {})
        if "margin_fraction" in names and "margin" not in own:
            own.setdefault("margin_fraction", _MARGIN_FRACTION)
        try:
            with belonging(method=method.name):
                settings: Any = from_dict(method.settings, own, "loss_settings.")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        labels = orbits.labels_N
        context = LossContext(
            code_size=self.code_size,
            num_orbits=len(orbits),
            num_classes=0 if labels is None else int(labels.max()) + 1,
            usual_distance=2.0 * self.code_size,
        )
        return build_loss(settings, context, self.classify_weight if labels is not None else 0)

    def fit_transform(
        self, X: ArrayLike, orbits: Orbits = None, y: ArrayLike | None = None
    ) -> np.ndarray:
        """Learn, and give the codes of the same images."""
        codes: np.ndarray = self.fit(X, orbits, y).codes_
        return codes

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Codes, (N, D) float32."""
        check_is_fitted(self)
        return self._encode(self._checked(X))

    def rectify(self, X: ArrayLike) -> np.ndarray:
        """Each image in its canonical pose, in the shape and scale of the input."""
        check_is_fitted(self)
        images = self._checked(X)
        height, width, channels = self.image_shape_
        parts = []
        with torch.inference_mode():
            for batch in _batches(images):
                inputs = self._prepared(batch).to(self.device)
                upright = self.network_.rectify(inputs).clamp(0, 1)
                parts.append(F.interpolate(upright, (height, width), mode="bilinear").cpu())
        values = torch.cat(parts).permute(0, 2, 3, 1).numpy()
        values = values * (self.high_ - self.low_) + self.low_
        dimensions = np.ndim(X)
        if dimensions == 2:
            return values.reshape(len(values), -1)[:, : self.n_features_in_]
        return values[..., 0] if dimensions == 3 else values

    def kneighbors(
        self, X: ArrayLike | None = None, n_neighbors: int = 5, return_distance: bool = True
    ) -> Any:
        """The nearest training images: Euclidean distances (N, K), and row numbers.

        Without `X`, the nearest other ones of every training image.
        """
        check_is_fitted(self)
        neighbours = NearestNeighbors(n_neighbors=n_neighbors).fit(self.codes_)
        queries = None if X is None else self.transform(X)
        return neighbours.kneighbors(queries, return_distance=return_distance)

    def _checked(self, X: ArrayLike, *, is_first: bool = False) -> np.ndarray:
        """Images as (N, H, W, C) in float64 or uint8, checked as scikit-learn does."""
        X = np.asarray(X) if isinstance(X, list | tuple) else X
        is_images = getattr(X, "ndim", 2) > 2
        if not is_images:
            rows = validate_data(self, X, dtype="numeric", reset=is_first)
            if is_first:
                self.image_shape_ = _shape_of(rows.shape[1], self.image_shape)
            height, width, channels = self.image_shape_
            missing = height * width * channels - rows.shape[1]
            padded: np.ndarray = np.pad(rows, ((0, 0), (0, missing)))
            return padded.reshape(-1, height, width, channels)
        images: np.ndarray = check_array(X, dtype="numeric", allow_nd=True)
        if images.ndim == 3:
            images = images[..., None]
        if images.ndim != 4 or images.shape[3] not in (1, 3):
            raise ValueError(
                f"images have shape {np.shape(X)}; give (N, H, W), (N, H, W, 3) or rows of pixels"
            )
        shape = images.shape[1:]
        if is_first:
            self.image_shape_ = shape
            self.n_features_in_ = math.prod(shape)
        elif shape != self.image_shape_:
            raise ValueError(
                f"images have shape {shape}; the training images had {self.image_shape_}"
            )
        return images

    def _scale(self, images: np.ndarray) -> None:
        """Take black and white from the type of the pixels, from [0, 1], or from the range of the images."""
        if images.dtype == np.uint8:
            self.low_, self.high_ = 0.0, 255.0
            return
        low, high = float(images.min()), float(images.max())
        self.low_, self.high_ = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        if self.high_ == self.low_:
            self.high_ = self.low_ + 1

    def _prepared(self, images: np.ndarray) -> Tensor:
        """What the network sees: (N, C, S, S) in [0, 1]."""
        scaled = (images.astype(np.float64) - self.low_) / (self.high_ - self.low_)
        inputs = torch.from_numpy(scaled.clip(0, 1)).float().permute(0, 3, 1, 2)
        multiple = 2 ** len(self.channels)
        size = -(-max(inputs.shape[2:]) // multiple) * multiple
        if inputs.shape[2:] == (size, size):
            return inputs.contiguous()
        return F.interpolate(inputs, (size, size), mode="bilinear")

    def _encode(self, images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            codes = [
                self.network_.encode(self._prepared(batch).to(self.device)).cpu()
                for batch in _batches(images)
            ]
        return np.asarray(torch.cat(codes))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = []
        tags.non_deterministic = False
        return tags


def _batches(images: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(images), _ENCODE_BATCH):
        yield images[start : start + _ENCODE_BATCH]


def _of_orbits(label_N: np.ndarray, orbit_N: Tensor) -> Tensor:
    """The label of each orbit, -1 where no member has one."""
    try:
        return classes_of_orbits(torch.from_numpy(label_N), orbit_N)
    except SeveralClasses:
        raise ValueError(
            "images of one orbit have different labels; give them one, or -1"
        ) from None


def _numbered(values: ArrayLike | None, count: int, name: str = "orbits") -> np.ndarray:
    """A number for each image, -1 for those that have none: whose value is -1 or None."""
    if values is None:
        return np.arange(count)
    own = np.asarray(values)
    if own.shape != (count,):
        raise ValueError(f"{name} have shape {own.shape} for {count} images; give one for each")
    if own.dtype.kind == "f" and not np.isfinite(own).all():
        raise ValueError(f"{name} contain NaN or infinity; give -1 for images that have none")
    entries = own if own.dtype.kind in "iuf" else list(values)  # type: ignore[arg-type]
    is_known = np.array([value is not None and not _is_minus_one(value) for value in entries], bool)
    known = [value for value, has_value in zip(entries, is_known, strict=True) if has_value]
    numbers = np.full(count, NO_ORBIT, np.int64)
    numbers[is_known] = np.unique(np.asarray(known), return_inverse=True)[1]
    return numbers


def _is_minus_one(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and value == NO_ORBIT


def _shape_of(features: int, image_shape: tuple[int, ...] | None) -> tuple[int, int, int]:
    """The image that a row of features is."""
    if image_shape is None:
        side = math.isqrt(features - 1) + 1
        return side, side, 1
    shape = (*image_shape, 1) if len(image_shape) == 2 else tuple(image_shape)
    if len(shape) != 3 or math.prod(shape) != features:
        raise ValueError(f"image_shape is {image_shape}, but rows have {features} features")
    height, width, channels = shape
    return height, width, channels
