"""Quadratic reconstruction of log rho, of third order: densities at points of cells.

In cell c, with xi the tangent vector from its centre in units of h = |c|^(1/(d-1)), let

    p(xi) = <g, xi> + <xi, H xi> / 2

be the weighted least-squares fit to log rho_j - log rho_c over the neighbours j and theirs, where
rho_j are means over cells. Means of an exponential are those of its exponent and half its variance,
up to third moments, which are of third order. So for S_j the second moments of cell j and xi_j its
place, p solves

    log rho_j - log rho_c = <g, xi_j> + <xi_j, H xi_j> / 2 + tr(H (S_j - S_c)) / 2
                            + (<g_j, S_j g_j> - <g, S_c g>) / 2,        g_j = g + H xi_j.

The last term is quadratic in the coefficients a = (g, H); it is taken from the fit without it,

    a = a_0 - B (products of a_0),      a_0 = A (log rho_j - log rho_c),

with matrices A and B of the mesh. The density at a point of the cell or its facets is then

    rho = rho_c exp(p - k),     k = (tr(H S_c) + <g, S_c g>) / 2,

and its mean over the cell rho_c, to the same order. Where p is steep, the linear fit <g, xi> over
the same cells takes its place, limited as in `reconstruction`: exponents are t (p - k) + (1 - t)
<g, xi>, and at most `STEEPEST`. Slopes from the three neighbours alone are not stable on bisected
triangles: errors of log masses grow there until they are limited.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.gradients import STEEPEST
from meanfield_pde.mesh.reconstruction import exponentials, facet_numbers, limit
from meanfield_pde.support.kernels import kernel, part

# What `fits` returns.
Matrices = tuple[np.ndarray, ...]
# The largest |p - k| at points of a cell up to which p is taken alone, and from which slopes are.
# Where the density is not resolved slopes lose less: with 0.7 and 1.4, W_1 to the limit at zero
# temperature (sphere, 1,280 cells, graded) is up to 5 % larger than with slopes alone, with these
# 1 %. Fine cells are below the bounds: mean errors of log masses at t = 9 are 5.9e-3, 1.1e-3, 8e-5
# on 1,280, 5,120 and 20,480 cells, 3.1e-3, 5.9e-4, 7.4e-5 with 0.7 and 1.4, and 1.4e-2, 4.3e-3 with
# slopes on the first two (`tests.benchmarks.tails`).
STEEP_FLUXES = 0.15, 0.3
# The same where masses are shared out, in sources and remaps: nothing is lost there.
STEEP_SHARES = 0.7, 1.4
# Of a diagonal entry of the normal matrix, what is left of it: cells that lie on a conic section,
# or too few of them. Far above the rounding of its sums, 1e-15 (chosen, not tuned).
_DEPENDENT = 1e-6


class Reconstruction:
    """Densities at points of cells of a mesh that is known as a whole."""

    def __init__(self, rows: np.ndarray, matrices: Matrices) -> None:
        """Take the numbers of these cells, and what `fits` returned for them."""
        stencil, *given = matrices
        # Rows have numbers of their own, before those of all cells.
        self._rows, self._arrays = rows, (len(rows) + stencil, *given)
        self._facets = facet_numbers(math.isqrt(stencil.shape[1]))
        self._points = given[-1].shape[1] - 2

    def factors(
        self, log_density: np.ndarray, steep: tuple[float, float] = STEEP_SHARES
    ) -> np.ndarray:
        """Densities at the points over the mean of their cell, for those of all cells.

        Args:
            log_density: of all cells.
            steep: |p - k| up to which p is taken alone, and from which slopes are.
        """
        factors = np.empty((len(self._rows), self._points))
        given = np.concatenate([log_density[self._rows], log_density])
        quadratic_factors(steep, self._facets, given, *self._arrays, factors)
        return factors


def fits(
    neighbours: np.ndarray, corners: np.ndarray, rows: np.ndarray, points: np.ndarray
) -> Matrices:
    """Return what `quadratic_factors` takes, for some cells.

    Args:
        neighbours: of these cells, and of theirs.
        corners: of all cells, cells x d x d.
        rows: numbers of these cells.
        points: where densities are wanted in each of these, rows x any x d.

    Returns:
        The cells j of each fit, rows x K; A, rows x K x coefficients, followed by those of the
        linear fit; B, rows x products x coefficients; xi of the points, followed by S_c, rows x
        (points + 2) x 2. A is not a number where there is no quadratic fit.
    """
    d = corners.shape[1]
    stencil = stencils(neighbours, rows)
    ways = corners - corners.mean(axis=1, keepdims=True)
    moments = np.einsum("cki,ckj->cij", ways, ways) / (d * (d + 1))  # of flat cells: to h^4
    centre = geometry.normalised(geometry.cell_mean(corners))
    width = geometry.cell_volume(corners[rows]) ** (1 / (d - 1))
    # `rows` may be read-only; as a copy they are what this is compiled for, once.
    return stencil, *_fits(rows.copy(), stencil, centre, moments, width, points)


def stencils(neighbours: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the neighbours of some cells, and theirs but for the cell itself: rows x d^2."""
    near, d = neighbours[rows], neighbours.shape[1]
    others = neighbours[near].reshape(len(rows), d * d)
    beyond = others[others != rows[:, None]].reshape(len(rows), d * (d - 1))
    return np.concatenate([near, beyond], axis=1, dtype=np.int32)


# What follows is compiled, and carries no types: numba compiles it for the arguments it meets.
@part
def _place(frame, x, y, h):
    """Return the tangent vector at x that leads to y along a geodesic, in a frame, over h."""
    d = x.size
    chord, along = 0.0, 0.0
    for i in range(d):
        chord += (x[i] - y[i]) ** 2
        along += x[i] * y[i]
    first, second = 0.0, 0.0
    for i in range(d):
        first += frame[0, i] * y[i]
        if d == 3:
            second += frame[1, i] * y[i]
    sine = np.sqrt(first * first + second * second)
    scale = 2 * np.arcsin(min(1.0, 0.5 * np.sqrt(chord))) / (sine * h) if sine > 0 else 0.0
    return scale * first, scale * second


@part
def _moment(frame, moments, i, j, h):
    total = 0.0
    for k in range(frame.shape[1]):
        for m in range(frame.shape[1]):
            total += frame[i, k] * moments[k, m] * frame[j, m]
    return total / (h * h)


@part
def _linear(squares, rows, fit):
    """Write the matrix of the linear fit: on the sphere with weights w_j = |xi_j|^-1.

    With |xi_j|^-2, as in the quadratic fit, hardly more than the neighbours would count. On the
    circle they alone do: slopes by both are stable there, and clusters stay narrower.
    """
    aa, ab, bb = 0.0, 0.0, 0.0
    if fit.shape[1] == 1:
        for k in range(2):
            aa += rows[k, 0] * rows[k, 0]
        for k in range(2):
            fit[k, 0] = rows[k, 0] / aa
        return
    for k in range(squares.size):
        weight = np.sqrt(squares[k])
        aa += weight * rows[k, 0] * rows[k, 0]
        ab += weight * rows[k, 0] * rows[k, 1]
        bb += weight * rows[k, 1] * rows[k, 1]
    rest = bb - ab * ab / aa
    on_a_line = rest <= _DEPENDENT * bb  # along which the first axis lies
    for k in range(squares.size):
        weight = np.sqrt(squares[k])
        if not on_a_line:
            fit[k, 1] = weight * (rows[k, 1] - ab / aa * rows[k, 0]) / rest
        fit[k, 0] = weight * rows[k, 0] / aa - ab / aa * fit[k, 1]


@kernel
def _fits(numbers, stencil, centres, moments, widths, targets):
    cells, size = stencil.shape
    d = centres.shape[1]
    count = 5 if d == 3 else 2
    products = 9 if d == 3 else 2
    fit = np.zeros((cells, size, count + d - 1))
    bend = np.zeros((cells, products, count))
    squares = np.empty(size)
    points = np.empty((cells, targets.shape[1] + 2, 2))
    frame = np.zeros((2, d))
    rows = np.empty((size, count))
    curved = np.empty((size, products))
    lower = np.empty((count, count))
    for c in range(cells):
        own, h = numbers[c], widths[c]
        x = centres[own]
        along, length = 0.0, 0.0
        to = centres[stencil[c, 0]]
        for i in range(d):
            along += x[i] * to[i]
        for i in range(d):
            frame[0, i] = to[i] - along * x[i]
            length += frame[0, i] ** 2
        for i in range(d):
            frame[0, i] /= np.sqrt(length)
        if d == 3:
            frame[1, 0] = x[1] * frame[0, 2] - x[2] * frame[0, 1]
            frame[1, 1] = x[2] * frame[0, 0] - x[0] * frame[0, 2]
            frame[1, 2] = x[0] * frame[0, 1] - x[1] * frame[0, 0]
        own0 = _moment(frame, moments[own], 0, 0, h)
        own1 = _moment(frame, moments[own], 0, 1, h) if d == 3 else 0.0
        own2 = _moment(frame, moments[own], 1, 1, h) if d == 3 else 0.0
        last = targets.shape[1]
        for k in range(last):
            points[c, k] = _place(frame, x, targets[c, k], h)
        points[c, last] = own0, own1
        points[c, last + 1] = own2, 0.0
        for k in range(size):
            j = stencil[c, k]
            a, b = _place(frame, x, centres[j], h)
            # w_j = |xi_j|^-2: with |xi_j|^-1 errors of smooth tails are 1.2 times as large on the
            # sphere and 1.6 times on the circle, with |xi_j|^-3 0.9 and 0.7 times, but 1.2 and 1.7
            # times where the density is steep (50 cells of the circle, t = 4 and 9).
            weight = 1.0 / max(a * a + b * b, 1e-300) ** 2
            for m in range(k):
                if stencil[c, m] == j:  # about a vertex of four cells
                    weight = 0.0
            if j == own:
                weight = 0.0
            squares[k] = weight  # w_j^2
            s0 = _moment(frame, moments[j], 0, 0, h)
            rows[k, 0] = a
            if d == 2:
                rows[k, 1] = 0.5 * (a * a + s0 - own0)
                curved[k, 0] = 0.5 * (s0 - own0)
                curved[k, 1] = s0 * a
            else:
                s1 = _moment(frame, moments[j], 0, 1, h)
                s2 = _moment(frame, moments[j], 1, 1, h)
                rows[k, 1] = b
                rows[k, 2] = 0.5 * (a * a + s0 - own0)
                rows[k, 3] = a * b + s1 - own1
                rows[k, 4] = 0.5 * (b * b + s2 - own2)
                # <g, (S_j - S_c) g> / 2, and <g, S_j H xi_j>
                curved[k, 0] = 0.5 * (s0 - own0)
                curved[k, 1] = s1 - own1
                curved[k, 2] = 0.5 * (s2 - own2)
                curved[k, 3] = s0 * a
                curved[k, 4] = s0 * b + s1 * a
                curved[k, 5] = s1 * b
                curved[k, 6] = s1 * a
                curved[k, 7] = s1 * b + s2 * a
                curved[k, 8] = s2 * b
        # Cholesky's factor of the normal matrix.
        unfit = False
        for i in range(count):
            for j in range(i + 1):
                total = 0.0
                for k in range(size):
                    total += squares[k] * rows[k, i] * rows[k, j]
                whole = total
                for k in range(j):
                    total -= lower[i, k] * lower[j, k]
                if i > j:
                    lower[i, j] = total / lower[j, j]
                else:
                    unfit = unfit or not total > _DEPENDENT * whole
                    lower[i, i] = np.sqrt(max(total, 1e-300))
        _linear(squares, rows, fit[c, :, count:])
        if unfit:
            fit[c, :, :count] = np.nan
            continue
        for k in range(size):
            for i in range(count):
                total = squares[k] * rows[k, i]
                for j in range(i):
                    total -= lower[i, j] * fit[c, k, j]
                fit[c, k, i] = total / lower[i, i]
            for i in range(count - 1, -1, -1):
                total = fit[c, k, i]
                for j in range(i + 1, count):
                    total -= lower[j, i] * fit[c, k, j]
                fit[c, k, i] = total / lower[i, i]
            for m in range(products):
                for i in range(count):
                    bend[c, m, i] += fit[c, k, i] * curved[k, m]
    return fit, bend, points


@kernel
def quadratic_factors(bounds, facets, log_density, stencil, fit, bend, points, factors):
    """exp(t (p - k) + (1 - t) <g, xi>) at points of cells.

    Args:
        bounds: as `STEEP_FLUXES`.
        facets: the numbers of a cell's facets.
        log_density: of all cells.
        stencil: the first of what `fits` returned,
        fit: the second,
        bend: the third,
        points: and the last.
        factors: the result, cells x points.
    """
    d = len(facets)
    size, count = d * d, factors.shape[1]
    linear = fit.shape[2] - (d - 1)
    slopes = np.empty((1, count))
    for c in range(factors.shape[0]):
        here = log_density[c]
        a0, a1, a2, a3, a4 = 0.0, 0.0, 0.0, 0.0, 0.0
        for k in range(size):
            jump = log_density[stencil[c, k]] - here
            a0 += fit[c, k, 0] * jump
            a1 += fit[c, k, 1] * jump
            if d == 3:
                a2 += fit[c, k, 2] * jump
                a3 += fit[c, k, 3] * jump
                a4 += fit[c, k, 4] * jump
        b = bend[c]
        s0 = points[c, count, 0]
        if d == 2:
            first, second = a0 * a0, a0 * a1
            a0 -= b[0, 0] * first + b[1, 0] * second
            a1 -= b[0, 1] * first + b[1, 1] * second
            mean = 0.5 * s0 * (a1 + a0 * a0)
        else:
            q = (a0 * a0, a0 * a1, a1 * a1, a0 * a2, a0 * a3, a0 * a4, a1 * a2, a1 * a3, a1 * a4)
            for k in range(9):
                a0 -= b[k, 0] * q[k]
                a1 -= b[k, 1] * q[k]
                a2 -= b[k, 2] * q[k]
                a3 -= b[k, 3] * q[k]
                a4 -= b[k, 4] * q[k]
            s1, s2 = points[c, count, 1], points[c, count + 1, 0]
            mean = 0.5 * (s0 * (a2 + a0 * a0) + s2 * (a4 + a1 * a1)) + s1 * (a3 + a0 * a1)
        steep = 0.0
        for i in range(count):
            x, y = points[c, i, 0], points[c, i, 1]
            if d == 2:
                rise = x * (a0 + 0.5 * a1 * x) - mean
            else:
                rise = x * (a0 + 0.5 * a2 * x + a3 * y) + y * (a1 + 0.5 * a4 * y) - mean
            if not abs(rise) <= steep:  # or not a number, beside an empty cell
                steep = abs(rise)
            factors[c, i] = min(rise, STEEPEST)
        if not steep <= bounds[0]:
            t = (bounds[1] - steep) / (bounds[1] - bounds[0]) if steep < bounds[1] else 0.0
            resolved = here > -np.inf  # as in `limited_slopes`
            g0, g1 = 0.0, 0.0
            for k in range(size):
                there = log_density[stencil[c, k]]
                resolved = resolved and there > -np.inf
                g0 += fit[c, k, linear] * (there - here)
                if d == 3:
                    g1 += fit[c, k, linear + 1] * (there - here)
            for i in range(count):
                slopes[0, i] = g0 * points[c, i, 0] + g1 * points[c, i, 1]
            limit(facets, resolved, slopes, 0)
            for i in range(count):
                slope = slopes[0, i]
                factors[c, i] = slope + (t * (factors[c, i] - slope) if t > 0 else 0.0)
    exponentials(factors.reshape(-1))
