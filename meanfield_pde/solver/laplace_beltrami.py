"""The Laplace-Beltrami operator on cells: consistent fluxes, conservative, as a PETSc matrix.

Integrated over a cell c,

    (A M)_c = sum over facets f of |f| (rho_n' - rho_c') / (l_n + l_c),

l the distances of the two centres from the geodesic of the facet, and rho' the density at the feet,
the points from which the facet's midpoint is seen at a right angle. In each cell the way from its
centre to the foot is taken along the least-squares slope,

    linear:   rho_c' = rho_c + sum_j W_fj (rho_j - rho_c)
    log:      rho_c' = rho_c exp(sum_j W_fj (log rho_j - log rho_c))

so that the flux is consistent on triangles of any shape. Two-point fluxes (rho' = rho) are not,
even on an icosphere, and those between circumcentres break down at right angles. On the circle
W = 0. The linear form is of second order, but no M-matrix; the log form, with its exponentials
frozen, is one.
"""

from __future__ import annotations

from typing import Any

from petsc4py import PETSc

import numpy as np

from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.reconstruction import face_factors, facet_numbers
from meanfield_pde.solver.schemes import slope_weights


class LaplaceBeltrami:
    """The operator on the cells of this rank."""

    def __init__(self, volumes: FiniteVolumes) -> None:
        self.volumes = volumes
        owned, d = volumes.owned, volumes.dimension
        facets = volumes.cell_facets
        x = volumes.centre[:owned, None]
        midpoint = volumes.facet_midpoint[facets]
        outward = volumes.facet_conormal[facets] * volumes.cell_signs[..., None]
        self._density = volumes.new_vector()
        self._feet = volumes.new_vector(d)
        # The sine of the distance from a geodesic is the component along its plane's normal.
        if d == 3:
            distance = -np.arcsin((x * outward).sum(axis=2))
        else:
            distance = geometry.geodesic_distance(x, midpoint)
        self._conductance = volumes.facet_length[facets] / (distance + self.across(distance))
        arrow = geometry.tangent_vector(midpoint, np.broadcast_to(x, midpoint.shape))
        to_foot = (arrow * outward).sum(axis=2, keepdims=True) * outward - arrow
        self._weights = slope_weights(volumes, geometry.tangential(x, to_foot))
        self._facets = facet_numbers(d)
        first = volumes.comm.exscan(owned) or 0
        self._numbers = np.concatenate([np.arange(owned) + first, volumes.index_map.ghosts])

    def linear_feet(self, masses: np.ndarray) -> np.ndarray:
        """Return rho' at the facets of own cells, linear in the masses of own cells. Collective."""
        density = self._densities(masses)
        own = density[: self.volumes.owned, None]
        return own + np.einsum("cij,cj->ci", self._weights, density[self.volumes.neighbours] - own)

    def log_factors(self, masses: np.ndarray) -> np.ndarray:
        """Return rho' / rho at the facets of own cells, by slopes of log rho. Collective."""
        factors = np.empty_like(self._conductance)
        with np.errstate(divide="ignore"):
            log_density = np.log(self._densities(masses))
        face_factors(self._facets, log_density, self.volumes.neighbours, self._weights, factors)
        return factors

    def outflow(self, feet: np.ndarray) -> np.ndarray:
        """What leaves own cells through each of their facets per time, from rho'. Collective."""
        return self._conductance * (feet - self.across(feet))

    def across(self, values: np.ndarray) -> np.ndarray:
        """For each facet of own cells the value on its other side. Collective."""
        owned, d = self.volumes.owned, self.volumes.dimension
        table = self._feet.array.reshape(-1, d)
        table[:owned] = values
        self._feet.scatter_forward()
        return table[self.volumes.neighbours, self.volumes.neighbour_facets]

    def triplets(
        self, factors: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, columns (local numbers of cells) and values that add up to A.

        Args:
            factors: those of the log form; by default the linear form.
        """
        volumes = self.volumes
        owned, d = volumes.owned, volumes.dimension
        cell = np.arange(owned)
        # rho' of each facet: (facet, source, value per mass of the source).
        if factors is None:
            own = self._conductance * (1 - self._weights.sum(axis=2))
        else:
            own = self._conductance * factors
        parts = [(i, cell, own[:, i] / volumes.volume[:owned]) for i in range(d)]
        if factors is None and self._weights.any():
            for i in range(d):
                for j in range(d):
                    source = volumes.neighbours[:, j]
                    value = self._conductance[:, i] * self._weights[:, i, j]
                    parts.append((i, source, value / volumes.volume[source]))
        rows = [row for i, _, _ in parts for row in (cell, volumes.neighbours[:, i])]
        columns = np.concatenate([source for _, source, _ in parts for _ in range(2)])
        values = np.concatenate([sign * value for _, _, value in parts for sign in (-1.0, 1.0)])
        return np.concatenate(rows), columns, values

    def matrix(self, tau: float, factors: np.ndarray | None = None) -> PETSc.Mat:
        """1 - tau A; of the log form with these factors, or of the linear form. Collective."""
        volumes = self.volumes
        rows, columns, values = self.triplets(factors)
        cell = np.arange(volumes.owned)
        matrix: Any = PETSc.Mat()
        matrix.create(volumes.comm)
        matrix.setSizes(((volumes.owned, volumes.global_cells),) * 2)
        matrix.setType(PETSc.Mat.Type.AIJ)
        matrix.setPreallocationCOO(
            self._numbers[np.append(rows, cell)].astype(PETSc.IntType),
            self._numbers[np.append(columns, cell)].astype(PETSc.IntType),
        )
        matrix.setValuesCOO(np.append(-tau * values, np.ones(volumes.owned)))
        return matrix

    def _densities(self, masses: np.ndarray) -> np.ndarray:
        """Densities of own and ghost cells."""
        owned = self.volumes.owned
        self._density.array[:owned] = masses / self.volumes.volume[:owned]
        self._density.scatter_forward()
        return self._density.array
