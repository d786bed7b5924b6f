"""Functionals of a density, from which observables are made: moments, integrals, energy, Lyapunov.

`Diagnostics` has what hangs on the mesh and the layer alone; a `Snapshot` is a state at a saved
time, whose functionals are computed when they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from meanfield_pde.amr.indicators import Indicators
from meanfield_pde.amr.patches import NONE, Patches
from meanfield_pde.attention.heads import Layer
from meanfield_pde.attention.sum.shared import SharedSum
from meanfield_pde.errors import InputError
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.cell_fits import cell_fits
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.support.checks import numbers
from meanfield_pde.support.ranks import shared_errors
from meanfield_pde.theory.projection_limit import ProjectionLimit


@dataclass(frozen=True, eq=False)
class PointFunction:
    """A function of points that a user gave, whose values are held against what they have to be.

    Attributes:
        name: what it is called in messages.
        function: of points (N x d) to N finite numbers.
    """

    name: str
    function: Callable[[np.ndarray], np.ndarray]

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """The values at points ... x d; InputError unless there is a finite number for each."""
        flat = points.reshape(-1, points.shape[-1])
        # A copy: the function may work in its argument, and points of cells stay where they are.
        values = numbers(self.function(flat.copy()), f"what {self.name} returns")
        if values.shape != (len(flat),):
            raise InputError(
                f"{self.name} must take points (N x d) to N numbers, got an array of shape "
                f"{values.shape} for N = {len(flat)}"
            )
        if not (finite := np.isfinite(values)).all():
            i = int(finite.argmin())
            where = ", ".join(f"{x:.6g}" for x in flat[i])
            raise InputError(f"{self.name} must be finite everywhere, got {values[i]} at ({where})")
        return values.reshape(points.shape[:-1])


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A state at a saved time, with its functionals: what a column of the history is made of.

    Attributes:
        masses: of all cells, in input order, those of patches with the cells that show them.
        diagnostics: what hangs on the mesh and the layer alone.
        rest: the masses without those of patches.
        patches: these.
        time, step: of the state.
        noise: its strength.
        distances: those of this time by column, if it is compared with anything.
        mesh: what an adaptive mesh leaves open; None of another.
    """

    masses: np.ndarray
    diagnostics: Diagnostics
    rest: np.ndarray
    patches: Patches = NONE
    time: float = 0.0
    step: int = 0
    noise: float = 0.0
    distances: Mapping[str, float] = field(default_factory=dict)
    mesh: Indicators | None = None

    @property
    def indicators(self) -> Indicators:
        """What the mesh leaves open, if it is adaptive."""
        assert self.mesh is not None
        return self.mesh

    @cached_property
    def density(self) -> np.ndarray:
        """Masses per arc length or area. Collective."""
        return self.masses / self.diagnostics.volume

    @cached_property
    def mean(self) -> np.ndarray:
        """First moments ∫ x_i dmu, of patches where they are and of reconstructed cells."""
        volumes = self.diagnostics.volumes
        return self._integral(volumes.cell_mean[: volumes.owned], lambda points: points)

    @cached_property
    def second(self) -> np.ndarray:
        """Second moments ∫ x_i x_j dmu, in the order of `Diagnostics.pairs`."""
        return self._integral(self.diagnostics.second, self.diagnostics.products)

    def integral(self, function: PointFunction) -> float:
        """∫ f dmu for a function f of points, by the quadrature of the moments. Collective."""
        means = self.diagnostics.cell_means(function)
        return float(self._integral(means[:, None], lambda points: function(points)[..., None])[0])

    def _integral(
        self, means: np.ndarray, function: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Integrals of functions, ... x d to ... x k, by their means over own cells. Collective."""
        volumes, fits = self.diagnostics.volumes, self.diagnostics.fits
        found, moved = volumes.scatter(self.rest)[:, None] * means, self._moved_by_slopes
        with shared_errors(volumes.comm):  # it may be a user's function
            for part in geometry.chunks(len(found)):
                for k in range(3):  # what slopes of log rho add
                    found[part] += moved[part, k, None] * function(fits.points[part, k])
            beside = [patch.masses @ function(patch.middles) for patch in self.patches]
        return np.array([volumes.gather(one).sum() for one in found.T]) + sum(beside)

    @cached_property
    def _moved_by_slopes(self) -> np.ndarray:
        """The masses that slopes move between the three points of each own cell."""
        volumes, fits = self.diagnostics.volumes, self.diagnostics.fits
        own = volumes.scatter(self.rest)
        with np.errstate(divide="ignore"):
            shares = fits.shares_for(np.log(own))
        return np.asarray(own[:, None] * (shares - fits.shares))

    @cached_property
    def log_energy(self) -> float:
        """The logarithm of the energy; nan where that is not defined. Collective."""
        return self.diagnostics.log_energy(self.masses)

    @property
    def lyapunov(self) -> float:
        """∫ dist(x, E)^2 dmu; nan if there is no E. Collective."""
        squares = self.diagnostics.square_distance
        if squares is None:
            return math.nan
        return float(self.masses @ self.diagnostics.volumes.gather(squares))

    @property
    def free_energy(self) -> float:
        """The free energy sigma ∫ rho log rho - energy."""
        full = self.masses > 0
        entropy = float(self.masses[full] @ np.log(self.density[full]))
        with np.errstate(over="ignore"):
            return self.noise * entropy - float(np.exp(self.log_energy))

    @property
    def unresolved(self) -> float:
        """Mass in cells beside one whose density is less by the factor `STEEP`, without patches."""
        density, volumes = self.rest / self.diagnostics.volume, self.diagnostics.volumes
        beside = volumes.gather(density[volumes.input_cells[volumes.neighbours]].min(axis=1))
        return float(self.rest[density > STEEP * beside].sum())


def moment_pairs(dimension: int) -> list[tuple[int, int]]:
    """The indices i <= j of the second moments ∫ x_i x_j dmu, in the order of their columns."""
    return [(i, j) for i in range(dimension) for j in range(i, dimension)]


# From cell to cell, where the density is no longer resolved: a normal distribution has most of its
# mass in such cells when its standard deviation is half of their width.
STEEP = math.e**2
# The longest edge of cells over which the rule of degree 6 integrates x_i x_j to 1e-12 of their
# volume, and dist(x, E)^2, for a plane E if it is also less than this part of the cosine of the
# distance: 1.6e-13 and 1e-13 with edges of 0.08, 4e-11 and 2e-11 with 0.16.
_NARROW, _NARROW_PART = 0.1, 0.5


class Diagnostics:
    """What functionals of a density take from its mesh and layer; collective.

    The moments, and a user's integrals, are those of the density reconstructed in each cell, as the
    velocity has it, with patches where they are. The others are exact for a density that is
    constant in each cell.

    With layers, those of the layer that acts up to the time in question.

    energy      (1 / 2 beta) ∬ exp(beta <x, B y>) dmu dmu, and its logarithm, which does not
                overflow; of several heads their sum; not defined (nan) at beta = 0 and at zero
                temperature
    free_energy sigma ∫ rho log rho - energy, with noise of strength sigma only: without the
                denominator and for V = B = B^T it never increases
    lyapunov    ∫ dist(x, E)^2 dmu with E the dominant eigenspace of A = V B^T, if there is one
    unresolved_mass  the part of the mass that is in clusters narrower than their cells

    Attributes:
        volumes: the mesh they are for.
        second: the means of x_i x_j over each own cell.
        fits: of log rho in each own cell.
        pairs: the indices i, j of the second moments.
        square_distance: mean over each own cell of dist(x, E)^2, or None.
    """

    def __init__(
        self,
        volumes: FiniteVolumes,
        tolerance: float,
        layer: Layer,
        projection: ProjectionLimit | None = None,
    ) -> None:
        self.fits = cell_fits(volumes)
        self.volumes = volumes
        self._tolerance = tolerance
        own = slice(0, volumes.owned)
        self.pairs = moment_pairs(volumes.dimension)
        corners = volumes.cell_points[own]
        edges = geometry.geodesic_distance(corners, np.roll(corners, 1, axis=1))
        self._width = edges.max(axis=1)
        products = volumes.integrate(self.products, smooth=self._width < _NARROW)
        self.second = products / volumes.volume[own, None]
        self._means: dict[PointFunction, np.ndarray] = {}
        self.use(layer, projection)

    def use(self, layer: Layer, projection: ProjectionLimit | None = None) -> None:
        """Take the attention, and the eigenspace, of another layer. Collective."""
        self.layer = layer
        volumes = self.volumes
        own = slice(0, volumes.owned)
        projection = projection or ProjectionLimit(layer)
        self.square_distance: np.ndarray | None = None
        if projection.dimension == volumes.dimension:  # every point lies in E
            self.square_distance = np.zeros(volumes.owned)
        elif projection.exists:
            distance, corners = projection.distance_to_eigenspace, volumes.cell_points[own]
            # At the distance pi / 2 several points of E are nearest: the square has a kink there,
            # in a plane unless E is one. Halves of cells with it may agree by chance (3e-6 of all).
            smooth, kink = self._width < _NARROW, None
            if projection.dimension == 1:
                kink = projection.basis[:, 0]
            else:
                away = np.cos(distance(corners.reshape(-1, volumes.dimension)))
                away = away.reshape(corners.shape[:2]).min(axis=1)
                smooth &= self._width < _NARROW_PART * away
            integral = volumes.integrate(lambda x: distance(x) ** 2, smooth=smooth, kink=kink)
            self.square_distance = integral / volumes.volume[own]
        self._energy_sums: list[tuple[float, SharedSum]] = []
        heads = layer.heads
        if all(0 < head.beta < math.inf for head in heads):
            centres = volumes.gather(volumes.centre[own])
            for head in heads:
                # <x, B y> = <B^T x, y>: the log of the inner integral is the log partition at x.
                scores = head.scores(centres)
                inner = SharedSum(volumes.comm, centres, centres, scores, self._tolerance)
                self._energy_sums.append((head.beta, inner))

    @property
    def volume(self) -> np.ndarray:
        """Of all cells. Collective."""
        return self.volumes.gather(self.volumes.volume[: self.volumes.owned])

    def products(self, points: np.ndarray) -> np.ndarray:
        """The products x_i x_j at points ... x d, in the order of `pairs`."""
        first, second = np.transpose(self.pairs)
        return np.asarray(points[..., first] * points[..., second])

    def cell_means(self, function: PointFunction) -> np.ndarray:
        """The mean of a function over each own cell, computed once for a mesh. Collective."""
        if function not in self._means:
            volumes = self.volumes
            integral = volumes.integrate(function)
            self._means[function] = integral / volumes.volume[: volumes.owned]
        return self._means[function]

    def log_energy(self, masses: np.ndarray) -> float:
        """The logarithm of the energy of masses of all cells. Collective."""
        if not self._energy_sums:
            return math.nan
        with np.errstate(divide="ignore"):
            log_masses = np.log(masses)
        heads = []
        for beta, inner in self._energy_sums:
            inner.load(log_masses)
            log_energy = np.logaddexp.reduce(log_masses + inner.log_partition())
            heads.append(log_energy - math.log(2 * beta))
        return float(np.logaddexp.reduce(heads))
