"""Quadratic reconstruction of log rho, of third order: densities at points of the facets of cells.

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

with matrices A and B of the mesh. The density at a point of a facet is then

    rho = rho_c exp(p - k),     k = (tr(H S_c) + <g, S_c g>) / 2,

and its mean over the cell rho_c, to the same order. Where p is steep or does not fit, the slopes of
`reconstruction` take its place: exponents are t (p - k) + (1 - t) g_f, and at most `STEEPEST`.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.gradients import STEEPEST
from meanfield_pde.mesh.halo import Halo
from meanfield_pde.mesh.reconstruction import exponentials
from meanfield_pde.support.kernels import kernel, part

# How steep p may be at a facet, and how large the residual, for p alone, and for slopes alone.
_STEEP = 0.7, 1.4
_RESIDUAL = 0.25, 0.5
# Of a diagonal entry of the normal matrix, what is left of it: cells that lie on a conic section,
# or too few of them.
_DEPENDENT = 1e-6
# Weight of the residual there: any is too large, and slopes are taken.
_NEVER = 1e100


def quadratic_fit(volumes: FiniteVolumes, halo: Halo) -> tuple[np.ndarray, ...]:
    """Return what `quadratic_factors` takes of a mesh, for the inner cells of a halo. Collective.

    Args:
        volumes: the cells.
        halo: three rings about them.

    Returns:
        The cells j of each fit, cells x K, numbered as in the halo; A, cells x K x coefficients;
        B, cells x products x coefficients; w_j^2 for each j, and the lower triangle of the normal
        matrix N, so that the sum of w^2 residual^2 is that of w^2 (log rho_j - log rho_c)^2 without
        <a_0, N a_0>; xi of the points of the facets, followed by S_c, cells x (points + 2) x 2.
    """
    d, own = volumes.dimension, slice(0, volumes.owned)
    nodes, weights = geometry.quadrature(volumes.cell_points[own])
    ways = nodes - volumes.centre[own, None]
    weights /= weights.sum(axis=1, keepdims=True)
    facets = geometry.gauss_points(volumes.facet_points)[volumes.cell_facets]
    stencil = _stencils(halo.neighbours, halo.inner)
    matrices = _fits(
        stencil[: volumes.owned],
        halo.extended(volumes.centre[own]),
        halo.extended(np.einsum("cq,cqi,cqj->cij", weights, ways, ways)),
        volumes.volume[own] ** (1 / (d - 1)),
        facets.reshape(volumes.owned, -1, d),
    )
    inner = [np.ascontiguousarray(halo.extended(one)[: halo.inner]) for one in matrices]
    return stencil, *inner


def _stencils(neighbours: np.ndarray, count: int) -> np.ndarray:
    """The neighbours of the first cells, and theirs but for the cell itself: cells x d^2."""
    near = neighbours[:count]
    others = neighbours[near].reshape(count, -1)
    beyond = others[others != np.arange(count)[:, None]].reshape(count, -1)
    return np.concatenate([near, beyond], axis=1)


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


@kernel
def _fits(stencil, centres, moments, widths, facets):
    cells, size = stencil.shape
    d = centres.shape[1]
    count = 5 if d == 3 else 2
    products = 9 if d == 3 else 2
    fit = np.zeros((cells, size, count))
    bend = np.zeros((cells, products, count))
    spread = np.zeros((cells, size + count * (count + 1) // 2))
    points = np.empty((cells, facets.shape[1] + 2, 2))
    frame = np.zeros((2, d))
    rows = np.empty((size, count))
    curved = np.empty((size, products))
    lower = np.empty((count, count))
    for c in range(cells):
        x, h = centres[c], widths[c]
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
        own0 = _moment(frame, moments[c], 0, 0, h)
        own1 = _moment(frame, moments[c], 0, 1, h) if d == 3 else 0.0
        own2 = _moment(frame, moments[c], 1, 1, h) if d == 3 else 0.0
        last = facets.shape[1]
        for k in range(last):
            points[c, k] = _place(frame, x, facets[c, k], h)
        points[c, last] = own0, own1
        points[c, last + 1] = own2, 0.0
        for k in range(size):
            j = stencil[c, k]
            a, b = _place(frame, x, centres[j], h)
            weight = 1.0 / max(a * a + b * b, 1e-300) ** 2
            for m in range(k):
                if stencil[c, m] == j:  # about a vertex of four cells
                    weight = 0.0
            if j == c:
                weight = 0.0
            spread[c, k] = weight
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
        place, unfit = size, False
        for i in range(count):
            for j in range(i + 1):
                total = 0.0
                for k in range(size):
                    total += spread[c, k] * rows[k, i] * rows[k, j]
                spread[c, place] = total if i == j else 2 * total
                place += 1
                whole = total
                for k in range(j):
                    total -= lower[i, k] * lower[j, k]
                if i > j:
                    lower[i, j] = total / lower[j, j]
                else:
                    unfit = unfit or not total > _DEPENDENT * whole
                    lower[i, i] = np.sqrt(max(total, 1e-300))
        if unfit:
            spread[c, :size] *= _NEVER
            continue
        for k in range(size):
            for i in range(count):
                total = spread[c, k] * rows[k, i]
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
    return fit, bend, spread, points


@part
def _share(steep, squares):
    """Return t, from the steepest p - k at a point and the sum of the squares of the residuals."""
    if not squares < _RESIDUAL[1] ** 2:  # or not finite, beside an empty cell
        return 0.0
    residual = np.sqrt(max(squares, 0.0))
    t = min(1.0, (_RESIDUAL[1] - residual) / (_RESIDUAL[1] - _RESIDUAL[0]))
    return max(0.0, min(t, (_STEEP[1] - steep) / (_STEEP[1] - _STEEP[0])))


@kernel
def quadratic_factors(
    facets, log_density, neighbours, weights, stencil, fit, bend, spread, points, factors
):
    """exp(t (p - k) + (1 - t) g) at points of the facets.

    Arguments as of `reconstruction.face_factors`, for g, and what `quadratic_fit` returned.
    """
    d = len(facets)
    size, count = d * d, d * (d - 1)
    for c in range(factors.shape[0]):
        here = log_density[c]
        squares = 0.0
        a0, a1, a2, a3, a4 = 0.0, 0.0, 0.0, 0.0, 0.0
        for k in range(size):
            jump = log_density[stencil[c, k]] - here
            squares += spread[c, k] * jump * jump
            a0 += fit[c, k, 0] * jump
            a1 += fit[c, k, 1] * jump
            if d == 3:
                a2 += fit[c, k, 2] * jump
                a3 += fit[c, k, 3] * jump
                a4 += fit[c, k, 4] * jump
        s = spread[c, size:]
        b = bend[c]
        s0 = points[c, count, 0]
        if d == 2:
            squares -= s[0] * a0 * a0 + a1 * (s[1] * a0 + s[2] * a1)
            first, second = a0 * a0, a0 * a1
            a0 -= b[0, 0] * first + b[1, 0] * second
            a1 -= b[0, 1] * first + b[1, 1] * second
            mean = 0.5 * s0 * (a1 + a0 * a0)
        else:
            squares -= s[0] * a0 * a0 + a1 * (s[1] * a0 + s[2] * a1)
            squares -= a2 * (s[3] * a0 + s[4] * a1 + s[5] * a2)
            squares -= a3 * (s[6] * a0 + s[7] * a1 + s[8] * a2 + s[9] * a3)
            squares -= a4 * (s[10] * a0 + s[11] * a1 + s[12] * a2 + s[13] * a3 + s[14] * a4)
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
            steep = max(steep, abs(rise))
            factors[c, i] = min(rise, STEEPEST)
        t = _share(steep, squares)
        if t < 1.0:
            resolved = here > -np.inf
            steep = STEEPEST
            for j in range(d):
                resolved = resolved and log_density[neighbours[c, j]] > -np.inf
            for again in range(2):  # the slopes, and then their share
                for i in range(count):
                    slope = 0.0
                    for j in range(d):
                        slope += weights[c, i, j] * (log_density[neighbours[c, j]] - here)
                    if again == 0:
                        steep = max(steep, abs(slope))
                    else:
                        slope = slope * STEEPEST / steep if resolved else 0.0
                        factors[c, i] = slope + (t * (factors[c, i] - slope) if t > 0 else 0.0)
    exponentials(factors.reshape(-1))
