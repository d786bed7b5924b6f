"""A layer of several heads, and of terms beside them: the sum of their velocities.

    v(x) = P_x ( sum_h V_h m_h(x) + sum_k g_k(x) )

Each head has its own matrices and its own inverse temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.perceptron import Perceptron
from meanfield_pde.attention.term import Sources, TermBeside, VelocityTerm
from meanfield_pde.errors import InputError
from meanfield_pde.support.arguments import check_fields

# Layers whose rates are kept, of which a run has one or a few in use; an encoder's 12 to 24 are
# asked for in turn, and made anew.
_KNOWN = 16


@dataclass(frozen=True, eq=False)
class Heads:
    """Heads that act at once.

    Attributes:
        heads: one `Attention` for each head; where there are none but terms beside them, one that
            moves nothing stands for them.
        perceptron: acts beside them; None for none.
        others: further terms that act beside them, such as a `ConstantField`.
    """

    duration: ClassVar[float] = math.inf
    end: ClassVar[float] = math.inf

    heads: Sequence[Attention]
    perceptron: Perceptron | None = None
    others: Sequence[TermBeside] = ()

    def __post_init__(self) -> None:
        check_fields(self, "attention.")
        heads = tuple(self.heads)
        others = tuple(self.others)
        if self.perceptron is None:  # the first of the others that is one stands in its place
            first = [term for term in others if isinstance(term, Perceptron)][:1]
            object.__setattr__(self, "perceptron", first[0] if first else None)
            others = tuple(term for term in others if term not in first)
        object.__setattr__(self, "others", others)
        heads = heads or (_no_head(self.beside),)
        known = [term.dimension for term in (*heads, *self.beside)]
        dimensions = [d for d in known if d is not None]
        if len(set(dimensions)) > 1:
            raise InputError(
                "all heads, and the terms beside them, must have the same dimension, got d = "
                f"{dimensions}"
            )
        if len({head.normalise for head in heads}) > 1:
            raise InputError("all heads must have the same choice of attention.normalise")
        object.__setattr__(self, "heads", heads)

    @property
    def layers(self) -> tuple[Heads, ...]:
        """The layers of the schedule: this one."""
        return (self,)

    @property
    def beside(self) -> tuple[TermBeside, ...]:
        """The terms beside the heads."""
        first = () if self.perceptron is None else (self.perceptron,)
        return (*first, *self.others)

    @property
    def terms(self) -> tuple[VelocityTerm, ...]:
        """All terms of the layer."""
        return (*self.heads, *self.beside)

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
        return replace(self, heads=[head.with_beta(beta) for head in self.heads])

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
        sources = None if points is None or masses is None else Sources.of(points, masses)
        total = [term.push(x, sources, tolerance=tolerance) for term in self.beside]
        # At zero temperature that of a density, whose support is the whole sphere.
        means = (head.mean(x, points, masses, tolerance=tolerance) for head in self.heads)
        total += [mean @ head.value.T for head, mean in zip(self.heads, means, strict=True)]
        push = np.sum(total, axis=0)
        return np.asarray(push - (push * x).sum(axis=1, keepdims=True) * x)


Layer = Attention | Heads


def _no_head(terms: Sequence[TermBeside]) -> Attention:
    """A head with V = 0, in the dimension of these terms, where no other is given.

    At zero temperature: then velocities do not depend on the density if these terms do not.
    """
    known = [term.dimension for term in terms if term.dimension is not None]
    if not known:
        raise InputError(
            "attention.heads needs at least one head, or a term beside it that has a dimension"
        )
    return Attention(np.eye(known[0]), np.eye(known[0]), np.zeros((known[0],) * 2), math.inf)


def with_heads(layer: Layer, heads: Sequence[Attention]) -> Layer:
    """The layer with other heads."""
    return Heads(heads, None, layer.beside) if layer.beside or len(heads) > 1 else heads[0]


def push_beside(layer: Layer, x: np.ndarray, masses: np.ndarray | None = None) -> np.ndarray:
    """The sum of g over the terms beside the heads, at tokens ... x N x d.

    The density that a term depends on is that of the tokens of the same cloud, with these masses.
    """
    push = np.zeros_like(x)
    weights = np.ones(x.shape[-2]) if masses is None else masses
    for term in layer.beside:
        if term.depends_on_density:
            for i in np.ndindex(x.shape[:-2]):
                push[i] += term.push(x[i], Sources.of(x[i], weights))
        else:
            push += term.push(x)
    return push


def is_one_head(layer: Layer) -> bool:
    """Whether a layer is one head alone, of which alone there is a theory."""
    return len(layer.terms) == 1


@lru_cache(maxsize=_KNOWN)
def speed_bound(layer: Layer) -> float:
    """A bound on how fast a layer moves tokens where the softmax has its denominator."""
    return sum(term.speed_bound for term in layer.terms)


@lru_cache(maxsize=_KNOWN)
def inverse_kernel_width_squared(layer: Layer) -> float:
    """Largest beta |B| of heads at finite temperature, whose kernels are its -1/2 power wide."""
    finite = [head for head in layer.heads if not head.zero_temperature]
    return max(
        (head.beta * float(np.linalg.norm(head.query.T @ head.key, 2)) for head in finite),
        default=0.0,
    )


def kernel_width(layer: Layer) -> float:
    """Width of the narrowest kernel of heads at finite temperature, at most 1."""
    return max(1.0, inverse_kernel_width_squared(layer)) ** -0.5


@lru_cache(maxsize=_KNOWN)
def relaxation_time(layer: Layer) -> float:
    """How long errors in the place of mass are remembered; infinite where the flow only turns.

    A flow gathers at rates of the order |S|, S the symmetric part of V, and has then forgotten
    them. Where |S| is so small that a turn, 2 pi / |V|, is done before, nothing is forgotten.
    """
    value = np.sum([head.value for head in layer.heads], axis=0)
    contraction = float(np.linalg.norm(value + value.T, 2)) / 2
    contraction += sum(term.contraction for term in layer.beside)
    return 1 / contraction if contraction > speed_bound(layer) / (2 * np.pi) else np.inf
