"""Low rank: the sum for short scores, by Fourier modes or spherical harmonics.

With w = r u, |u| = 1, and y on the circle or the sphere at the angle g from u,

    exp(<w, y>) = sum_k (2 - [k = 0]) I_k(r) cos(k g) = sum_k (2 k + 1) i_k(r) P_k(cos g),

and the addition theorem separates u from y. Sources enter through their moments, and the cost is
(sources + targets) x terms instead of sources x targets. The sum over y that the mean needs is the
same expansion for the masses M y, whose moments follow from those of M.

*The bound.* The weights of the terms are positive and add up to e^r. What is left out beyond the
degree L is therefore at most e^r T_L(r) times the mass, T_L the share of the weights beyond L;
rounding adds a multiple of the machine's precision. Against a Z that may be as small as e^-r times
the mass this is an absolute error e, so that a mean is accepted only if the Z found shows that it
is within the tolerance: both sums being in error by at most e, the mean is by at most 2 e / Z, and
log Z by less.

Terms are numbered order by order: those of order m are offset[m] to offset[m + 1], of degrees m,
m + 1, ... Loops take two degrees at a time, so that p_(k-1) and p_(k-2) change places without a
copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meanfield_pde.attention.sum.exponential import FAST
from meanfield_pde.attention.sum.tree import TILE
from meanfield_pde.support.kernels import kernel, part
from meanfield_pde.support.threads import in_parts

_EPSILON = float(np.finfo(float).eps)
# Groups in which the moments of sources are summed. They are added up in this order, so that sums
# are the same bits on any number of ranks, of which no more than these share the moments.
GROUPS = 32
_SUMS = 16  # lanes in which a sum over sources is kept: two vectors, and four sums of each
_CHUNK = 8 * _SUMS  # sources whose harmonics are computed at once: 9 rows of 1 KB, in the L1 cache
# Where the rows of a chunk begin, all in one array: the compiler takes arrays of their own to
# overlap perhaps, and does not vectorise loops over them.
_Z, _ONE, _TWO, _EVEN, _ODD, _SINE, _POWER, _TURN_X, _TURN_Y = range(0, 9 * _CHUNK, _CHUNK)
BATCH = 8  # tiles of targets whose harmonics are computed at once: rows of 1 KB, as above
_LANES = BATCH * TILE
# Degrees beyond the last at which ratios of Bessel functions are started. Their error shrinks by
# the square of a ratio with each: for the longest scores by 0.65^48 = 1e-9, of weights that are
# themselves 1e-14 of the sum there.
_AHEAD = 24


@dataclass(frozen=True)
class HarmonicSettings:
    """Settings of the expansion in harmonics.

    Attributes:
        highest_degree: scores that need more have no expansion. 160 serves |w| up to 390, where the
            13,000 terms on the sphere take four times as long as the direct sum (80,000 cells).
        truncation: part of the tolerance that the terms left out may take where Z is largest. A
            tenth of it costs one to six degrees; more means fewer targets whose Z is large enough.
    """

    highest_degree: int = 160
    truncation: float = 1e-4


class HarmonicExpansion:
    """The expansion to degree L; its terms are numbered order by order, (m, k) with k >= m.

    On the sphere a term is p_km(z) e^(i m f), z the third coordinate and f the longitude, with
    p_km = sqrt((2 - [m = 0]) (k - m)! / (k + m)!) P_k^m, so that the addition theorem reads
    P_k(cos g) = sum_m p_km(z) p_km(z') cos m (f - f'). On the circle it is e^(i m f), k = m only.

    Attributes:
        degree: L.
        terms: number of terms of the sources' moments, which go to the degree L + 1.
        error: bound on the error of a sum, relative to e^r times the mass.
    """

    def __init__(
        self, dimension: int, degree: int, longest: float, settings: HarmonicSettings
    ) -> None:
        self.dimension = dimension
        self.degree = degree
        # An allowance for rounding: tested (test_the_bound_on_the_sums_holds_with_room), not
        # proved.
        self.error = (
            2 * float(_beyond(longest, dimension, settings)[degree]) + (degree + 32) * _EPSILON
        )
        self._outer = _Terms(dimension, degree + 1)
        self._inner = _Terms(dimension, degree)
        self.terms = len(self._outer.grade)

    def moments(
        self, points: np.ndarray, masses: np.ndarray, groups: np.ndarray, threads: int = 1
    ) -> np.ndarray:
        """Return the moments of the groups listed, groups x 2 x terms (real, imaginary)."""
        terms = self._outer
        out = np.empty((len(groups), 2, self.terms))

        def do(part: tuple[int, int]) -> None:
            _group_moments(
                part, points, masses, groups, terms.first, terms.second, terms.start, terms.offset,
                out,
            )  # fmt: skip

        in_parts(do, len(groups), threads)
        return out

    def sums(
        self, scores: np.ndarray, tiles: np.ndarray, total: np.ndarray, threads: int = 1
    ) -> np.ndarray:
        """Return rows e^-r sum_j M_j y_j e^<w, y_j> and e^-r Z for the targets of the tiles listed.

        Args:
            scores: 3 x N.
            tiles: numbers of the tiles.
            total: the moments added up over all groups, 2 x terms.
            threads: how many share the tiles.
        """
        terms = self._inner
        fields = self._fields(total[0] + 1j * total[1])
        out = np.empty((4, len(tiles) * TILE))

        def do(part: tuple[int, int]) -> None:
            _sums_at_targets(
                part, scores, tiles, fields, terms.first, terms.second, terms.start, terms.offset,
                self.dimension, out,
            )  # fmt: skip

        in_parts(do, -(-len(tiles) // BATCH), threads)
        return out

    def _fields(self, packed: np.ndarray) -> np.ndarray:
        """Return the moments of M x, M y, M z, M to degree L, terms x 8, from those of M to L + 1.

        Up and down are the moments of M (x ± i y); the formulas are the recurrences of the
        associated Legendre functions, with the norms of p_km.
        """
        outer, inner = self._outer, self._inner
        moment = np.zeros((self.degree + 3, self.degree + 3), dtype=complex)
        moment[outer.order, outer.grade] = packed
        m, k = inner.order, inner.grade
        same = moment[m, k]
        if self.dimension == 2:
            up = moment[m + 1, k + 1]
            down = np.where(m > 0, moment[m - 1, k - 1], np.conj(up))
            along = np.zeros_like(same)
        else:
            # An index of -1 meets a factor of zero, or the last row, which is empty.
            along = np.sqrt((k + 1) ** 2 - m**2) * moment[m, k + 1]
            along = (along + np.sqrt(k**2 - m**2) * moment[m, k - 1]) / (2 * k + 1)
            up = np.sqrt((k + m + 1) * (k + m + 2)) * moment[m + 1, k + 1]
            up -= np.sqrt(np.maximum((k - m) * (k - m - 1), 0)) * moment[m + 1, k - 1]
            up *= np.where(m == 0, np.sqrt(0.5), 1.0) / (2 * k + 1)
            down = np.sqrt(np.maximum((k + m) * (k + m - 1), 0)) * moment[m - 1, k - 1]
            down -= np.sqrt((k - m + 1) * (k - m + 2)) * moment[m - 1, k + 1]
            down *= np.where(m == 1, np.sqrt(2.0), 1.0) / (2 * k + 1)
            down = np.where(m > 0, down, np.conj(up))
        fields = np.stack([(up + down) / 2, (up - down) / 2j, along, same], axis=1)
        return np.ascontiguousarray(fields).view(float)


class _Terms:
    """The terms up to a degree, and the recurrence p_k = first z p_(k-1) - second p_(k-2)."""

    def __init__(self, dimension: int, degree: int) -> None:
        size = degree + 1
        counts = size - np.arange(size) if dimension == 3 else np.ones(size, dtype=int)
        self.offset = np.concatenate([[0], np.cumsum(counts)])
        self.order = m = np.repeat(np.arange(size), counts)
        self.grade = k = m + np.arange(len(m)) - self.offset[m]
        root = np.sqrt(np.maximum(k**2 - m**2, 1))
        self.first = np.where(k > m, (2 * k - 1) / root, 0.0)
        self.second = np.where(k > m + 1, np.sqrt(np.maximum((k - 1) ** 2 - m**2, 0)) / root, 0.0)
        # p_mm = start_m sin^m.
        step = np.arange(1.0, size)
        growth = np.sqrt((2 * step - 1) / (2 * step) * np.where(step == 1, 2.0, 1.0))
        self.start = np.append(1.0, np.cumprod(growth)) if dimension == 3 else np.ones(size)


def degree_for(
    longest: float, tolerance: float, dimension: int, settings: HarmonicSettings
) -> int | None:
    """Return the degree L that scores of length `longest` need; None if beyond the highest."""
    tail = _beyond(longest, dimension, settings)[: settings.highest_degree + 1]
    enough = tail <= settings.truncation * tolerance + _EPSILON
    return int(enough.argmax()) if enough.any() else None


def _beyond(r: float, dimension: int, settings: HarmonicSettings) -> np.ndarray:
    """Return T_L(r) for L = 0, 1, ...: the share of the weights beyond degree L.

    The ratios of neighbours, I_k / I_(k-1) = r / (r I_(k+1) / I_k + 2 k) and the same with 2 k + 1
    for i_k, are stable from the top down.
    """
    last = 3 * settings.highest_degree  # beyond, weights are below 1e-100 of their sum
    ratio = np.ones(last + 1)
    following = 0.0
    for k in range(last, 0, -1):
        following = ratio[k] = r / (r * following + 2 * k + dimension - 2)
    number = np.arange(last + 1)
    multiplicity = 2.0 * number + 1 if dimension == 3 else np.where(number > 0, 2.0, 1.0)
    weight = multiplicity * np.cumprod(ratio)
    # Summed from the small end, with nothing beyond the last.
    beyond = np.append(np.cumsum(weight[:0:-1])[::-1], 0.0)
    return beyond / weight.sum()


def all_groups() -> np.ndarray:
    """Return the numbers of all groups in which the moments are summed."""
    return np.arange(GROUPS)


def range_of(groups: np.ndarray, count: int) -> slice:
    """Return the sources, of `count` in the order of the tree, that make up a range of groups."""
    if not groups.size:
        return slice(0, 0)
    share = -(-count // GROUPS)
    return slice(int(groups[0]) * share, (int(groups[-1]) + 1) * share)


@kernel(fastmath=FAST)
def _group_moments(part, points, masses, groups, first, second, start, offset, out):
    """Write sum_j M_j p_km(z_j) e^(i m f_j), groups x 2 x terms, for a range of those listed."""
    share = -(-masses.size // GROUPS)
    work = np.empty(9 * _CHUNK)
    # One row more than terms, for the second degree of a pair that has none.
    sums = np.empty((first.size + 1, 2 * _SUMS))
    for position in range(part[0], part[1]):
        begin = groups[position] * share
        end = min(begin + share, masses.size)
        for term in range(first.size + 1):
            for i in range(2 * _SUMS):
                sums[term, i] = 0.0
        for chunk in range(begin, end, _CHUNK):
            count = min(_CHUNK, end - chunk)
            for i in range(count):
                j = chunk + i
                x, y = points[0, j], points[1, j]
                across = math.sqrt(x * x + y * y)
                work[_Z + i] = points[2, j]
                work[_SINE + i] = across
                work[_TURN_X + i] = x / across if across > 0 else 1.0
                work[_TURN_Y + i] = y / across if across > 0 else 0.0
                work[_EVEN + i] = masses[j]
            for i in range(count, _CHUNK):  # a last chunk that is not full has no masses there
                work[_Z + i] = work[_SINE + i] = work[_TURN_Y + i] = work[_EVEN + i] = 0.0
                work[_TURN_X + i] = 1.0
            for i in range(_CHUNK):
                work[_ODD + i] = 0.0
                work[_POWER + i] = 1.0
            for m in range(start.size):
                scale, lanes = start[m], sums[offset[m]]
                for i in range(_CHUNK):
                    work[_ONE + i] = scale * work[_POWER + i]
                    work[_TWO + i] = 0.0
                for i in range(_SUMS):
                    for j in range(i, _CHUNK, _SUMS):
                        lanes[i] += work[_ONE + j] * work[_EVEN + j]
                        lanes[_SUMS + i] += work[_ONE + j] * work[_ODD + j]
                for term in range(offset[m] + 1, offset[m + 1], 2):
                    after = term + 1 if term + 1 < offset[m + 1] else first.size
                    f, s = first[term], second[term]
                    g, t = (0.0, 0.0) if after == first.size else (first[after], second[after])
                    _two_degrees(f, s, g, t, work, sums[term], sums[after])
                for i in range(_CHUNK):
                    work[_POWER + i] *= work[_SINE + i]
                    kept = work[_EVEN + i]
                    work[_EVEN + i] = kept * work[_TURN_X + i] - work[_ODD + i] * work[_TURN_Y + i]
                    work[_ODD + i] = kept * work[_TURN_Y + i] + work[_ODD + i] * work[_TURN_X + i]
        for term in range(first.size):
            for k in range(2):
                total = 0.0
                for i in range(_SUMS):
                    total += sums[term, k * _SUMS + i]
                out[position, k, term] = total


@part(fastmath=FAST)
def _two_degrees(f, s, g, t, work, here, there):
    """Compute two degrees of an order for a chunk of sources, and add them to sums in lanes.

    A sum over the sources themselves would not be vectorised, since that changes its order; nor
    would this be if `work`, rows of z, two degrees, M cos m f, M sin m f, were five arrays.
    """
    for i in range(_SUMS):
        z, one, two = work[_Z + i], work[_ONE + i], work[_TWO + i]
        even, odd = work[_EVEN + i], work[_ODD + i]
        a = f * z * one - s * two
        b = g * z * a - t * one
        work[_TWO + i], work[_ONE + i] = a, b
        real, imaginary, next_real, next_imaginary = a * even, a * odd, b * even, b * odd
        for strip in range(1, 8):
            k = i + strip * _SUMS
            z, one, two = work[_Z + k], work[_ONE + k], work[_TWO + k]
            even, odd = work[_EVEN + k], work[_ODD + k]
            a = f * z * one - s * two
            b = g * z * a - t * one
            work[_TWO + k], work[_ONE + k] = a, b
            real += a * even
            imaginary += a * odd
            next_real += b * even
            next_imaginary += b * odd
        here[i] += real
        here[_SUMS + i] += imaginary
        there[i] += next_real
        there[_SUMS + i] += next_imaginary


@kernel(fastmath=FAST)
def _sums_at_targets(batches, scores, tiles, fields, first, second, start, offset, dimension, out):
    """Write the four sums times e^-r for a range of batches of the tiles listed, 4 x targets."""
    weight = np.empty((start.size, _LANES))
    room, part, total = np.empty((10, _LANES)), np.empty((8, _LANES)), np.empty((4, _LANES))
    r, z, sine, turn_x, turn_y = room[0], room[1], room[2], room[3], room[4]
    even, odd, power, one, two = room[5], room[6], room[7], room[8], room[9]
    for batch in range(batches[0], batches[1]):
        for i in range(_LANES):
            even[i], odd[i], power[i] = 1.0, 0.0, 1.0  # cos m f, sin m f, sine^m
            for k in range(4):
                total[k, i] = 0.0
            # A last batch that is not full repeats its last target.
            place = min(batch * _LANES + i, tiles.size * TILE - 1)
            target = tiles[place // TILE] * TILE + place % TILE
            a, b, c = scores[0, target], scores[1, target], scores[2, target]
            across = math.sqrt(a * a + b * b)
            r[i] = math.sqrt(across * across + c * c)
            z[i] = c / r[i] if r[i] > 0 else 1.0
            sine[i] = across / r[i] if r[i] > 0 else 0.0
            turn_x[i] = a / across if across > 0 else 1.0
            turn_y[i] = b / across if across > 0 else 0.0
        _weights(r, dimension, weight)
        for m in range(start.size):
            scale, q = start[m], fields[offset[m]]
            for i in range(_LANES):
                one[i] = scale * power[i]
                two[i] = 0.0
                here = one[i] * weight[m, i]
                for k in range(8):
                    part[k, i] = here * q[k]
            for term in range(offset[m] + 1, offset[m + 1], 2):
                after = min(term + 1, offset[m + 1] - 1)
                f, s, g, t = first[term], second[term], first[after], second[after]
                k = m + term - offset[m]
                above = k + after - term
                active = 1.0 if after > term else 0.0
                q, p = fields[term], fields[after]
                for i in range(_LANES):
                    here = f * z[i] * one[i] - s * two[i]
                    there = g * z[i] * here - t * one[i]
                    two[i] = here
                    one[i] = there
                    here *= weight[k, i]
                    there *= weight[above, i] * active
                    part[0, i] += here * q[0] + there * p[0]
                    part[1, i] += here * q[1] + there * p[1]
                    part[2, i] += here * q[2] + there * p[2]
                    part[3, i] += here * q[3] + there * p[3]
                    part[4, i] += here * q[4] + there * p[4]
                    part[5, i] += here * q[5] + there * p[5]
                    part[6, i] += here * q[6] + there * p[6]
                    part[7, i] += here * q[7] + there * p[7]
            for i in range(_LANES):
                for k in range(4):
                    total[k, i] += part[2 * k, i] * even[i] + part[2 * k + 1, i] * odd[i]
                power[i] *= sine[i]
                kept = even[i]
                even[i] = kept * turn_x[i] - odd[i] * turn_y[i]
                odd[i] = kept * turn_y[i] + odd[i] * turn_x[i]
        begin = batch * _LANES
        end = min(begin + _LANES, tiles.size * TILE)
        for k in range(4):
            for i in range(begin, end):
                out[k, i] = total[k, i - begin]


@part(fastmath=FAST)
def _weights(r, dimension, weight):
    """Write rows (2 k + 1) i_k(r) or (2 - [k = 0]) I_k(r), divided by their sum, which is e^r.

    Ratios of neighbours come from the top down, from an estimate whose error shrinks by the square
    of a ratio with every step.
    """
    size = weight.shape[0]
    room = np.empty((3, _LANES))
    ratio, total, product = room[0], room[1], room[2]
    top = size + _AHEAD
    for i in range(_LANES):
        ratio[i] = r[i] / (top + math.sqrt(top * top + r[i] * r[i]))
    for k in range(top, 0, -1):
        for i in range(_LANES):
            ratio[i] = r[i] / (r[i] * ratio[i] + (2 * k + dimension - 2))
        if k < size:
            for i in range(_LANES):
                weight[k, i] = ratio[i]
    for i in range(_LANES):
        weight[0, i] = total[i] = product[i] = 1.0
    for k in range(1, size):
        multiplicity = 2.0 * k + 1 if dimension == 3 else 2.0
        for i in range(_LANES):
            product[i] *= weight[k, i]
            weight[k, i] = multiplicity * product[i]
            total[i] += weight[k, i]
    for k in range(size):
        for i in range(_LANES):
            weight[k, i] /= total[i]
