"""What training minimises: losses and mining as pure functions on tensors, and thin objects over them."""

from orbitset.losses.contrast import HardInfoNCE, InfoNCE, OrbitPrototypes, SigmoidPairs
from orbitset.losses.distances import distance_matrix, paired_distances
from orbitset.losses.exemplar import exemplar_loss
from orbitset.losses.joint import JointLoss, orbit_joint_loss, reconstruction_loss
from orbitset.losses.methods import (
    Autoencoder,
    Classified,
    Exemplar,
    OrbitJoint,
    SupervisedTriplet,
)
from orbitset.losses.mining import Mined, Triplets, mine
from orbitset.losses.objective import Objective, as_objective
from orbitset.losses.similarity import (
    info_nce_loss,
    multi_similarity_loss,
    prototype_loss,
    sigmoid_loss,
)
from orbitset.losses.terms import Term
from orbitset.losses.triplet import Mining, TripletLoss, TripletMiner, triplet_loss

__all__ = [
    "Autoencoder",
    "Classified",
    "Exemplar",
    "HardInfoNCE",
    "InfoNCE",
    "JointLoss",
    "Mined",
    "Mining",
    "Objective",
    "OrbitJoint",
    "OrbitPrototypes",
    "SigmoidPairs",
    "SupervisedTriplet",
    "Term",
    "TripletLoss",
    "TripletMiner",
    "Triplets",
    "as_objective",
    "distance_matrix",
    "exemplar_loss",
    "info_nce_loss",
    "mine",
    "multi_similarity_loss",
    "orbit_joint_loss",
    "paired_distances",
    "prototype_loss",
    "reconstruction_loss",
    "sigmoid_loss",
    "triplet_loss",
]
