"""A head cut down to its leading two or three directions, as a case whose density can be run.

With an orthonormal basis W (d x m) of the leading invariant subspace of A = V B^T,

    B_W = W^T B W,      A_W = W^T A W,      V_W = A_W B_W^-T.

A W = W A_W, so that the eigenvalues, E and the gap of the case are those of the head. What B^T W
has outside of the subspace is truncated, and V_W is then not W^T V W: both are stated. Tokens go
to W^T x / |W^T x|.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import linalg

from meanfield_pde.attention.head import SINGULAR, Attention
from meanfield_pde.audit.heads import products
from meanfield_pde.audit.measured import MeasuredTokens
from meanfield_pde.audit.weights import HeadWeights
from meanfield_pde.case.case import Case, MeshCase, OutputCase
from meanfield_pde.case.text import case_text
from meanfield_pde.errors import InputError
from meanfield_pde.initial.tokens import Tokens
from meanfield_pde.initial.uniform import Uniform
from meanfield_pde.results.names import CASE
from meanfield_pde.solver.settings import TimeCase
from meanfield_pde.support.files import replace_text
from meanfield_pde.tokens.cloud import TokenCloud, write_tokens

TOKENS, RESULTS = "tokens.npz", "run"
# Layers for which the density of a single layer is run: as many as a BERT of the base size has.
UNTIL = 12.0
# A token with less of its length than this in the subspace has no place in it: single precision,
# in which tokens are measured, leaves 1e-7.
_LOST = 1e-9


@dataclass(frozen=True, eq=False)
class Restriction:
    """A head on its leading invariant directions.

    Attributes:
        basis: W, d x m.
        attention: the restricted head; its query is the identity, its key B_W.
        truncated: |(I - W W^T) B^T W| / |B^T W|, the share of the scores that is lost.
        value_change: |V_W - W^T V W| / |W^T V W|.
    """

    basis: np.ndarray
    attention: Attention
    truncated: float
    value_change: float


def restrict(weights: HeadWeights, directions: int | None = None) -> Restriction:
    """Restrict a head to 2 or 3 directions; by default 2, or 3 if 2 would split a complex pair."""
    drift, key_query, value = products(weights)
    S = drift.on_range
    order = np.argsort(-np.linalg.eigvals(S).real, kind="stable")
    values = np.linalg.eigvals(S)[order]
    possible = [m for m in (2, 3) if m <= len(S) and not _splits(values, m)]
    if directions is not None and directions not in possible:
        raise InputError(
            f"--directions {directions} would split a complex pair of eigenvalues, or is more than "
            f"the rank {len(S)} of A; possible are {possible or 'none'}"
        )
    if not possible:
        raise InputError(f"A has rank {len(S)}: a case needs two or three directions")
    m = directions or possible[0]
    inside = _leading_schur(S, values, m)
    W = drift.range @ inside
    A = inside.T @ S @ inside
    seen = key_query.range @ (key_query.core @ (key_query.corange.T @ W))
    BT = W.T @ seen
    singular = np.linalg.svd(BT, compute_uv=False)
    if not singular[-1] > SINGULAR * singular[0]:
        raise InputError("the query-key matrix is singular on the leading directions of this head")
    V = np.linalg.solve(BT.T, A.T).T
    plain = W.T @ (value.range @ (value.core @ (value.corange.T @ W)))
    return Restriction(
        W,
        Attention(np.eye(m), BT.T, V, weights.beta),
        float(np.linalg.norm(seen - W @ BT) / np.linalg.norm(seen)),
        float(np.linalg.norm(V - plain) / max(float(np.linalg.norm(plain)), 1e-300)),
    )


def write_case(
    restriction: Restriction,
    directory: Path,
    *,
    layers: int,
    tokens: MeasuredTokens | None = None,
) -> list[str]:
    """Write case.toml, and tokens.npz if there are tokens; what is to be said of them.

    Args:
        restriction: the head.
        directory: where to.
        layers: of the encoder; a single one is run for `UNTIL` layers.
        tokens: measured ones, to start from and to compare with.
    """
    m = restriction.basis.shape[1]
    directory.mkdir(parents=True, exist_ok=True)
    notes = [
        f"restricted to {m} invariant directions of A; {restriction.truncated:.2%} of B^T on them "
        "points out of them and is left out",
        f"the value matrix keeps A, and differs by {restriction.value_change:.2%} from that of the "
        "head on these directions",
    ]
    initial: Uniform | Tokens = Uniform()
    until = float(layers) if layers > 1 else UNTIL
    if tokens is not None:
        cloud, captured = _projected(restriction.basis, tokens)
        write_tokens(directory / TOKENS, cloud)
        initial = Tokens.read(directory / TOKENS)
        until = float(cloud.times[-1])
        notes.append(f"the tokens have {captured:.2%} of their squared length in these directions")
    case = Case(
        attention=restriction.attention,
        mesh=MeshCase("circle" if m == 2 else "sphere"),
        initial=initial,
        time=TimeCase(until, save_every=1.0),
        output=OutputCase(directory / RESULTS),
    )
    comments = "".join(f"# {note}\n" for note in notes)
    replace_text(directory / CASE, comments + case_text(case))
    return notes


def _projected(basis: np.ndarray, measured: MeasuredTokens) -> tuple[TokenCloud, float]:
    inside = np.einsum("tnd,dk->tnk", measured.tokens, basis)
    length = np.linalg.norm(inside, axis=2, keepdims=True)
    if length.min() < _LOST:
        t, i, _ = np.unravel_index(length.argmin(), length.shape)
        raise InputError(f"token {i} of layer {t} has no part in the leading directions")
    times = np.arange(len(inside), dtype=float)
    return TokenCloud(times, inside / length), float((length**2).mean())


def _splits(values: np.ndarray, m: int) -> bool:
    """Whether the first m eigenvalues end between the two of a pair."""
    return bool(m < len(values) and values[m - 1] == values[m].conj() and values[m].imag != 0)


def _leading_schur(S: np.ndarray, values: np.ndarray, m: int) -> np.ndarray:
    """Orthonormal basis of the invariant subspace of the m leading eigenvalues."""
    if m == len(values):
        return np.eye(m)
    between = (values[m - 1].real + values[m].real) / 2
    _, vectors, count = linalg.schur(S, output="real", sort=lambda re, im: re > between)
    if count != m:
        raise InputError(
            f"the eigenvalues {m} and {m + 1} of A are too near each other to be separated"
        )
    # In each column the largest entry is positive.
    W = vectors[:, :m]
    return W * np.sign(W[np.abs(W).argmax(axis=0), np.arange(m)])
