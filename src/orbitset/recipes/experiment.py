"""One training, described whole: what config.json holds."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from orbitset.config import UnknownSetting, bounded, check_fields, check_setting, from_dict, to_dict
from orbitset.datasets.segments import VideoConfig
from orbitset.encoders.config import PAPERS, EncoderConfig
from orbitset.errors import ConfigError, check_choice
from orbitset.orbits.computed import OrbitConfig
from orbitset.orbits.observed import ObservedConfig
from orbitset.outside import check_trust, import_named, is_name
from orbitset.protocols import PROTOCOLS, Protocol, ProtocolSettings
from orbitset.recipes.losses import LossContext, LossSettings, margin_of
from orbitset.recipes.methods import Method, base_name, built_in, has_transformer, parse_method
from orbitset.recipes.outside_loss import method_named, plain_settings
from orbitset.recipes.unused import belonging
from orbitset.training.fit import OF_BACKBONES, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One training: a method, the orbits it learns from, and the protocol that evaluates it."""

    name: str
    data: str
    """The name of a data set, or the path of images"""
    method: str = "OJ"
    """A name of the table of methods, with -STN for a spatial transformer, or package.module:loss"""
    protocol: str = "one-shot"
    """one-shot, finding, pairs or package.module:Class"""
    measures: tuple[str, ...] = ()
    """Further measures on the held-out codes, as package.module:function"""
    seed: int = bounded(0, at_least=0)
    orbits: OrbitConfig | ObservedConfig = field(default_factory=OrbitConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    loss: Any = None
    """The settings of the method's loss"""
    classify_weight: float = bounded(0.0, at_least=0)
    """The weight of classes that are learned beside the orbits"""
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluation: Any = None
    """The settings of the protocol"""
    video: VideoConfig | None = None
    """How videos become orbits, if the data are videos"""
    is_private: bool = False
    """Neither images nor weights are kept, as the licence of some images demands"""
    init: str | None = None
    """The folder of a model to fine-tune"""
    cut_down: str | None = None
    """What was cut down in comparison with the complete experiment, in words; shown with all results"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", parse_method(self.method))
        method = built_in(self.method)
        if self.loss is None and method is not None:
            object.__setattr__(self, "loss", method.settings())
        if not is_name(self.protocol):
            check_choice("protocol", self.protocol, PROTOCOLS)
            if self.evaluation is None:
                object.__setattr__(self, "evaluation", PROTOCOLS[self.protocol].Settings())
        check_fields(self)
        for name in self.measures:
            if not is_name(name):
                raise ConfigError(
                    f"the measure {name!r} is not understood; write package.module:function"
                )
        if method is not None:
            self._check_method(method)
        self._check_rates()
        self._check_observed()
        if not (self.evaluation and self.evaluation.can_keep_best):
            self._check_unvalidated()

    @property
    def computed(self) -> OrbitConfig:
        """How its orbits are computed."""
        assert isinstance(self.orbits, OrbitConfig)
        return self.orbits

    @property
    def observed(self) -> ObservedConfig:
        """How its orbits are observed."""
        assert isinstance(self.orbits, ObservedConfig)
        return self.orbits

    @property
    def is_observed(self) -> bool:
        """Whether its orbits are observed."""
        return self.orbits.kind == "observed"

    def belonging(self) -> AbstractContextManager[None]:
        """A context in which errors about unknown settings say which method or protocol has them."""
        return belonging(method=self.method, protocol=self.protocol, is_observed=self.is_observed)

    @property
    def has_transformer(self) -> bool:
        return has_transformer(self.method)

    @property
    def keeps_weights(self) -> bool:
        return not self.is_private

    @property
    def keeps_best(self) -> bool:
        """Whether the best weights on validation images are kept, instead of the last ones."""
        return self.train.keep == "best"

    @property
    def start(self) -> str:
        """What the network before training is called in tables."""
        if self.init is not None:
            return "begun with"
        return "frozen" if self.begins_frozen else "untrained"

    @property
    def begins_frozen(self) -> bool:
        """Whether codes begin as the features of a pretrained network."""
        return self.init is None and self.encoder.is_pretrained and self.encoder.head == "features"

    @property
    def begins_useful(self) -> bool:
        """Whether the network before training counts as a result that may be kept."""
        return self.init is not None or self.begins_frozen

    @property
    def usual_distance(self) -> float | None:
        """The mean squared distance of two random codes: 2k where their k entries have unit variance, 2 where
        they have unit length. Codes without a norm have none."""
        match self.encoder.code_norm:
            case "batch" | "sphere":
                size = self.encoder.code_size
                return None if size is None else 2.0 * size
            case "unit":
                return 2.0
            case "none":
                return None

    @property
    def margin(self) -> float | None:
        """The margin of the method's loss, if the method is one of ours and has one."""
        method = built_in(self.method)
        if method is None or not method.has_margin:
            return None
        return margin_of(self.loss, self.usual_distance)

    def loss_context(self, *, num_orbits: int, num_classes: int) -> LossContext:
        assert self.encoder.code_size is not None, "it is known once the network is built"
        return LossContext(
            code_size=self.encoder.code_size,
            num_orbits=num_orbits,
            num_classes=num_classes,
            usual_distance=self.usual_distance,
        )

    @property
    def rate_shares(self) -> dict[str, float]:
        """The shares of the learning rate that parts of the model and of the loss have."""
        inner = "encoder." if self.has_transformer else ""
        shares = {
            "transformer.": self.train.transformer_rate,
            f"{inner}backbone.": self.train.backbone_rate,
            f"{inner}code.": self.train.head_rate,
        }
        shares |= dict.fromkeys(self._classifiers, self.train.classifier_rate)
        return {part: share for part, share in shares.items() if share != 1}

    @property
    def _classifiers(self) -> list[str]:
        """Where in the loss its classifiers are."""
        method = built_in(self.method)
        learns = method is not None and method.learns_classifier
        has_classes = self.classify_weight > 0
        of_orbits = ["loss.objective.classifier." if has_classes else "loss.classifier."]
        return ["loss.classifier."] * has_classes + of_orbits * learns

    def _check_method(self, method: Method) -> None:
        if type(self.loss) is not method.settings:
            raise ConfigError(
                f"loss has the settings of another method than {self.method}: {type(self.loss).__name__}"
            )
        fraction = self.loss.margin_fraction
        if (
            fraction is not None
            and self.usual_distance is None
            and self.encoder.code_size is not None
        ):
            raise ConfigError(
                f"loss.margin_fraction is {fraction}, and codes without a norm have no usual distance that "
                "it could be a fraction of; set loss.margin"
            )
        if not self.loss.shapes_codes and not self.encoder.has_free_decoder:
            raise ConfigError(
                "loss.shapes_codes is false, and the decoder has the encoder's weights, which change codes; "
                "set encoder.decoder=free or loss.shapes_codes=true"
            )
        if self.classify_weight and method.needs_labels:
            raise ConfigError(f"{self.method} learns from classes as it is; leave out the classes")
        if method.compares_members and self.orbits.members_per_batch < 2:
            raise ConfigError(
                f"orbits.members_per_batch is {self.orbits.members_per_batch}, but {self.method} compares "
                "members of one orbit; give at least 2"
            )
        if method.compares_orbits and self.orbits.orbits_per_batch < 2:
            raise ConfigError(
                f"orbits.orbits_per_batch is {self.orbits.orbits_per_batch}, but {self.method} compares "
                "orbits: a batch with one orbit has no negatives; give at least 2"
            )
        if not (self.is_observed and method.needs_labels):
            return
        observed = self.observed
        if observed.label not in (None, *observed.orbit):
            raise ConfigError(
                f"{self.method} learns from {observed.label}, which the members of an orbit need not "
                f"share; put it into orbits.orbit ({', '.join(observed.orbit)})"
            )

    def _check_rates(self) -> None:
        if self.train.transformer_rate != 1 and not self.has_transformer:
            raise ConfigError(
                f"train.transformer_rate is for a transformer; {self.method} has none"
            )
        for name in OF_BACKBONES:
            default = TrainConfig.__dataclass_fields__[name].default
            if getattr(self.train, name) != default and self.encoder.backbone == PAPERS:
                raise ConfigError(f"train.{name} is for another network than the paper's")
        if self.train.classifier_rate != 1 and not self._classifiers:
            raise ConfigError(
                f"train.classifier_rate is for EX, or for classes beside the orbits; {self.method} has none"
            )

    def _check_unvalidated(self) -> None:
        none = f"{self.protocol} has no validation images here"
        if self.keeps_best:
            raise ConfigError(
                f"train.keep is best, and {none} to choose weights by; set train.keep=last"
            )
        if self.train.patience is not None:
            raise ConfigError(
                f"train.patience is {self.train.patience}, and {none} to end a training by; set "
                "train.patience=null"
            )

    def _check_observed(self) -> None:
        if not self.is_observed:
            return
        observed = self.observed
        if observed.label is None:
            raise ConfigError("orbits.label is not set; name the factor that is to be recognised")
        if (observed.classes is None) != (self.classify_weight == 0):
            raise ConfigError(
                "orbits.classes names the factor that has classes, classify_weight says how much they "
                "count; set both or none"
            )
        if observed.orbit == (observed.classes,):
            raise ConfigError(
                f"{observed.classes} is what tells the orbits apart; classes are shared by several"
            )


def with_protocol(config: Experiment, name: str) -> Experiment:
    """The same with another protocol: settings of the evaluation that both have are kept."""
    settings = protocol_named(name).Settings
    own = {setting.name for setting in fields(settings)}
    values = {name: value for name, value in to_dict(config.evaluation).items() if name in own}
    evaluation: Any = from_dict(settings, values, "evaluation.")
    train = config.train
    if not evaluation.can_keep_best:
        train = replace(train, keep="last", patience=None)
    return replace(config, protocol=name, train=train, evaluation=evaluation)


def protocol_named(name: str) -> type[Protocol]:
    """The protocol of that name; one from outside is imported."""
    if not is_name(name):
        check_choice("protocol", name, PROTOCOLS)
        return PROTOCOLS[name]
    protocol = import_named(name, what="protocol")
    if not (isinstance(protocol, type) and issubclass(protocol, Protocol)):
        raise ConfigError(f"{name} is not a class of protocols (orbitset.protocols.Protocol)")
    missing = {"split_by", "train", "validation", "test", "exclude"} - {
        field.name for field in fields(protocol.Settings)
    }
    if protocol.orbits == "observed" and missing:
        raise ConfigError(
            f"the Settings of the protocol {name} lack {', '.join(sorted(missing))}, which say which "
            "images are trained and tested on",
            hint="derive them from orbitset.protocols.PairsSettings",
        )
    return protocol


def check_settings(
    settings: Mapping[str, str], *, methods: Sequence[str], protocol: str | None
) -> None:
    """Refuse settings that no training of these methods has, and values that they never take, before anything
    is known of the images. Code from outside the package that the names stand for is imported."""
    named = [*PROTOCOLS.values()] if protocol is None else [protocol_named(protocol)]
    kinds = [(method_named(method).settings, kind) for method in methods for kind in named]
    for name, text in settings.items():
        errors = []
        for loss, kind in kinds:
            orbits = ObservedConfig if kind.orbits == "observed" else OrbitConfig
            types = {"orbits": orbits, "loss": loss, "evaluation": kind.Settings}
            try:
                check_setting(Experiment, name, text, types=types)
            except ConfigError as error:
                errors.append(error)
        if len(errors) == len(kinds):
            with belonging(method=methods[0], protocol=protocol or "one-shot"):
                raise min(errors, key=lambda error: isinstance(error, UnknownSetting))


def read_experiment(values: Mapping[str, Any]) -> Experiment:
    """The configuration that config.json holds. Nothing that it names is imported: the settings of a loss or
    a protocol from outside the package are taken as they are."""
    orbits, loss, evaluation = (values.get(name) for name in ("orbits", "loss", "evaluation"))
    is_observed = isinstance(orbits, Mapping) and "orbit" in orbits
    name, protocol_name = str(values.get("method", "OJ")), str(values.get("protocol", "one-shot"))
    method, protocol = built_in(parse_method(name)), PROTOCOLS.get(protocol_name)
    types = {
        "orbits": ObservedConfig if is_observed else OrbitConfig,
        "loss": plain_settings(loss, LossSettings) if method is None else method.settings,
        "evaluation": plain_settings(evaluation, ProtocolSettings)
        if protocol is None
        else protocol.Settings,
    }
    with belonging(method=name, protocol=protocol_name, is_observed=is_observed):
        return from_dict(Experiment, values, types=types)


def check_experiment(config: Experiment, named_by: Path | str) -> None:
    """Refuse a configuration that names code which the user does not trust; `named_by` is what holds it."""
    names = dict.fromkeys(config.measures, "measure")
    if built_in(config.method) is None:
        names[base_name(config.method)] = "loss"
    if is_name(config.protocol):
        names[config.protocol] = "protocol"
    if config.encoder.is_imported:
        names[config.encoder.backbone] = "encoder"
    if is_name(config.data):
        names[config.data] = "source"
    check_trust(names, named_by)


def resolved(config: Experiment, named_by: Path | str) -> Experiment:
    """The experiment with the types of all its settings checked. Code from outside the package is imported,
    if the user trusts it; `named_by` is the file or folder that names it."""
    check_experiment(config, named_by)
    settings = method_named(config.method).settings
    evaluation = protocol_named(config.protocol).Settings
    return replace(
        config,
        loss=from_dict(settings, to_dict(config.loss), "loss."),
        evaluation=from_dict(evaluation, to_dict(config.evaluation), "evaluation."),
    )
