"""The paper's experiments: a protocol each, as data."""

from orbitset.experiments.config import EvalConfig, ExperimentConfig
from orbitset.experiments.demo import demo_configs, run_demo
from orbitset.experiments.recipes import RECIPES, affine_digits, affine_images, affine_mnist, recipe
from orbitset.experiments.single import load_run, train
from orbitset.experiments.task import OneShotTask

__all__ = [
    "EvalConfig",
    "ExperimentConfig",
    "OneShotTask",
    "RECIPES",
    "affine_digits",
    "affine_images",
    "affine_mnist",
    "demo_configs",
    "load_run",
    "recipe",
    "run_demo",
    "train",
]
