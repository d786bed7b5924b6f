"""From an interval for W_p between atoms to one for the densities that the atoms stand for.

Atom i stands for mass spread over a cell, with the root mean square distance s_i from its point.
With e^2 = sum a_i s_i^2 of each measure the triangle inequality gives the lower bound low - e - e',
and for p = 1 the upper bound high + e + e'; for p = 2 a plan that spreads what goes from cell to
cell evenly has the cost high^2 + e^2 + e'^2.

Two measures on the same cells, with shares a and b of their masses, differ by less. For p = 1 any
potential f with Lipschitz constant 1 has means over the cells within s_i of f(x_i), so that both
bounds move by no more than sum |a_i - b_i| s_i. For p = 2 what stays in its cell costs nothing, and
counts in neither e nor e'.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.wasserstein.measure import Measure


def density_interval(
    p: int, low: float, high: float, mu: Measure, nu: Measure, stays: np.ndarray | None
) -> tuple[float, float]:
    """Bounds of W_p between the densities.

    Args:
        p: 1 or 2.
        low: lower bound of W_p between the atoms.
        high: upper bound.
        mu: one measure.
        nu: the other.
        stays: share of the mass that a plan of cost high^p leaves in each cell, if both measures
            are on the same cells; otherwise None.
    """
    bar = mu.width + nu.width
    squares = mu.width**2 + nu.width**2
    if stays is not None and mu.spread is not None:
        a, b = mu.masses / mu.masses.sum(), nu.masses / nu.masses.sum()
        if p == 1:
            bar = float(np.abs(a - b) @ np.sqrt(mu.spread))
        moved = np.maximum(a - stays, 0.0) + np.maximum(b - stays, 0.0)
        squares = float(moved @ mu.spread)
    top = high + bar if p == 1 else math.sqrt(high**2 + squares)
    return max(0.0, low - bar), top
