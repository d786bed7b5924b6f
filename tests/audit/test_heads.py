"""Heads with planted structure: recovered, low rank against dense, and what `limit` says."""

from __future__ import annotations

import json
import math
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.linalg import subspace_angles

from meanfield_pde.audit.encoders import read_encoder
from meanfield_pde.audit.export import restrict
from meanfield_pde.audit.heads import audit_head, audit_heads
from meanfield_pde.audit.weights import HeadWeights, read_npz
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.saddles import Tail, saddles
from meanfield_pde.theory.spectrum import dominant_eigenspace
from tests.conftest import Printed, Write


def planted(
    generator: np.random.Generator, d: int, values: np.ndarray
) -> tuple[HeadWeights, np.ndarray]:
    """A head whose A has these eigenvalues besides zeros (a block for a pair), and e."""
    k = len(values)
    query, key, value = (generator.standard_normal((k, d)) for _ in range(3))
    frame = generator.standard_normal((k, k))
    small = frame @ values @ np.linalg.inv(frame)
    # W_V K^T Q W_O = small; the part of W_O in the kernel of Q is free.
    inverse = np.linalg.pinv(query)
    free = (np.eye(d) - inverse @ query) @ generator.standard_normal((d, k))
    output = inverse @ np.linalg.solve(value @ key.T, small) + free
    e = output @ (value @ key.T) @ query @ (output @ frame[:, 0])
    return HeadWeights(query, key, value, output, 4.0), e / np.linalg.norm(e)


def dense(head: HeadWeights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, B^T and V."""
    V = head.dense_value
    return V @ head.key.T @ head.query, head.key.T @ head.query, V


@pytest.mark.parametrize("last", [0.7, -0.7])
@pytest.mark.parametrize("d", [3, 12])
def test_low_rank_agrees_with_dense(d: int, last: float) -> None:
    generator = np.random.default_rng(d)
    values = np.diag([2.5, 1.2, last]) if d > 3 else np.diag([2.5, last])
    for _ in range(5):
        head, e = planted(generator, d, values)
        A, BT, V = dense(head)
        found = audit_head(head)
        scale = float(np.linalg.norm(V, 2) * np.linalg.norm(BT, 2))
        space = dominant_eigenspace(A, scale=scale)
        behind = saddles(A, BT, space, scale=scale)
        assert space.basis is not None
        tail = Tail(BT, space.basis, behind)
        assert found.limit
        assert found.basis is not None
        assert abs(found.basis[:, 0] @ e) == pytest.approx(1, abs=1e-12)
        assert found.gap == pytest.approx(space.gap, rel=1e-9)
        speed = float(np.linalg.norm(BT @ e))
        assert found.rate == pytest.approx(space.gap / speed, rel=1e-9)
        if d > 3 or last > 0:
            assert found.escape_rate == pytest.approx(behind[0].escape_rate, rel=1e-9)
        assert found.lifetime_per_beta == pytest.approx(
            tail.lifetime(space.basis), rel=1e-9, abs=1e-12
        )
        if last < 0:
            assert found.tail_rate == pytest.approx(tail.rate(space.basis), rel=1e-9)
        else:  # the kernel is last, and at zero temperature nothing stays there
            assert found.tail_rate == math.inf
        singular = np.linalg.svd(V, compute_uv=False)
        assert found.stable_rank == pytest.approx((singular**2).sum() / singular[0] ** 2, rel=1e-9)
        terminal = dominant_eigenspace(-V if e @ BT @ e < 0 else V, scale=0.0)
        if terminal.basis is None:
            assert found.angle_to_terminal is None
        else:
            angle = subspace_angles(space.basis, terminal.basis)[0]
            assert found.angle_to_terminal == pytest.approx(angle, abs=1e-9)


def test_what_is_no_limit() -> None:
    generator = np.random.default_rng(1)
    rotation = np.array([[1.0, 0.5, 0.0], [-0.5, 1.0, 0.0], [0.0, 0.0, 0.3]])
    for values, kind, dimension in (
        (rotation, "complex", 0),
        (-np.diag([2.0, 1.0, 0.5]), "kernel", 0),
        (np.diag([2.0, 2.0, 0.5]), "plane", 2),
    ):
        found = audit_head(planted(generator, 10, values)[0])
        assert (found.kind, found.dimension, found.limit) == (kind, dimension, False)
        assert found.reason
        assert found.rate is None


@pytest.mark.parallel([2])
def test_the_json_of_a_small_head_is_that_of_limit(
    printed: Printed, write_case: Write, tmp_path: Path
) -> None:
    """On two ranks, of which the first prints."""
    comm = MPI.COMM_WORLD
    generator = np.random.default_rng(3)
    matrices = [np.eye(2) + 0.4 * generator.standard_normal((2, 2)) for _ in range(3)]
    names = ("query", "key", "value")
    weights = tmp_path / "w.npz"
    np.savez(weights, beta=40.0, **dict(zip(names, matrices, strict=True)))
    text = (
        "[attention]\nweights = 'w.npz'\nbeta = 40.0\n[mesh]\nkind = 'circle'\n[time]\nuntil = 1\n"
    )
    case, weights = comm.bcast((write_case(text), weights))
    shown = [printed("limit", case, "--json"), printed("audit", weights, "--json")]
    assert comm.rank == 0 or shown == ["", ""]
    limit, audit = map(json.loads, comm.bcast(shown))
    (head,) = audit["heads"]
    assert head["limit"] is limit["exists"] is True
    assert (head["layer"], head["head"], head["reason"]) == (0, 0, None)
    for name, theirs in (
        ("eigenvalues", "eigenvalues"),
        ("beta", "beta"),
        ("dimension", "dimension"),
        ("gap", "gap"),
        ("rate", "contraction_rate"),
        ("escape_rate", "escape_rate"),
        ("tail_rate", "tail_rate"),
        ("lifetime", "lifetime"),
        ("log_beta_time", "log_beta_time"),
    ):
        assert head[name] == limit[theirs], name
    assert head["angle_to_terminal"] == limit["terminal"]["angle"]


@pytest.mark.parametrize(
    ("prefix", "names", "config"),
    [
        (
            "bert.encoder.layer.{}.",
            ("attention.self.{}", "attention.output.dense", "output.LayerNorm"),
            ("num_hidden_layers", "num_attention_heads", "hidden_size"),
        ),
        (
            "distilbert.transformer.layer.{}.",
            ("attention.{}_lin", "attention.out_lin", "output_layer_norm"),
            ("n_layers", "n_heads", "dim"),
        ),
    ],
)
def test_planted_encoders_are_recovered(
    tmp_path: Path, prefix: str, names: tuple[str, ...], config: tuple[str, ...]
) -> None:
    layers, heads, d, gain = 2, 3, 24, 1.5
    generator = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    expected = []
    norms = [f"{prefix.split('.')[0]}.embeddings.LayerNorm.weight"]
    for layer in range(layers):
        many = []
        for head in range(heads):
            values = np.diag([2.0 + head, 1.0 + layer / 2, -0.5, 0.0])
            one, e = planted(generator, d, values)
            many.append(one)
            expected.append((2.0 + head, 1.0 + head - layer / 2, e, one))
        begin = prefix.format(layer)
        parts = ("query", "key", "value") if "self" in names[0] else ("q", "k", "v")
        for part, field in zip(parts, ("query", "key", "value"), strict=True):
            stacked = np.vstack([getattr(one, field) for one in many])
            tensors[f"{begin}{names[0].format(part)}.weight"] = stacked
        outputs = np.hstack([one.output for one in many if one.output is not None])
        tensors[f"{begin}{names[1]}.weight"] = outputs
        norms.append(f"{begin}{names[2]}.weight")
    tensors |= {name: np.full(d, gain) for name in norms}
    save_file(tensors, tmp_path / "model.safetensors")
    values = dict(zip(config, (layers, heads, d), strict=True))
    (tmp_path / "config.json").write_text(json.dumps(values))
    found = list(audit_heads(read_encoder(tmp_path)))
    assert len(found) == layers * heads
    for head, (value, gap, e, one) in zip(found, expected, strict=True):
        assert head.limit
        assert head.basis is not None
        assert head.beta == pytest.approx(d * gain**2 / 2, rel=1e-14)  # d_head = 4
        assert head.value == pytest.approx(value, abs=1e-8)
        assert head.gap == pytest.approx(gap, abs=1e-8)
        assert abs(head.basis[:, 0] @ e) == pytest.approx(1, abs=1e-12)
        assert head.kernel >= d - 4
        V = one.dense_value
        values_of_v, vectors = np.linalg.eig(V)
        lead = int(values_of_v.real.argmax())
        if e @ dense(one)[1] @ e > 0 and abs(values_of_v[lead].imag) < 1e-9:
            cosine = abs(vectors[:, lead].real @ e) / np.linalg.norm(vectors[:, lead].real)
            assert head.angle_to_terminal == pytest.approx(math.acos(cosine), abs=1e-8)


def test_leading_axes_may_be_missing(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for leading, shape in (((), (1, 1)), ((3,), (1, 3)), ((2, 3), (2, 3))):
        thin = (*leading, 4, 10)
        arrays = {name: generator.standard_normal(thin) for name in ("query", "key", "value")}
        arrays["output"] = generator.standard_normal((*leading, 10, 4))
        np.savez(tmp_path / "w.npz", **arrays)
        encoder = read_npz(tmp_path / "w.npz")
        assert (encoder.layers, encoder.heads) == shape
        last = encoder.layer(shape[0] - 1)[-1]
        assert np.array_equal(last.query, arrays["query"].reshape(-1, 4, 10)[-1])
        assert last.beta == 10 / 2


def test_a_restricted_head_keeps_its_leading_eigenvalues() -> None:
    generator = np.random.default_rng(4)
    pair = np.array([[2.5, 0, 0, 0], [0, 1.0, 0.6, 0], [0, -0.6, 1.0, 0], [0, 0, 0, 0.2]])
    for values, expected in (
        (np.diag([2.5, 1.2, 0.4, -1.0]), [2.5, 1.2]),
        (pair, [2.5, 1 + 0.6j, 1 - 0.6j]),  # not split
    ):
        head, e = planted(generator, 12, values)
        found = restrict(head)
        assert found.basis.T @ found.basis == pytest.approx(np.eye(len(expected)), abs=1e-12)
        limit = ProjectionLimit(found.attention)
        assert limit.eigenvalues == pytest.approx(np.array(expected), abs=1e-8)
        assert abs((found.basis @ limit.basis)[:, 0] @ e) == pytest.approx(1, abs=1e-9)
        A = dense(head)[0]
        outside = A @ found.basis - found.basis @ (found.basis.T @ A @ found.basis)
        assert np.abs(outside).max() < 1e-8
