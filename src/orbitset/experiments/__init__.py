"""The paper's experiments: a protocol each, as data."""

from orbitset.experiments.affine_mnist import affine_mnist, affine_mnist_study
from orbitset.experiments.comparison import Compared, compare
from orbitset.experiments.config import EvalConfig, ExperimentConfig
from orbitset.experiments.demo import demo_configs, run_demo
from orbitset.experiments.recipes import RECIPES, affine_digits, affine_images, recipe
from orbitset.experiments.single import load_run, train
from orbitset.experiments.study import Line, Study, run_study, stored_study
from orbitset.experiments.task import OneShotTask
from orbitset.experiments.tuning import tune

__all__ = [
    "Compared",
    "EvalConfig",
    "ExperimentConfig",
    "Line",
    "OneShotTask",
    "RECIPES",
    "Study",
    "affine_digits",
    "affine_images",
    "affine_mnist",
    "affine_mnist_study",
    "compare",
    "demo_configs",
    "load_run",
    "recipe",
    "run_demo",
    "run_study",
    "stored_study",
    "train",
    "tune",
]
