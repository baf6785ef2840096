import os
import struct
import sys
from fractions import Fraction

import av
import numpy as np
import pytest
from PIL import Image

from orbitset.datasets import frames as module
from orbitset.datasets.frames import load_frames
from orbitset.datasets.video import SUFFIXES
from orbitset.errors import DataError, OrbitsetError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "orbitset" / "frames"


def write_video(path, pictures, codec="ffv1", pixels="bgr0", aspect=None, **options):
    """Pictures as (F, H, W, 3), ten a second."""
    with av.open(str(path), "w", options=options) as out:
        stream = out.add_stream(codec, rate=10)
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = pixels
        stream.codec_context.gop_size = 5
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        for at, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = at, Fraction(1, 10)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return path


def write_sound(path):
    with av.open(str(path), "w") as out:
        stream = out.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        frame.rate, frame.pts = 8000, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode())


def noise(count=12, height=16, width=16):
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


@pytest.fixture
def clip(tmp_path):
    """Twelve frames of 16x16 pixels, without loss."""
    return write_video(tmp_path / "clip.mkv", noise())


def test_frames_are_read_as_they_are(clip):
    colour = load_frames(clip, size_px=16, is_colour=True)
    assert colour.damage is None
    assert len(colour) == 12
    assert colour.pixels.dtype == np.uint8
    assert np.array_equal(colour.pixels, noise().transpose(0, 3, 1, 2))
    grey = load_frames(clip, size_px=16).pixels
    assert grey.shape == (12, 1, 16, 16)
    assert np.array_equal(grey[3, 0], np.asarray(Image.fromarray(noise()[3]).convert("L")))


def test_frames_are_fitted_whole(tmp_path):
    path = write_video(tmp_path / "wide.avi", np.full((2, 16, 32, 3), 255, np.uint8))
    frame = load_frames(path, size_px=8).pixels[0, 0]
    assert (frame[2:6] == 255).all()
    assert not frame[:2].any()
    assert not frame[6:].any()


def test_pixels_that_are_not_square_are_stretched(tmp_path):
    white = np.full((2, 16, 16, 3), 255, np.uint8)
    wide = write_video(
        tmp_path / "wide.mp4", white, "mpeg4", "yuv420p", aspect=Fraction(2), movflags="faststart"
    )
    frame = load_frames(wide, size_px=8).pixels[0, 0]
    assert frame[2:6].min() > 240
    assert not frame[:2].any()
    assert not frame[6:].any()


def test_frames_are_turned_as_the_camera_was_held(tmp_path):
    pictures = np.zeros((2, 16, 32, 3), np.uint8)
    pictures[:, :, :8] = 255
    path = write_video(tmp_path / "turned.mp4", pictures, "mpeg4", "yuv420p")
    content = path.read_bytes()
    upright = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    clockwise = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    at = content.index(upright, content.index(b"tkhd"))
    path.write_bytes(content[:at] + clockwise + content[at + len(upright) :])
    frame = load_frames(path, size_px=16).pixels[0, 0]
    assert frame[:3, 5:11].min() > 200
    assert frame[6:].max() < 50
    assert not frame[:, :4].any()
    assert not frame[:, 12:].any()


def test_a_second_call_reads_the_cache(clip, cache, monkeypatch):
    first = load_frames(clip, size_px=16)
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".u8"]
    monkeypatch.setattr(av, "open", lambda *_, **__: pytest.fail("decoded again"))
    second = load_frames(clip, size_px=16)
    assert np.array_equal(first.pixels, second.pixels)


def test_writing_to_the_frames_does_not_reach_the_cache(clip):
    load_frames(clip, size_px=16).pixels[:] = 0
    assert load_frames(clip, size_px=16).pixels.any()


@pytest.mark.parametrize("change", ["pixels", "time", "size_px", "is_colour"])
def test_whatever_changes_is_read_anew(clip, cache, change):
    load_frames(clip, size_px=16)
    options = {"size_px": 16}
    if change == "pixels":
        write_video(clip, noise() // 2)
    if change == "time":
        os.utime(clip, ns=(1, 1))
    if change == "size_px":
        options["size_px"] = 8
    if change == "is_colour":
        options["is_colour"] = True
    found = load_frames(clip, **options).pixels
    assert len(list(cache.glob("*.json"))) == 2
    if change == "pixels":
        assert found.max() < 128


def test_a_damaged_cache_is_made_anew(clip, cache):
    wanted = load_frames(clip, size_px=16).pixels.copy()
    (stored,) = cache.glob("*.u8")
    stored.write_bytes(stored.read_bytes()[:-1])
    assert np.array_equal(load_frames(clip, size_px=16).pixels, wanted)
    (about,) = cache.glob("*.json")
    about.write_text("{")
    assert np.array_equal(load_frames(clip, size_px=16).pixels, wanted)


def test_without_a_cache_it_still_works(clip, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(load_frames(clip, size_px=16)) == 12


def test_what_must_not_be_kept_is_not(clip, cache):
    frames = load_frames(clip, size_px=16, is_cached=False)
    frames.pixels[:] = 0
    assert len(frames) == 12
    assert not cache.exists()


def test_a_full_disk_is_named_and_nothing_is_left(clip, cache, monkeypatch):
    def fail(*_):
        yield np.zeros((1, 16, 16), np.uint8)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_fitted_frames", fail)
    with pytest.raises(DataError, match="cannot be cached in .*: No space left on device"):
        load_frames(clip, size_px=16)
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("how", "damage"),
    [
        ("empty", "is empty: it has 0 bytes"),
        ("text", "cannot be read as a video: Invalid data found when processing input"),
        ("gone", "cannot be read as a video: No such file or directory"),
        ("sound", "has no video stream"),
        ("unknown", "cannot be read as a video: no decoder is known for it"),
        ("folder", "cannot be read as a video: Is a directory"),
    ],
)
def test_what_is_no_video_has_no_frames(tmp_path, cache, how, damage):
    path = tmp_path / "bad.avi"
    match how:
        case "empty":
            path.touch()
        case "text":
            path.write_text("not a video")
        case "sound":
            write_sound(path)
        case "unknown":
            write_video(path, noise())
            path.write_bytes(path.read_bytes().replace(b"FFV1", b"ZZZZ"))
        case "folder":
            path.mkdir()
    frames = load_frames(path, size_px=16)
    assert frames.damage == damage
    assert frames.pixels.shape == (0, 1, 16, 16)
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("name", "codec", "pixels", "options", "damage"),
    [
        (
            "a.mp4",
            "mpeg4",
            "yuv420p",
            {"movflags": "faststart"},
            "is damaged after {} whole frames",
        ),
        ("a.avi", "mjpeg", "yuvj420p", {}, "is damaged after {} whole frames"),
        ("a.mkv", "mpeg4", "yuv420p", {}, "s too early, after {} whole frames"),
    ],
)
def test_of_a_video_that_was_cut_off_the_beginning_is_used(
    tmp_path, name, codec, pixels, options, damage
):
    path = write_video(tmp_path / name, noise(40, 32, 32), codec, pixels, **options)
    whole = load_frames(path, size_px=16).pixels
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for _ in range(2):  # decoded, then from the cache
        frames = load_frames(path, size_px=16)
        assert 5 < len(frames) < 30
        assert np.array_equal(frames.pixels, whole[: len(frames)])
        assert frames.damage.endswith(damage.format(len(frames)))


def test_of_a_video_that_is_damaged_within_the_beginning_is_used(tmp_path):
    path = write_video(tmp_path / "a.avi", noise(40, 32, 32), "mjpeg", "yuvj420p")
    whole = load_frames(path, size_px=16).pixels
    content = bytearray(path.read_bytes())
    at = content.index(b"\xff\xd8", len(content) // 2)
    end = content.index(b"\xff\xd9", at)
    content[at:end] = bytes(end - at)
    path.write_bytes(content)
    frames = load_frames(path, size_px=16)
    assert 12 < len(frames) < 28
    assert np.array_equal(frames.pixels, whole[: len(frames)])
    assert frames.damage == (
        f"is damaged (Invalid data found when processing input) after {len(frames)} whole frames"
    )


def test_a_playlist_that_is_called_a_video_reads_no_other_file(tmp_path):
    secret = write_video(tmp_path / "secret.mpg", noise(), codec="mpeg2video", pixels="yuv420p")
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n"
    for name, text in (
        ("a.mp4", playlist),
        ("a.m3u8", playlist),
        ("b.mp4", "ffconcat version 1.0\nfile secret.mpg\n"),
    ):
        (tmp_path / name).write_text(text)
        frames = load_frames(tmp_path / name, size_px=16)
        assert not len(frames) and frames.damage.startswith("cannot be read as a video")
    assert len(load_frames(secret, size_px=16))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_of_video_is_read(tmp_path, suffix):
    codec = {".webm": "libvpx"}.get(suffix, "mpeg2video" if suffix == ".mpg" else "mpeg4")
    path = write_video(tmp_path / f"a{suffix}", noise(), codec=codec, pixels="yuv420p")
    assert load_frames(path, size_px=16).damage is None


def test_progress_is_told_in_bytes(tmp_path):
    path = write_video(tmp_path / "long.mkv", noise(200, 8, 8))
    told = []
    load_frames(path, size_px=8, on_progress=lambda *of: told.append(of))
    total = path.stat().st_size
    assert len(told) == 3
    assert told == sorted(told)
    assert all(0 < done <= total and of == total for done, of in told)


def test_a_missing_pyav_is_named(clip, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(OrbitsetError, match="PyAV, which is not installed") as caught:
        load_frames(clip, size_px=16)
    assert caught.value.hint == "pip install av"
