"""A layer of several heads, and of a perceptron beside them: the sum of their velocities.

    v(x) = P_x ( sum_h V_h m_h(x) + g(x) )

Each head has its own matrices and its own inverse temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.perceptron import Perceptron
from meanfield_pde.errors import InputError

_KNOWN = 16  # layers whose rates are kept


@dataclass(frozen=True, eq=False)
class Heads:
    """Heads that act at once.

    Attributes:
        heads: one `Attention` for each head.
        perceptron: acts beside them; None for none.
    """

    heads: Sequence[Attention]
    perceptron: Perceptron | None = None

    def __post_init__(self) -> None:
        heads = tuple(self.heads)
        if not heads:
            raise InputError("attention.heads needs at least one head")
        dimensions = [head.dimension for head in heads]
        if self.perceptron is not None:
            dimensions.append(self.perceptron.dimension)
        if len(set(dimensions)) > 1:
            raise InputError(
                f"all heads, and the perceptron, must have the same dimension, got d = {dimensions}"
            )
        if len({head.normalise for head in heads}) > 1:
            raise InputError("all heads must have the same choice of attention.normalise")
        object.__setattr__(self, "heads", heads)

    @property
    def dimension(self) -> int:
        """Dimension d of the space; tokens live on the sphere S^(d-1)."""
        return self.heads[0].dimension

    @property
    def beta(self) -> float:
        """Inverse temperature of all heads; nan where they differ."""
        betas = {head.beta for head in self.heads}
        return betas.pop() if len(betas) == 1 else math.nan

    @property
    def normalise(self) -> bool:
        """Whether the softmax of all heads has its denominator."""
        return self.heads[0].normalise

    @property
    def zero_temperature(self) -> bool:
        """Whether beta is infinite for one of the heads."""
        return any(head.zero_temperature for head in self.heads)

    def with_beta(self, beta: float) -> Heads:
        """The same matrices, all heads at another inverse temperature."""
        return Heads([head.with_beta(beta) for head in self.heads], self.perceptron)

    def velocity(
        self,
        x: np.ndarray,
        points: np.ndarray | None = None,
        masses: np.ndarray | None = None,
        *,
        tolerance: float = 1e-12,
    ) -> np.ndarray:
        """Tangential velocity v(x) at each row of x; arguments as for `Attention.mean`."""
        x = np.atleast_2d(np.asarray(x, dtype=float))
        total = sum(head.velocity(x, points, masses, tolerance=tolerance) for head in self.heads)
        if self.perceptron is not None:
            total += self.perceptron.velocity(x)
        return np.asarray(total)


Layer = Attention | Heads


def heads_of(layer: Layer) -> tuple[Attention, ...]:
    """The heads of a layer, of which a single attention is one."""
    return tuple(layer.heads) if isinstance(layer, Heads) else (layer,)


def perceptron_of(layer: Layer) -> Perceptron | None:
    """The perceptron of a layer, if there is one."""
    return layer.perceptron if isinstance(layer, Heads) else None


def with_perceptron(layer: Layer, perceptron: Perceptron | None) -> Layer:
    """The same heads, and this perceptron beside them."""
    if perceptron is None and len(heads_of(layer)) == 1:
        return heads_of(layer)[0]
    return Heads(heads_of(layer), perceptron)


@lru_cache(maxsize=_KNOWN)
def pushing(layer: Layer) -> float:
    """A bound on how fast a layer moves tokens where the softmax has its denominator."""
    perceptron = perceptron_of(layer)
    speed = sum(float(np.linalg.norm(head.value, 2)) for head in heads_of(layer))
    return speed + (perceptron.speed if perceptron else 0.0)


@lru_cache(maxsize=_KNOWN)
def sharpness(layer: Layer) -> float:
    """Largest beta |B| of heads at finite temperature, whose kernels are its -1/2 power wide."""
    finite = [head for head in heads_of(layer) if not head.zero_temperature]
    return max(
        (head.beta * float(np.linalg.norm(head.query.T @ head.key, 2)) for head in finite),
        default=0.0,
    )


@lru_cache(maxsize=_KNOWN)
def memory(layer: Layer) -> float:
    """How long errors in the place of mass are remembered; infinite where the flow only turns.

    A flow gathers at rates of the order |S|, S the symmetric part of V, and has then forgotten
    them. Where |S| is so small that a turn, 2 pi / |V|, is done before, nothing is forgotten.
    """
    perceptron = perceptron_of(layer)
    value = np.sum([head.value for head in heads_of(layer)], axis=0)
    gathering = float(np.linalg.norm(value + value.T, 2)) / 2
    gathering += perceptron.speed if perceptron else 0.0
    return 1 / gathering if gathering > pushing(layer) / (2 * np.pi) else np.inf
