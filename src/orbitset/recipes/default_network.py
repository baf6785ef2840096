"""Which network a training on grouped images begins with, if the user names none."""

from dataclasses import dataclass
from importlib.util import find_spec

from orbitset.encoders.config import HF, TIMM
from orbitset.encoders.named import look_at
from orbitset.errors import ConfigError
from orbitset.orbits.observed import ObservedConfig


@dataclass(frozen=True)
class Offered:
    """A pretrained network that is used where its weights are at hand."""

    name: str
    library: str
    repository: str
    """Where its weights come from, on the Hugging Face hub"""
    files: tuple[str, ...]
    """What its library reads of them; timm knows its networks without their configurations"""

    @property
    def is_at_hand(self) -> bool:
        """Whether its library and its files are on this machine."""
        if find_spec(self.library) is None or find_spec("huggingface_hub") is None:
            return False
        from huggingface_hub import try_to_load_from_cache

        cached = (try_to_load_from_cache(self.repository, file) for file in self.files)
        return all(isinstance(path, str) for path in cached)


OFFERED = (
    Offered(
        f"{TIMM}tf_efficientnet_lite0.in1k",
        "timm",
        "timm/tf_efficientnet_lite0.in1k",
        ("model.safetensors",),
    ),
    Offered(
        f"{HF}facebook/dinov2-small",
        "transformers",
        "facebook/dinov2-small",
        ("config.json", "preprocessor_config.json", "model.safetensors"),
    ),
)
"""The first has the weights that were compared on the development sets (docs/log.md)."""
_LEAST_PX = 64


def default_network(orbits: ObservedConfig) -> tuple[str | None, str]:
    """The name of a pretrained network, or None for the paper's from random weights; and why, in words.

    Nothing is fetched: a network counts if its weights are at hand.
    """
    size_px = orbits.size_px or _LEAST_PX
    if not orbits.is_colour or size_px < _LEAST_PX:
        kind = f"images of {size_px} px" if orbits.is_colour else "grey images"
        return None, f"{kind} are unlike what pretrained networks have learned from"
    passed_over = ""
    for network in OFFERED:
        if not network.is_at_hand:
            continue
        try:
            look_at(network.name)
        except ConfigError as error:  # a library that cannot be imported
            passed_over += f"\npassed over, although its weights are at hand: {error.message}"
            continue
        return network.name, f"the images are in colour, and its weights are at hand{passed_over}"
    if passed_over:
        return None, f"no pretrained network can be used{passed_over}"
    first = OFFERED[0]
    return None, (
        "no weights of a pretrained network are on this machine\n"
        "A pretrained network usually gives better codes of photographs; to fetch one: "
        f"pip install {first.library}; hf download {first.repository}"
    )
