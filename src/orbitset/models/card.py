"""A model's card: what it takes, what it gives, what it was learned from and how good it is."""

from orbitset.models.description import Description

_NAMES = {
    "auc": "verification, AUC",
    "top1": "retrieval, top-1",
    "accuracy": "one-shot accuracy",
    "accuracy_cosine": "one-shot accuracy, cosine",
}


def describe_card(about: Description) -> str:
    """Markdown."""
    shown, trained, encoder = about.input, about.trained, about.network.encoder
    colour = "colour" if shown.is_colour else "grey"
    fitted = f"{shown.image_px or shown.size_px}x{shown.image_px or shown.size_px} px, {colour}"
    if shown.image_px is not None:
        fitted += f", in the middle of a black square of {shown.size_px} px"
    lines = [
        f"# {trained.name}, {trained.method}",
        "",
        "An image encoder learned from orbit sets, groups of images that show the same thing, with "
        "orbitset.",
        "",
        f"- **Takes** images, fitted to {fitted}",
        f"- **Gives** codes of {encoder.code_size} numbers, compared by squared Euclidean distance, and the "
        "rectified image: what was shown, in its canonical pose",
        f"- **Learned from** {trained.data}, method {trained.method}, {trained.images:,} images shown, "
        f"seed {trained.seed}" + (f", begun with model {trained.init}" if trained.init else ""),
        f"- **Network** {encoder.backbone}{' behind a spatial transformer' * about.network.has_transformer}"
        + (", looks at local contrast" if encoder.contrast == "local" else ""),
        f"- **Id** {about.id}",
        "",
        "```python",
        "import orbitset",
        "",
        'model = orbitset.load("this folder")',
        'codes = model.embed(["a.jpg", "b.jpg"])',
        "```",
    ]
    if trained.scores:
        lines += [
            "",
            "## How good it is",
            "",
            "On test images, which were neither trained on nor used to choose the weights.",
        ]
        lines += ["", "| measure | this model | raw pixels |", "|---|---|---|"]
        for name, value in trained.scores.items():
            baseline = trained.baselines.get(name)
            pixels = "" if baseline is None else f"{baseline:.3f}"
            lines.append(f"| {_NAMES.get(name, name)} | {value:.3f} | {pixels} |")
    if about.calibration is not None:
        measured = about.calibration
        lines += [
            "",
            "## When are two images the same?",
            "",
            f"Measured over {measured.pairs:,} pairs of {measured.on}: AUC {measured.auc:.3f}, equal error "
            f"rate {measured.equal_error_rate:.3f}. These test images were neither trained on nor used to "
            "choose the weights.",
            "",
            "| false accept rate | true accept rate | distance up to |",
            "|---|---|---|",
            *(
                f"| {point.far:.1%} | {point.tar:.1%} | {point.threshold:.4g} |"
                for point in measured.points
            ),
        ]
    lines += ["", "## How it was made", ""]
    versions = ", ".join(f"{name} {number}" for name, number in trained.versions.items())
    commit = f", commit {trained.commit}" if trained.commit else ""
    if versions:
        lines += ["", f"With {versions}{commit}."]
    return "\n".join(lines).rstrip() + "\n"
