"""Attention: the matrices, the drift they make, and the velocity of a token.

With B = Q^T K the mean value that a token at x sees is

    finite beta        m(x) = ∫ exp(beta <B^T x, y>) y dmu(y) / ∫ exp(beta <B^T x, y>) dmu(y)
    zero temperature   m(x) = B^T x / |B^T x|

and it moves with v(x) = P_x V m(x), P_x = I - x x^T the projection on the tangent space at x.
Without the denominator (`normalise=False`), as some codes have it, m(x) is the integral alone,

    m(x) = ∫ exp(beta <B^T x, y>) y dmu(y),

which for V = B = B^T makes v the gradient flow of (1/2 beta) ∬ exp(beta <x, By>) dmu dmu.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from meanfield_pde.attention.term import Sources, TermBeside, VelocityTerm
from meanfield_pde.errors import InputError
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.checks import (
    is_number,
    magnitudes,
    numbers,
    numbers_as_given,
    points_of,
    real,
    shown,
)
from meanfield_pde.support.npz import read_arrays, unused_arrays

LOG = logging.getLogger("meanfield_pde")

MATRICES = ("query", "key", "value")
# A query-key matrix whose smallest singular value is below this fraction of the largest is treated
# as singular: B^T x then vanishes, to some thousand roundings, for some x.
SINGULAR = 1e-12
# exp() of more than this is out of the range of doubles, with room for the other factors.
LARGEST_EXPONENT = 700.0
# Scores within this of the largest, relative to |B^T x|, tie at zero temperature: some thousand
# roundings, as points and B are computed.
TIE = 1e-12
# Scores of one block of targets, for which there are two arrays and a mask: 34 MB.
_BLOCK = 2_000_000


@dataclass(frozen=True, eq=False)
class Attention(VelocityTerm):
    """A single attention head.

    Attributes:
        query: Q, k x d.
        key: K, k x d.
        value: V, d x d.
        beta: inverse temperature, from 0 to infinity (`math.inf`: zero temperature).
        normalise: whether the softmax has its denominator; without it beta |B| is limited to 700,
            where the exponential overflows, and zero temperature has no meaning.
        key_query: B^T = K^T Q, computed; scores are <B^T x, y>.
    """

    depends_on_density: ClassVar[bool] = True
    duration: ClassVar[float] = math.inf
    end: ClassVar[float] = math.inf

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    beta: float
    normalise: bool = True
    key_query: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in MATRICES:
            object.__setattr__(self, name, _matrix(getattr(self, name), name))
        query, key, value = self.query, self.key, self.value
        d = value.shape[0]
        if value.shape != (d, d):
            raise InputError(f"attention.value must be square (d x d), got {_shape(value)}")
        if d < 2:
            raise InputError("attention.value must be at least 2 x 2: tokens live on S^(d-1)")
        for name, matrix in (("query", query), ("key", key)):
            if matrix.shape[1] != d:
                raise InputError(
                    f"attention.{name} must have as many columns as value ({d}), "
                    f"got {_shape(matrix)}"
                )
        if query.shape[0] != key.shape[0]:
            raise InputError(
                "attention.query and attention.key must have the same number of rows, "
                f"got {_shape(query)} and {_shape(key)}"
            )
        beta = _number(self.beta, "attention.beta")
        if not beta >= 0:  # also refuses nan
            raise InputError(f"attention.beta must be >= 0 or infinite, got {beta}")
        object.__setattr__(self, "beta", beta)
        key_query = key.T @ query
        object.__setattr__(self, "key_query", key_query)  # B^T, so that z = B^T x
        if not isinstance(self.normalise, bool | np.bool_):
            raise InputError(
                f"attention.normalise must be true or false, got {shown(self.normalise)}"
            )
        object.__setattr__(self, "normalise", bool(self.normalise))
        if not self.normalise:
            self._check_exponent()
        if self.zero_temperature:
            singular = np.linalg.svd(self.key_query, compute_uv=False)
            if not singular[-1] > SINGULAR * singular[0]:
                raise InputError(
                    "zero temperature (attention.beta = inf) needs B = query^T key to be "
                    f"invertible, because m(x) = B^T x/|B^T x|; its singular values are "
                    f"{np.array2string(singular, precision=3)}"
                )

    @property
    def dimension(self) -> int:
        """Dimension d of the space; tokens live on the sphere S^(d-1)."""
        return int(self.value.shape[0])

    @property
    def layers(self) -> tuple[Attention, ...]:
        """The layers of the schedule: this one."""
        return (self,)

    @property
    def heads(self) -> tuple[Attention, ...]:
        """The heads of the layer: this one."""
        return (self,)

    @property
    def beside(self) -> tuple[TermBeside, ...]:
        """The terms beside the heads: none."""
        return ()

    @property
    def terms(self) -> tuple[VelocityTerm, ...]:
        """All terms of the layer: this one."""
        return (self,)

    @property
    def speed_bound(self) -> float:
        """|V|, where the softmax has its denominator."""
        return float(np.linalg.norm(self.value, 2))

    @typed
    def push(
        self, x: np.ndarray, sources: Sources | None = None, *, tolerance: float = 1e-12
    ) -> np.ndarray:
        """V m(x) at each row of x; without sources the zero-temperature mean B^T x / |B^T x|.

        At zero temperature with sources, m(x) is the mean of those of largest <B^T x, y>: that of
        tokens, unlike that of a density, whose support is the whole sphere.
        """
        x = points_of(x, self.dimension, "x", clouds=True)
        real(tolerance, "tolerance", "a number > 0 and <= 1", lambda t: 0 < t <= 1)
        if sources is not None and x.ndim > 2:
            raise InputError(f"x must be rows of {self.dimension} coordinates, got {x.shape}")
        if sources is not None and self.zero_temperature:
            masses = np.exp(sources.log_masses)
            mean = hardmax_mean(x @ self.key_query.T, sources.points, masses)
        elif sources is None:
            mean = self._cold_mean(x)
        else:
            mean = self._mean(x, sources, tolerance)
        return mean @ self.value.T

    @property
    def B(self) -> np.ndarray:  # noqa: N802 (the name in the equation)
        """B = Q^T K."""
        return self.key_query.T

    @property
    def drift(self) -> np.ndarray:
        """A = V B^T: at zero temperature x' = P_x A x / |B^T x|."""
        return self.value @ self.key_query

    @property
    def zero_temperature(self) -> bool:
        """Whether beta is infinite."""
        return bool(np.isinf(self.beta))

    def with_beta(self, beta: float) -> Attention:
        """The same matrices at another inverse temperature."""
        return Attention(self.query, self.key, self.value, beta, self.normalise)

    def scores(self, x: np.ndarray) -> np.ndarray:
        """The scores w = beta B^T x, row by row: the exponent of the softmax at y is <w, y>."""
        x = points_of(x, self.dimension, "x", clouds=True)
        return self.beta * (x @ self.key_query.T)

    def inverse_kernel_width_squared(self, x: np.ndarray) -> np.ndarray:
        """|w| at each row of x: the kernel exp(<w, y>) on the sphere is |w|^(-1/2) wide."""
        return np.asarray(np.linalg.norm(self.scores(x), axis=1))

    @typed
    def mean(
        self,
        x: np.ndarray,
        points: np.ndarray | None = None,
        masses: np.ndarray | None = None,
        *,
        tolerance: float = 1e-12,
    ) -> np.ndarray:
        """The vector m(x) at each row of x, for the measure with these points and masses.

        At zero temperature the measure does not matter, as long as its support is the whole
        sphere; points and masses may then be left out.

        Args:
            x: N x d array of points on the sphere.
            points: M x d array, the support of the measure.
            masses: M weights >= 0, down to the smallest double; they need not sum to one.
            tolerance: bound on the error of m, which lies in the unit ball; without the
                denominator, relative to ∫ exp(beta <B^T x, y>) dmu(y).
        """
        x = points_of(x, self.dimension, "x")
        real(tolerance, "tolerance", "a number > 0 and <= 1", lambda t: 0 < t <= 1)
        if points is not None and masses is not None:
            points = points_of(points, self.dimension)
            masses = numbers(masses, "masses")
            if masses.shape != points.shape[:1] or not (np.isfinite(masses) & (masses >= 0)).all():
                raise InputError(
                    f"masses must be {len(points)} finite numbers >= 0, one for each point"
                )
            if not masses.any():
                raise InputError("masses must not all be zero")
        if self.zero_temperature:
            return self._cold_mean(x)
        if points is None or masses is None:
            raise InputError("at finite beta the mean value needs the points and masses")
        return self._mean(x, Sources.of(points, masses), tolerance)

    def _cold_mean(self, x: np.ndarray) -> np.ndarray:
        """B^T x / |B^T x|."""
        z = x @ self.key_query.T
        lengths = np.linalg.norm(z, axis=-1, keepdims=True)
        if not lengths.all():
            raise InputError("at zero temperature m(x) = B^T x/|B^T x| needs x other than zero")
        return z / lengths

    def _mean(self, x: np.ndarray, sources: Sources, tolerance: float) -> np.ndarray:
        """Return m(x) at finite beta."""
        from meanfield_pde.attention.sum import softmax  # kernels: see `_lazy`

        logs = sources.log_masses
        mean, log_z = softmax(self.scores(x), sources.points, logs, tolerance=tolerance)
        if self.normalise:
            return mean
        return mean * np.exp(log_z - np.logaddexp.reduce(logs))[:, None]

    @typed
    def velocity(
        self,
        x: np.ndarray,
        points: np.ndarray | None = None,
        masses: np.ndarray | None = None,
        *,
        tolerance: float = 1e-12,
    ) -> np.ndarray:
        """Tangential velocity v(x) = P_x V m(x) at each row of x; arguments as for `mean`."""
        x = points_of(x, self.dimension, "x")
        push = self.mean(x, points, masses, tolerance=tolerance) @ self.value.T
        return push - (push * x).sum(axis=1, keepdims=True) * x

    def _check_exponent(self) -> None:
        """Refuse an exponential, not divided by its integral, that is out of range."""
        if self.zero_temperature:
            raise InputError(
                "attention.normalise = false has no meaning at zero temperature (attention.beta = "
                "inf): the integral of exp(beta <Qx, Ky>) is infinite; give a finite beta"
            )
        largest = self.beta * float(np.linalg.norm(self.key_query, 2))
        if not largest <= LARGEST_EXPONENT:
            raise InputError(
                f"attention.normalise = false: exp(beta <Qx, Ky>) overflows, beta |Q^T K| = "
                f"{largest:.4g} must be at most {LARGEST_EXPONENT:g}; lower attention.beta"
            )

    @classmethod
    @typed
    def read(cls, path: str | Path, beta: float) -> Attention:
        """Read the arrays `query`, `key` and `value` from an `.npz` file."""
        weights = read_weights(path)
        return cls(weights["query"], weights["key"], weights["value"], beta)


def read_weights(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays `query`, `key`, `value` of an `.npz` file."""
    arrays = read_with_weights(path)
    if unused := unused_arrays(arrays, MATRICES):
        LOG.warning("%s: %s", path, unused)
    return {name: arrays[name] for name in MATRICES}


def read_with_weights(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of an `.npz` file; InputError unless `query`, `key`, `value` are among them."""
    try:
        arrays = read_arrays(path)
    except InputError as error:
        raise InputError(f"{path}: not a readable .npz file of weights ({error})") from None
    for name in MATRICES:
        if name not in arrays:
            raise InputError(f"{path}: the array '{name}' is missing; found {sorted(arrays)}")
    return arrays


def _number(given: Any, name: str) -> float:
    """A number, possibly infinite; it may be the only one in an array."""
    number = given
    if isinstance(given, np.ndarray):
        array = numbers_as_given(given, name)
        number = array.ravel()[0] if array.size == 1 else None
    if not is_number(number):
        raise InputError(f"{name} must be a number, got {shown(given)}")
    return float(number)


def _matrix(given: Any, name: str) -> np.ndarray:
    matrix = numbers(given, f"attention.{name}", "a matrix")
    if matrix.ndim != 2 or matrix.size == 0:
        raise InputError(f"attention.{name} must be a matrix, got an array of shape {matrix.shape}")
    magnitudes(matrix, f"attention.{name}")
    matrix.setflags(write=False)
    return matrix


def _shape(matrix: np.ndarray) -> str:
    return " x ".join(str(n) for n in matrix.shape)


def hardmax_mean(z: np.ndarray, points: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """For each row of z the mean of the points y of largest <z, y>, weighted by their masses."""
    mean = np.empty_like(z)
    seen = points[masses > 0]
    weights = masses[masses > 0]
    rows = max(1, _BLOCK // len(seen))
    for begin in range(0, len(z), rows):
        part = z[begin : begin + rows]
        scores = part @ seen.T
        slack = TIE * np.linalg.norm(part, axis=1, keepdims=True)
        tied = np.where(scores >= scores.max(axis=1, keepdims=True) - slack, weights, 0.0)
        mean[begin : begin + rows] = tied @ seen / tied.sum(axis=1, keepdims=True)
    return mean
