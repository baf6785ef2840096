"""CMU Multi-PIE as its owners lay it out: session01/multiview/001/01/05_1/001_01_01_051_07.png.

The parts of a file name are subject, session, recording, camera and light. The data set is licensed and is
never downloaded. Used are the 13 cameras at the height of the head, recording 01 (a neutral face), and the
subjects that came to all four sessions.
"""

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from orbitset.datasets.pictures import Box, Shares
from orbitset.datasets.table import ImageTable
from orbitset.errors import DataError

CAMERAS = (
    *("11_0", "12_0", "09_0", "08_0", "13_0", "14_0", "05_1"),
    *("05_0", "04_1", "19_0", "20_0", "01_0", "24_0"),
)
"""From one profile to the other in steps of 15 degrees; 08_1 and 19_1, which look down, are not used"""
CANONICAL = "051"
"""The frontal camera, 05_1, as file names write it"""
SESSIONS = ("1", "2", "3", "4")
LIGHTS = tuple(f"{number:02}" for number in range(20))
RECORDING = "01"
_SESSION_FOLDERS = tuple(f"0{session}" for session in SESSIONS)
_KNOWN = (*CAMERAS, "08_1", "19_1")
_OTHER_FOLDERS = ("highres", "movie")
"""Beside multiview in a session"""
_NAME = re.compile(r"(\d{3})_(\d{2})_(\d{2})_(\d{3})_(\d{2})\.png")
CROPS: dict[str, Box] = dict.fromkeys(CAMERAS, Shares(0.25, 0.15, 0.75, 0.85))
"""The part of each camera's images that is used where no boxes are given: the middle, where every camera has
the head. Coarse; written without the images at hand, so look at a few and give boxes if they do not fit."""


Key = tuple[str, str, str, str]
"""Subject, session, camera and light of an image"""


@dataclass(frozen=True)
class MultiPieFiles:
    """What a folder holds of Multi-PIE."""

    table: ImageTable
    """One row per image that is used, of subjects in all sessions"""
    subjects: tuple[str, ...]
    """Those in all four sessions; the paper has 129"""
    missing: tuple[str, ...]
    """Images that one of these subjects should have, by their paths"""
    unexpected: tuple[str, ...]
    """Files that have no place in the layout; other cameras and recordings are not counted"""
    incomplete: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Subjects that are not used, and the sessions they are in"""


def scan_multi_pie(root: Path) -> MultiPieFiles:
    """List what is there and what is missing. Images are not opened."""
    paths: dict[Key, str] = {}
    unexpected = []
    for path in _files(root):
        match = _NAME.fullmatch(path.rsplit("/", 1)[-1])
        subject, session, recording, camera, light = match.groups() if match else ("",) * 5
        is_known = session in _SESSION_FOLDERS and _folder(camera) in _KNOWN and light in LIGHTS
        if not is_known or path != path_of(subject, session, recording, camera, light):
            unexpected.append(path)
        elif _folder(camera) in CAMERAS and recording == RECORDING:
            paths[subject, session[1:], camera, light] = path
    if not paths:
        raise DataError(
            f"{root} holds no images of Multi-PIE",
            hint="give the folder that holds session01 to session04, "
            f"with files such as {path_of('001', '01', '01', '051', '07')}",
        )
    sessions: dict[str, set[str]] = {}
    for subject, session, _, _ in paths:
        sessions.setdefault(subject, set()).add(session)
    subjects = tuple(sorted(name for name, of in sessions.items() if of >= set(SESSIONS)))
    cameras = [camera.replace("_", "") for camera in CAMERAS]
    keys: list[Key] = list(itertools.product(subjects, SESSIONS, cameras, LIGHTS))
    used = [key for key in keys if key in paths]
    if not used:
        raise DataError(
            f"no subject in {root} is in all four sessions; {len(sessions)} are in some",
            hint="the paper's splits are by session, so all four are needed",
        )
    columns = dict(
        zip(("person", "session", "view", "light"), zip(*used, strict=True), strict=True)
    )
    return MultiPieFiles(
        table=ImageTable.numbered(str(root), root, [paths[key] for key in used], columns),
        subjects=subjects,
        missing=tuple(
            path_of(subject, f"0{session}", RECORDING, camera, light)
            for subject, session, camera, light in keys
            if (subject, session, camera, light) not in paths
        ),
        unexpected=tuple(sorted(unexpected)),
        incomplete={
            name: tuple(sorted(of)) for name, of in sorted(sessions.items()) if name not in subjects
        },
    )


def path_of(subject: str, session: str, recording: str, camera: str, light: str) -> str:
    """Where an image lies.

    >>> path_of("001", "01", "01", "051", "07")
    'session01/multiview/001/01/05_1/001_01_01_051_07.png'
    """
    name = f"{subject}_{session}_{recording}_{camera}_{light}.png"
    return f"session{session}/multiview/{subject}/{recording}/{_folder(camera)}/{name}"


def crop_by_camera(table: ImageTable) -> ImageTable:
    """With the one crop each camera has."""
    return replace(table, boxes=tuple(CROPS[_folder(view)] for view in table.columns["view"]))


def _folder(camera: str) -> str:
    """The camera 051 as folders write it: 05_1."""
    return f"{camera[:2]}_{camera[2:]}"


def _files(root: Path) -> list[str]:
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    paths: list[str] = []
    above: dict[str, frozenset[str]] = {}
    for folder, inside, files in os.walk(root, followlinks=True):
        real, parents = os.path.realpath(folder), above.get(os.path.dirname(folder), frozenset())
        if real in parents:  # a link to a folder above
            inside.clear()
            continue
        above[folder] = parents | {real}
        inside[:] = [name for name in inside if name not in _OTHER_FOLDERS]
        relative = Path(folder).relative_to(root)
        paths += [(relative / name).as_posix() for name in files]
    return sorted(paths)
