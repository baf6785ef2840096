"""Training: `fit`, one readable loop, and what it stands on."""

from orbitset.training.fit import TrainConfig, fit
from orbitset.training.recorder import RunRecorder
from orbitset.training.schedule import learning_rate

__all__ = ["RunRecorder", "TrainConfig", "fit", "learning_rate"]
