"""The density of least energy where tokens repel each other: a limit that evolutions reach slowly.

With V = -c B, c > 0, B = Q^T K symmetric and positive definite, tokens go down in the potential

    phi(x) = ∫ exp(beta <x, B y>) dmu(y)

(divided by itself if the softmax has its denominator), and the energy 1/2 ∫ phi dmu falls. Its
kernel is positive definite, so that the energy is convex and has one minimum, to which densities
without zeros come. But where it has no zeros phi is constant, an integral equation of the first
kind: a mode of degree k decays at the rate k^2 I_k(beta) at most, 1e-5 for k = 8 at beta = 1.

So the minimum is that of 1/2 ∫ phi dmu + sigma ∫ rho log rho, by Newton's method in log rho as
sigma falls: modes are kept whose eigenvalue is above the last sigma. The rule for integrals is
one point a cell, which is as exact as can be on the circle; on meshes of the sphere its errors have
modes that the equation magnifies (4 % of a uniform density on 320 cells).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from meanfield_pde.attention.head import Attention
from meanfield_pde.errors import SolverError

# Matrices are dense, 72 MB each, and some 75 are factored: 1 s on one core with 1,280 cells, 15 s
# with 3,000.
MOST_CELLS = 3000
# Matrices that are equal but for the rounding of a case file's decimals, relative to the largest.
_EQUAL = 1e-9
# Relative to the mean of the kernel: rounding, 1e-16, is 1e-6 of the density at the last. By
# factors of 10, not sqrt(10), it is not found at beta = 200.
_SIGMAS = np.logspace(0, -10, 21)
# Relative change of the density in total variation, of a step of Newton's method that is the last:
# its square is left. Below is rounding over sigma.
_SMALL, _ROUNDING = 1e-6, 1e-15
_NEWTON_STEPS = 60  # a bound on the cost: of 6 at most, 15 for diag(1, 0.5) at beta = 200
_LARGEST = 1.0  # change of a log density in one step: beyond, it is not linear
# Of the largest mass: cells with less may lose it all in a step, and take no part in others.
_EMPTY = 1e-14


def repels(head: Attention) -> bool:
    """Whether V = -c B with c > 0 and B = Q^T K symmetric, positive definite, at beta > 0."""
    if not 0 < head.beta < math.inf:
        return False
    size = float(np.abs(head.B).max())
    if np.abs(head.B - head.B.T).max() > _EQUAL * size:
        return False
    if not np.linalg.eigvalsh(head.B)[0] > _EQUAL * size:
        return False
    c = -float((head.value * head.B).sum() / (head.B**2).sum())
    return c > 0 and bool(np.abs(head.value + c * head.B).max() <= c * _EQUAL * size)


def least_energy(head: Attention, points: np.ndarray, volumes: np.ndarray) -> np.ndarray:
    """Masses of the density of least energy, one in all; SolverError if they are not found.

    Args:
        head: that repels.
        points: of cells, N x d.
        volumes: their lengths or areas.
    """
    scores = head.beta * points @ head.B @ points.T
    kernel = np.exp(scores - scores.max())
    volumes = volumes / volumes.sum()
    kernel /= volumes @ kernel @ volumes
    log_density = np.zeros(len(volumes))
    for sigma in _SIGMAS:
        log_density = _minimum(kernel, volumes, log_density, sigma)
    return np.asarray(volumes * np.exp(log_density))


def _minimum(
    kernel: np.ndarray, volumes: np.ndarray, log_density: np.ndarray, sigma: float
) -> np.ndarray:
    """The log density at which sigma log rho + phi is constant, with mass one.

    With M = diag(masses), a step is that of (sigma + M^(1/2) K M^(1/2)) M^(1/2) change.
    """
    for _ in range(_NEWTON_STEPS):
        masses = volumes * np.exp(log_density)
        root = np.sqrt(masses)
        potential = sigma * log_density + kernel @ masses
        potential -= masses @ potential / masses.sum()
        matrix = root[:, None] * kernel * root
        matrix[np.diag_indices_from(matrix)] += sigma
        factor = cho_factor(matrix, overwrite_a=True)
        lifted, lowered = cho_solve(factor, np.column_stack([root, root * potential])).T
        constant = (1 - masses.sum() + root @ lowered) / (root @ lifted)
        weighted = constant * lifted - lowered
        change = (constant - potential - kernel @ (root * weighted)) / sigma
        largest = float(np.abs(change[masses > _EMPTY * masses.max()]).max())
        log_density = log_density + min(1.0, _LARGEST / largest) * change
        log_density -= math.log(volumes @ np.exp(log_density))
        if masses @ np.abs(change) < max(_SMALL, _ROUNDING / sigma):
            return log_density
    raise SolverError(f"the density of least energy was not found (sigma = {sigma:.1e})")
