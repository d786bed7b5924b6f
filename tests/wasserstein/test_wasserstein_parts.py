"""The parts of the Wasserstein solver, each against a direct computation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from meanfield_pde.wasserstein import linear_program, sifting, wasserstein
from meanfield_pde.wasserstein.certificate import (
    EMPTY_PLAN,
    Plan,
    Problem,
    feasible_plan,
    feasible_potentials,
    lower_bound,
    upper_bound,
)
from meanfield_pde.wasserstein.cloud import BLOCK, Cloud, kd_order, make_cloud
from meanfield_pde.wasserstein.costs import COST_ERROR, Cost
from meanfield_pde.wasserstein.measure import Measure
from meanfield_pde.wasserstein.network_simplex import solve_on_arcs
from meanfield_pde.wasserstein.pricing import best_arcs, c_transform
from meanfield_pde.wasserstein.restricted import Solver
from meanfield_pde.wasserstein.sifting import make_levels, refine_plan

COSTS = [Cost(geodesic, p) for geodesic in (True, False) for p in (1, 2)]


SOLVERS = pytest.mark.parametrize(
    "solver", [solve_on_arcs, linear_program.solve_on_arcs], ids=["network simplex", "scipy"]
)


def random_cloud(rng: np.random.Generator, count: int, dimension: int = 3) -> Cloud:
    points = rng.normal(size=(count, dimension))
    points /= np.linalg.norm(points, axis=1)[:, None]
    return make_cloud(points[kd_order(points)])


def random_problem(seed: int, n: int, m: int, cost: Cost) -> Problem:
    rng = np.random.default_rng(seed)
    a, b = rng.random(n), rng.random(m)
    return Problem(
        cost, random_cloud(rng, n), random_cloud(rng, m), a, b * a.sum() / b.sum(), 1e-15
    )


def all_costs(problem: Problem) -> np.ndarray:
    """Cost matrix, in extended precision."""
    x = problem.sources.points.astype(np.longdouble)
    y = problem.targets.points.astype(np.longdouble)
    chord = np.sqrt(((x[:, None] - y[None]) ** 2).sum(axis=2))
    if problem.cost.geodesic:
        opposite = np.sqrt(((x[:, None] + y[None]) ** 2).sum(axis=2))
        return (2 * np.arctan2(chord, opposite)) ** problem.cost.p
    return chord**problem.cost.p


@pytest.mark.parametrize("cost", COSTS)
def test_costs_are_right_to_their_error(cost: Cost) -> None:
    """Random pairs, close ones and nearly antipodal ones."""
    problem = random_problem(0, 300, 300, cost)
    x = problem.sources.points
    rng = np.random.default_rng(1)
    moved = np.concatenate([x + 10.0 ** -rng.integers(1, 9) * rng.normal(size=x.shape), -x])
    moved[300:450] += 1e-7 * rng.normal(size=(150, 3))
    moved /= np.linalg.norm(moved, axis=1)[:, None]
    targets = make_cloud(np.concatenate([moved, problem.targets.points]))
    wide = Problem(cost, problem.sources, targets, problem.a, np.ones(len(targets)))
    exact = all_costs(wide)
    rows, columns = (index.ravel() for index in np.indices(exact.shape))
    costs = cost.of_arcs(x, targets.points, rows, columns).reshape(exact.shape)
    assert np.abs(costs - exact).max(where=exact > 1e-30, initial=0.0) < 1e-13
    # Unit vectors are unit to rounding only, which moves an angle of 1e-8 by 1e-16 of itself.
    assert (np.abs(costs - exact) <= COST_ERROR * exact + 1e-22).all()


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 1000])
def test_kd_order_and_balls(count: int) -> None:
    points = np.random.default_rng(count).normal(size=(count, 3))
    order = kd_order(points)
    assert sorted(order) == list(range(count))
    cloud = make_cloud(points[order])
    for g, (centre, radius) in enumerate(zip(cloud.centres, cloud.radii, strict=True)):
        block = cloud.points[g * BLOCK : (g + 1) * BLOCK]
        assert (np.linalg.norm(block - centre, axis=1) <= radius).all()


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0])
def test_pricing_against_the_full_matrix(cost: Cost, scale: float) -> None:
    """Skipping blocks never misses one of the best arcs, whatever the potentials."""
    problem = random_problem(2, 150, 700, cost)
    v = scale * np.random.default_rng(3).normal(size=700)
    best, values = best_arcs(cost, problem.sources, problem.targets, v, 5)
    reduced = all_costs(problem).astype(float) - v
    assert values == pytest.approx(np.sort(reduced, axis=1)[:, :5], abs=1e-13)
    assert np.take_along_axis(reduced, best, axis=1) == pytest.approx(values, abs=1e-13)
    u = c_transform(cost, problem.sources, problem.targets, v)
    total = u.astype(np.longdouble)[:, None] + v.astype(np.longdouble)[None]
    assert (total <= all_costs(problem)).all()


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("seed", range(10))
def test_bounds_hold_for_any_candidate(cost: Cost, seed: int) -> None:
    """Nonsense for a plan and for potentials gives a wide interval, never a wrong one."""
    problem = random_problem(seed, 40, 30, cost)
    measures = (
        Measure(problem.sources.points, problem.a),
        Measure(problem.targets.points, problem.b),
    )
    name = "geodesic" if cost.geodesic else "chordal"
    result = wasserstein(*measures, cost.p, name, method="lp")
    total = math.fsum(problem.a)
    rng = np.random.default_rng(seed)
    arcs = int(rng.integers(0, 300))
    flow = rng.normal(size=arcs) * 10.0 ** rng.integers(-9, 3)
    plan, missing = feasible_plan(
        problem,
        Plan(rng.integers(0, 40, arcs), rng.integers(0, 30, arcs), flow),
        joint=seed % 2 > 0,
    )
    assert np.bincount(plan.rows, plan.flow, 40) == pytest.approx(problem.a, rel=1e-13)
    assert np.bincount(plan.columns, plan.flow, 30) == pytest.approx(problem.b, rel=1e-13)
    assert (plan.flow > 0).all()
    assert missing < 1e-14
    assert upper_bound(problem, plan, missing) / total >= result.low**cost.p
    potentials = feasible_potentials(problem, rng.normal(size=30) * 10.0 ** rng.integers(-9, 3))
    assert lower_bound(problem, potentials) / total <= result.high**cost.p


def test_mass_that_a_plan_cannot_place_is_charged() -> None:
    problem = random_problem(4, 10, 10, Cost(True, 2))
    short = Problem(problem.cost, problem.sources, problem.targets, problem.a, 0.5 * problem.b)
    plan, missing = feasible_plan(short, EMPTY_PLAN)
    assert missing == pytest.approx(0.5 * problem.a.sum())
    assert upper_bound(short, plan, missing) > upper_bound(short, plan, 0.0) + missing


@pytest.mark.parametrize("sizes", [(1000, 1000), (1000, 100), (90, 1001)])
def test_levels_keep_the_mass_and_carry_plans(sizes: tuple[int, int]) -> None:
    problem = random_problem(5, *sizes, Cost(True, 2))
    levels = make_levels(problem, 64)
    for level in levels:
        assert level.problem.a.sum() == pytest.approx(problem.a.sum())
        assert level.problem.b.sum() == pytest.approx(problem.b.sum())
        assert np.linalg.norm(level.problem.sources.points, axis=1) == pytest.approx(1.0)
    coarse, fine = levels[-1], levels[-2]
    assert max(len(coarse.problem.a), len(coarse.problem.b)) <= 64 or min(sizes) <= 100
    plan, _ = feasible_plan(coarse.problem, EMPTY_PLAN)
    refined = refine_plan(plan, fine)
    n, m = len(fine.problem.a), len(fine.problem.b)
    assert np.bincount(refined.rows, refined.flow, n) == pytest.approx(fine.problem.a)
    assert np.bincount(refined.columns, refined.flow, m) == pytest.approx(fine.problem.b)


def test_a_group_without_a_direction_is_coarsened_to_one_of_its_points() -> None:
    """The centre of two antipodal atoms is no point of the sphere."""
    points = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]] * 2)
    cloud = make_cloud(points)
    levels = make_levels(Problem(Cost(True, 2), cloud, cloud, np.ones(4), np.ones(4)), 2)
    assert np.linalg.norm(levels[-1].problem.sources.points, axis=1) == pytest.approx(1.0)


def test_at_the_deadline_the_network_simplex_has_something_and_scipy_nothing() -> None:
    rng = np.random.default_rng(7)
    arcs, a, b = np.arange(400), rng.random(20), rng.random(20)
    a, b, cost = a / a.sum(), b / b.sum(), rng.random(400)
    problem = (arcs // 20, arcs % 20, cost, a, b, 10.0)
    solution = solve_on_arcs(*problem, -math.inf)
    assert not solution.finished
    assert solution.flow.tolist() == [0.0] * 400
    assert solve_on_arcs(*problem).finished
    assert linear_program.solve_on_arcs(*problem) is not None
    # scipy is given a hundredth of a second at least: this one takes longer.
    arcs, even = np.arange(250_000), np.full(500, 0.002)
    big = (arcs // 500, arcs % 500, rng.random(250_000), even, even, 10.0)
    assert linear_program.solve_on_arcs(*big, 0.0) is None


@SOLVERS
@pytest.mark.parametrize(("n", "m"), [(1, 7), (13, 1), (20, 20), (40, 15)])
@pytest.mark.parametrize("masses", ["random", "equal", "tails"])
def test_flow_and_potentials_prove_each_other(solver: Solver, n: int, m: int, masses: str) -> None:
    rng = np.random.default_rng(n + m)
    a, b = {
        "random": (rng.random(n), rng.random(m)),
        "equal": (np.ones(n), np.ones(m)),
        "tails": (10 ** rng.uniform(-12, 0, n), 10 ** rng.uniform(-12, 0, m)),
    }[masses]
    a, b = a / a.sum(), b / b.sum()
    rows, columns = np.divmod(np.arange(n * m), m)
    # Many costs are equal, so that bases are degenerate in the potentials as well.
    cost = rng.integers(0, 5, n * m).astype(float)
    solution = solver(rows, columns, cost, a, b, 20.0, math.inf, None)
    assert solution is not None
    assert solution.finished
    assert np.bincount(rows, solution.flow, n) == pytest.approx(a, rel=1e-9, abs=1e-15)
    assert np.bincount(columns, solution.flow, m) == pytest.approx(b, rel=1e-9, abs=1e-15)
    assert (solution.u[rows] + solution.v[columns] - cost).max() <= 1e-13
    assert solution.flow @ cost == pytest.approx(a @ solution.u + b @ solution.v, abs=1e-13)
    again = solver(rows, columns, cost, a, b, 20.0, math.inf, solution.tree)
    assert again is not None
    assert again.flow == pytest.approx(solution.flow, abs=1e-15)


def test_arcs_that_cannot_carry_all_leave_potentials_that_ask_for_others() -> None:
    arcs, masses = np.array([0]), np.array([0.5, 0.5])
    solution = solve_on_arcs(arcs, arcs, np.ones(1), masses, masses, 10.0)
    assert solution.finished
    assert solution.flow.tolist() == [0.5]
    assert solution.u[1] + solution.v[1] == 20.0


def test_arcs_that_cannot_carry_all_are_a_failure_of_scipy() -> None:
    """Every attempt fails, and none of them raises."""
    arcs, masses = np.array([0]), np.array([0.5, 0.5])
    assert linear_program.solve_on_arcs(arcs, arcs, np.ones(1), masses, masses, 10.0) is None


@SOLVERS
@pytest.mark.parametrize("lie", ["nothing", "zero plan", "zero duals"])
def test_a_solver_that_fails_or_lies_leaves_an_open_interval(lie: str, solver: Solver) -> None:
    problem = random_problem(8, 60, 60, Cost(True, 2))
    truth = sifting.sift(problem, 1e-10, math.inf, solver)
    assert truth.status == "optimal"

    def solve(*arguments):
        honest = solver(*arguments)
        if lie == "nothing":
            return None
        if lie == "zero plan":
            return replace(honest, flow=0 * honest.flow)
        return replace(honest, u=0 * honest.u, v=0 * honest.v)

    bracket = sifting.sift(problem, 1e-10, math.inf, solve)
    assert bracket.status == ("solver failure" if lie == "nothing" else "rounding limit")
    assert bracket.lower <= truth.upper
    assert bracket.upper >= truth.lower
    assert bracket.upper - bracket.lower > 1e-3 * bracket.upper


def test_an_iteration_limit_is_reported() -> None:
    problem = random_problem(9, 30, 30, Cost(True, 2))
    none = sifting.SiftSettings(rounds=0)
    bracket = sifting.sift(problem, 1e-10, math.inf, solve_on_arcs, settings=none)
    assert bracket.status == "iteration limit"
    assert bracket.lower < bracket.upper


@pytest.mark.parametrize("cost", ["geodesic", "chordal"])
@pytest.mark.parametrize("p", [1, 2])
def test_equal_masses_are_an_assignment(p: int, cost: str) -> None:
    """As exact as the linear program, with an interval closed to rounding."""
    rng = np.random.default_rng(p)
    x, y = (
        points / np.linalg.norm(points, axis=1)[:, None] for points in rng.normal(size=(2, 300, 3))
    )
    mu, nu = Measure(x, np.full(300, 0.1)), Measure(y, np.full(300, 7.0))
    found = wasserstein(mu, nu, p, cost)
    assert found.method == "assignment"
    assert found.gap < 1e-11
    expected = wasserstein(mu, nu, p, cost, method="lp")
    assert expected.method == "linear program"
    assert found.value == pytest.approx(expected.value, rel=1e-10)
    nearly = np.full(300, 7.0)
    nearly[0] *= 1 + 1e-9
    assert wasserstein(mu, Measure(y, nearly), p, cost).method == "linear program"


def test_atoms_without_mass_get_feasible_potentials() -> None:
    """They are left out of the solve, and their potentials are filled in afterwards."""
    rng = np.random.default_rng(6)
    angle = rng.uniform(0, 2 * np.pi, (2, 90))
    x, y = (np.column_stack([np.cos(t), np.sin(t)]) for t in angle)
    a, b = rng.uniform(size=(2, 90))
    a[::3], b[1::4] = 0.0, 1e-40
    for p in (1, 2):
        found = wasserstein(Measure(x, a), Measure(y, b), p)
        u, v = found.duals
        costs = (2 * np.arcsin(np.linalg.norm(x[:, None] - y, axis=2) / 2)) ** p
        assert (u[:, None] + v <= costs + 1e-14).all()
        value = (a / a.sum()) @ u + (b / b.sum()) @ v
        assert value == pytest.approx(found.value**p, rel=1e-12)


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000])
def test_kd_order_bisects_the_widest_coordinate_and_is_stable(count: int) -> None:
    points = np.random.default_rng(count).integers(0, 9, (count, 3)).astype(float)

    def bisected(part: np.ndarray) -> list[int]:
        if len(part) < 2:
            return part.tolist()
        extent = np.ptp(points[part], axis=0)
        part = part[np.argsort(points[part, np.argmax(extent)], kind="stable")]
        half = 2 ** ((len(part) - 1).bit_length() - 1)
        return bisected(part[:half]) + bisected(part[half:])

    assert kd_order(points).tolist() == bisected(np.arange(count))
