"""What is kept: a trained encoder as a folder that says by itself what it takes and what it gives."""

from orbitset.models.card import describe_card
from orbitset.models.description import Calibration, Description, Input, Network, Point, Trained
from orbitset.models.folder import load_model_folder, save_model_folder
from orbitset.models.known import Assessment, Known
from orbitset.models.model import Model

__all__ = [
    "Assessment",
    "Calibration",
    "Description",
    "Input",
    "Known",
    "Model",
    "Network",
    "Point",
    "Trained",
    "describe_card",
    "load_model_folder",
    "save_model_folder",
]
