"""Initial densities known at every point: integrated over cells, sampled by rejection."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.initial.base import Content, InitialDensity
from meanfield_pde.mesh.geometry import Integrand, normalised
from meanfield_pde.support.checks import LEAST_MASS

if TYPE_CHECKING:
    from meanfield_pde.mesh.finite_volume import FiniteVolumes

# Points at which a density is looked at, 0.0015 rad apart on the circle and 0.025 on the sphere: a
# normal peak of which rejection accepts one candidate in 1,000 has a width of 0.0025 and 0.045.
PROBES = {2: 4096, 3: 20480}


@dataclass(frozen=True)
class RejectionSettings:
    """How tokens are drawn by rejection.

    Attributes:
        candidates: of one round, 1.6 MB of points.
        most_rounds, least_share: rounds after which a density is abandoned if less than this share
            of the candidates was accepted: a million tokens of such a density take ten minutes.
        headroom: how far a density may exceed its largest value at the probes before its tokens are
            drawn anew; as many more candidates are refused.
    """

    candidates: int = 65_536
    most_rounds: int = 2_000
    least_share: float = 1e-3
    headroom: float = 1.05


class PointwiseDensity(InitialDensity):
    """A density with respect to arc length or area, given by its values."""

    @abstractmethod
    def density(self, points: np.ndarray) -> np.ndarray:
        """Values at the rows of points (N x d)."""

    def length_scale(self, dimension: int) -> float:
        """The angle over which it changes most, the width of its peaks; infinity if it has none."""
        return math.inf

    def peaks(self, dimension: int) -> np.ndarray:
        """The points where it is concentrated, which a quadrature must not miss, as rows."""
        return np.empty((0, dimension))

    def cell_masses(self, volumes: FiniteVolumes) -> np.ndarray:
        """Integrals over this rank's own cells. Collective."""
        d = volumes.dimension
        return volumes.integrate(self.density, self.length_scale(d), self.peaks(d))

    def exact(self, dimension: int) -> Content:
        """The values, and where a quadrature has to look."""
        return Content(self.density, self.length_scale(dimension), self.peaks(dimension))

    def sample(self, generator: np.random.Generator, count: int, dimension: int) -> np.ndarray:
        """Tokens by rejection."""
        return sample_by_rejection(self.density, generator, count, dimension)


def sample_by_rejection(
    density: Integrand,
    generator: np.random.Generator,
    count: int,
    dimension: int,
    settings: RejectionSettings | None = None,
) -> np.ndarray:
    """Independent tokens: a uniform candidate x is accepted with probability rho(x) / bound."""
    use = settings or RejectionSettings()
    bound = use.headroom * float(_checked(density, probes(dimension)).max())
    if not bound > 0:
        raise InputError("the initial density is zero wherever it was tried")
    if bound < LEAST_MASS:
        raise InputError(
            f"the initial density is below {LEAST_MASS:g} wherever it was tried, where doubles "
            "lose their digits; scale it, its mass does not matter"
        )
    accepted: list[np.ndarray] = []
    for tried in itertools.count(1):
        candidates = uniform_points(generator, use.candidates, dimension)
        values = _checked(density, candidates)
        if values.max() > bound:
            # What was accepted so far is short of the peak that the probes missed.
            bound = use.headroom * float(values.max())
            accepted.clear()
            continue
        accepted.append(candidates[generator.random(use.candidates) * bound < values])
        drawn = sum(map(len, accepted))
        if drawn >= count:
            return np.concatenate(accepted)[:count]
        if tried >= use.most_rounds and drawn < use.least_share * tried * use.candidates:
            break
    raise InputError(
        f"initial.density is too concentrated to draw {count} tokens from: only {drawn} of "
        f"{tried * use.candidates} candidates were accepted; give it as kind 'von-mises'"
    )


def _checked(density: Integrand, points: np.ndarray) -> np.ndarray:
    values = density(points)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise InputError("the initial density must be finite and >= 0 everywhere")
    return values


def uniform_points(generator: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    """Independent points, uniform on the sphere of any dimension."""
    return normalised(generator.normal(size=(count, dimension)))


@lru_cache(maxsize=4)
def probes(dimension: int) -> np.ndarray:
    """Points all over the circle (equal angles) or the sphere (Fibonacci lattice), and the axes."""
    if dimension not in PROBES:
        raise InputError(
            f"initial densities are functions on the circle or the sphere, but the tokens live in "
            f"dimension {dimension}; give kind 'uniform', 'von-mises' or 'poisson-kernel'"
        )
    count = PROBES[dimension]
    i = np.arange(0.5, count)
    axes = np.vstack([np.eye(dimension), 0 - np.eye(dimension)])
    if dimension == 2:
        angle = 2 * math.pi / count * i
        return np.vstack([axes, np.column_stack([np.cos(angle), np.sin(angle)])])
    z = 1 - 2 / count * i
    radius, angle = np.sqrt(1 - z * z), i * math.pi * (3 - math.sqrt(5))
    return np.vstack([axes, np.column_stack([radius * np.cos(angle), radius * np.sin(angle), z])])
