import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitset.errors import ConfigError
from orbitset.orbits.affine import AffineRanges
from orbitset.orbits.batches import OrbitBatches, _alike_together, _shuffled
from orbitset.orbits.computed import AffineOrbits

few_examples = settings(deadline=None, max_examples=60)


@st.composite
def settings_of_batches(draw):
    """(orbits, members, orbits per batch, members per batch, seed)"""
    num, members = draw(st.integers(2, 12)), draw(st.integers(1, 9))
    per_batch, shown = draw(st.integers(1, num)), draw(st.integers(1, members))
    return num, members, per_batch, shown, draw(st.integers(0, 3))


def make_batches(
    num=7,
    members=6,
    per_batch=3,
    shown=2,
    seed=0,
    *,
    alike=None,
    alike_values=1,
    position=0,
    mode="fixed",
    labels=False,
):
    generator = torch.Generator().manual_seed(0)
    orbits = AffineOrbits(
        torch.randint(0, 256, (num, 1, 4, 4), dtype=torch.uint8, generator=generator),
        torch.arange(num) % 3 if labels else None,
        canvas_px=6,
        members=members,
        mode=mode,
        ranges=AffineRanges(translation_px=1),
    )
    return OrbitBatches(
        orbits,
        orbits_per_batch=per_batch,
        members_per_batch=shown,
        alike=alike,
        alike_values=alike_values,
        seed=seed,
        position=position,
    )


def shown_by(batches, start, stop):
    """All (orbit, member) pairs that the batches from start to stop - 1 show, in order."""
    return [
        (int(orbit), int(member))
        for index in range(start, stop)
        for orbit, row in zip(*batches.indices(index), strict=True)
        for member in row
    ]


def every_member(num, members):
    return [(orbit, member) for orbit in range(num) for member in range(members)]


@few_examples
@given(settings_of_batches(), st.integers(0, 5))
def test_an_epoch_shows_every_member_of_every_orbit_once(chosen, epoch):
    num, members, *_ = chosen
    batches = make_batches(*chosen)
    start, stop = batches.position_at(epoch), batches.position_at(epoch + 1)
    assert sorted(shown_by(batches, start, stop)) == every_member(num, members)


@pytest.mark.parametrize(("shown", "sizes"), [(4, {4, 5}), (8, {8, 9}), (11, {11}), (33, {33})])
def test_the_papers_orbits_of_33_are_shown_once_an_epoch_whatever_k(shown, sizes):
    batches = make_batches(40, 33, 16, shown)
    stop = batches.position_at(1)
    assert sorted(shown_by(batches, 0, stop)) == every_member(40, 33)
    assert {batches.indices(i)[1].shape[1] for i in range(stop)} == sizes
    assert batches.max_members == max(sizes)


@few_examples
@given(settings_of_batches(), st.integers(0, 20))
def test_a_pass_visits_every_orbit_once(chosen, pass_):
    num, members, per_batch, shown, seed = chosen
    batches = make_batches(num, members, per_batch, shown, seed)
    per_pass = batches.batches_per_round // batches._passes.count
    visited = [batches.indices(pass_ * per_pass + i)[0] for i in range(per_pass)]
    assert sorted(torch.cat(visited).tolist()) == list(range(num))


@few_examples
@given(settings_of_batches())
def test_consecutive_passes_show_members_not_yet_shown_while_enough_are_left(chosen):
    num, members, per_batch, shown, seed = chosen
    batches = make_batches(num, members, per_batch, shown, seed)
    pairs = shown_by(batches, 0, batches.batches_per_round)
    assert len(set(pairs)) == len(pairs) == num * members


@few_examples
@given(settings_of_batches(), st.integers(0, 60))
def test_a_batch_holds_no_member_twice(chosen, index):
    batches = make_batches(*chosen)
    pairs = shown_by(batches, index, index + 1)
    assert len(set(pairs)) == len(pairs)


@few_examples
@given(settings_of_batches())
def test_batch_sizes_of_a_pass_differ_by_at_most_one_orbit(chosen):
    num, members, per_batch, shown, seed = chosen
    batches = make_batches(num, members, per_batch, shown, seed)
    sizes = [
        len(batches.indices(i)[0])
        for i in range(batches.batches_per_round // batches._passes.count)
    ]
    assert max(sizes) - min(sizes) <= 1
    if min(num, per_batch) > 1:
        assert min(sizes) > 1
    if per_batch != 2:
        assert len(sizes) == math.ceil(num / per_batch)


@few_examples
@given(settings_of_batches(), st.lists(st.integers(0, 40), max_size=6), st.integers(0, 40))
def test_a_batch_does_not_depend_on_what_was_asked_before(chosen, before, index):
    batches, untouched = make_batches(*chosen), make_batches(*chosen)
    for earlier in before:
        batches.indices(earlier)
    asked, expected = batches.indices(index), untouched.indices(index)
    assert torch.equal(asked[0], expected[0])
    assert torch.equal(asked[1], expected[1])


@pytest.mark.parametrize("mode", ["fixed", "fresh"])
def test_equal_numbers_give_equal_images_whatever_was_asked_before(mode):
    batches = make_batches(mode=mode)
    first = batches.batch(4)
    batches.batch(17)
    again = batches.batch(4)
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.orbits, again.orbits)
    assert batches.position == 0


@few_examples
@given(settings_of_batches(), st.integers(1, 4), st.integers(0, 3))
def test_orbits_of_a_batch_are_alike_but_where_one_value_ends(chosen, values, pass_):
    num = chosen[0]
    alike = torch.arange(num) % values
    batches = make_batches(*chosen, alike=alike)
    per_pass = batches._batches[0]
    shown = [batches.indices(index)[0] for index in range(pass_ * per_pass, (pass_ + 1) * per_pass)]
    assert torch.cat(shown).sort().values.tolist() == list(range(num))
    seams = sum(len(alike[orbits].unique()) - 1 for orbits in shown)
    assert seams <= len(alike.unique()) - 1
    other = make_batches(*chosen)
    assert [len(orbits) for orbits in shown] == [
        len(other.indices(index)[0]) for index in range(pass_ * per_pass, (pass_ + 1) * per_pass)
    ]


def test_alike_batches_follow_in_a_random_order_and_repeat_by_their_number():
    alike = torch.arange(40) % 4
    batches = make_batches(40, per_batch=5, alike=alike)
    values = [int(alike[batches.indices(index)[0][0]]) for index in range(8)]
    assert sorted(values) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sum(a != b for a, b in zip(values, values[1:], strict=False)) > 3  # not sorted
    again = make_batches(40, per_batch=5, alike=alike)
    assert torch.equal(again.indices(5)[0], batches.indices(5)[0])


def test_a_batch_can_show_several_values_with_several_orbits_each():
    alike = torch.arange(600) % 6
    batches = make_batches(600, per_batch=12, alike=alike, alike_values=3)
    for at in range(100):
        orbits = batches.indices(at)[0]
        assert [len(alike[part].unique()) for part in orbits.split(4)] == [1, 1, 1]
        assert len(alike[orbits].unique()) == 3
    together = {tuple(alike[batches.indices(at)[0]].unique().tolist()) for at in range(50)}
    assert len(together) > 4  # not always the same three
    shown = torch.cat([batches.indices(at)[0] for at in range(50)])
    assert shown.sort().values.tolist() == list(range(600))
    with pytest.raises(ValueError, match="5 values for 600 orbits"):
        make_batches(600, per_batch=12, alike=torch.arange(5))
    with pytest.raises(ConfigError, match="alike_values is 13"):
        make_batches(600, per_batch=12, alike=alike, alike_values=13)


def test_the_seed_changes_order_and_members():
    first, other = make_batches(seed=0), make_batches(seed=1)
    assert shown_by(first, 0, 9) != shown_by(other, 0, 9)
    orders = [[o for o, _ in shown_by(b, 0, 3)] for b in (first, other)]
    assert orders[0] != orders[1]


def test_passes_have_different_orders_and_cycles_different_circles():
    batches = make_batches(num=12, members=6, per_batch=12, shown=6)
    (orbits_a, members_a), (orbits_b, members_b) = batches.indices(0), batches.indices(1)
    assert not torch.equal(orbits_a, orbits_b)
    assert not torch.equal(members_a[orbits_a.argsort()], members_b[orbits_b.argsort()])


@pytest.mark.parametrize("mode", ["fixed", "fresh"])
def test_resuming_at_a_position_equals_going_on(mode):
    going_on = iter(make_batches(mode=mode))
    for _ in range(5):
        next(going_on)
    resumed = iter(make_batches(mode=mode, position=5))
    for _ in range(6):
        expected, batch = next(going_on), next(resumed)
        assert torch.equal(batch.images, expected.images)
        assert torch.equal(batch.orbits, expected.orbits)


def test_iterating_moves_the_position_and_counts_epochs():
    batches = make_batches(num=7, members=6, per_batch=3, shown=2)
    epochs = [batches.epoch for _, _ in zip(range(9), batches, strict=False)]
    assert epochs == pytest.approx([n / 42 for n in (4, 8, 14, 18, 22, 28, 32, 36, 42)])
    assert (batches.position, batches.epoch) == (9, 1.0)


@few_examples
@given(settings_of_batches(), st.integers(0, 60))
def test_images_before_a_position_are_those_the_batches_hold(chosen, position):
    batches = make_batches(*chosen)
    assert batches.images_before(position) == len(shown_by(batches, 0, position))


@few_examples
@given(settings_of_batches(), st.integers(0, 60))
def test_epoch_is_the_share_of_an_epochs_images_shown(chosen, position):
    batches = make_batches(*chosen)
    batches.position = position
    shown = len(shown_by(batches, 0, position))
    assert batches.epoch == pytest.approx(shown / (chosen[0] * chosen[1]))


@few_examples
@given(settings_of_batches(), st.integers(0, 400))
def test_position_at_is_the_first_by_which_so_much_was_shown(chosen, hundredths):
    batches = make_batches(*chosen)
    wanted = hundredths / 100 * chosen[0] * chosen[1]
    seen, position = 0, 0
    while seen < wanted - 1e-6:
        seen += batches.indices(position)[1].numel()
        position += 1
    assert batches.position_at(hundredths / 100) == position


@few_examples
@given(settings_of_batches(), st.integers(0, 60))
def test_position_at_finds_back_every_position(chosen, position):
    batches = make_batches(*chosen, position=position)
    assert batches.position_at(batches.epoch) == position


def test_members_of_an_orbit_lie_next_to_each_other_with_int64_ids():
    batch = make_batches(shown=3).batch(2)
    assert batch.orbits.dtype == torch.int64
    groups = batch.orbits.view(-1, 3)
    assert (groups == groups[:, :1]).all()
    assert len(groups[:, 0].unique()) == len(groups)
    assert batch.max_members == 3


def test_images_are_the_members_that_the_indices_name():
    batches = make_batches()
    orbit, member = batches.indices(4)
    expected = batches.orbits.members(orbit.repeat_interleave(2), member.flatten())
    assert torch.equal(batches.batch(4).images, expected)


def test_canonical_images_and_labels_belong_to_the_orbits():
    batches = make_batches(labels=True)
    for index in range(6):
        batch = batches.batch(index)
        assert torch.equal(batch.canonical, batches.orbits.canonical(batch.orbits))
        assert torch.equal(batch.labels, batch.orbits % 3)


def test_labels_are_absent_where_unknown():
    assert make_batches().batch(0).labels is None


def test_fresh_batches_never_repeat_an_image():
    batches = make_batches(num=4, members=2, per_batch=4, shown=2, mode="fresh")
    images = torch.cat([batches.batch(i).images for i in range(6)]).flatten(1)
    assert len(images.unique(dim=0)) == 6 * 8


def test_fixed_batches_of_two_cycles_show_the_same_images():
    batches = make_batches(num=4, members=2, per_batch=4, shown=2)
    images = torch.cat([batches.batch(i).images for i in range(6)]).flatten(1)
    assert len((images * 255).round().unique(dim=0)) == 8


@pytest.mark.parametrize("per_batch", [0, -1, 8])
def test_orbits_per_batch_out_of_range_are_refused(per_batch):
    with pytest.raises(
        ConfigError, match=f"orbits_per_batch is {per_batch} but there are 7 orbits"
    ):
        make_batches(per_batch=per_batch)


@pytest.mark.parametrize("shown", [0, -1, 7])
def test_members_per_batch_out_of_range_are_refused(shown):
    with pytest.raises(
        ConfigError, match=f"members_per_batch is {shown} but orbits have 6 members"
    ):
        make_batches(shown=shown)


def test_orbits_of_one_value_keep_the_order_in_which_they_were_shuffled():
    orbit_V = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    starts = list(range(0, 601, 20))
    order = _alike_together(orbit_V, torch.zeros(600), starts, 1, torch.Generator().manual_seed(1))
    expected = {tuple(chunk.tolist()) for chunk in orbit_V.split(20)}
    assert {tuple(chunk.tolist()) for chunk in order.split(20)} == expected
    assert not torch.equal(order, orbit_V)


def test_members_of_every_orbit_are_shuffled_by_keys_of_their_own():
    size_N = torch.tensor([300, 1, 40, 2])
    keys = torch.rand(int(size_N.sum()), generator=torch.Generator().manual_seed(5))
    order = _shuffled(size_N, torch.Generator().manual_seed(5))
    expected = [part.argsort().tolist() for part in keys.split(size_N.tolist())]
    assert [part.tolist() for part in order.split(size_N.tolist())] == expected
