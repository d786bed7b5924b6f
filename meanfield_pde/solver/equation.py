"""The right-hand side: terms that make fluxes through facets, and the transport by them.

    d/dt M_c = - sum over facets f of c of q_f rho_f,     q_f = sum over terms of their q_f

Noise is no flux of this kind: it is solved implicitly, between transports (see `controller`).

`Equation` says what acts when: it makes the right-hand side of a layer when that layer begins, with
the fluxes of its terms (`attention.term`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from meanfield_pde.amr.patches import NONE, Field, Patches
from meanfield_pde.attention.heads import Layer
from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.diffusion import Diffusion
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.transport import Transport
from meanfield_pde.solver.velocity import MeanField, PointwiseFlux


class TermFlux(Protocol):
    """A term of the velocity on a mesh: its fluxes through the facets of this rank.

    They are in parts, facets x points: q_f is the sum of those of its points.
    """

    @property
    def speed(self) -> float:
        """A bound on the rates at which it makes densities grow, such as |V|."""

    @property
    def fixed(self) -> bool:
        """Whether its fluxes are the same whatever the masses."""

    @property
    def method(self) -> str:
        """How its fluxes are computed, for the log; empty if there is nothing to say."""

    def facet_flux(self, log_masses: np.ndarray, patches: Patches = NONE) -> np.ndarray:
        """Fluxes for the log masses of own cells, and patches beside them. Collective."""

    def field(self, log_masses: np.ndarray, patches: Patches) -> Field:
        """The velocity at any points. Collective."""

    def vertex_velocity(self, log_masses: np.ndarray, patches: Patches) -> np.ndarray:
        """The velocity at all vertices. Collective."""


class RightHandSide:
    """What acts during a layer.

    Attributes:
        layer: the attention, or the heads, of the layer.
        transport: what carries the masses through the facets.
        fixed: whether the fluxes are the same whatever the masses.
        even: whether both points of an edge are given the mean of their fluxes.
    """

    def __init__(
        self, layer: Layer, terms: Sequence[TermFlux], transport: Transport, *, even: bool = False
    ) -> None:
        self.layer = layer
        self.even = even
        self.transport = transport
        self.terms = tuple(terms)
        self.fixed = all(term.fixed for term in terms)

    @property
    def speed(self) -> float:
        """The sum of the speeds of all terms."""
        return sum(term.speed for term in self.terms)

    def facet_flux(self, log_masses: np.ndarray, patches: Patches = NONE) -> np.ndarray:
        """Fluxes of all terms, for the log masses of own cells and patches. Collective.

        Log masses may be below the range of doubles; -inf stands for an empty cell.
        """
        flux = _total([term.facet_flux(log_masses, patches) for term in self.terms])
        return np.tile(flux.mean(axis=1, keepdims=True), flux.shape[1]) if self.even else flux

    def field(self, log_masses: np.ndarray, patches: Patches) -> Field:
        """The velocity by all terms at any points. Collective."""
        fields = [term.field(log_masses, patches) for term in self.terms]
        return lambda x: _total([field(x) for field in fields])

    def vertex_velocity(self, log_masses: np.ndarray, patches: Patches) -> np.ndarray:
        """The velocity by all terms at all vertices. Collective."""
        return _total([term.vertex_velocity(log_masses, patches) for term in self.terms])


class Equation:
    """The equation on a mesh: attention (or layers), mesh and settings of the solver.

    Attributes:
        attention: what acts, layer by layer.
        volumes: the finite volumes of the mesh.
        settings: scheme and tolerance.
        transport: shared by all layers.
        noise: strength of the noise.
    """

    def __init__(
        self,
        attention: AttentionLike,
        volumes: FiniteVolumes,
        settings: SolverCase,
        noise: float = 0.0,
        transport: Transport | None = None,
    ) -> None:
        self.attention = attention
        self.volumes = volumes
        self.settings = settings
        self.noise = noise
        self.transport = transport or Transport(volumes, settings.scheme_of(noise=noise > 0))

    def at(self, attention: AttentionLike) -> Equation:
        """The same with another attention, such as that at zero temperature."""
        return Equation(attention, self.volumes, self.settings, self.noise, self.transport)

    def on(self, volumes: FiniteVolumes) -> Equation:
        """The same on another mesh."""
        return Equation(self.attention, volumes, self.settings, self.noise)

    @cached_property
    def diffusion(self) -> Diffusion | None:
        """The noise on this mesh; None without noise."""
        return Diffusion(self.volumes, self.noise) if self.noise else None

    @property
    def first_layer(self) -> Layer:
        """What acts at first, and always if there are no layers."""
        return self.attention.layers[0]

    def right_hand_side(self, layer: Layer, *, noise: bool = False) -> RightHandSide:
        """What acts during a layer.

        Args:
            layer: the layer.
            noise: whether there is noise, though this equation has none.

        Noise has one density on each facet, and where it balances transport so must that: the
        errors that this makes cancel. Order parameter of a stationary state on the sphere (beta =
        5, sigma = 3.15, exactly 0.91347) with 320, 1,280 and 5,120 cells: 0.9062, 0.9133, 0.9137
        with the mean of both velocities, 0.9162, 0.9163, 0.9145 with each.
        """
        tolerance, noise = self.settings.tolerance, noise or bool(self.noise)
        terms: list[TermFlux] = [
            MeanField(head, self.volumes, tolerance, noise=noise) for head in layer.heads
        ]
        terms += [
            PointwiseFlux(term, self.volumes, tolerance, noise=noise) for term in layer.beside
        ]
        return RightHandSide(layer, terms, self.transport, even=noise)


def _total(parts: list[np.ndarray]) -> np.ndarray:
    total = parts[0]
    for one in parts[1:]:
        total = total + one
    return total
