"""What many tests share. Nothing is loaded here that loads torch, which must see the setting below."""

import gc
import io
import itertools
import os
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
"""Threads that wait must not starve what else runs on the machine."""


def pytest_collection_finish():
    """What was imported stays: collections of garbage need not look through it each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _forget_trust():
    """Code that one test trusts is not trusted by the next."""
    before = os.environ.get("ORBITSET_TRUST", "")
    yield
    os.environ["ORBITSET_TRUST"] = before


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


@pytest.fixture(scope="session")
def orbitset():
    """Calls the command line in this process, which has torch loaded; gives what a process would give."""
    import subprocess

    from orbitset.cli.main import main

    def call(*arguments, **environment):
        command = ["orbitset", *map(str, arguments)]
        printed, said = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setattr(sys, "argv", command)
            for name, value in {"COLUMNS": "80", **environment}.items():
                patch.setenv(name, value)
            with redirect_stdout(printed), redirect_stderr(said):
                main()
        return subprocess.CompletedProcess(
            command, ended.value.code, printed.getvalue(), said.getvalue()
        )

    return call


@pytest.fixture(scope="session")
def fails():
    """One sentence on stderr, nothing on stdout, the exit code asked for."""

    def check(done, code, *texts):
        assert done.returncode == code, done.stderr
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert done.stderr.startswith("error: ")
        for text in texts:
            assert text in done.stderr

    return check


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
    from orbitset.datasets.source import open_source
    from orbitset.recipes.own_images import OrbitOptions, observed_images

    def experiment(method="OJ", *settings, split="session=1,2/3/4"):
        options = OrbitOptions(
            orbit=["person", "session", "light"],
            canonical="view=front",
            label="person",
            split=split,
        )
        config = observed_images(open_source(str(face_manifest)), method, options)
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


@pytest.fixture(scope="session")
def build_model():
    """An untrained model of a small encoder."""
    import torch

    from orbitset.encoders import EncoderConfig, build_encoder
    from orbitset.models import Calibration, Description, Input, Model, Network, Point, Trained

    points = ((0.001, 0.2, 0.001), (0.01, 0.5, 0.002), (0.05, 0.8, 0.003))
    calibration = Calibration(
        auc=0.9,
        equal_error_rate=0.1,
        pairs=1234,
        on="images of people, where the same person is the same thing",
        points=tuple(Point(far=far, tar=tar, threshold=limit) for far, tar, limit in points),
    )

    def build(
        size_px=16, channels=1, *, image_px=None, seed=0, calibration=calibration, **settings
    ):
        has_transformer = settings.pop("has_transformer", False)
        settings = {"channels": (4, 8), "code_size": 16, "code_norm": "sphere", **settings}
        encoder = EncoderConfig(**settings)
        torch.manual_seed(seed)
        network = build_encoder(
            encoder, in_channels=channels, size_px=size_px, has_transformer=has_transformer
        )
        about = Description(
            id="untrained",
            input=Input(size_px=size_px, channels=channels, image_px=image_px),
            network=Network(encoder=encoder, has_transformer=has_transformer),
            trained=Trained(name="faces", data="faces.csv", method="OJ", seed=0, images=100),
            calibration=calibration,
        )
        return Model(network, about)

    return build


@pytest.fixture(scope="session")
def model_folder(build_model, tmp_path_factory):
    """The model of 16 grey pixels as a folder."""
    from orbitset.models import save_model_folder

    folder = tmp_path_factory.mktemp("models") / "model"
    save_model_folder(build_model(), folder)
    return folder


@pytest.fixture(scope="session")
def knowing_folder(build_model, photos, tmp_path_factory):
    """The same model, which knows these photos."""
    import torch

    from orbitset.models import Model, save_model_folder
    from orbitset.models.known import known_of

    model = build_model()
    images = model.prepare(sorted(photos.glob("*/*")))
    noise = torch.randn((9, *images.shape), generator=torch.Generator().manual_seed(0))
    known = known_of(model.network, [images], [images, *(images + 0.1 * noise).clamp(0, 1)])
    folder = tmp_path_factory.mktemp("models") / "knowing"
    save_model_folder(Model(model.network, model.description, known), folder)
    return folder


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Three images of 24x20 pixels of each of three things, in a folder each: two PNGs and a JPEG."""
    import numpy as np
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures") / "photos"
    rng = np.random.default_rng(0)
    for thing in ("ant", "bee", "cat"):
        (folder / thing).mkdir(parents=True)
        pattern = np.kron(rng.random((5, 6, 3)), np.ones((4, 4, 1)))
        for name in ("1.png", "2.png", "10.jpg"):
            pixels = (pattern + 0.05 * rng.standard_normal(pattern.shape)).clip(0, 1) * 255
            Image.fromarray(pixels.astype(np.uint8)).save(folder / thing / name)
    return folder
