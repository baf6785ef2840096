import statistics
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from orbitset.evaluation import one_shot
from orbitset.evaluation.exclusion import Near, Same
from orbitset.evaluation.labelled import Labelled, draw_labelled_sets
from orbitset.evaluation.one_shot import Accuracy, knn_accuracy, linear_probe_accuracy


def random_set(num=40, dim=5, classes=4, *, seed=0, kind="random", orbits=False):
    """Labelled codes: random, small whole numbers with many ties, or each code several times."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(num, dim, dtype=torch.float64, generator=generator)
    if kind == "tied":
        codes = torch.randint(-1, 2, (num, dim), generator=generator).float()
    if kind == "duplicate":
        codes = codes[torch.randint(num // 5, (num,), generator=generator)].mul(8).round().float()
    labels = torch.arange(num) % classes
    return Labelled(codes, labels, torch.arange(num) // 2 if orbits else None)


def one_shot_accuracy(gallery, queries, *, draws, seed=0):
    sets = draw_labelled_sets(gallery.labels, shots=1, draws=draws, seed=seed)
    return knn_accuracy(gallery, queries, labelled_sets=sets)


def squared_distance(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def normalised(code):
    return [x / sum(y * y for y in code) ** 0.5 for x in code]


def predicted_by_loop(examples, labels, query, k):
    """The majority of the k nearest; of equal distances the first, of equal votes the nearest."""
    order = sorted(range(len(examples)), key=lambda i: squared_distance(examples[i], query))[:k]
    votes = Counter(labels[i] for i in order)
    return next(labels[i] for i in order if votes[labels[i]] == max(votes.values()))


def slow_accuracy(gallery, queries, sets, *, k=1, metric="euclidean", predict=predicted_by_loop):
    prepare = normalised if metric == "cosine" else list
    codes = [prepare(code) for code in gallery.codes.double().tolist()]
    query_codes = [prepare(code) for code in queries.codes.double().tolist()]
    accuracies = []
    for rows in sets.tolist():
        labels = gallery.labels[rows].tolist()
        known = set() if gallery.orbits is None else set(gallery.orbits[rows].tolist())
        scored = [
            predict([codes[row] for row in rows], labels, code, k) == int(queries.labels[q])
            for q, code in enumerate(query_codes)
            if queries.orbits is None or int(queries.orbits[q]) not in known
        ]
        accuracies.append(sum(scored) / len(scored))
    return accuracies


@pytest.mark.parametrize("kind", ["random", "tied", "duplicate"])
@pytest.mark.parametrize("orbits", [True, False])
def test_one_shot_equals_the_loop(kind, orbits):
    gallery = random_set(kind=kind, orbits=orbits)
    queries = random_set(60, seed=1, kind=kind, orbits=orbits)
    sets = draw_labelled_sets(gallery.labels, shots=1, draws=12, seed=3)
    accuracy = one_shot_accuracy(gallery, queries, draws=12, seed=3)
    assert accuracy.per_draw.tolist() == pytest.approx(slow_accuracy(gallery, queries, sets))
    assert accuracy.per_draw.dtype == torch.float64


@pytest.mark.parametrize("kind", ["random", "tied", "duplicate"])
@pytest.mark.parametrize(("k", "shots"), [(1, 3), (2, 1), (3, 2), (4, 4), (12, 3), (5, None)])
def test_knn_equals_the_loop(kind, k, shots):
    gallery, queries = random_set(kind=kind), random_set(30, seed=1, kind=kind)
    sets, labelled = torch.arange(len(gallery))[None], None
    if shots is not None:
        sets = labelled = draw_labelled_sets(gallery.labels, shots=shots, draws=5, seed=2)
    accuracy = knn_accuracy(gallery, queries, k=k, labelled_sets=labelled)
    assert accuracy.per_draw.tolist() == pytest.approx(slow_accuracy(gallery, queries, sets, k=k))


@pytest.mark.parametrize("k", [1, 3])
def test_cosine_equals_the_loop_and_ignores_lengths(k):
    gallery, queries = random_set(), random_set(30, seed=1)
    longer = Labelled(queries.codes * torch.arange(1, 31)[:, None], queries.labels)
    expected = slow_accuracy(gallery, queries, torch.arange(40)[None], k=k, metric="cosine")
    for asked in (queries, longer):
        accuracy = knn_accuracy(gallery, asked, k=k, metric="cosine")
        assert accuracy.per_draw.tolist() == pytest.approx(expected)


def test_known_answer_by_hand():
    gallery = Labelled(torch.tensor([[0.0], [10.0], [4.0]]), torch.tensor([0, 1, 0]))
    queries = Labelled(torch.tensor([[1.0], [6.0], [8.0], [9.0]]), torch.tensor([0, 1, 1, 0]))
    sets = torch.tensor([[0, 1], [2, 1]])
    accuracy = knn_accuracy(gallery, queries, labelled_sets=sets)
    assert accuracy.per_draw.tolist() == [0.75, 0.5]


def test_of_equally_near_examples_the_one_that_stands_first_in_the_draw_wins():
    gallery = Labelled(torch.tensor([[0.0], [0.0]]), torch.tensor([0, 1]))
    queries = Labelled(torch.zeros(3, 1), torch.tensor([0, 0, 1]))
    accuracy = knn_accuracy(gallery, queries, labelled_sets=torch.tensor([[0, 1], [1, 0]]))
    assert accuracy.per_draw.tolist() == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize("k", [1, 3])
def test_of_equal_codes_the_first_wins_whatever_their_digits(k):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(10, 64, dtype=torch.float64, generator=generator).repeat(10, 1)
    queries = torch.randn(200, 64, dtype=torch.float64, generator=generator)
    gallery = Labelled(codes, torch.arange(100) // 10)
    accuracy = knn_accuracy(gallery, Labelled(queries, torch.zeros(200, dtype=torch.int64)), k=k)
    assert accuracy.mean == 1


def test_codes_close_together_are_told_apart_when_another_is_far():
    generator = torch.Generator().manual_seed(0)
    middle = torch.randn(1, 256, generator=generator)
    close = middle + 1e-4 * torch.randn(9, 256, generator=generator)
    gallery = Labelled(torch.cat([-middle, close]), torch.arange(10))
    queries = Labelled(
        close.repeat(20, 1) + 3e-5 * torch.randn(180, 256, generator=generator),
        torch.arange(1, 10).repeat(20),
    )
    assert (
        torch.cdist(queries.codes.double(), gallery.codes.double()).argmin(1).equal(queries.labels)
    )
    assert one_shot_accuracy(gallery, queries, draws=1).mean == 1


def test_codes_far_from_the_origin_are_told_apart():
    generator = torch.Generator().manual_seed(0)
    near = torch.randint(-3, 4, (40, 5), generator=generator).float()
    far = Labelled(near + 3000, torch.arange(40) % 4)
    queries = Labelled(near.roll(1, 0) + 3000, torch.arange(40) % 4)
    sets = draw_labelled_sets(far.labels, shots=1, draws=8)
    expected = slow_accuracy(far, queries, sets)
    assert one_shot_accuracy(far, queries, draws=8).per_draw.tolist() == pytest.approx(expected)


def test_queries_of_a_labelled_orbit_are_left_out_of_that_draw_only():
    gallery = Labelled(torch.tensor([[0.0], [5.0]]), torch.tensor([0, 1]), torch.tensor([7, 8]))
    queries = Labelled(
        torch.tensor([[0.0], [0.0], [1.0], [5.0]]),
        torch.tensor([0, 1, 0, 0]),
        torch.tensor([7, 3, 4, 8]),
    )
    accuracy = knn_accuracy(gallery, queries, labelled_sets=torch.tensor([[0], [1]]))
    assert accuracy.per_draw.tolist() == pytest.approx([2 / 3, 1 / 3])


def test_orbits_of_one_side_only_leave_nothing_out():
    gallery, queries = random_set(orbits=True), random_set(30, seed=1)
    with_orbits = one_shot_accuracy(gallery, queries, draws=5).per_draw
    assert torch.equal(with_orbits, one_shot_accuracy(random_set(), queries, draws=5).per_draw)


def test_per_query_says_in_which_part_of_its_draws_a_query_was_right():
    gallery, queries = random_set(seed=0, orbits=True), random_set(num=30, seed=1, orbits=True)
    sets = draw_labelled_sets(gallery.labels, shots=1, draws=9)
    found = knn_accuracy(gallery, queries, labelled_sets=sets).per_query
    for query in range(len(queries)):
        right = []
        for rows in sets:
            if queries.orbits[query] in gallery.orbits[rows]:
                continue
            examples, labels = gallery.codes[rows].tolist(), gallery.labels[rows].tolist()
            predicted = predicted_by_loop(examples, labels, queries.codes[query].tolist(), 1)
            right.append(predicted == int(queries.labels[query]))
        expected = float(np.mean(right)) if right else float("nan")
        assert found[query].item() == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("kind", ["random", "tied", "duplicate"])
@pytest.mark.parametrize("entries", [200, 2**24])
def test_one_labelled_image_of_each_class_equals_a_loop_with_exclusions(kind, entries, monkeypatch):
    monkeypatch.setattr(one_shot, "_CHUNK_ENTRIES", entries)
    codes, frame = random_set(kind=kind), torch.arange(40) // 4
    rule = Same("thing") & Near("frame", 2)
    factors = {"thing": codes.labels, "frame": frame}
    accuracy = one_shot.one_shot_accuracy(codes, draws=7, seed=3, factors=factors, exclude=rule)
    per_draw = []
    for row_L in draw_labelled_sets(codes.labels, shots=1, draws=7, seed=3).tolist():
        right = []
        for query in range(40):
            left = [
                row
                for row in row_L
                if row != query
                and not (
                    codes.labels[row] == codes.labels[query] and abs(frame[row] - frame[query]) < 2
                )
            ]
            if any(codes.labels[row] == codes.labels[query] for row in left):
                examples, labels = codes.codes[left].tolist(), codes.labels[left].tolist()
                predicted = predicted_by_loop(examples, labels, codes.codes[query].tolist(), 1)
                right.append(predicted == int(codes.labels[query]))
        per_draw.append(np.mean(right))
    assert accuracy.per_draw.tolist() == pytest.approx(per_draw)
    assert accuracy.score().mean == pytest.approx(np.mean(per_draw)) and accuracy.score().n == 7


def test_draws_that_leave_no_query_are_not_counted():
    codes = Labelled(torch.tensor([[0.0], [1.0], [9.0]]), torch.tensor([0, 0, 1]))
    factors = {"view": torch.tensor([0, 0, 0])}
    assert one_shot.one_shot_accuracy(codes, draws=5).per_draw.tolist() == [1.0] * 5
    with pytest.raises(ValueError, match="no query is left to score: .* excluded"):
        one_shot.one_shot_accuracy(codes, draws=5, factors=factors, exclude=Same("view"))


def test_no_query_left_is_an_error():
    labelled = Labelled(torch.zeros(2, 1), torch.arange(2), torch.arange(2))
    with pytest.raises(ValueError, match="no query is left to score"):
        one_shot_accuracy(labelled, labelled, draws=1)


@pytest.mark.parametrize("entries", [1, 50, 1000])
@pytest.mark.parametrize("k", [1, 3])
def test_chunks_of_queries_make_no_difference(monkeypatch, entries, k):
    gallery, queries = (random_set(n, seed=n, kind="tied", orbits=True) for n in (40, 60))
    sets = draw_labelled_sets(gallery.labels, shots=2, draws=7)
    whole = knn_accuracy(gallery, queries, k=k, labelled_sets=sets).per_draw
    monkeypatch.setattr(one_shot, "_CHUNK_ENTRIES", entries)
    parts = knn_accuracy(gallery, queries, k=k, labelled_sets=sets).per_draw
    assert torch.equal(whole, parts)


def test_the_order_of_queries_makes_no_difference():
    gallery, queries = random_set(), random_set(30, seed=1)
    turned = Labelled(queries.codes.flip(0), queries.labels.flip(0))
    first = one_shot_accuracy(gallery, queries, draws=5).per_draw
    assert torch.equal(first, one_shot_accuracy(gallery, turned, draws=5).per_draw)


def test_equal_seeds_give_equal_draws_and_other_seeds_others():
    gallery, queries = random_set(), random_set(30, seed=1)
    first, again, other = (
        one_shot_accuracy(gallery, queries, draws=10, seed=s).per_draw for s in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first) == 10


@pytest.mark.parametrize("k", [0, -1, 9])
def test_k_out_of_range_is_refused(k):
    with pytest.raises(ValueError, match=f"k is {k} but 8 examples are labelled; give 1 to 8"):
        sets = draw_labelled_sets(random_set().labels, shots=2, draws=3)
        knn_accuracy(random_set(), random_set(), k=k, labelled_sets=sets)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (torch.zeros(3, 0, dtype=torch.int64), "labelled_sets has shape"),
        (torch.arange(3), "labelled_sets has shape"),
        (torch.tensor([[0, 40]]), "rows outside the gallery of 40"),
        (torch.tensor([[-1, 0]]), "rows outside the gallery of 40"),
    ],
)
def test_labelled_sets_must_name_rows_of_the_gallery(sets, message):
    with pytest.raises(ValueError, match=message):
        knn_accuracy(random_set(), random_set(), labelled_sets=sets)


def probe_by_scipy(examples, labels, query, _):
    """Softmax regression on standardised codes: summed log loss plus half the squared weights."""
    codes, classes = np.array(examples), sorted(set(labels))
    mean, spread = codes.mean(0), codes.std(0)
    codes, target = (
        (codes - mean) / spread,
        np.eye(len(classes))[[classes.index(y) for y in labels]],
    )
    shape = (len(classes), codes.shape[1] + 1)

    def objective(flat):
        weights = flat.reshape(shape)
        scores = codes @ weights[:, 1:].T + weights[:, 0]
        log_likelihood = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        error = np.exp(log_likelihood) - target
        gradient = np.c_[error.sum(0), error.T @ codes + weights[:, 1:]]
        loss = -(log_likelihood * target).sum() + (weights[:, 1:] ** 2).sum() / 2
        return loss, gradient.ravel()

    weights = minimize(objective, np.zeros(np.prod(shape)), jac=True, tol=1e-9).x.reshape(shape)
    return classes[int(np.argmax(weights[:, 1:] @ ((query - mean) / spread) + weights[:, 0]))]


@pytest.mark.parametrize("orbits", [True, False])
def test_the_linear_probe_equals_softmax_regression_written_out(orbits):
    gallery = random_set(24, 3, 3, orbits=orbits)
    queries = random_set(16, 3, 3, seed=1, orbits=orbits)
    sets = draw_labelled_sets(gallery.labels, shots=4, draws=2, seed=1)
    accuracy = linear_probe_accuracy(gallery, queries, labelled_sets=sets)
    expected = slow_accuracy(gallery, queries, sets, predict=probe_by_scipy)
    assert accuracy.per_draw.tolist() == pytest.approx(expected)


def test_the_linear_probe_learns_a_direction_that_nearest_neighbours_miss():
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(400, 20, generator=generator)
    labels = (codes[:, 0] > 0).long()
    gallery, queries = Labelled(codes[:200], labels[:200]), Labelled(codes[200:], labels[200:])
    assert linear_probe_accuracy(gallery, queries).mean > 0.9
    assert knn_accuracy(gallery, queries).mean < 0.8


def test_the_linear_probe_standardises_codes():
    gallery, queries = random_set(24, 3, 3), random_set(16, 3, 3, seed=1)
    scale, shift = torch.tensor([1e-3, 1.0, 1e3]).double(), 7.0
    moved = [Labelled(part.codes * scale + shift, part.labels) for part in (gallery, queries)]
    first = linear_probe_accuracy(gallery, queries).per_draw
    assert torch.equal(first, linear_probe_accuracy(*moved).per_draw)


def test_the_linear_probe_takes_labelled_sets_and_cosine():
    gallery, queries = random_set(24, 3, 3), random_set(16, 3, 3, seed=1)
    sets = draw_labelled_sets(gallery.labels, shots=3, draws=2, seed=5)
    given = linear_probe_accuracy(gallery, queries, labelled_sets=sets, metric="cosine").per_draw
    unit = [
        Labelled(part.codes / part.codes.norm(dim=1, keepdim=True), part.labels)
        for part in (gallery, queries)
    ]
    assert torch.equal(given, linear_probe_accuracy(*unit, labelled_sets=sets).per_draw)


def test_the_linear_probe_with_no_query_left_is_an_error():
    labelled = Labelled(torch.eye(2), torch.arange(2), torch.arange(2))
    with pytest.raises(ValueError, match="no query is left to score"):
        linear_probe_accuracy(labelled, labelled)


VALUES = [0.5, 0.25, 0.75, 1.0, 0.125, 0.625, 0.5]


def accuracy_of(values):
    return Accuracy(torch.tensor(values, dtype=torch.float64), torch.zeros(0))


def test_mean_and_deviation_are_those_of_the_draws():
    accuracy = accuracy_of(VALUES)
    assert accuracy.mean == pytest.approx(statistics.mean(VALUES))
    assert accuracy.sd == pytest.approx(statistics.stdev(VALUES))


@pytest.mark.parametrize("num", [2, 7, 100])
def test_the_interval_holds_the_middle_95_percent(num):
    values = np.random.default_rng(0).random(num)
    low, high = accuracy_of(values.tolist()).interval
    assert (low, high) == pytest.approx(tuple(np.percentile(values, [2.5, 97.5])))


def test_a_single_draw_has_no_spread():
    accuracy = accuracy_of([0.5])
    assert (accuracy.mean, accuracy.sd, accuracy.interval) == (0.5, None, (0.5, 0.5))


@pytest.mark.parametrize("length", [1e7, 1e9, 1e15])
@pytest.mark.parametrize("sign", [-1, 1])
def test_one_code_far_from_all_others_changes_no_other_answer(length, sign):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat_interleave(10)
    codes = torch.randn(60, 4, generator=generator) + 0.7 * labels[:, None]
    codes[7] = sign * length
    sets = draw_labelled_sets(labels, shots=1, draws=20)
    distance = (codes[:, None].double() - codes.double()).square().sum(2)  # without cancellation
    is_query = torch.stack([~torch.isin(torch.arange(60), set_L) for set_L in sets], 1)
    found = torch.stack([labels[set_L][distance[:, set_L].argmin(1)] for set_L in sets], 1)
    is_right = is_query & (found == labels[:, None])
    accuracy = one_shot.one_shot_accuracy(Labelled(codes, labels), draws=20).per_query
    others = torch.arange(60) != 7
    assert torch.equal(accuracy[others], (is_right.sum(1) / is_query.sum(1).double())[others])
