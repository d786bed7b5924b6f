"""The spectrum of a d x d matrix of low rank, from matrices of the size of its rank.

A product of thin matrices is brought to the form

    M = P C R^T,     P, R: d x r with orthonormal columns,  C: r x r invertible,

by QR decompositions of its factors. On the range of P it is the r x r matrix S = C R^T P: if
S y = l y, then M (P y) = l (P y). The other d - r eigenvalues are zeros, those of the kernel of M,
which are counted with the others: M has a dominant eigenspace in the range of P only if the
leading eigenvalue of S is positive. If those of S are all negative, the kernel itself dominates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meanfield_pde.attention.head import SINGULAR
from meanfield_pde.theory.spectrum import (
    ROUNDING,
    TIE,
    EigenSpace,
    dominant_eigenspace,
    format_eigenvalues,
)


@dataclass(frozen=True, eq=False)
class Factor:
    """A thin matrix as an orthonormal basis of its columns times a small one, columns @ small."""

    columns: np.ndarray
    small: np.ndarray

    @classmethod
    def of(cls, matrix: np.ndarray) -> Factor:
        """The decomposition of a d x r matrix; nothing is gained for one that is not thin."""
        if matrix.shape[0] <= matrix.shape[1]:
            return cls(np.eye(len(matrix)), matrix)
        return cls(*np.linalg.qr(matrix))


@dataclass(frozen=True, eq=False)
class LowRank:
    """A matrix P C R^T.

    Attributes:
        range: P, d x r, orthonormal.
        core: C, r x r, invertible.
        corange: R, d x r, orthonormal; what is orthogonal to it is the kernel.
        norm: the spectral norm.
        frobenius: the Frobenius norm.
    """

    range: np.ndarray
    core: np.ndarray
    corange: np.ndarray
    norm: float
    frobenius: float

    @classmethod
    def of(cls, left: np.ndarray, middle: np.ndarray, right: np.ndarray) -> LowRank:
        """The matrix left @ middle @ right.T, left and right with orthonormal columns."""
        u, singular, vt = np.linalg.svd(middle, full_matrices=False)
        norm = float(singular.max(initial=0.0))
        rank = int(np.count_nonzero(singular > SINGULAR * norm))
        frobenius = float(np.linalg.norm(singular))
        if rank == len(middle) == len(middle.T):
            return cls(left, middle, right, norm, frobenius)
        core = np.diag(singular[:rank])
        return cls(left @ u[:, :rank], core, right @ vt[:rank].T, norm, frobenius)

    @property
    def rank(self) -> int:
        """r, to within rounding."""
        return int(self.core.shape[0])

    @property
    def kernel(self) -> int:
        """Dimension of the kernel, d - r."""
        return int(self.range.shape[0]) - self.rank

    @property
    def stable_rank(self) -> float:
        """(Frobenius norm / spectral norm)^2, from 1 to the rank; 0 for the matrix 0."""
        return (self.frobenius / self.norm) ** 2 if self.norm > 0 else 0.0

    @property
    def negative(self) -> LowRank:
        """Minus the matrix."""
        return LowRank(self.range, -self.core, self.corange, self.norm, self.frobenius)

    @cached_property
    def on_range(self) -> np.ndarray:
        """S = C R^T P, what the matrix is on its range in the coordinates of P."""
        return self.core @ (self.corange.T @ self.range)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The dominant eigenspace of a matrix of low rank.

    Attributes:
        matrix: the matrix.
        eigenvalues: those on the range and, if there is a kernel, one zero for all of it; by
            decreasing real part.
        kind: as for an `EigenSpace`, or "kernel" where the kernel dominates.
        value, gap: the largest real part, and how far it is ahead, the zeros counted.
        basis: d x k, orthonormal, the dominant eigenspace; None if there is none, or the kernel.
        left: k x d, the left eigenvectors, left @ basis = I; None likewise.
        reason: why there is no basis.
        note: what makes the answer sensitive.
        tolerance: within which eigenvalues count as equal to the leading one.
    """

    matrix: LowRank
    eigenvalues: np.ndarray
    kind: str
    value: float
    gap: float
    basis: np.ndarray | None
    left: np.ndarray | None
    reason: str | None
    note: str | None
    tolerance: float

    @property
    def dimension(self) -> int:
        """Dimension of the dominant eigenspace; zero if there is none."""
        if self.kind == "kernel":
            return self.matrix.kernel
        return 0 if self.basis is None else int(self.basis.shape[1])

    def largest_angle(self, basis: np.ndarray) -> float | None:
        """Largest angle between a point of another subspace and this one; None if there is none."""
        if self.kind == "kernel":
            outside = self.matrix.corange.T @ basis
            inside = basis - self.matrix.corange @ outside
        elif self.basis is None:
            return None
        else:
            inside = self.basis.T @ basis
            outside = basis - self.basis @ inside
        if self.dimension < basis.shape[1]:
            return float(np.pi / 2)
        # The angle from its sine where that is small, from its cosine otherwise.
        sine = np.linalg.norm(outside, 2)
        cosine = np.linalg.svd(inside, compute_uv=False)[basis.shape[1] - 1]
        return float(np.arctan2(sine, cosine))


def spectrum(matrix: LowRank, scale: float) -> Spectrum:
    """The dominant eigenspace of the matrix, its kernel counted.

    Args:
        matrix: the matrix.
        scale: size of the numbers it was computed from, as for `dominant_eigenspace`.
    """
    if matrix.rank == 0:
        zero = np.zeros(1, dtype=complex)
        nothing = "the matrix is zero"
        return Spectrum(matrix, zero, "kernel", 0.0, np.inf, None, None, nothing, None, 0.0)
    space = dominant_eigenspace(matrix.on_range, scale=scale)
    rounding = ROUNDING * max(matrix.norm, scale)
    basis, left, tolerance = None, None, max(TIE * matrix.norm, rounding)
    if space.basis is not None and space.left is not None:
        basis = matrix.range @ space.basis
        left = space.left @ matrix.core @ matrix.corange.T
        if abs(space.value) > tolerance:
            left /= space.value
            tolerance = max(tolerance, rounding * float(np.linalg.norm(left, 2)))
    eigenvalues, value, gap, kind, reason = _with_kernel(matrix, space, tolerance)
    if kind not in ("simple", "plane", "subspace", "whole space"):
        basis = left = None
    if basis is not None and left is not None:
        left = np.linalg.solve(left @ basis, left)  # dual to rounding
    return Spectrum(
        matrix, eigenvalues, kind, value, gap, basis, left, reason, space.note, tolerance
    )


def _with_kernel(
    matrix: LowRank, space: EigenSpace, tolerance: float
) -> tuple[np.ndarray, float, float, str, str | None]:
    """Eigenvalues, largest real part, gap, kind and reason, the zeros of the kernel counted."""
    dimension = space.dimension
    kind: str = space.kind
    if dimension:
        kind = {1: "simple", 2: "plane"}.get(dimension, "subspace")
    if not matrix.kernel:
        if space.kind == "whole space":
            kind = "whole space"
        return space.eigenvalues, space.value, space.gap, kind, space.reason
    eigenvalues = np.append(space.eigenvalues, 0.0)
    eigenvalues = eigenvalues[np.lexsort((-eigenvalues.imag, -eigenvalues.real))]
    if space.value > tolerance:
        return eigenvalues, space.value, min(space.gap, space.value), kind, space.reason
    listed = f"the eigenvalue of largest real part is {format_eigenvalues([space.value])}"
    if space.value < -tolerance:
        reason = f"{listed}, not positive: the kernel, of dimension {matrix.kernel}, is ahead of it"
        return eigenvalues, 0.0, -space.value, "kernel", reason
    reason = f"{listed}, not ahead of the zeros of the kernel, of dimension {matrix.kernel}"
    return eigenvalues, 0.0, 0.0, "tie", reason
