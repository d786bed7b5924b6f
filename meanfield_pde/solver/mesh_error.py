"""What the mesh leaves open: estimates, cell by cell, that a mesh which follows the mass obeys.

With w the width of a cell, M its mass, g the least-squares gradient of log rho, and j its
neighbours at x_j, the reconstruction in the cell misses

    o = max over j of |log rho_j - log rho - <g, x_j - x>|  and of  |<g_j - g, x_j - x>|,

of second order in w where log rho is smooth; where the slope is steeper than the transport scheme
allows, s = max <g, x_f - x> > 1, the excess s - 1 is missed too.

1.  Mass.  The flux through a facet of velocity v is wrong by about v rho (o / 4 + s - 1), and an
    error in a flux is mass in the wrong place: it makes W_1 grow at the rate |v| M (...), for a
    time T after which a flow that gathers mass has forgotten it: T = 1 / |S|, S the symmetric part
    of V. What is saved and drawn is constant in each cell, which puts the mass of a slope w s / 6
    from its place on the average. In a cell that shows nothing of what it holds, a flow that
    gathers has the mass anywhere. So W_1 between the density and the exact one is about

        sum over cells of M min(w, w min(s, 1) / 6 + |v| T (o / 4 + s - 1)),

    which is kept below `resolution`. At zero temperature from t = 1 to 12 it was 1.6 to 9 times
    the true distance on the circle, and 0.9 to 1.8 times on the sphere.

    A flow that only turns the mass forgets nothing, and what leaves a cell late or early is not
    held up by the next. There T is one turn, 2 pi / |V|, without the bound w: the error grows by
    about `resolution` with each turn.

2.  Spots.  While a cluster stands it does not matter how wide it is, but it is stretched a
    hundredfold when it leaves, and then its shape decides when the metastable state ends. So at
    finite temperature a cell with more than `SPOT` of the mass has o + s - 1 below `SHAPE`, down to
    a width of `resolution` / `NARROWER`. Clusters narrower than the kernel are in cells that move
    instead (see `spots`). They are shown by the cells that stay: of a spot of standard deviation d
    min(1 / 2, w / 12 d) of their width is left open, which counts in the first estimate.

3.  Velocity. There is no mass to speak of in the tail that the clusters attend to, and yet it
    decides how long they stay. Where log rho bends, m(x) = grad log of the integral of exp(<w, y>)
    changes as soon as w = beta B^T x does by |w|^(1/2), that is over the distance

        l(x) = max(1, |w|)^(1/2) / |beta B^T P_x|,     |.| the root of the sum of squares,

    which is least about the repeller, where |B^T x| is. On wider cells velocities are interpolated
    past such changes, from the first steps on; errors of log rho then grow like clusters out of
    noise. So at finite temperature no cell is wider than `COARSEST` l, whatever the density, from
    the beginning to the end: nothing of it hangs on the steps, or on the mesh given. Nor is any
    wider than `KERNELS` kernels, |beta B|^(-1/2), or clusters that have left stop in a wrong place.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from meanfield_pde.attention.heads import Layer, heads_of, memory, pushing, sharpness
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.forest import Forest
from meanfield_pde.mesh.gradients import gradient_weights
from meanfield_pde.solver.transport import STEEPEST

_OPEN = 0.25  # of o, in the error of a flux
_FLAT = 1 / 6  # of w s, in the place of the mass
SPOT, SHAPE, NARROWER = 1e-3, 0.25, 2.0
COARSEST = 1.0
KERNELS = {2: 0.5, 3: 1.2}  # the first costs nothing; on the sphere cells are many
_EMPTY = 50.0  # a cell without mass counts as this far below the smallest log density


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
        return np.maximum(found, found[np.isfinite(found)].min() - _EMPTY)

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


class MeshError:
    """The estimates for one state.

    Attributes:
        leaves: the mesh.
        slopes: gradients of log rho in the cells, for a `Transfer`.
        misplaced: the first estimate, cell by cell; `total` is their sum.
    """

    def __init__(
        self,
        leaves: Leaves,
        log_masses: np.ndarray,
        speed: np.ndarray,
        layer: Layer,
        shown: tuple[float, np.ndarray | float] = (0.0, 0.0),
    ) -> None:
        """Estimate.

        Args:
            leaves: the mesh.
            log_masses: of all cells.
            speed: largest normal velocity through a facet, of all cells.
            layer: the attention, or the heads, that act.
            shown: the mass of spots, and what of it each cell leaves open, in its width.
        """
        elsewhere, self._shown = shown
        self.leaves = leaves
        self._heads = heads_of(layer)
        self._turns = bool(np.isinf(memory(layer)))
        turn = 2 * np.pi / max(pushing(layer), 1e-300)
        self._way = speed * (turn if self._turns else memory(layer))
        self._sharpness = sharpness(layer)
        self._masses = np.exp(log_masses - log_masses.max())
        self._masses /= self._masses.sum()
        self._masses *= 1 - elsewhere
        self._log_density = leaves.log_density(log_masses)
        self.slopes, self._missed, self._steep = leaves.variation(self._log_density)
        self.misplaced = self._misplaced(1.0)
        self.total = float(self.misplaced.sum())

    def _misplaced(self, wider: float) -> np.ndarray:
        """The first estimate, for this mesh or for cells so many times wider."""
        volumes = wider ** (self.leaves.forest.dimension - 1)
        missed = _OPEN * self._missed * wider**2 + self._excess(wider)
        width = self.leaves.width * wider
        shown = _FLAT * width * np.minimum(self._steep * wider, STEEPEST)
        most = np.inf if self._turns else width
        found = volumes * self._masses * np.minimum(most, shown + self._way * missed)
        return np.asarray(found + self._shown * wider * width)

    def _excess(self, wider: float = 1.0) -> np.ndarray:
        return np.maximum(self._steep * wider - STEEPEST, 0.0)

    def parents(self) -> np.ndarray:
        """The first estimate for the parent of each leaf, its sibling being like it."""
        return self._misplaced(2.0 ** (1 / (self.leaves.forest.dimension - 1)))

    def unresolved(self, resolution: float, part: float = 1.0, wider: float = 1.0) -> np.ndarray:
        """Cells that the second estimate wants smaller.

        Args:
            resolution: what W_1 of the mesh is kept below.
            part: of the bounds on o + s - 1.
            wider: asks for cells so many times wider instead.
        """
        if not self._sharpness:
            return np.zeros(self.leaves.forest.count, dtype=bool)
        shape = self._missed * wider**2 + self._excess(wider)
        width = self.leaves.width * wider
        spot = (self._masses > SPOT / wider) & (width > resolution / NARROWER)
        return np.asarray(spot & (shape > part * SHAPE))

    def blurred(self, wider: float = 1.0) -> np.ndarray:
        """Cells that the third estimate wants smaller, or would were they so many times wider."""
        return np.asarray(self.leaves.width * wider > self._widest)

    @cached_property
    def _widest(self) -> np.ndarray:
        """How wide the third estimate lets each cell be: as wide as can be at zero temperature."""
        x = self.leaves.centre
        kernel = self._sharpness**-0.5 if self._sharpness else np.inf
        found = np.full(len(x), KERNELS[x.shape[1]] * kernel)
        for head in self._heads:
            if head.zero_temperature or head.beta == 0:
                continue
            score = np.linalg.norm(head.scores(x), axis=1)
            whole = head.beta * np.linalg.norm(head.key_query)
            # |beta B^T P_x|^2 = |beta B^T|^2 - |beta B^T x|^2, not below its rounding.
            change = np.sqrt(np.maximum(whole**2 - score**2, 1e-12 * whole**2))
            found = np.minimum(found, COARSEST * np.sqrt(np.maximum(1.0, score)) / change)
        return found
