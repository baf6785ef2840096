import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orbitset.encoders import RectifyingEncoder, SpatialTransformer, TransformedEncoder
from orbitset.errors import ConfigError


def _transformer(map=None, size_px=32):
    torch.manual_seed(0)
    transformer = SpatialTransformer(in_channels=1, size_px=size_px)
    if map is not None:
        transformer.map.bias.data = torch.tensor(map)
    return transformer


def test_it_has_the_paper_s_layers():
    transformer = SpatialTransformer(in_channels=1, size_px=64)
    assert transformer.first.weight.shape == (20, 1, 5, 5)
    assert transformer.second.weight.shape == (20, 20, 5, 5)
    assert transformer.hidden.in_features == 20 * 10 * 10
    assert transformer.map.out_features == 6


def test_untrained_it_is_the_identity():
    images = torch.rand(2, 1, 32, 32)
    torch.testing.assert_close(_transformer()(images), images, rtol=0, atol=1e-5)


def test_it_shows_what_its_map_says():
    images = torch.rand(2, 1, 32, 32)
    turned = _transformer([0.0, 1.0, 0.0, -1.0, 0.0, 0.0])(images)
    torch.testing.assert_close(turned, images.rot90(-1, (2, 3)), rtol=0, atol=1e-5)
    pushed = _transformer([1.0, 0.0, 4 / 16, 0.0, 1.0, 0.0])(images)  # four pixels, black beyond
    torch.testing.assert_close(pushed, F.pad(images[..., 4:], (0, 4)), rtol=0, atol=1e-5)


def test_gradients_reach_all_its_weights_once_the_map_depends_on_the_image():
    transformer = _transformer()
    nn.init.normal_(transformer.map.weight, std=0.01)
    transformer(torch.rand(3, 1, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in transformer.parameters())


def test_it_learns_to_undo_a_shift():
    images = torch.zeros(8, 1, 32, 32)
    images[..., 12:20, 12:20] = 1
    shifted = images.roll(5, 3)
    transformer = _transformer()
    optimizer = torch.optim.Adam(transformer.parameters(), lr=1e-2)
    for _ in range(60):
        loss = (transformer(shifted) - images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1 * (shifted - images).square().mean()


def test_it_refuses_images_too_small_for_it():
    with pytest.raises(ConfigError, match="at least 28"):
        SpatialTransformer(in_channels=1, size_px=27)
    SpatialTransformer(in_channels=1, size_px=28)(torch.rand(2, 1, 28, 28))


def test_a_transformed_encoder_encodes_what_the_transformer_shows():
    inner = RectifyingEncoder(size_px=32, channels=(4, 8), code_size=16).eval()
    model = TransformedEncoder(_transformer([0.0, 1.0, 0.0, -1.0, 0.0, 0.0]), inner).eval()
    images = torch.rand(3, 1, 32, 32)
    shown = model.transform(images)
    assert torch.equal(model.encode(images), inner.encode(shown))
    assert torch.equal(model.rectify(images), inner.rectify(shown))
    assert torch.equal(model.decode(inner.encode(shown)), inner.decode(inner.encode(shown)))
    for ours, theirs in zip(model(images), inner(shown), strict=True):
        assert torch.equal(ours, theirs)


def test_it_stands_in_front_of_any_encoder():
    class Plain(nn.Module):
        def encode(self, images):
            return images.flatten(1)

    model = TransformedEncoder(_transformer(), Plain())
    assert model.encode(torch.rand(2, 1, 32, 32)).shape == (2, 1024)
