"""The embedded default: scikit-learn's 1,797 handwritten digits of 8x8 pixels, no download needed.

They are enlarged to 12x12 in the middle of a 16x16 image: about the share of the image that MNIST's
digits fill (20 of 28 pixels), so that affine ranges keep the paper's proportion to the digit.
"""

import torch
import torch.nn.functional as F

from orbitset.datasets.images import ImageSet, Splits
from orbitset.seeds import stream

DIGIT_PX, IMAGE_PX = 12, 16
NUM_TEST, NUM_VALIDATION = 500, 300


def load_digits() -> Splits:
    """997 digits to train, 300 to label from and 500 to test, always the same ones."""
    from sklearn.datasets import load_digits as load

    bunch = load()
    small = torch.as_tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    large = F.interpolate(small, size=DIGIT_PX, mode="bicubic", align_corners=False).clamp(0, 1)
    margin = (IMAGE_PX - DIGIT_PX) // 2
    images = F.pad((large * 255).round().to(torch.uint8), (margin,) * 4)
    digits = ImageSet(images, torch.as_tensor(bunch.target, dtype=torch.int64))
    digits = digits[torch.randperm(len(digits), generator=stream("digits"))]
    return Splits(
        train=digits[NUM_TEST + NUM_VALIDATION :],
        validation=digits[NUM_TEST : NUM_TEST + NUM_VALIDATION],
        test=digits[:NUM_TEST],
    )
