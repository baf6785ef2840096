"""Head first: a network that is fine-tuned stays as it is while the layers behind it begin to learn."""

from torch import nn


class Unfreezing:
    """Called with the number of each step: from step `at` on the backbone of the model learns, too."""

    def __init__(self, model: nn.Module, *, at: int) -> None:
        self.at = at
        named = model.named_parameters() if at else ()
        self._weights = [weight for name, weight in named if "backbone" in name.split(".")]

    def __call__(self, step: int) -> None:
        for weight in self._weights:
            weight.requires_grad_(step >= self.at)
