from fractions import Fraction

import av
import numpy as np
import pytest
import torch

from orbitset.datasets import video as module
from orbitset.datasets.decode import Decoding
from orbitset.datasets.frames import Frames
from orbitset.datasets.observed import ObservedImages
from orbitset.datasets.segments import SegmentConfig, VideoConfig
from orbitset.datasets.source import open_source
from orbitset.datasets.video import Clip, frames_of, split_by_time
from orbitset.errors import ConfigError, DataError

SHORT = SegmentConfig(length=4)


def load_videos(path, *, segments=None, on_progress=None, size_px=64, **options):
    video = VideoConfig(segments=segments or SegmentConfig())
    source = open_source(str(path))
    decoding = Decoding(size_px=size_px, video=video, **options)
    return module.load_videos(source.spec, source.root, source.names, decoding, on_progress)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "orbitset" / "frames"


def write_video(path, greys):
    """A frame of 8x8 pixels without loss for each grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("ffv1", rate=10)
        stream.width = stream.height = 8
        stream.pix_fmt = "bgr0"
        for at, grey in enumerate(greys):
            frame = av.VideoFrame.from_ndarray(np.full((8, 8, 3), grey, np.uint8), format="rgb24")
            frame.pts, frame.time_base = at, Fraction(1, 10)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())


@pytest.fixture
def folder(tmp_path):
    """Two videos of 20 and 10 frames that become brighter, the second with a cut before its frame 6."""
    root = tmp_path / "videos"
    write_video(root / "cup.mkv", range(20))
    write_video(root / "more" / "box.avi", [*range(6), *range(200, 204)])
    return root


@pytest.fixture
def invented(tmp_path, monkeypatch):
    """A folder of videos whose frames, and what is wrong with them, are given."""

    def make(**videos):
        root = tmp_path / "invented"
        root.mkdir()
        for name in videos:
            (root / f"{name}.mp4").write_bytes(b"12345")

        def load(path, *, size_px, is_colour, is_cached, on_progress):
            count, damage = videos[path.stem]
            if on_progress is not None:
                on_progress(2, 5)
            channels = 3 if is_colour else 1
            return Frames(np.zeros((count, channels, size_px, size_px), np.uint8), damage)

        monkeypatch.setattr(module, "load_frames", load)
        return root

    return make


def test_videos_become_segments(folder):
    videos = load_videos(folder, size_px=8, segments=SHORT)
    seen = videos.frames
    assert seen.images.shape == (30, 1, 8, 8)
    assert seen.images.dtype == torch.uint8
    assert seen.images[:, 0, 3, 3].tolist() == [*range(20), *range(6), *range(200, 204)]
    assert set(seen.factors) == {"video", "segment", "frame", "place"}
    assert seen.values["video"] == ("cup.mkv", "more/box.avi")
    assert seen.values["segment"] == (
        *(f"cup.mkv#00{at}" for at in range(5)),
        *(f"more/box.avi#00{at}" for at in range(3)),
    )
    assert seen.factors["segment"].bincount().tolist() == [4, 4, 4, 4, 4, 4, 2, 4]
    assert frames_of(seen).tolist() == [*range(20), *range(10)]
    assert videos.clips == (
        Clip("cup.mkv", 20, (), 5, 0),
        Clip("more/box.avi", 10, (6,), 3, 0),
    )
    assert videos.problems == ()
    assert str(videos).startswith("30 frames in 8 segments of 2 videos; 0 frames")


def test_places_are_the_middles_of_segments(folder):
    seen = load_videos(folder / "cup.mkv", size_px=8, segments=SegmentConfig(length=10)).frames
    assert seen.values["place"] == ("0.250", "0.750")
    assert seen.factors["place"].tolist() == [0] * 10 + [1] * 10


def test_strides_gaps_and_cuts_are_as_asked(folder):
    config = SegmentConfig(length=3, stride=2, gap=1, scene_cuts=None)
    videos = load_videos(folder, size_px=8, segments=config)
    frames = [0, 2, 4, 6, 8, 10, 12, 14, 16]
    assert frames_of(videos.frames.where("video", ["cup.mkv"])).tolist() == frames
    assert [clip.left_out for clip in videos.clips] == [2, 0]
    assert [clip.cuts for clip in videos.clips] == [(), ()]


def test_other_segments_decode_nothing(folder, cache, monkeypatch):
    load_videos(folder, size_px=8, segments=SHORT)
    assert len(list(cache.glob("*.u8"))) == 2
    monkeypatch.setattr(av, "open", lambda *_, **__: pytest.fail("decoded again"))
    videos = load_videos(folder, size_px=8, segments=SegmentConfig(length=2, scene_cuts=None))
    assert [clip.segments for clip in videos.clips] == [10, 5]
    assert videos.frames.images[-1, 0, 0, 0] == 203


def test_a_new_video_leaves_what_is_kept_of_others(folder, monkeypatch):
    load_videos(folder, size_px=8, segments=SHORT)
    write_video(folder / "new.mkv", range(16))
    opened, really = [], av.open
    monkeypatch.setattr(av, "open", lambda name, **of: opened.append(name) or really(name, **of))
    assert len(load_videos(folder, size_px=8, segments=SHORT).clips) == 3
    assert opened == [str(folder / "new.mkv")]


def test_writing_to_the_images_does_not_reach_the_cache(folder):
    load_videos(folder, size_px=8, segments=SHORT).frames.images.fill_(7)
    assert load_videos(folder, size_px=8, segments=SHORT).frames.images[0].eq(0).all()


def test_what_must_not_be_kept_is_not(folder, cache):
    kept = load_videos(folder, size_px=8, is_cached=False, segments=SHORT)
    assert not cache.exists()
    assert torch.equal(
        kept.frames.images, load_videos(folder, size_px=8, segments=SHORT).frames.images
    )


def test_colours_are_kept(folder):
    images = load_videos(folder, size_px=12, is_colour=True, segments=SHORT).frames.images
    assert images.shape[1:] == (3, 12, 12)
    assert images[5].eq(5).all()


def test_a_real_damage_stops_or_leaves_what_is_before(folder):
    path = folder / "cup.mkv"
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 5])
    (folder / "empty.mp4").touch()
    with pytest.raises(
        DataError, match="videos has 2 problems: cup.mkv ends .* s too early, after"
    ):
        load_videos(folder, size_px=8, segments=SHORT)
    videos = load_videos(folder, size_px=8, segments=SHORT, on_problem="skip")
    assert [problem.row for problem in videos.problems] == [1, 2]
    assert str(videos.problems[1]) == "empty.mp4 is empty: it has 0 bytes"
    assert [clip.video for clip in videos.clips] == ["cup.mkv", "more/box.avi"]
    assert 4 <= videos.clips[0].frames < 20
    assert videos.frames.values["video"] == ("cup.mkv", "more/box.avi")


def test_each_problem_is_named(invented):
    root = invented(
        a=(40, None),
        b=(0, "has no video stream"),
        c=(5, None),
        d=(3, "is damaged after 3 whole frames"),
        e=(0, None),
        f=(20, "is damaged after 20 whole frames"),
    )
    found = load_videos(root, size_px=4, on_problem="skip")
    short = "too short for a segment: 8 in a row are needed"
    assert [str(problem) for problem in found.problems] == [
        "b.mp4 has no video stream",
        f"c.mp4 has 5 frames, {short}",
        "d.mp4 is damaged after 3 whole frames",
        f"d.mp4 has 3 frames, {short}",
        "e.mp4 has no frames",
        "f.mp4 is damaged after 20 whole frames",
    ]
    assert [problem.row for problem in found.problems] == [2, 3, 4, 4, 5, 6]
    assert found.frames.values["video"] == ("a.mp4", "f.mp4")
    assert [(clip.video, clip.left_out) for clip in found.clips] == [
        ("a.mp4", 0),
        ("c.mp4", 5),
        ("d.mp4", 3),
        ("f.mp4", 4),
    ]
    with pytest.raises(DataError, match="has 6 problems: b.mp4 has no video stream; c.mp4"):
        load_videos(root, size_px=4)


def test_scenes_that_are_all_too_short_are_named(folder):
    write_video(folder / "quick.mkv", [0, 0, 0, 90, 90, 90, 200])
    with pytest.raises(DataError, match="quick.mkv has 7 frames in 3 scenes, too short") as caught:
        load_videos(folder, size_px=8, segments=SegmentConfig(length=4, stride=3))
    assert "4 in a row are needed" in caught.value.message


def test_nothing_usable_is_an_error(invented):
    root = invented(a=(3, None), b=(0, "is empty: it has 0 bytes"))
    with pytest.raises(DataError, match="nothing is left of .*: a.mp4 has 3 frames"):
        load_videos(root, size_px=4, on_problem="skip")


def test_segments_have_as_many_digits_as_they_need(invented):
    seen = load_videos(invented(a=(2002, None)), size_px=2, segments=SegmentConfig(length=2)).frames
    names = seen.values["segment"]
    assert (names[0], names[-1]) == ("a.mp4#0000", "a.mp4#1000")
    assert seen.factors["segment"].tolist() == [at // 2 for at in range(2002)]


def test_progress_is_told_over_all_videos(invented):
    told = []
    root = invented(a=(40, None), b=(40, None))
    load_videos(root, size_px=4, on_progress=lambda *of: told.append(of))
    assert told == [(2, 10), (5, 10), (7, 10), (10, 10)]


def test_videos_are_found_in_natural_order(tmp_path):
    for name in ("10.mp4", "2.MOV", "a/clip.webm", "notes.txt", ".hidden.mp4", ".git/x.mp4"):
        path = tmp_path / "videos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    source = open_source(str(tmp_path / "videos"))
    assert source.root == tmp_path / "videos"
    assert source.names == ("2.MOV", "10.mp4", "a/clip.webm")


def test_nonsense_is_refused(folder):
    with pytest.raises(ConfigError, match="size_px is 1"):
        load_videos(folder, size_px=1)
    with pytest.raises(ConfigError, match="on_problem is 'skipp'.*did you mean skip"):
        load_videos(folder, on_problem="skipp")


def test_a_split_by_time_keeps_segments_whole(invented):
    config = SegmentConfig(length=10)
    seen = load_videos(invented(a=(40, None), b=(50, None)), size_px=2, segments=config).frames
    split = split_by_time(seen, 0.5)
    assert split.images is seen.images
    train, between, test = (split.where("split", [part]) for part in ("train", "between", "test"))
    assert [len(part) for part in (train, between, test)] == [40, 10, 40]
    assert frames_of(between).tolist() == list(range(20, 30))
    assert set(between.factors["video"].tolist()) == {1}
    for number, border in ((0, 20), (1, 25)):
        assert frames_of(train)[train.factors["video"] == number].max() < border
        assert frames_of(test)[test.factors["video"] == number].min() >= border
    assert split_by_time(seen[::3], 0.5).factors["split"].tolist() == (
        split.factors["split"][::3].tolist()
    )


def test_a_border_that_falls_on_a_segments_edge_cuts_none(invented):
    seen = load_videos(invented(a=(116, None)), size_px=2, segments=SegmentConfig(length=29)).frames
    split = split_by_time(seen, 0.25)
    assert len(split.where("split", ["train"])) == 29
    assert not len(split.where("split", ["between"]))


def test_a_split_that_cannot_be_is_refused(invented):
    seen = load_videos(invented(a=(32, None)), size_px=2).frames
    for share in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(ConfigError, match="share is"):
            split_by_time(seen, share)
    with pytest.raises(DataError, match="wholly in the train part"):
        split_by_time(seen, 0.25)
    with pytest.raises(DataError, match="wholly in the test part"):
        split_by_time(seen, 0.75)
    other = ObservedImages.of(seen.images, {"frame": ["0"] * 32})
    with pytest.raises(DataError, match="have no factor video, segment"):
        split_by_time(other, 0.5)


def test_frame_numbers_stay_with_their_images(folder):
    seen = load_videos(folder, size_px=8, segments=SHORT).frames
    chosen = seen.where("video", ["more/box.avi"])
    numbers = frames_of(chosen)
    assert numbers.dtype == torch.int64
    assert numbers.tolist() == list(range(10))
    with pytest.raises(DataError, match="have no factor frame"):
        frames_of(ObservedImages.of(seen.images, {}))
