"""The mean at zero temperature under tokens: the best of them, or the average of those that tie."""

from __future__ import annotations

import numpy as np

# Scores within this of the largest, relative to |B^T x|, tie at zero temperature.
TIE = 1e-12
# Scores of one block of targets, which bounds the memory.
_BLOCK = 2_000_000


def hardmax_mean(z: np.ndarray, points: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """For each row of z the mean of the points y of largest <z, y>, weighted by their masses."""
    mean = np.empty_like(z)
    seen = points[masses > 0]
    weights = masses[masses > 0]
    rows = max(1, _BLOCK // len(seen))
    for begin in range(0, len(z), rows):
        part = z[begin : begin + rows]
        scores = part @ seen.T
        slack = TIE * np.linalg.norm(part, axis=1, keepdims=True)
        tied = np.where(scores >= scores.max(axis=1, keepdims=True) - slack, weights, 0.0)
        mean[begin : begin + rows] = tied @ seen / tied.sum(axis=1, keepdims=True)
    return mean
