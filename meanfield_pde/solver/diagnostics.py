"""What a row of the history says about a density: mass, extremes, moments, energy, Lyapunov."""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.attention.head import Attention
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.geometry import AXES
from meanfield_pde.solver.velocity import SharedSum
from meanfield_pde.theory.projection_limit import ProjectionLimit


class Diagnostics:
    """Functionals of the density, exact for one that is constant in each cell.

    With layers, those of the layer that acts up to the time in question.

    energy      (1 / 2 beta) ∬ exp(beta <x, B y>) dmu dmu, and its logarithm, which does not
                overflow; not defined (nan) at beta = 0 and at zero temperature
    lyapunov    ∫ dist(x, E)^2 dmu with E the dominant eigenspace of A = V B^T, if there is one
    """

    def __init__(self, attention: Attention, volumes: FiniteVolumes, tolerance: float) -> None:
        self.attention = attention
        self._dimension = d = volumes.dimension
        own = slice(0, volumes.owned)
        self._volume = volumes.gather(volumes.volume[own])
        self._mean = volumes.gather(volumes.cell_mean[own])
        self._pairs = [(i, j) for i in range(d) for j in range(i, d)]
        first, second = np.array(self._pairs).T

        def products(points: np.ndarray) -> np.ndarray:
            return points[:, first] * points[:, second]

        volume = volumes.volume[own, None]
        self._second = volumes.gather(volumes.integrate(products) / volume)
        self._square_distance: np.ndarray | None = None
        limit = ProjectionLimit(attention)
        if limit.dimension == d:  # every point lies in E
            self._square_distance = np.zeros(volumes.global_cells)
        elif limit.exists:
            integral = volumes.integrate(lambda x: limit.distance_to_eigenspace(x) ** 2)
            self._square_distance = volumes.gather(integral / volumes.volume[own])
        self._energy_sum: SharedSum | None = None
        if 0 < attention.beta < math.inf:
            centres = volumes.gather(volumes.centre[own])
            # <x, B y> = <B^T x, y>: the log of the inner integral is the log partition at x.
            scores = attention.scores(centres)
            self._energy_sum = SharedSum(volumes, centres, centres, scores, tolerance)

    def columns(self) -> list[str]:
        """Names of the numbers that `row` gives."""
        d = self._dimension
        return [
            "mass",
            "min_density",
            "max_density",
            *(f"mean_{AXES[i]}" for i in range(d)),
            *(f"second_{AXES[i]}{AXES[j]}" for i, j in self._pairs),
            "energy",
            "lyapunov",
            "log_energy",
        ]

    def row(self, masses: np.ndarray) -> dict[str, float]:
        """The functionals for the masses of all cells, in input order. Collective."""
        density = masses / self._volume
        log_energy = self._log_energy(masses)
        lyapunov = math.nan if self._square_distance is None else masses @ self._square_distance
        with np.errstate(over="ignore"):
            energy = np.exp(log_energy)
        values = [
            masses.sum(),
            density.min(),
            density.max(),
            *(masses @ self._mean),
            *(masses @ self._second),
            energy,
            lyapunov,
            log_energy,
        ]
        return dict(zip(self.columns(), map(float, values), strict=True))

    def _log_energy(self, masses: np.ndarray) -> float:
        if self._energy_sum is None:
            return math.nan
        with np.errstate(divide="ignore"):
            log_masses = np.log(masses)
        log_inner = self._energy_sum(log_masses)[:, -1]
        exponent = log_masses + log_inner
        largest = exponent.max()
        total = largest + math.log(np.exp(exponent - largest).sum())
        return total - math.log(2 * self.attention.beta)
