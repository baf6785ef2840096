"""Codes with scikit-learn: learn from orbits, then recognise digits from one labelled image of each."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from orbitset import OrbitEncoder

digits = load_digits()
images, labels = digits.images / 16, digits.target
shifts = np.random.default_rng(0).integers(-2, 3, (len(images), 6))

# an orbit: one digit, moved up and down in six ways
orbits = np.repeat(np.arange(600), 6)
moved = np.stack([np.roll(images[at], s, 0) for at in range(600) for s in shifts[at]])
encoder = OrbitEncoder(code_size=32, channels=(16, 32), epochs=4, random_state=0).fit(moved, orbits)

queries = np.stack([np.roll(images[at], shifts[at, 0], 0) for at in range(700, 1700)])
first = [int(np.flatnonzero(labels[600:700] == digit)[0]) + 600 for digit in range(10)]
for name, see in (("raw pixels", lambda x: x.reshape(len(x), -1)), ("codes", encoder.transform)):
    one_shot = KNeighborsClassifier(1).fit(see(images[first]), labels[first])
    print(f"{name}: {one_shot.score(see(queries), labels[700:1700]):.3f}")
