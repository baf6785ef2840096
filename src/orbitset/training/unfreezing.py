"""Head first: a network that is fine-tuned stays as it is while the layers behind it begin to learn. Then it
learns, too, all at once or from its last part to its first."""

import math

from torch import nn

from orbitset.training.blocks import backbone_weights, parts_of


class Unfreezing:
    """Called with the number of each step: it lets weights of the backbone learn from their first step on.

    The last part of the backbone learns after the share `head_first` of the steps, the first part after the
    share `unfreeze` more, those between them at even distances. Weights that do not learn in any case stay
    so.
    """

    def __init__(
        self, model: nn.Module, *, steps: int, head_first: float, unfreeze: float = 0.0
    ) -> None:
        self._parts: list[tuple[int, list[nn.Parameter]]] = []
        self._steps = steps
        if not head_first and not unfreeze:
            return
        weights = {name: w for name, w in backbone_weights(model).items() if w.requires_grad}
        parts = parts_of(model, "train.unfreeze") if unfreeze else [list(weights)]
        for index, part in enumerate(reversed(parts)):
            share = head_first + unfreeze * index / max(1, len(parts) - 1)
            learning = [weights[name] for name in part if name in weights]
            self._parts.append((math.ceil(steps * share), learning))

    @property
    def last_change(self) -> int:
        """The step from which on the same weights learn; 0 if they do throughout."""
        return max((at for at, _ in self._parts if at < self._steps), default=0)

    def __call__(self, step: int) -> None:
        for at, weights in self._parts:
            for weight in weights:
                weight.requires_grad_(step >= at)

    def end(self) -> None:
        """Let all of them learn."""
        self(max((at for at, _ in self._parts), default=0))
