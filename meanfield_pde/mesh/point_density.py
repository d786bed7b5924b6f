"""The density at any points, from the masses of cells.

At a point x of cell c it is reconstructed by the fit of transport, sources and remaps,

    rho(x) = rho_c F(x) / sum_k w_k F(y_k),      F = exp(t (p - k) + (1 - t) g)

as in `quadratic_fit`, with the quadrature points y_k of the cell and their weights w_k, of sum one:
the mean over these is rho_c to rounding. t and the limits on g are those that y_k and x ask for, so
that it depends on x alone, whichever other points are asked for. It is positive, of third order
where cells resolve the density, and that in relative terms, however small it is: what it takes and
gives are logarithms.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.location import cells_at
from meanfield_pde.mesh.quadratic_fit import Reconstruction, fits
from meanfield_pde.mesh.surface import Surface

# Points whose fits are held at once: 1.4 kB each on the sphere, 90 MB.
_CHUNK = 65_536
# Twice as steep as where masses are shared out, since no mass moves by it. A normal peak over 60
# decades (concentration 70, exact means over 200 cells of the circle) errs by 1e-4 in log rho, with
# the bounds of shares by 2e-3; on 20,480 cells of the sphere by 4e-3 and 3e-2. Beside clusters that
# cells do not resolve (zero temperature, t = 4 to 40) both err alike. Series of `exponentials`:
# 3e-9.
_STEEP = 1.5, 3.0


class PointDensity:
    """The density at points of a mesh; plain arrays, on any rank alone.

    Attributes:
        cell: the cell that holds each point.
    """

    def __init__(self, corners: np.ndarray, points: np.ndarray) -> None:
        """Find the cells of the points.

        Args:
            corners: of all cells, cells x d x d.
            points: on the circle or sphere, N x d.
        """
        self._corners, self._points = corners, points
        self._neighbours = Surface.of_corners(corners).neighbours
        self.cell = cells_at(points, corners)[0]
        # Of one part of the points, with its first: all of a figure are one, for all of its times.
        self._fit: tuple[int, Reconstruction, np.ndarray] | None = None

    def log_at(self, log_density: np.ndarray) -> np.ndarray:
        """Return log rho at the points, for the log means over all cells; -inf in empty ones."""
        found = np.empty(len(self._points))
        for start in range(0, len(found), _CHUNK):
            part = slice(start, start + _CHUNK)
            fit, shares = self._fit_of(start)
            factors = fit.factors(log_density, _STEEP)
            mean = (shares * factors[:, :-1]).sum(axis=1)
            found[part] = log_density[self.cell[part]] + np.log(factors[:, -1] / mean)
        return found

    def _fit_of(self, start: int) -> tuple[Reconstruction, np.ndarray]:
        """The fits of a part of the points, and the w_k of their cells."""
        if self._fit is None or self._fit[0] != start:
            self._fit = None  # before others are made
            part = slice(start, start + _CHUNK)
            cell = self.cell[part]
            nodes, weights = geometry.quadrature(self._corners[cell])
            places = np.concatenate([nodes, self._points[part, None]], axis=1)
            fit = Reconstruction(cell, fits(self._neighbours, self._corners, cell, places))
            self._fit = start, fit, weights / weights.sum(axis=1, keepdims=True)
        return self._fit[1:]
