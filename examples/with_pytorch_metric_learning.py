"""Our miner with pytorch-metric-learning's loss, and its miner with ours: triplets are the same thing."""

import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.distances import LpDistance

from orbitset.losses import Triplets, distance_matrix, mine, triplet_loss

torch.manual_seed(0)
codes = torch.randn(64, 16, requires_grad=True)
orbits = torch.arange(16).repeat_interleave(4)
squared = LpDistance(normalize_embeddings=False, power=2)

ours = mine(distance_matrix(codes.detach()), orbits, "semihard", margin=1.0).compact()
theirs = losses.TripletMarginLoss(margin=1.0, distance=squared)
print(f"our triplets, their loss: {theirs(codes, orbits, ours).item():.4f}")

miner = miners.TripletMarginMiner(margin=1.0, distance=squared, type_of_triplets="semihard")
found = Triplets(*miner(codes, orbits))
print(f"their triplets, our loss: {triplet_loss(codes, found, margin=1.0).item():.4f}")
# the losses differ in what they average over: theirs leaves out triplets whose loss is zero, ours does not
print(f"as many: {len(ours.anchor)} and {len(found.anchor)}")
