"""What the theory predicts of each head: onto what it concentrates tokens, how fast, how long.

    B^T = K^T Q,   V = W_O W_V,   A = V B^T,   of rank d_head at most.

Where a head is as wide as its tokens and d is 2 or 3 this is `ProjectionLimit`, number by number.
Otherwise everything is computed from matrices of the size of the rank (`low_rank`, `levels`).
B is then singular: for tokens in its kernel all scores are equal, they attend to all tokens alike
at any temperature, and the zero-temperature mean B^T x / |B^T x| has no meaning. There is a limit,
here, where the leading eigenvalue of A is real, simple, positive and strictly ahead of all others,
the zeros of the kernel among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from meanfield_pde.attention.head import Attention
from meanfield_pde.audit.levels import Levels, log_beta_time
from meanfield_pde.audit.low_rank import Factor, LowRank, Spectrum, spectrum
from meanfield_pde.audit.weights import Encoder, HeadWeights
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.spectrum import format_eigenvalues

# What `ProjectionLimit` is proved and tested for.
LARGEST_PROVED = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadAudit:
    """One head. All times are in layers; what needs a limit is None where there is none.

    Attributes:
        layer, head: from 0.
        beta: inverse temperature, as in the equation.
        eigenvalues: of A by decreasing real part; one zero stands for the kernel.
        kind: of the dominant eigenspace, see `EigenSpace`; "kernel" where that of A is ahead.
        kernel: dimension of the kernel of A that the one zero stands for.
        value, gap: the largest real part, and how far it is ahead of the next.
        basis: d x dim E, orthonormal, or None.
        left: dim E x d, left eigenvectors, or None.
        limit: whether there is a limit.
        reason: why there is none.
        note: what makes the answer sensitive.
        rate: c, at which clusters contract.
        escape_rate: c', at which tokens leave the next level.
        unsettled_rate: of the mass that has not reached E.
        tail_rate: r, of the tail that clusters attend to.
        speed: the largest |B^T e| on E; beta times it is the effective inverse temperature.
        lifetime_per_beta: of the metastable state of the density.
        terminal_kind: of the dominant eigenspace of V (or -V, where clusters see their antipode).
        terminal_reason: why V has none.
        angle_to_terminal: the largest angle between E and it.
        stable_rank: of V, |V|_F^2 / |V|^2.
    """

    layer: int
    head: int
    beta: float
    eigenvalues: np.ndarray
    kind: str
    kernel: int
    value: float
    gap: float
    basis: np.ndarray | None
    left: np.ndarray | None = field(repr=False)
    limit: bool
    reason: str | None
    note: str | None
    rate: float | None = None
    escape_rate: float | None = None
    unsettled_rate: float | None = None
    tail_rate: float | None = None
    speed: float | None = None
    lifetime_per_beta: float | None = None
    terminal_kind: str
    terminal_reason: str | None
    angle_to_terminal: float | None
    stable_rank: float

    @property
    def dimension(self) -> int:
        """Dimension of E, zero if there is no dominant eigenspace."""
        return 0 if self.basis is None else int(self.basis.shape[1])

    @property
    def lifetime(self) -> float | None:
        """Predicted lifetime of the density's metastable state."""
        slope = self.lifetime_per_beta
        if slope is None:
            return None
        return math.inf if math.isinf(slope) else 0.0 if slope == 0 else self.beta * slope

    @property
    def log_beta_time(self) -> float | None:
        """Predicted time of concentration, of order log beta."""
        if self.rate is None or self.unsettled_rate is None:
            return None
        return log_beta_time(self.beta, min(self.rate, self.unsettled_rate))

    @property
    def effective_beta(self) -> float | None:
        """Beta |B^T e|, which does not depend on how B and beta share a factor."""
        return None if self.speed is None else self.beta * self.speed

    @property
    def within_a_layer(self) -> bool | None:
        """Whether concentration takes less than a layer: c is above `concentration_line`."""
        if self.rate is None or self.effective_beta is None:
            return None
        return self.rate >= concentration_line(self.effective_beta)

    def token_lifetime(self, count: int) -> float | None:
        """Predicted lifetime with N tokens, log(N) / r."""
        if self.tail_rate is None:
            return None
        return math.inf if self.tail_rate == 0 else math.log(count) / self.tail_rate


def concentration_line(effective_beta: float) -> float:
    """The rate c from which on concentration takes less than a layer, log(b / log(b + 1)) / 2."""
    return log_beta_time(effective_beta, 1.0)


def audit_heads(encoder: Encoder) -> Iterator[HeadAudit]:
    """All heads of an encoder, layer by layer."""
    for layer in range(encoder.layers):
        for number, head in enumerate(encoder.layer(layer)):
            yield audit_head(head, layer, number)


def audit_head(weights: HeadWeights, layer: int = 0, head: int = 0) -> HeadAudit:
    """What is predicted of one head."""
    if weights.dimension <= min(LARGEST_PROVED, len(weights.query)):
        return _small(weights, layer, head)
    return _thin(weights, layer, head)


def _small(weights: HeadWeights, layer: int, head: int) -> HeadAudit:
    """A head on the circle or the sphere, as `meanfield-pde limit` has it."""
    attention = Attention(
        weights.query,
        weights.key,
        weights.dense_value,
        min(weights.beta, np.finfo(float).max),  # an Attention refuses infinity for singular B
    )
    found = ProjectionLimit(attention)
    terminal, exists = found.terminal, found.exists
    singular = np.linalg.svd(attention.value, compute_uv=False)
    return HeadAudit(
        layer=layer,
        head=head,
        beta=weights.beta,
        eigenvalues=found.eigenvalues,
        kind=found.eigenspace.kind,
        kernel=0,
        value=found.eigenspace.value,
        gap=found.gap,
        basis=found.basis if exists else None,
        left=found.left if exists else None,
        limit=exists,
        reason=found.reason,
        note=found.eigenspace.note,
        rate=found.contraction_rate if exists else None,
        escape_rate=found.escape_rate if exists else None,
        unsettled_rate=found.unsettled_rate if exists else None,
        tail_rate=found.tail_rate if exists else None,
        speed=float(np.linalg.norm(attention.key_query @ found.basis, 2)) if exists else None,
        lifetime_per_beta=found.lifetime_per_beta if exists else None,
        terminal_kind=terminal.kind,
        terminal_reason=terminal.reason,
        angle_to_terminal=found.terminal_angle if exists and terminal.exists else None,
        stable_rank=float((singular**2).sum() / singular[0] ** 2) if singular[0] > 0 else 0.0,
    )


def products(weights: HeadWeights) -> tuple[LowRank, LowRank, LowRank]:
    """A = V B^T, B^T = K^T Q and V as matrices of low rank."""
    query, key = Factor.of(weights.query.T), Factor.of(weights.key.T)
    core = key.small @ query.small.T
    key_query = LowRank.of(key.columns, core, query.columns)
    if weights.output is None:
        identity = np.eye(weights.dimension)
        value = LowRank.of(identity, weights.value, identity)
        seen = Factor.of(weights.value @ key.columns)
        return LowRank.of(seen.columns, seen.small @ core, query.columns), key_query, value
    output, inner = Factor.of(weights.output), Factor.of(weights.value.T)
    value_core = output.small @ inner.small.T
    value = LowRank.of(output.columns, value_core, inner.columns)
    between = value_core @ (inner.columns.T @ key.columns) @ core
    return LowRank.of(output.columns, between, query.columns), key_query, value


def _thin(weights: HeadWeights, layer: int, head: int) -> HeadAudit:
    drift, key_query, value = products(weights)
    found = spectrum(drift, value.norm * key_query.norm)
    reason = found.reason
    if found.basis is not None and len(weights.query) < weights.dimension and found.dimension > 1:
        reason = (
            f"the leading eigenvalue {found.value:.6g} is repeated, E has dimension "
            f"{found.dimension} (eigenvalues {format_eigenvalues(found.eigenvalues[:6])}, ...)"
        )
    elif found.basis is not None and key_query.kernel and len(weights.query) >= weights.dimension:
        reason = f"B = query^T key is singular, its kernel has dimension {key_query.kernel}"
    exists = found.basis is not None and reason is None
    antipodal = found.basis is not None and _attends_to_antipode(found.basis, key_query)
    terminal = spectrum(value.negative if antipodal else value, 0.0)
    rates = _rates(found, key_query) if exists else {}
    return HeadAudit(
        layer=layer,
        head=head,
        beta=weights.beta,
        eigenvalues=found.eigenvalues,
        kind=found.kind,
        kernel=drift.kernel,
        value=found.value,
        gap=found.gap,
        basis=found.basis,
        left=found.left,
        limit=exists,
        reason=reason,
        note=found.note,
        terminal_kind=terminal.kind,
        terminal_reason=None if terminal.kind == "kernel" else terminal.reason,
        angle_to_terminal=None if found.basis is None else terminal.largest_angle(found.basis),
        stable_rank=value.stable_rank,
        **rates,
    )


def _rates(found: Spectrum, key_query: LowRank) -> dict[str, float]:
    assert found.basis is not None
    seen = key_query.core @ (key_query.corange.T @ found.basis)
    speed = float(np.linalg.norm(seen, 2))
    behind = Levels(found, key_query)
    levels = behind.levels
    return {
        "speed": speed,
        "rate": found.gap / speed,
        "escape_rate": levels[0].escape_rate if levels else math.inf,
        "unsettled_rate": min((level.unsettled_rate for level in levels), default=math.inf),
        "tail_rate": behind.tail_rate,
        "lifetime_per_beta": behind.lifetime_per_beta,
    }


def _attends_to_antipode(basis: np.ndarray, key_query: LowRank) -> bool:
    """Whether <B^T e, e> < 0 on E, as in `ProjectionLimit.terminal`."""
    inside = (basis.T @ key_query.range) @ key_query.core @ (key_query.corange.T @ basis)
    return bool(np.trace(inside) < 0)
