import pytest
import torch
import torch.nn.functional as F

from orbitset.encoders import EncoderConfig, RectifyingEncoder
from orbitset.errors import ConfigError

UNPOOLINGS = ["copy", "corner", "switches"]


def make_model(seed=0, **options):
    torch.manual_seed(seed)
    return RectifyingEncoder(**{"size_px": 16, "channels": (4, 8), "code_size": 12, **options})


def random_images(num=4, channels=1, size=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num, channels, size, size, generator=generator)


def step_once(model, images):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    codes, rectified = model(images)
    (codes.square().mean() + F.mse_loss(rectified, images)).backward()
    optimizer.step()


@pytest.mark.parametrize("unpooling", UNPOOLINGS)
@pytest.mark.parametrize(
    ("pool", "code_norm", "in_channels"), [(2, "none", 1), (4, "batch", 3), (4, "unit", 1)]
)
def test_codes_and_rectified_images_have_the_promised_shapes(
    unpooling, pool, code_norm, in_channels
):
    model = make_model(unpooling=unpooling, pool=pool, code_norm=code_norm, in_channels=in_channels)
    images = random_images(5, in_channels)
    codes, rectified = model(images)
    assert codes.shape == model.encode(images).shape == (5, 12)
    assert rectified.shape == model.rectify(images).shape == (5, in_channels, 16, 16)
    assert codes.dtype == rectified.dtype == torch.float32


@pytest.mark.parametrize("channels", [(4,), (2, 3, 5), (2, 2, 2, 2)])
def test_any_number_of_blocks_works(channels):
    model = make_model(channels=channels)
    assert model.rectify(random_images()).shape == (4, 1, 16, 16)


def test_the_papers_network_is_the_default():
    model = RectifyingEncoder()
    assert model.encode(torch.zeros(2, 1, 64, 64)).shape == (2, 1024)
    assert model.encoder.widths == (1, 16, 16, 32, 32, 64, 64, 128, 128)


@pytest.mark.parametrize("unpooling", ["copy", "corner"])
@pytest.mark.parametrize("code_norm", ["none", "batch", "unit", "sphere"])
@pytest.mark.parametrize("training", [True, False])
def test_rectifying_is_decoding_the_encoded(unpooling, code_norm, training):
    model = make_model(unpooling=unpooling, code_norm=code_norm).train(training)
    images = random_images()
    codes = model.encode(images)
    torch.testing.assert_close(model.rectify(images), model.decode(codes))
    torch.testing.assert_close(model(images)[0], codes)
    torch.testing.assert_close(model(images)[1], model.decode(codes))


def test_decoding_with_switches_is_an_error_that_says_why_and_rectifying_works():
    model = make_model(unpooling="switches")
    with pytest.raises(ValueError, match="decode needs the pooling switches.*rectify"):
        model.decode(torch.zeros(2, 12))
    assert model.rectify(random_images()).isfinite().all()


def test_the_three_unpoolings_share_codes_and_differ_in_what_they_rectify():
    images = random_images()
    models = [make_model(unpooling=unpooling).eval() for unpooling in UNPOOLINGS]
    codes = [model.encode(images) for model in models]
    assert torch.equal(codes[0], codes[1]) and torch.equal(codes[0], codes[2])
    copy, corner, switches = (model.rectify(images) for model in models)
    assert not torch.allclose(copy, corner)
    assert not torch.allclose(corner, switches)


@pytest.mark.parametrize("training", [True, False])
def test_unit_norm_codes_have_length_1(training):
    codes = make_model(code_norm="unit").train(training).encode(random_images(8))
    torch.testing.assert_close(codes.norm(dim=1), torch.ones(8))


def test_batch_norm_codes_have_mean_0_and_deviation_1_while_training():
    codes = make_model(code_norm="batch").encode(random_images(16))
    torch.testing.assert_close(codes.mean(0), torch.zeros(12), atol=1e-5, rtol=0)
    torch.testing.assert_close(codes.std(0, correction=0), torch.ones(12), atol=0.02, rtol=0)


def test_codes_without_norm_are_neither():
    codes = make_model(code_norm="none").encode(random_images(8))
    assert (codes.norm(dim=1) - 1).abs().min() > 1e-3
    assert codes.mean(0).abs().max() > 1e-3


def test_no_parameter_appears_twice_and_none_of_the_decoder_is_a_matrix():
    model = make_model()
    named = list(model.named_parameters(remove_duplicate=False))
    assert len({p.data_ptr() for _, p in named}) == len(named)
    decoder = {name: value.ndim for name, value in model.state_dict().items() if "decoder" in name}
    assert decoder and max(decoder.values()) == 1


def test_weights_stay_tied_after_a_step():
    model = make_model()
    before = model.encoder.convs[1].weight.detach().clone()
    step_once(model, random_images())
    assert model.encoder.tied_weight(1) is model.encoder.convs[1].weight
    assert not torch.equal(before, model.encoder.convs[1].weight)
    model.eval()
    codes = torch.rand(2, 12, generator=torch.Generator().manual_seed(1))
    moved = model.decode(codes)
    model.encoder.convs[1].weight.data.copy_(before)
    assert not torch.allclose(moved, model.decode(codes))


@pytest.mark.parametrize("unpooling", UNPOOLINGS)
@pytest.mark.parametrize("code_norm", ["none", "batch", "unit", "sphere"])
def test_gradients_reach_every_parameter(unpooling, code_norm):
    model, images = make_model(unpooling=unpooling, code_norm=code_norm), random_images()
    target = torch.rand(4, 12, generator=torch.Generator().manual_seed(1))
    codes, rectified = model(images)
    ((codes - target).square().sum() + (rectified - images).square().sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all() and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("unpooling", UNPOOLINGS)
def test_saved_and_loaded_state_gives_equal_outputs(tmp_path, unpooling):
    model, images = make_model(unpooling=unpooling, code_norm="batch"), random_images()
    step_once(model, images)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other = make_model(seed=1, unpooling=unpooling, code_norm="batch")
    assert not torch.equal(other.eval().encode(images), model.eval().encode(images))
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for ours, theirs in zip(other(images), model(images), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("unpooling", UNPOOLINGS)
def test_forty_steps_on_one_batch_cut_the_error_to_a_fifth(unpooling):
    model, images = make_model(unpooling=unpooling, code_size=32), random_images(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        loss = F.mse_loss(model.rectify(images), images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 5


@pytest.mark.parametrize("unpooling", UNPOOLINGS)
@pytest.mark.parametrize("code_norm", ["batch", "unit"])
def test_autocast_gives_float32_codes_and_images_near_the_exact_ones(unpooling, code_norm):
    model, images = make_model(unpooling=unpooling, code_norm=code_norm).eval(), random_images()
    with torch.autocast("cpu", torch.bfloat16):
        codes, rectified = model(images)
    assert codes.dtype == rectified.dtype == torch.float32
    exact_codes, exact = model(images)
    assert (codes - exact_codes).norm() < 0.05 * exact_codes.norm()
    assert (rectified - exact).norm() < 0.2 * exact.norm()


def test_double_precision_stays_double():
    model = make_model().double()
    codes, rectified = model(random_images().double())
    assert codes.dtype == rectified.dtype == torch.float64


def test_an_image_is_encoded_alike_alone_and_in_a_batch_after_training():
    model, images = make_model(), random_images(6)
    step_once(model, images)
    model.eval()
    alone = torch.cat([model.encode(images[n : n + 1]) for n in range(6)])
    torch.testing.assert_close(model.encode(images), alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", [(4, 3, 16, 16), (4, 1, 32, 32), (4, 1, 16, 8), (1, 16, 16)])
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"this encoder takes \(count, 1, 16, 16\)") as info:
        make_model().encode(torch.zeros(shape))
    assert str(shape) in str(info.value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_images_that_are_not_floats_are_refused(dtype):
    with pytest.raises(TypeError, match=r"images have dtype u?int\d+; give floats in \[0, 1\]"):
        make_model().rectify(torch.zeros(4, 1, 16, 16, dtype=dtype))


@pytest.mark.parametrize(
    ("size_px", "channels", "near_px"),
    [(18, (4, 8), 16), (28, (2, 2, 2), 32), (7, (2,), 8), (100, (2, 2, 2, 2), 96)],
)
def test_a_size_that_cannot_be_halved_is_refused_with_one_that_can(size_px, channels, near_px):
    text = f"images of {size_px} px cannot be halved {len(channels)} times"
    with pytest.raises(ConfigError, match=text) as refused:
        make_model(size_px=size_px, channels=channels)
    assert f"--set orbits.size_px={near_px}" in refused.value.hint
    make_model(size_px=near_px, channels=channels)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"channels": ()}, "encoder.channels is ()"),
        ({"channels": (4, 0)}, "encoder.channels is (4, 0); give one width per block"),
        ({"code_size": 0}, "encoder.code_size is 0; give at least 1"),
        ({"pool": 3}, "encoder.pool is 3; choose 2 or 4"),
        (
            {"code_norm": "layer"},
            "encoder.code_norm is 'layer'; choose one of none, batch, unit, sphere",
        ),
        (
            {"unpooling": "mean"},
            "encoder.unpooling is 'mean'; choose one of copy, corner, switches",
        ),
    ],
)
def test_encoder_settings_out_of_range_are_refused(settings, text):
    with pytest.raises(ConfigError) as info:
        EncoderConfig(**settings)
    assert str(info.value).startswith(text)


@pytest.mark.parametrize(
    ("option", "word"),
    [({"code_norm": "units"}, "code_norm"), ({"unpooling": "corners"}, "unpooling"), ({"pool": 3}, "pool")],
)  # fmt: skip
def test_the_network_refuses_choices_that_it_does_not_have(option, word):
    with pytest.raises(ConfigError, match=f"{word} is .*choose"):
        RectifyingEncoder(**option)
