import torch

from orbitset.encoders import BackboneEncoder, EncoderConfig, TransformedEncoder, build_encoder
from orbitset.encoders.code_norm import UnitNorm
from orbitset.encoders.contrast import LocalContrast


def test_build_encoder_follows_every_setting():
    config = EncoderConfig(
        channels=(2, 4), code_size=7, code_norm="batch", pool=4, unpooling="corner"
    )
    model = build_encoder(config, in_channels=3, size_px=20)
    assert (model.in_channels, model.size_px, model.code_size) == (3, 20, 7)
    assert model.encoder.widths == (3, 2, 2, 4, 4)
    assert (model.encoder.pool, model.decoder.unpooling) == (4, "corner")
    assert isinstance(model.code_norm, torch.nn.BatchNorm1d)
    assert model.rectify(torch.rand(2, 3, 20, 20)).shape == (2, 3, 20, 20)


def test_a_transformer_is_put_in_front():
    model = build_encoder(
        EncoderConfig(channels=(2,)), in_channels=1, size_px=28, has_transformer=True
    )
    assert isinstance(model, TransformedEncoder) and model.encoder.size_px == 28


def test_another_backbone_follows_every_setting_too():
    config = EncoderConfig(
        backbone="torch.nn:Flatten",
        channels=(2, 4),
        code_size=7,
        code_norm="unit",
        contrast="local",
    )
    model = build_encoder(config, in_channels=3, size_px=20)
    assert isinstance(model, BackboneEncoder)
    assert (model.in_channels, model.size_px, model.code_size) == (3, 20, 7)
    assert isinstance(model.code_norm, UnitNorm) and isinstance(model.contrast, LocalContrast)
    assert len(model.decoder.convs) == 2
