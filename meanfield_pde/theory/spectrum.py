"""The dominant eigenspace of the drift matrix, or the reason why there is none.

The projected linear flow x' = P_x A x / |B^T x| tends to a point that depends continuously on where
it started (off a null set) exactly if the eigenvalue of A with the largest real part is real,
semisimple and strictly ahead of the others in real part. Then E = ker(A - l I) is its eigenspace
and Pi = e l^T, oblique where A is not symmetric, the spectral projector on E along the other
eigenspaces. Only differences of eigenvalues matter, not their signs: A + s I moves x in the same
way as A.

Equality is decided in floating point. Two eigenvalues are the same if they differ by less than

    max(TIE |A|, ROUNDING |A| |Pi|)

where |Pi|, the norm of the spectral projector of either one, is the factor by which an error of the
matrix is magnified in its eigenvalue. A Jordan block of size k, whose computed eigenvalues scatter
by eps^(1/k), is recognised by this: they are equal to within their own condition. The eigenvalues
are joined, nearest first, until the group is separated; what is left of A on the group's invariant
subspace is then either l I to within the tolerance, or a defective eigenvalue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import linalg

from meanfield_pde.errors import InputError

# Eigenvalues closer than this fraction of the norm of the matrix count as equal.
TIE = 1e-9
# Assumed relative error of the matrix: a thousand roundings, as weights are products of matrices.
ROUNDING = 1000 * float(np.finfo(float).eps)
# Computed eigenvalues of a Jordan block scatter by eps^(1/k), 6e-6 of the norm for k = 3.
SCATTER = 1e-4
# A gap below this fraction of the norm is real but worth a note: it makes all times long.
SMALL_GAP = 1e-4
# A projector this large is worth a note: eigenvalues that vary by this times the error of A.
LARGE_PROJECTOR = 1e4
# Bound on the norm of the projector on half a Jordan block, which is infinite.
HUGE = 1e300

Kind = Literal["simple", "plane", "subspace", "whole space", "complex", "defective", "tie"]


@dataclass(frozen=True, eq=False)
class EigenSpace:
    """The eigenspace E of the eigenvalue with the largest real part, if it dominates.

    Attributes:
        eigenvalues: all d of them, complex, by decreasing real part.
        kind: "simple", "plane", "subspace" or "whole space" by the dimension of E; or, where there
            is no dominant eigenspace, "complex" (a complex pair leads), "tie" (a complex pair has
            the same real part as the real eigenvalue) or "defective" (a Jordan block).
        value: the largest real part; the eigenvalue itself, if there is an eigenspace.
        gap: value minus the largest real part among the eigenvalues that follow; infinite if
            there are none.
        basis: d x k, orthonormal columns that span E, or None.
        left: k x d, the dual basis of left eigenvectors: left @ basis = I, or None.
        projector: Pi = basis @ left, d x d, or None.
        reason: why there is no dominant eigenspace, in a sentence, or None.
        note: what makes the answer sensitive (a small gap, a large projector), or None.
    """

    eigenvalues: np.ndarray
    kind: Kind
    value: float
    gap: float
    basis: np.ndarray | None = None
    left: np.ndarray | None = None
    projector: np.ndarray | None = None
    reason: str | None = None
    note: str | None = None

    @property
    def exists(self) -> bool:
        """Whether there is a dominant real semisimple eigenspace."""
        return self.basis is not None

    @property
    def dimension(self) -> int:
        """Dimension of E, zero if there is none."""
        return 0 if self.basis is None else int(self.basis.shape[1])


def dominant_eigenspace(matrix: np.ndarray, *, scale: float = 0.0) -> EigenSpace:
    """The dominant eigenspace of a real square matrix.

    Args:
        matrix: d x d.
        scale: size of the numbers that the matrix was computed from, |V| |B| for A = V B^T, if
            that is larger than its norm; its rounding errors are in proportion to it.
    """
    matrix = np.asarray(matrix, dtype=float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise InputError(f"eigenvalues need a square matrix, got shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise InputError("eigenvalues need a matrix of finite entries")
    d = len(matrix)
    norm = float(np.linalg.norm(matrix, 2))
    precision = _Precision(TIE * norm, ROUNDING * max(norm, scale))
    # The eigenvalues that are shown: of a real matrix, in exact conjugate pairs.
    eigenvalues = np.linalg.eigvals(matrix).astype(complex)
    eigenvalues = eigenvalues[np.lexsort((-eigenvalues.imag, -eigenvalues.real))]
    # By a power of two, which rounds nothing: LAPACK of scipy 1.14 finds no Schur form of 1e150.
    size = 2.0 ** (np.frexp(norm)[1] - 1)
    triangular, unitary = linalg.schur(matrix / size, output="complex")
    schur = size * triangular, unitary
    groups = _leading_groups(schur, norm, precision)
    first = groups[0]
    level = [g for g in groups if first.mean.real - g.mean.real <= g.tolerance + first.tolerance]
    real = [g for g in level if abs(g.mean.imag) <= g.tolerance]
    rotating = [g for g in level if abs(g.mean.imag) > g.tolerance]
    leading = _group(schur, set[int]().union(*(g.members for g in level)), precision)
    value = leading.mean.real
    others = [schur[0][i, i].real for i in range(d) if i not in leading.members]
    gap = value - max(others, default=-np.inf)
    k = len(leading.members)
    broken = _rotation(value, real, rotating) if rotating else _jordan_block(leading)
    if broken is not None:
        kind, reason = broken
        reason += f" (eigenvalues {format_eigenvalues(eigenvalues)})"
        return EigenSpace(eigenvalues, kind, value, gap, reason=reason)
    if k == d:
        return EigenSpace(eigenvalues, "whole space", value, gap, np.eye(d), np.eye(d), np.eye(d))
    # The group is closed under conjugation, so its projector is real up to rounding.
    projector = leading.projector.real
    basis = _orthonormal_range(projector, k)
    left = basis.T @ projector
    left = np.linalg.solve(left @ basis, left)  # dual to rounding, however oblique
    kinds: dict[int, Kind] = {1: "simple", 2: "plane"}
    return EigenSpace(
        eigenvalues,
        kinds.get(k, "subspace"),
        value,
        gap,
        basis,
        left,
        basis @ left,
        note=_note(gap, norm, leading.condition),
    )


def _repeated(values: np.ndarray, mean: float) -> str:
    """How equal eigenvalues are that count as one: by how much they differ, if that shows."""
    gap = float(np.abs(values[:, None] - values).max())
    if gap <= ROUNDING * max(abs(mean), 1e-300):
        return f"repeated {len(values)} times"
    return (
        f"one of {len(values)} nearly equal ones, with a gap of {gap:.3g} that is within their "
        "conditioning,"
    )


def format_eigenvalues(values: Sequence[complex] | np.ndarray) -> str:
    """Eigenvalues as text, `1, 0.2 + 0.3i, 0.2 - 0.3i`."""
    negligible = 1e-13 * float(np.abs(values).max(initial=0.0))
    texts = []
    for value in values:
        real = value.real if abs(value.real) > negligible else 0.0
        sign = "-" if value.imag < 0 else "+"
        imaginary = f" {sign} {abs(value.imag):.6g}i" if abs(value.imag) > negligible else ""
        texts.append(f"{real:.6g}{imaginary}")
    return ", ".join(texts)


@dataclass(frozen=True)
class _Precision:
    tie: float  # eigenvalues closer than this are equal by convention
    rounding: float  # error of the matrix


@dataclass(frozen=True, eq=False)
class _Group:
    """Eigenvalues that are equal to within their condition, as indices into the Schur form."""

    members: set[int]
    block: np.ndarray  # the matrix on their invariant subspace, upper triangular
    projector: np.ndarray
    mean: complex  # unlike its members, accurate to the condition of the projector
    condition: float
    tolerance: float


def _leading_groups(
    schur: tuple[np.ndarray, np.ndarray], norm: float, precision: _Precision
) -> list[_Group]:
    """Groups of all eigenvalues that may have the largest real part, by decreasing real part."""
    values = np.diag(schur[0])
    groups: list[_Group] = []
    grouped: set[int] = set()
    for start in np.argsort(-values.real):
        if values.real.max() - values[start].real > SCATTER * norm:
            break
        if start in grouped:
            continue
        group = _grown(schur, int(start), precision)
        # A badly conditioned eigenvalue may reach others that did not reach it.
        overlapping = [g for g in groups if g.members & group.members]
        for other in overlapping:
            groups.remove(other)
            group = _group(schur, group.members | other.members, precision)
        groups.append(group)
        grouped |= group.members
    return sorted(groups, key=lambda g: -g.mean.real)


def _grown(schur: tuple[np.ndarray, np.ndarray], start: int, precision: _Precision) -> _Group:
    """The group around one eigenvalue: others join, nearest first, until it is separated."""
    values = np.diag(schur[0])
    group = _group(schur, {start}, precision)
    while True:
        outside = np.setdiff1d(np.arange(len(values)), list(group.members))
        if not len(outside):
            return group
        distance = np.abs(values[outside][:, None] - values[list(group.members)]).min(axis=1)
        if distance.min() > group.tolerance:
            return group
        # Not all within the tolerance: that of half a Jordan block is without bound.
        joining = outside[distance <= max(float(distance.min()), precision.tie)]
        group = _group(schur, group.members | set(joining.tolist()), precision)


def _group(
    schur: tuple[np.ndarray, np.ndarray], members: set[int], precision: _Precision
) -> _Group:
    """The members' block of a reordered Schur form T, and their spectral projector.

    With T = [[T11, T12], [0, T22]] and T11 R - R T22 = T12 it is Z [[I, R], [0, 0]] Z^H.
    """
    d, k = len(schur[0]), len(members)
    select = np.zeros(d, dtype=np.int32)
    select[list(members)] = 1
    triangular, unitary, *_ = linalg.lapack.ztrsen(select, *schur, job=b"N", lwork=d * d)
    block, rest = triangular[:k, :k], triangular[k:, k:]
    coupling = np.zeros((k, 0))
    if k < d:
        # Equal eigenvalues in both blocks are perturbed by LAPACK, and give a huge coupling.
        coupling = linalg.solve_sylvester(block, -rest, triangular[:k, k:])
    largest = np.linalg.svd(coupling, compute_uv=False).max(initial=0.0)
    condition = min(float(np.hypot(1.0, largest)), HUGE)
    projector = unitary[:, :k] @ np.hstack([np.eye(k), coupling]) @ unitary.conj().T
    mean = complex(np.trace(block)) / k
    tolerance = max(precision.tie, precision.rounding * condition)
    return _Group(members, block, projector, mean, condition, tolerance)


def _rotation(value: float, real: list[_Group], rotating: list[_Group]) -> tuple[Kind, str]:
    """What it means that a complex pair has the largest real part, with or without a real one."""
    pair = format_eigenvalues([complex(value, abs(rotating[0].mean.imag))]).replace("+", "±")
    if real:
        return "tie", (
            f"the largest real eigenvalue is not strictly ahead: the complex pair {pair} has "
            "the same real part, so that tokens rotate and never settle"
        )
    return "complex", (
        f"the eigenvalues with the largest real part are the complex pair {pair}, so that "
        "tokens rotate and never settle"
    )


def _jordan_block(leading: _Group) -> tuple[Kind, str] | None:
    """Whether the leading eigenvalue has too few eigenvectors; None if it has enough."""
    k = len(leading.members)
    nilpotent = float(np.linalg.norm(leading.block - leading.mean * np.eye(k), 2))
    if nilpotent <= leading.tolerance:
        return None
    repeated = _repeated(np.diag(leading.block), leading.mean.real)
    return "defective", (
        f"the largest eigenvalue {leading.mean.real:.6g} is defective: it is {repeated} "
        f"but has too few eigenvectors (the nilpotent part of its Jordan block has norm "
        f"{nilpotent:.3g}), so that no spectral projection separates them"
    )


def _orthonormal_range(projector: np.ndarray, k: int) -> np.ndarray:
    """Orthonormal basis of the range; in each column the largest entry is positive."""
    basis = np.linalg.svd(projector)[0][:, :k]
    largest = basis[np.abs(basis).argmax(axis=0), np.arange(k)]
    return basis * np.sign(largest)


def _note(gap: float, norm: float, condition: float) -> str | None:
    notes = []
    if gap < SMALL_GAP * norm:
        notes.append(
            f"the spectral gap {gap:.3g} is small against the norm {norm:.3g} of the matrix: "
            "times of order 1/gap are needed to see the limit"
        )
    if condition > LARGE_PROJECTOR:
        notes.append(
            f"the spectral projector has norm {condition:.3g}: the matrix is close to one whose "
            "leading eigenvalue is repeated, and the limit is sensitive to its entries"
        )
    return "; ".join(notes) or None
