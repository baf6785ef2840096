import pytest
import torch
from torch import nn

from orbitset.encoders import BackboneEncoder, EncoderConfig, build_encoder
from orbitset.encoders.folded import FoldedEncoder


def _network(**settings):
    """One whose batch norms have seen images, and have weights of all kinds."""
    torch.manual_seed(0)
    transformed = settings.pop("has_transformer", False)
    config = EncoderConfig(channels=(4, 8), code_size=16, **settings)
    network = build_encoder(config, in_channels=3, size_px=32, has_transformer=transformed)
    for _ in range(3):
        network(torch.rand(8, 3, 32, 32) * 2)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)  # below 0 too
            nn.init.normal_(module.bias)
    return network.eval()


@pytest.mark.parametrize("norm", ["none", "batch", "unit", "sphere"])
@pytest.mark.parametrize("pool", [2, 4])
@pytest.mark.parametrize("has_transformer", [False, True])
@pytest.mark.parametrize("contrast", ["given", "local"])
def test_codes_are_the_same_but_for_rounding(norm, pool, has_transformer, contrast):
    network = _network(
        code_norm=norm, pool=pool, has_transformer=has_transformer, contrast=contrast
    )
    images = torch.rand(5, 3, 32, 32)
    with torch.inference_mode():
        found, expected = FoldedEncoder(network).encode(images), network.encode(images)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = FoldedEncoder(network).encode(images)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, expected, rtol=0.1, atol=0.1 * expected.abs().max().item())


def test_other_networks_encode_as_they_do():
    network = BackboneEncoder(nn.Conv2d(1, 5, 3), size_px=16, channels=(4,), code_size=8).eval()
    images = torch.rand(2, 1, 16, 16)
    assert torch.equal(FoldedEncoder(network).encode(images), network.encode(images))


@pytest.mark.parametrize("change", ["weight", "statistics", "loaded", "replaced"])
def test_it_notices_when_the_network_changes(change):
    network = _network()
    folded = FoldedEncoder(network)
    assert folded.is_current
    with torch.no_grad():
        if change == "weight":
            network.encoder.convs[1].weight.mul_(2)
        elif change == "statistics":
            network.train()(torch.rand(8, 3, 32, 32))
        elif change == "loaded":
            network.load_state_dict(network.state_dict())
        else:
            network.encoder.code = nn.Linear(512, 16)
    assert not folded.is_current


def test_images_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"takes \(count, 3, 32, 32\)"):
        FoldedEncoder(_network()).encode(torch.rand(2, 1, 32, 32))


def test_variances_as_small_as_eps_are_folded_rightly():
    network = _network()
    for norm in network.encoder.norms:
        norm.running_var.fill_(2e-5)
    network.encoder.norms[0].weight.data.fill_(1e-3)
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        expected = network.encode(images)
        torch.testing.assert_close(
            FoldedEncoder(network).encode(images),
            expected,
            rtol=1e-3,
            atol=1e-3 * float(expected.abs().max()),
        )
