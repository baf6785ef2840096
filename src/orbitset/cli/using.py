"""Commands that use a trained model on images one by one."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

from typer import Argument, Option

from orbitset.cli import model_options
from orbitset.cli.options import Device, Json, Quiet, Trust, say
from orbitset.errors import ConfigError, check_choice, count_of


def embed(
    model: model_options.ModelFolder,
    images: model_options.Images,
    out: Annotated[Path, Option("--out", "-o", help="File to write: codes.parquet or codes.npy.")],
    precision: Annotated[
        str,
        Option(
            metavar="float32|bfloat16|auto",
            help="Precision of the network; auto: bfloat16 where it is fast.",
        ),
    ] = "float32",
    overwrite: model_options.Overwrite = False,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the codes (embeddings) of images to a file; Parquet also has the factors of a manifest.

    Example: orbitset embed runs/mine photos/ -o codes.parquet

    Example: orbitset embed runs/mine faces.csv clip.mp4 -o codes.parquet
    """
    from orbitset.uses.embedding import embed_to_file

    check_choice("--precision", precision, ("float32", "bfloat16", "auto"))
    loaded = model_options.load(model, device)
    with model_options.counting("embedding", quiet) as counted:
        report = embed_to_file(
            loaded,
            images,
            out,
            overwrite=overwrite,
            precision=cast(Any, precision),
            on_progress=counted,
        )
    content = {"images": report.done, "code_size": loaded.code_size, "out": str(out)}
    model_options.finish(
        as_json,
        content,
        [f"{count_of(report.done, 'code')} of {loaded.code_size} numbers: {out}"],
        report.problems,
        report.ignored,
    )


def rectify(
    model: model_options.ModelFolder,
    images: model_options.Images,
    out: Annotated[Path, Option("--out", "-o", help="Folder to write to.")],
    min_confidence: Annotated[
        float,
        Option(help="Leave out images of a lower confidence, such as 0.01. Default: 0, none."),
    ] = 0.0,
    overwrite: model_options.Overwrite = False,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rectify images: write each in its canonical pose, as a PNG file.

    The folder also gets confidence.csv: for each image the share of held-out images that are at least as
    unlike what the model was trained on.

    Example: orbitset rectify runs/mine photos/ -o upright/
    """
    from orbitset.models.known import UNLIKE
    from orbitset.uses.embedding import CONFIDENCE, rectify_to_folder

    with model_options.counting("rectifying", quiet) as counted:
        report = rectify_to_folder(
            model_options.load(model, device),
            images,
            out,
            overwrite=overwrite,
            min_confidence=min_confidence,
            on_progress=counted,
        )
    content = {
        "images": report.done,
        "out": str(out),
        "unlike": report.unlike,
        "left_out": report.left_out,
    }
    lines = [f"{count_of(report.done, 'image')}: {out}"]
    if report.unlike is not None:
        left_out = f", {report.left_out:,} left out" if report.left_out else ""
        lines.append(
            f"{count_of(report.unlike, 'image')} unlike anything trained on "
            f"(confidence below {UNLIKE:.0%}){left_out}: {out / CONFIDENCE}"
        )
    model_options.finish(as_json, content, lines, report.problems, report.ignored)
    if report.are_alike:
        say(
            "note: all images were rectified to one picture: the decoder has learned too little; train "
            "longer, by a method that rectifies, such as IN+R or OJ"
        )
    if report.unlike is None:
        say("confidence: not known, since an older version of orbitset trained the model")


def verify(
    model: model_options.ModelFolder,
    a: Annotated[
        Path,
        Argument(
            metavar="A", help="First image: a file, a frame (clip.mp4#12) or a row (images.npy#3)."
        ),
    ],
    b: Annotated[Path, Argument(metavar="B", help="Second image.")],
    far: model_options.Far = None,
    threshold: model_options.Threshold = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Write a PNG of both images, also rectified.")
    ] = None,
    trusted: Trust = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Say whether two images show the same thing.

    Example: orbitset verify runs/mine a.jpg b.jpg --out pair.png
    """
    from PIL import Image

    from orbitset.models.known import UNLIKE
    from orbitset.uses.verifying import FAR, pair_picture, verify_pair

    model_options.check_one(far, threshold)
    if out is not None:
        _check_picture(out, a, b)
    loaded = model_options.load(model, device)
    verdict = verify_pair(loaded, a, b, far=FAR if far is None else far, threshold=threshold)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pair_picture(loaded, a, b)).save(out)
    point = verdict.point
    meaning = ""
    if point is not None and loaded.calibration is not None:
        meaning = f" ({loaded.calibration.describe(point)})"
    text = (
        f"{'the same' if verdict.is_same else 'different'}: distance {verdict.distance:.4g}, "
        f"threshold {verdict.threshold:.4g}{meaning}"
    )
    lines = [text]
    for image, confidence in zip((a, b), verdict.confidence or (), strict=False):
        if confidence < UNLIKE:
            lines.append(f"{image} is unlike anything trained on: confidence {confidence:.1%}")
    content = {
        "same": verdict.is_same,
        "distance": verdict.distance,
        "threshold": verdict.threshold,
        "far": None if point is None else point.far,
        "tar": None if point is None else point.tar,
        "confidence": verdict.confidence,
    }
    model_options.finish(as_json, content, lines)


def _check_picture(out: Path, *images: Path) -> None:
    if out.suffix.lower() != ".png":
        raise ConfigError(f"{out} is not a .png file; the pair is written as PNG")
    if any(out.resolve() == image.resolve() for image in images):
        raise ConfigError(f"{out} is one of the two images; choose another name")


def export(
    model: model_options.ModelFolder,
    out: Annotated[Path, Option("--out", "-o", help="Folder to write to.")],
    onnx: Annotated[
        bool, Option("--onnx", help="Also write encoder and decoder as ONNX files.")
    ] = False,
    trusted: Trust = None,
    as_json: Json = False,
) -> None:
    """Export a model without its run: weights, description (model.json) and model card.

    Example: orbitset export runs/mine --onnx -o model/
    """
    from orbitset.models.folder import check_no_model, save_model_folder
    from orbitset.uses.onnx import OPSET, check_installed, export_onnx

    if onnx:
        check_installed()
    loaded = model_options.load(model, "cpu")
    check_no_model(out, loaded)
    exported = export_onnx(loaded, out) if onnx else []
    save_model_folder(loaded, out)
    lines = [f"model {loaded.id}: {out}"]
    files: list[dict[str, Any]] = []
    for file in exported:
        files.append(asdict(file) | {"path": str(file.path), "opset": OPSET})
        differences = ", ".join(
            f"{value:.1e} at batch {batch}" for batch, value in file.largest_difference.items()
        )
        lines.append(
            f"{file.path}: {file.takes} to {file.gives}, any batch, opset {OPSET}; "
            f"differs from PyTorch by at most {differences}"
        )
    model_options.finish(as_json, {"model": str(out), "id": loaded.id, "onnx": files}, lines)
