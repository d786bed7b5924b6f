"""Transport: the upwind operator against an assembled UFL form, conservation, positivity."""

from __future__ import annotations

import math

from mpi4py import MPI

import numpy as np
import pytest
import ufl
from dolfinx import fem
from scipy.special import ive

from meanfield_pde import Attention, InputError, SolverError, circle_mesh, solve, sphere_mesh
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.surface import Surface, build_mesh, sphere_surface
from meanfield_pde.solver.masses import Doubles, ExtendedRange
from meanfield_pde.solver.schemes import SCHEMES, Scheme
from meanfield_pde.solver.transport import Transport
from meanfield_pde.solver.velocity import MeanField
from tests.problems import MESHES

DRIFT = {2: np.array([[1.0, 0.4], [-0.3, 0.2]]), 3: np.diag([1.0, 0.3, 0.1]) + 0.1}


def operator(d, cells, scheme):
    volumes = FiniteVolumes(MESHES[d](cells))
    field = MeanField(Attention(np.eye(d), np.eye(d), DRIFT[d], math.inf), volumes, 1e-10)
    return volumes, field.facet_flux(np.zeros(volumes.owned)), Transport(volumes, SCHEMES[scheme])


def masses_with_tails(volumes, seed=0):
    """Random masses over 300 decades."""
    random = np.random.default_rng(seed)
    return np.exp(random.uniform(-690, 0, volumes.owned))


def difference_from_assembled_form(d, cells):
    """Largest difference of the operator from -∫_dS jump(w) rho_up <v, n>, relative to a flux."""
    volumes, flux, transport = operator(d, cells, "upwind")
    mesh, space = volumes.mesh, volumes.space
    density = fem.Function(space)
    density.interpolate(lambda x: 1 + 0.5 * x[0] + 0.3 * x[1])
    position = ufl.SpatialCoordinate(mesh)
    unit = position / ufl.sqrt(ufl.inner(position, position))
    push = ufl.as_matrix(DRIFT[d].tolist()) * unit
    normal, test = ufl.FacetNormal(mesh), ufl.TestFunction(space)
    # The conormals of two flat cells are not opposite; half their difference lies between them.
    speed = ufl.inner(push("+"), (normal("+") - normal("-")) / 2)
    upwind = ufl.conditional(ufl.gt(speed, 0), density("+"), density("-"))
    form = fem.form(-(test("+") - test("-")) * speed * upwind * ufl.dS)
    assembled = fem.assemble_vector(form).array

    out = np.empty(volumes.owned)
    transport.rate_of_change(density.x.array[: volumes.owned] * volumes.volume, flux, out)
    return np.abs(out - assembled).max() / np.abs(flux.sum(axis=1)).max()


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_steps_are_as_long_as_the_limit_but_for_rounding(scheme: Scheme) -> None:
    assert 0.95 * scheme.positive < scheme.accurate < 0.99 * scheme.positive


@pytest.mark.parametrize(("d", "cells"), [(2, (100, 200)), (3, (1280, 5120))])
def test_upwind_agrees_with_an_assembled_dg_form(d, cells):
    """Equal up to the difference of flat and geodesic geometry, which is of second order."""
    coarse, fine = (difference_from_assembled_form(d, count) for count in cells)
    assert fine < 3e-3
    assert math.log2(coarse / fine) > 1.8


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("d", "cells"), [(2, 100), (3, 320)])
def test_mass_is_conserved_and_stays_positive_at_the_step_limit(d, cells, scheme):
    volumes, flux, transport = operator(d, cells, scheme)
    masses = masses_with_tails(volumes)
    out = np.empty(volumes.owned)
    limit = SCHEMES[scheme].positive / transport.outflow_rate(flux)
    for _ in range(50):
        transport.rate_of_change(masses, flux, out)
        assert abs(out.sum()) < 1e-13 * np.abs(out).sum()
        masses = masses + limit * out
        assert masses.min() >= 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_beyond_the_step_limit_masses_do_become_negative(scheme):
    """The limit is sharp, so that the test above can fail."""
    volumes, flux, transport = operator(2, 100, scheme)
    # A density that rises steeply downstream: the reconstruction gives away the most it may.
    speed = volumes.cell_signs * flux[volumes.cell_facets, 0]
    fastest = np.argmax(np.maximum(speed, 0).sum(axis=1))
    masses = np.full(volumes.owned, 1e-30)
    masses[fastest] = 1.0
    masses[volumes.neighbours[fastest]] = np.where(speed[fastest] > 0, 1e30, 1e-30)
    out = np.empty(volumes.owned)
    transport.rate_of_change(masses, flux, out)
    outflow = np.maximum(speed[fastest], 0) @ np.exp(
        np.full(volumes.dimension, 0.0 if scheme == "upwind" else 1.0)
    )
    step = volumes.volume[fastest] / outflow
    assert masses[fastest] + 1.01 * step * out[fastest] < 0
    # And a step says whether it was too long, in both formats.
    for form in (Doubles, ExtendedRange.of):
        for part, held in ((0.99, True), (1.01, False)):
            given = form(masses.copy()).values
            assert transport.euler(given, flux, part * step, given.copy()) is held


@pytest.mark.parametrize(("d", "cells"), [(2, 100), (3, 320)])
def test_muscl_is_exact_for_exponentials_of_linear_functions(d, cells):
    """The slope of log rho = <k, x> is that of a linear function, up to the curvature, O(h^2)."""
    volumes = FiniteVolumes(MESHES[d](cells))
    transport = Transport(volumes, SCHEMES["muscl"])
    slope = np.array([0.3, -0.2, 0.4])[:d]
    density = np.exp(volumes.centre @ slope)
    out = np.empty(volumes.owned)
    facets = len(volumes.facet_length)
    for facet in range(0, facets, 7):
        flux = np.zeros((facets, d - 1))
        flux[facet] = 1 / (d - 1)
        transport.rate_of_change(density[: volumes.owned] * volumes.volume, flux, out)
        expected = math.exp(volumes.facet_midpoint[facet] @ slope)
        assert out.max() == pytest.approx(expected, rel=0.02 if d == 3 else 2e-3)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("d", "cells"), [(2, 100), (3, 320)])
def test_a_cell_between_empty_ones_gives_what_flows_out_of_it_and_they_give_nothing(
    d, cells, scheme
):
    """Beside empty cells there is no slope: the density at each facet is that of the cell."""
    volumes, flux, transport = operator(d, cells, scheme)
    for cell in (3, cells // 2):
        masses = np.zeros(volumes.owned)
        masses[cell] = 0.7
        outflow = 0.7 * volumes.outflow(flux)[cell]
        assert outflow.sum() > 0.01
        expected = np.zeros(volumes.owned)
        expected[cell] = -outflow.sum()
        expected[volumes.neighbours[cell]] = outflow
        out = np.full(volumes.owned, np.nan)
        transport.rate_of_change(masses, flux, out)
        np.testing.assert_allclose(out, expected, rtol=1e-13)


def test_pure_outflow_at_a_repeller_decays_at_the_right_rate():
    """Q = K = I, V = diag(1, 0.2): at (0, 1) the density falls as exp(-0.8 t), to any depth."""
    solution = solve(
        Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.2]), math.inf),
        circle_mesh(200),
        until=400.0,
        save_at=[300.0],
    )
    at_repeller = np.argmin(np.abs(solution.cells.points[:, 0]))
    tail = solution.density[1:, at_repeller]
    assert tail[0] < 1e-100
    assert math.log(tail[1] / tail[0]) / 100 == pytest.approx(-0.8, rel=1e-3)


@pytest.mark.parametrize("beta", [1.0, 1e4])
def test_uniform_density_is_an_equilibrium(beta):
    one = np.eye(2)
    solution = solve(Attention(one, one, one, beta), circle_mesh(256), until=2.0)
    assert solution.density == pytest.approx(1 / (2 * math.pi), rel=1e-9)


def test_facet_means_are_exact_for_harmonics_of_degree_two():
    """The mean of a quadratic along edges, to fourth order in their length."""

    def quadratic(x):
        return x[:, 0] * x[:, 1] + 0.5 * x[:, 2] ** 2 - x[:, 0]

    errors = []
    for cells in (1280, 5120):
        volumes = FiniteVolumes(sphere_mesh(cells))
        nodes, weights = np.polynomial.legendre.leggauss(6)
        ends = volumes.vertices[volumes.facet_vertices]
        angle = volumes.facet_length[:, None]
        exact = 0.0
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            start, end = np.sin((1 - node) * angle), np.sin(node * angle)
            point = (start * ends[:, 0] + end * ends[:, 1]) / np.sin(angle)
            exact = exact + weight * quadratic(point)
        means = volumes.facet_means
        found = means.matrix @ quadratic(volumes.vertices[means.numbers])
        errors.append(np.abs(found - exact).max())
    assert errors[1] < 2e-5
    assert math.log2(errors[0] / errors[1]) > 2.8


def test_outflow_rate_is_that_of_the_uniform_rotation():
    """A rotation by A = [[0, -1], [1, 0]] empties each cell at the rate 1 / its length."""
    volumes = FiniteVolumes(circle_mesh(50))
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    field = MeanField(Attention(np.eye(2), np.eye(2), turn, math.inf), volumes, 1e-10)
    rate = Transport(volumes, SCHEMES["upwind"]).outflow_rate(field.facet_flux(np.zeros(50)))
    assert rate == pytest.approx(50 / (2 * math.pi))


def test_finite_beta_flux_is_that_of_the_softmax_mean():
    """Uniform density plus cos theta: m is known in Bessel functions."""
    volumes = FiniteVolumes(circle_mesh(400))
    one, beta, size = np.eye(2), 6.0, 1e-4
    field = MeanField(Attention(one, one, one, beta), volumes, 1e-13)
    angle = np.arctan2(volumes.centre[:, 1], volumes.centre[:, 0])
    flux = field.facet_flux(np.log(volumes.volume * (1 + size * np.cos(angle))))[:, 0]
    at = np.arctan2(volumes.facet_midpoint[:, 1], volumes.facet_midpoint[:, 0])
    tangent = volumes.facet_midpoint @ np.array([[0.0, 1.0], [-1.0, 0.0]])
    orientation = (tangent * volumes.facet_conormal).sum(axis=1)
    expected = -size * ive(1, beta) / (beta * ive(0, beta)) * np.sin(at) * orientation
    assert flux == pytest.approx(expected, abs=1e-3 * np.abs(expected).max())


def test_results_do_not_depend_on_the_numbering_of_the_mesh():
    """Distances tie on an icosphere: the stencil of a facet must not take the first that comes."""
    surface = sphere_surface(320)
    generator = np.random.default_rng(1)
    vertices = generator.permutation(len(surface.points))
    cells = generator.permutation(len(surface.cells))
    moved = np.empty_like(surface.points)
    moved[vertices] = surface.points
    other = Surface(moved, vertices[surface.cells][cells])
    attention = Attention(np.eye(3), np.eye(3), DRIFT[3], 20.0)
    one, two = (
        solve(attention, build_mesh(mesh), "1 + 0.3*x + 0.2*y*z", until=1.0).masses[-1]
        for mesh in (surface, other)
    )
    np.testing.assert_allclose(two, one[cells], rtol=1e-11)


def test_unknown_scheme():
    attention = Attention(np.eye(2), np.eye(2), DRIFT[2], 1.0)
    with pytest.raises(
        InputError, match="scheme must be one of 'auto', 'muscl', 'quadratic', 'upwind'"
    ):
        solve(attention, circle_mesh(20), until=1.0, scheme="weno")


def test_a_flow_too_fast_for_any_step_is_refused() -> None:
    fast = Attention(np.eye(2), np.eye(2), 1e17 * np.diag([1.0, 0.3]), 5.0)
    with pytest.raises(SolverError, match="steps would have to be as short as"):
        solve(fast, circle_mesh(20), "1 + 0.5*x", until=1.0)


def test_a_reconstruction_is_one_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of log rho on both sides of a facet: on equal cells of the circle second order."""

    def centred(volumes: FiniteVolumes) -> np.ndarray:
        d = volumes.dimension
        return np.tile(np.eye(d) / 2, (volumes.owned, 1, 1))

    scheme = Scheme(accurate=0.3, slopes=centred)
    monkeypatch.setitem(SCHEMES, "centred", scheme)
    attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), 2.0)

    def masses(name: str, cells: int) -> np.ndarray:
        mesh = circle_mesh(cells)
        solution = solve(attention, mesh, "1 + 0.4*x + 0.2*y", until=0.5, scheme=name)
        return np.asarray(solution.masses[-1].reshape(50, -1).sum(axis=1))

    fine = masses("muscl", 800)
    errors = [np.abs(masses("centred", cells) - fine).sum() for cells in (50, 100)]
    assert errors[1] < 0.35 * errors[0]
    assert errors[1] < 0.2 * np.abs(masses("upwind", 100) - fine).sum()
    wide = solve(attention, circle_mesh(50), until=0.1, scheme="centred", log_masses=True)
    plain = solve(attention, circle_mesh(50), until=0.1, scheme="centred", log_masses=False)
    np.testing.assert_allclose(wide.masses[-1], plain.masses[-1], rtol=1e-12)


def stages_by_cell(comm: MPI.Comm, d: int) -> dict[tuple[str, str], np.ndarray]:
    """Masses of all cells after two stages of each scheme on the mesh of this communicator.

    In both formats.
    """
    volumes = FiniteVolumes(MESHES[d](320, grade=2.0, axis=np.eye(d)[0], comm=comm))
    own = volumes.centre[: volumes.owned]
    head = Attention(np.eye(d), np.eye(d), DRIFT[d], math.inf)
    flux = MeanField(head, volumes, 1e-10).facet_flux(np.zeros(volumes.owned))
    given = volumes.volume[: volumes.owned] * np.exp(3 * own[:, 0] - 8 * own[:, -1] ** 2)
    found = {}
    for scheme in SCHEMES:
        transport = Transport(volumes, SCHEMES[scheme])
        rate = comm.allreduce(transport.outflow_rate(flux), MPI.MAX)
        for masses in (Doubles(given.copy()), ExtendedRange.of(given)):
            before = masses.copy()
            for share in (0.0, 0.3):
                masses.euler(transport, flux, 0.3 / rate, before, share)
            found[scheme, type(masses).__name__] = volumes.gather(masses.doubles)
    return found


@pytest.mark.parallel([3])  # the second has others on both sides
@pytest.mark.parametrize("d", [2, 3])
def test_stages_are_the_same_bit_for_bit_on_any_number_of_ranks(d: int) -> None:
    shared, single = (stages_by_cell(comm, d) for comm in (MPI.COMM_WORLD, MPI.COMM_SELF))
    assert len(single) == 2 * len(SCHEMES)
    for name, masses in single.items():
        np.testing.assert_array_equal(shared[name], masses, err_msg=str(name))
    for scheme in SCHEMES:
        found = single[scheme, "ExtendedRange"]
        np.testing.assert_allclose(found, single[scheme, "Doubles"], rtol=1e-13)
