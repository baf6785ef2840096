"""Kernels of our own held to plain torch code; run with -m gpu where there is a GPU."""

import copy

import pytest
import torch
from fused_passes import by_block, decode_with, relative_error, with_norms_that_matter

from orbitset.cuda import packing
from orbitset.cuda.code_norm import can_normalise, normalise
from orbitset.cuda.fused import FusedEncoder, _Pass
from orbitset.cuda.fused_plan import Plan
from orbitset.encoders import RectifyingEncoder
from orbitset.orbits import AffineRanges, sample_affine, warp
from orbitset.orbits.affine import warp_reference

pytestmark = pytest.mark.gpu


_DRAWS = 4


def _model(size, channels, code_norm="none", unpooling="copy"):
    torch.manual_seed(0)
    model = RectifyingEncoder(
        size_px=size, channels=channels, code_size=64, code_norm=code_norm, unpooling=unpooling
    ).cuda()
    return with_norms_that_matter(model)


def _pass(model, run, images, pulls, *, uses_decoder):
    """Outputs and gradients, by name."""
    model.zero_grad(set_to_none=True)
    images = images.clone().requires_grad_()
    outputs = list(run(images)) if uses_decoder else [run(images)]
    torch.autograd.backward(outputs, [p.to(o.dtype) for p, o in zip(pulls, outputs, strict=False)])
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    named = {f"output {number}": output.detach() for number, output in enumerate(outputs)}
    return named | grads | {"images": images.grad}


@pytest.mark.parametrize(
    ("size", "channels", "num"),
    [
        (64, (16, 32, 64, 128), 7),
        (64, (16, 32, 64, 128), 300),
        (64, (16, 32, 64, 128), 600),
        (32, (16, 32), 5),
        (32, (32, 32, 128), 33),
        (16, (128, 16), 3),
        (8, (64,), 2),
    ],
)
@pytest.mark.parametrize("code_norm", ["none", "batch", "unit", "sphere"])
@pytest.mark.parametrize(
    ("uses_decoder", "unpooling"), [(True, "copy"), (True, "switches"), (False, "copy")]
)
def test_the_fused_network_is_as_near_the_truth_as_autocast(
    size, channels, num, code_norm, uses_decoder, unpooling
):
    """Truth: the same network in float64, for outputs and every gradient; running statistics are those of
    autocast.

    Rounding turns single ReLUs on or off, which decides gradients that all but cancel: errors are those of
    several draws together.
    """
    if num >= 300 and code_norm != "none":
        pytest.skip("once is enough for the large batches, of which blocks take many tiles")
    model, exact = (_model(size, channels, code_norm, unpooling) for _ in range(2))
    exact = exact.double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fused = FusedEncoder(model)

    def autocast(x):
        with torch.autocast("cuda", torch.bfloat16):
            return model(x) if uses_decoder else model.encode(x)

    runs = (fused, exact) if uses_decoder else (fused.encode, exact.encode)
    errors = {}
    for draw in range(_DRAWS):
        torch.manual_seed(draw)
        images = torch.rand(num, 1, size, size, device="cuda")
        pulls = [torch.randn(num, 64, device="cuda"), torch.randn_like(images)]
        ours = _pass(model, runs[0], images, pulls, uses_decoder=uses_decoder)
        fused_statistics = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(before)
        if unpooling == "switches":
            switches = _switches_of(fused, images)
            for other in (model, exact):
                decode_with(other, switches)
            model.load_state_dict(before)
        truths = _pass(exact, runs[1], images.double(), pulls, uses_decoder=uses_decoder)
        theirs = _pass(model, autocast, images, pulls, uses_decoder=uses_decoder)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(fused_statistics[name], value, rtol=2e-2, atol=2e-3)
        model.load_state_dict(before)
        assert ours.keys() == theirs.keys()
        for name, truth in truths.items():
            if truth.norm() > 1e-6 * num:
                found = relative_error(ours[name], truth), relative_error(theirs[name], truth)
                errors.setdefault(name, []).append(found)
    assert truths.keys() - errors.keys() <= {"encoder.code.bias"}  # which norms of the code undo
    for name, found in errors.items():
        fused_error, error = (
            sum(one**2 for one in side) ** 0.5 for side in zip(*found, strict=True)
        )
        factor, floor = (1.2, 1e-3) if name.startswith("output") else (1.5, 4e-3)
        assert fused_error <= factor * error + floor * len(found) ** 0.5, name


def test_the_fused_network_looks_at_contrast_too():
    model = RectifyingEncoder(size_px=32, channels=(16, 32), code_size=64, contrast="local").cuda()
    images = torch.rand(9, 1, 32, 32, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        expected = model(images)
    for found, wanted in zip(FusedEncoder(model)(images), expected, strict=True):
        assert relative_error(found.detach(), wanted) < 0.02


def _switches_of(fused, images):
    run = _Pass(fused.plan, images, uses_decoder=True)
    run.encode()
    return by_block(run.switches)


def test_fused_switches_are_those_of_the_largest_cells():
    model = _model(32, (16, 32), unpooling="switches")
    images = torch.rand(9, 1, 32, 32, device="cuda")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = _switches_of(FusedEncoder(model), images)
    model.load_state_dict(before)
    with torch.autocast("cuda", torch.bfloat16):
        expected = model._encode(images, keep_switches=True)[1]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape and ours.unique().tolist() == [0, 1, 2, 3]
        assert (ours == theirs).float().mean() > 0.98  # all but those that rounding decides


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_of_equal_cells_the_first_is_taken(value):
    """A plane image: away from its rim all cells of a window are equal, above zero or not."""
    model = _model(32, (16, 32), unpooling="switches")
    images = torch.full((2, 1, 32, 32), value, device="cuda")
    images[1] = torch.rand(32, 32, device="cuda")  # else batch norm has no scale
    first = _switches_of(FusedEncoder(model), images)[0]
    assert (first[0, :, 2:-2, 2:-2] == 0).all() and (first[1] != 0).any()


def test_a_nan_is_not_lost_in_the_fused_network():
    model = _model(32, (16, 32))
    images = torch.rand(4, 1, 32, 32, device="cuda")
    images[1, 0, 5, 5] = float("nan")
    codes, rectified = FusedEncoder(model)(images)
    assert codes.isnan().any() and rectified.isnan().any()


def test_the_fused_pass_goes_back_once_and_only_in_training():
    model = _model(32, (16, 32))
    images = torch.rand(4, 1, 32, 32, device="cuda")
    fused = FusedEncoder(model)
    codes, _ = fused(images)
    codes.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once only"):
        codes.sum().backward()
    model.eval()
    with pytest.raises(RuntimeError, match="for training"):
        fused(images)


@pytest.mark.parametrize("has_more", [False, True])
@pytest.mark.parametrize("num", [2, 70, 600])
def test_batch_norm_of_codes_is_torchs(num, has_more):
    torch.manual_seed(0)
    linear = (3 + 2 * torch.randn(num, 48, device="cuda")).bfloat16()
    more = torch.randn(num, 48, device="cuda").bfloat16() if has_more else None
    pull = torch.randn(num, 48, device="cuda")
    norm = torch.nn.BatchNorm1d(48, momentum=0.3).cuda()
    torch.nn.init.uniform_(norm.weight, -1, 1)
    torch.nn.init.normal_(norm.bias)
    truth = copy.deepcopy(norm).double()
    leaf = linear.double().requires_grad_()
    expected = truth(leaf)
    expected.backward(pull.double() + (0 if more is None else more.double()))

    rounded, gradient = torch.empty_like(linear), torch.empty_like(linear)
    assert can_normalise(norm, num) and not can_normalise(norm, 1)
    codes, back = normalise(linear, norm, rounded)
    odd = torch.cat([pull.new_zeros(1), pull.flatten()])[1:].view_as(pull)  # lies at an odd place
    grad_weight, grad_bias, grad_before = back.backward(odd, more, gradient)
    torch.testing.assert_close(codes.double(), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(rounded, codes.bfloat16())
    for ours, theirs in (
        (norm.running_mean, truth.running_mean),
        (norm.running_var, truth.running_var),
        (grad_weight, truth.weight.grad),
        (grad_bias, truth.bias.grad),
    ):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(gradient.double(), leaf.grad, rtol=2**-7, atol=1e-3)
    assert grad_before.abs().max() < 1e-3  # batch norm does not see a bias before it


def test_a_pass_that_never_goes_back_is_let_go():
    fused = FusedEncoder(_model(32, (16, 32), "batch"))
    images = torch.rand(4, 1, 32, 32, device="cuda")
    fused(images)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        fused(images)
    assert torch.cuda.memory_allocated() == before


def test_weights_are_packed_as_plain_torch_packs_them():
    plan = Plan(_model(32, (16, 32)))
    weights = [conv.weight.detach().permute(0, 2, 3, 1).contiguous() for conv in plan.convs]
    plainly = packing.pack([weight.cpu() for weight in weights], plan.places.cpu())
    assert torch.equal(packing.pack(weights, plan.places).cpu(), plainly)


@pytest.mark.parametrize("size", [32, 64])
def test_a_decoder_goes_back_only_where_it_is_asked(size):
    """Gradients of a loss of codes alone are those of the encoder's pass; one of images alone reaches all."""
    images = torch.rand(9, 1, size, size, device="cuda")
    grads = []
    for run in (lambda fused: fused(images)[0], lambda fused: fused.encode(images)):
        model = _model(size, (16, 32))
        run(FusedEncoder(model)).square().sum().backward()
        grads.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], rtol=1e-2, atol=1e-2 * grad.abs().max())
    model = _model(size, (16, 32))
    FusedEncoder(model)(images)[1].square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("size", [32, 64])
def test_a_gradient_may_be_asked_of_the_codes_first(size):
    images = torch.rand(9, 1, size, size, device="cuda")
    grads = []
    for asks in (True, False):
        model = _model(size, (16, 32))
        codes, rectified = FusedEncoder(model)(images)
        total = codes.square().sum() + rectified.square().sum()
        if asks:
            (of_codes,) = torch.autograd.grad(total, codes, retain_graph=True)
            torch.testing.assert_close(of_codes, 2 * codes.detach())
        total.backward()
        grads.append([p.grad for p in model.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2 * float(one.abs().max()))


def test_what_a_decoder_gave_to_another_backward_is_forgotten():
    images = torch.rand(9, 1, 64, 64, device="cuda")
    grads = []
    for asks in (True, False):
        model = _model(64, (16, 32))
        codes, rectified = FusedEncoder(model)(images)
        if asks:
            total = codes.sum() + rectified.square().sum()
            torch.autograd.grad(total, codes, retain_graph=True)
        codes.square().sum().backward()
        grads.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], rtol=1e-2, atol=1e-2 * grad.abs().max())


def test_weights_that_were_changed_since_are_refused():
    model = _model(32, (16, 32))
    codes, _ = FusedEncoder(model)(torch.rand(4, 1, 32, 32, device="cuda"))
    with torch.no_grad():
        model.encoder.convs[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        codes.sum().backward()


def test_when_codes_went_back_nothing_is_held_by_the_images():
    model = _model(64, (16, 32))
    images = torch.rand(64, 1, 64, 64, device="cuda")
    before = torch.cuda.memory_allocated()
    codes, rectified = FusedEncoder(model)(images)
    codes.square().sum().backward()
    del codes
    held = torch.cuda.memory_allocated() - before
    given = [rectified, *(p.grad for p in model.parameters() if p.grad is not None)]
    of_one_layer = 64 * 64 * 64 * 16 * 2
    assert held < sum(4 * tensor.numel() for tensor in given) + of_one_layer


def test_weights_that_are_not_channels_last_get_their_own_gradients():
    images = torch.rand(4, 1, 32, 32, device="cuda")
    grads = []
    for layout in (torch.channels_last, torch.contiguous_format):
        model = _model(32, (16, 32))
        for conv in model.encoder.convs:
            conv.weight.data = conv.weight.data.contiguous(memory_format=layout)
        FusedEncoder(model)(images)[0].square().sum().backward()
        grads.append([conv.weight.grad for conv in model.encoder.convs])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_more_images_are_warped_than_a_grid_is_high():
    images = torch.randint(0, 256, (3, 1, 4, 4), dtype=torch.uint8, device="cuda")
    rows = torch.arange(70_000, device="cuda") % 3
    params = torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.0]], device="cuda").expand(70_000, 5)
    made = warp(images, params, 4, rows=rows)
    assert torch.equal(made[-1], made[(70_000 - 1) % 3])


@pytest.mark.parametrize("canvas_px", [64, 30, 1])
@pytest.mark.parametrize("size_px", [(28, 28), (5, 9), (70, 64)])
def test_the_warp_kernel_is_within_a_grey_level(size_px, canvas_px):
    images = torch.randint(0, 256, (40, 3, *size_px), dtype=torch.uint8, device="cuda")
    rows = torch.randint(0, 40, (90,), device="cuda")
    params = sample_affine(90, AffineRanges(), torch.Generator().manual_seed(0)).cuda()
    params[0, 3:] = 1e6  # far outside
    ours = warp(images, params, canvas_px, rows=rows)
    assert (ours - warp_reference(images[rows], params, canvas_px)).abs().max() < 1 / 255
    assert (ours[0] == 0).all()
