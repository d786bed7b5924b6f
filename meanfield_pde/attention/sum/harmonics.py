"""Compiled loops of the low-rank path: moments of the sources, sums at the targets.

Terms are numbered order by order: those of order m are offset[m] to offset[m + 1], of degrees
m, m + 1, ... Two degrees are taken at a time, so that p_(k-1) and p_(k-2) change places without a
copy; the last one is idle if their number is odd.

Compiled functions carry no types here: numba compiles them for the arguments it meets.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.attention.sum.tiles import FAST
from meanfield_pde.attention.sum.tree import TILE
from meanfield_pde.support.kernels import kernel, part

GROUPS = 32  # sources are summed in so many groups, which are added up in this order
_SUMS = 16  # lanes in which a sum over sources is kept
_CHUNK = 8 * _SUMS  # sources whose harmonics are computed at once
# Where the numbers of a chunk begin, all in one array: arrays of their own might overlap as far as
# a compiler knows, and loops over them would not be computed in vectors.
_Z, _ONE, _TWO, _EVEN, _ODD, _SINE, _POWER, _TURN_X, _TURN_Y = range(0, 9 * _CHUNK, _CHUNK)
BATCH = 8  # tiles of targets whose harmonics are computed at once
_LANES = BATCH * TILE
_AHEAD = 24  # degrees beyond the last at which the ratios of Bessel functions are started


@part(fastmath=FAST)
def _two_degrees(f, s, g, t, work, here, there):  # type: ignore[no-untyped-def]
    """The next two degrees of an order for a chunk of sources, added to their sums in lanes.

    A sum over the sources themselves would not be computed in vectors, as its order would change;
    nor would this be if `work`, rows of z, two degrees, M cos m f, M sin m f, were five arrays.
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
def moments(part, points, masses, groups, first, second, start, offset, out):  # type: ignore[no-untyped-def]
    """sum_j M_j p_km(z_j) e^(i m f_j) for part of the groups of sources listed.

    To `out`, groups x 2 x terms.
    """
    share = -(-masses.size // GROUPS)
    work = np.empty(9 * _CHUNK)
    # One more than there are terms, for the idle degree of an order.
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
def _weights(r, dimension, weight):  # type: ignore[no-untyped-def]
    """Rows (2 k + 1) i_k(r) or (2 - [k = 0]) I_k(r), divided by their sum, which is e^r.

    The ratios of neighbours come from the top down, from an estimate whose error shrinks by the
    square of a ratio with every step.
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


@kernel(fastmath=FAST)
def sums(batches, scores, tiles, fields, first, second, start, offset, dimension, out):  # type: ignore[no-untyped-def]
    """The four sums at the targets of the tiles listed, times e^-r: 4 x targets.

    Those of a range of batches of tiles.
    """
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
