"""The saddles of the projected linear flow, and how fast mass leaves them.

In the time s, ds = dt / |B^T x|, the flow x' = P_x A x / |B^T x| is x = M x0 / |M x0| with
M = exp(A s).
The eigenvalues below the dominant one, level by level of their real part l_2 > l_3 > ..., span the
saddles E_2, E_3, ... where mass lingers on its way to E. For a token near E_j the components along
the levels ahead grow, relative to it, like exp((l_i - l_j) s), and s = t / |B^T e_j|. Hence

    escape rate        (l_1 - l_j) / |B^T e_j|             of the distance to the separatrix
    unsettled rate     sum_{i<j} (l_i - l_j) / |B^T e_j|   of the mass still near E_j at time t,

the sum with multiplicity: every component ahead must be as small as exp(-(l_i - l_j) s) at first.
On the circle, and for j = 2 and dim E = 1 in general, the two are the same number c'. Mass that
leaves E_j spreads over the span of E, ..., E_j, its unstable manifold, and is the thin tail there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meanfield_pde.theory.spectrum import EigenSpace, dominant_eigenspace

# A vector is along a subspace if the rest of it is this fraction of its length: some thousand
# roundings.
ALIGNED = 1e-12
# Angles N over which |B^T x| is averaged by the trapezoidal rule: on an orbit r times as wide as
# long the error is about exp(-2 N r), 1e-9 at r = 1/400.
_ORBIT_POINTS = 4096


@dataclass(frozen=True, eq=False)
class Saddle:
    """One level of eigenvalues behind the dominant one.

    Attributes:
        value: real part l_j of its eigenvalues.
        basis: d x m, orthonormal, spans the level's invariant subspace.
        unstable: d x n, orthonormal, spans E, ..., E_j; its first columns span E.
        speed: |B^T e_j|; its mean over the orbit for a complex pair (in the time s), its largest
            value, which is the slowest case, for a plane of equilibria.
        escape_rate: (l_1 - l_j) / speed.
        unsettled_rate: sum_{i<j} (l_i - l_j) / speed.
        reason: why the level has no eigenspace of its own (a complex pair, a Jordan block).
    """

    value: float
    basis: np.ndarray
    unstable: np.ndarray
    speed: float
    escape_rate: float
    unsettled_rate: float
    reason: str | None


def saddles(
    drift: np.ndarray, key_query: np.ndarray, dominant: EigenSpace, *, scale: float = 0.0
) -> list[Saddle]:
    """The saddles in the order of their eigenvalues; none if E is the whole space.

    Args:
        drift: A.
        key_query: B^T.
        dominant: the dominant eigenspace of A.
        scale: size of the numbers A was computed from, as for `dominant_eigenspace`.
    """
    if dominant.basis is None or dominant.left is None:
        raise ValueError("there is no dominant eigenspace to leave a saddle for")
    scale = max(scale, float(np.linalg.norm(drift, 2)))
    ahead = [dominant.value] * dominant.dimension
    span = dominant.basis
    complement = _kernel(dominant.left)
    found = []
    while complement.shape[1]:
        restricted = complement.T @ drift @ complement  # the complement is invariant under A
        level = dominant_eigenspace(restricted, scale=scale)
        if level.basis is None or level.left is None:
            # A rotation or a Jordan block: what is left is taken as one level.
            basis, following = complement, np.zeros((len(drift), 0))
        else:
            basis, following = complement @ level.basis, complement @ _kernel(level.left)
        span = np.linalg.qr(np.hstack([span, basis]))[0]
        speed = _speed(restricted, level, key_query @ complement)
        growth = np.array(ahead) - level.value
        found.append(
            Saddle(
                level.value,
                basis,
                span,
                speed,
                growth[0] / speed,
                growth.sum() / speed,
                level.reason,
            )
        )
        ahead += [level.value] * basis.shape[1]
        complement = following
    return found


class Tail:
    """The thin tail of the density that clusters attend to, and when they no longer do.

    At zero temperature a token at the cluster e attends to u = B^T e / |B^T e|, and it is at rest.
    At finite beta it does so as long as the softmax prefers the thin tail of the density at u. On
    the unstable manifold of saddle j the tail is exp(-r_j t), r_j the unsettled rate (zero on E,
    the clusters), and the largest score beta |Q_j B^T e|, Q_j the orthogonal projection on the span
    of E to E_j. J is the saddle whose manifold has u itself, in general the last. The tail at u
    loses to that of level j < J at

        t_j / beta = (|B^T e| - |Q_j B^T e|) / (r_J - r_j)    if r_j < r_J.

    The tail comes from saddle J, and lasts as long as tokens at e_J are at rest, because they
    attend to the tail at B^T e_J / |B^T e_J| in their turn. Once they attend to the clusters, m
    jumps near e_J, and the mass there is driven away at a rate of order beta. So

        lifetime / beta = min( min_j t_j at e, t_0 at e_J ) / beta,

    which on the circle is (|B^T x| - |<B^T x, e>|) / c' at e or at e2, whichever is less. It is
    infinite if B^T e is along E, as then the clusters and the tail agree.
    """

    def __init__(self, key_query: np.ndarray, basis: np.ndarray, saddles: list[Saddle]) -> None:
        """B^T, an orthonormal basis of E, and all saddles."""
        self._key_query = key_query
        self._saddles = saddles
        self._spans = [basis, *(saddle.unstable for saddle in saddles)]
        self._rates = np.array([0.0, *(saddle.unsettled_rate for saddle in saddles)])

    def rate(self, points: np.ndarray) -> float:
        """r_J, at which the tail that clusters at these points (d x n) attend to decays."""
        return float(self._rates[self._levels(self._key_query @ points)].max())

    def lifetime(self, points: np.ndarray) -> float:
        """Lifetime divided by beta of clusters at points of E ∩ S, d x n; the earliest counts."""
        earliest = float(self._losses(points).min(initial=np.inf))
        for level in np.unique(self._levels(self._key_query @ points)):
            if level > 0:
                feeding = points_on_sphere(self._saddles[level - 1].basis)
                earliest = min(earliest, float(self._losses(feeding)[0].min()))
        return earliest

    def _levels(self, seen: np.ndarray) -> np.ndarray:
        """J for each B^T x: the level, 0 for E, with the smallest rate whose span contains it."""
        inside = self._beyond(seen) <= ALIGNED * np.linalg.norm(seen, axis=0)
        return np.where(inside, self._rates[:, None], np.inf).argmin(axis=0)

    def _losses(self, points: np.ndarray) -> np.ndarray:
        """t_j / beta for each level j and point, infinite where there is no such time."""
        seen = self._key_query @ points
        length, beyond = np.linalg.norm(seen, axis=0), self._beyond(seen)
        # |z| - |Q z| = |z - Q z|^2 / (|z| + |Q z|), without cancellation.
        advantage = beyond**2 / (length + np.sqrt(np.maximum(length**2 - beyond**2, 0)))
        faster = self._rates[self._levels(seen)] - self._rates[:, None]
        loses = (beyond > ALIGNED * length) & (faster > 0)
        return np.divide(advantage, faster, out=np.full_like(beyond, np.inf), where=loses)

    def _beyond(self, seen: np.ndarray) -> np.ndarray:
        """|z - Q_j z| for each level j and each z = B^T x."""
        return np.array([np.linalg.norm(seen - q @ (q.T @ seen), axis=0) for q in self._spans])


def points_on_sphere(basis: np.ndarray) -> np.ndarray:
    """Points of a subspace that stand for all its points on the sphere, up to their sign, d x n.

    More than two dimensions, for which the axes stand, need d > 3.
    """
    if basis.shape[1] != 2:
        return basis
    angle = np.pi * np.arange(_ORBIT_POINTS) / _ORBIT_POINTS
    return basis @ np.array([np.cos(angle), np.sin(angle)])


def _speed(restricted: np.ndarray, level: EigenSpace, key_query: np.ndarray) -> float:
    """|B^T x| on a level, from A and B^T on the complement (`key_query` = B^T F)."""
    if level.basis is not None:
        return float(np.linalg.norm(key_query @ level.basis, 2))
    if len(restricted) == 2:
        rotation = restricted - level.value * np.eye(2)
        if level.kind == "complex":
            # exp(rotation s) = cos(w s) I + sin(w s) / w rotation; |B^T x| has period pi / w, and
            # the trapezoidal rule converges geometrically.
            phase = np.pi * np.arange(_ORBIT_POINTS) / _ORBIT_POINTS
            frequency = np.sqrt(np.linalg.det(rotation))
            orbit = np.outer([1.0, 0.0], np.cos(phase))
            orbit += np.outer(rotation[:, 0] / frequency, np.sin(phase))
            lengths = np.linalg.norm(key_query @ orbit, axis=0) / np.linalg.norm(orbit, axis=0)
            return float(lengths.mean())
        # A Jordan block: everything turns to its only eigenvector, though like 1/s.
        eigenvector = np.linalg.svd(rotation)[2][-1]
        return float(np.linalg.norm(key_query @ eigenvector))
    return float(np.linalg.norm(key_query, 2))  # d > 3: the slowest case there can be


def _kernel(left: np.ndarray) -> np.ndarray:
    """Orthonormal basis of the kernel of a k x d matrix of full rank."""
    return np.linalg.svd(left)[2][len(left) :].T
