"""Moments of softmax attention up to the third, summed over tiles of sources.

    p_k = exp(<z, y_k> + l_k) / sum_j exp(<z, y_j> + l_j),    z = S x,    S = beta K^T Q,
    m = sum_k p_k y_k,    C = sum_k p_k (y_k - m)(y_k - m)^T,
    t = sum_k p_k (y_k - m) s(y_k - m),    s(y) = <y, W y> - <y, V^T x> <y, S x>,    W = S V.

They are what velocity, divergence and gradient of the divergence are made of: since z -> m has the
derivative C, and C the third moments, tr(C W) - <V^T x, C S x> has the gradient S^T t in z.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np

Sources = tuple[np.ndarray, np.ndarray]  # points and log masses
TILE = 16  # sources; 32 are slower, because tiles are wider
# Tiles whose sources all have exponents this far below the largest are left out: exp(-16) = 1e-7.
REACH = 16.0
_BITS = 10  # of a coordinate in the order of sources


@numba.njit(cache=True)
def _tiles(y, log_mass, order):
    """Coordinates and log masses in tiles; of each tile centre of mass, radius and log mass."""
    count = (order.size + TILE - 1) // TILE
    points = np.zeros((count, 4, TILE))
    bounds = np.empty((count, 6))
    for i in range(count):
        size = min(TILE, order.size - i * TILE)
        top = -np.inf
        for k in range(size):
            top = max(top, log_mass[order[i * TILE + k]])
        centre, total = np.zeros(3), 0.0
        for k in range(size):
            j = order[i * TILE + k]
            part = math.exp(log_mass[j] - top)
            total += part
            centre += part * y[j]
        centre /= total
        radius = 0.0
        for k in range(TILE):
            j = order[i * TILE + min(k, size - 1)]
            points[i, :3, k] = y[j]
            points[i, 3, k] = log_mass[j] if k < size else -np.inf
            radius = max(radius, ((y[j] - centre) ** 2).sum())
        bounds[i, :3] = centre
        bounds[i, 3] = math.sqrt(radius)
        bounds[i, 4] = top + math.log(total)
        bounds[i, 5] = top
    return points, bounds


@numba.njit(fastmath=True, cache=True)
def _moments(x, points, bounds, score, value):
    """m, the six entries of C, and t."""
    count = len(points)
    found = np.empty((len(x), 12))
    height = np.empty(count)
    w = score @ value
    w00, w11, w22 = w[0, 0], w[1, 1], w[2, 2]
    w01, w02, w12 = w[0, 1] + w[1, 0], w[0, 2] + w[2, 0], w[1, 2] + w[2, 1]
    for i in range(len(x)):
        z0 = score[0, 0] * x[i, 0] + score[0, 1] * x[i, 1] + score[0, 2] * x[i, 2]
        z1 = score[1, 0] * x[i, 0] + score[1, 1] * x[i, 1] + score[1, 2] * x[i, 2]
        z2 = score[2, 0] * x[i, 0] + score[2, 1] * x[i, 1] + score[2, 2] * x[i, 2]
        q0 = value[0, 0] * x[i, 0] + value[1, 0] * x[i, 1] + value[2, 0] * x[i, 2]
        q1 = value[0, 1] * x[i, 0] + value[1, 1] * x[i, 1] + value[2, 1] * x[i, 2]
        q2 = value[0, 2] * x[i, 0] + value[1, 2] * x[i, 1] + value[2, 2] * x[i, 2]
        length = math.sqrt(z0 * z0 + z1 * z1 + z2 * z2)
        top = -1e300
        for j in range(count):
            level = z0 * bounds[j, 0] + z1 * bounds[j, 1] + z2 * bounds[j, 2] + bounds[j, 4]
            # By Jensen's inequality the logarithm of the tile's sum is at least `level`.
            height[j] = level
            top = max(top, level)
        best = 0
        for j in range(count):
            if height[j] == top:
                best = j
        r0, r1, r2 = bounds[best, 0], bounds[best, 1], bounds[best, 2]
        shift = top - (z0 * r0 + z1 * r1 + z2 * r2)
        n = a0 = a1 = a2 = b00 = b11 = b22 = b01 = b02 = b12 = c0 = c1 = c2 = 0.0
        for j in range(count):
            if height[j] + length * bounds[j, 3] < top - REACH:
                continue
            for k in range(TILE):
                e0, e1, e2 = points[j, 0, k] - r0, points[j, 1, k] - r1, points[j, 2, k] - r2
                exponent = z0 * e0 + z1 * e1 + z2 * e2 + points[j, 3, k] - shift
                # exp as the 64th power of a polynomial, which is done for several k at once; its
                # relative error is below 1e-11 above exp(-16).
                u = min(max(exponent, -60.0), 60.0) * (1.0 / 64)
                p = 1 + u * (1.0 / 9) * (1 + u * (1.0 / 10))
                p = 1 + u * (1.0 / 7) * (1 + u * (1.0 / 8) * p)
                p = 1 + u * (1.0 / 5) * (1 + u * (1.0 / 6) * p)
                p = 1 + u * (1.0 / 3) * (1 + u * (1.0 / 4) * p)
                p = 1 + u * (1 + u * (1.0 / 2) * p)
                p *= p
                p *= p
                p *= p
                p *= p
                p *= p
                p *= p
                f0, f1, f2 = p * e0, p * e1, p * e2
                s = e0 * (w00 * e0 + w01 * e1 + w02 * e2) + e1 * (w11 * e1 + w12 * e2)
                s += w22 * e2 * e2
                s -= (q0 * e0 + q1 * e1 + q2 * e2) * (z0 * e0 + z1 * e1 + z2 * e2)
                n += p
                a0 += f0
                a1 += f1
                a2 += f2
                b00 += f0 * e0
                b11 += f1 * e1
                b22 += f2 * e2
                b01 += f0 * e1
                b02 += f0 * e2
                b12 += f1 * e2
                c0 += f0 * s
                c1 += f1 * s
                c2 += f2 * s
        d0, d1, d2 = a0 / n, a1 / n, a2 / n
        found[i, 0], found[i, 1], found[i, 2] = r0 + d0, r1 + d1, r2 + d2
        k00, k11, k22 = b00 / n - d0 * d0, b11 / n - d1 * d1, b22 / n - d2 * d2
        k01, k02, k12 = b01 / n - d0 * d1, b02 / n - d0 * d2, b12 / n - d1 * d2
        found[i, 3], found[i, 4], found[i, 5] = k00, k11, k22
        found[i, 6], found[i, 7], found[i, 8] = k01, k02, k12
        # From moments about r to those about m = r + d: with s(e) = <e, G e>, the difference is
        # C (G + G^T) d + (tr(C G) + s(d)) d.
        g00, g11, g22 = w00 - q0 * z0, w11 - q1 * z1, w22 - q2 * z2
        g01 = w01 - q0 * z1 - q1 * z0
        g02 = w02 - q0 * z2 - q2 * z0
        g12 = w12 - q1 * z2 - q2 * z1
        h0 = 2 * g00 * d0 + g01 * d1 + g02 * d2
        h1 = g01 * d0 + 2 * g11 * d1 + g12 * d2
        h2 = g02 * d0 + g12 * d1 + 2 * g22 * d2
        mean = k00 * g00 + k11 * g11 + k22 * g22 + k01 * g01 + k02 * g02 + k12 * g12
        mean += (d0 * h0 + d1 * h1 + d2 * h2) / 2
        found[i, 9] = c0 / n - k00 * h0 - k01 * h1 - k02 * h2 - mean * d0
        found[i, 10] = c1 / n - k01 * h0 - k11 * h1 - k12 * h2 - mean * d1
        found[i, 11] = c2 / n - k02 * h0 - k12 * h1 - k22 * h2 - mean * d2
    return found


@dataclass(frozen=True, eq=False)
class Moments:
    """What points attend to, one row a point.

    Attributes:
        mean: m.
        covariance: C, N x 3 x 3.
        third: t.
    """

    mean: np.ndarray
    covariance: np.ndarray
    third: np.ndarray


def softmax(x: np.ndarray, sources: Sources, score: np.ndarray, value: np.ndarray) -> Moments:
    """The moments of softmax over sources y_k with log masses l_k."""
    y, log_mass = sources
    points, bounds = _tiles(y, log_mass, _order(y))
    found = _moments(x, points, bounds, score, value)
    covariance = found[:, [3, 6, 7, 6, 4, 8, 7, 8, 5]].reshape(-1, 3, 3)
    return Moments(found[:, :3], covariance, found[:, 9:])


def zero_temperature(
    x: np.ndarray, sources: Sources, score: np.ndarray, value: np.ndarray
) -> Moments:
    """The same where m = n = z / |z| whatever the sources are.

    With r = |z| and G = W - V^T x z^T,

        C = (I - n n^T) / r,    t = (3 n <n, G n> - n tr G - (G + G^T) n) / r^2.
    """
    z = x @ score.T
    r = np.linalg.norm(z, axis=1)[:, None]
    n = z / r
    G = score @ value - (x @ value)[:, :, None] * z[:, None, :]
    covariance = (np.eye(3) - n[:, :, None] * n[:, None, :]) / r[..., None]
    turned = np.einsum("nij,nj->ni", G + np.swapaxes(G, 1, 2), n)
    along = (n * turned).sum(axis=1) * 1.5 - np.trace(G, axis1=1, axis2=2)
    return Moments(n, covariance, (n * along[:, None] - turned) / r**2)


def rates(
    x: np.ndarray, g: np.ndarray, moments: Moments, score: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """v, f' and g' at points x, the last up to multiples of x.

    With w = V m(S x), S = beta K^T Q, v = w - <x, w> x, and the derivatives C of m in z = S x,

        div v = tr(V C S) - <V^T x, C S x> - 2 <x, w>,
        grad div v = S^T (t - 3 C V^T x) - V (C S x + 2 m)      up to multiples of x,
        (D v)^T g = (D w)^T (g - <x, g> x) - <x, g> w - <x, w> g,    D w = V C S.
    """
    w = moments.mean @ value.T
    inward = (x * w).sum(axis=1)[:, None]
    seen, back = x @ score.T, x @ value
    spread_seen = np.einsum("nij,nj->ni", moments.covariance, seen)
    spread_back = np.einsum("nij,nj->ni", moments.covariance, back)
    divergence = np.einsum("nij,ji->n", moments.covariance, score @ value)
    divergence -= (back * spread_seen).sum(axis=1) + 2 * inward[:, 0]
    growth = (moments.third - 3 * spread_back) @ score
    growth -= (spread_seen + 2 * moments.mean) @ value.T
    outward = (x * g).sum(axis=1)[:, None]
    turned = np.einsum("nij,nj->ni", moments.covariance, (g - outward * x) @ value) @ score
    turned -= outward * w + inward * g
    return w - inward * x, -divergence, -growth - turned


def _order(y: np.ndarray) -> np.ndarray:
    """Points in an order in which neighbours are near to each other, by the bits of coordinates."""
    cell = ((y + 1) / 2 * (2**_BITS - 1)).astype(np.int64)
    code = np.zeros(len(y), dtype=np.int64)
    for bit in range(_BITS):
        for axis in range(3):
            code |= ((cell[:, axis] >> bit) & 1) << (3 * bit + axis)
    return np.argsort(code, kind="stable")
