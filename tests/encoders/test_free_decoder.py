"""A decoder with weights of its own."""

import pytest
import torch

from orbitset.encoders import EncoderConfig, RectifyingEncoder, build_encoder
from orbitset.encoders.free_decoder import FreeDecoder
from orbitset.errors import ConfigError

SHAPE = {"size_px": 16, "channels": (4, 8), "code_size": 6}


@pytest.mark.parametrize("size_px", [16, 17, 30])
def test_a_free_decoder_gives_images_of_any_size(size_px):
    decoder = FreeDecoder(in_channels=3, size_px=size_px, channels=(4, 8), code_size=6)
    assert decoder(torch.zeros(2, 6)).shape == (2, 3, size_px, size_px)


def test_a_free_decoder_shares_no_weights_with_the_papers_encoder():
    model = RectifyingEncoder(**SHAPE, decoder="free")
    images = torch.rand(5, 1, 16, 16)
    codes, rectified = model(images)
    rectified.sum().backward(inputs=list(model.decoder.parameters()))
    model.zero_grad()
    model.decode(codes.detach()).square().sum().backward()
    learns = {name.partition(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert learns == {"decoder"}
    assert torch.equal(model.eval().decode(model.encode(images)), model.rectify(images))


def test_the_choice_of_a_decoder_is_part_of_the_encoder():
    tied = build_encoder(EncoderConfig(), in_channels=1, size_px=16)
    free = build_encoder(EncoderConfig(decoder="free"), in_channels=1, size_px=16)
    assert not isinstance(tied.decoder, FreeDecoder) and isinstance(free.decoder, FreeDecoder)


def test_a_decoder_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="only the paper's network can be reversed"):
        EncoderConfig(backbone="timm:resnet18", decoder="tied")
    with pytest.raises(ConfigError, match="a free decoder has no un-pooling to choose"):
        EncoderConfig(decoder="free", unpooling="corner")
