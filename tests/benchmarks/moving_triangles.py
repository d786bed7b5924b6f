"""Lifetimes on the sphere from triangles that move with the flow, which share nothing with the solver.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.softmax_moments import Flow, flow, order_of
from tests.benchmarks.triangle_mesh import (
    coarsened,
    edge_size,
    edges,
    flipped,
    halved,
    icosphere,
)
import numba

Density = Callable[[np.ndarray], np.ndarray]
_RULE = np.array([[4, 1, 1], [1, 4, 1], [1, 1, 4]]) / 6


@numba.njit(cache=True)
def _sizes(a, b, x, level, gradient, target, change):
    found = np.empty(len(a))
    for k in range(len(a)):
        found[k] = edge_size(a[k], b[k], x, level, gradient, target, change)
    return found


def on_sphere(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def bezier(corners, level, gradient):
    """n x 10 coefficients of cubics."""
    e = np.roll(corners, -1, axis=1) - corners
    ahead = level + (gradient * e).sum(axis=2) / 3  # b_210, b_021, b_102
    back = np.roll(level, -1, axis=1) - (np.roll(gradient, -1, axis=1) * e).sum(axis=2) / 3
    middle = (ahead.sum(axis=1) + back.sum(axis=1)) / 4 - level.sum(axis=1) / 6
    return np.column_stack([level, ahead, back, middle])


def bernstein(at):
    nxt = np.roll(at, -1, axis=1)
    return np.column_stack([at**3, 3 * at**2 * nxt, 3 * at * nxt**2, 6 * at.prod(axis=1)])


def inserted(x, level, gradient, four):
    """Points in the middle of edges, level and gradient there, from the four nodes around."""
    p, f = x[four], level[four]
    m = on_sphere(p[:, 0] + p[:, 1])
    u = p[:, 1] - p[:, 0]
    u = on_sphere(u - (u * m).sum(axis=1)[:, None] * m)
    v = np.cross(m, u)
    # gnomonic coordinates, and derivatives in them
    out = np.einsum("nij,nj->ni", p, m)
    U, V = np.einsum("nij,nj->ni", p, u) / out, np.einsum("nij,nj->ni", p, v) / out
    fu = np.einsum("nij,nj->ni", gradient[four], u) * out
    fv = np.einsum("nij,nj->ni", gradient[four], v) * out
    su, sv = (U[:, 1] - U[:, 0])[:, None] / 2, np.abs(V[:, 2:]).mean(axis=1)[:, None]
    U, V, fu, fv = U / su, V / sv, fu * su, fv * sv
    middle = (f[:, 0] + f[:, 1]) / 2 + (fu[:, 0] - fu[:, 1]) / 4
    along = 0.75 * (f[:, 1] - f[:, 0]) - (fu[:, 0] + fu[:, 1]) / 4
    one, nil = np.ones_like(U), np.zeros_like(U)
    rows = np.concatenate(
        [
            np.stack([one, U, V, U * U, U * V, V * V, U**3, U * U * V, U * V * V, V**3], axis=2),
            np.stack([nil, one, nil, 2 * U, V, nil, 3 * U * U, 2 * U * V, V * V, nil], axis=2),
            np.stack([nil, nil, one, nil, U, 2 * V, nil, U * U, 2 * U * V, 3 * V * V], axis=2),
        ],
        axis=1,
    )
    right = np.concatenate([f - middle[:, None], fu, fv], axis=1)
    weight = np.tile([1.0, 1.0, 0.1, 0.1], 3)
    rows, right = rows * weight[:, None], right * weight
    normal = np.einsum("nki,nkj->nij", rows, rows) + 1e-6 * np.diag([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    across = np.linalg.solve(normal, np.einsum("nki,nk->ni", rows, right)[..., None])[:, 2, 0]
    return m, middle, (along / su[:, 0])[:, None] * u + (across / sv[:, 0])[:, None] * v


class Triangles:
    def __init__(self, value, score, density: Density, halvings, width, change, coarse=3.0, relevant=1e-8, narrow=0.1, fit=True):
        self.value, self.score = np.ascontiguousarray(value), np.ascontiguousarray(score)
        self.kernel = 1 / math.sqrt(np.linalg.norm(score, 2))
        self.width, self.change, self.coarse, self.relevant_share, self.narrow = width, change, coarse, relevant, narrow
        self.fit = fit
        self.x, self.triangles = icosphere(halvings)
        log = lambda x: np.log(density(on_sphere(x)))
        self.level = log(self.x)
        h = 1e-5
        self.gradient = np.column_stack([(log(self.x + h * u) - log(self.x - h * u)) / (2 * h) for u in np.eye(3)])
        self.log_mass = np.full(len(self.triangles), np.nan)
        self.light = 1.0
        self.strong = np.ones(len(self.triangles), dtype=bool)
        self.relevant = np.ones(len(self.triangles), dtype=bool)
        self.level -= math.log(np.exp(self.sources(self.x, self.level, self.gradient)[1]).sum())

    def shape(self):
        p = self.x[self.triangles]
        e = np.roll(p, -1, axis=1) - p
        longest = np.sqrt((e**2).sum(axis=2).max(axis=1))
        det = (p[:, 0] * np.cross(e[:, 0], -e[:, 2])).sum(axis=1)
        return longest, det

    def sources(self, x, level, gradient):
        t = self.triangles
        p = x[t]
        e = np.roll(p, -1, axis=1) - p
        det = (p[:, 0] * np.cross(e[:, 0], -e[:, 2])).sum(axis=1)
        b = bezier(p, level[t], gradient[t])
        y = np.einsum("qi,nij->nqj", _RULE, p)
        r = np.linalg.norm(y, axis=2)
        logs = b @ bernstein(_RULE).T - 3 * np.log(r)
        free = np.isnan(self.log_mass)
        assert (det[free] > 0).all()
        logs[free] += np.log(det[free] / 6)[:, None]
        top = logs.max(axis=1)
        total = top + np.log(np.exp(logs - top[:, None]).sum(axis=1))
        logs[~free] += (self.log_mass - total)[~free, None]
        y /= r[..., None]
        wide = (e**2).sum(axis=2).max(axis=1) > (self.narrow * self.kernel) ** 2
        self.wide = wide
        masses = np.where(free, total, self.log_mass)
        one = on_sphere(np.einsum("nq,nqj->nj", np.exp(logs - logs.max(axis=1)[:, None]), y)[~wide])
        self.masses = masses
        return np.concatenate([y[wide].reshape(-1, 3), one]), np.concatenate([logs[wide].ravel(), masses[~wide]])

    def step(self, dt):
        order = None
        x, level, gradient = self.x, self.level, self.gradient
        total = [0.0, 0.0, 0.0]
        for factor, weight in ((0, 1), (0.5, 2), (0.5, 2), (1, 1)):
            if factor:
                x = on_sphere(self.x + factor * dt * f.velocity)
                level = self.level + factor * dt * f.level
                gradient = self.gradient + factor * dt * f.slope
            s = self.sources(x, level, gradient)
            if order is None or len(order) != len(s[1]):
                order = order_of(s[0])
            f = flow(x, gradient, s, order, self.score, self.value)
            if not factor:
                self._note(f.shares)
            total = [a + weight / 6 * dt * b for a, b in zip(total, (f.velocity, f.level, f.slope))]
        self.x = on_sphere(self.x + total[0])
        self.level = self.level + total[1]
        self.gradient = self.gradient + total[2]
        self.gradient -= (self.gradient * self.x).sum(axis=1)[:, None] * self.x
        self.adapt()

    def _note(self, shares):
        n = 3 * self.wide.sum()
        self.relevant = np.empty(len(self.triangles), dtype=bool)
        self.relevant[self.wide] = shares[:n].reshape(-1, 3).max(axis=1) > self.relevant_share
        self.relevant[~self.wide] = shares[n:] > self.relevant_share
        self.strong = self.wide | (self.masses > math.log(1e-6))

    def goals(self):
        node = np.zeros(len(self.x), dtype=bool)
        node[self.triangles[self.relevant]] = True
        target = np.where(node, 1.0, self.coarse) * self.width * self.kernel
        heavy = np.zeros(len(self.x), dtype=bool)
        heavy[self.triangles[self.strong]] = True
        change = np.where(node, np.where(heavy, self.change, self.light), 1e3)
        return target, change

    def adapt(self):
        for _ in range(20):
            target, change = self.goals()
            new, origin, ends = halved(self.triangles, len(self.x), lambda a, b: _sizes(a, b, self.x, self.level, self.gradient, target, change))
            if not len(ends):
                break
            self._split(new, origin, ends)
        self._flip()
        self._coarsen()

    def masses_now(self):
        self.sources(self.x, self.level, self.gradient)
        return self.masses

    def _split(self, new, origin, ends):
        m, level, g = inserted(self.x, self.level, self.gradient, ends)
        carried = ~np.isnan(self.log_mass)
        old = self.log_mass
        self.x = np.concatenate([self.x, m])
        self.level = np.concatenate([self.level, level])
        self.gradient = np.concatenate([self.gradient, g])
        self.triangles = new
        self.relevant, self.strong = self.relevant[origin], self.strong[origin]
        self.log_mass = old[origin]
        # share carried masses
        parts = np.flatnonzero(carried[origin])
        parts = parts[np.bincount(origin, minlength=len(old))[origin[parts]] == 2]
        if len(parts):
            t = new[parts]
            p = self.x[t]
            logs = bezier(p, self.level[t], self.gradient[t]) @ bernstein(_RULE).T
            top = logs.max(axis=1)
            w = top + np.log(np.exp(logs - top[:, None]).sum(axis=1))
            both = np.full(len(old), -np.inf)
            np.logaddexp.at(both, origin[parts], w)
            self.log_mass[parts] = old[origin[parts]] + w - both[origin[parts]]

    def _flip(self):
      for _ in range(10):
        ends, of = edges(self.triangles)
        sides = np.argsort(of.ravel(), kind="stable").reshape(-1, 2) // 3
        if not flipped(self.triangles, ends, sides, np.isnan(self.log_mass), self.x): break

    def _coarsen(self):
        target, change = self.goals()
        e, of = edges(self.triangles)
        size = _sizes(e[:, 0], e[:, 1], self.x, self.level, self.gradient, target, change)
        least = np.full(len(self.x), np.inf)
        np.minimum.at(least, e[:, 0], size)
        np.minimum.at(least, e[:, 1], size)
        order = np.flatnonzero(least < 0.5)
        order = order[np.argsort(least[order])]
        kept = coarsened(self.triangles, order, np.isnan(self.log_mass), self.x, self.level, self.gradient, target, change)
        self.triangles, self.log_mass, self.relevant = self.triangles[kept], self.log_mass[kept], self.relevant[kept]
        self.strong = self.strong[kept]
        used = np.zeros(len(self.x), dtype=bool)
        used[self.triangles] = True
        number = np.cumsum(used) - 1
        self.triangles = number[self.triangles]
        self.x, self.level, self.gradient = self.x[used], self.level[used], self.gradient[used]

    def moments(self):
        y, l = self.sources(self.x, self.level, self.gradient)
        return np.einsum("n,ni,nj->ij", np.exp(l), y, y)
