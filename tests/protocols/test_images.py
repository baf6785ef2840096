"""What is trained on and what is held out, of images with factors and of single images."""

from dataclasses import replace

import pytest
import torch

from orbitset.errors import ConfigError, DataError
from orbitset.runs.prepare import open_images


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "face-cache"))


def _open(config):
    return open_images(config, "cpu")


def test_sessions_that_are_tested_are_not_trained_on(small_faces):
    split = _open(small_faces())
    values = split.train.values["session"]
    of = {
        name: {values[at] for at in seen.factors["session"].tolist()}
        for name, seen in {"train": split.train, **split.sides}.items()
    }
    assert of == {"train": {"1", "2"}, "va": {"3"}, "te": {"4"}}
    assert len(split.batches.orbits) == 6 * 2 * 2
    assert split.batches.images_per_epoch == 72


def test_images_change_in_training_alone(small_faces):
    config = small_faces()
    changed = replace(config, orbits=config.observed.augmented(16))
    still, split = _open(config), _open(changed)
    assert not torch.equal(still.batches.batch(3).images, split.batches.batch(3).images)
    assert torch.equal(still.batches.batch(3).canonical, split.batches.batch(3).canonical)
    test = split.sides["te"].images
    assert torch.equal(split.to_input(test), test.float() / 255)


def test_orbits_of_a_batch_share_a_factor_if_asked_to(small_faces):
    asked = ("orbits.alike=light", "orbits.orbits_per_batch=6")
    split = _open(small_faces("OJ", *asked))
    light_N, rows = split.train.factors["light"], split.batches.orbits.canonical_row_N
    for index in range(4):
        assert len(light_N[rows[split.batches.indices(index)[0]]].unique()) == 1
    split = _open(small_faces("OJ", *asked, "orbits.alike_values=2"))
    for index in range(4):
        assert len(light_N[rows[split.batches.indices(index)[0]]].unique()) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["orbits.alike=view"], "orbits.alike"),
        (["orbits.alike=person"], "the factor to recognise"),
        (["orbits.alike_values=2"], "orbits.alike_values needs a factor"),
        (["orbits.alike=light", "orbits.alike_values=7"], "but a batch has 6 orbits"),
        (["orbits.orbits_per_batch=0"], "orbits.orbits_per_batch is 0; give at least 1"),
    ],
)
def test_what_cannot_be_alike_is_said(small_faces, settings, message):
    with pytest.raises(ConfigError, match=message):
        small_faces("OJ", *settings)


def test_orbits_of_which_no_two_are_alike_are_refused(small_faces):
    config = small_faces("OJ", "orbits.orbits_per_batch=2", split="session=1,2/3/4")
    orbits = replace(config.orbits, orbit=("session",), canonical="first", alike="session")
    with pytest.raises(DataError, match="no two orbits that are trained on have the same session"):
        _open(replace(config, orbits=orbits))


def test_targets_are_the_front_views_of_the_same_person_and_light(small_faces):
    split = _open(small_faces())
    batch = split.batches.batch(0)
    rows = split.batches.orbits.canonical_row_N[batch.orbits]
    front = split.train.values["view"].index("front")
    assert (split.train.factors["view"][rows] == front).all()
    assert torch.equal(batch.canonical, split.train.images[rows].float() / 255)
    assert torch.equal(batch.labels, split.train.factors["person"][rows])


def test_a_broken_image_takes_its_orbit_with_it_if_that_lost_its_target(
    tmp_path, small_faces, face_manifest
):
    front = face_manifest.parent / "1111.png"
    content = front.read_bytes()
    front.write_bytes(b"")
    try:
        split = _open(small_faces("AE", "orbits.on_problem=skip"))
    finally:
        front.write_bytes(content)
    assert len(split.train) == 72 - 3
    assert [one.reason.split(" ")[0] for one in split.left_out] == ["1111.png", "its"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("evaluation.test=2", "session 2 is in two of"),
        ("evaluation.train=9", "session is '9'"),
        ("evaluation.split_by=mood", "mood"),
        ("orbits.canonical=front", "write it as factor=value"),
        ("orbits.canonical=view=top", "no member with view top"),
        ("orbits.orbit=person,mood", "no (column|factor) mood"),
        ("orbits.orbit=", "is empty"),
        ("orbits.weighting=none", "orbits.weighting is 'none'"),
        ("orbits.on_problem=ignore", "orbits.on_problem is 'ignore'"),
        ("orbits.members_per_batch=1", "compares members of one orbit"),
        ("orbits.members_per_batch=4", "members_per_batch is 4 but orbits have 3"),
        ("evaluation.pictures=-1", "evaluation.pictures is -1"),
    ],
)
def test_settings_that_make_no_sense_are_named(small_faces, setting, message):
    with pytest.raises((ConfigError, DataError), match=message):
        _open(small_faces("OJ", setting))


def test_a_supervised_method_needs_orbits_of_one_label(small_faces):
    with pytest.raises(ConfigError, match="ST learns from person, which the members of an orbit"):
        small_faces("ST", "orbits.orbit=session,light")


def test_a_split_that_cuts_orbits_is_refused(small_faces):
    settings = ["orbits.orbit=person,light", "orbits.canonical=null", "orbits.members_per_batch=2"]
    with pytest.raises(
        DataError, match=r"12 orbits have members with several values of session, the"
    ):
        _open(small_faces("OJ", *settings))
