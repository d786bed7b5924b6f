"""Refinement indicators: what the mesh leaves open, cell by cell, and an adaptive mesh keeps small.

With w the width of a cell, M its mass, g the least-squares gradient of log rho, and j its
neighbours at x_j, the reconstruction in the cell misses

    o = max over j of |log rho_j - log rho - <g, x_j - x>|  and of  |<g_j - g, x_j - x>|,

of second order in w where log rho is smooth; where the slope is steeper than the transport scheme
allows, s = max <g, x_f - x> > 1, the excess s - 1 is missed too.

1.  `w1`.  The flux through a facet of velocity v is wrong by about v rho (o / 4 + s - 1), and an
    error in a flux is mass in the wrong place: it makes W_1 grow at the rate |v| M (...), for the
    relaxation time T = 1 / |S| of a flow that gathers mass, S the symmetric part of V. What is
    saved and drawn is constant in each cell, which puts the mass of a slope w s / 6 from its place
    on the average. In a cell that shows nothing of what it holds, a flow that gathers has the mass
    anywhere. So W_1 between the density and the exact one is about

        sum over cells of M min(w, w min(s, 1) / 6 + |v| T (o / 4 + s - 1)),

    which is kept below the tolerance. At zero temperature from t = 1 to 12 it was 1.6 to 9 times
    the true distance on the circle, and 0.9 to 1.8 times on the sphere
    (`tests.benchmarks.adaptivity --part w1`, `w1-sphere`).

    A flow that only turns the mass forgets nothing, and what leaves a cell late or early is not
    held up by the next. There T is one turn, 2 pi / |V|, without the bound w: the error grows by
    about the tolerance with each turn.

2.  `profile`.  While a cluster stands it does not matter how wide it is, but it is stretched a
    hundredfold when it leaves, and then its shape decides when the metastable state ends. So at
    finite temperature a cell of a cluster has o + s - 1 below a bound, down to a width of half the
    tolerance. Clusters narrower than the kernel are in Lagrangian patches instead (see `patches`),
    and are shown by the cells that stay: of a patch of standard deviation d min(1 / 2, w / 12 d) of
    their width is left open, which counts in the first indicator.

3.  `kernel`.  There is no mass to speak of in the tail that the clusters attend to, and yet it
    decides how long they stay. Where log rho bends, m(x) = grad log of the integral of exp(<w, y>)
    changes as soon as w = beta B^T x does by |w|^(1/2), that is over the distance

        l(x) = max(1, |w|)^(1/2) / |beta B^T P_x|,     |.| the root of the sum of squares,

    which is least about the repeller, where |B^T x| is. On wider cells velocities are interpolated
    past such changes, from the first steps on; errors of log rho then grow like clusters out of
    noise. So at finite temperature no cell is wider than a part of l, whatever the density, from
    the beginning to the end: nothing of it hangs on the steps, or on the mesh given. Nor is any
    wider than a part of the attention kernel, |beta B|^(-1/2): log rho bends over it where
    attention changes over from one cluster to another, and clusters that have left stop in a wrong
    place on wider cells. Below some tolerance both parts fall with its root.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import numpy as np

from meanfield_pde.amr.forest import Forest
from meanfield_pde.amr.patches import NONE, Patches
from meanfield_pde.amr.settings import AdaptSettings
from meanfield_pde.attention.heads import (
    Layer,
    inverse_kernel_width_squared,
    relaxation_time,
    speed_bound,
)
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.gradients import STEEPEST, gradient_weights

# A cell without mass counts as this far below the smallest log density: steep, 22 decades, but not
# infinitely.
_EMPTY = 50.0


class Leaves:
    """The leaves of a forest as cells, and how log rho varies over them.

    Attributes:
        volume, centre, width: of each leaf; the width is its length, or the root of its area.
    """

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self.volume = geometry.cell_volume(forest.corners)
        self.centre = geometry.normalised(geometry.cell_mean(forest.corners))
        self.width = self.volume ** (1 / (forest.dimension - 1))
        around = self.centre[forest.neighbours]
        self._frame, self._weights = gradient_weights(self.centre, around)
        self._ways = geometry.tangent_vector(self.centre[:, None], around)

    def log_density(self, log_masses: np.ndarray) -> np.ndarray:
        """Logarithms of the density, finite in empty cells too."""
        found = log_masses - np.log(self.volume)
        full = np.isfinite(found)
        return np.maximum(found, (found[full].min() if full.any() else 0.0) - _EMPTY)

    def variation(self, log_density: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What o and s are."""
        neighbours = self.forest.neighbours
        jump = log_density[neighbours] - log_density[:, None]
        slopes = self._weights @ jump[..., None]
        gradient = (np.swapaxes(self._frame, 1, 2) @ slopes)[..., 0]
        rise = (self._ways @ gradient[..., None])[..., 0]
        bend = np.einsum("cjd,cjd->cj", gradient[neighbours] - gradient[:, None], self._ways)
        missed = np.maximum(np.abs(jump - rise), np.abs(bend)).max(axis=1)
        steep = np.abs(rise).max(axis=1) / 2  # a facet is half of the way to a neighbour
        return missed, steep


class Indicators:
    """The refinement indicators of one state, and what they are computed from.

    Attributes:
        leaves: the mesh.
        settings: the tolerance, and the constants of the indicators.
        layer: the attention, or the heads, that act.
        speed: largest normal velocity through a facet, of all cells.
        masses: of all cells as parts of the whole, without those of patches.
        log_density: log rho of all cells, for a `Remap`.
        missed, steep: o and s of all cells.
        patches: what the leaves leave open of the place of their mass, in widths of the leaves.
        every: the indicators, in the order of `INDICATORS`.
    """

    def __init__(
        self,
        leaves: Leaves,
        log_masses: np.ndarray,
        speed: np.ndarray,
        layer: Layer,
        settings: AdaptSettings,
        patches: Patches = NONE,
    ) -> None:
        """Look at a state.

        Args:
            leaves: the mesh.
            log_masses: of all cells.
            speed: largest normal velocity through a facet, of all cells.
            layer: the attention, or the heads, that act.
            settings: the tolerance, and the constants of the indicators.
            patches: mass beside the cells.
        """
        self.leaves = leaves
        self.settings = settings
        self.layer = layer
        self.speed = speed
        self.patches = _patch_indicator(leaves, patches)
        self.masses = np.zeros(len(log_masses))  # where all of the mass is in patches
        if (largest := log_masses.max()) > -np.inf:
            self.masses = np.exp(log_masses - largest)
            self.masses /= self.masses.sum()
            self.masses *= 1 - float(sum(patch.mass for patch in patches))
        self.log_density = leaves.log_density(log_masses)
        self.missed, self.steep = leaves.variation(self.log_density)
        self.every = tuple(one(self) for one in INDICATORS)

    @property
    def total(self) -> float:
        """The first indicator, of the whole mesh: an estimate of its part of the error in W_1."""
        return next(one for one in self.every if isinstance(one, W1)).total

    @property
    def parent(self) -> float:
        """How many times as wide as a leaf its parent is."""
        return float(2.0 ** (1 / (self.leaves.forest.dimension - 1)))

    def excess(self, wider: float = 1.0) -> np.ndarray:
        """Return s - 1, or zero, for cells `wider` times as wide."""
        return np.maximum(self.steep * wider - STEEPEST, 0.0)


class Indicator(ABC):
    """A refinement indicator of a state: when the mesh has to change, and what then becomes of it.

    The mesh is looked at every few steps, and a look halves a cell once. So what must hold between
    looks is refined before it is broken, and coarsened only where it would not soon be refined
    again. Each array has a truth value for every leaf.
    """

    def __init__(self, state: Indicators) -> None:
        self.state = state

    @abstractmethod
    def broken(self) -> bool:
        """Whether the mesh has to change. If not for any indicator, it stays as it is."""

    @abstractmethod
    def refine(self) -> np.ndarray:
        """The leaves to be refined when the mesh changes, on whatever indicator's account."""

    @abstractmethod
    def coarsen(self) -> np.ndarray:
        """The leaves that their parents may take the place of."""


class W1(Indicator):
    """The first: W_1 between the density and the exact one, which all cells add to."""

    def __init__(self, state: Indicators) -> None:
        super().__init__(state)
        layer, relaxation = state.layer, relaxation_time(state.layer)
        self._turns = bool(np.isinf(relaxation))
        turn = 2 * np.pi / max(speed_bound(layer), 1e-300)
        self._way = state.speed * (turn if self._turns else relaxation)
        self.errors = self._errors(1.0)
        self.total = float(self.errors.sum())

    def broken(self) -> bool:
        """Whether the sum comes near the tolerance."""
        settings = self.state.settings
        return self.total > settings.refine_above * settings.tolerance

    def refine(self) -> np.ndarray:
        """The leaves that add most to the sum, until the others are well below the tolerance."""
        if not self.broken():
            return np.zeros(len(self.errors), dtype=bool)
        settings = self.state.settings
        return self.errors > _threshold(self.errors, settings.refine_to * settings.tolerance)

    def coarsen(self) -> np.ndarray:
        """The leaves whose parents, siblings being alike, add next to nothing together."""
        parents, settings = self._errors(self.state.parent), self.state.settings
        return parents <= _threshold(parents, settings.coarsen_to * settings.tolerance)

    def _errors(self, wider: float) -> np.ndarray:
        """What each cell adds, on this mesh or for cells `wider` times as wide."""
        state = self.state
        use = state.settings.indicators
        volumes = wider ** (state.leaves.forest.dimension - 1)
        missed = use.flux_share * state.missed * wider**2 + state.excess(wider)
        width = state.leaves.width * wider
        offset = use.offset_share * width * np.minimum(state.steep * wider, STEEPEST)
        most = np.inf if self._turns else width
        found = volumes * state.masses * np.minimum(most, offset + self._way * missed)
        return np.asarray(found + state.patches * wider * width)


class Profile(Indicator):
    """The second: the shape of clusters, at finite temperature."""

    def broken(self) -> bool:
        """Whether a cell of a cluster has o + s - 1 above its bound."""
        return bool(self._open(1.0, 1.0).any())

    def refine(self) -> np.ndarray:
        """The cells that come near the bound, in clusters or soon to be."""
        settings = self.state.settings
        return self._open(settings.profile_refine, settings.profile_mass)

    def coarsen(self) -> np.ndarray:
        """The cells whose parents would stay far from it."""
        settings = self.state.settings
        wider = self.state.parent
        return ~self._open(settings.profile_coarsen, settings.profile_mass / wider, wider)

    def _open(self, part: float, mass: float, wider: float = 1.0) -> np.ndarray:
        """Cells `wider` times as wide with o + s - 1 above a part of the bound.

        Those with more than a part of the mass of a cell of a cluster.
        """
        state = self.state
        use = state.settings.indicators
        if not inverse_kernel_width_squared(state.layer):
            return np.zeros(state.leaves.forest.count, dtype=bool)
        shape = state.missed * wider**2 + state.excess(wider)
        wide = state.leaves.width * wider > use.narrowest * state.settings.tolerance
        cluster = state.masses > mass * use.cluster_mass
        return np.asarray(cluster & wide & (shape > part * use.profile))


class WidestCells(Indicator):
    """An indicator that says how wide each cell may be.

    A leaf is refined once it is wider: what must hold from one look to the next, while the state
    moves, has its margin in `widest`.
    """

    @cached_property
    @abstractmethod
    def widest(self) -> np.ndarray:
        """The largest width of each leaf."""

    def broken(self) -> bool:
        """Whether a leaf is wider than it may be."""
        return bool(self.refine().any())

    def refine(self) -> np.ndarray:
        """The leaves that are wider than they may be."""
        return self._wider_than_allowed(1.0)

    def coarsen(self) -> np.ndarray:
        """The leaves whose parents would not nearly be wider than that."""
        return ~self._wider_than_allowed(self.state.settings.spare * self.state.parent)

    def _wider_than_allowed(self, wider: float) -> np.ndarray:
        return np.asarray(self.state.leaves.width * wider > self.widest)


class Kernel(WidestCells):
    """The third: no cell is wider than velocities change over; no bound at zero temperature."""

    @cached_property
    def widest(self) -> np.ndarray:
        """A part of the length l(x), or of the attention kernel."""
        x, use = self.state.leaves.centre, self.state.settings.indicators
        dimension = x.shape[1]
        below = use.narrower_below[dimension]
        part = min(1.0, self.state.settings.tolerance / below) ** 0.5
        inverse = inverse_kernel_width_squared(self.state.layer)
        kernel = inverse**-0.5 if inverse else np.inf
        found = np.full(len(x), use.kernels[dimension] * kernel)
        for head in self.state.layer.heads:
            if head.zero_temperature or head.beta == 0:
                continue
            score = np.linalg.norm(head.scores(x), axis=1)
            whole = head.beta * np.linalg.norm(head.key_query)
            # |beta B^T P_x|^2 = |beta B^T|^2 - |beta B^T x|^2, not below its rounding.
            change = np.sqrt(np.maximum(whole**2 - score**2, 1e-12 * whole**2))
            length = np.sqrt(np.maximum(1.0, score)) / change
            found = np.minimum(found, use.velocity_lengths[dimension] * length)
        return part * found


# What a mesh is refined by.
INDICATORS: tuple[type[Indicator], ...] = (W1, Profile, Kernel)


def _threshold(values: np.ndarray, budget: float) -> float:
    """A bound such that the values up to it add up to less than the budget, nearly.

    A power of sqrt(2), so that it does not hang on the last digits of the masses.
    """
    ordered = np.sort(values)
    last = min(int(np.searchsorted(np.cumsum(ordered), budget)), len(ordered) - 1)
    return float(2.0 ** (np.floor(2 * np.log2(max(ordered[last], 1e-300))) / 2))


def _patch_indicator(leaves: Leaves, patches: Patches) -> np.ndarray:
    """What the leaves leave open of the place of the mass of patches, in their widths.

    The sum over the cells of a patch of M min(1/2, w / 12 d), w the width of the leaf that shows
    it and d the least standard deviation of the patch: the slope of log rho is about 1 / d.
    """
    if not patches:
        return np.zeros(leaves.forest.count)
    held = leaves.forest.holding(np.concatenate([patch.middles for patch in patches]))
    narrow = np.concatenate([np.full(len(p.masses), 12 * p.widths[0]) for p in patches])
    part = np.minimum(0.5, leaves.width[held] / np.maximum(narrow, 1e-300))
    masses = np.concatenate([patch.masses for patch in patches])
    return np.bincount(held, masses * part, leaves.forest.count)
