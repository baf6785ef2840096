import shutil
from dataclasses import replace

import av
import numpy as np
import pytest
from PIL import Image

import orbitset
from orbitset.config import parse_settings, with_settings
from orbitset.datasets.source import open_source
from orbitset.datasets.video import frames_of
from orbitset.errors import ConfigError, DataError
from orbitset.protocols.images import Opened
from orbitset.recipes.described import described_orbits as described_in_words
from orbitset.recipes.own_images import OrbitOptions, observed_images, observed_videos
from orbitset.run_folder import Run
from orbitset.runs.load import load_run
from orbitset.runs.prepare import build_protocol, open_images
from orbitset.runs.train import train


def described(manifest, **options):
    options = {"orbit": ["person", "session", "light"], "label": "person", **options}
    settings = parse_settings(options.pop("settings", ()))
    source = open_source(str(manifest))
    return observed_images(source, options=OrbitOptions(**options), settings=settings)


def test_what_is_not_said_is_read_off_the_table(face_manifest):
    config = described(face_manifest, canonical="view=front")
    assert config.orbits.size_px == 16
    assert (config.orbits.orbits_per_batch, config.orbits.members_per_batch) == (32, 3)
    evaluation = config.evaluation
    assert evaluation.split_by == "person"
    assert sorted((*evaluation.train, *evaluation.test)) == [f"p{at}" for at in range(6)]
    assert len(evaluation.test) == 2
    assert set(evaluation.exclude) == {"session", "light", "view"}
    said = described_in_words(config)
    assert "an orbit shares person, session, light; its target is view=front" in said
    assert "16 px, grey; batches of 32 orbits x 3 members" in said
    assert described(face_manifest).observed.canonical == "medoid"
    config = described(face_manifest, canonical="view=front", settings=["orbits.size_px=null"])
    assert "the images' own size, grey" in described_in_words(config)


def test_images_change_in_training_if_asked_for(face_manifest):
    still, changed = described(face_manifest), described(face_manifest, augment=True)
    assert still.observed.augmentation is None
    assert "images change" not in described_in_words(still)
    moderate = changed.observed.augmentation
    assert (moderate.affine.rotation_deg, moderate.affine.translation_px) == (10, 0.8)
    assert f"augmentation: {moderate}" in described_in_words(changed)
    assert replace(changed.observed, affine=None, photometric=None) == still.observed
    large = changed.observed.showing(size_px=224, is_colour=True)
    assert large.augmentation.affine.translation_px == pytest.approx(11.2)
    large = described(face_manifest, augment=True, settings=["orbits.size_px=80"])
    assert large.observed.augmentation.affine.translation_px == 4


def test_a_setting_of_a_change_turns_that_change_on(face_manifest):
    settings = ["orbits.photometric.hue_deg=0"]
    looks = described(face_manifest, settings=settings).observed
    assert looks.affine is None
    assert looks.photometric.hue_deg == 0 and looks.photometric.brightness == 0.3
    place = described(face_manifest, settings=["orbits.affine.rotation_deg=180"]).observed
    assert place.photometric is None
    assert (place.affine.rotation_deg, place.affine.scale_max) == (180, 1.15)
    settings = ["orbits.affine=null"]
    looks = described(face_manifest, augment=True, settings=settings).observed
    assert looks.affine is None and looks.photometric is not None
    with pytest.raises(ConfigError, match="--no-augment and orbits.photometric.hue_deg contra"):
        described(face_manifest, augment=False, settings=["orbits.photometric.hue_deg=0"])


@pytest.mark.parametrize(("method", "batch"), [("OT", (30, 4)), ("IN", (30, 4)), ("PR+R", (30, 4))])
def test_methods_have_batches_of_their_own(tmp_path, method, batch):
    rows = [f"{orbit}-{member}.png,o{orbit}" for orbit in range(60) for member in range(13)]
    (tmp_path / "manifest.csv").write_text("\n".join(["path,orbit", *rows]))
    for row in rows:
        Image.new("L", (8, 8)).save(tmp_path / row.partition(",")[0])
    orbits = observed_images(open_source(str(tmp_path / "manifest.csv")), method).orbits
    assert (orbits.orbits_per_batch, orbits.members_per_batch) == batch


@pytest.mark.parametrize(
    ("split", "parts"),
    [
        ("session=1,2/3/4", (("1", "2"), ("3",), ("4",))),
        ("session = 1 , 2 / 4", (("1", "2"), (), ("4",))),
    ],
)
def test_splits_are_said_in_one_line(face_manifest, split, parts):
    found = described(face_manifest, split=split).evaluation
    assert (found.train, found.validation, found.test) == parts


@pytest.mark.parametrize("split", ["session", "session=1", "=1/2", "session=/2", "session=1/2/3/4"])
def test_splits_that_are_not_understood_are_named(face_manifest, split):
    with pytest.raises(ConfigError, match="is not understood; write factor=train/test"):
        described(face_manifest, split=split)


def _split_by_session(manifest):
    """Its rows with a column more: session 4 is tested."""
    header, *rows = manifest.read_text().splitlines()
    parts = ("test" if row.split(",")[2] == "4" else "train" for row in rows)
    return [f"{header},split", *(f"{row},{part}" for row, part in zip(rows, parts, strict=True))]


def test_a_column_may_say_what_each_row_is_for(face_manifest, tmp_path):
    rows = _split_by_session(face_manifest)
    manifest = face_manifest.with_name("with-split.csv")
    manifest.write_text("\n".join(rows))
    found = described(manifest).evaluation
    assert (found.split_by, found.train, found.test) == ("split", ("train",), ("test",))
    assert "split" not in found.exclude
    manifest.write_text("\n".join(rows).replace(",test", ",other"))
    with pytest.raises(DataError, match="has other, train; it needs train and test"):
        described(manifest)


def test_what_is_the_same_in_all_that_is_tested_is_not_left_out(face_manifest):
    """Sessions 1 to 3 are trained on and 4 is tested: there, all images share it."""
    rows = _split_by_session(face_manifest)
    manifest = face_manifest.with_name("by-session.csv")
    manifest.write_text("\n".join(rows))
    assert described(manifest, canonical="view=front").evaluation.exclude == ("light", "view")


def test_rows_of_another_split_stop_by_their_names_or_are_said(face_manifest):
    lines = face_manifest.read_text().splitlines()
    parts = {"person": "split", "p0": "test", "p1": "test", "p2": "dev", "p3": "dev"}
    rows = [f"{line},{parts.get(line.split(',')[1], 'train')}" for line in lines]
    manifest = face_manifest.with_name("three-parts.csv")
    manifest.write_text("\n".join(rows))
    with pytest.raises(DataError, match="48 problems: row 50: its split is dev, none of train"):
        described(manifest, on_problem="stop")
    images = open_images(described(manifest), "cpu")
    unused = "48 images are in no part of the split and are not used (split dev)"
    assert images.unused == unused


def test_a_part_of_which_nothing_can_be_used_says_why(face_manifest):
    content = face_manifest.read_text()
    manifest = face_manifest.with_name("no-front.csv")
    lost = [
        line
        for line in content.splitlines()
        if not (line.split(",")[2] == "4" and line.split(",")[3] == "front")
    ]
    manifest.write_text("\n".join(lost))
    with pytest.raises(DataError, match="no image of session 4 can be used: 24 rows .* view front"):
        described(manifest, canonical="view=front", test="session=4")
    with pytest.raises(DataError, match="no image of another session is left to train on"):
        described(manifest, canonical="view=front", test="session=1,2,3")


def test_all_that_is_wrong_is_said_before_stopping(face_manifest, tmp_path):
    folder = tmp_path / "faces"
    shutil.copytree(face_manifest.parent, folder)
    manifest = folder / "faces.csv"
    lines = manifest.read_text().splitlines()
    (folder / lines[1].split(",")[0]).unlink()
    (folder / lines[10].split(",")[0]).write_bytes(b"")
    manifest.write_text("\n".join(line for line in lines if not line.startswith("0110.png")))
    config = described(manifest, canonical="view=front", on_problem="stop")
    with pytest.raises(DataError) as caught:
        open_images(config, "cpu")
    for reason in ("does not exist", "is empty", "has no member with view front"):
        assert reason in caught.value.message


def test_columns_that_are_missing_are_named(face_manifest):
    with pytest.raises(ConfigError, match="with --orbit; .* has person, session, view, light"):
        observed_images(open_source(str(face_manifest)))
    with pytest.raises(DataError, match="no factor mood"):
        described(face_manifest, orbit=["mood"])
    with pytest.raises(DataError, match="no factor mood"):
        described(face_manifest, split="mood=a/b")


def test_one_label_or_one_orbit_is_too_few(face_manifest, tmp_path):
    lines = face_manifest.read_text().splitlines()
    alone = face_manifest.with_name("alone.csv")
    alone.write_text("\n".join([lines[0], *(row for row in lines if ",p0," in row)]))
    with pytest.raises(ConfigError, match="person has 1 value .* .say how to split with --split"):
        described(alone)
    with pytest.raises(DataError, match="has 1 orbits to train on"):
        described(alone, orbit=["person"], split="session=1/2")


def test_columns_nobody_named_have_no_part_in_it(face_manifest):
    lines = face_manifest.read_text().splitlines()
    noted = face_manifest.with_name("noted.csv")
    noted.write_text(
        "\n".join([f"{lines[0]},note,club", *(f"{row},,{row.split(',')[1]}" for row in lines[1:])])
    )
    assert described(noted).evaluation.exclude == ("session", "light")


def test_rows_that_cannot_be_used_do_not_choose_the_split(face_manifest):
    lines = face_manifest.read_text().splitlines()
    more = face_manifest.with_name("more.csv")
    (face_manifest.parent / "zed.png").write_bytes((face_manifest.parent / "0000.png").read_bytes())
    more.write_text("\n".join([*lines, "zed.png,zed,1,left,0"]))
    parts = described(more, on_problem="skip").evaluation
    assert "zed" not in (*parts.train, *parts.test)


def test_single_members_are_kept_if_asked_for(face_manifest):
    lines = face_manifest.read_text().splitlines()
    alone = face_manifest.with_name("single.csv")
    alone.write_text("\n".join(row for row in lines if ",p3," not in row or ",front," in row))
    options = {"canonical": "view=front", "on_problem": "skip"}
    for settings, is_there in (((), False), (("orbits.min_members=1",), True)):
        parts = described(alone, settings=settings, **options).evaluation
        assert ("p3" in (*parts.train, *parts.test)) == is_there


def test_what_is_tested_on_may_be_said_alone(face_manifest):
    found = described(face_manifest, test="session=3,4").evaluation
    assert (found.train, found.validation, found.test) == (("1", "2"), (), ("3", "4"))
    with pytest.raises(ConfigError, match="write factor=values"):
        described(face_manifest, test="session")
    with pytest.raises(ConfigError, match="session is '9'"):
        described(face_manifest, test="session=9")
    with pytest.raises(ConfigError, match="give one of them"):
        described(face_manifest, test="session=4", split="session=1/2")


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """A folder of 24 sub-folders with three coloured images each, one image besides and a text."""
    folder = tmp_path_factory.mktemp("things")
    rng = np.random.default_rng(0)
    for thing in range(24):
        (folder / f"thing {thing}").mkdir()
        pattern = np.kron(rng.random((4, 4, 3)), np.ones((4, 4, 1)))
        for at in range(3):
            pixels = (np.roll(pattern, at, 1) * 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"thing {thing}" / f"{at}.png")
    Image.fromarray(pixels).save(folder / "loose.png")
    (folder / "notes.txt").write_text("none")
    return folder


@pytest.mark.parametrize(
    ("labels", "is_pretrained", "parts"),
    [
        (6, True, (4, 0, 2)),
        (7, True, (3, 2, 2)),
        (7, False, (5, 0, 2)),
        (19, True, (13, 2, 4)),
        (20, True, (14, 2, 4)),
    ],
)
def test_of_few_labels_two_say_whether_training_improves_a_pretrained_network(
    tmp_path, labels, is_pretrained, parts
):
    for label in range(labels):
        (tmp_path / str(label)).mkdir()
        for member in range(2):
            Image.new("L", (8, 8)).save(tmp_path / str(label) / f"{member}.png")
    config = observed_images(open_source(str(tmp_path)), is_pretrained=is_pretrained)
    found = config.evaluation
    assert tuple(map(len, (found.train, found.validation, found.test))) == parts
    assert config.keeps_best == bool(parts[1])
    assert not {*found.train, *found.validation} & {*found.test}


def test_sub_folders_are_orbits_and_some_are_held_out_to_stop_by(things):
    config = observed_images(open_source(str(things)))
    assert config.orbits.orbit == ("orbit",) and config.orbits.label == "orbit"
    assert config.orbits.is_colour and config.orbits.canonical == "medoid"
    parts = config.evaluation
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [17, 2, 5]
    assert config.keeps_best and config.train.patience == 3
    assert "fewer if 3 evaluations in a row bring no better score on" in described_in_words(config)
    assert "target is its medoid" in described_in_words(config)
    images = open_images(config, "cpu")
    assert len(images.train) == 51 and images.image_shape == (3, 16)
    assert [problem.reason for problem in images.left_out] == [
        "loose.png lies in no sub-folder, and so in no orbit"
    ]


def test_the_weights_kept_are_those_that_found_held_out_orbits_best(things, tmp_path):
    settings = ["encoder.channels=4,8", "encoder.code_size=8", "train.learning_rate=0.05"]
    config = with_settings(observed_images(open_source(str(things))), [*settings, "train.epochs=6"])
    config = replace(config, train=replace(config.train, evaluate_at=(1.0, 2.0, 3.0, 4.0)))
    run = Run(tmp_path / "run")
    results = train(config, run)
    records = run.records()
    scores = [record["accuracy"]["va"][0] for record in records[1:]]
    best = records[1 + scores.index(max(scores))]
    kept = {row["metric"]: row["mean"] for row in results["rows"] if row["method"] == "IM+R"}
    assert kept["top1"] == best["top1"]["mean"]
    (run / "model.safetensors").unlink()
    train(config, run, resume=True)
    model, _, judge = load_run(run)
    assert judge.record(model)["top1"] == best["top1"]
    known = orbitset.load(run.path)
    assert known.calibration is not None and known.description.input.channels == 3
    image = things / "thing 3" / "0.png"
    assert known.embed(image).shape == (1, 8) and known.rectify(image).shape == (1, 16, 16, 3)


def test_segments_of_videos_are_orbits(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    with av.open(str(tmp_path / "clip.mkv"), "w") as out:
        stream = out.add_stream("ffv1", rate=10)
        stream.width = stream.height = 16
        stream.pix_fmt = "bgr0"
        for _ in range(120):
            frame = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        out.mux(stream.encode())
    settings = {
        "orbits.size_px": "16",
        "video.segments.scene_cuts": "null",
        "video.segments.length": "10",
    }
    opened = Opened(open_source(str(tmp_path / "clip.mkv")))
    config = observed_videos(opened, settings=settings)
    assert config.video.segments.length == 10 and config.video.segments.gap == 8
    assert (config.orbits.orbit, config.orbits.canonical) == (("segment",), "middle")
    with monkeypatch.context() as patch:
        patch.setattr("orbitset.datasets.source.Videos.load_observed", None)  # it is not called
        images = open_images(config, "cpu", source=opened)
    assert opened.observed is None and len(images.train) % 10 == 0 and len(images.sides["te"]) >= 20
    assert "Near('frame', 8)" in repr(build_protocol(config, images).rule)
    frames = frames_of(images.sides["te"])
    assert int(frames.min()) >= 72 > int(frames_of(images.train).max())
    with pytest.raises(DataError, match="0 segments to train on|no segment lies"):
        observed_videos(
            Opened(open_source(str(tmp_path / "clip.mkv"))),
            settings={"video.segments.length": "100"},
        )


def test_too_few_sub_folders_are_refused_with_what_was_left_out(photos, tmp_path):
    """A folder has no other column to split by."""
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "lone").mkdir()
    shutil.copy(photos / "ant" / "1.png", tmp_path / "photos" / "lone")
    words = "orbit has 3 values in .*: at least 4 are needed; left out: row 10: .*has 1 member"
    with pytest.raises(ConfigError, match=words) as info:
        observed_images(open_source(str(tmp_path / "photos")))
    assert info.value.hint is None
