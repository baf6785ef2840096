"""How each layer is best cut up, as measured on an H200 with batches of 256 and 1,024 images."""

CONVOLUTIONS: dict[tuple[int, int, int, str, str], tuple[int, int, int, int, int]] = {}
WEIGHT_GRADIENTS: dict[
    tuple[int, int, int, str, str], tuple[int, int, int, int, int, int, int]
] = {}
