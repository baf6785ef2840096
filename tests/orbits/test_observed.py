import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from orbitset.errors import ConfigError, DataError
from orbitset.orbits import ObservedConfig, ObservedOrbits, OrbitBatches, group_orbits, observed
from orbitset.orbits.observed import SeveralClasses, choose_targets, classes_of_orbits


def some_orbits(sizes=(3, 1, 4), **options):
    """Image i is filled with the grey level i; the target of an orbit is its last image."""
    orbit_N = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    order = torch.randperm(len(orbit_N), generator=torch.Generator().manual_seed(0))
    orbit_N = orbit_N[order]
    images = torch.arange(len(orbit_N), dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 4, 4)
    last_O = torch.tensor([int((orbit_N == o).nonzero()[-1]) for o in range(len(sizes))])
    labels_O = torch.arange(len(sizes)) // 2
    return ObservedOrbits(images.contiguous(), orbit_N, last_O, labels_O, **options), orbit_N


def grey(images):
    return images[:, 0, 0, 0].mul(255).round().long()


def test_members_are_the_orbits_images_in_their_order():
    orbits, orbit_N = some_orbits()
    for orbit, size in enumerate(orbits.size_N.tolist()):
        shown = orbits.members(torch.full((size,), orbit), torch.arange(size))
        assert grey(shown).tolist() == (orbit_N == orbit).nonzero().squeeze(1).tolist()
        assert shown.dtype == torch.float32
        assert shown.max() <= 1


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_target_is_the_member_that_was_named(is_streamed):
    orbits, orbit_N = some_orbits(is_streamed=is_streamed)
    every = torch.arange(len(orbits))
    wanted = [int((orbit_N == o).nonzero()[-1]) for o in range(len(orbits))]
    assert grey(orbits.canonical(every)).tolist() == wanted
    drawn = orbits.draw(every, torch.zeros(len(orbits), dtype=torch.int64))
    assert grey(orbits.canonical(every, drawn)).tolist() == wanted


def batches_of(orbits, **options):
    return OrbitBatches(orbits, **{"orbits_per_batch": 2, "members_per_batch": 2, **options})


@pytest.mark.parametrize("weighting", ["orbit", "image"])
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=7),
    index=st.integers(0, 40),
    seed=st.integers(0, 3),
)
def test_a_batch_shows_members_of_its_orbits_with_their_targets(weighting, sizes, index, seed):
    orbits, orbit_N = some_orbits(tuple(sizes))
    members = min(2, max(sizes))
    options = {"members_per_batch": members, "weighting": weighting, "seed": seed}
    batch = batches_of(orbits, **options).batch(index)
    assert torch.equal(orbit_N[grey(batch.images)], batch.orbits)
    assert torch.equal(grey(batch.canonical), orbits.canonical_row_N[batch.orbits])
    assert torch.equal(batch.labels, batch.orbits // 2)
    counts = batch.orbits.unique(return_counts=True)[1]
    assert counts.max() <= batch.max_members
    for orbit in batch.orbits.unique():
        shown = grey(batch.images[batch.orbits == orbit]).tolist()
        assert len(set(shown)) == min(len(shown), sizes[orbit])


@given(sizes=st.lists(st.integers(1, 9), min_size=2, max_size=7), seed=st.integers(0, 3))
def test_weighted_per_image_a_round_shows_images_equally_often(sizes, seed):
    orbits, orbit_N = some_orbits(tuple(sizes))
    batches = batches_of(
        orbits, members_per_batch=1, orbits_per_batch=1, weighting="image", seed=seed
    )
    shown = torch.cat([grey(batches.batch(i).images) for i in range(batches.batches_per_round)])
    assert shown.bincount(minlength=len(orbit_N)).tolist() == [1] * len(orbit_N)
    assert batches.images_before(batches.batches_per_round) == len(orbit_N)


def test_weighted_per_orbit_large_orbits_show_a_new_part_in_every_round():
    orbits, orbit_N = some_orbits((20, 4, 4))
    batches = batches_of(orbits)

    def of_large(number):
        start = number * batches.batches_per_round
        shown = [batches.batch(start + i) for i in range(batches.batches_per_round)]
        images = torch.cat([batch.images[batch.orbits == 0] for batch in shown])
        return set(grey(images).tolist())

    assert batches.images_before(batches.batches_per_round) == 3 * 4
    assert [len(of_large(number)) for number in range(3)] == [4, 4, 4]
    assert len(set.union(*(of_large(number) for number in range(12)))) > 15


@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 1, 4)])
def test_streamed_images_give_the_same_batches_in_any_order(sizes):
    resident, streamed = (
        batches_of(some_orbits(sizes, is_streamed=is_streamed)[0]) for is_streamed in (False, True)
    )
    for index in (0, 1, 2, 7, 3, 3, 30):
        a, b = resident.batch(index), streamed.batch(index)
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.canonical, b.canonical)
        assert torch.equal(a.orbits, b.orbits)
        assert len(streamed._ahead) <= 3


def test_positions_count_images():
    batches = batches_of(some_orbits((9, 1, 4, 2))[0], weighting="image")
    before = 0
    for index in range(3 * batches.batches_per_round):
        assert batches.images_before(index) == before
        before += len(batches.batch(index).images)


@pytest.mark.parametrize("weighting", ["orbit", "image"])
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=7).filter(lambda s: max(s) > 1),
    tenths=st.integers(0, 60),
)
@example(sizes=[1, 6, 9, 9], tenths=44)
def test_an_epoch_shows_as_many_images_as_there_are(weighting, sizes, tenths):
    batches = batches_of(some_orbits(tuple(sizes))[0], weighting=weighting)
    position, largest = batches.position_at(tenths / 10), 0
    for index in range(position):
        largest = max(largest, len(batches.batch(index).images))
    beyond = 10 * batches.images_before(position) - tenths * sum(sizes)  # tenths, which are exact
    assert 0 <= beyond < 10 * max(largest, 1)
    batches.position = position
    assert batches.epoch == pytest.approx(batches.images_before(position) / sum(sizes))


def test_orbits_are_read_off_their_factors():
    factors = {
        "person": torch.tensor([1, 0, 1, 0, 1]),
        "light": torch.tensor([0, 0, 0, 1, 0]),
        "view": torch.tensor([2, 2, 0, 2, 1]),
    }
    orbit_N, target_O = group_orbits(factors, ("person", "light"), ("view", 2))
    assert orbit_N.tolist() == [2, 0, 2, 1, 2]
    assert target_O.tolist() == [1, 3, 0]
    assert group_orbits(factors, ("person", "light"))[1].tolist() == [1, 3, 0]


def test_an_orbit_without_a_target_is_refused():
    factors = {"person": torch.tensor([0, 0, 1]), "view": torch.tensor([0, 1, 1])}
    with pytest.raises(DataError, match="orbit 1 has 0 members with view 0"):
        group_orbits(factors, ("person",), ("view", 0))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"images": torch.zeros(4, 1, 2, 2)}, "uint8"),
        ({"orbits": torch.tensor([0, 1])}, "2 orbit ids for 4 images"),
        (
            {"images": torch.zeros(0, 1, 2, 2, dtype=torch.uint8), "orbits": torch.zeros(0).long()},
            "0 orbit ids for 0 images",
        ),
        ({"orbits": torch.tensor([0, 0, 2, 2])}, "without a gap"),
        ({"canonical": torch.tensor([0, 1])}, "not belong to its orbit"),
        ({"canonical": torch.tensor([0])}, "2 orbits, 1 targets"),
        ({"labels": torch.tensor([0])}, "1 labels"),
    ],
)
def test_what_does_not_go_together_is_refused(changed, message):
    given = {
        "images": torch.zeros(4, 1, 2, 2, dtype=torch.uint8),
        "orbits": torch.tensor([0, 0, 1, 1]),
        "canonical": torch.tensor([0, 2]),
        "labels": None,
    } | changed
    with pytest.raises(DataError, match=message):
        ObservedOrbits(*given.values())


def test_more_members_than_any_orbit_has_are_refused():
    with pytest.raises(ConfigError, match="members_per_batch is 5 but orbits have 4"):
        batches_of(some_orbits()[0], members_per_batch=5)


def test_a_few_missing_members_do_not_change_the_batches():
    whole, holed = (
        batches_of(some_orbits(sizes)[0], members_per_batch=4)
        for sizes in ((13, 13, 13, 13), (13, 12, 13, 13))
    )
    assert (whole.images_per_epoch, holed.images_per_epoch) == (52, 51)
    shapes = [
        [len(batches.batch(index).images) for index in range(batches.batches_per_round)]
        for batches in (whole, holed)
    ]
    assert shapes[0] == shapes[1]


def test_a_batch_has_72_images_by_default_as_in_the_paper():
    config = ObservedConfig(orbit=("person",))
    assert (config.orbits_per_batch, config.members_per_batch) == (18, 4)


def test_the_first_and_the_middle_of_many_members_are_those_in_the_order_of_rows():
    orbit_N = torch.randint(0, 3, (5000,), generator=torch.Generator().manual_seed(0))
    rows = [(orbit_N == orbit).nonzero().squeeze(1).tolist() for orbit in range(3)]
    images = torch.zeros(5000, 1, 2, 2, dtype=torch.uint8)
    first, middle = (choose_targets(kind, images, orbit_N).tolist() for kind in ("first", "middle"))
    assert first == [row[0] for row in rows]
    assert middle == [row[len(row) // 2] for row in rows]


@pytest.mark.parametrize(("free", "is_streamed"), [(2000, False), (1999, True)])
def test_images_may_take_half_of_a_devices_free_memory(monkeypatch, free, is_streamed):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 10**6))
    images = torch.zeros(10, 1, 10, 10, dtype=torch.uint8)
    assert observed._fits(images, torch.device("cuda")) is not is_streamed
    assert observed._fits(images, torch.device("cpu"))


def test_the_target_is_a_member_with_a_value_or_one_that_is_chosen():
    marked = ObservedConfig(orbit=("person",), canonical="view = 051", label="light")
    assert marked.target == ("view", "051") and marked.chosen == "first"
    assert marked.factors == ("person", "view", "light")
    for chosen in ("first", "middle", "medoid"):
        config = ObservedConfig(orbit=("person",), canonical=chosen)
        assert config.target is None and config.chosen == chosen
    assert ObservedConfig(orbit=("person",)).chosen == "first"
    for wrong in ("front", "view=", "=051", ""):
        with pytest.raises(ConfigError, match="write it as factor=value"):
            ObservedConfig(orbit=("person",), canonical=wrong)


def test_members_of_several_classes_are_named():
    class_N, orbit_N = torch.tensor([-1, 2, 5, 2, 7]), torch.tensor([0, 0, 1, 0, 1])
    with pytest.raises(SeveralClasses, match="images 2 and 4 belong to one orbit") as raised:
        classes_of_orbits(class_N, orbit_N)
    assert raised.value.rows == (2, 4)
