"""From an initial density to the masses of the cells: integrals, or tokens deposited in cells."""

from __future__ import annotations

from collections.abc import Callable

from mpi4py import MPI

import numpy as np
from scipy.spatial import cKDTree

from meanfield_pde.errors import InputError
from meanfield_pde.initial.formula import ExpressionDensity, Initial, Tokens, Uniform, VonMises
from meanfield_pde.mesh.finite_volume import FiniteVolumes

# What `solve` takes as initial density besides the objects of `initial`: a function of points
# (N x d -> N), a formula, or the masses of the cells in input order.
InitialLike = Initial | Callable[[np.ndarray], np.ndarray] | str | np.ndarray


_CHUNK = 4096  # tokens deposited at once


def cell_masses(initial: InitialLike, volumes: FiniteVolumes) -> np.ndarray:
    """Masses of this rank's own cells, scaled to a total of one. Collective."""
    if isinstance(initial, str):
        initial = ExpressionDensity(initial)
    masses = _unscaled(initial, volumes)
    # In input order, so that the total does not depend on the number of ranks.
    every = volumes.gather(masses)
    if not np.isfinite(every).all() or (every < 0).any():
        raise InputError("the initial density must be finite and >= 0 in every cell")
    total = every.sum()
    if not (np.isfinite(total) and total > 0):
        raise InputError(f"the initial density must have a positive, finite mass, got {total:g}")
    return masses / total


def _unscaled(initial: InitialLike, volumes: FiniteVolumes) -> np.ndarray:
    d = volumes.dimension
    if isinstance(initial, Tokens):
        initial.check(d)
        return _deposit(initial, volumes)
    if isinstance(initial, Uniform | VonMises | ExpressionDensity):
        initial.check(d)
        return volumes.integrate(initial.density, initial.length_scale(d), initial.peaks(d))
    if callable(initial):
        return volumes.integrate(initial)
    masses = np.asarray(initial, dtype=float)
    if masses.shape != (volumes.global_cells,):
        raise InputError(
            f"initial masses must be one number for each of the {volumes.global_cells} cells, "
            f"got an array of shape {masses.shape}"
        )
    return volumes.scatter(masses)


def _deposit(tokens: Tokens, volumes: FiniteVolumes) -> np.ndarray:
    """Give each token's mass to the cell that contains it. Collective.

    A token lies in the cell in which its smallest barycentric coordinate is largest; of cells that
    tie, because it is on their common facet, in the first in input order.
    """
    measure = tokens.measure()
    inside, number = _best_cells(measure.points, volumes)
    most = np.empty_like(inside)
    volumes.comm.Allreduce(inside, most, MPI.MAX)
    claim = np.where(inside == most, number, volumes.global_cells)
    owner = np.empty_like(claim)
    volumes.comm.Allreduce(claim, owner, MPI.MIN)
    masses = np.bincount(owner, measure.masses, volumes.global_cells)
    return volumes.scatter(masses)


def _best_cells(points: np.ndarray, volumes: FiniteVolumes) -> tuple[np.ndarray, np.ndarray]:
    """For each point the own cell that fits best: smallest coordinate (-inf if none), number."""
    inside = np.full(len(points), -np.inf)
    number = np.full(len(points), volumes.global_cells)
    cells, centres = volumes.cell_points[: volumes.owned], volumes.centre[: volumes.owned]
    if not len(cells):
        return inside, number
    radius = np.linalg.norm(cells - centres[:, None], axis=2).max()
    tree = cKDTree(centres)
    inverse = np.linalg.inv(cells)
    for start in range(0, len(points), _CHUNK):
        part = slice(start, start + _CHUNK)
        near = tree.query_ball_point(points[part], radius * (1 + 1e-9) + 1e-12)
        point = start + np.repeat(np.arange(len(near)), [len(found) for found in near])
        cell = np.fromiter((c for found in near for c in found), dtype=int, count=len(point))
        # x = sum_j coordinate_j vertex_j, and all coordinates are >= 0 in the cell that holds x.
        smallest = np.einsum("pd,pdj->pj", points[point], inverse[cell]).min(axis=1)
        order = np.lexsort((volumes.input_cells[cell], -smallest, point))
        first, at = np.unique(point[order], return_index=True)
        inside[first] = smallest[order][at]
        number[first] = volumes.input_cells[cell[order][at]]
    return inside, number
