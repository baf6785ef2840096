import pytest
import torch
import torch.nn.functional as F

from orbitset.encoders.pooling import unpool_copy, unpool_corner
from orbitset.encoders.tied_decoder import TiedDecoder
from orbitset.encoders.vgg import VGGEncoder


def make_pair(unpooling="copy", *, in_channels=1, channels=(3, 4), pool=2):
    """An encoder of 8 px images and its decoder, in float64."""
    torch.manual_seed(0)
    encoder = VGGEncoder(
        in_channels=in_channels, size_px=8, channels=channels, code_size=5, pool=pool
    )
    return encoder.double(), TiedDecoder(encoder, unpooling).double()


def make_linear(encoder, decoder):
    """All weights positive, norms the identity, biases zero: for positive input no ReLU cuts anything."""
    for parameter in (*encoder.parameters(), *decoder.parameters()):
        parameter.data.abs_()
    encoder.code.bias.data.zero_()
    for norm in (*encoder.norms, *decoder.norms, decoder.top_norm):
        norm.eps = 0.0
    encoder.eval(), decoder.eval()


def rand(*shape, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_a_deconvolution_is_the_adjoint_of_its_convolution(index):
    weight = make_pair()[0].tied_weight(index)
    x, y = rand(2, weight.shape[1], 6, 6), rand(2, weight.shape[0], 6, 6, seed=1)
    forward, back = F.conv2d(x, weight, padding=1), F.conv_transpose2d(y, weight, padding=1)
    torch.testing.assert_close((forward * y).sum(), (x * back).sum())


@pytest.mark.parametrize("pool", [2, 4])
@pytest.mark.parametrize("channels", [(3,), (3, 4), (2, 3, 4)])
def test_the_decoder_with_switches_is_the_adjoint_of_the_encoder(channels, pool):
    encoder, decoder = make_pair("switches", in_channels=3, channels=channels, pool=pool)
    make_linear(encoder, decoder)
    images, codes = rand(2, 3, 8, 8), rand(2, 5, seed=1)
    encoded, switches = encoder(images, keep_switches=True)
    decoded = decoder(codes, encoder, switches)
    torch.testing.assert_close((encoded * codes).sum((1,)), (images * decoded).sum((1, 2, 3)))


@pytest.mark.parametrize(
    ("unpooling", "unpool"), [("copy", unpool_copy), ("corner", unpool_corner)]
)
@pytest.mark.parametrize("pool", [2, 4])
def test_every_layer_but_the_last_has_norm_and_relu(unpooling, unpool, pool):
    encoder, decoder = make_pair(unpooling, channels=(3,), pool=pool)
    decoder.bias.data.fill_(0.5)
    codes = rand(4, 5) - 0.5
    features = (codes @ encoder.code.weight).view(4, 3, 4, 4)
    features = F.batch_norm(features, None, None, training=True).relu()
    features = F.conv_transpose2d(unpool(features, pool), encoder.tied_weight(1), padding=1)
    features = F.batch_norm(features, None, None, training=True).relu()
    expected = F.conv_transpose2d(features, encoder.tied_weight(0), padding=1) + 0.5
    torch.testing.assert_close(decoder(codes, encoder, []), expected)
    assert expected.min() < 0


def test_the_decoder_holds_no_weights_but_norms_and_a_bias():
    _, decoder = make_pair(in_channels=3)
    names = {name.rsplit(".", 1)[0] for name, _ in decoder.named_parameters()}
    assert names == {"top_norm", "norms.0", "norms.1", "norms.2", "bias"}
    assert all(parameter.ndim == 1 for parameter in decoder.parameters())
    assert decoder.bias.shape == (3,)


def test_gradients_of_decoding_reach_every_weight_of_the_encoder():
    encoder, decoder = make_pair()
    decoder(rand(4, 5), encoder, []).square().sum().backward()
    weights = [encoder.code.weight, *(conv.weight for conv in encoder.convs)]
    assert all(weight.grad.abs().max() > 0 for weight in weights)
    assert encoder.code.bias.grad is None
