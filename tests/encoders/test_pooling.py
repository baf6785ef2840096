import pytest
import torch

from orbitset.encoders.pooling import (
    max_pool,
    max_pool_with_switches,
    unpool_copy,
    unpool_corner,
    unpool_switches,
)

SIZES = [2, 4]
SHAPES = [(2, 3, 4, 6), (1, 1, 2, 2), (1, 2, 8, 2)]


def rand(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def window(row, column, size, height, width):
    """The cells (offset in the window, row, column) of one window that lie in the image."""
    pad = (size - 2) // 2
    for offset in range(size * size):
        r, c = 2 * row - pad + offset // size, 2 * column - pad + offset % size
        if 0 <= r < height and 0 <= c < width:
            yield offset, r, c


def slow_pool(images, size):
    height, width = images.shape[-2:]
    pooled = images.new_zeros(*images.shape[:2], height // 2, width // 2)
    switch = torch.zeros(pooled.shape, dtype=torch.uint8)
    for n, channel, row, column in torch.cartesian_prod(*map(torch.arange, pooled.shape)).tolist():
        cells = list(window(row, column, size, height, width))
        values = [float(images[n, channel, r, c]) for _, r, c in cells]
        pooled[n, channel, row, column] = max(values)
        switch[n, channel, row, column] = cells[values.index(max(values))][0]
    return pooled, switch


def slow_unpool(pooled, size, chosen):
    """Sum and number of the values that windows put into each cell; `chosen` says which cells get one."""
    *batch, rows, columns = pooled.shape
    total, number = pooled.new_zeros(2, *batch, 2 * rows, 2 * columns)
    for row in range(rows):
        for column in range(columns):
            for offset, r, c in window(row, column, size, 2 * rows, 2 * columns):
                is_chosen = chosen(row, column, offset)
                total[..., r, c] += torch.where(is_chosen, pooled[..., row, column], 0)
                number[..., r, c] += is_chosen
    return total, number


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_max_pool_equals_the_loop(shape, size):
    images = rand(*shape)
    assert torch.equal(max_pool(images, size), slow_pool(images, size)[0])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_max_pool_with_switches_equals_the_loop(shape, size):
    pooled, switch = max_pool_with_switches(images := rand(*shape), size)
    expected, expected_switch = slow_pool(images, size)
    assert torch.equal(pooled, expected)
    assert torch.equal(switch, expected_switch)


@pytest.mark.parametrize("size", SIZES)
def test_of_equal_cells_the_first_is_the_switch(size):
    images = torch.randint(0, 2, (4, 2, 6, 6), generator=torch.Generator().manual_seed(0)).double()
    assert torch.equal(max_pool_with_switches(images, size)[1], slow_pool(images, size)[1])


@pytest.mark.parametrize("size", SIZES)
def test_pooling_of_negative_values_is_not_drawn_to_the_padding(size):
    images = -1 - rand(1, 1, 4, 4).abs()
    assert max_pool(images, size).max() < 0
    assert torch.equal(max_pool_with_switches(images, size)[0], max_pool(images, size))


def test_switches_point_at_the_maximum():
    images = torch.zeros(1, 1, 4, 4)
    images[0, 0, 1, 0], images[0, 0, 2, 3] = 5, 7
    assert max_pool_with_switches(images, 2)[1][0, 0].tolist() == [[2, 0], [0, 1]]
    # 4x4 windows start one pixel earlier: cell (1, 0) is row 2, column 1 of the first window
    assert max_pool_with_switches(images, 4)[1][0, 0].tolist() == [[9, 14], [1, 6]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", [(2, 3, 2, 3), (1, 1, 1, 1), (1, 2, 1, 4)])
def test_unpool_copy_is_the_mean_of_the_windows_over_each_cell(shape, size):
    pooled = rand(*shape)
    total, number = slow_unpool(pooled, size, lambda *_: torch.tensor(True))
    torch.testing.assert_close(unpool_copy(pooled, size), total / number)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", [(2, 3, 2, 3), (1, 1, 1, 1), (1, 2, 1, 4)])
def test_unpool_corner_fills_the_upper_left_of_the_middle_four(shape, size):
    pooled = rand(*shape)
    corner = 0 if size == 2 else 5
    total, number = slow_unpool(pooled, size, lambda r, c, offset: torch.tensor(offset == corner))
    assert torch.equal(unpool_corner(pooled, size), total)
    assert number.max() == 1


@pytest.mark.parametrize("size", SIZES)
def test_unpool_switches_sums_what_meets_in_a_cell(size):
    pooled, images = rand(2, 3, 3, 4), rand(2, 3, 6, 8, seed=1)
    switch = max_pool_with_switches(images, size)[1]
    total, number = slow_unpool(pooled, size, lambda r, c, offset: switch[..., r, c] == offset)
    torch.testing.assert_close(unpool_switches(pooled, switch, size), total)
    assert (number.max() > 1) == (size == 4)


def test_unpool_switches_puts_maxima_back_where_they_came_from():
    images = rand(2, 3, 6, 8)
    pooled, switch = max_pool_with_switches(images, 2)
    back = unpool_switches(pooled, switch, 2)
    assert torch.equal(back[back != 0], images[back != 0])
    assert (back != 0).sum() == pooled.numel()
    assert torch.equal(max_pool(back.abs(), 2), pooled.abs())


def test_unpool_switches_of_overlapping_windows_fills_only_maxima():
    images = rand(2, 3, 6, 8)
    pooled, switch = max_pool_with_switches(images, 4)
    times = unpool_switches(torch.ones_like(pooled), switch, 4)
    torch.testing.assert_close(unpool_switches(pooled, switch, 4), times * images)
    assert times.sum() == pooled.numel()


@pytest.mark.parametrize("size", SIZES)
def test_gradients_are_right(size):
    images, pooled = rand(1, 2, 4, 4).requires_grad_(), rand(1, 2, 2, 3).requires_grad_()
    switch = max_pool_with_switches(rand(1, 2, 4, 6), size)[1]
    assert torch.autograd.gradcheck(lambda x: max_pool(x, size), images)
    assert torch.autograd.gradcheck(lambda x: max_pool_with_switches(x, size)[0], images)
    assert torch.autograd.gradcheck(lambda x: unpool_copy(x, size), pooled)
    assert torch.autograd.gradcheck(lambda x: unpool_corner(x, size), pooled)
    assert torch.autograd.gradcheck(lambda x: unpool_switches(x, switch, size), pooled)


@pytest.mark.parametrize("size", SIZES)
def test_gradients_are_the_same_for_ties_every_time(size):
    values = torch.randint(0, 2, (4, 8, 16, 16), generator=torch.Generator().manual_seed(0))
    gradients = []
    for _ in range(3):
        images = values.float().requires_grad_()
        pooled, switch = max_pool_with_switches(images, size)
        (unpool_switches(pooled, switch, size) * rand(4, 8, 16, 16).float()).sum().backward()
        gradients.append(images.grad)
    assert torch.equal(gradients[0], gradients[1]) and torch.equal(gradients[0], gradients[2])


@pytest.mark.parametrize("size", SIZES)
def test_both_ways_of_pooling_have_equal_gradients(size):
    first, second = (rand(2, 3, 6, 8).requires_grad_() for _ in range(2))
    weight = rand(2, 3, 3, 4, seed=1)
    (max_pool(first, size) * weight).sum().backward()
    (max_pool_with_switches(second, size)[0] * weight).sum().backward()
    torch.testing.assert_close(first.grad, second.grad)


@pytest.mark.parametrize("size", SIZES)
def test_memory_layout_makes_no_difference(size):
    images = rand(2, 3, 6, 8)
    last = images.contiguous(memory_format=torch.channels_last)
    pooled, switch = max_pool_with_switches(images, size)
    for ours, theirs in zip(max_pool_with_switches(last, size), (pooled, switch), strict=True):
        assert torch.equal(ours, theirs)
    pooled_last = pooled.contiguous(memory_format=torch.channels_last)
    assert torch.equal(unpool_copy(pooled_last, size), unpool_copy(pooled, size))
    assert torch.equal(unpool_corner(pooled_last, size), unpool_corner(pooled, size))


@pytest.mark.parametrize("size", SIZES)
def test_pooling_and_unpooling_run_when_only_deterministic_algorithms_are_allowed(size):
    images = rand(1, 2, 4, 4).requires_grad_()
    torch.use_deterministic_algorithms(True)
    try:
        pooled, switch = max_pool_with_switches(max_pool(unpool_copy(images, size), size), size)
        (unpool_switches(pooled, switch, size) + unpool_corner(pooled, size)).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert images.grad.isfinite().all()


def test_switches_are_bytes():
    assert max_pool_with_switches(torch.rand(1, 2, 4, 4), 4)[1].dtype == torch.uint8


@pytest.mark.parametrize("cell", range(4))
def test_a_nan_in_any_cell_is_not_lost(cell):
    images = torch.rand(1, 1, 2, 2)
    images.view(-1)[cell] = torch.nan
    assert max_pool_with_switches(images, 2)[0].isnan().all()
