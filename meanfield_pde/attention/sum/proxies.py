"""Proxy points: fewer points that stand for the sources of a cluster, where a kernel is wide.

Let y = c + t_0 n + t_1 a + t_2 b in the axes of a cluster, and f(t_1, t_2) = exp(<w + tau, y -
y_c>) on the sphere, y_c its point with t_1 = t_2 = 0. Log masses of the cluster follow a trend
<tau, y>: any tau is correct, the one fitted needs the fewest points. With M'_j = M_j exp(-<tau, y_j
- y_c>) the cluster's part of Z(w) is exp(<w, y_c>) sum_j M'_j f(t_j), and a polynomial that
interpolates f at p x q Chebyshev nodes stands for f at the sources: its adjoint puts signed masses
sum_j M'_j L_i(t_j) at the nodes, once for all targets. The errors of Z and of the sum of M y
exp(<w, y>) are at most sum_j M'_j times those of the interpolation of f and of y f.

*The bound.* Let (W_n, W_a, W_b) be w + tau in the axes, (c_n, c_a, c_b) the centre, n_c = sqrt(1 -
c_a^2 - c_b^2), k = W_n / n_c, A and B the half lengths of the cluster. In the ellipse of parameter
r around the interval of t_1, with half axes A X and A Y, X = (r + 1/r)/2, Y = (r - 1/r)/2, the
square root is concave, and for z = c_a + x + i y

    Re sqrt(1 - b^2 - z^2) <= n_c + (1 - b^2 - Re z^2 + d - n_c^2) / (2 n_c),
    d = (Re z Im z)^2 / (1 - b^2 - (Re z)^2),

so that log |f| <= g_a + g_b + W_n d / (2 n_c), where with D = |W_a - k c_a|

    g_a = k A^2 Y^2 / 2 + max_(0 <= c <= 1) (D A X c - k A^2 (X^2 + Y^2) c^2 / 2),

and g_b is the same for the real interval of t_2, X = 1 and Y = 0. The error in t_1 is then at most
4 r^(1-p) / (r - 1) exp(g_a + g_b + ...) (Bernstein), that in t_2 the same times the Lebesgue
constant; |y|^2 <= 1 + 2 Y^2 A^2 + 2 d there. It is summed over the clusters for every block of
targets, with the lower bound of Z(w) by convexity (`cluster`); a block where the sum is too large
is left to the direct sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from meanfield_pde.attention.sum.exponential import FAST, LOG2_E, NO_MASS, power_of_two
from meanfield_pde.attention.sum.tree import LEAF, Share, Sources, alone
from meanfield_pde.support.kernels import kernel, part

# Points in one direction at most, even: 2,304 of a cluster, which work arrays have room for. The
# tables of `node_tables` grow with its cube: 1.8 MB.
MOST = 48
LEBESGUE = 3.5  # of up to MOST Chebyshev nodes: 2/pi log p + 1 <= 3.47
# Parameters of the ellipses tried, each of which gives a bound: a set with gaps costs points, but
# every one of them is right.
_R = np.array([1.5, 2.0, 2.5, 3.0, 3.6, 4.3, 5.2, 6.3, 8.0, 10.0, 14.0, 20.0, 40.0, 100.0])
# Rows r, X, Y, log r, log 4 / (r - 1).
RADII = np.stack(
    [_R, (_R + 1 / _R) / 2, (_R - 1 / _R) / 2, np.log(_R), np.log(4 / (_R - 1))], axis=1
)
_LANES = 16  # in which a sum over sources is kept: two vectors of AVX-512, as in `tree`
_CHUNK = 8 * _LANES  # sources whose Chebyshev polynomials are computed at once: rows of 1 KB
FITTED = 5  # numbers of a cluster's trend: p, q, tau
_HEADER = 3  # numbers in front of a cluster's masses
_AT_ONCE = 65_536  # sources whose cells are found at once: arrays of 0.5 MB
_FITTED_TO = 256  # sources that a trend is fitted to: four unknowns, and any trend is correct
# Log masses below the largest of a cluster by more have no part in the trend.
_NEGLIGIBLE = -500.0


@dataclass(frozen=True)
class ProxySettings:
    """Settings of proxy points; they change the cost, and which blocks are left to the direct sum.

    Measured at 327,680 cells of the sphere, density concentrated, beta = 10 and 100 (process time
    of one thread, in turn).

    Attributes:
        width: of a cell, in widths |w|^(-1/2) of the kernel. With 4.5 a sum takes 1.1 and 1.3 times
            as long, with 2 it takes 1.2 and 0.8 times.
        widest: of a cell [rad]. With 0.6 some 8 % of the blocks are left to the direct sum, and a
            sum takes 2.2 times as long at beta = 10; with 0.25, 1.2 times.
        span: blocks are the largest for which rho is at most this times the fourth root of 1 /
            their targets; from 5 to 16 times differ by a tenth.
        fewer: proxy points are tried if fewer than this share of the sources are expected.
        spare: logarithm by which the error of a cluster is kept below what a block is allowed, for
            the sum over clusters and the bound of Z(w) by convexity: e^5 = 150. With 2 up to 40 %
            of the blocks are left to the direct sum, with 8 a sum takes 1.1 times as long.
    """

    width: float = 3.0
    widest: float = 0.4
    span: float = 9.2
    fewer: float = 0.9
    spare: float = 5.0


class ProxyClusters:
    """Clusters of sources in cells of rings of latitude, each with proxy points for its sources.

    Attributes:
        boxes: around the sources of each.
        size: 0, since clusters are no runs of sources in the tree.
        expected: about how many proxy points there will be.
    """

    size = 0

    def __init__(self, sources: Sources, width: float, longest: float, wanted: float) -> None:
        """Lay out the cells.

        Args:
            sources: on the sphere.
            width: of a cell [rad].
            longest: largest |w| of the targets.
            wanted: minus the logarithm of the error allowed.
        """
        self._sources, self._width, self._wanted = sources, width, (longest, wanted)
        order, self._starts = self._laid_out()
        count = len(self._starts) - 1
        self._frame, self._half = np.empty((count, 12)), np.empty((count, 3))
        self._middle = np.empty((count, 3))
        for group in range(count):
            own = sources.points[:, order[self._starts[group] : self._starts[group + 1]]]
            axes = _axes(own.mean(axis=1))
            along = axes @ own
            low, high = along.min(axis=1), along.max(axis=1)
            self._middle[group] = middle = (low + high) / 2
            self._frame[group] = np.concatenate([middle @ axes, axes.ravel()])
            self._half[group] = (high - low) / 2 + 8 * np.finfo(float).eps
        self._mine: tuple[np.ndarray, ...] | None = None
        unit = self._frame[:, 3:].reshape(-1, 3, 3)
        scaled = unit * self._half[:, :, None]
        self.boxes = np.concatenate([self._frame[:, :3], scaled.reshape(-1, 9)], axis=1)
        self._tables = node_tables()
        needed = [[points_needed(half, longest, wanted) for half in row[1:]] for row in self._half]
        self.expected = int(np.prod(needed, axis=1).sum())

    def _laid_out(self) -> tuple[np.ndarray, np.ndarray]:
        """The sources cell by cell, as places in the tree, and where each cell begins.

        Not kept, as every rank has the sources of all cells here, and sums those of some.
        """
        points, count = self._sources.points, self._sources.count
        cell = np.empty(count, dtype=np.int32)
        for start in range(0, count, _AT_ONCE):
            part = slice(start, min(start + _AT_ONCE, count))
            cell[part] = _cells_of_rings(points[:, part], self._width)
        counts = np.bincount(cell)
        order = np.argsort(cell, kind="stable").astype(np.int32)
        return order, np.append(0, np.cumsum(counts[counts > 0]))

    def load(self, share: Share = alone) -> None:
        """Make proxy points for the masses that the sources have."""
        every = np.arange(len(self.boxes))
        fitted = self._fitted = share(self._fit, every)
        counts = (fitted[:, 0] * fitted[:, 1]).astype(np.int64)
        self._longest = _HEADER + int(counts.max())
        rows = share(self._gather, every)
        starts = np.concatenate([[0], np.cumsum(-(-counts // LEAF) * LEAF)])
        total = int(starts[-1])
        arrays = np.empty((3, total)), np.empty(total), np.empty(total), np.empty((3, total))
        place_proxies(self._frame, self._half, fitted, self._tables, rows, starts, arrays)
        half = self._half.copy()
        half[:, 0] = np.maximum.reduceat(np.abs(arrays[3][0]), starts[:-1])
        nodes = np.column_stack([fitted, rows[:, 0]])
        groups = (self.boxes, np.ascontiguousarray(rows[:, 1]), self._frame, half, nodes)
        self._loaded = arrays, starts, groups

    def _fit(self, groups: np.ndarray) -> np.ndarray:
        rows = np.empty((len(groups), FITTED))
        fit_trends(groups, self._given(groups), self._frame, self._half, self._wanted, rows)
        return rows

    def _gather(self, groups: np.ndarray) -> np.ndarray:
        rows = np.zeros((len(groups), self._longest))
        given = self._given(groups)
        proxy_masses(groups, given, self._frame, self._half, self._fitted, self._tables, rows)
        return rows

    def _given(self, groups: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return what is summed for the clusters listed, one after the other.

        Starts; log masses, their order; t_0, t_1, t_2. Those last listed are kept: a rank is always
        given the same.
        """
        given, order_of_tree = self._sources.tree()[1]
        if self._mine is None or not np.array_equal(self._mine[0], groups):
            laid_out, _ = self._laid_out()
            parts = [slice(*self._starts[group : group + 2]) for group in groups]
            starts = np.cumsum([0, *(part.stop - part.start for part in parts)])
            local, order = np.empty((3, starts[-1])), np.empty(starts[-1], dtype=np.int32)
            for place, (group, part) in enumerate(zip(groups, parts, strict=True)):
                there = slice(starts[place], starts[place + 1])
                own = laid_out[part]
                order[there] = order_of_tree[own]
                axes = self._frame[group, 3:].reshape(3, 3)
                points = self._sources.points[:, own]
                local[:, there] = axes @ points - self._middle[group, :, None]
            self._mine = groups, starts, order, local
        _, starts, order, local = self._mine
        return starts, given, order, local

    def arrays(self) -> tuple[Any, ...]:
        """Return the arrays of compiled loops: sources, starts, tree, clusters."""
        tree = self._sources.tree()
        arrays, starts, groups = self._loaded
        return arrays, starts, (tree[2][1], tree[4][1], tree[3][2], tree[4][2]), groups, self.size


def _cells_of_rings(points: np.ndarray, width: float) -> np.ndarray:
    """Return the number of each point's cell; cells are about square, the ends are caps."""
    rings = int(np.ceil(np.pi / width))
    height = np.pi / rings
    across = np.hypot(points[0], points[1])
    ring = np.minimum((np.arctan2(across, points[2]) / height + 0.5).astype(np.int64), rings)
    middle = np.arange(rings + 1) * height
    widest = np.sin(np.minimum(middle, np.pi - middle) + 0.25 * height)
    count = np.maximum(1, np.round(2 * np.pi * np.minimum(widest, 1.0) / height)).astype(np.int64)
    count[[0, -1]] = 1
    turn = np.arctan2(points[1], points[0]) / (2 * np.pi) + 0.5
    place = np.minimum((turn * count[ring]).astype(np.int64), count[ring] - 1)
    return np.concatenate([[0], np.cumsum(count)])[ring] + place


def _axes(centre: np.ndarray) -> np.ndarray:
    """Return the axes up, east and north at a point."""
    up = centre / np.linalg.norm(centre)
    longitude = np.arctan2(up[1], up[0])
    east = np.array([-np.sin(longitude), np.cos(longitude), 0.0])
    return np.stack([up, east, np.cross(up, east)])


@kernel
def fit_trends(groups, sources, frame, half, wanted, rows):
    """Write rows (p, q, tau) of the clusters listed.

    Args:
        groups: numbers of the clusters.
        sources: starts of those listed; log masses, their order; t_0, t_1, t_2.
        frame: centres and axes of all clusters.
        half: half lengths of all clusters.
        wanted: largest |w|, and minus the logarithm of the error allowed.
        rows: written to.
    """
    starts, given, order, local = sources
    slopes = np.empty(3)
    for place in range(groups.size):
        group, row = groups[place], rows[place]
        part = slice(starts[place], starts[place + 1])
        _trend(local[:, part], given[order[part]], slopes)
        for i in range(2):
            row[i] = points_needed(half[group, 1 + i], wanted[0] + slopes[2], wanted[1])
        row[2], row[3], row[4] = slopes[2] * _top_of(frame[group])[1], slopes[0], slopes[1]


@part
def _trend(local, log_masses, slopes):
    """Fit c + g_1 t_1 + g_2 t_2 - k (t_1^2 + t_2^2) / 2 to log masses; write g_1, g_2, max(k, 0).

    By least squares over some of a cluster's sources.
    """
    matrix, right, row = np.zeros((4, 4)), np.zeros(4), np.empty(4)
    largest, size = log_masses.max(), 1e-100
    every = max(1, log_masses.size // _FITTED_TO)
    for j in range(0, log_masses.size, every):
        if log_masses[j] < largest + _NEGLIGIBLE:
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


@kernel
def proxy_masses(groups, sources, frame, half, fitted, tables, rows):
    """Write rows (log sum M', log sum M, log of a scale, masses at the points / scale).

    Args:
        groups: numbers of the clusters.
        sources: starts of those listed; log masses, their order; t_0, t_1, t_2.
        frame: centres and axes of all clusters.
        half: half lengths of all clusters.
        fitted: by `fit_trends`, for all clusters.
        tables: of `node_tables`.
        rows: written to.
    """
    starts, given, order, local = sources
    square = MOST * MOST // 4
    rows_of_t, columns = np.empty((MOST + 1) * _CHUNK), np.empty((MOST + 1) * _CHUNK)
    work = rows_of_t, columns, np.empty((square, 4 * _LANES))
    for place in range(groups.size):
        group, row, own = groups[place], rows[place], fitted[groups[place]]
        part = slice(starts[place], starts[place + 1])
        log_masses, within = given[order[part]], local[:, part]
        p, q = int(own[0]), int(own[1])
        weights, moments = np.empty(log_masses.size), np.empty((p, q))
        row[1] = _detrended(log_masses, within, np.zeros(3), 0.0, weights)
        row[1] += math.log(weights.sum())
        row[2] = _detrended(log_masses, within, own[2:], _top_of(frame[group])[0], weights)
        _sums_of_products(weights, within, half[group], (p, q), work, moments)
        row[0] = row[2] + math.log(moments[0, 0])
        half_way, masses = np.zeros((p, q)), np.zeros((p, q))
        _add_product(tables[1][p], moments, half_way)
        _add_product(half_way, tables[2][q, :q], masses)
        row[_HEADER : _HEADER + p * q] = masses.ravel()


@part(fastmath=FAST)
def _detrended(log_masses, local, tau, above, weights):
    """Write M' = M exp(-<tau, y - y_c>) as parts of the largest, and return its logarithm."""
    n, a, b = tau[0], tau[1], tau[2]
    largest = 4 * NO_MASS
    for j in range(weights.size):
        trend = n * (local[0, j] - above) + a * local[1, j] + b * local[2, j]
        weights[j] = log_masses[j] - trend
    for j in range(weights.size):
        largest = max(largest, weights[j])
    for j in range(weights.size):
        weights[j] = power_of_two((weights[j] - largest) * LOG2_E)
    return largest


@part(fastmath=FAST)
def _sums_of_products(weights, local, half, sizes, work, moments):
    """Write sum_j M'_j T_i(t_1 / A) T_k(t_2 / B), i x k, for i < p, k < q, both even."""
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
def _pair_of_rows(rows, columns, out):
    """Add products of two rows with two others, summed over the strips of a chunk, in lanes."""
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
def _chebyshev(degree, out):
    """Write rows T_2(x), T_3(x), ... times the first row, behind the first two."""
    for i in range(2, degree):
        three = out[(i - 2) * _CHUNK : (i + 1) * _CHUNK]
        x = out[degree * _CHUNK : (degree + 1) * _CHUNK]
        for j in range(_CHUNK):
            three[2 * _CHUNK + j] = 2 * x[j] * three[_CHUNK + j] - three[j]


@part(fastmath=FAST)
def _add_product(left, right, out):
    """Add left @ right to out; columns of left beyond the rows of right are ignored."""
    for i in range(out.shape[0]):
        for k in range(right.shape[0]):
            factor = left[i, k]
            for j in range(out.shape[1]):
                out[i, j] += factor * right[k, j]


@part
def _top_of(frame):
    """Return t_0 of y_c, and n_c with the sign of c_n."""
    centre = np.zeros(3)
    for i in range(3):
        for j in range(3):
            centre[i] += frame[j] * frame[3 + 3 * i + j]
    n_c = math.sqrt(max(0.0, 1 - centre[1] ** 2 - centre[2] ** 2))
    n_c = n_c if centre[0] > 0 else -n_c
    return n_c - centre[0], n_c


def node_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for p <= MOST the Chebyshev nodes x_i, and the weights (2 - [k = 0]) T_k(x_i) / p.

    The latter, p x i x k and p x k x i, turn sums of masses times T_k into masses at the nodes.
    """
    places, weights = np.zeros((MOST + 1, MOST)), np.zeros((MOST + 1, MOST, MOST))
    for p in range(1, MOST + 1):
        angle = np.pi * (np.arange(p) + 0.5) / p
        places[p, :p] = np.cos(angle)
        weights[p, :p, :p] = np.cos(np.outer(angle, np.arange(p))) * 2 / p
        weights[p, :p, 0] /= 2
    return places, weights, np.ascontiguousarray(np.swapaxes(weights, 1, 2))


@kernel
def place_proxies(frame, half, fitted, tables, rows, starts, out):
    """Write the points, log |masses|, signs and t_0, t_1, t_2 of the proxy points of all clusters.

    Points that fill up a cluster to whole leaves have no mass.
    """
    points, log_masses, signs, local = out
    for group in range(len(frame)):
        own, row, tau = frame[group], rows[group], fitted[group, 2:]
        p, q = int(fitted[group, 0]), int(fitted[group, 1])
        above, n_c = _top_of(own)
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
            mass = row[_HEADER + k] if place < p * q else 0.0
            signs[j] = 1.0 if mass >= 0 else -1.0
            log_masses[j] = NO_MASS
            if mass != 0:
                trend = tau[0] * (n - above) + tau[1] * a + tau[2] * b
                log_masses[j] = math.log(abs(mass)) + row[2] + trend


@kernel
def points_needed(half, curvature, wanted):
    """Return how many points interpolate f to exp(-wanted) of the largest f, an even number.

    Args:
        half: half length of the cluster in this direction.
        curvature: |w|, and that of the log masses.
        wanted: minus the logarithm of the error.
    """
    least = MOST
    for k in range(len(RADII)):
        x, y, log_r, factor = RADII[k, 1], RADII[k, 2], RADII[k, 3], RADII[k, 4]
        room = 1 - half * half * (1 + x * x)
        if room < 0.05:
            break
        rest = (half * half * x * y) ** 2 / room
        needed = wanted + factor + (half * y) ** 2 + rest
        needed += curvature * ((half * y) ** 2 + rest) / 2
        least = min(least, 1 + math.ceil(max(needed, 0.0) / log_r))
    return max(2, least + least % 2)


@part
def interpolation_error(block, mean, level, frame, half, nodes, corners):
    """Return a bound of a cluster's error as a part of Z(w), for all w of a block.

    It is largest at a corner of the box: at every point the bound of log |f| is linear in w, or the
    larger of two such.

    Args:
        block: box of the scores.
        mean: m(w_0) at its centre.
        level: log Z(w_0).
        frame: centre and axes of the cluster.
        half: half lengths.
        nodes: p, q, tau in the axes, log sum_j M'_j.
        corners: 8 x 4, overwritten.
    """
    centre, point, w = np.empty(3), np.empty(3), np.empty(3)
    for i in range(3):
        axis = frame[3 + 3 * i : 6 + 3 * i]
        centre[i] = frame[0] * axis[0] + frame[1] * axis[1] + frame[2] * axis[2]
    square = 1 - centre[1] ** 2 - centre[2] ** 2
    if square < 0.1:
        return math.inf
    n_c, side = math.sqrt(square), 1.0 if centre[0] > 0 else -1.0
    base = nodes[5] - level
    for i in range(3):
        point[i] = frame[i] + (side * n_c - centre[0]) * frame[3 + i]
        base += block[i] * mean[i]
    for corner in range(8):
        held = base
        for i in range(3):
            w[i] = block[i]
            for j in range(3):
                w[i] += block[3 + 3 * j + i] * (1 if corner >> j & 1 else -1)
            held += w[i] * (point[i] - mean[i])
        for i in range(3):
            x, y, z = frame[3 + 3 * i], frame[4 + 3 * i], frame[5 + 3 * i]
            corners[corner, i] = w[0] * x + w[1] * y + w[2] * z + nodes[2 + i]
        corners[corner, 0] *= side / n_c
        corners[corner, 3] = held
    first = _along((1, 2), corners, centre, half, nodes[0])
    second = math.log(LEBESGUE) + _along((2, 1), corners, centre, half, nodes[1])
    return math.exp(min(first, 0.0)) + math.exp(min(second, 0.0))


@part
def _along(axis, corners, centre, half, count):
    """Return the logarithm of the error of interpolation in one direction, over all corners.

    Every ellipse gives a bound; taken is the best one at the corner that is worst by a middle one.
    """
    best, worst, highest = len(RADII) // 2, 0, -math.inf
    for c in range(8):
        corner = corners[c, 0], corners[c, 1], corners[c, 2], corners[c, 3]
        found = _at(best, axis, corner, centre, half)
        if found > highest:
            worst, highest = c, found
    corner = corners[worst, 0], corners[worst, 1], corners[worst, 2], corners[worst, 3]
    least = math.inf
    for step in range(len(RADII)):
        found = _at(step, axis, corner, centre, half)
        found += RADII[step, 4] - (count - 1) * RADII[step, 3]
        if found < least:
            best, least = step, found
    highest = -math.inf
    for c in range(8):
        corner = corners[c, 0], corners[c, 1], corners[c, 2], corners[c, 3]
        highest = max(highest, _at(best, axis, corner, centre, half))
    return highest + RADII[best, 4] - (count - 1) * RADII[best, 3]


@part
def _at(step, axis, corner, centre, half):
    """Return the logarithm of the largest |y f| in an ellipse.

    Args:
        step: number of the ellipse.
        axis: of the direction, and the other one.
        corner: W_n / n_c, W_a, W_b, and the logarithm of what multiplies f.
        centre: of the group in its axes.
        half: half lengths.
    """
    one, other = axis
    edge = abs(centre[other]) + half[other]
    x, y = RADII[step, 1], RADII[step, 2]
    real, imaginary = abs(centre[one]) + half[one] * x, half[one] * y
    room = 1 - edge * edge - real * real
    if room < 0.05:
        return math.inf
    rest = (real * imaginary) ** 2 / room
    k, w, v, held = corner
    if k < 0:
        found = _rough(w, k, centre[one], half[one] * x)
        found += _rough(v, k, centre[other], half[other])
    else:
        found = _highest(w - k * centre[one], k, half[one], x, y) + k * rest / 2
        found += _highest(v - k * centre[other], k, half[other], 1.0, 0.0)
    return held + found + imaginary * imaginary + rest


@part
def _highest(slope, k, half, x, y):
    """Return g_a for the ellipse with half axes x and y times the half length; k >= 0."""
    quadratic = k * (x * x + y * y) * half * half
    linear = abs(slope) * half * x
    least = k * half * half * y * y / 2
    if quadratic > linear:
        return least + linear * linear / (2 * quadratic)
    return least + linear - quadratic / 2


@part
def _rough(w, k, centre, far):
    """Return the same for W_n < 0, for points up to `far` from the centre, complex ones, too.

    By |Re sqrt(1 - b^2 - z^2) - n_c| <= |1 - b^2 - z^2 - n_c^2| / n_c, in which the difference of
    z^2 from that of the centre is far (2 |centre| + far) at most.
    """
    return abs(w) * far + abs(k) * far * (2 * abs(centre) + far)


@part
def proxy_errors(block, mean, level, cells):
    """Return a bound of the error of all clusters found as a part of Z(w), for all w of a block."""
    frame, half, nodes, found = cells
    error, corners = 0.0, np.empty((8, 4))
    for k in found:
        error += interpolation_error(block, mean, level, frame[k], half[k], nodes[k], corners)
    return error
