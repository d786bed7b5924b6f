"""The right-hand side: drifts that make fluxes through facets, and the transport by them.

    d/dt M_c = - sum over facets f of c of q_f rho_f,     q_f = sum over drifts of their q_f

Noise is no flux of this kind: it is solved implicitly, between transports (see `evolution`).

`Equation` says what acts when: it makes the right-hand side of a layer when that layer begins. A
new term of the velocity is a `Drift`, added in `Equation.right_hand_side`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from meanfield_pde.attention.heads import Layer, heads_of, perceptron_of
from meanfield_pde.attention.layers import AttentionLike, layers_of
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.diffusion import Diffusion
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.spots import NONE, Field, Spots
from meanfield_pde.solver.transport import SCHEMES, Transport
from meanfield_pde.solver.velocity import MeanField, PerceptronField


class Drift(Protocol):
    """A velocity field, given by its fluxes q_f through the facets of this rank."""

    @property
    def speed(self) -> float:
        """A bound on the rates at which it makes densities grow, such as |V|."""

    @property
    def fixed(self) -> bool:
        """Whether its fluxes are the same whatever the masses."""

    def flux(self, masses: np.ndarray, spots: Spots = NONE) -> np.ndarray:
        """Fluxes for the masses of own cells, and spots beside them. Collective."""

    def flux_from_log(self, log_masses: np.ndarray, spots: Spots = NONE) -> np.ndarray:
        """The same for log masses, which may be below the range of doubles. Collective."""

    def field(self, log_masses: np.ndarray, spots: Spots) -> Field:
        """The velocity at any points. Collective."""


class RightHandSide:
    """What acts during a layer.

    Attributes:
        layer: the attention, or the heads, of the layer.
        transport: what carries the masses through the facets.
        fixed: whether the fluxes are the same whatever the masses.
    """

    def __init__(self, layer: Layer, drifts: Sequence[Drift], transport: Transport) -> None:
        self.layer = layer
        self.transport = transport
        self._drifts = tuple(drifts)
        self.fixed = all(drift.fixed for drift in drifts)

    @property
    def speed(self) -> float:
        """The sum of the speeds of all drifts."""
        return sum(drift.speed for drift in self._drifts)

    def flux(self, masses: np.ndarray, spots: Spots = NONE) -> np.ndarray:
        """Fluxes of all drifts, for the masses of own cells and spots beside them. Collective."""
        return _total([drift.flux(masses, spots) for drift in self._drifts])

    def flux_from_log(self, log_masses: np.ndarray, spots: Spots = NONE) -> np.ndarray:
        """The same for log masses. Collective."""
        return _total([drift.flux_from_log(log_masses, spots) for drift in self._drifts])

    def field(self, log_masses: np.ndarray, spots: Spots) -> Field:
        """The velocity by all drifts at any points. Collective."""
        fields = [drift.field(log_masses, spots) for drift in self._drifts]
        return lambda x: _total([field(x) for field in fields])


class Equation:
    """The equation on a mesh: attention (or layers), mesh and settings of the solver.

    Attributes:
        attention: what acts, layer by layer.
        volumes: the finite volumes of the mesh.
        settings: scheme and tolerance.
        transport: shared by all layers.
        noise: strength of the noise.
        tilted: whether the attention sum knows the slope of log rho in each cell, as on meshes that
            follow the mass.
        told: whether the method of the attention sum was logged before, on another mesh.
    """

    def __init__(
        self,
        attention: AttentionLike,
        volumes: FiniteVolumes,
        settings: SolverCase,
        noise: float = 0.0,
        transport: Transport | None = None,
        *,
        tilted: bool = False,
    ) -> None:
        self.attention = attention
        self.volumes = volumes
        self.settings = settings
        self.noise = noise
        self.tilted = tilted
        self.told = False
        self.transport = transport or Transport(volumes, SCHEMES[settings.scheme])

    def at(self, attention: AttentionLike) -> Equation:
        """The same with another attention, such as that at zero temperature."""
        return Equation(
            attention,
            self.volumes,
            self.settings,
            self.noise,
            self.transport,
            tilted=self.tilted,
        )

    def on(self, volumes: FiniteVolumes) -> Equation:
        """The same on another mesh."""
        return Equation(self.attention, volumes, self.settings, self.noise, tilted=self.tilted)

    def sloped(self, volumes: FiniteVolumes) -> Equation:
        """The same on a mesh that follows the mass, where cells are known by their slopes too."""
        return Equation(self.attention, volumes, self.settings, self.noise, tilted=True)

    @cached_property
    def diffusion(self) -> Diffusion | None:
        """The noise on this mesh; None without noise."""
        return Diffusion(self.volumes, self.noise) if self.noise else None

    @property
    def first_layer(self) -> Layer:
        """What acts at first, and always if there are no layers."""
        return layers_of(self.attention)[0]

    def right_hand_side(self, layer: Layer) -> RightHandSide:
        """What acts during a layer."""
        tolerance = self.settings.tolerance
        drifts: list[Drift] = [
            MeanField(head, self.volumes, tolerance, tilted=self.tilted, told=self.told)
            for head in heads_of(layer)
        ]
        perceptron = perceptron_of(layer)
        if perceptron is not None:
            drifts.append(PerceptronField(perceptron, self.volumes))
        return RightHandSide(layer, drifts, self.transport)


def _total(fluxes: list[np.ndarray]) -> np.ndarray:
    total = fluxes[0]
    for flux in fluxes[1:]:
        total = total + flux
    return total
