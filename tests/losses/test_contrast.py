import copy
import dataclasses
import math

import pytest
import torch
from built_losses import built_loss

from orbitset.errors import ConfigError
from orbitset.losses import (
    HardInfoNCE,
    InfoNCE,
    OrbitPrototypes,
    SigmoidPairs,
    info_nce_loss,
    multi_similarity_loss,
    reconstruction_loss,
    sigmoid_loss,
)
from orbitset.losses.contrast import Temperature
from orbitset.losses.similarity import unit_codes
from orbitset.orbits.batches import Batch

ORBITS = torch.tensor([0, 0, 2, 2, 2, 1, 3, 3])
NAMES = ("IN", "SG", "PR")


@pytest.fixture
def codes(rng):
    return torch.randn(8, 5, generator=rng, dtype=torch.float64)


@pytest.fixture
def rectified(rng):
    return torch.randn(8, 2, 2, 2, generator=rng, dtype=torch.float64)


@pytest.fixture
def batch(rng):
    images, canonical = torch.rand(2, 8, 2, 2, 2, generator=rng, dtype=torch.float64)
    return Batch(images, ORBITS, canonical, None, max_members=3)


def built(name, **settings):
    return built_loss(name, code_size=5, num_orbits=6, **settings).double()


@pytest.mark.parametrize("name", NAMES)
def test_terms_have_names_that_say_what_they_are(name, codes, batch, rectified):
    terms = built(name)(codes, batch, None)
    bias = ["bias"] if name == "SG" else []
    assert list(terms) == ["loss", "contrast", "temperature", *bias]
    assert terms["loss"] is terms["contrast"]
    assert terms["temperature"].item() == pytest.approx(0.1)
    loss = built(f"{name}+R")
    assert list(loss(codes, batch, rectified)) == [*terms, "rectify"]
    assert ["loss", *loss.about_terms] == [*terms, "rectify"]
    hard = built("IM+R")
    assert ["loss", *hard.about_terms] == list(hard(codes, batch, rectified))
    remembering = built("IN", memory=4)
    assert ["loss", *remembering.about_terms] == list(remembering(codes, batch, None))
    assert "memory" not in built("IN").about_terms


def test_contrasts_are_those_of_the_functions(codes, batch):
    expected = info_nce_loss(codes, ORBITS, temperature=0.2)
    loss = InfoNCE(temperature=0.2, rectify_weight=0).double()
    torch.testing.assert_close(loss(codes, batch, None)["contrast"], expected)
    loss = HardInfoNCE(temperature=0.2, hard_weight=2, rectify_weight=0).double()
    terms, hard = loss(codes, batch, None), 2 * multi_similarity_loss(codes, ORBITS)
    torch.testing.assert_close(terms["contrast"], expected)
    torch.testing.assert_close(terms["hard_pairs"], hard)
    torch.testing.assert_close(terms["loss"], expected + hard)
    expected = sigmoid_loss(codes, ORBITS, temperature=0.2, bias=-3.0)
    loss = SigmoidPairs(temperature=0.2, bias=-3, rectify_weight=0).double()
    torch.testing.assert_close(loss(codes, batch, None)["contrast"], expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("weight", [10.0, 0.5])
def test_the_decoder_adds_the_squared_error_of_a_pixel_value(name, weight, codes, batch, rectified):
    loss = built(f"{name}+R", rectify_weight=weight)
    assert loss.uses_rectified and not built(name).uses_rectified
    terms = loss(codes, batch, rectified)
    error = (rectified - batch.canonical).square().mean()
    torch.testing.assert_close(terms["rectify"], weight * error)
    torch.testing.assert_close(terms["loss"], terms["contrast"] + terms["rectify"])
    torch.testing.assert_close(error * 8, reconstruction_loss(rectified, batch.canonical))
    with pytest.raises(ValueError, match="needs the rectified images"):
        loss(codes, batch, None)


@pytest.mark.parametrize("name", [*NAMES, "IM", "IN+R", "IM+R", "SG+R", "PR+R"])
def test_gradients_are_right_for_codes_images_and_what_is_learned(name, codes, batch, rectified):
    loss = built(name)
    if name.startswith("PR"):
        loss.update(codes, ORBITS)
        loss.update = lambda codes, orbits: None  # a prototype has no gradient
    inputs = [codes.requires_grad_()] + [rectified.requires_grad_()] * loss.uses_rectified
    learned = list(loss.parameters())
    assert len(learned) == 1 + name.startswith("SG")

    def total(codes, *rest):
        return loss(codes, batch, rest[0] if loss.uses_rectified else None)["loss"]

    assert torch.autograd.gradcheck(total, (*inputs, *learned))


@pytest.mark.parametrize("objective", [InfoNCE, SigmoidPairs])
def test_the_temperature_is_learned_or_fixed(objective, codes, batch):
    for learns in (True, False):
        loss = objective(temperature=0.5, learns_temperature=learns, rectify_weight=0).double()
        names = [name for name, _ in loss.named_parameters()]
        assert ("temperature.log" in names) == learns
        assert "temperature.log" in loss.state_dict()
        loss(codes.requires_grad_(), batch, None)["loss"].backward()
        if learns:
            assert loss.temperature.log.grad.abs() > 1e-3


@pytest.mark.parametrize("start", [0.01, 0.1, 1.0])
def test_a_temperature_starts_where_it_is_set(start):
    assert Temperature(start)().item() == pytest.approx(start)


@pytest.mark.parametrize(("far", "bound"), [(-9.0, 0.01), (4.0, 1.0)])
def test_a_temperature_comes_back_from_its_bounds(far, bound):
    temperature = Temperature(0.1)
    with torch.no_grad():
        temperature.log.fill_(far)
    value = temperature()
    assert value.item() == pytest.approx(bound)
    assert temperature.log.item() == pytest.approx(math.log(bound))
    value.backward()
    assert temperature.log.grad.item() == pytest.approx(bound)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: InfoNCE(temperature=0), "temperature is 0; give a number from 0.01 to 1"),
        (lambda: SigmoidPairs(temperature=1.5), "temperature is 1.5; give a number from 0.01 to 1"),
        (lambda: InfoNCE(memory=-1), "memory is -1; give a number of at least 0"),
        (lambda: InfoNCE(memory=8, code_size=5, memory_after=-3), "memory_after is -3; give a n"),
        (lambda: InfoNCE(memory=8), "a memory needs the size of codes; give code_size"),
        (
            lambda: OrbitPrototypes(code_size=5, num_orbits=2, momentum=2),
            "momentum is 2; give a number from 0 to 1",
        ),
    ],
)
def test_settings_out_of_range_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def _batches(batch, rng, count=6):
    """Batches of other codes and orbits, of two sizes."""
    for number in range(count):
        num = 8 - number % 2
        codes = torch.randn(num, 5, generator=rng, dtype=torch.float64)
        orbits = torch.randint(0, 6, (num,), generator=rng)
        yield codes, Batch(batch.images[:num], orbits, batch.canonical[:num], None, max_members=8)


@pytest.mark.parametrize("size", [5, 12, 20])
def test_the_memory_holds_the_last_codes_from_its_step_on(batch, rng, size):
    loss = built("IN", memory=size, memory_after=2)
    codes_before, orbits_before = torch.zeros(0, 5).double(), torch.zeros(0, dtype=torch.int64)
    for step, (codes, own) in enumerate(_batches(batch, rng)):
        terms = loss(codes, own, None)
        is_used = step >= 2
        last = (codes_before[-size:], orbits_before[-size:])
        memory = {"memory": last[0], "memory_orbits": last[1]} if is_used else {}
        expected = info_nce_loss(codes, own.orbits, temperature=0.1, **memory)
        torch.testing.assert_close(terms["contrast"], expected)
        assert terms["memory"].item() == is_used * len(last[0])
        codes_before = torch.cat([codes_before, unit_codes(codes)])
        orbits_before = torch.cat([orbits_before, own.orbits])


def test_a_memory_has_no_gradient(codes, batch):
    loss = built("IN", memory=16, memory_after=0)
    loss(codes.requires_grad_(), batch, None)
    second = codes.detach().flip(0).requires_grad_()
    loss(second, batch, None)["loss"].backward()
    assert codes.grad is None and second.grad.any()
    assert not loss.memory.codes.requires_grad


def test_prototypes_are_running_averages_of_directions(batch, rng):
    loss = built("PR", momentum=0.8)
    expected = {}
    for codes, own in _batches(batch, rng):
        for orbit in own.orbits.unique().tolist():
            mean = unit_codes(codes)[own.orbits == orbit].mean(0)
            mean = mean / mean.norm()
            moved = 0.8 * expected[orbit] + 0.2 * mean if orbit in expected else mean
            expected[orbit] = moved / moved.norm()
        terms = loss(codes, own, None)
        assert loss.is_known.nonzero().flatten().tolist() == sorted(expected)
        for orbit, prototype in expected.items():
            torch.testing.assert_close(loss.prototypes[orbit], prototype)
        logits = unit_codes(codes) @ torch.stack([expected[q] for q in sorted(expected)]).T / 0.1
        places = torch.tensor([sorted(expected).index(q) for q in own.orbits.tolist()])
        torch.testing.assert_close(
            terms["contrast"], torch.nn.functional.cross_entropy(logits, places)
        )


def test_an_orbit_that_is_alone_has_a_prototype_at_once(codes, batch):
    alone = dataclasses.replace(batch, orbits=torch.tensor([5, 0, 4, 2, 3, 1, 0, 2]))
    loss = built("PR")(codes.requires_grad_(), alone, None)["loss"]
    loss.backward()
    assert loss.isfinite() and loss > 0 and codes.grad.isfinite().all()


@pytest.mark.parametrize(
    ("name", "settings"), [("IN", {"memory": 12, "memory_after": 1}), ("PR", {})]
)
def test_what_is_remembered_goes_on_from_a_saved_state(name, settings, batch, rng):
    whole = built(name, **settings)
    batches = list(_batches(batch, rng))
    for codes, own in batches[:3]:
        whole(codes, own, None)
    resumed = built(name, **settings)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    for codes, own in batches[3:]:
        assert whole(codes, own, None) == resumed(codes, own, None)
    for one, other in zip(whole.buffers(), resumed.buffers(), strict=True):
        assert torch.equal(one, other)
