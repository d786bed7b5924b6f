"""Regridding: the next mesh, from the refinement indicators of the present one.

The mesh changes only when an indicator is about to be broken, and then as far as leaves it some
time: cells are refined until the estimate of W_1 is well below the tolerance, and those are
coarsened whose parents would add next to nothing to it. Mass that leaves a patch is deposited on
the refined mesh, before it is coarsened:

    M  ->  refine  ->  + deposit  ->  coarsen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from meanfield_pde.amr.extraction import deposit, refined_for
from meanfield_pde.amr.forest import Forest
from meanfield_pde.amr.indicators import Indicators
from meanfield_pde.amr.patches import Patches
from meanfield_pde.amr.remap import Remap
from meanfield_pde.amr.settings import AdaptSettings
from meanfield_pde.errors import MeanfieldError, SolverError

Marks = tuple[np.ndarray, np.ndarray]  # leaves to be refined, and leaves that may be coarsened


class Remappable(Protocol):
    """Masses of all cells, in whatever number format."""

    def remapped(self, remap: Remap) -> Self:
        """The masses on another forest."""

    def plus(self, added: np.ndarray) -> Self:
        """The masses with others added."""


@dataclass(frozen=True, eq=False)
class Regrid:
    """A change of the mesh.

    Attributes:
        forest: the new mesh.
        patches: those that stay.
        refine, coarsen: the remaps; None where nothing is refined, or coarsened.
        added: the mass that is deposited in each refined cell; None for none.
    """

    forest: Forest
    patches: Patches
    refine: Remap | None
    added: np.ndarray | None
    coarsen: Remap | None

    def apply[M: Remappable](self, masses: M) -> M:
        """Return the masses of all cells of the new mesh, from those of the old."""
        if self.refine is not None:
            masses = masses.remapped(self.refine)
        if self.added is not None:
            masses = masses.plus(self.added)
        return masses if self.coarsen is None else masses.remapped(self.coarsen)


def mark(indicators: Indicators) -> Marks:
    """Return which leaves are to be refined, and which may be coarsened.

    None of either unless an indicator is broken.
    """
    forest = indicators.leaves.forest
    if not any(one.broken() for one in indicators.every):
        nothing = np.zeros(forest.count, dtype=bool)
        return nothing, nothing
    refine = np.any([one.refine() for one in indicators.every], axis=0)
    coarsen = ~refine & (forest.levels > 0)
    for one in indicators.every:
        coarsen &= one.coarsen()
    return refine, coarsen


def regrid(
    indicators: Indicators,
    marks: Marks,
    kept: Patches,
    retired: Patches,
    settings: AdaptSettings,
) -> Regrid | None:
    """Return the change of the mesh that the marks ask for; None where nothing changes.

    Args:
        indicators: of the present mesh, whose density the remap uses.
        marks: from `mark`.
        kept: patches that stay.
        retired: patches to be deposited. Those with as little mass as a cell that is in no cluster
            go into the cells that are there; others into cells as narrow as they need.
        settings: of the mesh.
    """
    refine, coarsen = marks
    old = indicators.leaves.forest
    heavy = [patch for patch in retired if patch.mass > settings.indicators.cluster_mass]
    if not (refine.any() or heavy):
        added = deposit(old, retired, settings.patches) if retired else None
        return Regrid(old, kept, None, added, None) if retired else None
    refined = old.refined(with_buffer(old, refine, settings.buffer[old.dimension]))
    for patch in heavy:
        least = settings.indicators.narrowest * settings.tolerance
        refined = refined_for(refined, patch, least, settings.patches)
    first = Remap(old, limited(refined, settings), indicators.log_density)
    added = deposit(refined, retired, settings.patches) if retired else None
    coarsen = coarsen[first.origin] & (refined.levels == old.levels[first.origin])
    new = refined.coarsened(coarsen)
    second = None if new is refined else Remap(refined, new, np.zeros(0))
    return Regrid(new, kept, first, added, second)


def with_buffer(forest: Forest, marked: np.ndarray, rings: int) -> np.ndarray:
    """Return the marked leaves and rings of buffer cells around them that are as wide or wider."""
    levels, beside = forest.levels, forest.neighbours
    for _ in range(rings):
        marked = marked | (marked[beside] & (levels[beside] >= levels[:, None])).any(axis=1)
    return marked


def limited(
    forest: Forest, settings: AdaptSettings, error: type[MeanfieldError] = SolverError
) -> Forest:
    """Return the forest; an error, of this kind, if it has more cells than are allowed."""
    if forest.count > settings.max_cells:
        raise error(
            f"adapt.tolerance = {settings.tolerance:g} takes {forest.count} cells, more than "
            f"adapt.max_cells = {settings.max_cells}; give a larger one of these, or a smaller beta"
        )
    return forest
