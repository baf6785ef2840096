from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.miners import TripletMarginMiner
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu

from orbitset.errors import ConfigError
from orbitset.losses import distance_matrix, mine
from orbitset.losses.mining import SCAN_LIMIT, Variant, _in_order
from orbitset.seeds import stream

VARIANTS = get_args(Variant)
BY_PAIR = ("semihard-else-farthest", "semihard-nearest", "hardest", "semihard", "all")
THOROUGH = settings(max_examples=120, deadline=None, derandomize=True)
BRIEF = settings(max_examples=60, deadline=None, derandomize=True)
MARGIN = 0.2

# 2^24 + 1 and 2^53 + 1 are the first integers that float32 and float64 do not have.
IDS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [-1, 0, 1, 2**24, 2**24 + 1, 2**24 + 2, 2**53, 2**53 + 1, -(2**63), 2**63 - 1]
)


def near_the_margin():
    """float32 distances whose differences round to the margin, or to a neighbour of it."""
    step, margin = np.float32(0.1), np.float32(MARGIN)
    values = [np.float32(k) * step for k in range(8)]
    values += [value + margin for value in values]
    around = [np.nextafter(value, np.float32(side)) for value in values for side in (0, 9)]
    return torch.tensor(np.array(values + around))


NEAR_THE_MARGIN = near_the_margin()
SMALL = st.integers(0, 9)


def random_matrix(seed, num, kind):
    """A symmetric matrix of distances that are all different, tied, near the margin, or of equal codes."""
    generator = stream("matrix", seed)
    if kind == "random":
        return distance_matrix(torch.randn(num, 3, generator=generator) * 0.3)
    if kind == "duplicates":
        return distance_matrix(torch.randint(3, (num, 1), generator=generator) * 0.4)
    pool = torch.arange(5.0) if kind == "tied" else NEAR_THE_MARGIN
    upper = pool[torch.randint(len(pool), (num, num), generator=generator)].triu(1)
    return upper + upper.T


@st.composite
def orbit_ids(draw, sizes):
    """Any ids in any order: one orbit, all singletons, or orbits of mixed sizes."""
    num = draw(sizes)
    kind = draw(st.sampled_from(["single", "singletons", "mixed", "mixed", "mixed"]))
    count = {"single": 1, "singletons": num}.get(kind, draw(st.integers(1, 4)))
    ids = draw(st.lists(IDS, min_size=count, max_size=count, unique=True))
    if kind == "singletons":
        return torch.tensor(ids, dtype=torch.int64)
    drawn = draw(st.lists(st.sampled_from(ids), min_size=num, max_size=num))
    return torch.tensor(drawn, dtype=torch.int64)


@st.composite
def batches(draw, sizes=SMALL, kinds=("random", "tied", "margin", "duplicates")):
    """A distance matrix and orbit ids."""
    orbits = draw(orbit_ids(sizes))
    seed, kind = draw(st.integers(0, 2**32)), draw(st.sampled_from(kinds))
    return random_matrix(seed, len(orbits), kind), orbits


def rows(triplets):
    return list(zip(*(index.tolist() for index in triplets), strict=True))


def mined(batch, variant, **options):
    return rows(mine(*batch, variant, **options).compact())


def largest_orbit(orbits):
    return max((orbits.tolist().count(orbit) for orbit in orbits.tolist()), default=1)


@pytest.mark.parametrize("margin", [MARGIN, 1.0])
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "semihard-random"])
@THOROUGH
@given(batch=batches())
def test_mine_equals_the_oracle(slow_mine, variant, margin, batch):
    assert mined(batch, variant, margin=margin) == slow_mine(*batch, variant, margin=margin)


@THOROUGH
@given(batch=batches(), seed=st.integers(0, 99), promise=st.none() | st.integers(2, 12))
def test_semihard_random_equals_the_oracle_on_the_same_draws(slow_mine, batch, seed, promise):
    num, members = len(batch[1]), promise or largest_orbit(batch[1])
    draws = torch.rand(num, max(0, min(num, members) - 1), generator=stream(seed))
    wanted = slow_mine(*batch, "semihard-random", margin=MARGIN, max_members=members, draw_NK=draws)
    options = {"max_members": promise, "generator": stream(seed)}
    assert mined(batch, "semihard-random", margin=MARGIN, **options) == wanted


@pytest.mark.parametrize("variant", BY_PAIR)
@pytest.mark.parametrize("kind", ["tied", "near", "duplicates", "random"])
def test_mine_with_many_positives_equals_the_oracle(slow_mine, variant, kind):
    """Of an orbit with more than SCAN_LIMIT of them each row is sorted; a negative may be as far as one."""
    for seed in range(3):
        orbits = torch.tensor([0] * (SCAN_LIMIT + 3) + [1] * 5 + [2] * 2)
        batch = random_matrix(seed, len(orbits), kind), orbits
        wanted = slow_mine(*batch, variant, margin=MARGIN)
        assert (wanted or kind == "tied") and mined(batch, variant, margin=MARGIN) == wanted
        assert mined(batch, variant, margin=MARGIN, max_members=len(orbits)) == wanted


@pytest.mark.parametrize("variant", BY_PAIR)
@BRIEF
@given(batch=batches(), spare=st.integers(0, 20))
def test_max_members_does_not_change_the_triplets(variant, batch, spare):
    promise = largest_orbit(batch[1]) + spare
    assert mined(batch, variant, max_members=promise) == mined(batch, variant)


@pytest.mark.parametrize("variant", BY_PAIR)
@BRIEF
@given(batch=batches(), promise=st.integers(1, 3))
def test_an_orbit_above_max_members_is_used_with_its_first_rows(slow_mine, variant, batch, promise):
    wanted = slow_mine(*batch, variant, margin=MARGIN, max_members=promise)
    assert mined(batch, variant, margin=MARGIN, max_members=promise) == wanted


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "semihard-random"])
@BRIEF
@given(batch=batches(kinds=["random"]), data=st.data())
def test_a_permuted_batch_gives_the_permuted_triplets(variant, batch, data):
    distances, orbits = batch
    order = data.draw(st.permutations(range(len(orbits))))
    permuted = mined((distances[order][:, order], orbits[order]), variant)
    back = sorted(tuple(order[row] for row in triplet) for triplet in permuted)
    assert back == sorted(mined(batch, variant))


@pytest.mark.parametrize("variant", VARIANTS)
@BRIEF
@given(batch=batches(), promise=st.none() | st.integers(1, 12))
def test_mined_triplets_are_int64_and_those_that_do_not_count_point_at_row_0(
    variant, batch, promise
):
    before = [tensor.clone() for tensor in batch]
    triplets, valid = mine(*batch, variant, max_members=promise)
    assert all(index.dtype == torch.int64 and index.shape == valid.shape for index in triplets)
    assert all((index[~valid] == 0).all() for index in triplets)
    assert all(torch.equal(tensor, old) for tensor, old in zip(batch, before, strict=True))


@pytest.mark.parametrize(
    "orbits",
    [[], [5], [5, 5], [5, 6], [7, 7, 7, 7], [4, 3, 2, 1], [9] * 20, list(range(20))],
    ids=str,
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_batches_without_two_orbits_or_without_pairs_give_no_triplet(variant, orbits):
    orbits = torch.tensor(orbits, dtype=torch.int64)
    distances = distance_matrix(torch.randn(len(orbits), 3, generator=stream("few")))
    for promise in (None, 1, 2, 30):
        assert mined((distances, orbits), variant, max_members=promise) == []


def test_ids_that_float32_cannot_tell_apart_are_different_orbits(slow_mine):
    orbits = torch.tensor([2**24, 2**24, 2**24 + 1, 2**24 + 1, -(2**24), 2**62, 2**62 + 1])
    batch = torch.rand(7, 7, generator=stream("ids")), orbits
    assert mined(batch, "all") == slow_mine(*batch, "all", margin=MARGIN)
    assert len(mined(batch, "all")) == 4 * 5


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.uint8])
def test_ids_of_any_integer_type_give_the_same_triplets(dtype):
    distances = torch.rand(6, 6, generator=stream("dtype"))
    orbits = torch.tensor([3, 1, 3, 2, 1, 1])
    assert mined((distances, orbits.to(dtype)), "hardest") == mined((distances, orbits), "hardest")


@pytest.mark.parametrize("variant", VARIANTS)
def test_ids_and_distances_may_be_strided(variant):
    table = torch.randint(3, (20, 2), generator=stream("strided"))
    distances = torch.rand(20, 20, generator=stream("strided")).T
    strided = mined((distances, table[:, 0]), variant, generator=stream("draws"))
    whole = (distances.contiguous(), table[:, 0].contiguous())
    assert strided == mined(whole, variant, generator=stream("draws"))


@pytest.mark.parametrize(
    ("variant", "wanted"),
    [
        # Anchor 0 has its positive at 2 and negatives at 1, 3, 3 and 6; the others are singletons.
        ("semihard-else-farthest", [(0, 1, 3)]),
        ("semihard-nearest", [(0, 1, 3)]),
        ("semihard-random", [(0, 1, 4)]),
        ("hardest", [(0, 1, 2)]),
        ("batch-hard", [(0, 1, 2)]),
        ("semihard", [(0, 1, 3), (0, 1, 4)]),
        ("all", [(0, 1, 2), (0, 1, 3), (0, 1, 4), (0, 1, 5)]),
    ],
)
def test_each_variant_by_hand(variant, wanted):
    distances = torch.tensor([[0, 2, 1, 3, 3, 6]] + [[50.0] * 6] * 5)
    seed = next(s for s in range(99) if torch.rand(6, 1, generator=stream(s))[0, 0] >= 0.5)
    triplets = mined(
        (distances, torch.tensor([8, 8, 1, 2, 3, 4])), variant, margin=1, generator=stream(seed)
    )
    assert [triplet for triplet in triplets if triplet[0] == 0] == wanted


@pytest.mark.parametrize(
    ("variant", "wanted"),
    [("semihard-else-farthest", [3]), ("semihard-nearest", []), ("hardest", [2])],
)
def test_a_positive_beyond_all_negatives_by_hand(variant, wanted):
    distances = torch.tensor([[0, 9, 1, 3, 3]] + [[0.0] * 5] * 4)
    triplets = mined((distances, torch.tensor([8, 8, 1, 2, 3])), variant)
    assert [n for a, _, n in triplets if a == 0] == wanted


def test_a_negative_as_far_as_the_positive_is_not_semihard_but_one_at_the_margin_is():
    distances = torch.tensor([[0, 1, 1, 1.5, 1.75]] + [[0.0] * 5] * 4)
    triplets = mined((distances, torch.tensor([8, 8, 1, 2, 3])), "semihard", margin=0.5)
    assert [n for a, _, n in triplets if a == 0] == [3]


def test_semihard_random_draws_every_semihard_negative_equally_often():
    distances = torch.tensor([[0, 1, 1.1, 1.19, 1.15, 1, 2]] + [[0.0] * 7] * 6)
    orbits, generator = torch.tensor([8, 8, 1, 2, 3, 4, 5]), stream("uniform")
    draws = [
        mine(distances, orbits, "semihard-random", max_members=2, generator=generator)
        for _ in range(900)
    ]
    counts = [sum(int(d.triplets.negative[0]) == row for d in draws) for row in (2, 3, 4)]
    assert sum(counts) == 900
    assert all(abs(count - 300) < 60 for count in counts)  # 60 is 4.2 standard deviations


def test_semihard_random_repeats_with_the_same_generator():
    distances = distance_matrix(torch.randn(40, 2, generator=stream("codes")))
    batch = distances, torch.arange(40) % 4
    first = mined(batch, "semihard-random", generator=stream(1))
    assert first == mined(batch, "semihard-random", generator=stream(1))
    assert first != mined(batch, "semihard-random", generator=stream(2))


def lp_distance():
    return LpDistance(normalize_embeddings=False, power=2)


@st.composite
def labelled_codes(draw, tied):
    labels = draw(orbit_ids(st.integers(2, 24)))
    if tied:
        codes = torch.randint(3, (len(labels), 2), generator=stream(draw(st.integers(0, 2**32))))
        return codes * 0.3, labels
    return torch.randn(len(labels), 3, generator=stream(draw(st.integers(0, 2**32)))), labels


@BRIEF
@given(batch=labelled_codes(tied=False))
def test_all_equals_pytorch_metric_learning_in_order(batch):
    codes, labels = batch
    ours = mine(distance_matrix(codes), labels, "all").compact()
    theirs = lmu.get_all_triplets_indices(labels)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("margin", [MARGIN, 2.0])
@THOROUGH
@given(batch=labelled_codes(tied=False))
def test_semihard_equals_pytorch_metric_learning(margin, batch):
    codes, labels = batch
    miner = TripletMarginMiner(margin=margin, type_of_triplets="semihard", distance=lp_distance())
    ours = mined((distance_matrix(codes), labels), "semihard", margin=margin)
    assert sorted(ours) == sorted(rows(miner(codes, labels)))


@THOROUGH
@given(batch=labelled_codes(tied=True))
def test_semihard_equals_pytorch_metric_learning_on_its_own_matrix_with_ties(batch):
    codes, labels = batch
    miner = TripletMarginMiner(margin=0.27, type_of_triplets="semihard", distance=lp_distance())
    ours = mined((lp_distance()(codes), labels), "semihard", margin=0.27)
    assert sorted(ours) == sorted(rows(miner(codes, labels)))


def test_an_unknown_variant_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="mining is 'semihard-nearst'") as error:
        mine(torch.zeros(2, 2), torch.tensor([0, 0]), "semihard-nearst")
    assert error.value.hint == "did you mean semihard-nearest?"
    assert all(variant in str(error.value) for variant in VARIANTS)


def test_a_name_like_no_variant_is_refused_without_a_hint():
    with pytest.raises(ConfigError) as error:
        mine(torch.zeros(2, 2), torch.tensor([0, 0]), "xyz")
    assert error.value.hint is None


@pytest.mark.parametrize(
    ("distances", "orbits"), [((3, 3), (2,)), ((2, 3), (2,)), ((2,), (2,)), ((2, 2), (2, 1))]
)
def test_wrong_shapes_are_refused_with_both_shapes(distances, orbits):
    with pytest.raises(ValueError, match="pass an N x N matrix and N orbit ids") as error:
        mine(torch.zeros(distances), torch.zeros(orbits, dtype=torch.int64))
    assert str(distances) in str(error.value)
    assert str(orbits) in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_orbit_ids_that_are_no_integers_are_refused(dtype):
    with pytest.raises(TypeError, match=f"{dtype}; orbit ids are integers"):
        mine(torch.zeros(2, 2), torch.zeros(2, dtype=dtype))


def test_sorting_by_whole_numbers_is_a_stable_sort(rng):
    values = torch.randn(40, 64, generator=rng).round(decimals=1)
    odd = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1e-45, -1e-45, torch.nan])
    values[:, ::5] = odd[torch.randint(7, (40, 13), generator=rng)]
    values[:, 3] = torch.tensor(torch.inf) - torch.inf  # NaN of the other sign
    found, columns = _in_order(values)
    expected, places = values.sort(dim=1, stable=True)
    assert torch.equal(columns, places)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
