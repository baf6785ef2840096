import pytest
import torch
from torch import nn

from orbitset.encoders import BackboneEncoder, EncoderConfig, RectifyingEncoder, build_encoder
from orbitset.encoders.contrast import LocalContrast
from orbitset.errors import ConfigError


def _slowly(images, reach, floor):
    """One pixel after the other, from the definition."""

    def around(of):
        means = torch.empty_like(of)
        for row in range(of.shape[2]):
            for column in range(of.shape[3]):
                rows = slice(max(0, row - reach), row + reach + 1)
                columns = slice(max(0, column - reach), column + reach + 1)
                means[:, :, row, column] = of[:, :, rows, columns].mean((2, 3))
        return means

    centred = images - around(images)
    return centred / (around(centred**2).sqrt() + floor)


@pytest.mark.parametrize(("size_px", "reach"), [(4, 1), (16, 2), (28, 3)])
@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_what_the_definition_says(size_px, reach, channels):
    images = torch.rand(3, channels, size_px, size_px, dtype=torch.float64)
    expected = _slowly(images, reach, 0.05)
    torch.testing.assert_close(LocalContrast(size_px=size_px)(images), expected)


def test_strength_and_a_slow_change_of_light_hardly_matter():
    torch.manual_seed(0)
    images = torch.rand(4, 1, 32, 32)
    ramp = torch.linspace(0.4, 1.0, 32)
    seen = LocalContrast(size_px=32)
    found, expected = seen(images * ramp), seen(images)
    assert (found - expected).square().mean() < 0.03 * expected.square().mean()
    assert (images * ramp - images).square().mean() > 0.1 * images.square().mean()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_flat_image_is_flat_and_has_finite_gradients(dtype):
    images = torch.full((2, 1, 16, 16), 0.75, dtype=dtype, requires_grad=True)
    seen = LocalContrast(size_px=16)(images)
    seen.sum().backward()
    assert seen.abs().max() < 1e-4 and images.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_it_is_computed_in_float32(dtype):
    images = torch.rand(2, 1, 16, 16).to(dtype)
    expected = LocalContrast(size_px=16)(images.float())
    with torch.autocast("cpu", torch.bfloat16):
        found = LocalContrast(size_px=16)(images)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected.to(dtype))


def test_an_encoder_looks_at_contrast_and_rectifies_what_was_given():
    torch.manual_seed(0)
    given, local = (
        build_encoder(
            EncoderConfig(channels=(4, 8), code_size=16, contrast=contrast),
            in_channels=1,
            size_px=32,
        ).eval()
        for contrast in ("given", "local")
    )
    given.load_state_dict(local.state_dict())
    images = torch.rand(3, 1, 32, 32)
    expected = given.encode(LocalContrast(size_px=32)(images))
    torch.testing.assert_close(local.encode(images), expected)
    torch.testing.assert_close(local.rectify(images), given.decode(expected))
    assert not torch.allclose(expected, given.encode(images), atol=1e-3)


def test_other_networks_can_look_at_contrast_too():
    backbone = nn.Flatten()
    torch.manual_seed(0)
    plain = BackboneEncoder(backbone, size_px=16, channels=(4,), code_size=8)
    local = BackboneEncoder(backbone, size_px=16, channels=(4,), code_size=8, contrast="local")
    local.load_state_dict(plain.state_dict())
    images = torch.rand(3, 1, 16, 16)
    torch.testing.assert_close(
        local.encode(images), plain.encode(LocalContrast(size_px=16)(images))
    )


def test_an_unknown_contrast_is_refused():
    with pytest.raises(ConfigError, match=r"encoder.contrast.*given.*local"):
        EncoderConfig(contrast="global")
    with pytest.raises(ConfigError, match="contrast"):
        RectifyingEncoder(contrast="global")
    with pytest.raises(ConfigError, match="contrast"):
        BackboneEncoder(nn.Flatten(), size_px=16, channels=(4,), code_size=8, contrast=None)


def test_weights_of_others_are_shown_what_they_expect():
    with pytest.raises(ConfigError, match="timm:resnet18 expect images as they are given"):
        EncoderConfig(backbone="timm:resnet18", is_pretrained=True, contrast="local")


def test_a_network_that_takes_no_negative_numbers_is_refused_at_once():
    class Root(nn.Flatten):
        def forward(self, images):
            return super().forward(images.sqrt())

    BackboneEncoder(Root(), size_px=16, channels=(4,), code_size=8)
    with pytest.raises(ConfigError, match="Root gives 256 features .* finite"):
        BackboneEncoder(Root(), size_px=16, channels=(4,), code_size=8, contrast="local")
