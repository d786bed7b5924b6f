"""The compiled integrator takes the steps of PETSc's TS, one by one or many at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI
from petsc4py import PETSc

import numpy as np
import pytest

from meanfield_pde import Attention, circle_mesh, read_case, solve, sphere_mesh
from meanfield_pde.mesh.gradients import STEEPEST
from meanfield_pde.mesh.reconstruction import face_factors, facet_numbers, logarithms
from meanfield_pde.solver.integrator import SSPRungeKutta
from meanfield_pde.solver.masses import Doubles, ExtendedRange, Masses
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.solver.step_control import StepSettings

COMMUNICATORS = MPI.COMM_WORLD, MPI.COMM_SELF


def simulation(d: int, beta: float, scheme: str, comm: MPI.Comm = MPI.COMM_WORLD) -> Simulation:
    mesh = circle_mesh(60, comm=comm) if d == 2 else sphere_mesh(320, comm=comm)
    value = np.array([[1.0, 0.2, 0.0], [0.0, 0.3, 0.1], [0.0, 0.0, -0.4]])[:d, :d]
    attention = Attention(np.eye(d), np.eye(d), value, beta)
    return Simulation(attention, mesh, "1 + 0.5*x + 0.3*x*y", settings=SolverCase(scheme=scheme))


@pytest.mark.parametrize("scheme", ["muscl", "upwind"])
@pytest.mark.parametrize("beta", [3.0, math.inf])
@pytest.mark.parametrize("d", [2, 3])
def test_they_are_the_stages_of_petsc(d: int, beta: float, scheme: str) -> None:
    ours = simulation(d, beta, scheme)
    options = PETSc.Options()
    options.setValue("ts_ssp_type", "rks3")
    try:
        theirs = simulation(d, beta, scheme)
    finally:
        options.delValue("ts_ssp_type")
    for run in (ours, theirs):
        run.evolution.advance(3.0)
        run.close()
    assert ours.evolution.step == theirs.evolution.step
    assert ours.evolution.masses == pytest.approx(theirs.evolution.masses, rel=1e-11)


def test_petsc_takes_the_steps_of_an_adaptive_mesh_too() -> None:
    """Patches and regrids: the same cells, and masses to rounding."""
    case = read_case(Path(__file__).parents[2] / "demos" / "circle.toml")
    options, found = PETSc.Options(), []
    for method in (None, "rks3"):
        if method:
            options.setValue("ts_ssp_type", method)
        try:
            mesh = circle_mesh(60)
            found.append(
                # PETSc has to do without the longer steps that are checked stage by stage.
                solve(
                    case.attention,
                    mesh,
                    case.initial,
                    until=8.5,
                    adapt=1e-2,
                    steps=StepSettings(courant=0.36),
                )
            )
        finally:
            if method:
                options.delValue("ts_ssp_type")
    ours, theirs = found
    assert ours.history["patch_mass"][-1] > 0.1
    assert theirs.steps == ours.steps
    np.testing.assert_array_equal(theirs.cells_at(-1).vertices, ours.cells_at(-1).vertices)
    assert theirs.masses[-1] == pytest.approx(ours.masses[-1], rel=1e-8, abs=1e-15)


@pytest.mark.parametrize("d", [2, 3])
def test_many_steps_at_once_are_the_same_steps(d: int) -> None:
    together, apart = simulation(d, math.inf, "muscl"), simulation(d, math.inf, "muscl")
    lengths = []
    for until in (0.7, 4.0):
        together.evolution.advance(until)
        apart.evolution.advance(until, lambda state: lengths.append(state.last_dt))
    one, other = together.evolution, apart.evolution
    assert len(lengths) == one.step == other.step > 20
    assert (one.time, one.last_dt, one.mass) == (other.time, other.last_dt, other.mass)
    assert one.masses.tolist() == other.masses.tolist()


@pytest.mark.parametrize("form", [Doubles, ExtendedRange.of])
def test_where_a_cell_would_give_away_more_than_it_holds_steps_are_shorter(
    form: Callable[[np.ndarray], Masses],
) -> None:
    """Steps that resolved densities on the sphere allow, with masses over 300 decades."""
    run = simulation(3, math.inf, "quadratic").evolution
    velocity, flow = run.velocity(), run.flow
    masses = form(np.exp(np.random.default_rng(0).uniform(-690, 0, len(run.masses))))
    step = flow.longest_step(velocity.rate)
    assert flow.integrator.many(masses, velocity, 0.0, step, step).steps == 0
    found, _ = flow(masses, velocity, 3 * step)
    assert found.doubles.min() >= 0
    assert found.doubles.sum() == pytest.approx(masses.doubles.sum(), rel=1e-14)
    safe = flow.safe_step(velocity.rate)
    assert safe < 0.7 * step
    expected = flow.integrator.many(masses, velocity, 0.0, step, safe).masses
    np.testing.assert_array_equal(flow(masses, velocity, step)[0].doubles, expected.doubles)


@pytest.mark.parallel([2])
def test_several_ranks_take_the_steps_of_one() -> None:
    shared, single = (simulation(2, math.inf, "muscl", comm) for comm in COMMUNICATORS)
    for run in (shared, single):
        run.evolution.advance(4.0)
    one, other = shared.evolution, single.evolution
    assert (one.step, one.time, one.last_dt) == (other.step, other.time, other.last_dt)
    masses = [run.state.volumes.gather(run.masses) for run in (one, other)]
    assert masses[0] == pytest.approx(masses[1], rel=1e-12)


def test_the_longest_step_of_petsc_is_one_that_it_takes() -> None:
    """Its stages are not checked: it is given no step that it would refuse, by rounding say."""
    options = PETSc.Options()
    options.setValue("ts_ssp_type", "rks3")
    try:
        run = simulation(3, math.inf, "quadratic").evolution
    finally:
        options.delValue("ts_ssp_type")
    velocity, integrator = run.velocity(), run.flow.integrator
    step = run.flow.longest_step(velocity.rate)
    assert step == run.flow.safe_step(velocity.rate)
    assert (
        integrator.many(run.state.masses, run.velocity(), 0.0, step, step * (1 + 1e-9)).steps == 1
    )
    run.close()


def test_a_step_that_is_too_long_has_no_result() -> None:
    run = simulation(2, math.inf, "muscl").evolution
    integrator = SSPRungeKutta(run.equation.transport)
    before = run.masses.copy()
    assert integrator.step(run.state.masses, run.velocity(), 50.0) is None
    assert integrator.many(run.state.masses, run.velocity(), 0.0, 50.0, 50.0).steps == 0
    np.testing.assert_array_equal(run.masses, before)


def test_logarithms() -> None:
    rng = np.random.default_rng(3)
    tiny = float(np.finfo(float).tiny)
    values = np.concatenate(
        [10 ** rng.uniform(-307, 308, 2000), rng.uniform(0.7, 1.5, 2000), [1.0, tiny]]
    )
    found = np.empty_like(values)
    logarithms(values, found)
    assert found == pytest.approx(np.log(values), rel=5e-16, abs=0)
    nothing = np.empty(2)
    logarithms(np.array([0.0, tiny / 2]), nothing)
    assert nothing.tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize("d", [2, 3])
def test_factors_are_exponentials_of_limited_slopes(d: int) -> None:
    rng = np.random.default_rng(d)
    cells = 50
    neighbours = np.argsort(rng.random((cells, cells)), axis=1)[:, :d].copy()
    weights = rng.normal(size=(cells, d, d))
    logs = rng.normal(size=cells)
    logs[7] = -math.inf
    factors = np.empty((cells, d))
    face_factors(facet_numbers(d), logs, neighbours, weights, factors)
    with np.errstate(invalid="ignore"):
        slopes = np.einsum("cij,cj->ci", weights, logs[neighbours] - logs[:, None])
        limited = slopes * STEEPEST / np.maximum(np.abs(slopes).max(axis=1), STEEPEST)[:, None]
    beside_nothing = np.isinf(logs) | np.isinf(logs[neighbours]).any(axis=1)
    limited[beside_nothing] = 0.0
    assert 1 < beside_nothing.sum() < cells
    assert factors == pytest.approx(np.exp(limited), rel=2e-15, abs=0)


def test_two_points_of_a_facet_have_the_mean_of_their_middle() -> None:
    """Its slope is what is limited; neither factor exceeds e, on facets of any length."""
    rng = np.random.default_rng(2)
    cells = 60
    neighbours = np.argsort(rng.random((cells, cells)), axis=1)[:, :3].copy()
    weights = rng.normal(size=(cells, 6, 3))
    weights[40:] *= 100
    logs = 0.3 * rng.normal(size=cells)
    factors = np.empty((cells, 6))
    face_factors(facet_numbers(3), logs, neighbours, weights, factors)
    jump = logs[neighbours] - logs[:, None]
    slopes = np.einsum("ckj,cj->ck", weights, jump).reshape(cells, 3, 2)
    middle, rise = slopes.mean(axis=2), (slopes[..., 1] - slopes[..., 0]) / 2
    share = STEEPEST / np.maximum(np.abs(middle).max(axis=1), STEEPEST)[:, None]
    middle, rise = share * middle, share * rise
    factors = factors.reshape(cells, 3, 2)
    free = (np.abs(middle) + np.abs(rise) < 0.9) & (np.abs(rise) < 0.5)
    assert 20 < free.sum() < free.size - 20
    mean = factors.mean(axis=2)
    np.testing.assert_allclose(mean[free], np.exp(middle[free]), rtol=0.5**4 / 12)
    ratio = np.log(factors[..., 1] / factors[..., 0])
    np.testing.assert_allclose(ratio[free], 2 * rise[free], atol=1e-12)
    assert factors.max() == pytest.approx(math.e)
    assert factors.min() >= math.exp(-2) * (1 - 1e-11)
