"""Densities at the facets, from slopes of their logarithm: compiled, and laid out for vectors.

    rho_f = rho_c exp(g_f),     |g_f| <= STEEPEST,

with g_f the least-squares slope of log rho in the cell, times the way from its centre to the facet,
or to a point of it.
Logarithm and exponential are written out here: a loop that calls those of the C library does one
number at a time, 2.8 instead of 0.55 ns for a logarithm, and 5.6 instead of 2.1 ns for a facet's
factor (5,120 cells). A step with an attention sum would take 1 to 3 % longer, but a run at zero
temperature is all transport: `solve` on 4,000 cells of the circle to t = 10 takes 20 % longer with
`math.log` (0.24 s for 0.20 s), on 20,480 of the sphere to t = 3 at most 8 %.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.mesh.gradients import STEEPEST
from meanfield_pde.support.kernels import kernel, part

# A double x in [2^-1022, inf) is 2^k m with m in [sqrt(1/2), sqrt(2)); the sum of 2^52 and
# such a k is exact.
_SPLIT = np.int64(0x3FE6A09E667F3BCD)  # the bits of sqrt(1/2)
_ONE = np.int64(0x3FF0000000000000)  # the bits of 1
_FRACTION = np.int64(0x000FFFFFFFFFFFFF)  # the 52 bits behind the exponent
_MAGIC = np.int64(0x4330000000000000)  # the bits of 2^52
_BIAS = 2.0**52 + 1023.0  # what _MAGIC adds, and what exponents are stored with
_SMALLEST = float(np.finfo(float).tiny)
_INVERSE_FACTORIALS = tuple(1.0 / math.factorial(k) for k in range(15))
_LOG = (  # coefficients of R, from fdlibm
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
# log 2 in two parts, of which k times the first is exact.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# Bound on exponents from below, at the end of an edge: `exponentials` err by 4e-12 there.
_LEAST = -2.0


# What follows is compiled, and carries no types: numba compiles it for the arguments it meets.


@part
def logarithms(values, out):
    """Logarithms of numbers >= 0, to 1 ulp; -inf below the smallest normal double.

    With f = m - 1 and s = f / (2 + f), log m = f - s f + s R(s^2), R a minimax polynomial: the
    function of fdlibm.
    """
    for c in range(values.size):
        shifted = np.float64(values[c]).view(np.int64) + (_ONE - _SPLIT)
        k = np.int64((shifted >> 52) | _MAGIC).view(np.float64) - _BIAS
        f = np.int64((shifted & _FRACTION) + _SPLIT).view(np.float64) - 1.0
        s = f / (2.0 + f)
        z = s * s
        w = z * z
        odd = w * (_LOG[1] + w * (_LOG[3] + w * _LOG[5]))
        even = z * (_LOG[0] + w * (_LOG[2] + w * (_LOG[4] + w * _LOG[6])))
        half = 0.5 * f * f
        log = k * _LN2_HIGH - ((half - (s * (half + odd + even) + k * _LN2_LOW)) - f)
        out[c] = log if values[c] >= _SMALLEST else -np.inf


def facet_numbers(dimension: int) -> tuple[int, ...]:
    """The facets of a cell: loops over a tuple, whose length a kernel knows, are unrolled."""
    return tuple(range(dimension))


@part
def limited_slopes(facets, log_density, neighbours, weights, c, out):
    """Write g at the points of cell c to its row of `out`, limited; 0 beside an empty cell."""
    here = log_density[c]
    # Beside an empty cell (below the smallest double) there is no slope to speak of.
    resolved = here > -np.inf
    for j in range(len(facets)):
        resolved = resolved and log_density[neighbours[c, j]] > -np.inf
    for k in range(weights.shape[1]):
        slope = 0.0
        for j in range(len(facets)):
            slope += weights[c, k, j] * (log_density[neighbours[c, j]] - here)
        out[c, k] = slope
    limit(facets, resolved, out, c)


@part
def limit(facets, resolved, slopes, row):
    """Scale a row of slopes g at points of a cell to |g| <= STEEPEST; to 0 if not resolved.

    Of two points of a facet the middle between them is what is limited: they are farther out, and
    slopes that are resolved would be scaled back. Their densities exp(m -+ r - r^2 / 2) have that
    of the middle m for their mean, to the fourth order in r: two points alone, of a scheme of
    second order, would make clusters wider.
    """
    d, count = len(facets), slopes.shape[1]
    steepest = STEEPEST
    pairs = d == 3 and count == 6
    if pairs:
        for i in range(d):
            first, second = slopes[row, 2 * i], slopes[row, 2 * i + 1]
            slopes[row, 2 * i] = 0.5 * (first + second)
            slopes[row, 2 * i + 1] = 0.5 * (second - first)
            steepest = max(steepest, abs(slopes[row, 2 * i]))
    else:
        for k in range(count):
            steepest = max(steepest, abs(slopes[row, k]))
    share = STEEPEST / steepest
    if not resolved:
        for k in range(count):
            slopes[row, k] = 0.0
    elif pairs:
        for i in range(d):
            middle, rise = share * slopes[row, 2 * i], share * slopes[row, 2 * i + 1]
            middle -= 0.5 * rise * rise
            slopes[row, 2 * i] = min(max(middle - rise, _LEAST), STEEPEST)
            slopes[row, 2 * i + 1] = min(max(middle + rise, _LEAST), STEEPEST)
    else:
        for k in range(count):
            slopes[row, k] *= share


@kernel
def face_factors(facets, log_density, neighbours, weights, factors):
    """exp(g) at points of the facets of cells, from the log densities of them and of others.

    Args:
        facets: the numbers of a cell's facets.
        log_density: of all cells.
        neighbours: of those whose factors are wanted.
        weights: W[c, k, j]; g at point k of cell c is sum_j W (log rho_j - log rho_c). The points
            of a facet follow one another.
        factors: the result, cells x points.
    """
    for c in range(neighbours.shape[0]):
        limited_slopes(facets, log_density, neighbours, weights, c, factors)
    exponentials(factors.reshape(-1))


@part
def exponentials(values):
    """Exponentials of numbers up to 2 in size, in place.

    exp(x) = exp(x / 2)^2, the latter by its series: |x| <= 1 leaves 1e-17, and 2 leaves 4e-12.
    """
    for e in range(values.size):
        x = 0.5 * values[e]
        series = _INVERSE_FACTORIALS[14]
        for k in range(13, -1, -1):
            series = series * x + _INVERSE_FACTORIALS[k]
        values[e] = series * series
