"""Training, as one loop to be read from top to bottom."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from orbitset.config import bounded, check_fields, replacing
from orbitset.errors import ConfigError
from orbitset.losses.objective import Objective, as_objective, name_of
from orbitset.precision import Precision, in_bfloat16
from orbitset.training.average import Average
from orbitset.training.blocks import blocks_of
from orbitset.training.checkpoint import Learner
from orbitset.training.low_rank import LowRank, linear_layers
from orbitset.training.optimizer import adam, groups_of, set_rate
from orbitset.training.progress import Progress, Silent
from orbitset.training.recompute import Recompute
from orbitset.training.recorder import Batches, Recorder, Training, Unrecorded
from orbitset.training.schedule import Schedule, learning_rate
from orbitset.training.steps import Engine, choose_steps
from orbitset.training.unfreezing import Unfreezing

Keep = Literal["last", "best"]
_LOOK_EVERY = 20
"""Steps between two looks at the terms on a GPU: each look waits for the GPU."""

OF_BACKBONES = (
    "backbone_rate",
    "head_rate",
    "head_first",
    "unfreeze",
    "layer_decay",
    "lora",
    "recompute",
)
"""Settings of another network than the paper's"""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long and how fast."""

    epochs: float = bounded(1.0, above=0)
    """An epoch shows every member of every orbit once."""
    learning_rate: float = bounded(1e-3, above=0)
    transformer_rate: float = bounded(1.0, at_least=0)
    """The spatial transformer's share of the learning rate. A rate that suits the encoder may freeze it."""
    backbone_rate: float = bounded(1.0, at_least=0)
    """The share of a backbone other than the paper's: a small one fine-tunes pretrained weights."""
    head_rate: float = bounded(1.0, at_least=0)
    """The share of the layer that makes codes of the features of such a backbone"""
    head_first: float = bounded(0.0, at_least=0)
    """The share of the training in which such a backbone does not learn yet; 1 for never"""
    unfreeze: float = bounded(0.0, at_least=0)
    """The share of the training, after that, over which its parts begin to learn, the last one first"""
    layer_decay: float = bounded(1.0, above=0)
    """The learning rate of each part of such a backbone, as a share of that of the part behind it"""
    lora: int | None = bounded(None, at_least=1)
    """The rank of additions to the linear layers of a transformer, which learn in place of its weights"""
    recompute: bool = False
    """Gradient checkpointing: compute the blocks of such a backbone again for gradients, to save memory"""
    classifier_rate: float = bounded(1.0, at_least=0)
    """The share of the classifier that EX, or class labels, learn beside the codes: a slow classifier leaves
    more to the codes."""
    adam_eps: float = bounded(1e-12, above=0)
    """Below torch's 1e-8: the equation's 1/d makes gradients so small that 1e-8 would slow them down."""
    weight_decay: float = bounded(0.0, at_least=0)
    """Decoupled, as in AdamW; biases and other vectors do not decay"""
    clip_norm: float | None = bounded(None, above=0)
    """The largest norm of the gradient of all weights together"""
    average: float | None = bounded(None, above=0)
    """The decay of a running average of the weights, such as 0.999. The average is evaluated and kept; null:
    the latest weights are"""
    schedule: Schedule = "cosine"
    warmup_steps: int = bounded(100, at_least=0)
    """At most a tenth of the training"""
    evaluations: int = replacing("evaluate_at", 10, empty=(), at_least=1)
    """Evaluations during training, evenly spaced, besides the one before it"""
    evaluate_at: tuple[float, ...] = ()
    """The epochs at which to evaluate instead, besides the end"""
    keep: Keep = "last"
    """last: the weights at the end; best: those that were best on validation images, which observed orbits
    may have"""
    patience: int | None = bounded(None, at_least=1)
    """How many evaluations without a better score on validation images end the training early; null: none
    do"""
    checkpoint_every_s: float = bounded(60.0, at_least=0)
    precision: Precision = "auto"
    """auto: bfloat16 convolutions where the hardware has them, GPU or CPU, else float32"""
    engine: Engine = "auto"
    """auto: the fastest way a GPU has; reference: plain torch code; fast: an error where there is none"""

    def __post_init__(self) -> None:
        check_fields(self, "train")
        if not 0 <= self.head_first <= 1:
            raise ConfigError(f"train.head_first is {self.head_first}; give a share from 0 to 1")
        if self.head_first + self.unfreeze > 1:
            raise ConfigError(
                f"train.head_first is {self.head_first} and train.unfreeze {self.unfreeze}; give shares of "
                "the training whose sum is at most 1"
            )
        if self.layer_decay > 1:
            raise ConfigError(f"train.layer_decay is {self.layer_decay}; give at most 1")
        self._check_learns()
        if self.average is not None and not self.average < 1:
            raise ConfigError(
                f"train.average is {self.average}; give a decay below 1, such as 0.999"
            )
        if any(not epoch > 0 for epoch in self.evaluate_at):
            raise ConfigError(f"train.evaluate_at is {self.evaluate_at}; give epochs above 0")

    def _check_learns(self) -> None:
        """Refuse settings of a backbone that learns, where it does not."""
        never = "head_first=1" if self.head_first == 1 else "backbone_rate=0"
        if self.head_first < 1 and self.backbone_rate > 0:
            return
        for name in ("lora", "recompute"):
            if getattr(self, name):
                raise ConfigError(
                    f"train.{name} is for a network that learns; with train.{never} it does not"
                )


def check_backbone(model: nn.Module, config: TrainConfig) -> None:
    """Refuse settings that the backbone of a model cannot have, before anything is written."""
    for name, default in (("layer_decay", 1.0), ("unfreeze", 0.0)):
        if getattr(config, name) != default:
            blocks_of(model, f"train.{name}")
    Recompute(model.train(), is_on=config.recompute).end()
    if config.lora is not None:
        linear_layers(model)


def fit(
    model: nn.Module,
    loss: nn.Module,
    batches: Batches,
    *,
    steps: int,
    config: TrainConfig | None = None,
    rate_shares: Mapping[str, float] | None = None,
    recorder: Recorder | None = None,
    progress: Progress | None = None,
    label: str = "training",
) -> None:
    """Minimise the objective over `steps` batches with Adam.

    Of `config` it uses the learning rate and its schedule, `adam_eps`, `weight_decay`, `clip_norm`,
    `average`, `precision` and `engine`; and for a part of the model that is called backbone `layer_decay`,
    `head_first`, `unfreeze`, `lora` and `recompute`. The rate is `learning_rate(step, …)`, with at most a
    tenth of the steps for warming up; where the recorder ends the training early, it falls to zero faster.
    `rate_shares` gives parts of the model and of the loss a share of it: see `orbitset.training.optimizer`.
    The `recorder` evaluates, writes and resumes: see `orbitset.training.recorder`. Without one nothing is
    evaluated or written.
    """
    if steps < 0 or steps != int(steps):
        raise ValueError(f"steps is {steps}; give a whole number of at least 0")
    objective = as_objective(loss)
    config, recorder = config or TrainConfig(), recorder or Unrecorded()
    progress = progress or Silent()
    device = next(model.parameters()).device
    if device.type == "cuda":
        torch.cuda.set_device(device)
    learner = _learner(model, objective, config, rate_shares)
    unfreezing = Unfreezing(
        model, steps=steps, head_first=config.head_first, unfreeze=config.unfreeze
    )
    training = Training(learner, batches, steps, progress, label)
    recorder.begin(training)
    monitor, images_at_start = training.monitor, batches.images_before(training.step)
    monitor.loss_name = name_of(objective)
    do_step, how = choose_steps(
        *(config.engine, model, objective, learner.optimizer, batches, monitor),
        use_bfloat16=in_bfloat16(config.precision, device),
        last_change=unfreezing.last_change,
        note=lambda message: progress.note(f"{label}: {message}"),
    )
    if device.type == "cuda":
        progress.note(f"{label}: {how}")
    recompute = Recompute(model.train(), is_on=config.recompute)
    progress.start(label, training.steps, training.step)
    try:
        while True:
            if recorder.is_due(training.step):
                recorder.evaluate(training)
            if training.step == training.steps or training.is_stopped:
                break
            rate = learning_rate(
                training.step,
                peak=config.learning_rate,
                total_steps=steps,
                warmup_steps=min(config.warmup_steps, steps // 10),
                schedule=config.schedule,
            )
            set_rate(learner.optimizer, rate * training.rate_share)
            unfreezing(training.step)
            terms = do_step(training.step)
            training.step += 1
            learner.average.update(training.step)
            is_last = training.step == training.steps
            if device.type == "cpu" or training.step % _LOOK_EVERY == 0 or is_last:
                monitor.check()
                images = batches.images_before(training.step) - images_at_start
                progress.update(training.step, images, {k: float(v) for k, v in terms.items()})
            recorder.save(training)
    finally:
        progress.stop()
        for part in (recompute, unfreezing, learner):
            part.end()
    batches.position = training.step


def _learner(
    model: nn.Module, loss: Objective, config: TrainConfig, rate_shares: Mapping[str, float] | None
) -> Learner:
    """Model and loss with what changes them."""
    low_rank = LowRank(model, config.lora)
    optimizer = adam(
        groups_of(model, loss, rate_shares=rate_shares, layer_decay=config.layer_decay),
        rate=config.learning_rate,
        eps=config.adam_eps,
        weight_decay=config.weight_decay,
        clip_norm=config.clip_norm,
    )
    return Learner(model, loss, optimizer, Average(model, config.average), low_rank)
