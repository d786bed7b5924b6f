"""The push-forward of a density under the projection map x -> Pi x / |Pi x|: the limit measure.

dim E = 1   two atoms at ±e, each with the mass on its side of the separatrix <l, x> = 0
dim E = 2   a measure on the great circle E ∩ S; the points that go to a bin of angles form a lune,
            between two half planes <n, x> = 0 with n a combination of the left eigenvectors
E = R^d     the density itself

Cells that a plane cuts are divided exactly, so that the only error is that of the quadrature of a
smooth density on a smooth piece, and none for a density that is constant in each cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.initial.base import InitialDensity
from meanfield_pde.mesh.clipping import padded, split, split_polygons, triangulated
from meanfield_pde.mesh.geometry import cell_mean, cell_spread, cell_volume, integrate, normalised
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.checks import check_mass, numbers, points_of, shown
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.wasserstein.measure import Measure

Density = Callable[[np.ndarray], np.ndarray]
MOST_BINS = 1_000_000  # a microradian each; pieces of cells are as many, and take memory


@typed
def push_forward(
    limit: ProjectionLimit,
    cells: np.ndarray,
    content: np.ndarray | Density,
    *,
    length_scale: float = math.inf,
    peaks: np.ndarray | None = None,
    bins: int = 720,
) -> Measure:
    """The limit measure of a density that is given on the cells of a mesh.

    Args:
        limit: the projection.
        cells: vertices of the cells, N x d x d, which cover the circle or the sphere.
        content: either the mass of each cell, spread evenly over it, or the density as a function
            of points (N x d -> N), which is integrated and scaled to mass one. Masses keep their
            total.
        length_scale: for a function, the width of its peaks.
        peaks: for a function, the points where it is concentrated.
        bins: number of equal bins of the great circle for dim E = 2, even. Each bin is an atom at
            its mean angle, with the variance of the angle as its `spread`. The masses are exact
            up to the quadrature; the variance to 1e-4 of it, as the angle has a singularity at the
            two points Pi x = 0.
    """
    cells = numbers(cells, "the cells of a push-forward")
    d = limit.attention.dimension
    if cells.ndim != 3 or cells.shape[1:] != (d, d) or d > 3:
        raise InputError(
            f"the cells of a push-forward must be arcs (d = 2) or triangles (d = 3) in the "
            f"dimension {d} of attention.value, an array of shape (N, {d}, {d}); got {cells.shape}"
        )
    if not len(cells) or not np.isfinite(cells).all():
        raise InputError("the cells of a push-forward must be finite, and at least one")
    if not length_scale > 0:
        raise InputError(f"length_scale must be a number > 0, got {length_scale}")
    if bins < 2 or bins % 2 or bins > MOST_BINS:
        raise InputError(
            f"the bins of a great circle must be an even number from 2 to {MOST_BINS}, got "
            f"{shown(bins)}"
        )
    peaks = None if peaks is None else points_of(peaks, d, "peaks")
    pieces = _Pieces(cells, content, length_scale, peaks)
    if limit.dimension == d:
        return _itself(cells, pieces)
    if limit.dimension == 1:
        return _two_atoms(limit, cells, pieces)
    if limit.dimension == 2:
        return _great_circle(limit, cells, pieces, bins)
    raise InputError(f"there is no limit measure: {limit.reason}")


def push_forward_atoms(limit: ProjectionLimit, measure: Measure) -> Measure:
    """The image of a measure of atoms, tokens for example, atom by atom.

    An atom on the separatrix has no image. For dim E = 1 it is divided equally between e and -e,
    as the mass of a small ball around it would be; otherwise it is an error.
    """
    if measure.dimension != limit.attention.dimension:
        raise InputError(
            f"the measure has {measure.dimension} coordinates, but attention.value is of "
            f"dimension {limit.attention.dimension}"
        )
    if limit.dimension != 1:
        return Measure(limit.map(measure.points), measure.masses)
    lost = limit.on_separatrix(measure.points)
    above = np.where(lost, 0.5, limit.coordinates(measure.points)[:, 0] > 0)
    sides = [total_mass(measure.masses * above), total_mass(measure.masses * (1 - above))]
    return _atoms(limit, np.array(sides))


def limit_of(limit: ProjectionLimit, initial: InitialDensity, cells: np.ndarray) -> Measure:
    """The limit measure of an initial density, whatever it is given as.

    Args:
        limit: the projection.
        initial: the density.
        cells: vertices of cells that cover the circle or the sphere, N x d x d: those whose masses
            are given, or any.
    """
    exact = initial.exact(limit.attention.dimension)
    if isinstance(exact, Measure):
        return push_forward_atoms(limit, exact)
    scale, peaks = exact.length_scale, exact.peaks
    return push_forward(limit, cells, exact.values, length_scale=scale, peaks=peaks)


class _Pieces:
    """Integrals over pieces of cells of the density, in either form in which it may be given."""

    def __init__(
        self,
        cells: np.ndarray,
        content: np.ndarray | Density,
        length_scale: float,
        peaks: np.ndarray | None,
    ) -> None:
        self._density: Density | None = None
        self._length_scale = length_scale
        self._peaks = peaks
        if callable(content):
            self._density = partial(_values, content)
            return
        masses = numbers(content, "the masses")
        if masses.shape != (len(cells),):
            raise InputError(
                f"the masses must be one number for each of the {len(cells)} cells, "
                f"got an array of shape {masses.shape}"
            )
        with np.errstate(over="ignore"):
            total = masses.sum()
        if not (np.isfinite(total) and (masses >= 0).all() and total > 0):
            raise InputError("the masses must be finite, >= 0 and not all zero, and their total")
        self._masses = masses

    def masses(self, pieces: np.ndarray, parent: np.ndarray) -> np.ndarray:
        """Mass of each piece of the cells `parent`."""
        if self._density is not None:
            with np.errstate(over="ignore"):  # refused by its total
                return integrate(self._density, pieces, self._length_scale, self._peaks)
        return self._masses[parent] * _shares(cell_volume(pieces), parent, len(self._masses))

    def moments(
        self, function: Density, pieces: np.ndarray, parent: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mass of each piece, and its integrals of f and f^2 against the density."""
        density = self._density

        def integrand(points: np.ndarray) -> np.ndarray:
            f = function(points)
            rho = np.ones(len(points)) if density is None else density(points)
            return np.column_stack([rho, rho * f, rho * f * f])

        with np.errstate(over="ignore"):
            mass, first, second = integrate(integrand, pieces, self._length_scale, self._peaks).T
        if density is None:
            scale = self.masses(pieces, parent) / np.where(mass > 0, mass, 1)
            return scale * mass, scale * first, scale * second
        return mass, first, second

    def total_kept(self, masses: np.ndarray) -> np.ndarray:
        """The masses of the limit, scaled to one for a density, which may have any total."""
        if self._density is None:
            return masses
        total = total_mass(masses)
        check_mass(total, "a density")
        return masses / total


def total_mass(masses: np.ndarray) -> float:
    """The sum, rounded once; infinite or nan where `math.fsum` raises an error."""
    try:
        return math.fsum(masses)
    except (OverflowError, ValueError):
        with np.errstate(all="ignore"):
            return float(np.sum(masses))


def _values(density: Density, points: np.ndarray) -> np.ndarray:
    """The density at points; InputError unless it gives one number for each."""
    values = numbers(density(points.copy()), "what the density returns")
    if values.shape != (len(points),):
        raise InputError(
            "the density must take points (N x d) to N numbers, got an array of shape "
            f"{values.shape} for N = {len(points)}"
        )
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        i = int(wrong.argmax())
        raise InputError(
            f"the density must be finite and >= 0 everywhere, got {values[i]:g} at "
            f"{points[i].tolist()}"
        )
    return values


def _two_atoms(limit: ProjectionLimit, cells: np.ndarray, content: _Pieces) -> Measure:
    pieces, parent, side = split(cells, normalised(limit.left[0]))
    masses = content.masses(pieces, parent)
    sides = np.array([total_mass(masses[side > 0]), total_mass(masses[side < 0])])
    return _atoms(limit, content.total_kept(sides))


def _atoms(limit: ProjectionLimit, sides: np.ndarray) -> Measure:
    e = limit.basis[:, 0]
    return Measure(np.stack([e, -e]), sides)


def _great_circle(
    limit: ProjectionLimit, cells: np.ndarray, content: _Pieces, bins: int
) -> Measure:
    width = 2 * math.pi / bins
    pieces, parent, first = _lunes(limit, cells, bins)

    def from_centre(points: np.ndarray) -> np.ndarray:
        """Angle of the image from the centre of its bin."""
        x, y = limit.coordinates(points).T
        return np.mod(np.arctan2(y, x), width) - width / 2

    totals = [
        np.bincount(first, moment, bins) for moment in content.moments(from_centre, pieces, parent)
    ]
    mass = totals[0]
    occupied = mass > 0
    mean, square = (
        np.divide(total, mass, out=np.zeros(bins), where=occupied) for total in totals[1:]
    )
    angle = width * (np.arange(bins) + 0.5) + mean
    points = np.column_stack([np.cos(angle), np.sin(angle)]) @ limit.basis.T
    return Measure(points, content.total_kept(mass), np.maximum(square - mean**2, 0.0))


def _lunes(
    limit: ProjectionLimit, cells: np.ndarray, bins: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pieces of the cells, their cells, and the bin of angles that each goes to.

    The range of bins of a piece is halved until one is left: log2(bins) passes, in each of which a
    piece meets one plane. The first plane is a full one, and within the half circle on either side
    of it the others are half planes.
    """
    along, across = limit.left
    polygons, parent, side = split_polygons(cells, normalised(across))
    start = np.where(side > 0, 0, bins // 2)
    stop = start + bins // 2
    while (stop - start > 1).any():
        wide = stop - start > 1
        middle = (start + stop)[wide] // 2
        angle = (2 * math.pi / bins * middle)[:, None]
        # Positive where the angle of (<along, x>, <across, x>) is beyond that of the middle.
        normals = np.cos(angle) * across - np.sin(angle) * along
        halves, origin, side = split_polygons(polygons[wide], normals)
        middle = middle[origin]
        low = np.where(side > 0, middle, start[wide][origin])
        high = np.where(side > 0, stop[wide][origin], middle)
        done = padded(polygons[~wide], halves.shape[1])
        polygons = np.concatenate([done, halves])
        parent = np.concatenate([parent[~wide], parent[wide][origin]])
        start = np.concatenate([start[~wide], low])
        stop = np.concatenate([stop[~wide], high])
    triangles, polygon = triangulated(polygons)
    return triangles, parent[polygon], start[polygon]


def _itself(cells: np.ndarray, content: _Pieces) -> Measure:
    """The density as atoms at the centres of its cells."""
    points = normalised(cell_mean(cells))
    masses = content.total_kept(content.masses(cells, np.arange(len(cells))))
    return Measure(points, masses, cell_spread(cells, points))


def _shares(volume: np.ndarray, parent: np.ndarray, cells: int) -> np.ndarray:
    """Fraction of its cell that each piece is; the fractions of a cell add up to one."""
    return volume / np.bincount(parent, volume, cells)[parent]
