"""The frames of a video as small uint8 images, decoded once and cached.

While a video is decoded only one frame is in memory. A damaged video gives the frames before the damage.

Shapes: F frames, C channels, S the size of the square they are fitted into.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from PIL import Image

from orbitset.datasets.cache import Key, cached_pixels
from orbitset.datasets.pictures import ImageForm, stamp
from orbitset.errors import OrbitsetError, count_of

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_VERSION = 1
"""Cache version; bump when decoding changes."""
_TOLD_EVERY = 64
_MISSING_SHARE = 0.05
_MISSING_FRAMES = 3
"""A video that ends earlier than it says by more than these was cut off; less is a matter of rounding."""
_MOST_STRETCH = 8
"""Of pixels that are not square; more is a mistake in the file."""
_OWN_CONTENT = {
    "protocol_whitelist": "file",
    "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,avi,matroska,webm,mpeg,mpegts,mpegvideo",
}
"""What a video may be: playlists, and others that FFmpeg knows, name further files and addresses to read"""
_TURNS = (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Frames:
    """What could be decoded of a video."""

    pixels: np.ndarray
    """(F, C, S, S) uint8"""
    damage: str | None = None
    """What is wrong with the file, to be read after its name; the frames are those before it"""

    def __len__(self) -> int:
        return len(self.pixels)


def load_frames(
    path: Path,
    *,
    size_px: int,
    is_colour: bool = False,
    is_cached: bool = True,
    on_progress: Progress | None = None,
) -> Frames:
    """All frames of a video, or those before it is damaged.

    Each is turned as the camera was held, made grey or colour and fitted whole into a square, with black
    borders. `on_progress` is called with the bytes of the file that are done, and with all. Without
    `is_cached` nothing is written.
    """
    key = None
    if is_cached:
        inputs = (str(path.absolute()), stamp(path), size_px, is_colour)
        key = Key("frames", _VERSION, str(path), inputs)

    def write(file: BinaryIO) -> tuple[tuple[int, ...], str | None]:
        count, damage = 0, None
        try:
            for frame in _fitted_frames(path, ImageForm(size_px, is_colour), on_progress):
                file.write(frame.tobytes())
                count += 1
        except _Unreadable as error:
            damage = str(error)
        except _Damaged as error:
            damage = f"{error} after {count_of(count, 'whole frame')}"
        return (count, 3 if is_colour else 1, size_px, size_px), damage

    return Frames(*cached_pixels(key, write))


class _Unreadable(Exception):
    """There are no frames."""


class _Damaged(Exception):
    """No more frames are whole."""


def _fitted_frames(
    path: Path, form: ImageForm, on_progress: Progress | None
) -> Iterator[np.ndarray]:
    """The frames of a video, one after the other, in that form."""
    av = _pyav()
    from av.video.reformatter import VideoReformatter

    try:
        total = path.stat().st_size
        if total == 0:
            raise _Unreadable("is empty: it has 0 bytes")
        container = av.open(
            str(path.absolute()), metadata_errors="ignore", container_options=_OWN_CONTENT
        )
    except (OSError, av.FFmpegError) as error:
        raise _Unreadable(f"cannot be read as a video: {error.strerror}") from None
    with container:
        stream = _moving(container)
        stretch = float(stream.sample_aspect_ratio or 1)
        if not 1 / _MOST_STRETCH <= stretch <= _MOST_STRETCH:
            stretch = 1.0
        reformatter = VideoReformatter()
        for at, (frame, done) in enumerate(_sound_frames(container, stream), 1):
            try:
                picture = reformatter.reformat(frame, format="rgb24").to_ndarray()
            except av.FFmpegError as error:
                raise _Damaged(f"has pixels of an unknown kind ({error.strerror})") from None
            turns = round(getattr(frame, "rotation", 0) / 90) % 4
            yield form.fit(_upright(Image.fromarray(picture), stretch, turns))
            if on_progress is not None and at % _TOLD_EVERY == 0:
                on_progress(min(done, total), total)


def _upright(picture: Image.Image, stretch: float, turns: int) -> Image.Image:
    """As it is shown: with square pixels, and turned counterclockwise by so many quarters."""
    if stretch != 1:
        picture = picture.resize((max(1, round(picture.width * stretch)), picture.height))
    return picture.transpose(_TURNS[turns - 1]) if turns else picture


def _pyav() -> ModuleType:
    try:
        import av
    except ImportError:
        raise OrbitsetError(
            "videos are read with PyAV, which is not installed", hint="pip install av"
        ) from None
    return av


def _moving(container: "InputContainer") -> "VideoStream":
    """The first stream of pictures that is not a cover."""
    from av.stream import Disposition

    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            if stream.codec_context is None:
                raise _Unreadable("cannot be read as a video: no decoder is known for it")
            stream.thread_type = "AUTO"
            return stream
    raise _Unreadable("has no video stream")


def _sound_frames(
    container: "InputContainer", stream: "VideoStream"
) -> Iterator[tuple["VideoFrame", int]]:
    """Each frame and the bytes that were read for it; `_Damaged` where the next is not whole."""
    import av

    done, reached_s = 0, 0.0
    try:
        for packet in container.demux():
            done = max(done, packet.pos or 0)
            when = packet.dts if packet.pts is None else packet.pts
            if when is not None and packet.time_base is not None:
                reached_s = max(
                    reached_s, float((when + (packet.duration or 0)) * packet.time_base)
                )
            if packet.stream.index != stream.index:
                continue
            is_whole = not packet.is_corrupt
            for frame in stream.decode(packet if is_whole else None):
                if frame.is_corrupt:
                    raise _Damaged("is damaged")
                yield frame, done
            if not is_whole:
                raise _Damaged("is damaged")
    except av.FFmpegError as error:
        raise _Damaged(f"is damaged ({error.strerror})") from None
    if container.duration is not None:
        promised_s = container.duration / av.time_base
        reached_s -= (container.start_time or 0) / av.time_base
        frame_s = float(1 / stream.average_rate) if stream.average_rate else 0.0
        slack_s = max(_MISSING_SHARE * promised_s, _MISSING_FRAMES * frame_s)
        if promised_s - reached_s > slack_s:
            raise _Damaged(f"ends {promised_s - reached_s:.1f} s too early,")
