"""What a cluster of sources adds to the sums of a block of targets: by moments, or term by term.

In the axes (n, a, b) of a cluster, n across its surface, with s = <w - w_0, y_j - y_0> = t + n_w
n_j, t = a_w a_j + b_w b_j, exp(s) = sum_l (n_w n_j)^l / l! exp(t), and a polynomial P_l stands for
each exp(t) (`cluster`). As P_l(t) = sum_ik c_ik (a_w a_j)^i (b_w b_j)^k, sources enter through

    sum_j q_j n_j^l a_j^i b_j^k,

once for all targets of the block, and targets through the value of a polynomial in a_w, b_w. The
sums of q_j y_j need no more moments: they are derivatives with respect to (n_w, a_w, b_w).
"""

from __future__ import annotations

from meanfield_pde.attention.sum.exponential import FAST, LOG2_E, power_of_two
from meanfield_pde.support.kernels import part


@part(fastmath=FAST)
def add_by_moments(weights, local, nodes, frame, offset, mean, scale, series, work, sums):
    """Add a cluster to the sums of a block by its moments; the weights are overwritten.

    Args:
        weights: q_j, as parts of the largest.
        local: coordinates (n_j, a_j, b_j) of y_j - y_0.
        nodes: p, q if the sources are a p x q grid of proxy points, or zeros.
        frame: y_0 and the axes of the cluster.
        offset: w - w_0 of the targets, 3 x targets.
        mean: m(w_0).
        scale: logarithm of the largest weight as a part of Z(w_0).
        series: degrees of the powers of n, the last of these, and coefficients of a^i b^k.
        work: arrays that are overwritten.
        sums: of the block, times exp(<w - w_0, m(w_0)>): added to.
    """
    p, q = nodes
    degrees, last, choose = series
    along, outer, power, value, inner, slope, out, row, column, parts, moment, tables = work
    count = offset.shape[1]
    for i in range(3):
        x, y, z = frame[3 + 3 * i], frame[4 + 3 * i], frame[5 + 3 * i]
        for t in range(count):
            along[i, t] = offset[0, t] * x + offset[1, t] * y + offset[2, t] * z
    normal, a, b = along[0, :count], along[1, :count], along[2, :count]
    for t in range(count):
        power[t] = 1.0
        for i in range(4):
            value[i, t] = 0.0
    for k in range(last + 1):
        degree = degrees[k]
        if p > 0:
            a_of, b_of = local[1, : p * q : q], local[2, :q]
            _moments_of_grid(weights, a_of, b_of, degree, tables, moment)
        else:
            _moments(weights, local[1], local[2], degree, row, column, parts, moment)
        _polynomial(moment, degree, choose[degree], a, b, inner, slope, out)
        if k > 0:
            for t in range(count):
                value[0, t] += power[t] * out[0, t]
                power[t] *= normal[t] / k
        for t in range(count):
            value[1, t] += power[t] * out[1, t]
            value[2, t] += power[t] * out[2, t]
            value[3, t] += power[t] * out[0, t]
        if k < last:
            for j in range(weights.size):
                weights[j] *= local[0, j]
    u, v, w = frame[0] - mean[0], frame[1] - mean[1], frame[2] - mean[2]
    for t in range(count):
        exponent = offset[0, t] * u + offset[1, t] * v + offset[2, t] * w + scale
        outer[t] = power_of_two(exponent * LOG2_E)
    # y = y_0 + its parts along the three axes of the group.
    for i in range(3):
        centre, n, e, f = frame[i], frame[3 + i], frame[6 + i], frame[9 + i]
        for t in range(count):
            part = n * value[0, t] + e * value[1, t] + f * value[2, t]
            sums[i, t] += outer[t] * (centre * value[3, t] + part)
    for t in range(count):
        sums[3, t] += outer[t] * value[3, t]


@part(fastmath=FAST)
def add_directly(weights, points, offset, mean, scale, sums):
    """Add a cluster to the sums of a block term by term; arguments as above."""
    level = scale * LOG2_E
    for j in range(weights.size):
        x, y, z, weight = points[0, j], points[1, j], points[2, j], weights[j]
        u, v, w = (x - mean[0]) * LOG2_E, (y - mean[1]) * LOG2_E, (z - mean[2]) * LOG2_E
        for t in range(offset.shape[1]):
            exponent = offset[0, t] * u + offset[1, t] * v + offset[2, t] * w + level
            term = weight * power_of_two(exponent)
            sums[0, t] += term * x
            sums[1, t] += term * y
            sums[2, t] += term * z
            sums[3, t] += term


@part(fastmath=FAST)
def _moments(weights, a, b, degree, row, column, parts, result):
    """Write sum_j q_j a_j^i b_j^k for i + k <= degree, row by row of constant i.

    Sums are folded to a quarter of their length in vectors, two powers at a time.
    """
    count = weights.size
    fold = count // 4
    for j in range(count):
        row[j] = weights[j]
    term = 0
    for i in range(degree + 1):
        for j in range(count):
            column[j] = row[j]
        powers = degree - i + 1
        for k in range(0, powers, 2):
            even, odd = parts[term], parts[term + 1]
            for j in range(fold):
                p, q, r, s = column[j], column[fold + j], column[2 * fold + j], column[3 * fold + j]
                even[j] = (p + q) + (r + s)
                p *= b[j]
                q *= b[fold + j]
                r *= b[2 * fold + j]
                s *= b[3 * fold + j]
                odd[j] = (p + q) + (r + s)
                column[j] = p * b[j]
                column[fold + j] = q * b[fold + j]
                column[2 * fold + j] = r * b[2 * fold + j]
                column[3 * fold + j] = s * b[3 * fold + j]
            term += 2 if k + 1 < powers else 1
        for j in range(count):
            row[j] *= a[j]
    for k in range(term):
        part = parts[k]
        p, q, r, s = 0.0, 0.0, 0.0, 0.0
        for j in range(0, fold, 4):
            p += part[j]
            q += part[j + 1]
            r += part[j + 2]
            s += part[j + 3]
        result[k] = (p + q) + (r + s)


@part(fastmath=FAST)
def _moments_of_grid(weights, a, b, degree, work, result):
    """Write the same for weights on a p x q grid a_i, b_k, by one direction at a time.

    Four rows at a time: one at a time takes a quarter longer for the whole sum (327,680 cells).
    """
    p, q = a.size, b.size
    width = -(-(degree + 1) // 8) * 8
    powers, across, rows, column = work[0], work[1], work[2], work[3, 0]
    _powers(a, degree, powers[:p, :width])
    for k in range(q):
        for m in range(width):
            rows[k, m] = 0.0
        for i in range(0, p - 3, 4):
            c, d = weights[i * q + k], weights[(i + 1) * q + k]
            e, f = weights[(i + 2) * q + k], weights[(i + 3) * q + k]
            for m in range(width):
                left = c * powers[i, m] + d * powers[i + 1, m]
                rows[k, m] += left + (e * powers[i + 2, m] + f * powers[i + 3, m])
        for i in range(p - p % 4, p):
            c = weights[i * q + k]
            for m in range(width):
                rows[k, m] += c * powers[i, m]
    _powers(b, degree, across[:q, :width])
    for k in range(degree + 1):
        count = degree - k + 1
        for m in range(count):
            column[m] = 0.0
        for j in range(0, q - 3, 4):
            c, d, e, f = across[j, k], across[j + 1, k], across[j + 2, k], across[j + 3, k]
            for m in range(count):
                left = c * rows[j, m] + d * rows[j + 1, m]
                column[m] += left + (e * rows[j + 2, m] + f * rows[j + 3, m])
        for j in range(q - q % 4, q):
            c = across[j, k]
            for m in range(count):
                column[m] += c * rows[j, m]
        for m in range(count):
            result[m * (degree + 1) - m * (m - 1) // 2 + k] = column[m]


@part(fastmath=FAST)
def _powers(x, degree, out):
    """Write rows 1, x_i, x_i^2, ... for each x_i, and zeros to a multiple of eight."""
    for i in range(x.size):
        power = 1.0
        for k in range(degree + 1):
            out[i, k] = power
            power *= x[i]
        for k in range(degree + 1, out.shape[1]):
            out[i, k] = 0.0


@part(fastmath=FAST)
def _polynomial(moment, degree, choose, a, b, inner, slope, out):
    """Write rows f, df/da, df/db of f = sum_(i + k <= degree) moment_ik choose_ik a^i b^k."""
    count = a.size
    value, by_a, by_b = out[0], out[1], out[2]
    for t in range(count):
        value[t] = 0.0
        by_a[t] = 0.0
        by_b[t] = 0.0
    for i in range(degree, -1, -1):
        first = i * (degree + 1) - i * (i - 1) // 2
        k = degree - i
        leading = moment[first + k] * choose[i, k]
        for t in range(count):
            inner[t] = leading
            slope[t] = 0.0
        k -= 1
        while k >= 0:
            constant = moment[first + k] * choose[i, k]
            for t in range(count):
                slope[t] = slope[t] * b[t] + inner[t]
                inner[t] = inner[t] * b[t] + constant
            k -= 1
        for t in range(count):
            x = a[t]
            by_a[t] = by_a[t] * x + value[t]
            value[t] = value[t] * x + inner[t]
            by_b[t] = by_b[t] * x + slope[t]
