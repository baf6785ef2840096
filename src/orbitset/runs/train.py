"""One method, trained once: from a configuration to a finished run folder."""

import io
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orbitset.config import differences, to_dict
from orbitset.encoders import Encoder, without_transformer
from orbitset.errors import RunError, count_of, started_otherwise
from orbitset.files import write_atomically
from orbitset.models.folder import read_description
from orbitset.protocols.images import Opened
from orbitset.recipes.experiment import Experiment, read_experiment, resolved
from orbitset.recipes.methods import built_in
from orbitset.run_folder import Run
from orbitset.runs.begin import begin, built
from orbitset.runs.decoder import decoder_share, learn_decoder
from orbitset.runs.describe import describe_model
from orbitset.runs.ignoring import described_counts, ignoring_of
from orbitset.runs.judge import Judge
from orbitset.runs.length import Pace, evaluation_steps, measure, num_steps, shortened
from orbitset.runs.memory import memory_for
from orbitset.runs.prepare import (
    CONFIGURATION,
    Images,
    build_model,
    build_objective,
    build_protocol,
    open_images,
    try_loss,
)
from orbitset.seeds import stable_seed
from orbitset.training.checkpoint import has_checkpoint, save_model
from orbitset.training.fit import check_backbone, fit
from orbitset.training.interruption import Interruption
from orbitset.training.progress import Progress, Silent
from orbitset.training.recorder import NOTES, RunRecorder, evaluated


def train(
    config: Experiment,
    run: Run,
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
    source: Opened | None = None,
    interruption: Interruption | None = None,
    ends_at: float | None = None,
) -> dict[str, Any]:
    """Train, evaluate and write the run folder; gives what results.json holds.

    Images that were loaded to describe the training need not be loaded again. An interruption that is heeded
    ends the training early: the folder then holds the model so far, beside the checkpoint to go on from, and
    results.json says under `stopped` after which step. With `ends_at`, a time of the monotonic clock, a new
    training is shortened to what this machine does until then; a resumed one brings its end forward.
    """
    progress = progress or Silent()
    is_resumed = resume and run.exists
    if not is_resumed:
        run.check_free(overwrite=overwrite)
    config = resolved(config, run.path if is_resumed else CONFIGURATION)
    images = open_images(config, device, progress, source=source)
    model = build_model(config, images).to(device)
    config = built(config, model)
    check_backbone(model, config.train)
    judge = Judge(config, build_protocol(config, images), ignoring_of(images))
    if not (is_resumed and (has_checkpoint(run.checkpoints) or _is_complete(config, run))):
        begin(config, model, images, judge, progress.note)
    loss = build_objective(config, images).to(device)
    if not is_resumed and built_in(config.method) is None:
        try_loss(model, loss, images)
    if ends_at is not None and not (is_resumed and _is_complete(config, run)):
        pace = measure(config, model, loss, images, judge)
        ends_at -= decoder_share(config, loss) * (ends_at - time.monotonic())
        if not is_resumed:
            config = _within(config, images, pace, ends_at - time.monotonic(), progress)
        ends_at -= pace.evaluation_s + pace.after_s
    with run.locked():
        if is_resumed and _is_finished(config, images, run):
            results: dict[str, Any] = run.read_json("results.json")
            run.remove_checkpoint()  # if a kill came between
            return results
        _prepare_folder(
            config, images, run, overwrite=overwrite, is_resumed=is_resumed, device=device
        )
        _say_left_out(images, run, progress)
        with memory_for(config, run, device):
            recorder = _fit(
                *(config, images, judge, model, loss, run),
                resume=resume,
                device=device,
                progress=progress,
                interruption=interruption if config.keeps_weights else None,
                ends_at=math.inf if ends_at is None else ends_at,
            )
        results = _finish(config, images, judge, model, loss, recorder, progress)
        if recorder.stopped_at is None:
            run.remove_checkpoint()
        return results


def finish(
    config: Experiment, run: Run, *, device: str = "cpu", progress: Progress | None = None
) -> dict[str, Any]:
    """Make a model of what an interrupted training has learned so far; gives what results.json holds."""
    if not has_checkpoint(run.checkpoints) and not _is_complete(config, run):
        raise RunError(
            f"{run.path} has no checkpoint: it was interrupted before its first, or keeps none",
            hint=run.ways_on,
        )
    stop = Interruption(is_requested=True)
    return train(config, run, resume=True, device=device, progress=progress, interruption=stop)


def _fit(
    config: Experiment,
    images: Images,
    judge: Judge,
    model: nn.Module,
    loss: nn.Module,
    run: Run,
    *,
    resume: bool,
    device: str,
    progress: Progress,
    interruption: Interruption | None,
    ends_at: float,
) -> RunRecorder:
    """Train into the folder; gives the recorder, which knows the best weights and where it was stopped."""
    steps = num_steps(config, images)
    recorder = RunRecorder(
        run,
        evaluate=judge.record,
        evaluate_at=evaluation_steps(config, images),
        is_best=judge.choice.is_last_best if config.keeps_best and config.keeps_weights else None,
        why_end=lambda records: judge.why_end(records, steps),
        ends_at=ends_at,
        resume=resume,
        is_interrupted=lambda: interruption is not None and interruption.is_requested,
        keeps_weights=config.keeps_weights,
        checkpoint_every_s=config.train.checkpoint_every_s,
    )
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(stable_seed("training", config.seed))
        with nullcontext() if interruption is None else interruption.heeded():
            fit(
                model,
                loss,
                images.batches,
                steps=steps,
                config=config.train,
                rate_shares=config.rate_shares,
                recorder=recorder,
                progress=progress,
                label=f"{config.method} {config.name}",
            )
    return recorder


def _within(
    config: Experiment, images: Images, pace: Pace, seconds: float, progress: Progress
) -> Experiment:
    """The experiment, shortened to so many seconds; says by how much."""
    shorter = shortened(config, images, pace, seconds)
    steps, planned = num_steps(shorter, images), num_steps(config, images)
    share = f"{steps:,} of {planned:,} steps, {shorter.train.epochs:.3g} of {config.train.epochs:.3g} epochs,"
    progress.note(
        f"{config.method} {config.name}: {pace}; there is time for "
        f"{f'all {planned:,} steps' if shorter == config else share} and "
        f"{len(evaluation_steps(shorter, images))} evaluations"
    )
    return shorter


def _finish(
    config: Experiment,
    images: Images,
    judge: Judge,
    model: Encoder,
    loss: nn.Module,
    recorder: RunRecorder,
    progress: Progress,
) -> dict[str, Any]:
    """Write the weights, the arrays of the figures, the model's description and the results."""
    run, name = recorder.run, f"{config.method} {config.name}"
    records, weights = run.records(), recorder.best_weights
    if recorder.stopped_at not in (None, records[-1]["step"]):
        # metrics.jsonl has none of this evaluation, so that the training can go on as if it had not been
        progress.note(f"{name}: evaluating at step {recorder.stopped_at}")
        records.append(evaluated(judge.record, model, images.batches, recorder.stopped_at))
        if config.keeps_best and judge.choice.is_last_best(records):
            weights = None
    kept = _keep(config, images, judge, model, loss, records, weights, progress)
    progress.note(f"{name}: raw pixels and figures")
    run.remove_results()
    if config.keeps_weights:
        about = {"method": config.method, "name": config.name}
        save_model(run / "model.safetensors", model, about)
    model.eval()
    with torch.inference_mode():
        arrays = judge.protocol.figures(model, judge.encoding(model))
    write_atomically(run / "arrays.npz", _packed(arrays))
    rows = judge.rows(records)
    if config.keeps_weights:
        num_images = records[-1]["images"]
        describe_model(
            config, images, judge.protocol, run, model, rows, num_images=num_images, kept_codes=kept
        )
    results: dict[str, Any] = {
        "rows": [row.to_json() for row in rows],
        "tested_on": images.tested_on,
        "protocol": {"name": config.protocol, **judge.protocol.about.to_json()},
    }
    notes = [f"step {note['step']:,}: {note['text']}" for note in run.records(NOTES)]
    if recorder.stopped_at is not None:
        stopped = {"step": recorder.stopped_at, "steps": num_steps(config, images)}
        results["stopped"] = stopped
        notes.insert(0, "stopped after {step:,} of {steps:,} steps".format(**stopped))
    if kept is not None:
        notes.append(kept)
    if notes:
        results["notes"] = notes
    run.write_json("results.json", results)
    return results


def _keep(
    config: Experiment,
    images: Images,
    judge: Judge,
    model: Encoder,
    loss: nn.Module,
    records: Sequence[dict[str, Any]],
    weights: Mapping[str, Tensor] | None,
    progress: Progress,
) -> str | None:
    """Give the model the weights that are kept. If those are from the first half of a training that began
    with useful ones, its decoder, which has learned little by then, learns from their codes; gives the
    sentence that says so, or that the codes are those before training."""
    learned = deepcopy(without_transformer(model).decoder.state_dict())
    if weights is not None:
        model.load_state_dict(weights)
    if judge.ignoring is not None:
        counts = judge.ignoring.erase(model.eval(), judge.encoding(model))
        progress.note(f"directions of codes that are projected out: {described_counts(counts)}")
    if not (config.keeps_best and config.begins_useful):
        return None
    trained_steps, best_step = records[-1]["step"], judge.choice.best(records)["step"]
    steps = 0
    if weights is not None and best_step < trained_steps / 2:
        steps = learn_decoder(
            *(config, model, loss, images),
            learned=learned,
            trained_steps=trained_steps,
            progress=progress,
        )
    kept = f"the codes of step {best_step:,} are kept, which retrieve validation images best"
    if judge.choice.is_start_best(records):
        start = "the frozen network" if config.begins_frozen else "the model that it began with"
        kept = (
            f"training did not retrieve validation images better than {start}, whose codes are kept"
        )
    elif not steps:
        return None
    if steps:
        kept += (
            f"; after {trained_steps:,} steps of training the decoder learned from them for "
            f"{count_of(steps, 'more step')}"
        )
    progress.note(f"{config.method} {config.name}: {kept}")
    return kept


def _packed(arrays: Mapping[str, Tensor | np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    plain: dict[str, Any] = {
        name: array.cpu().numpy() if isinstance(array, Tensor) else array
        for name, array in arrays.items()
    }
    np.savez_compressed(buffer, **plain)
    return buffer.getvalue()


def _say_left_out(images: Images, run: Run, progress: Progress) -> None:
    """Write and say which rows of the data cannot be used."""
    if images.unused:
        progress.note(images.unused)
    if images.left_out:
        rows = [
            {"row": problem.row, "others": problem.others, "reason": problem.reason}
            for problem in images.left_out
        ]
        run.write_json("left_out.json", {"rows": rows})
        progress.note(
            f"{len(images.left_out):,} problems with images, which are left out: see left_out.json"
        )


def _is_finished(config: Experiment, images: Images, run: Run) -> bool:
    """Whether nothing is left to do; an error if the run cannot go on."""
    changed = differences(read_experiment(run.config), config)
    if changed:
        raise started_otherwise(run.path, "; ".join(changed))
    if _is_complete(config, run):
        return True
    if change := data_change(config.data, images, run):
        raise RunError(
            f"{run.path} cannot go on: {change}",
            hint="bring the images back as they were, or start anew with --overwrite",
        )
    return False


def _is_complete(config: Experiment, run: Run) -> bool:
    return run.is_finished or (run.has_results and not config.keeps_weights)


def _prepare_folder(
    config: Experiment,
    images: Images,
    run: Run,
    *,
    overwrite: bool,
    is_resumed: bool,
    device: str,
) -> None:
    """Write the configuration and the environment into the folder."""
    if not is_resumed:
        run.create(to_dict(config), overwrite=overwrite)
    init = None
    if config.init is not None and not (run / "environment.json").exists():
        init = read_description(Path(config.init)).id
    run.note_environment(device=device, seed=config.seed, init=init, data=images.fingerprint)


def data_change(data: str, images: Images, run: Run) -> str | None:
    """A sentence, if the images are not those that the run was begun with."""
    path = run / "environment.json"
    before = run.read_json("environment.json").get("data") if path.exists() else None
    now = images.fingerprint
    if before is None or now is None or before == now:
        return None
    counts = (before["images"], now["images"])
    what = "{:,} images then, {:,} now".format(*counts) if counts[0] != counts[1] else "others now"
    return f"the images in {data} have changed since this run was trained, {what}"
