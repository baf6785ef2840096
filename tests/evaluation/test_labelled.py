import pytest
import torch
from torch.overrides import TorchFunctionMode

from orbitset.evaluation.labelled import Labelled, draw_labelled_sets
from orbitset.seeds import stream

LABELS = torch.tensor([2, 7, 2, 2, 0, 7, 0, 2, 7, 0, 0])


def _compared_with_every_class(labels_N, shots, draws, seed):
    """The definition: the rows of each class in their order, found by comparing all labels with it."""
    generator, columns = stream("labelled sets", seed, shots), []
    for label in labels_N.unique():
        rows = (labels_N == label).nonzero().squeeze(1)
        if shots == 1:
            columns.append(rows[torch.randint(len(rows), (draws, 1), generator=generator)])
        else:
            keys = torch.rand(draws, len(rows), generator=generator)
            columns.append(rows[keys.topk(shots, dim=1).indices])
    return torch.cat(columns, 1)


@pytest.mark.parametrize("shots", [1, 2])
def test_sets_are_those_of_the_definition(shots):
    labels = torch.randint(0, 40, (500,), generator=torch.Generator().manual_seed(1)) * 3
    sets = draw_labelled_sets(labels, shots=shots, draws=5, seed=2)
    assert torch.equal(sets, _compared_with_every_class(labels, shots, 5, 2))


def test_all_labels_are_looked_at_a_few_times_however_many_classes_there_are():
    class Counting(TorchFunctionMode):
        looks = 0

        def __torch_function__(self, function, types, inputs=(), options=None):
            self.looks += any(isinstance(x, torch.Tensor) and x.shape == (1000,) for x in inputs)
            return function(*inputs, **(options or {}))

    with Counting() as counting:
        draw_labelled_sets(torch.arange(500).repeat(2), shots=1, draws=2)
    assert counting.looks < 20


def test_length_is_the_number_of_codes():
    assert len(Labelled(torch.zeros(4, 2), torch.arange(4))) == 4


@pytest.mark.parametrize(
    ("codes", "labels"), [((4, 2), (3,)), ((4,), (4,)), ((4, 2), (4, 1)), ((4, 2, 2), (4,))]
)
def test_codes_and_labels_that_do_not_belong_together_are_refused(codes, labels):
    with pytest.raises(ValueError, match="pass N x D codes and one label per code"):
        Labelled(torch.zeros(codes), torch.zeros(labels, dtype=torch.int64))


def test_orbits_of_another_length_are_refused():
    with pytest.raises(ValueError, match="orbits have 3 entries but there are 4 codes"):
        Labelled(torch.zeros(4, 2), torch.arange(4), torch.arange(3))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_the_first_code_that_is_not_finite_is_named(value):
    codes = torch.zeros(5, 3)
    codes[3, 1] = codes[4, 0] = value
    with pytest.raises(ValueError, match="code 3 holds NaN or infinity"):
        Labelled(codes, torch.arange(5))


@pytest.mark.parametrize("scale", [1e-30, 1, 1e30])
def test_codes_of_any_size_get_length_1(scale):
    codes = Labelled(scale * torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2))
    for found in (codes.prepared("cosine"), codes.precise("cosine")):
        torch.testing.assert_close(found.double(), torch.tensor([[0.6, 0.8], [0, 0]]).double())


def test_whole_numbers_and_half_precision_can_be_compared_by_angle():
    for codes in (torch.tensor([[60000.0, 0]]).half(), torch.tensor([[3, 0]])):
        assert Labelled(codes, torch.zeros(1)).precise("cosine").tolist() == [[1, 0]]


def test_codes_without_entries_are_refused():
    with pytest.raises(ValueError, match="codes have no entries"):
        Labelled(torch.zeros(3, 0), torch.zeros(3))


def test_an_unknown_metric_is_refused():
    with pytest.raises(ValueError, match="metric is 'manhattan'; choose 'euclidean' or 'cosine'"):
        Labelled(torch.zeros(4, 2), torch.arange(4)).prepared("manhattan")


def test_cosine_prepares_codes_of_length_1_and_euclidean_leaves_them():
    labelled = Labelled(torch.tensor([[3.0, 4.0], [0.0, -2.0]]), torch.arange(2))
    assert labelled.prepared("euclidean") is labelled.codes
    expected = torch.tensor([[0.6, 0.8], [0.0, -1.0]])
    torch.testing.assert_close(labelled.prepared("cosine"), expected)


@pytest.mark.parametrize("shots", [1, 2, 3])
def test_every_draw_has_so_many_different_examples_of_every_class(shots):
    sets = draw_labelled_sets(LABELS, shots=shots, draws=50)
    assert sets.shape == (50, 3 * shots)
    assert sets.dtype == torch.int64
    for row in sets:
        assert LABELS[row].tolist() == [label for label in (0, 2, 7) for _ in range(shots)]
        assert len(row.unique()) == 3 * shots


def test_draws_depend_on_the_seed_alone():
    torch.manual_seed(0)
    first = draw_labelled_sets(LABELS, shots=2, draws=20, seed=4)
    torch.manual_seed(1)
    assert torch.equal(first, draw_labelled_sets(LABELS, shots=2, draws=20, seed=4))
    assert not torch.equal(first, draw_labelled_sets(LABELS, shots=2, draws=20, seed=5))


def test_draws_differ_from_each_other():
    assert len(draw_labelled_sets(LABELS, shots=1, draws=200).unique(dim=0)) > 30


@pytest.mark.parametrize("shots", [1, 2])
def test_every_example_of_a_class_is_drawn_equally_often(shots):
    draws = 4000
    times = draw_labelled_sets(LABELS, shots=shots, draws=draws).flatten().bincount()
    sizes = LABELS.bincount()[LABELS]
    expected = draws * shots / sizes
    deviation = (expected * (1 - shots / sizes)).sqrt()
    assert ((times - expected).abs() < 4.5 * deviation).all()


def test_choices_in_two_classes_are_independent():
    labels = torch.tensor([0, 0, 1, 1])
    pairs = draw_labelled_sets(labels, shots=1, draws=4000)
    same = ((pairs[:, 0] == 0) == (pairs[:, 1] == 2)).float().mean().item()
    assert same == pytest.approx(0.5, abs=0.04)


def test_a_class_with_exactly_as_many_examples_gives_them_all():
    sets = draw_labelled_sets(torch.tensor([5, 5, 5]), shots=3, draws=10)
    assert (sets.sort(1).values == torch.arange(3)).all()


@pytest.mark.parametrize("shots", [0, -1, 4])
def test_too_few_or_too_many_shots_are_refused(shots):
    with pytest.raises(
        ValueError, match=f"shots is {shots} but class 7 has 3 examples; give 1 to 3"
    ):
        draw_labelled_sets(LABELS, shots=shots, draws=2)


def test_drawing_from_nothing_is_refused():
    with pytest.raises(ValueError, match="there are no labels"):
        draw_labelled_sets(torch.zeros(0, dtype=torch.int64), shots=1, draws=1)
