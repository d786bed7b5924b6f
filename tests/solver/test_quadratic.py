"""The quadratic reconstruction: third order at facets and in tails, on meshes of every kind."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde import Attention
from meanfield_pde.amr.forest import Forest
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.surface import Surface, build_mesh
from meanfield_pde.solver.schemes import SCHEMES
from meanfield_pde.solver.transport import Transport
from meanfield_pde.solver.velocity import MeanField
from tests.problems import MESHES, SURFACES


def bisected(d: int, cells: int) -> dolfinx_mesh.Mesh:
    """Cells of three generations, with borders between them."""
    forest = Forest.of(SURFACES[d](cells))
    for bound in (-0.3, 0.4):
        middle = geometry.normalised(geometry.cell_mean(forest.corners))
        forest = forest.refined(middle[:, 0] > bound)
    return build_mesh(forest.surface)


MESH_KINDS = {
    "uniform": lambda d, cells: MESHES[d](cells),
    "graded": lambda d, cells: MESHES[d](cells, grade=2.0, axis=np.arange(1.0, d + 1)),
    "bisected": bisected,
}


def log_density(x: np.ndarray) -> np.ndarray:
    """Of no symmetry."""
    return 2 * x[:, 0] - x[:, -1] + 1.5 * x[:, 0] * x[:, -1] + np.sin(2 * x[:, 1])


def errors_at_facets(volumes: FiniteVolumes, masses: np.ndarray, scheme: str) -> np.ndarray:
    """Relative errors of the density at all points of facets, from its integrals over cells."""
    d, transport = volumes.dimension, Transport(volumes, SCHEMES[scheme])
    points = geometry.gauss_points(volumes.facet_points)
    # Unit fluxes out of cells of one colour make what each loses the sum of the densities.
    change, errors = np.empty(len(masses)), []
    flux = np.zeros(points.shape[:2])
    exact = np.exp(log_density(points.reshape(-1, d))).reshape(flux.shape)
    for place in np.ndindex(d, d - 1):
        flux[:] = 0.0
        facets = volumes.cell_facets[:, place[0]]
        leaving = np.flatnonzero(volumes.cell_signs[:, place[0]] > 0)
        flux[facets[leaving], place[1]] = 1.0
        transport.rate_of_change(masses, flux, change)
        gained = np.zeros(len(masses))
        np.add.at(gained, volumes.neighbours[leaving, place[0]], 1.0)
        alone = leaving[gained[leaving] == 0]  # nothing comes into these
        found = -change[alone]
        errors.append(found / exact[facets[alone], place[1]] - 1)
    return np.concatenate(errors)


@pytest.mark.parametrize("kind", MESH_KINDS)
@pytest.mark.parametrize(("d", "cells"), [(2, (100, 200)), (3, (1280, 5120))])
def test_densities_at_facets_are_of_third_order(d: int, cells: tuple[int, int], kind: str) -> None:
    """The largest error, too: at borders of refinement means of cells are no values at centres."""
    quadratic = []
    for count in cells:
        volumes = FiniteVolumes(MESH_KINDS[kind](d, count))
        masses = geometry.integrate(lambda x: np.exp(log_density(x)), volumes.cell_points)
        quadratic.append(np.abs(errors_at_facets(volumes, masses, "quadratic")))
    coarse, fine = quadratic
    assert math.log2(coarse.mean() / fine.mean()) > 2.65
    assert math.log2(coarse.max() / fine.max()) > 2.65
    assert fine.mean() < 0.25 * np.abs(errors_at_facets(volumes, masses, "muscl")).mean()


def errors_of_tail(d: int, cells: int, kind: str, *schemes: str) -> list[float]:
    """Mean error of log masses about the repeller at zero temperature, at t = 2, by SSPRK(4, 3)."""
    volumes = FiniteVolumes(MESH_KINDS[kind](d, cells))
    drift = np.diag({2: [1.0, -0.2], 3: [1.0, 0.5, -0.2]}[d]) + 0.1
    head = Attention(np.eye(d), scipy.linalg.qr(drift + np.eye(d))[0], np.eye(d), math.inf)
    head = replace(head, value=drift @ np.linalg.inv(head.mean(np.eye(d)).T))
    flux = MeanField(head, volumes, 1e-10).facet_flux(np.zeros(volumes.owned))
    start, time = geometry.integrate(initial, volumes.cell_points), 2.0
    backwards = scipy.linalg.expm(-time * drift)

    def exact(x: np.ndarray) -> np.ndarray:
        back = x @ backwards.T
        length = geometry.norm(back)
        return initial(back / length[:, None]) / length**d * math.exp(-time * np.trace(drift))

    values, vectors = np.linalg.eig(drift.T)
    tail = np.abs(volumes.centre @ vectors[:, values.argmin()].real) > 0.5
    assert 0.1 < tail.mean() < 0.9
    expected = geometry.integrate(exact, volumes.cell_points)
    errors = []
    for scheme in schemes:
        transport = Transport(volumes, SCHEMES[scheme])
        masses = start.copy()
        steps = math.ceil(time * transport.outflow_rate(flux) / 0.6)
        for _ in range(steps):
            before = masses.copy()
            for share in (0.0, 0.0, 2 / 3, 0.0):
                transport.euler(masses, flux, time / steps / 2, before, share)
        errors.append(float(np.abs(np.log(masses / expected))[tail].mean()))
    return errors


def initial(x: np.ndarray) -> np.ndarray:
    """A smooth density."""
    return 1 + 0.4 * x[:, 0] * x[:, -1] - 0.3 * x[:, 1]


@pytest.mark.parametrize("kind", MESH_KINDS)
@pytest.mark.parametrize(("d", "cells"), [(2, (100, 200)), (3, (320, 1280))])
def test_tails_are_of_third_order(d: int, cells: tuple[int, int], kind: str) -> None:
    (coarse,) = errors_of_tail(d, cells[0], kind, "quadratic")
    fine, muscl = errors_of_tail(d, cells[1], kind, "quadratic", "muscl")
    assert math.log2(coarse / fine) > 2.5
    assert fine < 0.5 * muscl


@pytest.mark.parametrize("d", [2, 3])
def test_cells_too_few_for_a_fit_have_slopes(d: int) -> None:
    """On a tetrahedron, or a circle of three arcs, a cell has fewer neighbours than it wants."""
    corners = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / np.sqrt(3)
    triangles = np.array([[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]])
    surface = Surface(corners, triangles) if d == 3 else SURFACES[2](3)
    volumes = FiniteVolumes(build_mesh(surface))
    masses = volumes.volume * np.exp(0.3 * volumes.centre[:, 0])
    flux = np.ones((len(volumes.facet_length), d - 1))
    found = {}
    for scheme in ("muscl", "quadratic"):
        found[scheme] = np.empty(volumes.owned)
        Transport(volumes, SCHEMES[scheme]).rate_of_change(masses, flux, found[scheme])
    assert np.abs(found["muscl"]).max() > 0.1
    if d == 3:
        np.testing.assert_allclose(found["quadratic"], found["muscl"], rtol=1e-12)
    assert np.isfinite(found["quadratic"]).all()


def test_a_ridge_that_is_not_resolved_is_steep_at_most() -> None:
    """One cell wide: no quadratic is taken there, and densities at facets are within a factor e."""
    volumes = FiniteVolumes(MESHES[3](1280))
    ridge = np.abs(volumes.centre[:, 0]) < 0.03
    masses = volumes.volume * np.where(ridge, 1.0, 1e-6)
    flux = np.where(np.arange(len(volumes.facet_length)) % 2, 1.0, -1.0)[:, None] / [2.0, 2.0]
    found = {}
    for scheme in SCHEMES:
        found[scheme] = np.empty(volumes.owned)
        Transport(volumes, SCHEMES[scheme]).rate_of_change(masses, flux, found[scheme])
    assert ridge.sum() > 30
    lost = np.maximum(volumes.cell_signs[..., None] * flux[volumes.cell_facets], 0.0)
    most = math.e * lost.sum(axis=(1, 2))[: volumes.owned]
    assert (found["quadratic"][ridge] >= -most[ridge]).all()
    assert np.abs(found["upwind"] - found["quadratic"])[ridge].max() > 0.01
