"""The equation with noise near a density: its right-hand side F, and the derivative of F.

    F(M) = transport(M) + sigma A M

with the same fluxes as the evolution. The derivative along w M is taken from differences of log
masses, which stay positive. Beside it stands the matrix of a linear equation, noise and upwind
transport by the present fluxes: what remains is compact, the dependence of the fluxes on the
density.

All ranks compute the same: masses are those of all cells, in the mesh's input order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse

from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.laplace_beltrami import LaplaceBeltrami

# Of log masses, central: 1e-10 of truncation, and 1e-9 of the sum's tolerance of 1e-14.
_DIFFERENCE = 1e-5


class LinearisedEquation:
    """F of an equation and its derivative, for any strength of the noise.

    Attributes:
        equation, volumes: the equation, and its mesh.
        volume, mean: of all cells, in input order, with the means of x over each.
        uniform: the masses of the uniform density.
        laplacian: A, as a matrix.
    """

    def __init__(self, equation: Equation) -> None:
        self.equation = equation
        self.volumes = volumes = equation.volumes
        self._rhs = equation.right_hand_side(equation.first_layer, noise=True)
        own = slice(0, volumes.owned)
        self.volume = volumes.gather(volumes.volume[own])
        self.uniform = self.volume / self.volume.sum()
        self.mean = volumes.gather(volumes.cell_mean[own])
        self.laplacian = self.gathered(*LaplaceBeltrami(volumes).triplets())

    @property
    def speed(self) -> float:
        """A bound on the rates at which transport makes densities grow."""
        return self._rhs.speed

    def rate(self, masses: np.ndarray, strength: float) -> np.ndarray:
        """F(M) for the masses of all cells. Collective."""
        volumes = self.volumes
        own = volumes.scatter(masses)
        change = np.empty_like(own)
        self._rhs.transport.rate_of_change(own, self._rhs.facet_flux(np.log(own)), change)
        return volumes.gather(change) + strength * (self.laplacian @ masses)

    def derivative(self, masses: np.ndarray, strength: float) -> Callable[[np.ndarray], np.ndarray]:
        """The product of the derivative of F with a change of the masses."""

        def product(change: np.ndarray) -> np.ndarray:
            relative = np.asarray(change, dtype=float).ravel() / masses
            size = float(np.abs(relative).max())
            if size == 0:
                return np.zeros_like(masses)
            move = _DIFFERENCE / size * relative
            ahead = self.rate(masses * (1 + move), strength)
            behind = self.rate(masses * (1 - move), strength)
            return (ahead - behind) * (size / (2 * _DIFFERENCE))

        return product

    def linear_part(self, masses: np.ndarray, strength: float) -> scipy.sparse.csc_matrix:
        """Noise, and upwind transport by the fluxes of these masses, as a matrix."""
        volumes = self.volumes
        flux = self._rhs.facet_flux(np.log(volumes.scatter(masses)))
        cell = np.repeat(np.arange(volumes.owned), volumes.dimension)
        leaving, target = volumes.outflow(flux).ravel(), volumes.neighbours.ravel()
        upwind = self.gathered(
            np.concatenate([cell, target]),
            np.concatenate([cell, cell]),
            np.concatenate([-leaving, leaving]),
        )
        return (strength * self.laplacian + upwind).tocsc()

    def anchor(self) -> scipy.sparse.csc_matrix:
        """A small sink in one cell, which makes the linear part regular."""
        cell = int(self.volume.argmax())
        return scipy.sparse.csc_matrix(([1.0], ([cell], [cell])), shape=(len(self.volume),) * 2)

    def gathered(
        self, rows: np.ndarray, columns: np.ndarray, values: np.ndarray
    ) -> scipy.sparse.csc_matrix:
        """The matrix of all ranks' entries, given by local numbers of cells. Collective."""
        numbers, comm = self.volumes.input_cells, self.volumes.comm
        parts = comm.allgather((numbers[rows], numbers[columns], values))
        i, j, entries = (np.concatenate(part) for part in zip(*parts, strict=True))
        count = self.volumes.global_cells
        return scipy.sparse.coo_matrix((entries, (i, j)), (count, count)).tocsc()
