"""What codes are worth: measures and statistics, as functions of codes and labels, never of models."""

from orbitset.evaluation.clustering import cluster_scores
from orbitset.evaluation.early_stopping import orbit_splits, stop_early
from orbitset.evaluation.exclusion import Near, Same
from orbitset.evaluation.invariance import invariance_curve
from orbitset.evaluation.labelled import Labelled, draw_labelled_sets
from orbitset.evaluation.one_shot import knn_accuracy, linear_probe_accuracy, one_shot_accuracy
from orbitset.evaluation.retrieval import retrieve
from orbitset.evaluation.statistics import adjusted_p, compare_with, paired_t_test, wilcoxon_test
from orbitset.evaluation.verification import verify

__all__ = [
    "Labelled",
    "Near",
    "Same",
    "adjusted_p",
    "cluster_scores",
    "compare_with",
    "draw_labelled_sets",
    "invariance_curve",
    "knn_accuracy",
    "linear_probe_accuracy",
    "one_shot_accuracy",
    "orbit_splits",
    "paired_t_test",
    "retrieve",
    "stop_early",
    "verify",
    "wilcoxon_test",
]
