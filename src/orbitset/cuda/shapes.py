"""How each layer is best cut up, as measured on an H200 with batches of 256 and of 1,024 images."""

Convolution = tuple[int, int, int, int, int]
Gradient = tuple[int, int, int, int, int, int, int]

MANY_IMAGES = 512
"""From this size of batch on, the second shape is taken."""

# (size, inputs, outputs, operand, result): the fields of two ConvolutionShapes
CONVOLUTIONS: dict[tuple[int, int, int, str, str], tuple[Convolution, Convolution]] = {
    (64, 16, 16, "ACT", "IMAGE"): ((512, 8, 2, 4, 2), (512, 8, 2, 4, 2)),
    (64, 16, 16, "ACT", "STATS"): ((256, 8, 2, 6, 2), (512, 8, 2, 3, 2)),
    (64, 16, 16, "ACT_UP", "STATS"): ((512, 8, 2, 4, 2), (512, 8, 2, 4, 2)),
    (64, 16, 16, "IM2COL", "STATS"): ((256, 8, 2, 4, 2), (256, 8, 2, 4, 2)),
    (32, 16, 32, "ACT_POOL", "STATS"): ((256, 8, 2, 3, 2), (256, 8, 2, 3, 2)),
    (32, 32, 16, "ACT", "STATS"): ((512, 4, 2, 2, 1), (256, 4, 2, 3, 2)),
    (32, 32, 32, "ACT", "STATS"): ((256, 8, 2, 4, 1), (256, 8, 2, 3, 2)),
    (32, 32, 32, "ACT_UP", "STATS"): ((256, 8, 2, 4, 1), (256, 8, 2, 3, 1)),
    (16, 32, 64, "ACT_POOL", "STATS"): ((256, 4, 8, 2, 1), (128, 4, 4, 3, 1)),
    (16, 32, 64, "GRAD", "MASK"): ((128, 8, 2, 4, 1), (128, 8, 2, 4, 1)),
    (16, 64, 32, "ACT", "STATS"): ((256, 8, 2, 2, 2), (256, 8, 2, 4, 1)),
    (16, 64, 32, "GRAD", "MASK_POOL"): ((256, 4, 2, 2, 1), (256, 4, 2, 2, 1)),
    (16, 64, 64, "ACT", "STATS"): ((256, 4, 8, 2, 2), (128, 4, 4, 3, 1)),
    (16, 64, 64, "ACT_UP", "STATS"): ((128, 8, 2, 2, 2), (128, 8, 2, 2, 2)),
    (16, 64, 64, "GRAD", "SUM_MASK"): ((256, 4, 8, 2, 1), (128, 8, 2, 3, 1)),
    (16, 64, 64, "GRAD_POOL", "MASK"): ((256, 4, 4, 2, 1), (128, 4, 4, 3, 1)),
    (8, 64, 128, "ACT_POOL", "STATS"): ((64, 4, 4, 2, 1), (64, 4, 8, 2, 1)),
    (8, 64, 128, "GRAD", "MASK"): ((64, 4, 4, 3, 1), (64, 4, 4, 3, 2)),
    (8, 128, 64, "ACT", "STATS"): ((64, 2, 4, 3, 2), (128, 4, 4, 2, 2)),
    (8, 128, 64, "GRAD", "MASK_POOL"): ((64, 4, 2, 2, 1), (64, 4, 4, 4, 1)),
    (8, 128, 128, "ACT", "STATS"): ((64, 4, 4, 2, 1), (64, 4, 4, 2, 1)),
    (8, 128, 128, "ACT_UP", "STATS"): ((64, 4, 4, 2, 2), (64, 4, 4, 2, 1)),
    (8, 128, 128, "GRAD", "SUM_MASK"): ((64, 4, 4, 2, 2), (64, 4, 4, 2, 1)),
    (8, 128, 128, "GRAD_POOL", "MASK"): ((64, 4, 4, 2, 2), (64, 4, 4, 2, 2)),
}
# The same, of those that give their weights' gradient too
BOTH_GRADIENTS: dict[tuple[int, int, int, str, str], tuple[Convolution, Convolution]] = {
    (64, 16, 16, "GRAD_POOL", "MASK"): ((256, 8, 2, 3, 2), (256, 8, 2, 4, 2)),
    (64, 16, 16, "GRAD", "SUM_MASK"): ((256, 4, 2, 3, 2), (256, 4, 2, 3, 2)),
    (64, 16, 16, "IM2COL", "MASK"): ((512, 8, 2, 5, 1), (256, 8, 2, 8, 1)),
    (32, 32, 32, "GRAD_POOL", "MASK"): ((256, 8, 2, 2, 2), (256, 8, 2, 2, 2)),
    (32, 32, 32, "GRAD", "SUM_MASK"): ((256, 4, 4, 2, 2), (128, 4, 2, 3, 2)),
    (32, 32, 16, "GRAD", "MASK_POOL"): ((256, 4, 2, 2, 2), (128, 4, 2, 5, 1)),
    (32, 16, 32, "GRAD", "MASK"): ((256, 4, 4, 2, 2), (128, 4, 2, 3, 2)),
}
# (size, inputs, outputs, operand of the encoder, whether the decoder is tied to it): two GradientShapes.
WEIGHT_GRADIENTS: dict[tuple[int, int, int, str, bool], tuple[Gradient, Gradient]] = {
    (64, 16, 16, "IM2COL", False): ((128, 1, 2, 1, 2, 5, 2), (256, 1, 2, 1, 4, 4, 2)),
    (16, 32, 64, "ACT_POOL", False): ((256, 2, 2, 4, 1, 1, 2), (256, 2, 2, 4, 1, 1, 2)),
    (16, 32, 64, "ACT_POOL", True): ((256, 2, 2, 4, 1, 1, 2), (256, 2, 2, 4, 1, 1, 2)),
    (16, 64, 64, "ACT", False): ((256, 4, 4, 1, 2, 1, 2), (256, 4, 4, 2, 1, 1, 2)),
    (16, 64, 64, "ACT", True): ((128, 2, 2, 4, 1, 2, 1), (256, 4, 4, 2, 1, 1, 2)),
    (8, 64, 128, "ACT_POOL", False): ((128, 2, 2, 4, 1, 1, 2), (128, 4, 4, 2, 1, 1, 2)),
    (8, 64, 128, "ACT_POOL", True): ((64, 2, 4, 2, 1, 2, 2), (64, 2, 4, 2, 1, 2, 2)),
    (8, 128, 128, "ACT", False): ((512, 4, 4, 2, 1, 1, 1), (256, 4, 4, 2, 1, 1, 2)),
    (8, 128, 128, "ACT", True): ((64, 2, 4, 2, 1, 2, 2), (64, 2, 4, 2, 1, 2, 2)),
}
