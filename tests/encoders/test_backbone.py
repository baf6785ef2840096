import numpy as np
import pytest
import torch
from torch import nn

from orbitset.encoders import BackboneEncoder, EncoderConfig
from orbitset.encoders.backbone import check_restorable
from orbitset.encoders.standardised import Standardised
from orbitset.errors import ConfigError


class _Gives(nn.Module):
    def __init__(self, found):
        super().__init__()
        self.found = found

    def forward(self, images):
        return self.found(images)


@pytest.mark.parametrize(("channels", "size_px"), [(1, 32), (3, 33), (3, 50), (1, 96)])
@pytest.mark.parametrize("norm", ["none", "batch", "unit", "sphere"])
def test_images_come_back_in_their_own_shape(channels, size_px, norm):
    net = nn.Conv2d(channels, 5, 3, stride=4)
    model = BackboneEncoder(
        net, in_channels=channels, size_px=size_px, channels=(4, 8), code_size=12, code_norm=norm
    )
    images = torch.rand(3, channels, size_px, size_px)
    codes, rectified = model(images)
    assert codes.shape == (3, 12) and rectified.shape == images.shape
    model.eval()
    torch.testing.assert_close(model.decode(model.encode(images)), model.rectify(images))


def test_every_weight_takes_part():
    model = BackboneEncoder(nn.Conv2d(1, 5, 3), size_px=32, channels=(4, 8), code_size=12)
    codes, rectified = model(torch.rand(3, 1, 32, 32))
    (codes.square().sum() + rectified.square().sum()).backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_map_of_features_is_averaged_over_places():
    net = nn.Conv2d(1, 5, 3)
    model = BackboneEncoder(net, size_px=16, channels=(4,), code_size=12).eval()
    images = torch.rand(2, 1, 16, 16)
    torch.testing.assert_close(model.encode(images), model.code(net(images).mean((2, 3))))


def test_looking_at_a_network_leaves_it_as_it_was():
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten()).train()
    BackboneEncoder(net, size_px=16, channels=(4,), code_size=12)
    assert net.training and net[0].num_batches_tracked == 0


def test_images_of_another_shape_are_refused():
    model = BackboneEncoder(nn.Flatten(), size_px=16, channels=(4,), code_size=12)
    with pytest.raises(ValueError, match=r"takes \(count, 1, 16, 16\)"):
        model.encode(torch.rand(2, 3, 16, 16))


def test_layers_without_a_size_are_refused():
    with pytest.raises(ConfigError, match="has layers without a size"):
        BackboneEncoder(nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), size_px=16)


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (lambda images: images[:, 0], r"gives \(2, 16, 16\) for 2 images"),
        (lambda images: images.flatten(), r"gives \(512,\)"),
        (lambda images: (images, images), "gives tuple"),
        (lambda images: images.view(7, 7), "does not take images of 2 x 1 x 16 x 16"),
        (lambda images: images.flatten(1) * (len(images) / (len(images) - 1)), "division by zero"),
        (lambda images: images.flatten(1).long(), "features of int64"),
        (lambda images: images.flatten(1).log() / 0, "not all finite"),
        (lambda images: images.flatten(1)[:, :0], "gives 0 features"),
        (lambda images: images.mul_(2).flatten(1), "changes its input images"),
        (lambda images: images.flatten(1) + torch.rand(1), "other features for the same images"),
    ],
)
def test_what_gives_no_vector_for_an_image_is_refused(found, word):
    with pytest.raises(ConfigError, match=word):
        BackboneEncoder(_Gives(found), size_px=16)


def test_a_network_behind_its_standardisation_is_called_by_its_own_name():
    network = Standardised(_Gives(lambda images: images.view(7, 7)), [0.5], [0.2])
    with pytest.raises(ConfigError, match="^_Gives does not take images"):
        BackboneEncoder(network, size_px=16)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"is_pretrained": True}, "the paper's has no pretrained weights"),
        ({"head": "features"}, "encoder.head is for another network"),
        ({"norm_statistics": "frozen"}, "encoder.norm_statistics is for another network"),
        ({"code_size": None}, "the paper's network needs a number"),
        ({"backbone": "a:B", "features": "cls"}, "is for networks of transformers"),
        ({"backbone": "a:B", "pool": 4}, "a:B has none of them"),
        ({"backbone": "a:B", "unpooling": "switches"}, "a:B has none of them"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(settings, word):
    with pytest.raises(ConfigError, match=word):
        EncoderConfig(**settings)


def test_codes_begin_as_the_features_of_the_network():
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    images = torch.rand(5, 1, 16, 16)
    model = BackboneEncoder(net, size_px=16, channels=(4,), code_size=None, head="features")
    assert model.code_size == 24
    torch.testing.assert_close(model.encode(images), net(images))
    short = BackboneEncoder(net, size_px=16, channels=(4,), code_size=7, head="features")
    torch.testing.assert_close(short.encode(images), net(images)[:, :7])


def test_frozen_statistics_stay_while_weights_learn():
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6))
    model = BackboneEncoder(net, size_px=16, channels=(4,), code_size=8, norm_statistics="frozen")
    before = {name: value.clone() for name, value in net.named_buffers()}
    model.train()
    codes = model.encode(torch.rand(5, 1, 16, 16))
    codes.sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in net.named_buffers())
    assert net[1].weight.grad is not None
    assert model.decoder.training and not model.eval().decoder.training


class _Forgetful(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Buffer(torch.rand(1), persistent=False)

    def forward(self, images):
        return self.scale * images.flatten(1)


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(256, 256), nn.Linear(256, 256)
        self.b.weight = self.a.weight

    def forward(self, images):
        return self.b(self.a(images.flatten(1)))


class _Noting(nn.Module):
    def get_extra_state(self):
        return {"seen": 3}

    def set_extra_state(self, state):
        pass

    def forward(self, images):
        return images.flatten(1)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (_Forgetful, "with the same weights it gives other codes"),
        (_Tied, "one tensor under two names"),
        (_Noting, "which is no tensor"),
    ],
)
def test_a_network_that_cannot_be_kept_is_refused(kind, word):
    model, again = (BackboneEncoder(kind(), size_px=16, code_size=4) for _ in range(2))
    with pytest.raises(ConfigError, match=word):
        check_restorable(model, lambda: again, torch.rand(2, 1, 16, 16))


def test_another_network_is_made_only_where_one_holds_more_than_its_weights():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    model, others = BackboneEncoder(net, size_px=16, code_size=4), []
    images = torch.rand(2, 1, 16, 16)
    check_restorable(model, lambda: others.append(model) or model, images)
    assert not others
    net.constants = {"means": [torch.ones(1)]}
    check_restorable(model, lambda: others.append(model) or model, images)
    assert others == [model]


def test_a_network_that_its_weights_bring_back_can_be_kept():
    nets = (nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)) for _ in range(2))
    model, again = (BackboneEncoder(net, size_px=16, code_size=4) for net in nets)
    model.backbone.constant = again.backbone.constant = [torch.ones(1)]
    model(torch.rand(4, 1, 16, 16))
    check_restorable(model, lambda: again, torch.rand(2, 1, 16, 16))
    assert model.training


def test_under_autocast_codes_and_images_are_float32():
    model = BackboneEncoder(nn.Flatten(), size_px=16, channels=(4,), code_size=8)
    with torch.autocast("cpu", torch.bfloat16):
        codes, rectified = model(torch.rand(2, 1, 16, 16))
    assert codes.dtype == rectified.dtype == torch.float32


def test_a_network_that_gives_nan_with_its_weights_can_be_kept():
    """Nothing is lost by keeping it; training says what is wrong."""

    class Lost(nn.Module):
        def forward(self, images):
            return images.flatten(1)

    pair = [BackboneEncoder(Lost(), size_px=16, code_size=4) for _ in range(2)]
    with torch.no_grad():
        pair[0].code.bias.fill_(torch.nan)
    pair[0].backbone.constants = {"one": np.ones(1)}
    check_restorable(pair[0], lambda: pair[1], torch.rand(2, 1, 16, 16))


def test_the_decoder_begins_at_half_sizes_rounded_up():
    model = BackboneEncoder(nn.Flatten(), size_px=50, channels=(4, 8, 2), code_size=8)
    assert model.decoder.sides == (13, 25, 50) and model.decoder.top_shape == (2, 7, 7)


def test_codes_that_differ_a_little_are_noticed():
    class Scaled(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = torch.tensor(factor)

        def forward(self, images):
            return self.factor * images.flatten(1)

    model, again = (BackboneEncoder(Scaled(f), size_px=16, code_size=4) for f in (1.0, 1.02))
    with pytest.raises(ConfigError, match="other codes"):
        check_restorable(model, lambda: again, torch.rand(2, 1, 16, 16))
