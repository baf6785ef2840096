"""How codes are judged: one contract, and the protocols of the paper."""

from orbitset.evaluation.score import Score
from orbitset.protocols.contract import About, Numbers, Protocol, ProtocolSettings, evaluate
from orbitset.protocols.encoding import encoding_with, raw_pixels
from orbitset.protocols.finding import Finding, FindingSettings
from orbitset.protocols.images import ComputedImages, ObservedSplit
from orbitset.protocols.one_shot import OneShot, OneShotSettings, OneShotTask
from orbitset.protocols.pairs import Pairs, PairsSettings

PROTOCOLS: dict[str, type[Protocol]] = {"one-shot": OneShot, "finding": Finding, "pairs": Pairs}

__all__ = [
    "About",
    "ComputedImages",
    "Finding",
    "FindingSettings",
    "Numbers",
    "ObservedSplit",
    "OneShot",
    "OneShotSettings",
    "OneShotTask",
    "PROTOCOLS",
    "Pairs",
    "PairsSettings",
    "Protocol",
    "ProtocolSettings",
    "Score",
    "encoding_with",
    "evaluate",
    "raw_pixels",
]
