"""A model as ONNX files, checked against PyTorch on the same images before anyone relies on them."""

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from orbitset.errors import OrbitsetError
from orbitset.models import Model
from orbitset.seeds import stream

OPSET = 18
BATCHES = (1, 64)
"""The batch sizes at which ONNX and PyTorch are compared"""
_TRACED = 2
_LARGEST_DIFFERENCE = 1e-3
"""The largest difference allowed; entries of codes are about 1, pixels lie in [0, 1]"""


@dataclass(frozen=True)
class Exported:
    """A file, and how far its outputs are from PyTorch's."""

    path: Path
    takes: str
    gives: str
    largest_difference: dict[int, float]
    """By the number of images in a batch"""


class _Part(nn.Module):
    """What a model does in one method of its network."""

    def __init__(self, model: Model, method: str) -> None:
        super().__init__()
        self.network, self.method = model.network, method

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = getattr(self.network, self.method)(inputs)
        return outputs


def export_onnx(model: Model, folder: Path) -> list[Exported]:
    """encoder.onnx, and decoder.onnx or, where codes alone cannot be decoded, rectifier.onnx.

    The batch may have any size. Images are floats in [0, 1].
    """
    check_installed()
    folder.mkdir(parents=True, exist_ok=True)
    about = model.description.input
    generator = stream("onnx")
    images = torch.rand(
        max(BATCHES), about.channels, about.size_px, about.size_px, generator=generator
    )
    model = Model(copy.deepcopy(model.network).cpu(), model.description)
    with torch.inference_mode():
        codes = model.network.encode(images)
    parts = [("encoder", _Part(model, "encode"), images, "images", "codes")]
    if model.description.network.encoder.unpooling == "switches":
        parts.append(("rectifier", _Part(model, "rectify"), images, "images", "rectified"))
    else:
        parts.append(("decoder", _Part(model, "decode"), codes, "codes", "rectified"))
    return [
        _export(module, folder / f"{name}.onnx", inputs, takes, gives)
        for name, module, inputs, takes, gives in parts
    ]


def _export(module: nn.Module, path: Path, inputs: Tensor, takes: str, gives: str) -> Exported:
    module.eval()
    inputs = inputs.clone()  # outside inference mode, which tracing refuses
    with _quiet():
        program = torch.onnx.export(
            module,
            (inputs[:_TRACED],),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=[takes],
            output_names=[gives],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        )
    assert program is not None
    program.save(str(path))
    differences = _compare(module, path, inputs)
    largest = max(differences.values())
    if not largest <= _LARGEST_DIFFERENCE:
        path.unlink()
        raise OrbitsetError(
            f"the ONNX file of the {path.stem} differs from PyTorch by {largest:.1e}, "
            f"more than {_LARGEST_DIFFERENCE:g}, and was not kept"
        )
    return Exported(path, takes, gives, differences)


def _compare(module: nn.Module, path: Path, inputs: Tensor) -> dict[int, float]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (name,) = (tensor.name for tensor in session.get_inputs())
    differences = {}
    for batch in BATCHES:
        with torch.inference_mode():
            ours = module(inputs[:batch]).numpy()
        (theirs,) = session.run(None, {name: inputs[:batch].numpy()})
        differences[batch] = float(np.abs(ours - theirs).max())
    return differences


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the messages of the exporter about itself."""
    log = logging.getLogger("torch.onnx")
    before, log.level = log.level, logging.ERROR
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.level = before


def check_installed() -> None:
    """Refuse to begin without the packages that the export needs."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise OrbitsetError(
            f"models are exported with {error.name}, which is not installed",
            hint="pip install onnx onnxscript onnxruntime",
        ) from None
