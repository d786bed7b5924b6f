"""Two densities on leaves of the same roots, taken to the cells of their common refinement.

Of two leaves that overlap one holds the other. The smaller ones make up a mesh of their own, and a
leaf of mass M gives each of those in it M times its share of the volume: the density, constant in
each leaf, stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meanfield_pde.amr.forest import Forest
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.wasserstein.measure import Measure


@dataclass(frozen=True)
class Overlay:
    """Two densities on common cells.

    Attributes:
        first: one density.
        second: the other.
        cut: how far, at most, the mass of leaves that the other mesh has cut may be from where it
            is put in them, in W_1 and W_2: the sum of both.
    """

    first: Measure
    second: Measure
    cut: float


def overlay(
    first: tuple[Forest, Cells, np.ndarray], second: tuple[Forest, Cells, np.ndarray]
) -> Overlay:
    """Both densities, each a forest with its cells and their masses, on the smaller leaves."""
    (one, cells, masses), (two, others, other_masses) = first, second
    keys = np.union1d(one.keys, two.keys)
    i = np.searchsorted(one.keys, keys, "right") - 1
    j = np.searchsorted(two.keys, keys, "right") - 1
    smaller = two.levels[j] > one.levels[i]

    def chosen(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(smaller if a.ndim == 1 else smaller[:, None], b[j], a[i])

    points = chosen(cells.points, others.points)
    volumes = chosen(cells.volumes, others.volumes)
    spread = chosen(cells.spread, others.spread)
    return Overlay(
        Measure(points, masses[i] * (volumes / cells.volumes[i]), spread),
        Measure(points, other_masses[j] * (volumes / others.volumes[j]), spread),
        _width(cells, masses, i) + _width(others, other_masses, j),
    )


def _width(cells: Cells, masses: np.ndarray, origin: np.ndarray) -> float:
    """Root of the spread of the mass in cells of which there are several pieces."""
    cut = np.bincount(origin, minlength=len(masses)) > 1
    return math.sqrt(masses[cut] @ cells.spread[cut] / masses.sum())
