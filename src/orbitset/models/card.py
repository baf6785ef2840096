"""A model's card: what it takes, what it gives, what it was trained on and how good it is."""

from orbitset.encoders.config import PAPERS
from orbitset.models.description import Calibration, Description, Trained

_CARD = """\
# {name}, {method}

An image encoder learned from orbit sets, groups of images that show the same thing, with orbitset.

- **Takes** images, fitted to {input}
- **Gives** codes of {code_size} numbers, compared by squared Euclidean distance, and the rectified image: \
the same thing in its canonical pose
- **Learned from** {data}, method {method}, {images:,} images shown in training, seed {seed}{init}
- **Network** {network}
- **Id** {id}

```python
import orbitset

model = orbitset.load("this folder")
codes = model.embed(["a.jpg", "b.jpg"])
```
"""
_THRESHOLDS = """
## When are two images the same?

Measured over {pairs:,} pairs of {on}: AUC {auc:.3f}, equal error rate {equal_error_rate:.3f}. \
These test images were neither trained on nor used to choose the weights.

| false accept rate | true accept rate | distance up to |
|---|---|---|
"""


def describe_card(about: Description) -> str:
    """Markdown."""
    input_, trained, encoder = about.input, about.trained, about.network.encoder
    size = input_.image_px or input_.size_px
    fitted = f"{size}x{size} px, {'colour' if input_.is_colour else 'grey'}"
    if input_.image_px is not None:
        fitted += f", in the middle of a black square of {input_.size_px} px"
    network = "the paper's (vgg)" if encoder.backbone == PAPERS else encoder.backbone
    network += " behind a spatial transformer" * about.network.has_transformer
    if encoder.contrast == "local":
        network += ", looks at local contrast"
    card = _CARD.format(
        name=trained.name,
        method=trained.method,
        input=fitted,
        code_size=encoder.code_size,
        data=trained.data,
        images=trained.images,
        seed=trained.seed,
        init=f", starting from model {trained.init}" if trained.init else "",
        network=network,
        id=about.id,
    )
    return card + _scores(trained) + _thresholds(about.calibration) + _versions(trained)


def _scores(trained: Trained) -> str:
    if not trained.scores:
        return ""
    precision = ""
    if trained.precision is not None:
        precision = f", with the network in {trained.precision}; thresholds are measured in float32"
    card = (
        "\n## How good it is\n\n"
        "On test images, which were neither trained on nor used to choose the weights"
        f"{precision}.\n"
    )
    columns = {"this model": trained.scores, "raw pixels": trained.baselines}
    if trained.start is not None:
        name = "frozen network" if trained.start == "frozen" else "the model it began with"
        columns[name] = trained.start_scores
    card += f"\n| measure | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}\n"
    for name in trained.scores:
        cells = (f"{scores[name]:.3f}" if name in scores else "" for scores in columns.values())
        card += f"| {trained.measures.get(name, name)} | {' | '.join(cells)} |\n"
    if trained.kept_codes is not None:
        card += f"\n{trained.kept_codes[0].upper()}{trained.kept_codes[1:]}.\n"
    return card


def _thresholds(calibration: Calibration | None) -> str:
    if calibration is None:
        return ""
    rows = (
        f"| {calibration.rate(p)} | {p.tar:.1%} | {p.threshold:.4g} |\n" for p in calibration.points
    )
    about = f"\n{calibration.about_pairs}\n" if calibration.about_pairs else ""
    return _THRESHOLDS.format(**vars(calibration)) + "".join(rows) + about


def _versions(trained: Trained) -> str:
    if not trained.versions:
        return ""
    versions = ", ".join(f"{name} {number}" for name, number in trained.versions.items())
    commit = f", commit {trained.commit}" if trained.commit else ""
    return f"\n## How it was made\n\nWith {versions}{commit}.\n"
