"""Pricing: for every x_i the targets y_j of smallest c(x_i, y_j) - v_j, over all pairs.

The smallest value is the c-transform v^c(x_i) = min_j c(x_i, y_j) - v_j, the largest potential
that is feasible with v: v^c_i + v_j <= c_ij. No n x m array is formed, and a block of targets is
skipped when c(x_i, ball) - max v over the block shows that it cannot matter. That leaves so little
(20,000 x 20,000 in a tenth of a second) that one thread does it.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.support.kernels import kernel, part
from meanfield_pde.wasserstein.cloud import BLOCK, Cloud
from meanfield_pde.wasserstein.costs import COST_ERROR, Cost, fill_squares, squares_to_costs

_EPS = float(np.finfo(float).eps)


@part
def _least_by_chords(
    squares: np.ndarray, potential: np.ndarray, start: int, stop: int, p: int
) -> float:
    """A bound on the arcs less potential of a block, from the squares of their chords."""
    least = np.inf
    for t in range(stop - start):
        factor = 1.0 + squares[t] / 24.0
        square = squares[t] * factor * factor
        bound = math.sqrt(square) if p == 1 else square
        bound -= 1e-12 * (bound + abs(potential[start + t]))
        least = min(least, bound - potential[start + t])
    return least


@part
def _bounds_of_blocks(
    x: np.ndarray,
    centres: np.ndarray,
    radii: np.ndarray,
    peaks: np.ndarray,
    geodesic: bool,
    p: int,
    bounds: np.ndarray,
) -> int:
    """Lower bounds on c(x, ball) - max v of each block, and the block with the smallest."""
    first = 0
    for g in range(len(centres)):
        square = 0.0
        for k in range(x.size):
            difference = x[k] - centres[g, k]
            square += difference * difference
        distance = max(0.0, math.sqrt(square) * (1.0 - 1e-12) - radii[g])
        # A chord is never longer than its arc: a valid bound for both distances, and the
        # arc of a chord is at least chord (1 + chord^2/24).
        if geodesic:
            distance *= 1.0 + distance * distance / 24.0
        bound = distance if p == 1 else distance * distance
        bounds[g] = bound - peaks[g] - 1e-12 * (bound + abs(peaks[g]))
        if bounds[g] < bounds[first]:
            first = g
    return first


@kernel
def _best(
    sources: np.ndarray,
    columns: np.ndarray,
    centres: np.ndarray,
    radii: np.ndarray,
    potential: np.ndarray,
    geodesic: bool,
    p: int,
    best: np.ndarray,
    values: np.ndarray,
) -> None:
    n, m, blocks = sources.shape[0], columns.shape[1], centres.shape[0]
    count = best.shape[1]
    peaks = np.empty(blocks)
    for g in range(blocks):
        peaks[g] = potential[g * BLOCK]
        for t in range(g * BLOCK + 1, min(m, (g + 1) * BLOCK)):
            peaks[g] = max(peaks[g], potential[t])
    buffer = np.empty(BLOCK)
    bounds = np.empty(blocks)
    for i in range(n):
        x = sources[i]
        first = _bounds_of_blocks(x, centres, radii, peaks, geodesic, p, bounds)
        worst = np.inf
        for position in range(-1, blocks):
            # The most promising block first: it makes the others easy to reject.
            g = first if position < 0 else position
            if position == first or bounds[g] >= worst:
                continue
            start, stop = g * BLOCK, min(m, (g + 1) * BLOCK)
            fill_squares(x, columns, start, stop, buffer)
            # Most blocks end here, and are spared the inverse sines.
            if geodesic and _least_by_chords(buffer, potential, start, stop, p) >= worst:
                continue
            squares_to_costs(x, columns, start, stop, buffer, geodesic, p)
            for t in range(stop - start):
                buffer[t] = buffer[t] * (1.0 - COST_ERROR) - potential[start + t]
            for t in range(stop - start):
                if buffer[t] < worst:
                    slot = count - 1
                    while slot > 0 and values[i, slot - 1] > buffer[t]:
                        values[i, slot] = values[i, slot - 1]
                        best[i, slot] = best[i, slot - 1]
                        slot -= 1
                    values[i, slot] = buffer[t]
                    best[i, slot] = start + t
                    worst = values[i, count - 1]


def best_arcs(
    cost: Cost, sources: Cloud, targets: Cloud, potential: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The `count` smallest values of c(x_i, y_j) - potential_j for each i, and their targets.

    Both n x count, the smallest first. Costs are rounded down (by their relative error), so that
    `values[:, 0]`, once lowered by its own rounding, is feasible in exact arithmetic.
    """
    shape = len(sources), min(count, len(targets))
    best, values = np.full(shape, -1), np.full(shape, np.inf)
    _best(
        sources.points,
        targets.columns,
        targets.centres,
        targets.radii,
        np.ascontiguousarray(potential),  # for which it is compiled once
        cost.geodesic,
        cost.p,
        best,
        values,
    )
    values[:, 0] -= _EPS * np.abs(values[:, 0])
    return best, values


def c_transform(cost: Cost, sources: Cloud, targets: Cloud, potential: np.ndarray) -> np.ndarray:
    """v^c(x_i) = min_j c(x_i, y_j) - v_j, rounded down: v^c_i + v_j <= c_ij holds exactly."""
    return best_arcs(cost, sources, targets, potential, 1)[1][:, 0]
