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
    noise. So at finite temperature no cell is wider than l, whatever the density, from the
    beginning to the end: nothing of it hangs on the steps, or on the mesh given. Nor is any wider
    than a part of the attention kernel, |beta B|^(-1/2), or clusters that have left stop in a wrong
    place.
"""

from __future__ import annotations

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

# A cell without mass counts as this far below the smallest log density: steep, but not infinitely.
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

    def variation(self, log_density: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The gradient of log rho as far as the scheme allows it, and what o and s are."""
        neighbours = self.forest.neighbours
        jump = log_density[neighbours] - log_density[:, None]
        gradient = np.einsum("ctd,ctj,cj->cd", self._frame, self._weights, jump)
        rise = np.einsum("cd,cjd->cj", gradient, self._ways)
        bend = np.einsum("cjd,cjd->cj", gradient[neighbours] - gradient[:, None], self._ways)
        missed = np.maximum(np.abs(jump - rise), np.abs(bend)).max(axis=1)
        steep = np.abs(rise).max(axis=1) / 2  # a facet is half of the way to a neighbour
        allowed = np.minimum(1.0, STEEPEST / np.maximum(steep, STEEPEST))
        return gradient * allowed[:, None], missed, steep


class Indicators:
    """The refinement indicators of one state.

    Attributes:
        leaves: the mesh.
        slopes: gradients of log rho in the cells, for a `Remap`.
        w1: the first indicator, cell by cell; `total` is their sum.
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
        """Evaluate them.

        Args:
            leaves: the mesh.
            log_masses: of all cells.
            speed: largest normal velocity through a facet, of all cells.
            layer: the attention, or the heads, that act.
            settings: the tolerance, and the constants of the indicators.
            patches: mass beside the cells.
        """
        self.leaves = leaves
        self._settings = settings
        self._heads = layer.heads
        self._turns = bool(np.isinf(relaxation_time(layer)))
        turn = 2 * np.pi / max(speed_bound(layer), 1e-300)
        self._way = speed * (turn if self._turns else relaxation_time(layer))
        self._inverse_width_squared = inverse_kernel_width_squared(layer)
        self._patches = _patch_indicator(leaves, patches)
        self._masses = np.zeros(len(log_masses))  # where all of the mass is in patches
        if (largest := log_masses.max()) > -np.inf:
            self._masses = np.exp(log_masses - largest)
            self._masses /= self._masses.sum()
            self._masses *= 1 - float(sum(patch.mass for patch in patches))
        self._log_density = leaves.log_density(log_masses)
        self.slopes, self._missed, self._steep = leaves.variation(self._log_density)
        self.w1 = self._w1(1.0)
        self.total = float(self.w1.sum())

    def _w1(self, wider: float) -> np.ndarray:
        """The first indicator, for this mesh or for cells `wider` times as wide."""
        use = self._settings.indicators
        volumes = wider ** (self.leaves.forest.dimension - 1)
        missed = use.flux_share * self._missed * wider**2 + self._excess(wider)
        width = self.leaves.width * wider
        offset = use.offset_share * width * np.minimum(self._steep * wider, STEEPEST)
        most = np.inf if self._turns else width
        found = volumes * self._masses * np.minimum(most, offset + self._way * missed)
        return np.asarray(found + self._patches * wider * width)

    def _excess(self, wider: float = 1.0) -> np.ndarray:
        return np.maximum(self._steep * wider - STEEPEST, 0.0)

    def w1_of_parents(self) -> np.ndarray:
        """The first indicator for the parent of each leaf, its sibling being like it."""
        return self._w1(2.0 ** (1 / (self.leaves.forest.dimension - 1)))

    def profile(self, part: float = 1.0, wider: float = 1.0) -> np.ndarray:
        """Cells that the second indicator wants smaller.

        Args:
            part: of the bounds on o + s - 1.
            wider: f: asks for cells f times as wide instead.
        """
        use = self._settings.indicators
        if not self._inverse_width_squared:
            return np.zeros(self.leaves.forest.count, dtype=bool)
        shape = self._missed * wider**2 + self._excess(wider)
        wide = self.leaves.width * wider > use.narrowest * self._settings.tolerance
        cluster = self._masses > use.cluster_mass / wider
        return np.asarray(cluster & wide & (shape > part * use.profile))

    def kernel(self, wider: float = 1.0) -> np.ndarray:
        """Cells that the third indicator wants smaller were they `wider` times as wide."""
        return np.asarray(self.leaves.width * wider > self._widest)

    @cached_property
    def _widest(self) -> np.ndarray:
        """How wide the third indicator lets each cell be: without bound at zero temperature."""
        x, use = self.leaves.centre, self._settings.indicators
        kernel = self._inverse_width_squared**-0.5 if self._inverse_width_squared else np.inf
        found = np.full(len(x), use.kernels[x.shape[1]] * kernel)
        for head in self._heads:
            if head.zero_temperature or head.beta == 0:
                continue
            score = np.linalg.norm(head.scores(x), axis=1)
            whole = head.beta * np.linalg.norm(head.key_query)
            # |beta B^T P_x|^2 = |beta B^T|^2 - |beta B^T x|^2, not below its rounding.
            change = np.sqrt(np.maximum(whole**2 - score**2, 1e-12 * whole**2))
            length = np.sqrt(np.maximum(1.0, score)) / change
            found = np.minimum(found, use.velocity_lengths * length)
        return found


def _patch_indicator(leaves: Leaves, patches: Patches) -> np.ndarray:
    """What the leaves leave open of the place of the mass of patches, in their widths.

    The sum over the cells of a patch of M min(1/2, w / 12 d), w the width of the leaf that shows
    it and d the least standard deviation of the patch: the slope of log rho is about 1 / d.
    """
    found = np.zeros(leaves.forest.count)
    for patch in patches:
        held = leaves.forest.holding(patch.middles)
        narrow = 12 * max(patch.widths[0], 1e-300)
        np.add.at(found, held, patch.masses * np.minimum(0.5, leaves.width[held] / narrow))
    return found
