import pytest
import torch

from orbitset.losses import distance_matrix, paired_distances


def brute_force(codes, others):
    return (codes.double()[:, None] - others.double()[None]).square().sum(2)


def relative_error(codes, others=None):
    """The largest error as a fraction of the largest distance, which is what rounding is relative to."""
    true = brute_force(codes, codes if others is None else others)
    return ((distance_matrix(codes, others) - true).abs().max() / true.max()).item()


def naive_paired(codes, left, right):
    return (codes[left] - codes[right]).square().sum(1)


def test_distance_matrix_gives_squared_distances_by_hand():
    codes = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    assert distance_matrix(codes).tolist() == [[0, 25, 1], [25, 0, 18], [1, 18, 0]]


@pytest.mark.parametrize("shape", [(2, 1), (7, 3), (40, 64), (130, 300)])
def test_distance_matrix_equals_float64_brute_force_within_rounding(shape, rng):
    assert relative_error(torch.randn(shape, generator=rng)) < 1e-6


@pytest.mark.parametrize(("rows", "columns"), [(5, 9), (1, 4), (60, 3)])
def test_distance_matrix_of_two_sets_equals_brute_force(rows, columns, rng):
    codes, others = torch.randn(rows, 8, generator=rng), torch.randn(columns, 8, generator=rng)
    assert distance_matrix(codes, others).shape == (rows, columns)
    assert relative_error(codes, others) < 1e-6


def test_distance_matrix_of_two_sets_keeps_the_diagonal():
    codes, others = torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [5.0]])
    assert distance_matrix(codes, others).tolist() == [[4, 25], [1, 16]]


def test_distance_matrix_is_accurate_for_a_cluster_far_from_the_origin(rng):
    codes = 1000 + torch.randn(40, 16, generator=rng)
    assert relative_error(codes) < 1e-5
    assert relative_error(codes, codes[:7].clone()) < 1e-5


def test_distance_matrix_has_a_zero_diagonal_and_no_negative_entry(rng):
    tight = torch.randn(8, 64, generator=rng).repeat_interleave(8, 0)
    distances = distance_matrix(tight + 1e-5 * torch.randn(64, 64, generator=rng))
    assert (distances.diagonal() == 0).all()
    assert (distances >= 0).all()


def test_distance_matrix_of_two_sets_is_never_negative(rng):
    codes = torch.randn(64, 64, generator=rng)
    assert (distance_matrix(codes, codes.clone()) >= 0).all()


@pytest.mark.parametrize("rows", [0, 1])
def test_distance_matrix_takes_no_and_one_code(rows):
    assert torch.equal(distance_matrix(torch.ones(rows, 3)), torch.zeros(rows, rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distance_matrix_keeps_the_dtype_and_its_input(dtype, rng):
    codes = torch.randn(6, 4, generator=rng, dtype=dtype)
    before = codes.clone()
    assert distance_matrix(codes).dtype == dtype
    assert torch.equal(codes, before)


def test_distance_matrix_is_not_affected_by_autocast(rng):
    codes = torch.randn(32, 64, generator=rng)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = distance_matrix(codes), distance_matrix(codes, codes[:5])
        assert (codes @ codes.T).dtype == torch.bfloat16  # autocast was on, and is on again
    assert torch.equal(inside[0], distance_matrix(codes))
    assert torch.equal(inside[1], distance_matrix(codes, codes[:5]))


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_distance_matrix_leaves_the_matmul_precision_as_it_was(precision, rng):
    codes = torch.randn(8, 4, generator=rng)
    try:
        torch.set_float32_matmul_precision(precision)
        distance_matrix(codes)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


def test_distance_matrix_works_beside_the_fp32_precision_setting(rng):
    codes = torch.randn(8, 4, generator=rng)
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert relative_error(codes) < 1e-6
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.set_float32_matmul_precision("highest")


def test_distance_matrix_passes_gradcheck(rng):
    codes = torch.randn(5, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    others = torch.randn(4, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(distance_matrix, (codes,))
    assert torch.autograd.gradcheck(distance_matrix, (codes, others))


def test_paired_distances_by_hand():
    codes = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    left, right = torch.tensor([0, 1, 2, 1]), torch.tensor([1, 2, 2, 0])
    assert paired_distances(codes, left, right).tolist() == [25, 18, 0, 25]


def test_paired_distances_are_exact_where_the_matrix_form_is_not(rng):
    base = torch.randn(4, 256, generator=rng)
    codes = torch.cat([base, base + 1e-4 * torch.randn(4, 256, generator=rng)])
    left, right = torch.arange(4), torch.arange(4, 8)
    true = brute_force(codes, codes)[left, right]
    paired, matrix = paired_distances(codes, left, right), distance_matrix(codes)[left, right]
    torch.testing.assert_close(paired.double(), true, rtol=1e-5, atol=0)
    assert ((matrix - true).abs() / true).max() > 0.01


def test_paired_distances_keep_differences_far_from_the_origin():
    codes = torch.tensor([[4096.0], [4096.0 + 2**-11]])
    assert paired_distances(codes, torch.tensor([0]), torch.tensor([1])).item() == 2**-22


def test_paired_distances_pass_gradcheck_with_repeated_pairs(rng):
    codes = torch.randn(5, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    left, right = torch.randint(5, (2, 30), generator=rng)
    assert torch.autograd.gradcheck(lambda c: paired_distances(c, left, right), (codes,))


def test_paired_distances_have_the_gradient_of_the_naive_formula(rng):
    codes = (50 + torch.randn(20, 16, generator=rng)).requires_grad_()
    left, right = torch.randint(20, (2, 300), generator=rng)
    weight = torch.randn(300, generator=rng)
    (ours,) = torch.autograd.grad((weight * paired_distances(codes, left, right)).sum(), codes)
    (naive,) = torch.autograd.grad((weight * naive_paired(codes, left, right)).sum(), codes)
    torch.testing.assert_close(ours, naive, rtol=1e-4, atol=1e-3)


def test_paired_distances_have_the_same_gradient_under_autocast(rng):
    codes = torch.randn(9, 8, generator=rng, requires_grad=True)
    left, right = torch.randint(9, (2, 40), generator=rng)
    (outside,) = torch.autograd.grad(paired_distances(codes, left, right).sum(), codes)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (inside,) = torch.autograd.grad(paired_distances(codes, left, right).sum(), codes)
    assert torch.equal(inside, outside)


def test_paired_distances_of_identical_codes_have_zero_gradient():
    codes = torch.full((6, 4), 0.3, requires_grad=True)
    left, right = torch.arange(6), torch.arange(6).flip(0)
    paired_distances(codes, left, right).sum().backward()
    torch.testing.assert_close(codes.grad, torch.zeros(6, 4))


def test_paired_distances_in_several_chunks_equal_the_naive_formula(rng):
    codes = torch.randn(140, 2**12, generator=rng, requires_grad=True)  # 1 MiB holds 64 such rows
    left, right = torch.randint(140, (2, 300), generator=rng)
    distances = paired_distances(codes, left, right)
    assert torch.equal(distances, naive_paired(codes, left, right))
    (ours,) = torch.autograd.grad(distances.sum(), codes)
    (naive,) = torch.autograd.grad(naive_paired(codes, left, right).sum(), codes)
    torch.testing.assert_close(ours, naive, rtol=1e-4, atol=1e-2)


def test_no_pairs_give_no_distances_and_a_zero_gradient():
    codes, none = torch.ones(3, 2, requires_grad=True), torch.zeros(0, dtype=torch.int64)
    distances = paired_distances(codes, none, none)
    distances.sum().backward()
    assert distances.shape == (0,)
    assert torch.equal(codes.grad, torch.zeros(3, 2))


def test_gradients_of_many_distances_are_right_far_from_the_origin(rng):
    """Weights of a code's distances add up to zero but for rounding, which an offset must not blow up."""
    codes = 1e4 + torch.randn(24, 8, generator=rng)
    left, right = torch.randint(24, (2, 200), generator=rng)
    pulls = torch.randn(200, generator=rng)
    grads = []
    for own in (codes.clone(), codes.double()):
        own.requires_grad_()
        (paired_distances(own, left, right) * pulls).sum().backward()
        grads.append(own.grad.double())
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-2, atol=1e-2)
