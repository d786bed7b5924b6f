"""Noise: decay of modes, growth with drift, stationary states, free energy, positivity, resume."""

from __future__ import annotations

import math

from mpi4py import MPI
from petsc4py import PETSc

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ive, spherical_in

from meanfield_pde import Attention, Heads, InputError, Measure, Perceptron, solve, sphere_mesh
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.surface import Surface, build_mesh, circle_surface, sphere_surface
from meanfield_pde.solver.diffusion import Diffusion
from meanfield_pde.solver.step_control import StepSettings
from tests import oracles
from tests.problems import MESHES, SURFACES

AXIS = np.array([0.48, 0.6, 0.64])


def bisected(levels):
    """The octahedron's faces, cut in two `levels` times: triangles with right angles, nearly."""
    points = [np.array(p, dtype=float) for p in np.vstack([np.eye(3), -np.eye(3)])]
    ring = (0, 1, 3, 4)
    cells = [(ring[i], ring[(i + 1) % 4], pole) for i in range(4) for pole in (2, 5)]
    for _ in range(levels):
        middle: dict[tuple[int, int], int] = {}
        halves = []
        for a, b, c in cells:
            edge = (min(a, b), max(a, b))
            if edge not in middle:
                middle[edge] = len(points)
                points.append(geometry.normalised(points[a] + points[b]))
            halves += [(c, a, middle[edge]), (b, c, middle[edge])]
        cells = halves
    return Surface(np.array(points), np.array(cells))


def decayed(surface, degree, until, strength=1.0):
    """Masses of a mode after noise alone, exact masses, and the diffusion."""
    volumes = FiniteVolumes(build_mesh(surface))
    total = volumes.volume[: volumes.owned].sum()
    mode = volumes.integrate(lambda x: oracles.harmonic(degree, x)) / total
    uniform = volumes.volume[: volumes.owned] / total
    diffusion = Diffusion(volumes, strength)
    found = diffusion.advance(uniform + 0.5 * mode, until)
    rate = strength * oracles.eigenvalue(volumes.dimension, degree)
    return found, uniform + 0.5 * math.exp(-rate * until) * mode, diffusion


def test_an_iterative_solver_finds_tails_as_a_factorisation_does():
    """It is called again until every cell is settled, however loose its own tolerance is."""
    volumes = FiniteVolumes(build_mesh(sphere_surface(320)))
    start = np.zeros(320)
    start[0] = 1.0
    expected = Diffusion(volumes, 1.0).advance(start, 1e-3)
    assert expected.min() < 1e-20
    options = PETSc.Options()
    given = {"noise_ksp_type": "cg", "noise_pc_type": "jacobi", "noise_ksp_rtol": "1e-2"}
    for name, value in given.items():
        options.setValue(name, value)
    try:
        found = Diffusion(volumes, 1.0).advance(start, 1e-3)
    finally:
        for name in given:
            options.delValue(name)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_the_error_of_a_step_is_estimated():
    volumes = FiniteVolumes(build_mesh(circle_surface(50)))
    start = volumes.integrate(lambda x: (1 + 0.5 * x[:, 0]) / math.tau)
    diffusion = Diffusion(volumes, 1.0)
    for length in (0.1, 0.2):
        found, error, _ = diffusion._step(start, length)
        exact = start
        for _ in range(16):
            exact = diffusion._step(exact, length / 16)[0]
        assert error == pytest.approx(np.abs(found - exact).sum(), rel=0.1)


@pytest.mark.parametrize(
    ("d", "cells", "degree"),
    [
        (2, 800, 1),
        (2, 800, 4),
        pytest.param(3, 20_480, 2, marks=pytest.mark.slow),
        pytest.param(3, 20_480, 1, marks=pytest.mark.slow),
        pytest.param(3, 20_480, 4, marks=pytest.mark.slow),
    ],
)
def test_modes_decay_at_the_rates_of_the_laplacian(d, cells, degree):
    until = 1 / oracles.eigenvalue(d, degree)
    found, exact, diffusion = decayed(SURFACES[d](cells), degree, until)
    start = decayed(SURFACES[d](cells), degree, 0.0)[0]
    mode = start - start.mean() if d == 2 else start - exact
    ratio = ((found - exact) @ mode) / ((start - exact) @ mode) * (1 - math.exp(-1)) + math.exp(-1)
    assert ratio == pytest.approx(math.exp(-1), rel=1e-3)
    assert abs(found.sum() - start.sum()) < 1e-14
    assert diffusion.limited == 0


@pytest.mark.parametrize(
    "surfaces",
    [
        [circle_surface(n) for n in (50, 100, 200)],
        [circle_surface(n, grade=3.0, axis=AXIS[:2]) for n in (100, 200, 400)],
        [sphere_surface(n) for n in (320, 1280, 5120)],
        [sphere_surface(n, grade=2.0, axis=AXIS) for n in (1280, 5120)],
        [bisected(n) for n in (5, 7, 9)],
        [bisected(n) for n in (4, 6, 8)],
    ],
    ids=["circle", "graded circle", "icospheres", "graded icospheres", "bisected", "bisected, odd"],
)
def test_second_order_in_space(surfaces):
    """On right triangles too, where fluxes between circumcentres would break down."""
    errors = []
    for surface in surfaces:
        found, exact, _ = decayed(surface, 2, 0.2)
        errors.append(np.abs(found - exact).sum())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert orders[0] > 1.7, errors
    assert orders[-1] > 1.8, errors


def test_second_order_in_time():
    """Strang splitting and TR-BDF2, by the length of the steps alone."""
    volumes = FiniteVolumes(build_mesh(circle_surface(100)))
    start = volumes.integrate(lambda x: (1 + 0.5 * x[:, 0] + 0.4 * x[:, 0] * x[:, 1]) / math.tau)
    diffusion = Diffusion(volumes, 1.0)

    def end(steps):
        masses = start
        for _ in range(steps):
            masses = diffusion._step(masses, 0.8 / steps)[0]
        return masses

    exact = end(512)
    errors = [np.abs(end(steps) - exact).sum() for steps in (4, 8, 16)]
    assert (np.log2(np.array(errors[:-1]) / errors[1:]) > 1.8).all()


def test_splitting_of_second_order():
    attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, -0.5]), 2.0)
    mesh = MESHES[2](24)

    def end(growth):
        # First steps are growth / |V| long, and longer ones must not be.
        steps = StepSettings(splitting=1.0, diffusion=1e-9, growth=growth)
        initial = "1 + 0.5*x + 0.3*x*y"
        return solve(attention, mesh, initial, until=0.5, noise=0.3, steps=steps).masses[-1]

    exact = end(2**-9)
    errors = [np.abs(end(growth) - exact).sum() for growth in (2**-4, 2**-5, 2**-6)]
    assert (np.log2(np.array(errors[:-1]) / errors[1:]) > 1.7).all(), errors


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(
    ("d", "cells"), [(2, 800), pytest.param(3, 20_480, marks=pytest.mark.slow)]
)
def test_growth_rates_with_noise(d, cells, normalise):
    """k^2 (I_k / (beta I_0) - sigma), and the same with i_l; times I_0 without the denominator."""
    one, beta, until, size, strength = np.eye(d), 2.0, 0.1, 1e-5, 0.15
    attention = Attention(one, one, one, beta, normalise)
    mesh = MESHES[d](cells)
    degrees = (1, 2, 3)

    def density(points):
        return 1 + size * sum(oracles.harmonic(k, points) for k in degrees)

    found = solve(attention, mesh, density, until=until, noise=strength)
    uniform = solve(attention, mesh, until=until, noise=strength)
    for k in degrees:
        mode = (
            geometry.integrate(lambda x, k=k: oracles.harmonic(k, x), found.vertices)
            / found.volumes
        )
        amplitude = (found.masses - uniform.masses) @ mode
        rate = math.log(amplitude[1] / amplitude[0]) / until
        if d == 2:
            drift = ive(k, beta) / (ive(0, beta) if normalise else math.exp(-beta))
        else:
            drift = spherical_in(k, beta) / (spherical_in(0, beta) if normalise else 1.0)
        expected = oracles.eigenvalue(d, k) * (drift / beta - strength)
        scale = oracles.eigenvalue(d, k) * max(drift / beta, strength)
        assert abs(rate - expected) < 2e-3 * scale


def ordered(strength):
    """R = I_1(r / sigma) / I_0(r / sigma), the largest solution; zero from sigma = 1/2 on."""
    if strength >= 0.5:
        return 0.0
    return brentq(lambda r: ive(1, r / strength) / ive(0, r / strength) - r, 1e-6, 1.0)


@pytest.mark.parametrize(
    "strength", [0.3, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.1, 0.45, 0.55))]
)
def test_order_of_noisy_oscillators(strength):
    """Beta = 0, V = I on the circle: Kuramoto's model with noise."""
    attention = Attention(np.eye(2), np.eye(2), np.eye(2), 0.0)
    start = "exp(2*x)" if strength < 0.5 else "1 + 0.3*x"
    until = {0.45: 60.0, 0.55: 100.0}.get(strength, 25.0)
    solution = solve(attention, MESHES[2](160), start, until=until, noise=strength)
    assert solution.history["mean_x"][-1] == pytest.approx(ordered(strength), abs=1e-3)
    assert abs(solution.history["mass"][-1] - solution.history["mass"][0]) < 1e-12


@pytest.mark.parametrize("d", [2, 3])
def test_free_energy_never_increases(d):
    """Without the denominator and with V = B = B^T: a gradient flow."""
    one = np.eye(d)
    attention = Attention(one, one, one, 2.0, normalise=False)
    solution = solve(
        attention, MESHES[d](320), "1 + 0.5*x + 0.3*x*y", until=2.0, save_every=0.2, noise=0.2
    )
    energy = solution.history["free_energy"]
    assert energy[0] - energy[-1] > 0.05
    assert np.diff(energy).max() < 1e-6 * (energy[0] - energy[-1])


@pytest.mark.parametrize("surface", [circle_surface(200), bisected(6), sphere_surface(500)])
def test_a_cluster_stays_positive(surface):
    """All mass in one cell: nothing becomes negative, and no mass is lost or made."""
    volumes = FiniteVolumes(build_mesh(surface))
    masses = np.zeros(volumes.owned)
    masses[7] = 1.0
    diffusion = Diffusion(volumes, 1.0)
    for length in (1e-4, 1e-2, 0.1):
        masses = diffusion.advance(masses, length)
        assert (masses > 0).all()
        assert masses.sum() == pytest.approx(1, abs=1e-14)
    assert diffusion.limited > 0 or volumes.dimension == 2
    # The heat kernel at t = 0.1101: E <x, y> = exp(-(d - 1) t).
    centre = volumes.centre[: volumes.owned]
    mean = masses @ volumes.cell_mean[: volumes.owned] @ centre[7]
    assert mean == pytest.approx(math.exp(-(volumes.dimension - 1) * 0.1101), rel=5e-3)


def test_tails_keep_their_relative_accuracy():
    """A stationary state exp(cos(theta) / sigma), down to 1e-35 of its peak: log rho to 3 %."""
    strength = 0.025
    attention = Attention(np.eye(2), np.eye(2), np.zeros((2, 2)), 1.0)
    layer = Heads([attention], Perceptron([[1.0, 0.0]], [[0.0], [0.0]], [0.0], [1.0, 0.0]))
    solution = solve(layer, MESHES[2](400), "exp(36*x)", until=10.0, noise=strength)
    cosine = solution.points[:, 0]
    log_density = np.log(solution.density[-1])
    deviation = log_density - cosine / strength
    deviation -= deviation[cosine.argmax()]
    assert np.abs(deviation).max() < 0.03 * np.ptp(cosine / strength)
    assert np.ptp(cosine / strength) > 79


def test_no_noise_is_the_same_as_before():
    attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), 4.0)
    mesh = MESHES[2](60)
    with_zero = solve(attention, mesh, "1 + 0.5*x", until=0.5, noise=0.0)
    without = solve(attention, mesh, "1 + 0.5*x", until=0.5)
    np.testing.assert_array_equal(with_zero.masses, without.masses)
    assert "free_energy" not in without.history


def test_without_drift_nothing_but_the_error_limits_the_steps():
    still = Attention(np.eye(2), np.eye(2), np.zeros((2, 2)), 1.0)
    solution = solve(still, MESHES[2](800), "1 + 0.5*x", until=100.0, noise=1.0)
    assert solution.steps <= 4
    uniform = Measure(solution.points, solution.volumes / math.tau)
    np.testing.assert_allclose(solution.masses[-1], uniform.masses, rtol=1e-6)


@pytest.mark.parametrize(
    ("choices", "fragment"),
    [
        ({"noise": -1.0}, "noise.strength must be a number >= 0"),
        ({"noise": math.nan}, "noise.strength must be a number >= 0"),
        ({"noise": 0.1, "log_masses": True}, "solver.log_masses = 'on'"),
    ],
)
def test_wrong_noise(choices, fragment):
    attention = Attention(np.eye(2), np.eye(2), np.eye(2), 1.0)
    with pytest.raises(InputError, match=fragment):
        solve(attention, MESHES[2](20), until=0.1, **choices)


@pytest.mark.parallel([2])
def test_two_ranks_have_the_noise_of_one():
    attention = Attention(np.eye(3), np.eye(3), np.diag([1.0, 0.5, 0.3]), 10.0)
    shared, single = (
        solve(attention, sphere_mesh(320, comm=comm), "1 + 0.5*x*y", until=0.5, noise=0.1)
        for comm in (MPI.COMM_WORLD, MPI.COMM_SELF)
    )
    np.testing.assert_allclose(shared.masses, single.masses, rtol=1e-11)
