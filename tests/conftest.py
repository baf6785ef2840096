"""What many tests share. Nothing is loaded here that loads torch, which must see the setting below."""

import itertools
import os

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
"""Threads that wait must not starve what else runs on the machine."""


@pytest.fixture(scope="session")
def face_manifest(tmp_path_factory):
    """A manifest of 6 people x 4 sessions x 3 views x 2 lights, 16 pixels: a pattern of the person's, moved
    by the view and scaled by the light."""
    import numpy as np
    from PIL import Image

    folder = tmp_path_factory.mktemp("faces")
    rng = np.random.default_rng(0)
    patterns = np.kron(rng.random((6, 5, 5)), np.ones((4, 4)))[:, :16, :16]
    lines = ["path,person,session,view,light"]
    for person, session, view, light in itertools.product(range(6), range(4), range(3), range(2)):
        image = np.roll(patterns[person], 2 * (view - 1), 1) * (0.5, 1.0)[light]
        image = (image + 0.03 * rng.standard_normal(image.shape)).clip(0, 1)
        name = f"{person}{session}{view}{light}.png"
        Image.fromarray((image * 255).astype(np.uint8)).save(folder / name)
        lines.append(f"{name},p{person},{session + 1},{('left', 'front', 'right')[view]},{light}")
    manifest = folder / "faces.csv"
    manifest.write_text("\n".join(lines))
    return manifest


@pytest.fixture(scope="session")
def small_faces(face_manifest):
    """An experiment on that manifest with a small encoder."""
    from orbitset.config import with_settings
    from orbitset.experiments.manifests import observed_images

    def experiment(method="OJ", *settings, split="session=1,2/3/4"):
        config = observed_images(
            face_manifest,
            method,
            orbit=["person", "session", "light"],
            canonical="view=front",
            label="person",
            split=split,
        )
        small = [
            "encoder.channels=4,8",
            "encoder.code_size=16",
            "orbits.orbits_per_batch=6",
            "orbits.members_per_batch=3",
            "train.epochs=3",
            "train.evaluate_at=1",
            "evaluation.tsne_labels=6",
        ]
        return with_settings(config, [*small, *settings])

    return experiment
