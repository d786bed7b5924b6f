"""The Wasserstein distance between two discrete measures, with a certified interval.

    W_p(mu, nu)^p = min { sum c(x_i, y_j)^p x_ij : sum_j x_ij = mu_i, sum_i x_ij = nu_j, x >= 0 }

This module checks the input, chooses the method, and turns its candidates into a result; the
interval comes from `certificate`, whichever method found them.

An atom i may stand for mass spread over a cell, with the root mean square distance s_i from its
point. With e^2 = sum a_i s_i^2 of each measure the triangle inequality gives the lower bound low -
e - e' for the densities, and for p = 1 the upper bound high + e + e'; for p = 2 a plan that spreads
what goes from cell to cell evenly has the cost high^2 + e^2 + e'^2.

Two measures on the same cells, with shares a and b of their masses, differ by less. For p = 1 any
potential f with Lipschitz constant 1 has means over the cells within s_i of f(x_i), so that both
bounds move by no more than sum |a_i - b_i| s_i. For p = 2 what stays in its cell costs nothing, and
counts in neither e nor e'.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.support.arguments import typed_except
from meanfield_pde.support.checks import choice
from meanfield_pde.wasserstein import linear_program, network_simplex
from meanfield_pde.wasserstein.assembly import Assembled
from meanfield_pde.wasserstein.certificate import (
    Plan,
    Potentials,
    Problem,
    exact_sum,
    feasible_plan,
    lower_bound,
    plan_value,
    upper_bound,
)
from meanfield_pde.wasserstein.choices import METHODS
from meanfield_pde.wasserstein.closed_forms import (
    is_assignment,
    solve_assignment,
    solve_on_circle,
    solve_to_atoms,
)
from meanfield_pde.wasserstein.costs import make_cost
from meanfield_pde.wasserstein.measure import Measure
from meanfield_pde.wasserstein.restricted import Solver
from meanfield_pde.wasserstein.sifting import sift

_EPS = float(np.finfo(float).eps)
# What a result calls each method, and what solves where there is no closed form.
_SOLVERS: dict[str, tuple[str, Solver]] = {
    "auto": ("linear program", network_simplex.solve_on_arcs),
    "lp": ("linear program", network_simplex.solve_on_arcs),
    "scipy": ("linear program (scipy)", linear_program.solve_on_arcs),
}
# Gap that rounding may leave a closed form, relative to the largest cost: some thousand roundings.
CLOSED_FORM_ERROR = 1e-12
# Below this many discretisation bars W2 says more about the cells than about the measures (chosen).
RESOLVED_BARS = 3.0


@dataclass(frozen=True, eq=False)
class WassersteinResult:
    """A Wasserstein distance and what is certain about it.

    Attributes:
        value: W_p of the best plan found.
        low: certified lower bound of W_p between the two discrete measures.
        high: certified upper bound.
        discretisation: e_mu + e_nu with e^2 = sum a_i s_i^2, s_i^2 the spread of cell i: how far
            the discrete measures may be from the densities they stand for. 0 for atoms.
        resolved: False when p = 2 and W2 < 3 (e_mu + e_nu); W1 then still means something.
        status: "exact" (a closed form), "optimal" (interval closed to rtol), "rounding limit"
            (as narrow as double precision allows), "time limit", "iteration limit" or, of scipy
            alone, "solver failure". The interval holds in every case.
        method: "circle", "atoms", "assignment", "linear program" or "linear program (scipy)".
        duals: potentials u, v on the atoms of mu and nu with u_i + v_j <= c_ij^p; for any masses a,
            b on the same atoms a.u + b.v <= W_p^p.
        continuous: interval for W_p between the densities that the cells stand for, equal to
            (low, high) for atoms.
    """

    value: float
    low: float
    high: float
    discretisation: float
    resolved: bool
    status: str
    method: str
    duals: tuple[np.ndarray, np.ndarray] = field(repr=False)
    continuous: tuple[float, float]

    @property
    def gap(self) -> float:
        """Relative width of the certified interval."""
        return (self.high - self.low) / self.high if self.high > 0 else 0.0


# Warnings are those of whoever calls from outside.
_PACKAGE = str(Path(__file__).parents[1])


@typed_except("p")  # of which `make_cost` says what it may be
def wasserstein(
    mu: Measure,
    nu: Measure,
    p: int | None = None,
    cost: str = "geodesic",
    *,
    method: str = "auto",
    rtol: float = 1e-10,
    time_limit: float | None = None,
    duals: tuple[np.ndarray, np.ndarray] | None = None,
    same_cells: bool = False,
) -> WassersteinResult:
    """Wasserstein distance W_p between two discrete measures, each normalised to mass one.

    Args:
        mu: first measure.
        nu: second measure, in the same dimension.
        p: 1 or 2; by default 1, as on the command line, with a FutureWarning: it used to be 2.
        cost: "geodesic", 2 asin(|x - y|/2) between points of the unit sphere, or "chordal", |x - y|
            between any points.
        method: "auto" uses the closed forms (geodesic cost on the circle; one side with at most two
            atoms; equal masses) where there is one; "lp" always solves linear programs, by a
            network simplex of our own; "scipy" solves the same ones by scipy's HiGHS, which takes
            longer but shares no code with it, so that each can be checked by the other.
        rtol: relative width of the certified interval of W_p^p at which to stop.
        time_limit: seconds after which to return the interval reached.
        duals: `duals` of an earlier result on the same atoms, to start from.
        same_cells: whether atom i of both stands for mass spread alike over the same cell, which
            makes the interval between the densities narrower.

    Raises:
        InputError: if the measures or the options make no sense.
    """
    started = time.monotonic()
    p = _order(p)
    chosen = make_cost(cost, p)
    _check_options(method, rtol, time_limit)
    if mu.dimension != nu.dimension:
        raise InputError(
            f"both measures must live in the same dimension, got d = {mu.dimension} "
            f"and d = {nu.dimension}"
        )
    if chosen.geodesic and mu.dimension < 2:
        raise InputError("geodesic cost needs points of dimension 2 or more, got 1")
    _check_cells(mu, nu, same_cells)
    whole = Assembled(mu, nu, chosen)
    start = None if duals is None else whole.potentials_from(duals)

    problem, kept_a, kept_b = whole.without_negligible()
    if start is not None:
        start = Potentials(start.u[kept_a], start.v[kept_b])
    deadline = math.inf if time_limit is None else started + time_limit
    name, plan, potentials, status = _solution(problem, method, rtol, deadline, start)

    plan = Plan(kept_a[plan.rows], kept_b[plan.columns], plan.flow)
    if len(kept_a) < len(whole.problem.a) or len(kept_b) < len(whole.problem.b):
        potentials = whole.potentials_of_all(problem, kept_a, kept_b, potentials)
    return _result(whole, plan, potentials, name, status, mu, nu, same_cells)


def _solution(
    problem: Problem, method: str, rtol: float, deadline: float, start: Potentials | None
) -> tuple[str, Plan, Potentials, str]:
    """Name of the method, plan, potentials and status."""
    closed_form = _closed_form(problem) if method == "auto" else None
    if closed_form is not None:
        return *closed_form, "exact"
    name, solve = _SOLVERS[method]
    bracket = sift(problem, rtol, deadline, solve, start)
    return name, bracket.plan, bracket.potentials, bracket.status


def _closed_form(problem: Problem) -> tuple[str, Plan, Potentials] | None:
    """Name, plan and potentials of the closed form that applies and passes its check, or None."""
    if min(len(problem.a), len(problem.b)) <= 2:
        name, (plan, potentials) = "atoms", solve_to_atoms(problem)
    elif problem.cost.geodesic and problem.sources.points.shape[1] == 2:
        name, (plan, potentials) = "circle", solve_on_circle(problem)
    elif is_assignment(problem):
        name, (plan, potentials) = "assignment", solve_assignment(problem)
    else:
        return None
    # A closed form is exact to rounding or it is wrong, and then the linear program decides.
    plan, missing = feasible_plan(problem, plan)
    upper, lower = upper_bound(problem, plan, missing), lower_bound(problem, potentials)
    largest = problem.cost.upper_bound(problem.sources.points, problem.targets.points)
    exact = upper - lower <= CLOSED_FORM_ERROR * largest * exact_sum(problem.a)
    return (name, plan, potentials) if exact else None


def _check_options(method: str, rtol: float, time_limit: float | None) -> None:
    choice(method, "method", METHODS)
    if not 0 < rtol < 1:
        raise InputError(f"rtol must lie between 0 and 1, got {rtol!r}")
    if time_limit is not None and not time_limit >= 0:
        raise InputError(f"time_limit must be >= 0 seconds or None, got {time_limit!r}")


def _result(
    whole: Assembled,
    plan: Plan,
    potentials: Potentials,
    method: str,
    status: str,
    mu: Measure,
    nu: Measure,
    same_cells: bool,
) -> WassersteinResult:
    problem = whole.problem
    p, total = problem.cost.p, exact_sum(problem.a)
    plan, missing = feasible_plan(problem, plan, joint=True)
    upper = float(upper_bound(problem, plan, missing)) / total
    lower = max(0.0, lower_bound(problem, potentials) / total)
    low = lower ** (1 / p) * (1 - 4 * _EPS)
    high = upper ** (1 / p) * (1 + 4 * _EPS)
    value = min(max(low, (plan_value(problem, plan) / total) ** (1 / p)), high)

    stays: np.ndarray | None = None
    if same_cells:
        rows, columns = whole.order_a[plan.rows], whole.order_b[plan.columns]
        still = rows == columns
        stays = np.bincount(rows[still], plan.flow[still] / total, len(mu.masses))
    bar = mu.width + nu.width
    return WassersteinResult(
        value=value,
        low=low,
        high=high,
        discretisation=bar,
        resolved=p == 1 or not value < RESOLVED_BARS * bar,
        status=status,
        method=method,
        duals=whole.duals(potentials),
        continuous=density_interval(p, low, high, mu, nu, stays),
    )


def _order(p: int | None) -> int:
    """The order asked for; 1 and a FutureWarning to whoever called `wasserstein` without."""
    if p is not None:
        return p
    warnings.warn(
        "wasserstein without p is W_1 now, as on the command line, and no longer W_2; say p=1 or "
        "p=2",
        FutureWarning,
        skip_file_prefixes=(_PACKAGE,),
    )
    return 1


def _check_cells(mu: Measure, nu: Measure, same_cells: bool) -> None:
    """Refuse measures that are not on the same cells, if that is what was said."""
    alike = np.array_equal(mu.points, nu.points) and (mu.spread is None) == (nu.spread is None)
    if mu.spread is not None and nu.spread is not None:
        alike = alike and np.array_equal(mu.spread, nu.spread)
    if same_cells and not alike:
        raise InputError("same_cells needs two measures with the same points and spread")


def density_interval(
    p: int, low: float, high: float, mu: Measure, nu: Measure, stays: np.ndarray | None
) -> tuple[float, float]:
    """Bounds of W_p between the densities.

    Args:
        p: 1 or 2.
        low: lower bound of W_p between the atoms.
        high: upper bound.
        mu: one measure.
        nu: the other.
        stays: share of the mass that a plan of cost high^p leaves in each cell, if both measures
            are on the same cells; otherwise None.
    """
    bar = mu.width + nu.width
    squares = mu.width**2 + nu.width**2
    if stays is not None and mu.spread is not None:
        # By the sums that plans are divided by: what stays whole is not to have moved by rounding.
        a, b = mu.masses / exact_sum(mu.masses), nu.masses / exact_sum(nu.masses)
        if p == 1:
            bar = float(np.abs(a - b) @ np.sqrt(mu.spread))
        moved = np.maximum(a - stays, 0.0) + np.maximum(b - stays, 0.0)
        squares = float(moved @ mu.spread)
    top = high + bar if p == 1 else math.sqrt(high**2 + squares)
    return max(0.0, low - bar), top
