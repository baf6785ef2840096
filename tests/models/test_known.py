"""The confidence of a model: what is unlike anything it was trained on is marked."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import orbitset
from orbitset.config import with_settings
from orbitset.errors import ConfigError, RunError
from orbitset.models import save_model_folder
from orbitset.models.known import KNOWN, UNLIKE, appearance, read_known
from orbitset.recipes.affine_images import affine_digits
from orbitset.run_folder import Run
from orbitset.runs.load import load_run
from orbitset.runs.train import train

SMALL = [
    "encoder.channels=4,8",
    "encoder.code_size=16",
    "train.epochs=0.01",
    "train.evaluations=1",
    "evaluation.test_images=60",
    "evaluation.draws=5",
    "evaluation.tsne_points=0",
]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A model of digits, and digits that it was neither trained nor calibrated on."""
    run = Run(tmp_path_factory.mktemp("runs") / "OJ")
    train(with_settings(affine_digits("OJ"), SMALL), run)
    images = load_run(run)[1].validation
    rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:200]
    shown = images.members(rows, rows % images.num_members)
    return orbitset.load(run.path), shown


@pytest.mark.parametrize("kind", ["noise", "blotches", "inverted", "empty"])
def test_a_model_of_digits_marks_what_is_no_digit(digits, kind):
    model, shown = digits
    generator = torch.Generator().manual_seed(1)
    others = {
        "noise": torch.rand(shown.shape, generator=generator),
        "blotches": torch.nn.functional.interpolate(
            torch.rand((len(shown), 1, 4, 4), generator=generator), 32, mode="bilinear"
        ),
        "inverted": 1 - shown,
        "empty": torch.zeros_like(shown),
    }[kind]
    known, unlike = (model.rectify_and_assess(images)[1].confidence for images in (shown, others))
    scores, is_known = np.concatenate([known, unlike]), [1] * len(known) + [0] * len(unlike)
    assert roc_auc_score(is_known, scores) > 0.95
    assert (unlike < UNLIKE).mean() > 0.9
    assert (known < UNLIKE).mean() < 0.05
    assert 0.3 < np.median(known) < 0.7


def test_confidence_is_of_images_as_they_are_given(knowing_folder, photos):
    model = orbitset.load(knowing_folder)
    paths = sorted(photos.glob("*/*"))
    confidence = model.confidence(paths)
    assert confidence.shape == (9,) and confidence.min() > 0
    noise = np.random.default_rng(0).integers(0, 256, (3, 16, 16), dtype=np.uint8)
    assert model.confidence(noise).tolist() == [0, 0, 0]
    assert model.confidence([]).shape == (0,)
    assert model.confidence(paths[3]) == pytest.approx(confidence[3:4], abs=0.05)


def test_an_exported_model_keeps_its_confidence(knowing_folder, photos, tmp_path):
    model = orbitset.load(knowing_folder)
    save_model_folder(model, tmp_path / "copy")
    again = orbitset.load(tmp_path / "copy")
    assert np.array_equal(
        again.confidence(photos / "ant" / "1.png"), model.confidence(photos / "ant" / "1.png")
    )


def test_an_older_model_says_that_its_confidence_is_not_known(model_folder, photos):
    model = orbitset.load(model_folder)
    assert model.known is None
    with pytest.raises(ConfigError, match="confidence of this model is not known"):
        model.confidence(photos / "ant" / "1.png")


def test_what_belongs_to_another_model_is_refused(knowing_folder, tmp_path):
    with pytest.raises(RunError, match="is not of the model beside it"):
        read_known(knowing_folder, "another", 16)
    model_id = orbitset.load(knowing_folder).id
    with pytest.raises(RunError, match="is not of the model beside it"):
        read_known(knowing_folder, model_id, 17)
    (tmp_path / KNOWN).write_bytes(b"damaged")
    with pytest.raises(RunError, match="cannot be read"):
        read_known(tmp_path, model_id, 16)


@pytest.mark.parametrize("shape", [(2, 1, 2, 2), (2, 3, 5, 5), (2, 3, 32, 32)])
def test_appearance_is_of_images_of_any_size(shape):
    values = appearance(torch.rand(shape))
    assert len(values) == 2 and values.isfinite().all()
