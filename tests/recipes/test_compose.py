"""From what was asked for to one configuration: however it is said, it is the same."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from orbitset.config import to_dict, with_settings
from orbitset.errors import ConfigError
from orbitset.models import save_model_folder
from orbitset.recipes.affine_images import affine_digits
from orbitset.recipes.affine_mnist import affine_mnist
from orbitset.recipes.compose import (
    RECIPES,
    Request,
    compose,
    searched_config,
)
from orbitset.recipes.methods import METHODS
from orbitset.recipes.own_images import OrbitOptions
from orbitset.run_folder import Run
from orbitset.runs.prepare import open_images


def composed(source=None, *settings, config_file=None, resumed=None, **options):
    observed = OrbitOptions(**options.pop("observed", {}))
    request = Request(
        source=source and str(source), settings=settings, observed=observed, **options
    )
    return compose(request, config_file=config_file, resumed=resumed).config


@pytest.fixture
def array(tmp_path):
    """30 images of 28 pixels with labels."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "shapes.npz", images=images, labels=np.arange(60) % 3)
    return tmp_path / "shapes.npz"


@pytest.fixture
def plain(tmp_path):
    """Twenty photographs side by side."""
    rng = np.random.default_rng(0)
    (tmp_path / "shoes").mkdir()
    for number in range(20):
        pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "shoes" / f"{number}.png")
    return tmp_path / "shoes"


@pytest.fixture
def faces(face_manifest):
    """What is said about the manifest of faces: 48 orbits of 3 members, of which 24 are trained on."""
    observed = {
        "orbit": ["person", "session", "light"],
        "canonical": "view=front",
        "label": "person",
        "split": "session=1,2/3/4",
    }
    return {"source": face_manifest, "observed": observed}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("method", METHODS)
def test_every_recipe_is_complete_for_every_method(name, method):
    config = composed(name, method=method)
    assert (config.name, config.method) == (name, method)
    assert config == RECIPES[name](method)


def test_an_unknown_recipe_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean affine-digits"):
        composed("afine-digits")
    with pytest.raises(ConfigError, match="nothing to train was named"):
        composed()
    with pytest.raises(
        ConfigError, match="pie32 is an experiment of its own .orbitset reproduce pie32"
    ):
        composed("pie32")


@pytest.mark.parametrize("source", ["affine-digits", "array", "plain", "faces"])
def test_options_and_settings_of_one_meaning_give_equal_configurations(source, request):
    options = {"source": source}
    if source != "affine-digits":
        made = request.getfixturevalue(source)
        options = made if source == "faces" else {"source": made}
    same = [
        ({"epochs": 5.0}, "train.epochs=5"),
        ({"method": "AE"}, "method=AE"),
        ({"method": "ot-stn"}, " method = OT-STN "),
        ({"seed": 7}, "seed=7"),
    ]
    plain = composed(**options)
    for option, setting in same:
        named = composed(**options, **option)
        where = options["source"]
        rest = {name: value for name, value in options.items() if name != "source"}
        assert composed(where, setting, **rest) == named != plain
    where = options.pop("source")
    both = composed(where, "method=OE", "train.epochs=3", **options)
    assert both == composed(where, method="OE", epochs=3.0, **options)


def test_a_setting_that_is_no_number_is_named():
    with pytest.raises(ConfigError, match="train.epochs is 'many'; give a number"):
        composed("affine-digits", "train.epochs=many")
    with pytest.raises(ConfigError, match="seed is '1.5'; give a number"):
        composed("affine-digits", "seed=1.5")


def test_settings_of_the_default_method_need_no_method_beside_them(faces):
    where = {name: value for name, value in faces.items() if name != "source"}
    config = composed(faces["source"], "loss.shapes_codes=true", "encoder.decoder=tied", **where)
    assert (config.method, config.loss.shapes_codes) == ("IM+R", True)
    with pytest.raises(ConfigError, match="loss.shapes_codes=true$"):
        composed(faces["source"], "encoder.decoder=tied", **where)
    with pytest.raises(ConfigError, match=r"IM\+R does not use loss\.margin, which belongs to OJ"):
        composed(faces["source"], "loss.margin=0.3", **where)
    with pytest.raises(ConfigError, match=r"OJ does not use loss\.temperature"):
        composed("affine-digits", "loss.temperature=0.3")


def test_a_method_brings_its_own_batches(faces):
    sizes = {}
    for method in ("OJ", "AE"):
        orbits = composed(**faces, method=method).orbits
        sizes[method] = orbits.orbits_per_batch * orbits.members_per_batch
        where = {name: value for name, value in faces.items() if name != "source"}
        assert composed(faces["source"], f"method={method}", **where).orbits == orbits
    assert sizes == {"OJ": 72, "AE": 72}  # 24 orbits of 3


@pytest.mark.parametrize("method", ["OJ", "OT", "AE", "EX"])
@pytest.mark.parametrize("members", [2, 3, 4, 6])
def test_with_other_members_a_batch_keeps_about_its_number_of_images(tmp_path, method, members):
    folder = tmp_path / "things"
    for thing in range(90):
        (folder / f"{thing}").mkdir(parents=True)
        for at in range(6):
            Image.new("L", (8, 8), thing).save(folder / f"{thing}" / f"{at}.png")
    config = composed(folder, f"orbits.members_per_batch={members}", method=method)
    orbits = config.orbits
    assert orbits.members_per_batch == members
    assert abs(orbits.orbits_per_batch * members - 120) <= members / 2
    file = tmp_path / "config.json"
    file.write_text(json.dumps(to_dict(config)))
    again = composed(None, "orbits.members_per_batch=3", config_file=file).orbits
    assert (again.orbits_per_batch, again.members_per_batch) == (40, 3)


def test_computed_batches_keep_their_number_of_images_too():
    orbits = composed("affine-mnist", "orbits.members_per_batch=8").orbits
    assert (orbits.orbits_per_batch, orbits.members_per_batch) == (32, 8)
    both = ("orbits.members_per_batch=8", "orbits.orbits_per_batch=5")
    assert composed("affine-mnist", *both).orbits.orbits_per_batch == 5


def test_a_batch_has_no_more_orbits_than_there_are(array, plain, faces):
    trained = composed(array).orbits.orbits_per_batch
    assert trained < 128, "there are few"
    assert (
        composed(array, "orbits.members_per_batch=1", method="AE").orbits.orbits_per_batch
        == trained
    )
    few = composed(plain).orbits.orbits_per_batch
    assert composed(plain, "orbits.members_per_batch=2").orbits.orbits_per_batch == few
    where = {name: value for name, value in faces.items() if name != "source"}
    orbits = composed(faces["source"], "orbits.members_per_batch=2", **where).orbits
    assert (orbits.orbits_per_batch, orbits.members_per_batch) == (24, 2)


def test_columns_may_have_numbers_for_names(face_manifest):
    header, *rows = face_manifest.read_text().splitlines()
    manifest = face_manifest.with_name("by-year.csv")
    manifest.write_text("\n".join([f"{header},2024", *(f"{row},{row[0]}" for row in rows)]))
    observed = {"orbit": ["person", "light"], "label": "person", "split": "session=1,2/3/4"}
    settings = ("orbits.classes=2024", "classify_weight=0.1")
    config = compose(
        Request(source=str(manifest), observed=OrbitOptions(**observed), settings=settings),
    ).config
    assert config.orbits.classes == "2024"
    named = compose(
        Request(source=str(manifest), observed=OrbitOptions(classes="2024", **observed))
    ).config
    assert config == named


def test_data_decides_what_is_trained(array, plain, faces):
    assert composed(array).protocol == "one-shot" and composed(array).data == str(array)
    assert composed(plain).protocol == "finding" and composed(plain).name == "shoes"
    assert composed(**faces).protocol == "pairs"
    observed = OrbitOptions(**faces["observed"])
    said = str(compose(Request(source=str(faces["source"]), observed=observed)))
    assert "an orbit shares person, session, light" in said
    assert "every image is an orbit of its own" in str(compose(Request(source=str(plain))))
    assert str(compose(Request(source="affine-digits"))) == ""


def test_what_is_said_about_orbits_needs_observed_ones(array, plain):
    for source, word in (
        ("affine-digits", "a manifest"),
        (array, "a manifest"),
        (plain, "no sub-folders"),
    ):
        with pytest.raises(ConfigError, match=f"--orbit describe the orbits of .*{word}"):
            composed(source, observed={"orbit": ["person"]})
    with pytest.raises(ConfigError, match="--no-augment describe the orbits"):
        composed("affine-digits", observed={"augment": False})
    assert composed(plain, observed={"on_problem": "stop"}).data == str(plain)


def test_a_protocol_and_measures_are_taken_from_outside():
    config = composed("affine-digits", protocol="finding", measures=("my_measures:purity",))
    assert (config.protocol, config.measures) == ("finding", ("my_measures:purity",))
    assert config == composed("affine-digits", "protocol=finding", "measures=my_measures:purity")


def test_a_network_by_name_is_checked():
    with pytest.raises(ConfigError, match="timm:no_such_network"):
        composed("affine-digits", encoder="timm:no_such_network")


def _write(path, values):
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


def test_a_configuration_file_describes_the_whole_run(tmp_path):
    base = with_settings(affine_digits("OT"), ["loss.margin=3"])
    file = _write(tmp_path / "config.json", to_dict(base))
    assert composed(config_file=file) == composed(config_file=tmp_path) == base
    assert composed(None, "seed=3", config_file=file, epochs=2.0) == with_settings(
        base, ["seed=3", "train.epochs=2"]
    )
    assert composed(config_file=file, method="ot", encoder="vgg") == base
    with pytest.raises(ConfigError, match="--config describes the whole run"):
        composed("affine-digits", config_file=file)
    with pytest.raises(
        ConfigError, match="--orbit describes a new training; .*change single settings"
    ):
        composed(config_file=file, observed={"orbit": ["person"]})
    for settings, options, named in (
        ((), {"method": "OE"}, "--method OE"),
        (("method=oe",), {}, "--method oe"),
        ((), {"encoder": "timm:resnet18"}, "--encoder timm:resnet18"),
        (("encoder.backbone=timm:resnet18",), {}, "--encoder timm:resnet18"),
    ):
        with pytest.raises(
            ConfigError, match=f"{named} describes a new training; .* orbitset train X"
        ):
            composed(None, *settings, config_file=file, **options)
    for content in ("{", "[1]", "{}"):
        with pytest.raises(
            ConfigError, match="as a configuration|no configuration|name is missing"
        ):
            composed(config_file=_write(tmp_path / "wrong.json", content))


def test_a_run_goes_on_with_its_own_configuration(tmp_path, model_folder):
    run = Run(tmp_path / "run")
    config = with_settings(affine_digits("OT"), ["loss.margin=3"])
    run.create(to_dict(config))
    assert composed(resumed=run) == composed("affine-digits", resumed=run) == config
    with pytest.raises(ConfigError, match="holds a run of affine-digits, not of affine-mnist"):
        composed("affine-mnist", resumed=run)
    with pytest.raises(ConfigError, match="--init describes a new training"):
        composed(resumed=run, init=model_folder)
    assert composed("affine-mnist", resumed=Run(tmp_path / "none")) == affine_mnist()


def test_a_model_to_begin_with_brings_its_network(model_folder, build_model, tmp_path):
    config = composed("affine-digits", init=model_folder)
    assert config.init == str(model_folder.resolve()) and config.start == "begun with"
    assert config.encoder.channels == (4, 8) and config.encoder.code_norm == "sphere"
    assert (config.orbits.canvas_px, config.orbits.is_colour) == (16, False)
    with pytest.raises(ConfigError, match="has no spatial transformer; choose .* leaving out -STN"):
        composed("affine-digits", method="OT-STN", init=model_folder)
    with pytest.raises(ConfigError, match="--init takes the model's network"):
        composed("affine-digits", init=model_folder, encoder="timm:resnet18")


def test_a_margin_does_not_stay_where_the_network_has_another_norm(
    model_folder, build_model, tmp_path, small_faces
):
    config = composed("affine-mnist", method="OT", init=model_folder)
    assert affine_mnist("OT").margin == 165
    assert config.margin == 2 * 16 / 8
    folder = tmp_path / "without-norm"
    save_model_folder(build_model(code_norm="none"), folder)
    assert composed("affine-mnist", method="OJ", init=folder).margin == 0.2


def test_a_search_begins_with_what_train_would_do(array, plain, faces):
    request = Request(source=str(array), method="OT", settings=("seed=3",))
    assert searched_config(request).seed == 3
    with pytest.raises(
        ConfigError, match="has images without labels; settings are searched for by"
    ):
        searched_config(Request(source=str(plain)))
    request = Request(source=str(faces["source"]), observed=OrbitOptions(**faces["observed"]))
    assert searched_config(request) == compose(request).config


def test_private_plain_images_are_not_cached(plain, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = composed(plain, "is_private=true")
    assert len(open_images(config, "cpu").splits.train) and not (tmp_path / "cache").exists()
    composed(plain)
    assert list((tmp_path / "cache").rglob("*.u8"))


@pytest.mark.parametrize("name", ["orbits.label", "orbits.classes", "orbits.orbit"])
def test_a_number_set_for_a_text_is_taken_as_text(name, face_manifest):
    header, *rows = face_manifest.read_text().splitlines()
    manifest = face_manifest.with_name("numbered.csv")
    manifest.write_text("\n".join([f"{header},2024", *(f"{row},{row[0]}" for row in rows)]))
    options = OrbitOptions(orbit=["person", "light"], label="person", split="session=1,2/3/4")
    more = ["classify_weight=0.1"] if name == "orbits.classes" else []
    values = "2024,light" if name == "orbits.orbit" else "2024"
    request = Request(source=str(manifest), observed=options, settings=(f"{name}={values}", *more))
    value = getattr(compose(request).config.orbits, name.partition(".")[2])
    assert value == (("2024", "light") if name == "orbits.orbit" else "2024")


@pytest.mark.parametrize("name", ["array", "plain"])
def test_images_that_were_loaded_to_describe_a_training_are_not_loaded_again(
    name, request, monkeypatch
):
    opened = compose(Request(source=str(request.getfixturevalue(name))))
    again = open_images(opened.config, "cpu").splits
    with monkeypatch.context() as patch:
        patch.setattr(type(opened.source.source), "load_splits", None)  # it is not called
        splits = open_images(opened.config, "cpu", source=opened.source).splits
    assert opened.source.splits is None, "the training has taken them"
    assert torch.equal(splits.train.images, again.train.images)
    assert torch.equal(splits.test.images, again.test.images)
