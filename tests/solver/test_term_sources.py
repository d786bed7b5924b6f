"""Sources of terms that depend on the density: those that the attention sum has, too."""

from __future__ import annotations

import numpy as np
import pytest

from meanfield_pde import Attention, Heads, circle_mesh
from meanfield_pde.amr.patches import NONE, Patch
from meanfield_pde.attention.field import ConstantField
from meanfield_pde.attention.term import Sources
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.velocity import PointwiseFlux

FIRST = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.5]), 40.0)


class SecondHead(ConstantField):
    """A head in the clothes of a term: V m(x), summed plainly."""

    depends_on_density = True
    head = Attention([[1.0, 0.3], [0.0, 0.8]], np.eye(2), [[0.6, -0.2], [0.3, 0.4]], 40.0)

    def __init__(self) -> None:
        super().__init__([1.0, 0.0])

    def push(
        self, x: np.ndarray, sources: Sources | None = None, *, tolerance: float = 1e-12
    ) -> np.ndarray:
        """V m at each row of x."""
        assert sources is not None
        exponent = self.head.scores(x) @ sources.points.T + sources.log_masses
        weight = np.exp(exponent - exponent.max(axis=1, keepdims=True))
        mean = weight @ sources.points / weight.sum(axis=1, keepdims=True)
        return mean @ self.head.value.T


class WithWidth(SecondHead):
    """The same, and it says how wide its kernel is."""

    def inverse_kernel_width_squared(self, x: np.ndarray) -> np.ndarray:
        """That of the head."""
        return self.head.inverse_kernel_width_squared(x)


def fluxes(layer: Heads, cells: int, patched: bool = False) -> np.ndarray:
    """Of a density that falls by exp(60) from one side of the circle to the other."""
    volumes = FiniteVolumes(circle_mesh(cells))
    equation = Equation(layer, volumes, SolverCase(tolerance=1e-13))
    log_masses = np.log(volumes.volume) - 30 * volumes.centre[:, 0]
    log_masses -= np.logaddexp.reduce(log_masses) + (np.log(2) if patched else 0)
    corners = volumes.cell_points[:3]
    patch = Patch.of(corners.reshape(-1, 2), np.arange(6).reshape(3, 2), np.array([0.1, 0.3, 0.1]))
    return equation.right_hand_side(layer).facet_flux(log_masses, (patch,) if patched else NONE)


@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("term", [SecondHead, WithWidth])
def test_sources_are_those_of_a_head(term: type[SecondHead], patched: bool) -> None:
    expected = fluxes(Heads([FIRST, SecondHead.head]), 100, patched)
    found = fluxes(Heads([FIRST], others=[term()]), 100, patched)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11 * largest)


def test_with_noise_narrow_cells_have_one_point_where_the_width_is_known() -> None:
    volumes = FiniteVolumes(circle_mesh(400))
    for noise in (False, True):
        known = PointwiseFlux(WithWidth(), volumes, 1e-12, noise=noise)
        unknown = PointwiseFlux(SecondHead(), volumes, 1e-12, noise=noise)
        assert len(known.sources.points()) == (400 if noise else 1200)
        assert len(unknown.sources.points()) == 1200


def test_points_without_mass_are_no_sources() -> None:
    volumes = FiniteVolumes(circle_mesh(10))
    sources = PointwiseFlux(WithWidth(), volumes, 1e-12).sources
    log_masses = np.full(10, -np.inf)
    log_masses[7] = 0.0
    found = sources.all(log_masses, NONE)
    assert len(found.points) == 3
    assert np.exp(found.log_masses).sum() == pytest.approx(1.0, rel=1e-14)
