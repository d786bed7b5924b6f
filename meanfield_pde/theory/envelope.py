"""The upper envelope of the theorem, fitted to hold at every measured point.

    W(t, beta) <= C1 s(beta) exp(C t) + C2 exp(-c t),      s(beta) = sqrt(log(beta + 1) / beta)

For given C the constants C1, C2 >= 0 that lie above all points and closest to them in sum are found
by a linear program; C is chosen by a search in one dimension. c is the predicted rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linprog, minimize_scalar

from meanfield_pde.errors import InputError, SolverError

# The linear program meets its constraints to this; the constants are then raised to meet them.
_SLACK = 1e-9


def temperature_scale(beta: np.ndarray | float) -> np.ndarray:
    """The factor sqrt(log(beta + 1) / beta) of the theorem."""
    beta = np.asarray(beta, dtype=float)
    return np.sqrt(np.log1p(beta) / beta)


@dataclass(frozen=True)
class Envelope:
    """C1 s(beta) exp(C t) + C2 exp(-c t).

    Attributes:
        growth: C.
        decay: c.
        first, second: C1 and C2.
        excess: mean over the points of (envelope - W) / envelope.
    """

    growth: float
    decay: float
    first: float
    second: float
    excess: float

    def __call__(self, times: np.ndarray, beta: np.ndarray | float) -> np.ndarray:
        """The bound at these times and temperatures."""
        rising = self.first * temperature_scale(beta) * np.exp(self.growth * times)
        return rising + self.second * np.exp(-self.decay * times)

    def describe(self) -> dict[str, Any]:
        """The constants by the names that they have in the theorem."""
        return {
            "C": self.growth,
            "c": self.decay,
            "C1": self.first,
            "C2": self.second,
            "mean_relative_excess": self.excess,
        }


def fit_envelope(
    times: np.ndarray, betas: np.ndarray, distances: np.ndarray, decay: float
) -> Envelope:
    """The envelope over points (t, beta, W); at least one of them with W > 0.

    Args:
        times: t of each point.
        betas: beta of each point.
        distances: W of each point.
        decay: c.
    """
    times, betas, distances = (np.asarray(a, dtype=float) for a in (times, betas, distances))
    if not len(times) or not (distances > 0).any():
        raise InputError("an envelope needs distances above zero")
    # Beyond exp(C t) = 1e3 at the last time the bound would say nothing.
    largest = np.log(1e3) / max(float(times.max()), 1e-300)

    def at(growth: float) -> Envelope:
        return _closest(times, betas, distances, decay, growth)

    grid = np.linspace(0, largest, 25)
    excess = [at(growth).excess for growth in grid]
    i = int(np.argmin(excess))
    around = (grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)])
    found = minimize_scalar(lambda growth: at(growth).excess, bounds=around, method="bounded")
    candidates = (at(float(found.x)), at(float(grid[i])))
    return min(candidates, key=lambda envelope: envelope.excess)


def _closest(
    times: np.ndarray, betas: np.ndarray, distances: np.ndarray, decay: float, growth: float
) -> Envelope:
    columns = np.column_stack(
        [temperature_scale(betas) * np.exp(growth * times), np.exp(-decay * times)]
    )
    largest = float(distances.max())  # the tolerances of the linear program are absolute
    # Sums relative to the points, so that small distances count as much as large ones.
    weights = (columns / np.maximum(distances / largest, 1e-3)[:, None]).sum(axis=0)
    found = linprog(
        weights, A_ub=-columns, b_ub=-distances / largest, bounds=(0, None), method="highs"
    )
    if not found.success:
        raise SolverError(f"the linear program of the envelope failed: {found.message}")
    constants = largest * found.x
    bound = columns @ constants
    constants = constants * max(1.0, float((distances / bound).max())) * (1 + _SLACK)
    bound = columns @ constants
    excess = float(((bound - distances) / bound).mean())
    return Envelope(growth, decay, float(constants[0]), float(constants[1]), excess)
