"""What a finished run says of its model."""

import torch

from orbitset.evaluation.verification import verify
from orbitset.protocols import encoding_with
from orbitset.run_folder import Run
from orbitset.runs.load import load_run
from orbitset.runs.train import train


def test_thresholds_are_measured_on_images_that_did_not_choose_the_weights(small_faces, tmp_path):
    """Sessions 1 and 2 are trained on, 3 chooses the weights, 4 is tested on."""
    run = Run(tmp_path / "run")
    train(small_faces("OJ", "train.keep=best"), run)
    model, images, _ = load_run(run)
    tested = images.sides["te"]
    assert len(tested) == len(images.sides["va"]) == 36
    calibration = run.read_json("model.json")["calibration"]
    assert calibration["on"] == "images with session 4, where the same person is the same thing"
    with torch.inference_mode():
        verified = verify(images.encode(encoding_with(model), tested), fars=(0.05,))
    assert (calibration["auc"], calibration["pairs"]) == (verified.auc, 36 * 35 // 2)
    assert calibration["points"][-1]["threshold"] == verified.points[0].threshold
    card = (run / "model-card.md").read_text()
    assert "These test images were neither trained on nor used to choose the weights." in card
