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
of_digit = [600 + np.flatnonzero(labels[600:700] == digit) for digit in range(10)]
# which images are labelled is drawn 20 times
draws = np.stack([np.random.default_rng(0).choice(rows, 20) for rows in of_digit], 1)
for name, see in (("raw pixels", lambda x: x.reshape(len(x), -1)), ("codes", encoder.transform)):
    seen, known = see(queries), see(images)
    one_shots = [KNeighborsClassifier(1).fit(known[rows], labels[rows]) for rows in draws]
    print(f"{name}: {np.mean([one.score(seen, labels[700:1700]) for one in one_shots]):.3f}")
