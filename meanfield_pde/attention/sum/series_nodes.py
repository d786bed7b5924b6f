"""Nodes that stand for the sources of a group, wherever the kernel is much wider than a cell.

Let y = c + t_0 n + t_1 a + t_2 b in the axes of a group, and f(t_1, t_2) = exp(<w + tau, y - y_c>)
on the sphere, y_c its point with t_1 = t_2 = 0. The log masses of the group follow some <tau, y>;
any tau will do, a fit is best. With M'_j = M_j exp(-<tau, y_j - y_c>) the group's part of Z(w) is
exp(<w, y_c>) sum_j M'_j f(t_j), and a polynomial that interpolates f at p x q Chebyshev nodes
stands for f at the sources: its adjoint puts signed masses sum_j M'_j L_i(t_j) at the nodes, once
for all targets. The errors of Z and of the sum of M y exp(<w, y>) are at most sum_j M'_j times that
of the interpolation of f and of y f.

*The bound.* Let (W_n, W_a, W_b) be w + tau in the axes, (c_n, c_a, c_b) the centre, n_c = sqrt(1 -
c_a^2 - c_b^2), k = W_n / n_c, A and B the half lengths of the group. In the ellipse of parameter r
around the interval of t_1, with half axes A X and A Y, X = (r + 1/r)/2, Y = (r - 1/r)/2, the square
root is concave, and for z = c_a + x + i y

    Re sqrt(1 - b^2 - z^2) <= n_c + (1 - b^2 - Re z^2 + d - n_c^2) / (2 n_c),
    d = (Re z Im z)^2 / (1 - b^2 - (Re z)^2),

so that log |f| <= g_a + g_b + W_n d / (2 n_c), where with D = |W_a - k c_a|

    g_a = k A^2 Y^2 / 2 + max_(0 <= c <= 1) (D A X c - k A^2 (X^2 + Y^2) c^2 / 2),

and g_b is the same for the real interval of t_2, X = 1 and Y = 0. The error in t_1 is then at most
4 r^(1-p) / (r - 1) exp(g_a + g_b + ...) (Bernstein), that in t_2 the same times the Lebesgue
constant; |y|^2 <= 1 + 2 Y^2 A^2 + 2 d there. For every block it is summed over the groups with the
lower bound of Z(w) by convexity (`series`), and a block where it is too large is left to tiles.

Compiled functions carry no types here: numba compiles them for the arguments it meets.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.support.kernels import kernel, part

MOST = 48  # nodes in one direction
LEBESGUE = 3.5  # of up to MOST nodes: 2/pi log p + 1 <= 3.47
_R = np.array([1.5, 2.0, 2.5, 3.0, 3.6, 4.3, 5.2, 6.3, 8.0, 10.0, 14.0, 20.0, 40.0, 100.0])
# Rows r, X, Y, log r, log 4 / (r - 1).
RADII = np.stack(
    [_R, (_R + 1 / _R) / 2, (_R - 1 / _R) / 2, np.log(_R), np.log(4 / (_R - 1))], axis=1
)


@part
def _highest(slope, k, half, x, y):  # type: ignore[no-untyped-def]
    """g_a of the ellipse with half axes x and y times the half length; k >= 0."""
    quadratic = k * (x * x + y * y) * half * half
    linear = abs(slope) * half * x
    least = k * half * half * y * y / 2
    if quadratic > linear:
        return least + linear * linear / (2 * quadratic)
    return least + linear - quadratic / 2


@part
def _rough(w, k, centre, half, x, y):  # type: ignore[no-untyped-def]
    """The same for W_n < 0: |Re sqrt(1 - b^2 - z^2) - n_c| <= |1 - b^2 - z^2 - n_c^2| / n_c."""
    far = half * x
    return abs(w) * far + abs(k) * (far * (2 * abs(centre) + far) + half * half * y * y)


@part
def _at(step, axis, corner, centre, half):  # type: ignore[no-untyped-def]
    """The logarithm of the largest |y f| in an ellipse, in units of what multiplies f.

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
        found = _rough(w, k, centre[one], half[one], x, y) - k * rest
        found += _rough(v, k, centre[other], half[other], 1.0, 0.0)
    else:
        found = _highest(w - k * centre[one], k, half[one], x, y) + k * rest / 2
        found += _highest(v - k * centre[other], k, half[other], 1.0, 0.0)
    return held + found + imaginary * imaginary + rest


@part
def _along(axis, corners, centre, half, count):  # type: ignore[no-untyped-def]
    """The logarithm of the error of interpolation in one direction, for all corners of a block.

    By the ellipse that is best at the corner that is worst by another one; any is a bound.
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
def node_error(block, mean, level, frame, half, nodes, corners):  # type: ignore[no-untyped-def]
    """The part of Z(w) that the nodes of a group may be wrong by, for all w of a block.

    It is largest at a corner of the block's box: at every point the bound of log |f| is linear in
    w, or the larger of two such.

    Args:
        block: box of the scores.
        mean: m at its centre.
        level: log Z there.
        frame: centre and axes of the group.
        half: half lengths.
        nodes: p, q, tau in the axes, log sum_j M'_j
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


@kernel
def nodes_needed(half, curvature, wanted):  # type: ignore[no-untyped-def]
    """How many nodes interpolate a group's f to exp(-wanted) of the largest f of all groups."""
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
