"""Compiled loops of `series`: from the masses of groups to those of their nodes.

Compiled functions carry no types here: numba compiles them for the arguments it meets.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.attention.sum.series_nodes import MOST, nodes_needed
from meanfield_pde.attention.sum.tiles import FAST, LOG2_E, NO_MASS, power_of_two
from meanfield_pde.support.kernels import kernel, part

_LANES = 16
_CHUNK = 8 * _LANES  # sources whose polynomials are computed at once
FITTED, GATHERED = 5, 3  # numbers of a group, and those in front of its masses
_SOME = 256  # sources that slopes are fitted to
_LEAST = -500.0  # log masses below the largest of a group by more do not count for its slopes


@part
def _slopes(local, log_masses, slopes):  # type: ignore[no-untyped-def]
    """Slopes in t_1 and t_2, and the curvature k in -k (t_1^2 + t_2^2) / 2, of some log masses.

    By least squares over some of a group's sources. The curvature is at least zero.
    """
    matrix, right, row = np.zeros((4, 4)), np.zeros(4), np.empty(4)
    largest, size = log_masses.max(), 1e-300
    every = max(1, log_masses.size // _SOME)
    for j in range(0, log_masses.size, every):
        if log_masses[j] < largest + _LEAST:
            continue
        square = local[1, j] ** 2 + local[2, j] ** 2
        row[0], row[1], row[2], row[3] = 1.0, local[1, j], local[2, j], -square / 2
        size = max(size, square)
        for i in range(4):
            right[i] += row[i] * (log_masses[j] - largest)
            for k in range(4):
                matrix[i, k] += row[i] * row[k]
    for i in range(4):
        # Sources in a row, or few of them, leave some of it open.
        matrix[i, i] += 1e-9 * (size if 0 < i < 3 else size**2 if i == 3 else 1.0)
    solution = np.linalg.solve(matrix, right)
    slopes[0], slopes[1], slopes[2] = solution[1], solution[2], max(0.0, solution[3])


@part(fastmath=FAST)
def _pair_of_rows(rows, columns, out):  # type: ignore[no-untyped-def]
    """Products of two rows with two others, summed over the strips of a chunk, in lanes."""
    for i in range(_LANES):
        p, q, x, y = rows[i], rows[_CHUNK + i], columns[i], columns[_CHUNK + i]
        c, d, e, f = p * x, p * y, q * x, q * y
        for strip in range(1, 8):
            k = i + strip * _LANES
            p, q, x, y = rows[k], rows[_CHUNK + k], columns[k], columns[_CHUNK + k]
            c += p * x
            d += p * y
            e += q * x
            f += q * y
        out[i] += c
        out[_LANES + i] += d
        out[2 * _LANES + i] += e
        out[3 * _LANES + i] += f


@part(fastmath=FAST)
def _chebyshev(degree, out):  # type: ignore[no-untyped-def]
    """Rows T_2 x, T_3 x, ... times the first, behind the first and the second, which are given."""
    for i in range(2, degree):
        three = out[(i - 2) * _CHUNK : (i + 1) * _CHUNK]
        x = out[degree * _CHUNK : (degree + 1) * _CHUNK]
        for j in range(_CHUNK):
            three[2 * _CHUNK + j] = 2 * x[j] * three[_CHUNK + j] - three[j]


@part(fastmath=FAST)
def _sums_of_products(weights, local, half, sizes, work, moments):  # type: ignore[no-untyped-def]
    """sum_j M'_j T_i(t_1 / A) T_k(t_2 / B), i x k, for i < p, k < q, both even."""
    rows, columns, lanes = work
    p, q = sizes
    count = weights.size
    for k in range(p * q // 4):
        for i in range(4 * _LANES):
            lanes[k, i] = 0.0
    x, y = rows[p * _CHUNK : (p + 1) * _CHUNK], columns[q * _CHUNK : (q + 1) * _CHUNK]
    for start in range(0, count, _CHUNK):
        filled = min(_CHUNK, count - start)
        for j in range(filled):
            x[j] = local[1, start + j] / half[1]
            y[j] = local[2, start + j] / half[2]
            rows[j] = weights[start + j]
            columns[j] = 1.0
        for j in range(filled, _CHUNK):
            x[j], y[j], rows[j], columns[j] = 0.0, 0.0, 0.0, 0.0
        for j in range(_CHUNK):
            rows[_CHUNK + j] = rows[j] * x[j]
            columns[_CHUNK + j] = columns[j] * y[j]
        _chebyshev(p, rows)
        _chebyshev(q, columns)
        place = 0
        for i in range(0, p, 2):
            two = rows[i * _CHUNK : (i + 2) * _CHUNK]
            for k in range(0, q, 2):
                _pair_of_rows(two, columns[k * _CHUNK : (k + 2) * _CHUNK], lanes[place])
                place += 1
    place = 0
    for i in range(0, p, 2):
        for k in range(0, q, 2):
            for corner in range(4):
                total = 0.0
                for j in range(corner * _LANES, (corner + 1) * _LANES):
                    total += lanes[place, j]
                moments[i + corner // 2, k + corner % 2] = total
            place += 1


@part(fastmath=FAST)
def _add_product(left, right, out):  # type: ignore[no-untyped-def]
    """Add the product of two matrices, of which the first may be wider than it counts."""
    for i in range(out.shape[0]):
        for k in range(right.shape[0]):
            factor = left[i, k]
            for j in range(out.shape[1]):
                out[i, j] += factor * right[k, j]


@part(fastmath=FAST)
def _tilted(log_masses, local, tau, above, weights):  # type: ignore[no-untyped-def]
    """M' = M exp(-<tau, y - y_c>) as parts of the largest, whose logarithm is returned."""
    n, a, b = tau[0], tau[1], tau[2]
    largest = 4 * NO_MASS
    for j in range(weights.size):
        tilt = n * (local[0, j] - above) + a * local[1, j] + b * local[2, j]
        weights[j] = log_masses[j] - tilt
    for j in range(weights.size):
        largest = max(largest, weights[j])
    for j in range(weights.size):
        weights[j] = power_of_two((weights[j] - largest) * LOG2_E)
    return largest


@part
def top_of(frame):  # type: ignore[no-untyped-def]
    """t_0 of y_c, and n_c with the sign of c_n."""
    centre = np.zeros(3)
    for i in range(3):
        for j in range(3):
            centre[i] += frame[j] * frame[3 + 3 * i + j]
    n_c = math.sqrt(max(0.0, 1 - centre[1] ** 2 - centre[2] ** 2))
    n_c = n_c if centre[0] > 0 else -n_c
    return n_c - centre[0], n_c


@kernel
def fit(groups, sources, frame, half, wanted, rows):  # type: ignore[no-untyped-def]
    """Write p, q and tau of the groups listed.

    Args:
        groups: their numbers.
        sources: starts of the groups; log masses as given, their order; t_0, t_1, t_2.
        frame: of all groups.
        half: half lengths of all groups.
        wanted: length of the scores, and minus the logarithm of the error.
        rows: written to.
    """
    starts, given, order, local = sources
    slopes = np.empty(3)
    for place in range(groups.size):
        group, row = groups[place], rows[place]
        part = slice(starts[group], starts[group + 1])
        _slopes(local[:, part], given[order[part]], slopes)
        for i in range(2):
            row[i] = nodes_needed(half[group, 1 + i], wanted[0] + slopes[2], wanted[1])
        row[2], row[3], row[4] = slopes[2] * top_of(frame[group])[1], slopes[0], slopes[1]


@kernel
def gather(groups, sources, frame, half, fitted, tables, rows):  # type: ignore[no-untyped-def]
    """Write log sum M', log sum M, log of a scale and masses at the nodes of the groups listed.

    Args:
        groups: their numbers.
        sources: starts of the groups; log masses as given, their order; t_0, t_1, t_2.
        frame: of all groups.
        half: half lengths of all groups.
        fitted: of `fit`, for all groups.
        tables: of `node_tables`.
        rows: written to.
    """
    starts, given, order, local = sources
    square = MOST * MOST // 4
    rows_of_t, columns = np.empty((MOST + 1) * _CHUNK), np.empty((MOST + 1) * _CHUNK)
    work = rows_of_t, columns, np.empty((square, 4 * _LANES))
    for place in range(groups.size):
        group, row, own = groups[place], rows[place], fitted[groups[place]]
        part = slice(starts[group], starts[group + 1])
        log_masses, within = given[order[part]], local[:, part]
        p, q = int(own[0]), int(own[1])
        weights, moments = np.empty(log_masses.size), np.empty((p, q))
        row[1] = _tilted(log_masses, within, np.zeros(3), 0.0, weights)
        row[1] += math.log(weights.sum())
        row[2] = _tilted(log_masses, within, own[2:], top_of(frame[group])[0], weights)
        _sums_of_products(weights, within, half[group], (p, q), work, moments)
        row[0] = row[2] + math.log(moments[0, 0])
        half_way, masses = np.zeros((p, q)), np.zeros((p, q))
        _add_product(tables[1][p], moments, half_way)
        _add_product(half_way, tables[2][q, :q], masses)
        row[GATHERED : GATHERED + p * q] = masses.ravel()


def node_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For p = 0, ..., MOST the Chebyshev nodes x_i, and the weights (2 - [k = 0]) T_k(x_i) / p.

    The latter, p x i x k and p x k x i, make masses at the nodes from sums of masses times T_k.
    """
    places, weights = np.zeros((MOST + 1, MOST)), np.zeros((MOST + 1, MOST, MOST))
    for p in range(1, MOST + 1):
        angle = np.pi * (np.arange(p) + 0.5) / p
        places[p, :p] = np.cos(angle)
        weights[p, :p, :p] = np.cos(np.outer(angle, np.arange(p))) * 2 / p
        weights[p, :p, 0] /= 2
    return places, weights, np.ascontiguousarray(np.swapaxes(weights, 1, 2))


@kernel
def place_nodes(frame, half, fitted, tables, rows, starts, out):  # type: ignore[no-untyped-def]
    """Write the points, log |masses|, signs and t_0, t_1, t_2 of the nodes of all groups.

    What is between the nodes of a group and the next has no mass.
    """
    points, log_masses, signs, local = out
    for group in range(len(frame)):
        own, row, tau = frame[group], rows[group], fitted[group, 2:]
        p, q = int(fitted[group, 0]), int(fitted[group, 1])
        above, n_c = top_of(own)
        c_a, c_b = 0.0, 0.0
        for i in range(3):
            c_a += own[i] * own[6 + i]
            c_b += own[i] * own[9 + i]
        for place in range(starts[group + 1] - starts[group]):
            k = min(place, p * q - 1)
            a, b = half[group, 1] * tables[0][p, k // q], half[group, 2] * tables[0][q, k % q]
            n = math.sqrt(max(0.0, 1 - (c_a + a) ** 2 - (c_b + b) ** 2))
            n = (n if n_c > 0 else -n) - n_c + above
            j = starts[group] + place
            local[0, j], local[1, j], local[2, j] = n, a, b
            for i in range(3):
                points[i, j] = own[i] + n * own[3 + i] + a * own[6 + i] + b * own[9 + i]
            mass = row[GATHERED + k] if place < p * q else 0.0
            signs[j] = 1.0 if mass >= 0 else -1.0
            log_masses[j] = NO_MASS
            if mass != 0:
                tilt = tau[0] * (n - above) + tau[1] * a + tau[2] * b
                log_masses[j] = math.log(abs(mass)) + row[2] + tilt
