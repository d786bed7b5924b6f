"""The points of a cell that stand for its mass in the attention sum: its centre, or three points.

A cell's mass lies spread over the cell. Put at the centre, the sum over the cells is a midpoint
rule, whose error is small while the kernel exp(<w, y>), of width |w|^(-1/2), spans several cells
and large once it does not. Three points of a rule of degree 2 (3 Gauss points on an arc) do far
better then, at the cost of three times the sources. But they take the density as constant in the
cell, which smooths it a second time, after its integration over cells: with s^2 the variance of a
position in a cell, along a direction, the density changes by s^2 / 2 times its Laplacian, and
m = x + grad log rho / |w| + ... by s^2 / (2 |w|) times third derivatives of log rho.

`refinement_pays` compares estimates of these errors. That of the midpoint rule is measured, on this
mesh at this temperature: the difference that three points make for the uniform density, for which
they lose nothing. It must exceed

- s^2 / 2, the order of the errors that a finite volume scheme makes in any case; and
- s^2 / (2 L^3 (1 + |w|)), what the three points may lose in structures of L = 1/4 radian.

None of this depends on the masses, so that a run that is continued goes on as it was.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meanfield_pde.attention.term import Sources
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes

Mean = Callable[[np.ndarray, Sources], np.ndarray]
Width = Callable[[np.ndarray], np.ndarray]

# Targets at which the error is measured: its root mean square to 4 % (1 / sqrt(2 * 256)), for a
# decision between estimates of orders of magnitude.
_SAMPLE = 256
# L, in radians: the width of what a mean should not smooth (chosen, not tuned).
_STRUCTURE = 0.25
_GAUSS = np.polynomial.legendre.leggauss(3)  # as many as on a triangle, where 3 have degree 2


def three_points(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points (cells x 3 x d) on the sphere and shares (cells x 3) of the mass of each cell."""
    if cells.shape[-1] == 2:
        nodes, weights = _GAUSS
        half = geometry.geodesic_distance(cells[:, 0], cells[:, 1])[:, None, None] / 2
        middle = geometry.normalised(cells.sum(axis=1))[:, None]
        along = geometry.normalised(cells[:, 1] - cells[:, 0])[:, None]
        angle = half * nodes[:, None]
        points = geometry.normalised(np.cos(angle) * middle + np.sin(angle) * along)
        return points, np.tile(weights / 2, (len(cells), 1))
    # The places of the rule of degree 2, with shares that make the mean position exact.
    points = geometry.normalised((np.ones((3, 3)) + 3 * np.eye(3)) / 6 @ cells)
    mean = geometry.cell_mean(cells)[..., None]
    shares = np.linalg.solve(np.swapaxes(points, 1, 2), mean)[..., 0]
    return points, shares / shares.sum(axis=1, keepdims=True)


def refinement_pays(
    cells: np.ndarray, targets: np.ndarray, mean: Mean, inverse_width_squared: Width
) -> bool:
    """Whether three points a cell are more accurate than one, by the estimate above.

    Args:
        cells: corners of all cells, cells x d x d.
        targets: the points x, N x d.
        mean: m at points x for sources, or whatever is of the order of one and is to be accurate.
        inverse_width_squared: |w| at points x; infinite where it is not known.
    """
    sample = np.unique(np.linspace(0, len(targets) - 1, _SAMPLE).astype(int))
    at = targets[sample]
    volume = geometry.cell_volume(cells)
    centres = geometry.normalised(geometry.cell_mean(cells))
    points, shares = three_points(cells)
    one = mean(at, Sources.of(centres, volume))
    masses = (volume[:, None] * shares).ravel()
    three = mean(at, Sources.of(points.reshape(-1, cells.shape[-1]), masses))
    error_of_one = np.sqrt(((one - three) ** 2).sum(axis=1).mean())
    spread = (shares * geometry.geodesic_distance(points, centres[:, None]) ** 2).sum(axis=1)
    variance = (volume @ spread) / volume.sum() / (cells.shape[-1] - 1)
    length = float(inverse_width_squared(at).mean())
    lost = variance / 2 * max(1.0, _STRUCTURE**-3 / (1 + length))
    return bool(error_of_one > lost)


class FixedSources:
    """Points that stand for all cells, the same on every rank: the centre of each, or three points.

    Attributes:
        points: of all cells in input order.
        points_per_cell: 1 or 3, as a text.
    """

    def __init__(self, volumes: FiniteVolumes, *, three: bool) -> None:
        """Collective."""
        own = slice(0, volumes.owned)
        self.points_per_cell = "3" if three else "1"
        self._log_shares: np.ndarray | None = None
        if three:
            points, shares = three_points(volumes.gather(volumes.cell_points[own]))
            self.points = points.reshape(-1, volumes.dimension)
            self._log_shares = np.log(shares)
        else:
            self.points = volumes.gather(volumes.centre[own])

    def log_masses(self, log_masses: np.ndarray) -> np.ndarray:
        """Those of the points, for those of all cells."""
        if self._log_shares is None:
            return log_masses
        return np.asarray((log_masses[:, None] + self._log_shares).ravel())
