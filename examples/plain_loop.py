"""The losses in a plain PyTorch loop, with an encoder of your own."""

import torch
from torch import nn

from orbitset.losses import distance_matrix, mine, triplet_loss

torch.manual_seed(0)
things = torch.rand(40, 1, 16, 16)
encoder = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.Adam(encoder.parameters(), 1e-3)

for step in range(200):
    orbits = torch.randperm(40)[:16].repeat_interleave(4)
    images = things[orbits] + 0.3 * torch.randn(64, 1, 16, 16)
    codes = encoder(images)
    with torch.no_grad():
        found = mine(distance_matrix(codes), orbits, margin=1.0, max_members=4)
    loss = triplet_loss(codes, found.triplets, margin=1.0, valid=found.valid)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0 or step == 199:
        print(f"step {step}: loss {loss.item():.3f}")
