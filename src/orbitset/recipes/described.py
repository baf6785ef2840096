"""What was chosen for a training on observed orbits, in words."""

from collections.abc import Sequence

from orbitset.encoders.config import PAPERS
from orbitset.protocols.exclusions import Exclusion, left_out_in_words
from orbitset.recipes.experiment import Experiment
from orbitset.recipes.length import described_length
from orbitset.recipes.outside_loss import method_named

_CHOSEN = {
    "medoid": "its medoid, the image nearest to its others",
    "first": "its first image",
    "middle": "its middle image",
}
_LONGEST = 50
"""Characters of a list of values that is printed whole"""


def described_orbits(config: Experiment, *, is_folder: bool = False) -> str:
    """What was chosen, in words; `is_folder` says that orbits are the sub-folders of a folder."""
    orbits, evaluation = config.observed, config.evaluation
    target = orbits.canonical
    if orbits.target is None:
        target = _CHOSEN[orbits.chosen]
    by = evaluation.split_by
    validation = f"{_few(evaluation.validation)} to validate, " if evaluation.validation else ""
    size = "the images' own size" if orbits.size_px is None else f"{orbits.size_px} px"
    alike = f", by {orbits.alike}, {orbits.alike_values} at a time" if orbits.alike else ""
    parts = [
        f"an orbit shares {', '.join(orbits.orbit)}; its target is {target}",
        f"{by} {_few(evaluation.train)} to train, {validation}{_few(evaluation.test)} to test",
    ]
    if orbits.orbit == (by,):
        each = (
            "Each sub-folder is an orbit; its"
            if is_folder
            else f"Images of one {by} are an orbit; its"
        )
        each = "An orbit's" if by == "orbit" and not is_folder else each
        validated = f", validated on {_brief(evaluation.validation)}" if validation else ""
        trained = f"Trained on {_brief(evaluation.train, 'orbits ')}{validated}"
        parts = [
            f"{each} target is {target}.",
            f"{trained}, tested on {_brief(evaluation.test)}.",
        ]
    lines = [
        *parts,
        *filter(None, [described_exclusions(config)]),
        *([f"classes of {orbits.classes} are learned beside them"] if orbits.classes else []),
        *([f"codes ignore {', '.join(orbits.ignore)}"] if orbits.ignore else []),
        f"{size}, {'colour' if orbits.is_colour else 'grey'}; batches of {orbits.orbits_per_batch} orbits x "
        f"{orbits.members_per_batch} members{alike}; {described_length(config)}",
        *([f"augmentation: {orbits.augmentation}"] if orbits.augmentation else []),
    ]
    return "\n".join(lines)


def described_exclusions(config: Experiment) -> str:
    """What retrieval leaves out, in words; nothing where it leaves out nothing."""
    evaluation = config.evaluation
    if not evaluation.exclude:
        apart = evaluation.apart
        return f"retrieval leaves out frames nearer than {apart}" if apart else ""
    words = (
        f"retrieval leaves out images of the same {config.observed.label} "
        f"{left_out_in_words(evaluation.exclude)}"
    )
    exclusions = [Exclusion.parse(text) for text in evaluation.exclude]
    if any(exclusion.has_neighbours for exclusion in exclusions):
        words += ": neighbours are nearly the same picture (--exclude none keeps them)"
    if any(exclusion.steps and not exclusion.around for exclusion in exclusions):
        circles = ",".join(str(exclusion.as_circle()) for exclusion in exclusions)
        words += f"; if the last is a neighbour of the first: --exclude {circles}"
    return words


def described_network(config: Experiment, why: str | None) -> str:
    """The method and the network, and why this network was chosen."""
    method, encoder = method_named(config.method), config.encoder
    network = "the paper's network" if encoder.backbone == PAPERS else encoder.backbone
    weights = "pretrained" if encoder.is_pretrained else "from random weights"
    if config.init is not None:
        weights = f"with the weights of {config.init}"
    reason = "" if why is None else f": {why}"
    return f"method {config.method} ({method.title}); {network}, {weights}{reason}"


def _brief(values: Sequence[str], noun: str = "") -> str:
    """
    >>> _brief(["a", "b"]), _brief(["a", "b", "c", "d"], "orbits ")
    ('2 (a, b)', '4 orbits (a, …)')
    """
    names = ", ".join(values) if len(values) < 4 else f"{values[0]}, …"
    return f"{len(values)} {noun}({names})"


def _few(values: Sequence[str]) -> str:
    """
    >>> _few(["1", "2"]), _few(["Alpro-Blueberry-Soyghurt", "Alpro-Fresh-Soy-Milk", "Anjou"])
    ('1, 2', 'Alpro-Blueberry-Soyghurt, … (3)')
    """
    text = ", ".join(values)
    return text if len(text) <= _LONGEST else f"{values[0]}, … ({len(values)})"
