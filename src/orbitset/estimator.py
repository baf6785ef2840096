"""The encoder as scikit-learn's users expect one: fit, transform, rectify, kneighbors, in arrays.

Shapes: N images of H x W with C channels (2-D input: F features, the pixels of an image), D code entries,
S x S what the network sees.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
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

from orbitset.encoders import BackboneEncoder, build_encoder, without_transformer
from orbitset.encoders.components import principal_components
from orbitset.encoders.contrast import Contrast
from orbitset.encoders.erasing import erase, telling_directions
from orbitset.memory import in_halves
from orbitset.orbits import ObservedOrbits, OrbitBatches
from orbitset.orbits.augmentation import Augmentation
from orbitset.orbits.numbering import numbered
from orbitset.orbits.observed import (
    ObservedConfig,
    SeveralClasses,
    choose_targets,
    classes_of_orbits,
)
from orbitset.precision import check_device
from orbitset.recipes.arrays import CHANNELS, array_images, array_method, shape_of_rows
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.losses import build_loss
from orbitset.training.fit import fit as train

_ENCODE_BATCH = 128
_MOST_FEATURES = 4_096
"""Images whose features the principal components are computed from, at most"""
Orbits = ArrayLike | Callable[[np.ndarray], Any] | None


class OrbitEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learns codes from groups of images that show the same thing.

    Parameters
    ----------
    method : a method that needs no labels: OJ, OT, OE, EX, AE, IN, IM, SG or PR, the last four also with the
        decoder, as IM+R; or a loss of your own: a function (codes, batch) or (codes, batch, rectified) that
        gives a number, a class of such modules, or its name `package.module:loss`. By default IM+R; OE where
        there are no two orbits, or none has two images.
    encoder : `vgg`, the paper's network, or another: `timm:NAME`, `hf:NAME` or `package.module:Class`. A
        pretrained one is fine-tuned: images get its size, and codes begin as its features.
    code_size : length of a code; by default 64, or as many as a pretrained network has features.
    channels : width of each block of the network, which halves the image; of another network's decoder.
    epochs : passes over all images; by default 20, or 4 that fine-tune a pretrained network.
    orbits_per_batch, members_per_batch : orbits in a batch and members of each, at most.
    learning_rate : maximum of the learning-rate schedule; by default the method's or the network's.
    loss_settings : settings of the loss, such as `{"margin_fraction": 0.2, "discriminate_weight": 3}` for
        OJ; by default those with which `orbitset train` begins on grouped images.
    classify_weight : weight of a classification loss on the labels `y`, beside orbits.
    augment : whether training images change by small turns, crops, light and focus, each by its own draw.
        Where every orbit is a single image, such changes of it are its members.
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
        method: str | Callable[..., Any] | None = None,
        *,
        encoder: str = "vgg",
        code_size: int | None = None,
        channels: tuple[int, ...] | None = None,
        epochs: float | None = None,
        orbits_per_batch: int = 30,
        members_per_batch: int = 4,
        learning_rate: float | None = None,
        loss_settings: Mapping[str, Any] | None = None,
        classify_weight: float = 0.0,
        augment: bool = False,
        contrast: Contrast = "given",
        image_shape: tuple[int, ...] | None = None,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.encoder = encoder
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
        labels = y if self.classify_weight else None
        if self.classify_weight and (orbits is None or y is None):
            raise ValueError(
                "classify_weight is for labels beside orbits; give both, or a weight of 0"
            )
        check_device(self.device)
        orbits = y if orbits is None else orbits
        images = self._checked(X, is_first=True)
        if callable(orbits):
            orbits = [orbits(image.copy()) for image in np.asarray(X)]
        orbit_N = numbered(orbits, len(images))
        label_N = None if labels is None else numbered(labels, len(images), "labels")
        ignored_N = None if ignore is None else numbered(ignore, len(images), "ignore")
        seed = int(check_random_state(self.random_state).randint(2**31))
        self._scale(images)
        row_M, orbit_M = self._trained(orbit_N)
        config = self._config(orbit_M, has_labels=label_N is not None)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._begin(config, images, row_M)
            batches = self._batches(config, images, row_M, orbit_M, label_N, seed)
            loss = self._loss(config, batches.orbits)
        train(
            self.network_,
            loss.to(self.device),
            batches,
            steps=max(1, batches.position_at(config.train.epochs)),
            config=config.train,
            rate_shares=config.rate_shares,
        )
        self.network_.eval()
        self.codes_ = self._encode(images)
        if ignored_N is not None:
            arrays = (self.codes_, ignored_N, orbit_N)
            erase(self.network_, telling_directions(*map(torch.from_numpy, arrays)))
            self.codes_ = self._encode(images)
        self._n_features_out = self.network_.code_size
        return self

    def _trained(self, orbit_N: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """The rows of the images that have an orbit, and its number. Single images that are augmented have
        their row as often as a batch has members."""
        row_M = np.flatnonzero(orbit_N >= 0)
        if not len(row_M):
            raise ValueError("no image has an orbit: all are -1")
        if self.augment and len(np.unique(orbit_N[row_M])) == len(row_M):
            row_M = row_M.repeat(max(1, self.members_per_batch))
        return row_M, torch.from_numpy(np.unique(orbit_N[row_M], return_inverse=True)[1]).long()

    def _config(self, orbit_M: Tensor, *, has_labels: bool) -> Experiment:
        """The training, as `orbitset train` would describe it."""
        size_O = orbit_M.bincount()
        num_orbits, most = len(size_O), int(size_O.max())
        height, width, channels = self.image_shape_
        step_px = 2 ** np.size(CHANNELS if self.channels is None else self.channels)
        orbits = ObservedConfig(
            orbit=("orbit",),
            label="orbit",
            classes="label" if has_labels else None,
            size_px=-(-max(height, width) // step_px) * step_px,
            is_colour=channels == 3,
            orbits_per_batch=min(self.orbits_per_batch, num_orbits),
            members_per_batch=min(self.members_per_batch, most),
        )
        return array_images(
            array_method(self.method, can_compare=num_orbits > 1 and most > 1),
            orbits,
            num_images=len(orbit_M),
            network=self.encoder,
            encoder={
                "contrast": self.contrast,
                "code_size": self.code_size,
                "channels": self.channels,
            },
            train={"epochs": self.epochs, "learning_rate": self.learning_rate},
            loss=self.loss_settings or {},
            classify_weight=self.classify_weight if has_labels else 0.0,
        )

    def _begin(self, config: Experiment, images: np.ndarray, row_M: np.ndarray) -> None:
        """Build the network. Codes that are smaller than the features of a pretrained one begin as their
        principal components."""
        orbits = config.observed
        assert orbits.size_px is not None
        channels = 3 if orbits.is_colour else 1
        built = build_encoder(config.encoder, in_channels=channels, size_px=orbits.size_px)
        network = self.network_ = without_transformer(built).to(self.device)
        if not (isinstance(network, BackboneEncoder) and config.begins_frozen):
            return
        if network.code_size < network.code.in_features:
            some = row_M[:: -(-len(row_M) // _MOST_FEATURES)]
            features_NF = self._outputs(network.eval().features, images[some])
            network.begin_with(*principal_components(features_NF, network.code_size))

    def _batches(
        self,
        config: Experiment,
        images: np.ndarray,
        row_M: np.ndarray,
        orbit_M: Tensor,
        label_N: np.ndarray | None,
        seed: int,
    ) -> OrbitBatches:
        """Batches of these rows, of which each has an orbit."""
        levels = torch.cat(
            [self._prepared(images[few]).mul(255).round().byte() for few in _batches(row_M)]
        )
        label_O = None if label_N is None else _of_orbits(label_N[row_M], orbit_M)
        targets = choose_targets("medoid", levels, orbit_M)
        return OrbitBatches(
            ObservedOrbits(levels, orbit_M, targets, label_O, device=self.device),
            orbits_per_batch=config.orbits.orbits_per_batch,
            members_per_batch=config.orbits.members_per_batch,
            augmentation=Augmentation.moderate(levels.shape[-1]) if self.augment else None,
            seed=seed,
        )

    def _loss(self, config: Experiment, orbits: Any) -> nn.Module:
        """The objective of the method, with classes beside it where there are labels."""
        encoder = replace(config.encoder, code_size=self.network_.code_size)
        labels = orbits.labels_N
        context = replace(config, encoder=encoder).loss_context(
            num_orbits=len(orbits), num_classes=0 if labels is None else int(labels.max()) + 1
        )
        return build_loss(config.loss, context, config.classify_weight)

    def fit_transform(
        self,
        X: ArrayLike,
        orbits: Orbits = None,
        y: ArrayLike | None = None,
        *,
        ignore: ArrayLike | None = None,
    ) -> np.ndarray:
        """Learn, and give the codes of the same images."""
        codes: np.ndarray = self.fit(X, orbits, y, ignore=ignore).codes_
        return codes

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Codes, (N, D) float32."""
        check_is_fitted(self)
        return self._encode(self._in_scale(self._checked(X)))

    def rectify(self, X: ArrayLike) -> np.ndarray:
        """Each image in its canonical pose, in the shape and scale of the input."""
        check_is_fitted(self)
        images = self._in_scale(self._checked(X))
        height, width, channels = self.image_shape_
        parts = []
        with torch.inference_mode():
            for batch in _batches(images):
                inputs = self._prepared(batch).to(self.device)
                upright = self.network_.rectify(inputs).clamp(0, 1)
                if upright.shape[1] != channels:  # a network of colours has rectified a grey image
                    upright = upright.mean(1, keepdim=True)
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
                self.image_shape_ = shape_of_rows(rows.shape[1], self.image_shape)
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

    def _in_scale(self, images: np.ndarray) -> np.ndarray:
        """The images, unless their black and white are plainly others than those of the training images."""
        most, known = images.max(), (self.low_, self.high_)
        if images.dtype == np.uint8 and known == (0, 1) and most > 1:
            raise ValueError("images are from 0 to 255; the training images were from 0 to 1")
        if known == (0, 255) and 0 < most <= 1 and (images % 1).any():
            raise ValueError("images are from 0 to 1; the training images were from 0 to 255")
        return images

    def _prepared(self, images: np.ndarray) -> Tensor:
        """What the network sees: (N, C, S, S) in [0, 1]."""
        scaled = (images.astype(np.float64) - self.low_) / (self.high_ - self.low_)
        inputs = torch.from_numpy(scaled.clip(0, 1)).float().permute(0, 3, 1, 2)
        size = self.network_.size_px, self.network_.size_px
        if inputs.shape[2:] != size:
            inputs = F.interpolate(inputs, size, mode="bilinear", antialias=True)
        return inputs.expand(-1, self.network_.in_channels, -1, -1).contiguous()

    def _encode(self, images: np.ndarray) -> np.ndarray:
        return self._outputs(self.network_.encode, images).numpy()

    def _outputs(self, function: Callable[[Tensor], Tensor], images: np.ndarray) -> Tensor:
        """What a function of the network's inputs gives, on the CPU."""
        with torch.inference_mode():
            parts = [
                in_halves(function, self._prepared(few).to(self.device)).float().cpu()
                for few in _batches(images)
            ]
        return torch.cat(parts)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = []
        tags.non_deterministic = False
        return tags


def _batches(rows: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), _ENCODE_BATCH):
        yield rows[start : start + _ENCODE_BATCH]


def _of_orbits(label_N: np.ndarray, orbit_N: Tensor) -> Tensor:
    """The label of each orbit, -1 where no member has one."""
    try:
        return classes_of_orbits(torch.from_numpy(label_N), orbit_N)
    except SeveralClasses:
        raise ValueError(
            "images of one orbit have different labels; give them one, or -1"
        ) from None
