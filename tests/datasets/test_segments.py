import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitset.datasets.segments import SegmentConfig, changes, cut_segments, find_cuts
from orbitset.errors import ConfigError


def segments(frames, cuts=(), **settings):
    found, left_out = cut_segments(frames, cuts, SegmentConfig(**settings))
    return [list(taken) for taken in found], left_out


def test_a_video_is_cut_into_equal_segments():
    found, left_out = segments(64)
    assert [len(taken) for taken in found] == [16] * 4
    assert list(itertools.chain(*found)) == list(range(64))
    assert left_out == 0


@pytest.mark.parametrize(
    ("frames", "last", "left_out"), [(23, 16, 7), (24, 8, 0), (31, 15, 0), (32, 16, 0)]
)
def test_half_a_segment_is_kept_and_less_is_counted(frames, last, left_out):
    found, counted = segments(frames)
    assert len(found[-1]) == last
    assert counted == left_out


def test_a_single_frame_is_no_segment():
    assert segments(5, length=2) == ([[0, 1], [2, 3]], 1)
    assert segments(1, length=2) == ([], 1)
    assert segments(0) == ([], 0)


def test_strides_take_every_so_many_frames():
    assert segments(20, length=3, stride=4) == ([[0, 4, 8], [9, 13, 17]], 2)
    assert segments(14, length=3, stride=4)[0] == [[0, 4, 8], [9, 13]]


def test_gaps_lie_between_segments():
    assert segments(13, length=4, gap=2) == ([[0, 1, 2, 3], [6, 7, 8, 9]], 1)
    assert segments(10, length=4, gap=99) == ([[0, 1, 2, 3]], 0)


def test_segments_end_at_cuts():
    assert segments(12, cuts=(5, 6), length=4) == ([[0, 1, 2, 3], [6, 7, 8, 9], [10, 11]], 2)


@given(
    st.integers(0, 80),
    st.lists(st.integers(1, 79), unique=True, max_size=5),
    st.integers(2, 9),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_segments_share_no_frame_and_cross_no_cut(frames, cuts, length, stride, gap):
    cuts = tuple(sorted(cut for cut in cuts if cut < frames))
    config = SegmentConfig(length=length, stride=stride, gap=gap)
    found, left_out = cut_segments(frames, cuts, config)
    for taken in found:
        assert config.fewest <= len(taken) <= length
        assert not any(taken[0] < cut <= taken[-1] for cut in cuts)
    for one, other in itertools.pairwise(found):
        assert other[0] > one[-1]
        assert other[0] - one[-1] > gap or any(one[-1] < cut <= other[0] for cut in cuts)
    assert all(0 <= at < frames for taken in found for at in taken)
    assert 0 <= left_out <= frames
    if stride == 1 and gap == 0:
        assert sum(map(len, found)) + left_out == frames


def moving(frames, seed=0, channels=1, step=1):
    """A smooth random picture that moves sideways, with a little noise."""
    rng = np.random.default_rng(seed)
    coarse = np.kron(rng.random((4, 8)), np.ones((8, 8)))
    wide = sum(np.roll(coarse, shift, 1) for shift in range(8)) / 8 * 255
    shown = np.stack([np.roll(wide, step * at, 1)[:, :32] for at in range(frames)])
    shown = (shown + rng.normal(0, 2, shown.shape)).clip(0, 255).astype(np.uint8)
    return np.repeat(shown[:, None], channels, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_abrupt_change_is_a_cut(channels):
    parts = [moving(30, 0, channels), moving(12, 1, channels), moving(40, 2, channels)]
    assert find_cuts(np.concatenate(parts), 3.0) == (30, 42)


def test_movement_noise_and_light_that_changes_slowly_are_none():
    assert find_cuts(moving(60, step=1), 3.0) == ()
    assert find_cuts(moving(60, step=3), 3.0) == ()
    brighter = moving(60).astype(int) + np.arange(60)[:, None, None, None]
    assert find_cuts(brighter.clip(0, 255).astype(np.uint8), 3.0) == ()


@pytest.mark.parametrize("times", [2, 3])
def test_repeated_frames_are_not_taken_for_a_still_picture(times):
    repeated = np.repeat(moving(30, step=2), times, 0)
    assert changes(repeated).max() > 3.0 * 2.0
    assert find_cuts(repeated, 3.0) == ()


def test_cuts_near_each_other_and_near_the_ends_are_found():
    parts = [moving(count, seed) for seed, count in enumerate((2, 3, 4, 20, 1))]
    assert find_cuts(np.concatenate(parts), 3.0) == (2, 5, 9, 29)


def test_a_higher_threshold_finds_less():
    pixels = np.full((20, 1, 4, 4), 100, np.uint8)
    pixels[10:] = 110
    assert find_cuts(pixels, 4.9) == (10,)
    assert find_cuts(pixels, 5.1) == ()


def test_few_frames_have_no_cuts():
    assert find_cuts(np.zeros((0, 1, 4, 4), np.uint8), 3.0) == ()
    assert find_cuts(np.zeros((1, 1, 4, 4), np.uint8), 3.0) == ()


def test_changes_are_the_same_in_any_portions(monkeypatch):
    pixels = moving(50, channels=3)
    expected = np.abs(np.diff(pixels.astype(int), axis=0)).mean((1, 2, 3))
    for portion in (1, 7, 49, 50, 256):
        monkeypatch.setattr("orbitset.datasets.segments._AT_ONCE", portion)
        assert np.allclose(changes(pixels), [0, *expected])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 1}, "segments.length is 1; give at least 2"),
        ({"stride": 0}, "segments.stride is 0; give at least 1"),
        ({"gap": -1}, "segments.gap is -1; give at least 0"),
        ({"scene_cuts": 0.5}, "segments.scene_cuts is 0.5; give at least 1, or None"),
        ({"scene_cuts": float("nan")}, "segments.scene_cuts is nan"),
    ],
)
def test_nonsense_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        SegmentConfig(**settings)
