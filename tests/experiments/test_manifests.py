import pytest

from orbitset.errors import ConfigError, DataError
from orbitset.experiments.manifests import described as described_in_words
from orbitset.experiments.manifests import observed_images


def described(manifest, **options):
    options = {"orbit": ["person", "session", "light"], "label": "person", **options}
    return observed_images(manifest, **options)


def test_what_is_not_said_is_read_off_the_table(face_manifest):
    config = described(face_manifest, canonical="view=front")
    assert config.orbits.size_px == 16
    assert (config.orbits.orbits_per_batch, config.orbits.members_per_batch) == (24, 3)
    evaluation = config.evaluation
    assert evaluation.split_by == "person"
    assert sorted((*evaluation.train, *evaluation.test)) == [f"p{at}" for at in range(6)]
    assert len(evaluation.test) == 2
    assert set(evaluation.exclude) == {"session", "light", "view"}
    said = described_in_words(config)
    assert "an orbit shares person, session, light; its target is view=front" in said
    assert "16 px, grey; batches of 24 orbits x 3 members" in said


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


def test_a_column_may_say_what_each_row_is_for(face_manifest, tmp_path):
    lines = face_manifest.read_text().splitlines()
    rows = [
        f"{line},{'split' if not at else 'train' if line.split(',')[2] != '4' else 'test'}"
        for at, line in enumerate(lines)
    ]
    manifest = face_manifest.with_name("with-split.csv")
    manifest.write_text("\n".join(rows))
    found = described(manifest).evaluation
    assert (found.split_by, found.train, found.test) == ("split", ("train",), ("test",))
    assert "split" not in found.exclude
    manifest.write_text("\n".join(rows).replace(",test", ",other"))
    with pytest.raises(DataError, match="has other, train; it needs train and test"):
        described(manifest)


def test_columns_that_are_missing_are_named(face_manifest):
    with pytest.raises(ConfigError, match="with --orbit; .* has person, session, view, light"):
        observed_images(face_manifest)
    with pytest.raises(DataError, match="no factor mood"):
        described(face_manifest, orbit=["mood"])
    with pytest.raises(DataError, match="no factor mood"):
        described(face_manifest, split="mood=a/b")


def test_one_label_or_one_orbit_is_too_few(face_manifest, tmp_path):
    lines = face_manifest.read_text().splitlines()
    alone = face_manifest.with_name("alone.csv")
    alone.write_text("\n".join([lines[0], *(row for row in lines if ",p0," in row)]))
    with pytest.raises(ConfigError, match="person has 1 values .* say how to split with --split"):
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
