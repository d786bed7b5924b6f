"""The quantitative Laplace principle: how far the softmax mean is from its zero-temperature limit.

    m_beta(x) - B^T x / |B^T x|,      of order sqrt(log(beta + 1) / beta) for a fixed density

is the one estimate by which finite temperature enters the theorem. It is measured on its own, as
supremum and mean over x, for the density of a run at a given time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meanfield_pde.attention.head import Attention


@dataclass(frozen=True)
class LaplaceError:
    """|m_beta(x) - B^T x / |B^T x|| over the points x.

    Attributes:
        largest: over the points.
        mean: weighted by volume, so that it is an average over the sphere.
    """

    largest: float
    mean: float


def laplace_error(
    attention: Attention, points: np.ndarray, masses: np.ndarray, volumes: np.ndarray
) -> LaplaceError:
    """The error of the Laplace principle for masses at points, over the same points."""
    seen = points @ attention.key_query.T
    cold = seen / np.linalg.norm(seen, axis=1, keepdims=True)
    error = np.linalg.norm(attention.mean(points, points, masses) - cold, axis=1)
    return LaplaceError(float(error.max()), float(error @ volumes / volumes.sum()))
