"""A network of blocks that is fine-tuned."""

import pytest
import torch
from torch import nn

from orbitset.encoders import BackboneEncoder
from orbitset.losses import OrbitJoint
from orbitset.orbits import AffineOrbits, OrbitBatches
from orbitset.training import TrainConfig, fit


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(6), nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))

    def forward(self, x):
        return x + self.drop(self.mlp(self.norm(x)))


class Net(nn.Module):
    """What transformers are made of, in their order: a stem, three blocks, a norm."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 4, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(6)

    def forward(self, images):
        x = self.stem(images).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        return self.norm(x).mean(1)


@pytest.fixture
def blocks_model():
    """Gives a new model with such a network each time, the same one."""

    def build():
        torch.manual_seed(0)
        return BackboneEncoder(
            Net(), size_px=8, channels=(4,), code_size=6, head="features", norm_statistics="frozen"
        )

    return build


@pytest.fixture
def fine_tune():
    """Trains a model for some steps, with what `fit` takes beside the settings."""

    def call(model, steps=4, recorder=None, progress=None, **settings):
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(256, (12, 1, 8, 8), dtype=torch.uint8, generator=generator)
        orbits = AffineOrbits(images, canvas_px=8, members=3)
        batches = OrbitBatches(orbits, orbits_per_batch=4, members_per_batch=2)
        config = TrainConfig(**{"schedule": "constant", "precision": "float32", **settings})
        torch.manual_seed(1)
        fit(
            model,
            OrbitJoint(),
            batches,
            steps=steps,
            config=config,
            recorder=recorder,
            progress=progress,
        )
        return model

    return call
