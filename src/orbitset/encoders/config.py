"""The settings of a network."""

from dataclasses import dataclass
from typing import Literal

from orbitset.config import bounded, check_fields
from orbitset.encoders.code_norm import CodeNorm
from orbitset.encoders.contrast import Contrast
from orbitset.encoders.pooling import Unpooling
from orbitset.encoders.rectifying import Decoder
from orbitset.errors import ConfigError
from orbitset.outside import is_name

PAPERS, TIMM, HF = "vgg", "timm:", "hf:"
Features = Literal["auto", "pooled", "cls", "mean"]
Head = Literal["random", "features"]
Statistics = Literal["trained", "frozen"]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The network; the paper's for MNIST by default."""

    backbone: str = PAPERS
    """vgg, the paper's; timm:NAME; hf:NAME, a network of transformers; or package.module:Class, any network
    that gives a vector for an image"""
    is_pretrained: bool = False
    """Begin with trained weights, where the network has some"""
    features: Features = "auto"
    """What of a network of transformers is used: its pooled output, its CLS token or the mean of its patches;
    auto: the pooled output if the network has trained one, else CLS, else the mean"""
    head: Head = "random"
    """How the layer behind another network begins. features: codes are the network's own features, or their
    principal components if there are fewer numbers in a code"""
    norm_statistics: Statistics = "trained"
    """frozen: normalisation layers of another network keep their means and variances"""
    channels: tuple[int, ...] = (16, 32, 64, 128)
    """Widths of the blocks; of another backbone's decoder"""
    code_size: int | None = bounded(1024, at_least=1)
    """How many numbers a code has; null for as many as another network has features"""
    code_norm: CodeNorm = "none"
    pool: int = 2
    """Side of the pooling windows, 2 or 4; the stride is 2 either way."""
    unpooling: Unpooling = "copy"
    decoder: Decoder | None = None
    """tied: the encoder reversed, with its weights, as the paper has it; free: weights of its own, as other
    networks than the paper's have; null: tied for the paper's network"""
    contrast: Contrast = "given"
    """given: the encoder sees images as they are; local: how each place differs from what is around it"""

    def __post_init__(self) -> None:
        if not self.channels or min(self.channels) < 1:
            raise ConfigError(
                f"encoder.channels is {self.channels}; give one width per block, each ≥ 1"
            )
        if self.pool not in (2, 4):
            raise ConfigError(f"encoder.pool is {self.pool}; choose 2 or 4")
        check_fields(self, "encoder")
        if self.backbone == PAPERS:
            self._check_papers()
        else:
            self._check_backbone()

    @property
    def is_imported(self) -> bool:
        """Whether it names code from outside the package."""
        return self.backbone != PAPERS and not self.backbone.startswith((TIMM, HF))

    @property
    def has_free_decoder(self) -> bool:
        """Whether the decoder shares no weights with the encoder."""
        return self.backbone != PAPERS or self.decoder == "free"

    def _check_papers(self) -> None:
        plain = EncoderConfig.__dataclass_fields__
        for name in ("is_pretrained", "features", "head", "norm_statistics"):
            if getattr(self, name) != plain[name].default:
                raise ConfigError(
                    f"encoder.{name} is for another network: the paper's has no pretrained weights"
                )
        if self.code_size is None:
            raise ConfigError("encoder.code_size is null; the paper's network needs a number")
        if self.has_free_decoder and self.unpooling != "copy":
            raise ConfigError(
                f"encoder.unpooling is {self.unpooling}, and a free decoder has no un-pooling to choose"
            )

    def _check_backbone(self) -> None:
        name = self.backbone
        check_network_name(name)
        if self.features != "auto" and not name.startswith(HF):
            raise ConfigError(
                f"encoder.features is {self.features}, which is for networks of transformers (hf:NAME)"
            )
        if self.is_pretrained and self.contrast != "given":
            raise ConfigError(
                f"the pretrained weights of {name} expect images as they are given; "
                "leave encoder.contrast=given"
            )
        if self.decoder == "tied":
            raise ConfigError(
                "encoder.decoder is tied, and only the paper's network can be reversed"
            )
        if self.pool != 2 or self.unpooling != "copy":
            raise ConfigError(
                f"encoder.pool and encoder.unpooling are the paper's network's; {name} has none of them"
            )


def check_network_name(name: str) -> None:
    """Refuse what is not written as the name of a network."""
    is_library = name.startswith((TIMM, HF)) and name not in (TIMM, HF)
    if name != PAPERS and not is_library and not is_name(name):
        raise ConfigError(
            f"encoder.backbone is {name!r}; give vgg, timm:NAME, hf:NAME or package.module:Class"
        )
