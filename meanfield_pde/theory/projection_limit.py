"""The limit of the zero-temperature flow: the push-forward under a spectral projection.

    x' = P_x A x / |B^T x|,  A = V B^T:      x(t) -> Pi x(0) / |Pi x(0)|      as t -> infinity

where Pi projects on the dominant eigenspace E of A. At finite beta the density follows this for a
time that grows with beta (the metastable phase), and then the spectrum of V rules:

    W_p(mu_t^beta, limit)  <=  C1 sqrt(log(beta + 1) / beta) exp(C t)  +  C2 exp(-r t).

`ProjectionLimit` holds the projection and the rates and times that follow from the spectrum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import subspace_angles

from meanfield_pde.attention.head import SINGULAR, Attention
from meanfield_pde.attention.heads import is_one_head
from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.errors import InputError
from meanfield_pde.mesh.geometry import norm
from meanfield_pde.support.arguments import check_fields
from meanfield_pde.support.checks import points_of, real
from meanfield_pde.support.plain import plain
from meanfield_pde.theory.report import QUANTITIES, report
from meanfield_pde.theory.saddles import ALIGNED, Saddle, Tail, points_on_sphere, saddles
from meanfield_pde.theory.spectrum import EigenSpace, dominant_eigenspace, format_eigenvalues
from meanfield_pde.wasserstein.measure import Measure


@dataclass(frozen=True, eq=False)
class ProjectionLimit:
    """The projection map of an attention, with the rates of the approach to it.

    Where there is no limit `exists` is False, `reason` says why, and what depends on the limit
    raises InputError with that reason.

    Attributes:
        attention: the matrices and beta. Layers have no limit, unless there is one layer only, nor
            have several heads (see `fixed_points`).
        first: the attention, or the first head of the first layer.
        eigenspace: the dominant eigenspace of the drift matrix A = V B^T.
        singular_values: of B, by decreasing size.
        reason: why there is no limit, or None.
    """

    attention: AttentionLike
    first: Attention = field(init=False, repr=False)
    eigenspace: EigenSpace = field(init=False)
    singular_values: np.ndarray = field(init=False)
    reason: str | None = field(init=False)

    def __post_init__(self) -> None:
        check_fields(self)
        layers = self.attention.layers
        attention = layers[0].heads[0]
        singular = np.linalg.svd(attention.key_query, compute_uv=False)
        eigenspace = dominant_eigenspace(attention.drift, scale=_scale(attention))
        reason = eigenspace.reason
        if not singular[-1] > SINGULAR * singular[0]:
            reason = (
                "B = query^T key is singular (singular values "
                f"{format_eigenvalues(singular.astype(complex))}), so that the zero-temperature "
                "mean B^T x / |B^T x| has no meaning on its kernel (eigenvalues of V B^T: "
                f"{format_eigenvalues(eigenspace.eigenvalues)})"
            )
        if not attention.normalise:
            reason = (
                "without the denominator of the softmax the equation has no zero temperature; set "
                "attention.normalise = true"
            )
        if not is_one_head(layers[0]):
            nouns = " and ".join(term.noun for term in layers[0].beside)
            beside = "several heads act at once" if len(layers[0].heads) > 1 else f"{nouns} acts"
            reason = f"{beside}, for which there is no theorem; `meanfield-pde limit` searches for "
            reason += "the fixed points at zero temperature"
        if len(layers) > 1:
            reason = f"the matrices change with time, in {len(layers)} layers"
        object.__setattr__(self, "first", attention)
        object.__setattr__(self, "eigenspace", eigenspace)
        object.__setattr__(self, "singular_values", singular)
        object.__setattr__(self, "reason", reason)

    @property
    def exists(self) -> bool:
        """Whether there is a limit."""
        return self.reason is None

    @property
    def eigenvalues(self) -> np.ndarray:
        """Eigenvalues of A = V B^T, complex, by decreasing real part."""
        return self.eigenspace.eigenvalues

    @property
    def gap(self) -> float:
        """l_1 minus the largest real part behind it; infinite if A is a multiple of I."""
        return self.eigenspace.gap

    @property
    def dimension(self) -> int:
        """Dimension of E; zero if there is no limit."""
        return self.eigenspace.dimension if self.exists else 0

    @property
    def basis(self) -> np.ndarray:
        """Orthonormal basis of E, d x dim E."""
        return self._existing(self.eigenspace.basis)

    @property
    def left(self) -> np.ndarray:
        """Left eigenvectors l, dim E x d, with left @ basis = I; <l, x> = 0 on the separatrix."""
        return self._existing(self.eigenspace.left)

    @property
    def projector(self) -> np.ndarray:
        """The spectral projector Pi = basis @ left, oblique where A is not symmetric."""
        return self._existing(self.eigenspace.projector)

    def coordinates(self, points: np.ndarray) -> np.ndarray:
        """Coordinates <l, x> of Pi x in the basis of E, N x dim E."""
        # Not @, which is slow for long and thin matrices.
        return np.einsum("nd,kd->nk", points_of(points, self.attention.dimension), self.left)

    def on_separatrix(self, points: np.ndarray) -> np.ndarray:
        """Whether Pi x = 0 to rounding, so that x has no limit."""
        tolerance = ALIGNED * np.linalg.norm(self.left, 2)
        return np.linalg.norm(self.coordinates(points), axis=1) <= tolerance

    def map(self, points: np.ndarray) -> np.ndarray:
        """Pi x / |Pi x| for each row of points."""
        points = points_of(points, self.attention.dimension)
        lost = self.on_separatrix(points)
        if lost.any():
            i = int(lost.argmax())
            raise InputError(
                f"point {i}, {points[i].tolist()}, is on the separatrix Pi x = 0 and has no limit"
            )
        inside = self.coordinates(points)
        return (inside / np.linalg.norm(inside, axis=1, keepdims=True)) @ self.basis.T

    def distance_to_eigenspace(self, points: np.ndarray) -> np.ndarray:
        """Geodesic distance from each row of points to E ∩ S, at most pi / 2."""
        points = points_of(points, self.attention.dimension)
        inside = points @ self.basis
        outside = points - inside @ self.basis.T
        return np.arctan2(norm(outside), norm(inside))

    @cached_property
    def saddles(self) -> list[Saddle]:
        """The saddles that hold mass back, by decreasing eigenvalue."""
        self._existing(self.eigenspace.basis)
        attention = self.first
        return saddles(
            attention.drift, attention.key_query, self.eigenspace, scale=_scale(attention)
        )

    @property
    def contraction_rate(self) -> float:
        """Rate c = (l1 - l2) / |B^T e| of the distance to E, with the largest |B^T e| on E ∩ S.

        Infinite if E is the whole space: there is nothing to contract.
        """
        return self.gap / float(np.linalg.norm(self.first.key_query @ self.basis, 2))

    @property
    def escape_rate(self) -> float:
        """Rate c' = (l1 - l2) / |B^T e2| at which tokens leave the separatrix for E.

        If l2 is a complex pair |B^T e2| is its mean over the rotation, if E2 is a plane its
        largest value. Infinite if E is the whole space.
        """
        return self.saddles[0].escape_rate if self.saddles else math.inf

    @property
    def unsettled_rate(self) -> float:
        """Rate at which the mass that has not reached E decays: the smallest over the saddles.

        It is c' on the circle; a saddle with a large |B^T e3| may lower it on the sphere, and
        dim E = 2 makes it 2 c', as the neighbourhood of two points has little mass.
        """
        return min((saddle.unsettled_rate for saddle in self.saddles), default=math.inf)

    def decay_rate(self, p: float = 1) -> float:
        """Predicted rate of W_p(mu_t, limit) at zero temperature: min(c, unsettled rate / p).

        It supposes a density that is positive at the saddles. Where the two are equal the decay
        is t^(1/p) exp(-c t), so that the measured slope is off by 1/(p t).
        """
        p = real(p, "the order p of a Wasserstein distance", "a number >= 1", lambda p: p >= 1)
        return min(self.contraction_rate, self.unsettled_rate / p)

    @cached_property
    def lifetime_per_beta(self) -> float:
        """Metastable lifetime divided by beta, its slope; infinite if nothing ends the phase.

        On the circle (|B^T e| - |<B^T e, e>|) / c', or less; see `saddles.Tail`. For dim E = 2 it
        is the earliest over the points of E ∩ S.
        """
        return self._tail.lifetime(points_on_sphere(self.basis))

    @cached_property
    def tail_rate(self) -> float:
        """Rate r at which the tail that clusters attend to decays; c' on the circle.

        N tokens have no tail below 1/N: their metastable state ends after about log(N)/r.
        """
        return self._tail.rate(points_on_sphere(self.basis))

    @cached_property
    def _tail(self) -> Tail:
        return Tail(self.first.key_query, self.basis, self.saddles)

    @property
    def lifetime(self) -> float:
        """Predicted end of the metastable phase, beta times `lifetime_per_beta`."""
        slope, beta = self.lifetime_per_beta, self.attention.beta
        return math.inf if math.isinf(slope) else beta * slope

    @property
    def log_beta_time(self) -> float:
        """Time at which exp(-r t), r the decay rate of W_1, is down at sqrt(log(beta + 1) / beta).

        t = log(beta / log(beta + 1)) / (2 r), about log(beta) / (2 r): the two terms of the
        theorem are then equal, with C1 = C2 and C = 0 as nothing is known of them, and the
        density is as concentrated as the temperature lets it be.
        """
        beta, rate = self.attention.beta, self.decay_rate(1)
        if math.isinf(rate) or beta == 0:
            return 0.0
        return math.log(beta / math.log1p(beta)) / (2 * rate) if beta < math.inf else math.inf

    @property
    def no_metastable_phase(self) -> str | None:
        """Why none is to be expected, by the times predicted; None if one is, or without a limit.

        One lasts 1/c or longer, c the contraction rate, and ends (`phases`).
        """
        if not self.exists:
            return None
        if math.isinf(self.gap):
            return "A is a multiple of I, and nothing moves"
        if self.attention.beta == 0:
            return "at beta = 0 query and key do not act"
        if math.isinf(self.lifetime):
            return "nothing is predicted to end the concentrated state"
        shortest = 1 / self.contraction_rate
        if self.lifetime - self.log_beta_time >= shortest:
            return None
        if self.lifetime < self.log_beta_time:
            return (
                f"clusters are predicted to leave at about {self.lifetime:.3g}, before they have "
                f"gathered at about {self.log_beta_time:.3g}"
            )
        return (
            f"clusters are predicted to gather until about {self.log_beta_time:.3g} and to leave "
            f"at about {self.lifetime:.3g}, and a phase lasts 1/c = {shortest:.3g} or longer"
        )

    @property
    def _attends_back(self) -> bool:
        """Whether <B^T e, e> < 0 on E, so that a cluster attends to its antipode."""
        return self.exists and bool(np.trace(self.basis.T @ self.first.key_query @ self.basis) < 0)

    @cached_property
    def terminal(self) -> EigenSpace:
        """The eigenspace where clusters end at finite beta, after the metastable phase.

        A cluster at x then follows x' = P_x V m(x) with m(x) = x: it tends to the dominant
        eigenspace of V. If <B^T e, e> < 0 on E the cluster attends to its antipode, m(x) = -x,
        and it is that of -V.
        """
        space = dominant_eigenspace(-self.first.value if self._attends_back else self.first.value)
        layers = self.attention.layers
        if layers[0] is not self.first or len(layers) > 1:
            return replace(space, basis=None, left=None, projector=None, reason=self.reason)
        return space

    @property
    def terminal_angle(self) -> float:
        """Largest angle between a point of E and the terminal eigenspace: how far clusters go."""
        if self.terminal.basis is None:
            raise InputError(f"there is no terminal eigenspace: {self.terminal.reason}")
        if self.terminal.dimension < self.dimension:
            return math.pi / 2
        return float(subspace_angles(self.basis, self.terminal.basis).max())

    def describe(self, measure: Measure | None = None) -> dict[str, Any]:
        """All of it in lists, numbers and strings: infinity is "inf", a complex number a pair.

        Args:
            measure: the limit of an initial density, whose atoms are listed where there are two.
        """
        space, terminal = self.eigenspace, self.terminal
        atoms = None
        if measure is not None and self.dimension == 1:
            pairs = zip(plain(measure.points), plain(measure.masses), strict=True)
            atoms = [{"point": point, "mass": mass} for point, mass in pairs]
        return {
            "exists": self.exists,
            "reason": self.reason,
            "note": space.note,
            "kind": space.kind,
            "beta": plain(self.attention.beta),
            "eigenvalues": plain(self.eigenvalues),
            "singular_values_of_b": plain(self.singular_values),
            "gap": plain(self.gap),
            "dimension": self.dimension,
            "atoms": atoms,
            "no_metastable_phase": self.no_metastable_phase,
            **{name: plain(getattr(self, name)) if self.exists else None for name in QUANTITIES},
            "basis": plain(self.basis.T) if self.exists else None,
            "decay_rate_w1": plain(self.decay_rate(1)) if self.exists else None,
            "decay_rate_w2": plain(self.decay_rate(2)) if self.exists else None,
            "terminal": {
                "of": "-V" if self._attends_back else "V",
                "exists": terminal.exists,
                "reason": terminal.reason,
                "kind": terminal.kind,
                "eigenvalues": plain(terminal.eigenvalues),
                "basis": None if terminal.basis is None else plain(terminal.basis.T),
                "angle": plain(self.terminal_angle) if self.exists and terminal.exists else None,
            },
        }

    def report(self, measure: Measure | None = None) -> str:
        """All of it as text, a quantity a line; with the limit of an initial density if given."""
        return report(self.describe(measure))

    def _existing(self, value: np.ndarray | None) -> np.ndarray:
        if value is None or self.reason is not None:
            raise InputError(f"there is no limit measure: {self.reason}")
        return value


def _scale(attention: Attention) -> float:
    """|V| |B|: the rounding errors of A = V B^T go with it, and it may be far larger than |A|."""
    return float(np.linalg.norm(attention.value, 2) * np.linalg.norm(attention.key_query, 2))
