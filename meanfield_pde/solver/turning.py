"""Turned densities: how the masses of the cells change when a density is turned as a whole.

    T_k M = - div( mu Omega_k x ),      k over the rotations that commute with the equation

Fluxes q_f = ∫_f <Omega x, n> ds through facets are exact, so that the uniform density stays, and
the density on a facet is the mean of those of its two cells.

A stationary state that is not invariant can be turned into others. On a mesh they are none: it pins
the state at some orientations and turns it away from others, at rates that are errors. What only
turns a state is therefore separated: a state that turns at rates omega solves

    F(M) = sum_k omega_k T_k M,

and perturbations in the span of T_k M are not counted when its stability is asked for. Where the
equation is a gradient flow omega is an error of the mesh; else states may turn for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from meanfield_pde.mesh.finite_volume import FiniteVolumes

# Rms relative change of a density, turned by a radian, below which it counts as invariant: the mesh
# makes it up to 0.0008 where the uniform density is stationary (80 cells of the sphere).
_INVARIANT = 0.005
# The same relative to the largest of all rotations: a state on the sphere that is symmetric about
# an axis is invariant under one. Made by the mesh: 0.14 with 320 cells, 0.08 with 1,280 (beta = 5).
_INVARIANT_SHARE = 0.2

Gathered = Callable[[np.ndarray, np.ndarray, np.ndarray], scipy.sparse.csc_matrix]


@dataclass(frozen=True, eq=False)
class Turns:
    """The independent ways in which turning changes a density.

    Attributes:
        changes: changes of the masses (cells, j), orthonormal in the metric of `weights`.
        weights: changes / masses (cells, j): the product with a change is its turning part.
        rates: (k, j) rates omega of turning that make these changes.
    """

    changes: np.ndarray
    weights: np.ndarray
    rates: np.ndarray


class Turning:
    """The operators T_k of a mesh, as matrices on the masses of all cells."""

    def __init__(self, volumes: FiniteVolumes, generators: np.ndarray, gathered: Gathered) -> None:
        """Collective.

        Args:
            volumes: the mesh.
            generators: Omega_k (k, d, d).
            gathered: makes the matrix of all ranks' entries, given by local numbers of cells.
        """
        self._operators = [_operator(volumes, one, gathered) for one in generators]

    def turns(self, masses: np.ndarray) -> Turns:
        """The ways in which turning changes these masses; none if they are invariant."""
        if not self._operators:
            none = np.empty((len(masses), 0))
            return Turns(none, none, np.empty((0, 0)))
        changes = np.column_stack([one @ masses for one in self._operators])
        squares, rotation = np.linalg.eigh(changes.T @ (changes / masses[:, None]))
        sizes = np.sqrt(np.maximum(squares, 0.0))
        kept = sizes > max(_INVARIANT, _INVARIANT_SHARE * sizes.max())
        rates = rotation[:, kept] / sizes[kept]
        changes = changes @ rates
        return Turns(changes, changes / masses[:, None], rates)

    def at(self, rates: np.ndarray) -> scipy.sparse.csc_matrix | float:
        """The matrix sum_k omega_k T_k."""
        return sum((rate * one for rate, one in zip(rates, self._operators, strict=True)), 0.0)


def _operator(
    volumes: FiniteVolumes, generator: np.ndarray, gathered: Gathered
) -> scipy.sparse.csc_matrix:
    # ∫ x ds along a geodesic edge of length L is its middle times 2 sin(L / 2); on the circle a
    # facet is a point.
    length = 2 * np.sin(volumes.facet_length / 2) if volumes.dimension == 3 else 1.0
    normal = (volumes.facet_midpoint @ generator.T * volumes.facet_conormal).sum(axis=1)
    outward = volumes.cell_signs * (normal * length)[volumes.cell_facets]
    cell = np.repeat(np.arange(volumes.owned), volumes.dimension)
    across = volumes.neighbours.ravel()
    half = outward.ravel() / 2
    return gathered(
        np.concatenate([cell, cell]),
        np.concatenate([cell, across]),
        np.concatenate([-half / volumes.volume[cell], -half / volumes.volume[across]]),
    )
