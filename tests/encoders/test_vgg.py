import pytest
import torch
import torch.nn.functional as F

from orbitset.encoders.pooling import max_pool
from orbitset.encoders.vgg import VGGEncoder


def make_encoder(*, in_channels=1, size_px=16, channels=(4, 8), code_size=6, pool=2):
    torch.manual_seed(0)
    return VGGEncoder(
        in_channels=in_channels, size_px=size_px, channels=channels, code_size=code_size, pool=pool
    )


def random_images(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def test_the_papers_encoder_has_eight_convolutions_of_doubling_width():
    encoder = make_encoder(size_px=64, channels=(16, 32, 64, 128), code_size=1024)
    shapes = [tuple(conv.weight.shape[:2]) for conv in encoder.convs]
    assert shapes == [
        *((16, 1), (16, 16), (32, 16), (32, 32), (64, 32), (64, 64), (128, 64), (128, 128)),
    ]
    assert encoder.top_shape == (128, 4, 4)
    assert encoder.code.weight.shape == (1024, 128 * 4 * 4)


def test_convolutions_leave_their_bias_to_batch_norm():
    encoder = make_encoder()
    assert all(conv.bias is None for conv in encoder.convs)
    assert [norm.num_features for norm in encoder.norms] == [4, 4, 8, 8]


@pytest.mark.parametrize("pool", [2, 4])
def test_forward_is_convolution_norm_relu_twice_then_pooling(pool):
    encoder, features = make_encoder(pool=pool).eval(), random_images(3, 1, 16, 16)
    for norm in encoder.norms:
        norm.running_mean.uniform_(-0.1, 0.1)
        norm.running_var.uniform_(0.5, 2)
    images = features
    for block in range(2):
        for index in (2 * block, 2 * block + 1):
            norm = encoder.norms[index]
            features = F.conv2d(features, encoder.convs[index].weight, padding=1)
            scale = (norm.weight / (norm.running_var + norm.eps).sqrt())[:, None, None]
            shifted = features - norm.running_mean[:, None, None]
            features = (shifted * scale + norm.bias[:, None, None]).clamp(min=0)
        features = max_pool(features, pool)
    expected = features.flatten(1) @ encoder.code.weight.T + encoder.code.bias
    torch.testing.assert_close(encoder(images)[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pool", [2, 4])
def test_codes_do_not_depend_on_whether_switches_are_kept(pool):
    encoder, images = make_encoder(pool=pool).eval(), random_images(3, 1, 16, 16)
    codes, none = encoder(images)
    codes_too, switches = encoder(images, keep_switches=True)
    torch.testing.assert_close(codes, codes_too, atol=1e-6, rtol=0)
    assert none == []
    assert [tuple(s.shape) for s in switches] == [(3, 4, 8, 8), (3, 8, 4, 4)]


def test_tied_weight_is_the_convolutions_own_parameter():
    encoder = make_encoder()
    for index, conv in enumerate(encoder.convs):
        assert encoder.tied_weight(index) is conv.weight
