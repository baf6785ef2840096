"""Photometric augmentation and crops: drawn as parameters, and applied to a batch, each image by its own.

By hand, since members of an orbit must be equal on every device and exact at neutral parameters, and a batch
must take its parameters from one tensor. The steps are, in this order; only 8 and 10 cut values to [0, 1]:

1. flip: left to right
2. crop: a window of the image, enlarged to the full size; bilinear, pixels are squares
   (`align_corners=False`), the outermost pixels continue beyond the border
3. illumination: multiplication by 1 + strength * sin(2 pi cycles * u + phase), u the position along the
   direction in image sides from the centre
4. blur: a Gaussian, cut off at three times the largest sigma of the ranges; the outermost pixels continue
   outside
5. saturation and hue, for colour only: the difference of a pixel from its mean over the channels is stretched
   and rotated about the grey axis; a third of the circle turns red into green
6. brightness: multiplication by a factor
7. contrast: multiplication of the difference from the image's mean by a factor
8. gamma: a power of the value
9. noise: Gaussian, independent for every pixel and channel
10. values are cut to [0, 1]

Everything is float32 and elementwise, without matrix products or convolutions, whose precision on a GPU
depends on what is set around. No step waits for the device, and each is exact at its neutral parameter.

Shapes: N images, C channels (1 or 3), H x W pixels, P parameters, Q pairs of normal numbers.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from orbitset.errors import ConfigError

_NEUTRAL = {
    "flip": 0.0,  # 0 or 1
    "crop_width": 1.0,  # share of the side
    "crop_height": 1.0,
    "crop_x": 0.0,  # centre of the window; the image is -1 to 1
    "crop_y": 0.0,
    "light_strength": 0.0,
    "light_direction": 0.0,  # radians; 0 is right, a quarter of the circle down
    "light_phase": 0.0,  # radians
    "light_cycles": 0.0,
    "blur_px": 0.0,  # sigma
    "saturation": 1.0,
    "hue": 0.0,  # radians
    "brightness": 1.0,
    "contrast": 1.0,
    "gamma": 1.0,
    "noise": 0.0,  # sigma
    "noise_key": 0.0,  # a whole number below 2**24: which noise
}
PARAMETERS = tuple(_NEUTRAL)
"""The names of the columns of parameters."""
NEUTRAL = tuple(_NEUTRAL.values())
"""Parameters that do not change an image at all."""

_KEYS = 2**24
_WORD = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class PhotometricRanges:
    """The ranges of photometric changes, moderate by default. Colour settings do not change grey images."""

    crop_area_min: float = 0.6
    """The share of the area that a crop keeps."""
    crop_area_max: float = 1.0
    crop_aspect_max: float = 4 / 3
    """The largest ratio of a crop's sides, relative to the image's; log-uniform."""
    brightness: float = 0.3
    """The factor is within 1 ± this; likewise contrast and saturation."""
    contrast: float = 0.3
    gamma_max: float = 1.3
    """The exponent is between 1 / this and this, log-uniform."""
    saturation: float = 0.3
    hue_deg: float = 20.0
    """The hue turns by ± this; 360 is the full circle."""
    blur_min_px: float = 0.0
    """The least sigma of the Gaussian."""
    blur_max_px: float = 1.0
    blur_probability: float = 0.5
    illumination: float = 0.3
    """The largest share by which light changes across the image."""
    illumination_cycles: float = 0.75
    """The largest number of waves of light from side to side; below a half they are slopes, above it
    bands."""
    noise: float = 0.02
    """The largest sigma; white is 1."""
    flip_probability: float = 0.0

    def weakened(self, strength: float) -> "PhotometricRanges":
        """A share of these changes: 0 changes nothing, 1 is the same. How often they occur stays.

        >>> PhotometricRanges().weakened(0.5).crop_area_min
        0.8
        """
        from_0 = ["brightness", "contrast", "saturation", "hue_deg", "illumination", "noise"]
        from_0 += ["blur_min_px", "blur_max_px"]
        from_1 = ("crop_area_min", "crop_area_max", "crop_aspect_max", "gamma_max")
        values = {name: strength * getattr(self, name) for name in from_0}
        values |= {name: 1 + strength * (getattr(self, name) - 1) for name in from_1}
        return replace(self, **values)

    def __post_init__(self) -> None:
        _check(self, 0, 1, "brightness", "contrast", "saturation", "illumination")
        _check(self, 0, 1, "blur_probability", "flip_probability", "noise")
        _check(self, 0, 180, "hue_deg")
        _check(self, 0, math.inf, "illumination_cycles")
        _check(self, 1, math.inf, "crop_aspect_max", "gamma_max")
        if not 0 < self.crop_area_min <= self.crop_area_max <= 1:
            raise ConfigError(
                f"crop_area_min {self.crop_area_min} and crop_area_max {self.crop_area_max} are not a "
                "range; give 0 < crop_area_min <= crop_area_max <= 1"
            )
        if not 0 <= self.blur_min_px <= self.blur_max_px < math.inf:
            raise ConfigError(
                f"blur_min_px {self.blur_min_px} and blur_max_px {self.blur_max_px} are not a range; "
                "give 0 <= blur_min_px <= blur_max_px"
            )


def _check(ranges: PhotometricRanges, low: float, high: float, *names: str) -> None:
    accepted = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
    for name in names:
        value = getattr(ranges, name)
        if not (math.isfinite(value) and low <= value <= high):
            raise ConfigError(f"{name} is {value}; give a number {accepted}")


def draw_photometric(num: int, ranges: PhotometricRanges, generator: torch.Generator) -> Tensor:
    """Draw `num` independent rows of parameters.

    Each parameter has its own numbers from the generator: changing one range leaves the others' draws as they
    are.

    >>> params = draw_photometric(2, PhotometricRanges(), torch.Generator().manual_seed(0))
    >>> params.shape == (2, len(PARAMETERS))
    True
    """
    uniform = torch.rand(num, len(PARAMETERS) + 1, generator=generator).unbind(1)
    flip, area, aspect, x, y, strength, direction, phase, cycles, is_blurred, sigma = uniform[:11]
    saturation, hue, brightness, contrast, gamma, noise, key = uniform[11:]

    log_area = _between(ranges.crop_area_min, ranges.crop_area_max, area).log()
    log_aspect = _around(0, 1, aspect) * (-log_area).clamp(max=math.log(ranges.crop_aspect_max))
    width, height = ((log_area + log_aspect) / 2).exp(), ((log_area - log_aspect) / 2).exp()
    blur = _between(ranges.blur_min_px, ranges.blur_max_px, sigma)
    columns = {
        "flip": (flip < ranges.flip_probability).float(),
        "crop_width": width,
        "crop_height": height,
        "crop_x": _around(0, 1, x) * (1 - width),
        "crop_y": _around(0, 1, y) * (1 - height),
        "light_strength": ranges.illumination * strength,
        "light_direction": math.tau * direction,
        "light_phase": math.tau * phase,
        "light_cycles": ranges.illumination_cycles * cycles,
        "blur_px": blur * (is_blurred < ranges.blur_probability),
        "saturation": _around(1, ranges.saturation, saturation),
        "hue": _around(0, math.radians(ranges.hue_deg), hue),
        "brightness": _around(1, ranges.brightness, brightness),
        "contrast": _around(1, ranges.contrast, contrast),
        "gamma": _around(0, math.log(ranges.gamma_max), gamma).exp(),
        "noise": ranges.noise * noise,
        "noise_key": key * _KEYS,
    }
    return torch.stack([columns[name] for name in PARAMETERS], 1)


def _between(low: float, high: float, uniform_N: Tensor) -> Tensor:
    return low + (high - low) * uniform_N


def _around(middle: float, reach: float, uniform_N: Tensor) -> Tensor:
    return middle + reach * (2 * uniform_N - 1)


def apply_photometric(images_NCHW: Tensor, params_NP: Tensor, ranges: PhotometricRanges) -> Tensor:
    """Change float32 images in [0, 1], each by its own row of parameters.

    `ranges` are those of the draw: steps outside them are skipped, and the widest blur sets the number of
    taps for all. Rows of `NEUTRAL` may be among the parameters.

    >>> images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> torch.equal(apply_photometric(images, torch.tensor([NEUTRAL] * 2), PhotometricRanges()), images)
    True
    """
    values = dict(zip(PARAMETERS, params_NP[:, :, None, None, None].unbind(1), strict=True))
    images = images_NCHW
    if ranges.flip_probability > 0:
        images = torch.where(values["flip"] > 0.5, images.flip(-1), images)
    if ranges.crop_area_min < 1:
        images = _cropped(images, values)
    if ranges.illumination > 0:
        images = images * _light(images, values)
    if ranges.blur_max_px > 0 and ranges.blur_probability > 0:
        images = _blurred(images, values["blur_px"], math.ceil(3 * ranges.blur_max_px))
    if images.shape[1] == 3 and (ranges.saturation > 0 or ranges.hue_deg > 0):
        images = _coloured(images, values["saturation"], values["hue"])
    if ranges.brightness > 0 or ranges.contrast > 0:
        factor, contrast = values["brightness"], values["contrast"]
        mean = images.mean((1, 2, 3), keepdim=True)
        images = torch.addcmul(mean * factor * (1 - contrast), images, factor * contrast)
    if ranges.gamma_max > 1:
        images = images.clamp(0, 1)
        images = torch.where(values["gamma"] == 1, images, images.pow(values["gamma"]))
    if ranges.noise > 0:
        images = torch.addcmul(images, values["noise"], _normal(images, values["noise_key"]))
    return images.clamp(0, 1)


def centres(size: int, like: Tensor) -> Tensor:
    """The centres of the pixels along a side that reaches from -1 to 1."""
    return (2 * torch.arange(size, dtype=like.dtype, device=like.device) + 1) / size - 1


def _cropped(images_NCHW: Tensor, values: dict[str, Tensor]) -> Tensor:
    num, _, height, width = images_NCHW.shape
    crop_width, crop_height = values["crop_width"], values["crop_height"]
    x_N11W = values["crop_x"] + crop_width * centres(width, images_NCHW)
    y_N1H1 = values["crop_y"] + crop_height * centres(height, images_NCHW)[:, None]
    grid_NHW2 = torch.stack(
        [x_N11W[:, 0].expand(num, height, width), y_N1H1[:, 0].expand(num, height, width)], -1
    )
    cropped = F.grid_sample(images_NCHW, grid_NHW2, padding_mode="border", align_corners=False)
    return torch.where((crop_width == 1) & (crop_height == 1), images_NCHW, cropped)


def _light(images_NCHW: Tensor, values: dict[str, Tensor]) -> Tensor:
    """The factor of illumination for each pixel, (N, 1, H, W)."""
    direction, waves = values["light_direction"], math.pi * values["light_cycles"]
    x_N11W = waves * direction.cos() * centres(images_NCHW.shape[3], images_NCHW)
    y_N1H1 = waves * direction.sin() * centres(images_NCHW.shape[2], images_NCHW)[:, None]
    return 1 + values["light_strength"] * (x_N11W + y_N1H1 + values["light_phase"]).sin()


def _blurred(images_NCHW: Tensor, sigma_N111: Tensor, radius: int) -> Tensor:
    """Blur along the rows, then along the columns. A sigma of 0 has a single tap, which is 1."""
    squares = torch.arange(radius + 1, dtype=sigma_N111.dtype, device=sigma_N111.device).square()
    taps = (-squares[:, None, None, None, None] / (2 * sigma_N111.clamp(min=1e-3).square())).exp()
    taps = taps / (2 * taps.sum(0) - 1)
    for dim, padding in ((3, (radius, radius, 0, 0)), (2, (0, 0, radius, radius))):
        size = images_NCHW.shape[dim]
        padded = F.pad(images_NCHW, padding, mode="replicate")
        blurred = images_NCHW * taps[0]
        for away in range(1, radius + 1):
            both = padded.narrow(dim, radius - away, size) + padded.narrow(dim, radius + away, size)
            blurred.addcmul_(both, taps[away])
        images_NCHW = blurred
    return images_NCHW


def _coloured(images_N3HW: Tensor, saturation_N111: Tensor, hue_N111: Tensor) -> Tensor:
    """Rotation about the grey axis k: cos(hue) c + sin(hue) k x c for the colour c = pixel - its mean."""
    colour = images_N3HW - images_N3HW.mean(1, keepdim=True)
    across = colour.roll(1, 1) - colour.roll(-1, 1)
    changed = torch.addcmul(images_N3HW, colour, saturation_N111 * hue_N111.cos() - 1)
    return torch.addcmul(changed, across, saturation_N111 * hue_N111.sin() / math.sqrt(3))


def _normal(images_NCHW: Tensor, key_N111: Tensor) -> Tensor:
    """Normal numbers of the images' shape that depend only on key and position, on every device.

    A hash of the key and a counter has 2 x 16 bits, of which the Box-Muller transform makes a pair of
    numbers.
    """
    count = math.prod(images_NCHW.shape[1:])
    counter_Q = torch.arange((count + 1) // 2, device=images_NCHW.device)
    key_N1 = key_N111.flatten(1).long()
    bits_NQ = _hashed(_hashed(key_N1 + 0x9E3779B9) ^ _hashed(counter_Q))
    radius_NQ = (((bits_NQ & 0xFFFF) + 0.5) / 2**16).log().mul(-2).sqrt()
    angle_NQ = (bits_NQ >> 16) * (math.tau / 2**16)
    pairs = torch.cat([radius_NQ * angle_NQ.cos(), radius_NQ * angle_NQ.sin()], 1)
    return pairs[:, :count].reshape(images_NCHW.shape)


def _hashed(word: Tensor) -> Tensor:
    """Mix the 32 low bits of int64 words: xor with shifts, and two odd factors (below 2**31 in size, so that
    no product overflows)."""
    word = word ^ (word >> 16)
    word = (word * 0x7FEB352D) & _WORD
    word = word ^ (word >> 15)
    word = (word * (0x846CA68B - 2**32)) & _WORD
    return word ^ (word >> 16)
