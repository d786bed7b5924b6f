"""Cubic interpolation of functions on the sphere from values and gradients at nodes of triangles.

A function is extended along rays, so that its gradients are tangential, and is interpolated in the
flat triangle through three nodes: by the cubic that has their values and gradients, and in the
middle what makes it exact for quadratics. Edges of the triangle on the sphere are those of the flat
one seen from the origin.
"""

from __future__ import annotations

import numpy as np

# The rule with three nodes, exact for quadratics.
RULE = np.array([[4, 1, 1], [1, 4, 1], [1, 1, 4]]) / 6
# How far a cubic may be from linear interpolation; beyond it gradients are not resolved.
_LIMIT = 0.5
# On cubic terms of a fit, whose normal equations are of order 1, so that errors of values do not
# become slopes: the mass of `moving_triangles` at beta = 100 is off by half of that without.
_RIDGE = 1.0
# Two triangles less high than this part of their common edge say nothing of what is across it.
_FLAT = 1e-6
# On all terms: far above rounding, far below what a fit has to say.
_LEAST_RIDGE = 1e-12


def on_sphere(x: np.ndarray) -> np.ndarray:
    """Points moved along their rays onto the sphere."""
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def _bernstein(at: np.ndarray) -> np.ndarray:
    after = np.roll(at, -1, axis=1)
    return np.column_stack([at**3, 3 * at**2 * after, 3 * at * after**2, 6 * at.prod(axis=1)])


_BASIS = _bernstein(RULE)


def at_rule(corners: np.ndarray, values: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Values at the nodes of `RULE` in triangles: N x 3, for N x 3 x 3, N x 3 and N x 3 x 3."""
    step = np.roll(corners, -1, axis=1) - corners
    after = np.roll(gradients, -1, axis=1)
    ahead = values + (gradients * step).sum(axis=2) / 3
    behind = np.roll(values, -1, axis=1) - (after * step).sum(axis=2) / 3
    middle = (ahead + behind).sum(axis=1) / 4 - values.sum(axis=1) / 6
    cubic = np.column_stack([values, ahead, behind, middle]) @ _BASIS.T
    linear = values @ RULE.T
    return np.asarray(linear + np.clip(cubic - linear, -_LIMIT, _LIMIT))


def in_the_middle(
    points: np.ndarray, values: np.ndarray, gradients: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The middles of edges, with value and gradient there, from four nodes (N x 4 x 3) each.

    The first two are the ends of the edge, the others the opposite corners of its triangles. Along
    the edge it is the cubic of its ends; the derivative across is that of the cubic in the tangent
    plane that fits all twelve numbers best, its cubic terms kept small.
    """
    middle = on_sphere(points[:, 0] + points[:, 1])
    u = points[:, 1] - points[:, 0]
    u = on_sphere(u - (u * middle).sum(axis=1)[:, None] * middle)
    v = np.cross(middle, u)
    # Coordinates of the plane that touches in the middle, seen from the origin.
    out = np.einsum("nij,nj->ni", points, middle)
    a, b = (np.einsum("nij,nj->ni", points, one) / out for one in (u, v))
    f_a, f_b = (np.einsum("nij,nj->ni", gradients, one) * out for one in (u, v))
    # In units of half of the edge, and of the distance of the opposite corners.
    unit_a = (a[:, 1] - a[:, 0])[:, None] / 2
    unit_b = np.abs(b[:, 2:]).mean(axis=1)[:, None]
    unit_b = np.where(unit_b > _FLAT * unit_a, unit_b, unit_a)
    a, b, f_a, f_b = a / unit_a, b / unit_b, f_a * unit_a, f_b * unit_b
    value = (values[:, 0] + values[:, 1]) / 2
    value += np.clip((f_a[:, 0] - f_a[:, 1]) / 4, -_LIMIT, _LIMIT)
    along = 0.75 * (values[:, 1] - values[:, 0]) - (f_a[:, 0] + f_a[:, 1]) / 4
    one, nil = np.ones_like(a), np.zeros_like(a)
    rows = np.concatenate(
        [
            np.stack([one, a, b, a * a, a * b, b * b, a**3, a * a * b, a * b * b, b**3], axis=2),
            np.stack([nil, one, nil, 2 * a, b, nil, 3 * a * a, 2 * a * b, b * b, nil], axis=2),
            np.stack([nil, nil, one, nil, a, 2 * b, nil, a * a, 2 * a * b, 3 * b * b], axis=2),
        ],
        axis=1,
    )
    right = np.concatenate([values - value[:, None], f_a, f_b], axis=1)
    ridge = [_LEAST_RIDGE] * 6 + [_RIDGE] * 4
    normal = np.swapaxes(rows, 1, 2) @ rows + np.diag(ridge)
    across = np.linalg.solve(normal, np.einsum("nki,nk->ni", rows, right)[..., None])[:, 2]
    return middle, value, along[:, None] / unit_a * u + across / unit_b * v
