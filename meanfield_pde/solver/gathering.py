"""When mass is gathered from cells into a spot, and when it is given back (see `spots`).

A cluster is gathered when its standard deviation is below s = `PART` kernels, so that velocities in
it can be interpolated. Of a cell at the distance r from its mean the part exp(-(r / R)^4) is taken,
R = `TAKEN` s, of what is denser than the least between `FARTHEST` s and `LOST` s: what is left is
smooth, and follows when it has come near. Nothing is taken from beyond `FARTHEST` s, and what has
got farther away than `LOST` s is given back: a trace that is left to polynomials there would go
astray. When that is a thousandth of a spot, or the spot is `WIDE` times as wide as s, all of it is
given back to cells, which have been made as narrow as it needs.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.attention.heads import sharpness
from meanfield_pde.history.store import MASSES
from meanfield_pde.mesh.forest import Forest
from meanfield_pde.mesh.geometry import cell_volume, normalised
from meanfield_pde.solver.evolution import Evolution
from meanfield_pde.solver.mesh_error import SPOT, Leaves
from meanfield_pde.solver.spots import NONE, Spot, Spots

PART = 0.1
WIDE = 1.5
TAKEN, FARTHEST, LOST = 2.5, 5.0, 7.5
_MOST = 0.9  # of the mass within 2 R has to be taken
_STRAY = 1e-3  # of a spot may be lost alone
_TRACE = 1e-12  # of a spot, or of all: what has less stays as it is
_PEAKS = 8  # so many places are tried at a time, the densest
_FINE = 3.0  # cells to a standard deviation, where a spot is given back
_HALVINGS = {2: 5, 3: 6}  # of its cells, so that those of the mesh are filled smoothly


def gather(evolution: Evolution, leaves: Leaves) -> bool:
    """Take clusters that are narrow enough from the cells; whether there were any. Collective.

    Args:
        evolution: the state; the same decision on all ranks.
        leaves: its cells.
    """
    width = widest(evolution)
    if not width:
        return False
    arrays = evolution.state.gather()
    left, found = clusters(leaves, arrays[MASSES], width, evolution.spots)
    if found:
        evolution.go_on(evolution.changed(arrays, left, 0.0), joined(evolution.spots, found, width))
    return bool(found)


def widest(evolution: Evolution) -> float:
    """How wide a spot may be to be gathered; zero if there are to be none."""
    beta = sharpness(evolution.terms.layer)
    return 0.0 if evolution.equation.noise or not beta else PART / float(np.sqrt(beta))


def clusters(
    leaves: Leaves, masses: np.ndarray, width: float, spots: Spots = NONE
) -> tuple[np.ndarray, Spots]:
    """What part of the mass of each cell is left, and the spots of standard deviations < width.

    About the means of spots that are there already, and where it is densest.
    """
    left, found = np.ones(len(masses)), NONE
    untried = np.ones(len(masses), dtype=bool)
    for known in [*spots, *[None] * _PEAKS]:
        now = masses * left
        density = now / leaves.volume
        if known is not None:
            mean = known.centre
        else:
            peak = int(np.where(untried, density, 0.0).argmax())
            if not (untried[peak] and masses[peak] > 0):
                break
            mean = leaves.centre[peak]
            untried[peak] = False
            for _ in range(2):
                near = _near(_distance(leaves, mean), width)
                mean = normalised((near * left * masses) @ leaves.centre)
        distance = _distance(leaves, mean)
        around = distance < 2 * TAKEN * width
        if known is None:
            untried &= ~around
        far = distance > FARTHEST * width
        # Not below what lies around, so that no hole is left that nothing in the flow has made.
        density = np.maximum(density, 1e-300)
        floor = density[far & (distance < LOST * width)].min(initial=density.max())
        part = _near(distance, width) * left * np.maximum(1 - floor / density, 0.0)
        part[far | (leaves.width > 2 * width)] = 0.0
        taken, enough = part * masses, _TRACE if known else SPOT
        if taken.sum() < max(enough, _MOST * now[around].sum()):
            continue
        cells = np.flatnonzero(taken > _TRACE * taken.sum())
        surface = leaves.forest.surface
        spot = Spot.of(surface.points, surface.cells[cells], taken[cells])
        if spot.widths[-1] < width:
            left[cells] -= part[cells]
            found += (spot,)
    return left, found


def _distance(leaves: Leaves, place: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(leaves.centre - place, axis=1))


def _near(distance: np.ndarray, width: float) -> np.ndarray:
    """What part of a leaf is near a mean at these distances."""
    return np.asarray(np.exp(-((distance / (TAKEN * width)) ** 4)))


def joined(spots: Spots, others: Spots, width: float) -> Spots:
    """Spots and others, as one where both are narrow enough together."""
    found = list(spots)
    for other in others:
        for i, spot in enumerate(found):
            if np.linalg.norm(spot.centre - other.centre) < width:
                both = spot.joined(other)
                if both.widths[-1] < width:
                    found[i] = both
                    break
        else:
            found.append(other)
    return tuple(found)


def sifted(evolution: Evolution) -> tuple[Spots, Spots]:
    """Spots that stay, and those, or parts of them, that are to be given back to the cells."""
    width, kept, gone = widest(evolution), NONE, NONE
    for spot in evolution.spots:
        far = np.linalg.norm(spot.middles - spot.centre, axis=1) > LOST * width
        if spot.widths[-1] > WIDE * width or spot.masses[far].sum() > _STRAY * spot.mass:
            gone += (spot,)
        else:
            kept += (spot.part(~far) if far.any() else spot,)
            gone += (spot.part(far),) if far.any() else NONE
    return kept, gone


def in_leaves(forest: Forest, spots: Spots) -> np.ndarray:
    """The mass of spots in each leaf."""
    found = np.zeros(forest.count)
    for spot in spots:
        middles, masses = spot.pieces(_HALVINGS[forest.dimension])
        np.add.at(found, forest.holding(middles), masses)
    return found


def left_open(leaves: Leaves, spots: Spots) -> tuple[float, np.ndarray]:
    """The mass of spots, and what the leaves leave open of its place.

    The sum over its cells of M min(1/2, w / 12 d), w the width of the leaf and d the least standard
    deviation of the spot: the slope of log rho is about 1 / d.
    """
    found = np.zeros(leaves.forest.count)
    for spot in spots:
        held = leaves.forest.holding(spot.middles)
        narrow = 12 * max(spot.widths[0], 1e-300)
        np.add.at(found, held, spot.masses * np.minimum(0.5, leaves.width[held] / narrow))
    return float(sum(spot.mass for spot in spots)), found


def fine_for(forest: Forest, spot: Spot, least: float) -> Forest:
    """The forest with cells as narrow as a spot needs them, but not below `least`."""
    wanted = max(spot.widths[0] / _FINE, least)
    while True:
        held = np.unique(forest.holding(spot.middles))
        width = cell_volume(forest.corners[held]) ** (1 / (forest.dimension - 1))
        marked = np.zeros(forest.count, dtype=bool)
        marked[held[width > wanted]] = True
        if not marked.any():
            return forest
        forest = forest.refined(marked)
