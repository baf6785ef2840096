"""What it is worth: functions of codes and labels, never of models."""

from orbitset.evaluation.invariance import InvarianceCurve, invariance_curve
from orbitset.evaluation.labelled import Labelled, draw_labelled_sets
from orbitset.evaluation.one_shot import knn_accuracy, linear_probe_accuracy, one_shot_accuracy
from orbitset.evaluation.results import Accuracy

__all__ = [
    "Accuracy",
    "InvarianceCurve",
    "Labelled",
    "draw_labelled_sets",
    "invariance_curve",
    "knn_accuracy",
    "linear_probe_accuracy",
    "one_shot_accuracy",
]
