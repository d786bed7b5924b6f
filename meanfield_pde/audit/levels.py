"""Where mass lingers on its way to E, and how long the tail lasts, for a matrix of low rank.

The same levels and rates as in `theory.saddles` (its docstring has the equations), read off one
eigenvalue decomposition on the range of A = V B^T, in any dimension. The kernel of A is a level,
too, with as many zeros as it has dimensions; on the kernel of B the speed |B^T x| is zero, and the
rates of the linear flow are infinite: at zero temperature nothing stays there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meanfield_pde.audit.low_rank import LowRank, Spectrum
from meanfield_pde.theory.saddles import ALIGNED, points_on_sphere

# Angles N over which |B^T x| is averaged by the trapezoidal rule: on an orbit r times as wide as
# long the error is about exp(-2 N r), 1e-9 at r = 1/100.
_ORBIT_POINTS = 1024


@dataclass(frozen=True, eq=False)
class Level:
    """Eigenvalues of the same real part behind the dominant one.

    Attributes:
        value: their real part.
        basis: r x m, orthonormal, spans the level in the coordinates of the range of A; m is 0
            for the kernel.
        speed: |B^T x| on it: of its eigenvector, the mean over the orbit of a complex pair, the
            largest value if there are more.
        escape_rate, unsettled_rate: as for a `Saddle`.
    """

    value: float
    basis: np.ndarray
    speed: float
    escape_rate: float
    unsettled_rate: float


class Levels:
    """All levels behind E, and the tail on their unstable manifolds."""

    def __init__(self, dominant: Spectrum, key_query: LowRank) -> None:
        """The dominant eigenspace of A, which must exist, and B^T."""
        if dominant.basis is None:
            raise ValueError("there is no dominant eigenspace to leave a level for")
        self._basis, self._key_query = dominant.basis, key_query
        drift = self._drift = dominant.matrix
        values, vectors = np.linalg.eig(drift.on_range)
        order = np.argsort(-values.real, kind="stable")
        values, vectors = values[order], vectors[:, order]
        k = self._basis.shape[1]
        groups = _groups(values, k, drift.kernel, dominant.tolerance)
        parts = [_real(values[list(g)], vectors[:, list(g)]) for g in groups if g is not None]
        self._right, self._left = self._manifolds(drift, groups, parts, k)
        on_range = key_query.core @ (key_query.corange.T @ drift.range)
        ahead, waiting = [dominant.value] * k, iter(parts)
        self.levels: list[Level] = []
        with np.errstate(divide="ignore"):
            for group in groups:
                if group is None:
                    value, count, basis = 0.0, drift.kernel, np.empty((drift.rank, 0))
                    speed = _kernel_speed(drift, key_query)
                else:
                    value, count = float(values[list(group)].real.mean()), len(group)
                    part = next(waiting)
                    basis = np.linalg.qr(part)[0]
                    speed = _speed(on_range, values[list(group)], part)
                growth = np.array(ahead) - value
                escape, unsettled = np.array([growth[0], growth.sum()]) / np.float64(speed)
                self.levels.append(Level(value, basis, speed, float(escape), float(unsettled)))
                ahead += [value] * count
        self._rates = np.array([0.0, *(level.unsettled_rate for level in self.levels)])

    @property
    def tail_rate(self) -> float:
        """r, at which the tail that clusters attend to decays; zero if they attend to E."""
        return float(self._losses(self._basis)[0].max())

    @property
    def lifetime_per_beta(self) -> float:
        """The slope of the lifetime in beta; see `theory.saddles.Tail`."""
        _, attended, losses = self._losses(self._basis)
        earliest = float(losses.min(initial=np.inf))
        for number in np.unique(attended):
            if number > 0 and self.levels[number - 1].basis.size:
                saddle = self._drift.range @ self.levels[number - 1].basis
                earliest = min(earliest, float(self._losses(saddle)[2][0].min()))
        return earliest

    def _manifolds(
        self,
        drift: LowRank,
        groups: list[tuple[int, ...] | None],
        parts: list[np.ndarray],
        k: int,
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Orthonormal pieces of the unstable manifolds, and of their complements.

        Up to the kernel, level j adds `right[j]` to the span; from the kernel on it is the
        complement of `left[j + 1], ...`, spanned by left eigenvectors.
        """
        kernel_at = groups.index(None) if None in groups else len(groups)
        before = [drift.range.T @ self._basis, *parts[:kernel_at]]
        right = drift.range @ np.linalg.qr(np.hstack(before))[0]
        sizes = np.cumsum([k, *(part.shape[1] for part in parts[:kernel_at])])
        behind = parts[kernel_at:]
        if not behind:
            return np.split(right, sizes[:-1], axis=1), []
        # Left eigenvectors of the levels behind: rows of the inverse, taken to d dimensions.
        dual = np.linalg.pinv(np.hstack([drift.range.T @ self._basis, *parts]))
        rows = dual[sum(part.shape[1] for part in before) :]
        left = drift.corange @ (rows @ drift.core).T
        reversed_q = np.linalg.qr(left[:, ::-1])[0][:, ::-1]
        ends = np.cumsum([part.shape[1] for part in behind])
        return np.split(right, sizes[:-1], axis=1), np.split(reversed_q, ends[:-1], axis=1)

    def _losses(self, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """At points of a subspace: the rate r_J, J, and t_j / beta for each level j."""
        length, beyond = self._beyond(basis)
        # A level of infinite rate is one, too, if no other has z = B^T x: it comes last.
        rates = np.minimum(self._rates, np.finfo(float).max)[:, None]
        attended = np.where(beyond <= ALIGNED * length, rates, np.inf).argmin(axis=0)
        rate = self._rates[attended]
        advantage = beyond**2 / (length + np.sqrt(np.maximum(length**2 - beyond**2, 0)))
        with np.errstate(invalid="ignore"):
            faster = rate - self._rates[:, None]  # not a number where both are infinite
        loses = (beyond > ALIGNED * length) & (faster > 0)
        times = np.divide(advantage, faster, out=np.full_like(beyond, np.inf), where=loses)
        return rate, attended, times

    def _beyond(self, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """|z|, and |z - Q_j z| for each level j (0 for E), at points z = B^T x of a subspace.

        Q_j projects on the unstable manifold of the level. Everything is linear in the coordinates
        of x, of which there are one or two, so that thousands of points cost little.
        """
        b = self._key_query
        seen = b.range @ (b.core @ (b.corange.T @ basis))
        at = points_on_sphere(np.eye(basis.shape[1]))
        length = np.linalg.norm(np.linalg.qr(seen, mode="r") @ at, axis=0)
        right = np.hstack(self._right)
        inside = right.T @ seen
        rest = np.linalg.qr(seen - right @ inside, mode="r")
        if len(self._right) == len(self.levels) + 1:
            rest = np.zeros_like(rest)  # these manifolds fill the space
        starts = np.cumsum([piece.shape[1] for piece in self._right])
        rows = _norms_from(np.vstack([inside, rest]) @ at, starts)
        if len(rows) <= len(self.levels):
            left = np.hstack([np.zeros((len(seen), 0)), *self._left])
            starts = np.cumsum([0, *(piece.shape[1] for piece in self._left)])
            rows = np.vstack([rows, _norms_from(left.T @ seen @ at, starts)])
        return length, rows


def _norms_from(components: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The norms of the components from each of these rows on."""
    squares = np.vstack([components**2, np.zeros(components.shape[1])])
    return np.sqrt(np.cumsum(squares[::-1], axis=0)[::-1][starts])


def _groups(
    values: np.ndarray, k: int, kernel: int, tolerance: float
) -> list[tuple[int, ...] | None]:
    """The eigenvalues behind the first k by real part, None for the kernel, in their order."""
    groups: list[tuple[int, ...] | None] = []
    zeros = bool(kernel)
    for i in range(k, len(values)):
        value = values[i].real
        if zeros and value < 0:
            groups.append(None)
            zeros = False
        last = groups[-1] if groups else None
        if last is not None and values[last[-1]].real - value <= tolerance:
            groups[-1] = (*last, i)
        else:
            groups.append((i,))
    return [*groups, None] if zeros else groups


def _real(values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Real vectors that span the eigenvectors; of a pair, the real and imaginary parts of one."""
    columns: list[np.ndarray] = []
    for value, vector in zip(values, vectors.T, strict=True):
        if value.imag == 0:
            columns.append(vector.real)
        elif value.imag > 0:
            columns += [vector.real, vector.imag]
    return np.stack(columns, axis=1)


def _speed(key_query: np.ndarray, values: np.ndarray, part: np.ndarray) -> float:
    """|B^T x| on a level: B^T and the level in coordinates of the range of A."""
    if len(values) == 2 and abs(values[0].imag) > 0:
        # part is (Re w, Im w) of one eigenvector w; its orbit is Re(w exp(i phase)).
        phase = np.pi * np.arange(_ORBIT_POINTS) / _ORBIT_POINTS
        circle = np.array([np.cos(phase), -np.sin(phase)])
        lengths = np.linalg.norm(key_query @ part @ circle, axis=0)
        return float((lengths / np.linalg.norm(part @ circle, axis=0)).mean())
    return float(np.linalg.norm(key_query @ np.linalg.qr(part)[0], 2))


def _kernel_speed(drift: LowRank, key_query: LowRank) -> float:
    """The largest |B^T x| on the kernel of A; zero if it is that of B, too."""
    if drift.rank == key_query.rank:
        return 0.0
    outside = key_query.corange - drift.corange @ (drift.corange.T @ key_query.corange)
    return float(np.linalg.norm(key_query.core @ outside.T, 2))


def log_beta_time(beta: float, rate: float) -> float:
    """Time at which exp(-r t) is down at sqrt(log(beta + 1) / beta); see `ProjectionLimit`."""
    if math.isinf(rate) or beta == 0:
        return 0.0
    return math.log(beta / math.log1p(beta)) / (2 * rate) if beta < math.inf else math.inf
