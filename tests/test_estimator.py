import pickle
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from orbitset import OrbitEncoder
from orbitset.encoders.free_decoder import FreeDecoder

NOT_CONFORM = {
    "check_fit_score_takes_y": "orbits, not labels, are what is learned from: fit(X, orbits, y=None)"
}


def _encoder(**settings):
    small = {"code_size": 4, "channels": (4,), "epochs": 1, "random_state": 0}
    return OrbitEncoder(**{**small, **settings})


@pytest.fixture(scope="module")
def patterns():
    """8 orbits of 6 images: a pattern each, moved sideways, noisy."""
    rng = np.random.default_rng(0)
    shapes = rng.random((8, 8, 8)) > 0.6
    images = np.stack([np.roll(shapes[at // 6], rng.integers(8), 1) for at in range(48)])
    return (0.9 * images + 0.1 * rng.random(images.shape)), np.arange(48) // 6


def test_it_is_an_estimator_as_scikit_learn_wants_it():
    results = check_estimator(
        _encoder(), expected_failed_checks=NOT_CONFORM, on_fail=None, on_skip=None
    )
    wrong = {one["check_name"]: one["exception"] for one in results if one["status"] == "failed"}
    assert wrong == {}
    assert {one["check_name"] for one in results if one["status"] == "xfail"} == set(NOT_CONFORM)


def test_orbits_are_learned(patterns):
    images, orbits = patterns
    encoder = _encoder(code_size=16, channels=(8, 16), epochs=60).fit(images, orbits)

    def nearest_is_of_the_orbit(codes):
        distance = ((codes[:, None] - codes) ** 2).sum(2)
        np.fill_diagonal(distance, np.inf)
        return (orbits[distance.argmin(1)] == orbits).mean()

    assert nearest_is_of_the_orbit(encoder.codes_) > 0.95
    assert nearest_is_of_the_orbit(images.reshape(48, -1)) < 0.9
    _, rows = encoder.kneighbors(n_neighbors=1)
    assert (orbits[rows[:, 0]] == orbits).mean() == nearest_is_of_the_orbit(encoder.codes_)
    distances, rows = encoder.kneighbors(images[:3], n_neighbors=2)
    assert rows[:, 0].tolist() == [0, 1, 2] and np.allclose(distances[:, 0], 0, atol=1e-3)


@pytest.mark.parametrize("layout", ["images", "rows", "uint8", "colour", "wide"])
def test_any_layout_of_images_comes_back_rectified_as_it_was(patterns, layout):
    images, orbits = patterns
    given = {
        "images": images,
        "rows": images.reshape(48, -1),
        "uint8": (images * 255).astype(np.uint8),
        "colour": np.stack([images, images, 1 - images], 3),
        "wide": images[:, :5],
    }[layout]
    encoder = _encoder(channels=(4, 8)).fit(given, orbits)
    upright = encoder.rectify(given)
    assert upright.shape == given.shape
    assert upright.min() >= 0 and upright.max() <= (255 if layout == "uint8" else 1)
    assert encoder.transform(given).shape == (48, 4)
    assert np.array_equal(encoder.transform(given), encoder.codes_)


def test_by_default_it_learns_as_train_does_on_grouped_images(patterns):
    images, orbits = patterns
    short = _encoder(epochs=2).fit(images, orbits)
    named = _encoder(method="IM+R", epochs=2, learning_rate=0.002).fit(images, orbits)
    assert np.array_equal(short.codes_, named.codes_)
    assert isinstance(short.network_.decoder, FreeDecoder)
    assert np.allclose((short.codes_**2).mean(1), 1, atol=1e-3)  # centred, to length sqrt(D)
    other = _encoder(method="IN+R", epochs=2).fit(images, orbits)
    assert np.allclose((other.codes_**2).sum(1), 1)


def test_single_images_are_learned_by_their_decoder_or_by_their_changes(patterns):
    images, _ = patterns
    codes = _encoder().fit(images).codes_
    assert np.array_equal(codes, _encoder(method="OE").fit(images).codes_)
    assert np.array_equal(codes, _encoder().fit(images, np.arange(48)).codes_)
    for method in ("OJ", "IN", "IM+R"):
        for orbits in (None, np.zeros(48)):
            with pytest.raises(ValueError, match=f"{method.replace('+', '.')} compares images"):
                _encoder(method=method).fit(images, orbits)
    changed = _encoder(augment=True).fit(images).codes_
    assert np.array_equal(changed, _encoder(method="IM+R", augment=True).fit(images).codes_)
    copies = np.repeat(images, 4, 0), np.repeat(np.arange(48), 4)
    by_hand = _encoder(augment=True).fit(*copies).transform(images)
    assert np.allclose(changed, by_hand, atol=1e-5)


NETWORK = """
import torch
from torch import nn

class Pixels(nn.Module):
    size_px, is_pretrained = 6, True

    def __init__(self, is_pretrained):
        super().__init__()
        self.mix = nn.Parameter(torch.eye(108))

    def forward(self, images):
        return (images - 0.5).flatten(1) @ self.mix
"""


@pytest.fixture
def pixels_network(tmp_path, monkeypatch):
    """The name of a pretrained network for colour images of 6 px."""
    (tmp_path / "pixels_network.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "pixels_network:Pixels"
    sys.modules.pop("pixels_network", None)


@pytest.mark.parametrize("layout", ["grey", "colour"])
def test_a_pretrained_network_begins_with_its_features(patterns, pixels_network, layout):
    images, orbits = patterns
    given = images if layout == "grey" else np.stack([images, 1 - images, images], 3)
    settings = {"code_size": None, "encoder": pixels_network}
    frozen = _encoder(**settings, learning_rate=1e-12).fit(given, orbits)
    colours = given[..., None].repeat(3, 3) if layout == "grey" else given
    inputs = torch.tensor(colours).float().permute(0, 3, 1, 2)
    inputs = F.interpolate(inputs, (6, 6), mode="bilinear", antialias=True)
    features = F.normalize(frozen.network_.backbone(inputs).detach(), dim=1)
    assert np.allclose(frozen.codes_, features, atol=1e-5)
    assert np.array_equal(frozen.transform(given), frozen.codes_)
    upright = frozen.network_.rectify(inputs).detach().clamp(0, 1)
    upright = F.interpolate(upright, (8, 8), mode="bilinear").permute(0, 2, 3, 1)
    upright = upright.mean(3) if layout == "grey" else upright
    assert np.allclose(frozen.rectify(given), upright, atol=1e-5)
    tuned = _encoder(**settings).fit(given, orbits)
    assert np.abs(tuned.codes_ - frozen.codes_).max() > 1e-4
    moved = tuned.network_.backbone.mix - frozen.network_.backbone.mix
    assert 1e-5 < moved.abs().max() < 5e-4  # the network's share of the learning rate is a tenth
    thawed = pickle.loads(pickle.dumps(tuned))
    assert np.array_equal(thawed.transform(given), tuned.codes_)
    few = _encoder(code_size=20, encoder=pixels_network, learning_rate=1e-12).fit(given, orbits)
    assert few.codes_.shape == (48, 20)
    cosines, of_features = few.codes_ @ few.codes_.T, (features @ features.T).numpy()
    assert (
        np.abs(cosines - of_features).max() < 0.1
    )  # of the first 20 features they would not be so


def test_images_of_no_orbit_are_not_learned_from(patterns):
    images, orbits = patterns
    some = np.where(np.arange(48) < 24, orbits, -1)
    all_codes = _encoder().fit(images, some).transform(images[:24])
    few_codes = _encoder().fit(images[:24], some[:24]).transform(images[:24])
    assert np.array_equal(all_codes, few_codes)
    with pytest.raises(ValueError, match="no image has an orbit"):
        _encoder().fit(images, np.full(48, -1))


def test_a_function_may_give_the_orbit_of_an_image(patterns):
    images, orbits = patterns
    by_image = {image.tobytes(): orbit for image, orbit in zip(images, orbits, strict=True)}
    given = _encoder().fit_transform(images, lambda image: by_image[image.tobytes()])
    assert np.array_equal(given, _encoder().fit_transform(images, orbits))


def test_training_images_may_be_augmented(patterns):
    images, orbits = patterns
    codes = _encoder(augment=True).fit(images, orbits).codes_
    assert not np.array_equal(codes, _encoder().fit(images, orbits).codes_)
    assert np.array_equal(codes, _encoder(augment=True).fit(images, orbits).codes_)


def test_labels_of_some_images_are_learned_beside_their_orbits(patterns):
    images, orbits = patterns
    some = np.where(orbits < 4, orbits % 2, -1)
    with_labels = _encoder(classify_weight=1.0).fit(images, orbits, some).codes_
    assert not np.array_equal(with_labels, _encoder().fit(images, orbits, some).codes_)
    one_each = np.where(np.arange(48) % 6 == 3, some, -1)
    again = _encoder(classify_weight=1.0).fit(images, orbits, one_each).codes_
    assert np.array_equal(again, with_labels)  # an orbit has the label of any of its images
    with pytest.raises(ValueError, match="images of one orbit have different labels"):
        _encoder(classify_weight=1.0).fit(images, orbits, np.arange(48) % 2)
    with pytest.raises(ValueError, match=r"labels have shape \(3,\)"):
        _encoder(classify_weight=1.0).fit(images, orbits, some[:3])


def test_names_of_orbits_may_be_texts(patterns):
    images, orbits = patterns
    named = np.array([f"orbit {number}" for number in orbits])
    assert np.array_equal(
        _encoder().fit(images, named).codes_, _encoder().fit(images, orbits).codes_
    )


def test_a_seed_decides_all_and_a_copy_is_as_good(patterns):
    images, orbits = patterns
    encoder = _encoder().fit(images, orbits)
    again = clone(encoder).fit(images, orbits)
    thawed = pickle.loads(pickle.dumps(encoder))
    for other in (again, thawed):
        assert np.array_equal(other.transform(images), encoder.codes_)
    assert not np.array_equal(_encoder(random_state=1).fit(images, orbits).codes_, encoder.codes_)


def test_it_is_a_step_of_a_pipeline(patterns):
    images, orbits = patterns
    rows = images.reshape(48, -1)
    steps = make_pipeline(_encoder(), KNeighborsClassifier(1)).fit(rows, orbits)
    assert steps.score(rows, orbits) == 1
    names = steps[0].get_feature_names_out()
    assert names.tolist() == [f"orbitencoder{number}" for number in range(4)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "XX"}, "method is 'XX'"),
        ({"image_shape": (3, 3)}, "image_shape is"),
        ({"epochs": -1}, "epochs"),
        ({"channels": ()}, "channels"),
        ({"members_per_batch": 1}, "members_per_batch is 1"),
        ({"encoder": "resnet18"}, "give vgg, timm:NAME"),
        ({"loss_settings": {"hard_weight": 0.0}}, "loss.hard_weight is 0.0"),
        ({"loss_settings": 3}, "loss_settings is 3; give values by name"),
        ({"code_size": 2.5}, "code_size is 2.5; give a whole number"),
        ({"epochs": "x"}, "epochs is 'x'; give a number"),
        ({"channels": 5}, "channels is 5; give a list"),
        ({"orbits_per_batch": 2.5}, "orbits_per_batch is 2.5; give a whole number"),
        ({"device": "nope"}, "device 'nope' cannot be used here"),
    ],
)
def test_settings_that_make_no_sense_are_named(patterns, settings, message):
    images, orbits = patterns
    with pytest.raises(ValueError, match=message):
        _encoder(**settings).fit(images.reshape(48, -1), orbits)


def test_settings_may_be_of_numpys_types(patterns):
    settings = {"code_size": np.int64(4), "channels": np.array([4]), "epochs": np.float32(1)}
    assert _encoder(**settings).fit_transform(*patterns).shape == (48, 4)


def test_what_cannot_be_images_is_refused(patterns):
    images, orbits = patterns
    encoder = _encoder().fit(images, orbits)
    with pytest.raises(ValueError, match="the training images had"):
        encoder.transform(images[:, :4])
    with pytest.raises(ValueError, match="from 0 to 255; the training images were from 0 to 1"):
        encoder.transform((images * 255).astype(np.uint8))
    of_bytes = _encoder().fit((images * 255).astype(np.uint8), orbits)
    with pytest.raises(ValueError, match="from 0 to 1; the training images were from 0 to 255"):
        of_bytes.rectify(images)
    with pytest.raises(ValueError, match="give \\(N, H, W\\)"):
        _encoder().fit(np.zeros((4, 8, 8, 2)), [0, 0, 1, 1])
    with pytest.raises(ValueError, match="orbits have shape"):
        _encoder().fit(images, orbits[:3])
    with pytest.raises(ValueError, match="NaN"):
        _encoder().fit(images, np.where(orbits == 0, np.nan, orbits))


def spread_out(codes, batch, *, weight: float = 1.0):
    return -weight * codes.var(0).sum()


def test_a_loss_of_ones_own_trains_the_encoder_and_its_numbers_count(patterns):
    images, orbits = patterns
    small, large = (
        _encoder(method=spread_out, loss_settings={"weight": weight}).fit(images, orbits).codes_
        for weight in (0.1, 10.0)
    )
    by_name = _encoder(method=f"{__name__}:spread_out", loss_settings={"weight": 10.0})
    assert not np.array_equal(small, large)
    assert np.array_equal(by_name.fit(images, orbits).codes_, large)


@pytest.mark.parametrize(
    ("method", "settings"),
    [("IN", {"memory": 30, "memory_after": 0}), ("SG+R", {"bias": -3}), ("PR", {"momentum": 0.2})],
)
def test_methods_of_later_years_train_it_too(patterns, method, settings):
    images, orbits = patterns
    plain = _encoder(method=method).fit(images, orbits)
    changed = _encoder(method=method, loss_settings=settings).fit(images, orbits)
    assert np.isfinite(plain.codes_).all() and not np.array_equal(plain.codes_, changed.codes_)


def test_a_setting_that_the_loss_does_not_have_is_refused(patterns):
    images, orbits = patterns
    for method in ("OT", spread_out):
        with pytest.raises(ValueError, match="rectify_weight"):
            _encoder(method=method, loss_settings={"rectify_weight": 2.0}).fit(images, orbits)
    with pytest.raises(
        ValueError, match="choose OJ, OT, OE, EX, AE, IN, IN.R, .* or a loss of your own"
    ):
        _encoder(method="ST").fit(images, orbits)


def test_codes_ignore_a_factor(patterns):
    images, orbits = patterns
    light = np.arange(48) % 2
    images = images * np.array([0.3, 1.0])[light][:, None, None]
    own = [orbits * 2 + light]  # nothing asks for codes that are equal in both lights
    plain = _encoder(code_size=8).fit(images, *own)
    encoder = _encoder(code_size=8).fit(images, *own, ignore=light)
    assert np.array_equal(encoder.codes_, encoder.transform(images))
    again = _encoder(code_size=8).fit_transform(images, *own, ignore=light)
    assert np.array_equal(again, encoder.codes_)
    differences = [
        np.linalg.norm(codes[light == 0].mean(0) - codes[light == 1].mean(0))
        for codes in (encoder.codes_, plain.codes_)
    ]
    assert differences[0] < differences[1] / 2
    with pytest.raises(ValueError, match="ignore have shape"):
        _encoder().fit(images, orbits, ignore=light[:5])
