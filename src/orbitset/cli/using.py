"""Commands that use a trained model on images one by one."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from orbitset.cli.model_options import (
    Counted,
    Far,
    Images,
    ModelFolder,
    Overwrite,
    Threshold,
    check_one,
    finish,
    load,
)
from orbitset.cli.options import Device, Json, Quiet, Trust
from orbitset.errors import ConfigError


def embed(
    model: ModelFolder,
    images: Images,
    out: Annotated[Path, typer.Option("--out", "-o", help="codes.parquet or codes.npy.")],
    precision: Annotated[
        Literal["float32", "bfloat16", "auto"],
        typer.Option(help="auto: bfloat16 where that is fast."),
    ] = "float32",
    overwrite: Overwrite = False,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the codes of images.

    Example: orbitset embed runs/mine photos/ -o codes.parquet
    """
    from orbitset.uses.embedding import embed_to_file

    loaded = load(model, device)
    with Counted("embedding", quiet) as counted:
        done = embed_to_file(
            loaded, images, out, overwrite=overwrite, precision=precision, on_progress=counted
        )
    found = {"images": done.done, "code_size": loaded.code_size, "out": str(out)}
    finish(
        as_json,
        found,
        [f"{done.done:,} codes of {loaded.code_size} numbers: {out}"],
        done.problems,
        done.ignored,
    )


def rectify(
    model: ModelFolder,
    images: Images,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    overwrite: Overwrite = False,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write what images look like in their canonical pose, as PNG files.

    Example: orbitset rectify runs/mine photos/ -o upright/
    """
    from orbitset.uses.embedding import rectify_to_folder

    with Counted("rectifying", quiet) as counted:
        done = rectify_to_folder(
            load(model, device), images, out, overwrite=overwrite, on_progress=counted
        )
    found = {"images": done.done, "out": str(out)}
    finish(as_json, found, [f"{done.done:,} images: {out}"], done.problems, done.ignored)


def verify(
    model: ModelFolder,
    a: Annotated[Path, typer.Argument(metavar="A", help="An image.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another.")],
    far: Far = None,
    threshold: Threshold = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A PNG of both, and of both rectified, to write."),
    ] = None,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Say whether two images show the same thing.

    Example: orbitset verify runs/mine a.jpg b.jpg --out pair.png
    """
    from PIL import Image

    from orbitset.uses.verifying import FAR, pair_picture, verify_pair

    check_one(far, threshold)
    if out is not None:
        _check_picture(out, a, b)
    loaded = load(model, device)
    verdict = verify_pair(loaded, a, b, far=FAR if far is None else far, threshold=threshold)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pair_picture(loaded, a, b)).save(out)
    point = verdict.point
    meaning = (
        ""
        if point is None
        else f": lets {point.far:.1%} of different things pass as the same, and {point.tar:.1%} of the same"
    )
    text = (
        f"{'the same' if verdict.is_same else 'different'}: distance {verdict.distance:.4g}, "
        f"threshold {verdict.threshold:.4g}{meaning}"
    )
    found = {
        "same": verdict.is_same,
        "distance": verdict.distance,
        "threshold": verdict.threshold,
        "far": None if point is None else point.far,
        "tar": None if point is None else point.tar,
    }
    finish(as_json, found, [text])


def _check_picture(out: Path, *images: Path) -> None:
    if out.suffix.lower() != ".png":
        raise ConfigError(f"the pair is written as .png, and {out} is none")
    if any(out.resolve() == image.resolve() for image in images):
        raise ConfigError(f"{out} is one of the images; choose another name")


def export(
    model: ModelFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Encoder and decoder as ONNX files.")
    ] = False,
    trusted: Trust = None,
    as_json: Json = False,
) -> None:
    """Write a model alone, without the run it came from: weights, model.json and its card.

    Example: orbitset export runs/mine --onnx -o model/
    """
    from orbitset.models.folder import check_no_model, save_model_folder
    from orbitset.uses.onnx import OPSET, check_installed, export_onnx

    if onnx:
        check_installed()
    check_no_model(out)
    loaded = load(model, "cpu")
    exported = export_onnx(loaded, out) if onnx else []
    save_model_folder(loaded, out)
    lines = [f"model {loaded.id}: {out}"]
    files: list[dict[str, Any]] = []
    for one in exported:
        files.append(
            {
                "path": str(one.path),
                "takes": one.takes,
                "gives": one.gives,
                "opset": OPSET,
                "largest_difference": one.largest_difference,
            }
        )
        differences = ", ".join(
            f"{value:.1e} at batch {batch}" for batch, value in one.largest_difference.items()
        )
        lines.append(
            f"{one.path}: {one.takes} to {one.gives}, any batch, opset {OPSET}; differs from PyTorch by at "
            f"most {differences}"
        )
    finish(as_json, {"model": str(out), "id": loaded.id, "onnx": files}, lines)
