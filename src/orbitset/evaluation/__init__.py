"""What it is worth: functions of codes and labels, never of models."""

from orbitset.evaluation.clustering import Clustering, cluster_scores
from orbitset.evaluation.early_stopping import OrbitHalves, Stopped, orbit_splits, stop_early
from orbitset.evaluation.exclusion import Near, Rule, Same, number_factors
from orbitset.evaluation.invariance import InvarianceCurve, invariance_curve
from orbitset.evaluation.labelled import Labelled, draw_labelled_sets
from orbitset.evaluation.one_shot import knn_accuracy, linear_probe_accuracy, one_shot_accuracy
from orbitset.evaluation.results import Accuracy
from orbitset.evaluation.retrieval import Retrieval, retrieve
from orbitset.evaluation.statistics import (
    Comparison,
    Interval,
    PairedTest,
    adjusted_p,
    compare_with,
    corrected_t_test,
    mean_interval,
    mean_over_seeds,
    paired_t_test,
    wilcoxon_test,
)
from orbitset.evaluation.verification import OperatingPoint, Verification, auc_of, verify

__all__ = [
    "Accuracy",
    "Clustering",
    "Comparison",
    "Interval",
    "InvarianceCurve",
    "Labelled",
    "Near",
    "OperatingPoint",
    "OrbitHalves",
    "PairedTest",
    "Retrieval",
    "Rule",
    "Same",
    "Stopped",
    "Verification",
    "adjusted_p",
    "auc_of",
    "cluster_scores",
    "compare_with",
    "corrected_t_test",
    "draw_labelled_sets",
    "invariance_curve",
    "knn_accuracy",
    "linear_probe_accuracy",
    "mean_interval",
    "mean_over_seeds",
    "number_factors",
    "one_shot_accuracy",
    "orbit_splits",
    "paired_t_test",
    "retrieve",
    "stop_early",
    "verify",
    "wilcoxon_test",
]
