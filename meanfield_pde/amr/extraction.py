"""When mass is extracted from cells into a Lagrangian patch, and when it is deposited in cells.

A cluster is extracted when its standard deviation is below s, a part of the attention kernel, so
that velocities in it can be interpolated. Of a cell at the distance r from its mean the part
exp(-(r / R)^4) is taken, of what is denser than the least around: what is left is smooth, and
follows when it has come near. What has got far from the mean of a patch is deposited: a trace that
is left to polynomials there would go astray. When much is lost so, or the patch has become wide,
all of it is deposited, in cells that have been made as narrow as it needs.

Tokens that a density starts from, if they are few, are patches from the beginning, each a point:
cells would put them beside their places, and spread them over their neighbours. A point is never
deposited.

The lengths are those of `PatchSettings`.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.amr.forest import DEEPEST, Forest
from meanfield_pde.amr.indicators import Leaves
from meanfield_pde.amr.patches import NONE, Patch, Patches
from meanfield_pde.amr.settings import AdaptSettings, PatchSettings
from meanfield_pde.attention.heads import Layer, inverse_kernel_width_squared
from meanfield_pde.mesh.geometry import cell_volume, normalised
from meanfield_pde.support.kernels import kernel
from meanfield_pde.wasserstein.measure import Measure


def patch_width(layer: Layer, settings: PatchSettings) -> float:
    """Return s, the largest standard deviation of a new patch; zero at zero temperature."""
    beta = inverse_kernel_width_squared(layer)
    return settings.width / float(np.sqrt(beta)) if beta else 0.0


def extract(
    leaves: Leaves,
    masses: np.ndarray,
    width: float,
    settings: AdaptSettings,
    patches: Patches = NONE,
) -> tuple[np.ndarray, Patches]:
    """Return the part of the mass that each cell keeps, and the clusters extracted from the rest.

    About the means of patches that are there already, and where it is densest.

    Args:
        leaves: the cells.
        masses: of all of them.
        width: s.
        settings: of the mesh.
        patches: those that are there.
    """
    use = settings.patches
    keep, found = np.ones(len(masses)), NONE
    untried = np.ones(len(masses), dtype=bool)
    # All that can be taken is in cells that are not too wide; most of the time that is a trace.
    fine = masses[leaves.width <= 2 * width].sum()
    cluster_mass = settings.indicators.cluster_mass
    for known in [*patches, *[None] * use.peaks]:
        enough = use.trace if known else cluster_mass
        if fine < enough:
            continue
        if known is not None:
            mean = known.centre
        else:
            density = masses * keep / leaves.volume
            peak = int(np.where(untried, density, 0.0).argmax())
            if not (untried[peak] and masses[peak] > 0):
                break
            mean = leaves.centre[peak]
            untried[peak] = False
            for _ in range(2):
                near = _taper(_distance(leaves, mean), width, use)
                mean = normalised((near * keep * masses) @ leaves.centre)
            untried &= _distance(leaves, mean) >= 2 * use.taper * width
        lengths = np.array([use.taper, use.reach, use.lost, 2.0]) * width
        cells_of = leaves.centre, leaves.volume, leaves.width
        part, around = _part_taken(mean, *cells_of, masses, keep, lengths)
        taken = part * masses
        if taken.sum() < max(enough, use.complete * around):
            continue
        cells = np.flatnonzero(taken > use.trace * taken.sum())
        surface = leaves.forest.surface
        patch = Patch.of(surface.points, surface.cells[cells], taken[cells])
        if patch.widths[-1] < width:
            keep[cells] -= part[cells]
            found += (patch,)
    return keep, found


def joined(patches: Patches, others: Patches, width: float) -> Patches:
    """Return patches and others, as one where both are narrow enough together."""
    found = list(patches)
    for other in others:
        for i, patch in enumerate(found):
            if np.linalg.norm(patch.centre - other.centre) < width:
                both = patch.joined(other)
                if both.widths[-1] < width:
                    found[i] = both
                    break
        else:
            found.append(other)
    return tuple(found)


def retire(patches: Patches, width: float, settings: PatchSettings) -> tuple[Patches, Patches]:
    """Return patches that stay, and those, or parts of them, that are to be deposited."""
    kept, retired = NONE, NONE
    for patch in patches:
        if patch.is_point or patch.extent <= min(settings.lost, settings.retire_width) * width:
            kept += (patch,)
            continue
        far = np.linalg.norm(patch.middles - patch.centre, axis=1) > settings.lost * width
        stray = patch.masses[far].sum() > settings.stray * patch.mass
        if stray or patch.widths[-1] > settings.retire_width * width:
            retired += (patch,)
        else:
            kept += (patch.part(~far) if far.any() else patch,)
            retired += (patch.part(far),) if far.any() else NONE
    return kept, retired


def point_patches(tokens: Measure, settings: PatchSettings) -> Patches:
    """Return the tokens that a density starts from as patches, each a point; none if many."""
    if np.count_nonzero(tokens.masses) > settings.max_points:
        return NONE
    shares = tokens.masses / tokens.masses.sum()
    pairs = zip(tokens.points, shares, strict=True)
    return tuple(Patch.point(place, mass) for place, mass in pairs if mass > 0)


def deposit(forest: Forest, patches: Patches, settings: PatchSettings) -> np.ndarray:
    """Return the mass of patches in each leaf."""
    found = np.zeros(forest.count)
    for patch in patches:
        middles, masses = patch.pieces(settings.halvings[forest.dimension])
        np.add.at(found, forest.holding(middles), masses)
    return found


def refined_for(forest: Forest, patch: Patch, least: float, settings: PatchSettings) -> Forest:
    """Return the forest with cells as narrow as a patch needs them, but not below `least`."""
    wanted = max(patch.widths[0] / settings.fine_cells, least)
    while True:
        held = np.unique(forest.holding(patch.middles))
        width = cell_volume(forest.corners[held]) ** (1 / (forest.dimension - 1))
        marked = np.zeros(forest.count, dtype=bool)
        marked[held[(width > wanted) & (forest.levels[held] < DEEPEST)]] = True
        if not marked.any():
            return forest
        forest = forest.refined(marked)


def _distance(leaves: Leaves, place: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(leaves.centre - place, axis=1))


def _taper(distance: np.ndarray, width: float, settings: PatchSettings) -> np.ndarray:
    """Part of a leaf that is near a mean at these distances: exp(-(r / R)^4)."""
    return np.asarray(np.exp(-((distance / (settings.taper * width)) ** 4)))


@kernel
def _part_taken(mean, centres, volumes, widths, masses, keep, lengths):
    """The part of each cell that a cluster about the mean is, and the mass within 2 R of that.

    Lengths: R of the taper, reach, how far the floor is looked for, and the widest cell. Nothing is
    taken below the least density around, so that no hole is left that nothing in the flow has made.
    """
    taper, reach, lost, widest = lengths
    cells, d = centres.shape
    distance = np.empty(cells)
    floor, highest, around = np.inf, 0.0, 0.0
    for c in range(cells):
        squared = 0.0
        for i in range(d):
            squared += (centres[c, i] - mean[i]) ** 2
        distance[c] = math.sqrt(squared)
        density = max(masses[c] * keep[c] / volumes[c], 1e-300)
        highest = max(highest, density)
        if reach < distance[c] < lost:
            floor = min(floor, density)
        if distance[c] < 2 * taper:
            around += masses[c] * keep[c]
    floor = min(floor, highest)
    part = np.zeros(cells)
    for c in range(cells):
        if distance[c] <= reach and widths[c] <= widest:
            density = max(masses[c] * keep[c] / volumes[c], 1e-300)
            above = max(1.0 - floor / density, 0.0)
            part[c] = math.exp(-((distance[c] / taper) ** 4)) * keep[c] * above
    return part, around
