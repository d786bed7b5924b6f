"""Two measures as one transport problem: atoms in kd order, masses of the same total."""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import numbers
from meanfield_pde.wasserstein.certificate import Potentials, Problem, exact_sum
from meanfield_pde.wasserstein.cloud import kd_order, make_cloud
from meanfield_pde.wasserstein.costs import Cost
from meanfield_pde.wasserstein.measure import Measure
from meanfield_pde.wasserstein.pricing import c_transform

_EPS = float(np.finfo(float).eps)
# How far from the unit sphere a point may lie with geodesic cost: decimals of a file, but not
# single precision, by which distances would be off.
GEODESIC_TOLERANCE = 1e-9
# Atoms lighter than this, relative to the mean mass, are placed after the solve: they are below
# the solver's tolerances. The certificate counts them in full.
NEGLIGIBLE = 1e-15


class Assembled:
    """The transport problem of two measures, and the way back to the order of their atoms."""

    def __init__(self, mu: Measure, nu: Measure, cost: Cost) -> None:
        points_a = _checked_points(mu.points, "first", cost)
        points_b = _checked_points(nu.points, "second", cost)
        self.order_a, self.order_b = kd_order(points_a), kd_order(points_b)
        a, b, error = _with_common_total(mu.masses, nu.masses)
        self.problem = Problem(
            cost,
            make_cloud(points_a[self.order_a]),
            make_cloud(points_b[self.order_b]),
            a[self.order_a],
            b[self.order_b],
            error,
        )

    def without_negligible(self) -> tuple[Problem, np.ndarray, np.ndarray]:
        """The problem without its lightest atoms, and which atoms it keeps."""
        whole = self.problem
        kept = []
        for cloud, masses in ((whole.sources, whole.a), (whole.targets, whole.b)):
            heavy = np.flatnonzero(masses > NEGLIGIBLE * masses.sum() / len(masses))
            kept.append(heavy[kd_order(cloud.points[heavy])])
        kept_a, kept_b = kept
        if len(kept_a) == len(whole.a) and len(kept_b) == len(whole.b):
            return whole, np.arange(len(whole.a)), np.arange(len(whole.b))
        a, b, error = _with_common_total(whole.a[kept_a], whole.b[kept_b])
        problem = Problem(
            whole.cost,
            make_cloud(whole.sources.points[kept_a]),
            make_cloud(whole.targets.points[kept_b]),
            a,
            b,
            error,
        )
        return problem, kept_a, kept_b

    def potentials_of_all(
        self, problem: Problem, kept_a: np.ndarray, kept_b: np.ndarray, potentials: Potentials
    ) -> Potentials:
        """Potentials of the atoms that were kept, with the best ones for all others."""
        whole, cost = self.problem, self.problem.cost
        u, v = np.empty(len(whole.a)), np.empty(len(whole.b))
        u[kept_a], v[kept_b] = potentials.u, potentials.v
        others = np.delete(np.arange(len(v)), kept_b)
        if len(others):
            cloud = make_cloud(whole.targets.points[others])
            v[others] = c_transform(cost, cloud, problem.sources, potentials.u)
        others = np.delete(np.arange(len(u)), kept_a)
        if len(others):
            cloud = make_cloud(whole.sources.points[others])
            u[others] = c_transform(cost, cloud, whole.targets, v)
        return Potentials(u, v)

    def potentials_from(self, duals: tuple[np.ndarray, np.ndarray]) -> Potentials:
        """Duals that the user gives, in the order of the problem."""
        if len(duals) != 2:
            raise InputError(f"duals must be two arrays of numbers, got {len(duals)}")
        u, v = (numbers(values, "duals") for values in duals)
        n, m = len(self.order_a), len(self.order_b)
        if u.shape != (n,) or v.shape != (m,):
            raise InputError(
                f"duals must have the lengths of the two measures, ({n},) and ({m},), "
                f"got {u.shape} and {v.shape}"
            )
        if not (np.isfinite(u).all() and np.isfinite(v).all()):
            raise InputError("duals must be finite numbers")
        return Potentials(u[self.order_a], v[self.order_b])

    def duals(self, potentials: Potentials) -> tuple[np.ndarray, np.ndarray]:
        """Potentials in the order of the measures."""
        u, v = np.empty(len(self.order_a)), np.empty(len(self.order_b))
        u[self.order_a], v[self.order_b] = potentials.u, potentials.v
        return u, v


def _checked_points(points: np.ndarray, which: str, cost: Cost) -> np.ndarray:
    """The points, on the unit sphere to rounding if the cost needs it."""
    if not cost.geodesic:
        return points
    radius = np.sqrt((points**2).sum(axis=1))
    worst = int(np.argmax(np.abs(radius - 1.0)))
    if abs(radius[worst] - 1.0) > GEODESIC_TOLERANCE:
        raise InputError(
            f"geodesic cost needs points on the unit sphere, but point {worst} of the {which} "
            f"measure has norm {radius[worst]:.12g}; normalise the points or use cost='chordal'"
        )
    # Points within rounding of the sphere stay as they are: equal points must stay equal.
    return np.where(np.abs(radius - 1.0)[:, None] > 4 * _EPS, points / radius[:, None], points)


def _with_common_total(
    masses_a: np.ndarray, masses_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Masses scaled to the same sum, and the relative rounding to allow for in each.

    A mass is known to rounding, as is what normalising makes of it, unless both sides have the same
    numbers, such as N equal tokens each: these balance however they are rounded.
    """
    # Powers of two scale without error.
    a, b = (np.ldexp(masses, -math.frexp(masses.max())[1]) for masses in (masses_a, masses_b))
    if np.array_equal(np.sort(a), np.sort(b)):
        return a, b, 0.0
    return a, b * (exact_sum(a) / exact_sum(b)), 4 * _EPS
