"""The transport cost |x - y|^p, or d(x, y)^p with d the geodesic distance on the sphere.

On the unit sphere d = 2 asin(|x - y|/2). Its derivative is infinite at antipodal points, where the
rounding of |x - y| would cost half of the digits: there d = pi - 2 asin(|x + y|/2), which is equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import is_number, shown
from meanfield_pde.support.kernels import kernel, part
from meanfield_pde.wasserstein.choices import COSTS

# Relative error of every cost below, with room to spare (measured: 4e-16).
COST_ERROR = 16 * np.finfo(float).eps


@dataclass(frozen=True)
class Cost:
    """The cost c(x, y) = distance(x, y)^p."""

    geodesic: bool
    p: int

    def of_arcs(
        self, sources: np.ndarray, targets: np.ndarray, rows: np.ndarray, columns: np.ndarray
    ) -> np.ndarray:
        """Costs of the arcs from sources[rows] to targets[columns]."""
        return _arc_costs(sources, targets, rows, columns, self.geodesic, self.p)

    def between_all(self, sources: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Costs from all sources, n x d, to all targets, d x m."""
        return _all_costs(sources, columns, self.geodesic, self.p)

    def upper_bound(self, sources: np.ndarray, targets: np.ndarray) -> float:
        """A number that no cost between the two sets of points exceeds (bounding box)."""
        low = np.minimum(sources.min(axis=0), targets.min(axis=0))
        high = np.maximum(sources.max(axis=0), targets.max(axis=0))
        diameter = float(np.sqrt(((high - low) ** 2).sum())) * (1 + 1e-12)
        if self.geodesic:
            diameter = min(math.pi, 0.5 * math.pi * diameter)
        return float(diameter**self.p)


def make_cost(name: str, p: int) -> Cost:
    """The cost that the user named."""
    if name not in COSTS:
        raise InputError(f"cost must be 'geodesic' or 'chordal', got {shown(name)}")
    if not is_number(p) or p not in (1, 2):
        raise InputError(f"p must be 1 or 2, got {shown(p)}")
    return Cost(name == "geodesic", int(p))


@part(inline="always")
def _angle(squared_chord: float) -> float:
    """2 asin(|x - y|/2) for |x - y|^2 <= 2.

    With s = sin^2(theta/2) = |x - y|^2/4 half an angle more, sin^2(theta/4) = s/(2(1 + sqrt(1-s))),
    stays below 0.15, where the rational function of fdlibm gives asin without a branch: the loops
    that call this vectorise.
    """
    half = 0.25 * squared_chord
    z = half / (2.0 * (1.0 + math.sqrt(max(0.0, 1.0 - half))))
    r = math.sqrt(z)
    top = z * (
        1.66666666666666657415e-01
        + z
        * (
            -3.25565818622400915405e-01
            + z
            * (
                2.01212532134862925881e-01
                + z
                * (
                    -4.00555345006794114027e-02
                    + z * (7.91534994289814532176e-04 + z * 3.47933107596021167570e-05)
                )
            )
        )
    )
    bottom = 1.0 + z * (
        -2.40339491173441421878e00
        + z
        * (
            2.02094576023350569471e00
            + z * (-6.88283971605453293030e-01 + z * 7.70381505559019352791e-02)
        )
    )
    return 4.0 * (r + r * (top / bottom))


@part
def fill_squares(
    x: np.ndarray, columns: np.ndarray, start: int, stop: int, out: np.ndarray
) -> None:
    """Write the squares of the chords from x to columns[:, start:stop] to out[:stop - start]."""
    size = stop - start
    for t in range(size):
        difference = x[0] - columns[0, start + t]
        out[t] = difference * difference
    for k in range(1, x.size):
        for t in range(size):
            difference = x[k] - columns[k, start + t]
            out[t] += difference * difference


@part
def squares_to_costs(
    x: np.ndarray,
    columns: np.ndarray,
    start: int,
    stop: int,
    out: np.ndarray,
    geodesic: bool,
    p: int,
) -> None:
    """Make them the costs."""
    size = stop - start
    farthest = 0.0
    if not geodesic:
        if p == 1:
            for t in range(size):
                out[t] = math.sqrt(out[t])
        return
    for t in range(size):
        farthest = max(farthest, out[t])
    if farthest <= 2.0:
        for t in range(size):
            out[t] = _angle(out[t])
    else:
        for t in range(size):
            if out[t] <= 2.0:
                out[t] = _angle(out[t])
            else:
                opposite = 0.0
                for k in range(x.size):
                    total = x[k] + columns[k, start + t]
                    opposite += total * total
                out[t] = math.pi - _angle(opposite)
    if p == 2:
        for t in range(size):
            out[t] *= out[t]


@kernel
def _all_costs(sources: np.ndarray, columns: np.ndarray, geodesic: bool, p: int) -> np.ndarray:
    costs = np.empty((sources.shape[0], columns.shape[1]))
    for i in range(sources.shape[0]):
        fill_squares(sources[i], columns, 0, columns.shape[1], costs[i])
        squares_to_costs(sources[i], columns, 0, columns.shape[1], costs[i], geodesic, p)
    return costs


@kernel
def _arc_costs(
    sources: np.ndarray,
    targets: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    geodesic: bool,
    p: int,
) -> np.ndarray:
    costs = np.empty(rows.size)
    for e in range(rows.size):
        i, j = rows[e], columns[e]
        square = opposite = 0.0
        for k in range(sources.shape[1]):
            difference = sources[i, k] - targets[j, k]
            total = sources[i, k] + targets[j, k]
            square += difference * difference
            opposite += total * total
        if not geodesic:
            costs[e] = math.sqrt(square) if p == 1 else square
            continue
        angle = _angle(square if square <= 2.0 else opposite)
        distance = angle if square <= 2.0 else math.pi - angle
        costs[e] = distance if p == 1 else distance * distance
    return costs
