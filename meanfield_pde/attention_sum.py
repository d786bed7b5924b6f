"""The attention sum: softmax means over a weighted point set, with a bound on the error.

For scores w_i and sources y_j with masses M_j,

    Z_i = sum_j M_j exp(<w_i, y_j>),     m_i = (1 / Z_i) sum_j M_j exp(<w_i, y_j>) y_j.

This is nearly all of the run time. Sources and targets are sorted into compact blocks and tiles.
For a tile of targets and a block k of sources in a ball of centre c, radius r and log mass l,

    log sum_{j in k} M_j exp(<w, y_j>)  <=  <w, c> + |w| r + l,

and by Jensen's inequality the same sum is at least exp(<w, block mean> + l). A block whose upper
bound is below the best lower bound by log(tolerance / (2 x blocks)) is skipped for the whole tile:
together the skipped blocks hold less than tolerance / 2 of Z_i, so that m_i, which lies in the unit
ball, is in error by less than the tolerance. Only log masses enter: masses of 1e-300 are as exact
as any.

A tile is computed by one thread of one rank, and tiles do not depend on how many there are of
either: the results are the same bit for bit on every number of ranks and threads.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from meanfield_pde.errors import InputError

TILE = 32  # targets that share the decision which blocks to visit; a multiple of the vector length
BLOCK = 64  # sources in a block
NO_MASS = -1e290  # log of a mass of zero: finite, so that no inf - inf arises in vector code
# Beyond this the rounding of a score is as large as the differences that decide a softmax.
LARGEST_SCORE = 1e14
# Exponents above this are never handed to the vector exponential: such blocks take the safe path.
LARGEST_EXPONENT = 600.0
# Reassociation and fused operations are allowed; signs of zero and infinities do not matter here.
_FAST = {"contract", "nsz", "nnan", "ninf", "arcp", "reassoc"}


@numba.njit(inline="always", fastmath={"contract", "nsz", "nnan", "ninf"})
def _exp(x):  # type: ignore[no-untyped-def]  # numba compiles for the argument it meets
    """exp(x) to 3e-16 for -708 <= x <= 709, smaller x taken as -708; written so that it vectorises.

    x = k log 2 + r with |r| <= log(2) / 2, then the Taylor polynomial of degree 11 in r.
    """
    x = max(x, -708.0)
    k = np.floor(x * 1.4426950408889634 + 0.5)
    r = (x - k * 6.93145751953125e-1) - k * 1.42860682030941723212e-6
    p = 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * np.int64((np.int64(k) + 1023) << 52).view(np.float64)


@numba.njit(cache=True)
def _summarise(points, log_masses, block_log_mass, block_mean):  # type: ignore[no-untyped-def]
    """Log mass and mass-weighted mean point of each block of sources."""
    for k in range(block_log_mass.size):
        start = k * BLOCK
        largest = NO_MASS
        for j in range(start, start + BLOCK):
            largest = max(largest, log_masses[j])
        block_log_mass[k] = largest
        block_mean[:, k] = 0.0
        if largest == NO_MASS:
            continue
        total = 0.0
        for j in range(start, start + BLOCK):
            share = math.exp(log_masses[j] - largest)
            total += share
            for i in range(3):
                block_mean[i, k] += share * points[i, j]
        block_mean[:, k] /= total
        block_log_mass[k] = largest + math.log(total)


@numba.njit(cache=True, parallel=True, fastmath=_FAST)
def _tile_sums(  # type: ignore[no-untyped-def]
    scores, tiles, points, log_masses, centre, radius, block_log_mass, block_mean, slack, out
):
    """For each tile listed, the rows Z exp(-reference), sums of y, and reference of `out`."""
    blocks = block_log_mass.size
    for position in numba.prange(tiles.size):
        first = tiles[position] * TILE
        a = scores[0, first : first + TILE]
        b = scores[1, first : first + TILE]
        c = scores[2, first : first + TILE]
        norm = np.empty(TILE)
        reference = np.full(TILE, 2 * NO_MASS)
        best = np.zeros(TILE, np.int64)
        for i in range(TILE):
            norm[i] = math.sqrt(a[i] * a[i] + b[i] * b[i] + c[i] * c[i])
        for k in range(blocks):
            x, y, z, mass = block_mean[0, k], block_mean[1, k], block_mean[2, k], block_log_mass[k]
            for i in range(TILE):
                low = a[i] * x + b[i] * y + c[i] * z + mass
                best[i] = k if low > reference[i] else best[i]
                reference[i] = max(reference[i], low)
        # Jensen's bound is loose by up to |w| r: the largest term of the best block sharpens it.
        for i in range(TILE):
            start = best[i] * BLOCK
            largest = reference[i]
            for j in range(start, start + BLOCK):
                term = a[i] * points[0, j] + b[i] * points[1, j] + c[i] * points[2, j]
                largest = max(largest, term + log_masses[j])
            reference[i] = largest

        total = np.zeros(TILE)
        sum_x = np.zeros(TILE)
        sum_y = np.zeros(TILE)
        sum_z = np.zeros(TILE)
        for k in range(blocks):
            x, y, z = centre[0, k], centre[1, k], centre[2, k]
            r, mass = radius[k], block_log_mass[k]
            excess = 2 * NO_MASS
            for i in range(TILE):
                high = a[i] * x + b[i] * y + c[i] * z + norm[i] * r + mass
                excess = max(excess, high - reference[i])
            if excess < slack:
                continue
            start = k * BLOCK
            if excess > LARGEST_EXPONENT:  # only for |w| r in the hundreds: move the reference
                for i in range(TILE):
                    largest = reference[i]
                    for j in range(start, start + BLOCK):
                        term = a[i] * points[0, j] + b[i] * points[1, j] + c[i] * points[2, j]
                        largest = max(largest, term + log_masses[j])
                    shrink = math.exp(reference[i] - largest)
                    total[i] *= shrink
                    sum_x[i] *= shrink
                    sum_y[i] *= shrink
                    sum_z[i] *= shrink
                    reference[i] = largest
            for j in range(start, start + BLOCK):
                x, y, z, mass = points[0, j], points[1, j], points[2, j], log_masses[j]
                for i in range(TILE):
                    weight = _exp(a[i] * x + b[i] * y + c[i] * z + (mass - reference[i]))
                    total[i] += weight
                    sum_x[i] += weight * x
                    sum_y[i] += weight * y
                    sum_z[i] += weight * z
        place = position * TILE
        for i in range(TILE):
            out[0, place + i] = sum_x[i] / total[i]
            out[1, place + i] = sum_y[i] / total[i]
            out[2, place + i] = sum_z[i] / total[i]
            out[3, place + i] = reference[i] + math.log(total[i])


def _bisect(points: np.ndarray, size: int) -> list[np.ndarray]:
    """Split points into compact groups of exactly `size`, the last one smaller: a kd bisection."""
    groups: list[np.ndarray] = []
    waiting = [(np.arange(len(points)), -(-len(points) // size))]
    while waiting:
        index, count = waiting.pop()
        if count == 1:
            groups.append(index)
            continue
        axis = int(np.argmax(np.ptp(points[index], axis=0)))
        left = count // 2
        order = index[np.argsort(points[index, axis], kind="stable")]
        waiting.append((order[left * size :], count - left))
        waiting.append((order[: left * size], left))
    return groups


class Sources:
    """The points y_j, sorted into blocks once; only their masses change."""

    def __init__(self, points: np.ndarray) -> None:
        groups = _bisect(points, BLOCK)
        blocks = len(groups)
        dimension = points.shape[1]
        self.count = len(points)
        self.dimension = dimension
        self.order = np.full(blocks * BLOCK, self.count)  # padding points at an extra, empty source
        self.points = np.zeros((3, blocks * BLOCK))
        self.centre = np.zeros((3, blocks))
        self.radius = np.zeros(blocks)
        for k, group in enumerate(groups):
            start = k * BLOCK
            middle = (points[group].min(axis=0) + points[group].max(axis=0)) / 2
            self.order[start : start + len(group)] = group
            self.points[:dimension, start : start + BLOCK] = middle[:, None]
            self.points[:dimension, start : start + len(group)] = points[group].T
            self.centre[:dimension, k] = middle
            self.radius[k] = np.linalg.norm(points[group] - middle, axis=1).max()
        self._log_masses = np.empty(self.count + 1)
        self._block_log_mass = np.empty(blocks)
        self._block_mean = np.empty((3, blocks))

    def sums(
        self, scores: np.ndarray, tiles: np.ndarray, log_masses: np.ndarray, tolerance: float
    ) -> np.ndarray:
        """Rows m_x, m_y, m_z, log Z for the targets of the tiles listed; scores are 3 x N."""
        np.maximum(log_masses, NO_MASS, out=self._log_masses[:-1])
        self._log_masses[-1] = NO_MASS
        sorted_masses = self._log_masses[self.order]
        _summarise(self.points, sorted_masses, self._block_log_mass, self._block_mean)
        out = np.empty((4, len(tiles) * TILE))
        _tile_sums(
            scores,
            tiles,
            self.points,
            sorted_masses,
            self.centre,
            self.radius,
            self._block_log_mass,
            self._block_mean,
            math.log(tolerance / (2 * len(self.radius))),
            out,
        )
        return out


class Targets:
    """Targets sorted into tiles by the points `where`, with their scores w."""

    def __init__(self, where: np.ndarray, scores: np.ndarray) -> None:
        largest = float(np.abs(scores).max(initial=0.0))
        if not largest <= LARGEST_SCORE:
            raise InputError(
                f"the scores beta B^T x must be finite and at most {LARGEST_SCORE:g}, got "
                f"{largest:g}; for lower temperatures set beta = inf"
            )
        groups = _bisect(where, TILE)
        order = np.concatenate(groups)
        self.count = len(where)
        self.tiles = len(groups)
        # The last tile is filled up with copies of its last target.
        self.order = np.append(order, np.full(-len(order) % TILE, order[-1]))
        self.scores = np.zeros((3, len(self.order)))
        self.scores[: scores.shape[1]] = scores[self.order].T


def softmax_mean(
    scores: np.ndarray, points: np.ndarray, log_masses: np.ndarray, *, tolerance: float = 1e-12
) -> np.ndarray:
    """Softmax mean m_i for each row w_i of scores; points are M x d, log_masses M numbers.

    The error of m_i is at most tolerance (plus rounding) times the largest |y_j|.
    """
    return _softmax(scores, points, log_masses, tolerance)[0]


def log_partition(
    scores: np.ndarray, points: np.ndarray, log_masses: np.ndarray, *, tolerance: float = 1e-12
) -> np.ndarray:
    """The logarithm of Z_i, to `tolerance`; arguments as for `softmax_mean`."""
    return _softmax(scores, points, log_masses, tolerance)[1]


def _softmax(
    scores: np.ndarray, points: np.ndarray, log_masses: np.ndarray, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    points = np.atleast_2d(np.asarray(points, dtype=float))
    if scores.shape[1] != points.shape[1] or log_masses.shape != (len(points),):
        raise InputError(
            f"targets, points and masses do not fit together: {scores.shape}, {points.shape} and "
            f"{log_masses.shape}"
        )
    if not (np.isfinite(points).all() and (log_masses < np.inf).all()):
        raise InputError("the points and masses of an attention sum must be finite numbers")
    if not (log_masses > -np.inf).any():
        raise InputError("an attention sum needs at least one mass above zero")
    if points.shape[1] > 3:
        return _softmax_any_dimension(scores, points, log_masses)
    if not len(scores):
        return np.empty((0, points.shape[1])), np.empty(0)
    targets = Targets(scores, scores)
    sums = Sources(points).sums(targets.scores, np.arange(targets.tiles), log_masses, tolerance)
    result = np.empty((4, targets.count))
    result[:, targets.order] = sums
    return np.ascontiguousarray(result[: points.shape[1]].T), result[3]


def _softmax_any_dimension(
    scores: np.ndarray, points: np.ndarray, log_masses: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The plain sum, in chunks of targets: for tokens beyond the circle and the sphere."""
    mean = np.empty((len(scores), points.shape[1]))
    log_sum = np.empty(len(scores))
    chunk = max(1, 2_000_000 // len(points))
    for start in range(0, len(scores), chunk):
        part = slice(start, start + chunk)
        exponent = scores[part] @ points.T + log_masses
        largest = exponent.max(axis=1, keepdims=True)
        weight = np.exp(exponent - largest)
        total = weight.sum(axis=1)
        mean[part] = weight @ points / total[:, None]
        log_sum[part] = largest[:, 0] + np.log(total)
    return mean, log_sum
