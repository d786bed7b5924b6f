"""Dominant eigenspaces of matrices whose eigenstructure is known by construction."""

import numpy as np
import pytest

from meanfield_pde.errors import InputError
from meanfield_pde.theory.spectrum import dominant_eigenspace, format_eigenvalues

STRUCTURES = {
    # name: (A in a basis of its invariant subspaces, kind, dimension)
    "distinct": (np.diag([1, 0.2, 0.1]), "simple", 1),
    "negative": (np.diag([-1, -1.2, -4]), "simple", 1),
    "zero ahead": (np.diag([0, -1, -2]), "simple", 1),
    "defective behind": ([[1, 0, 0], [0, 0.5, 1], [0, 0, 0.5]], "simple", 1),
    "complex behind": ([[1, 0, 0], [0, 0.5, 1], [0, -1, 0.5]], "simple", 1),
    "small gap": (np.diag([1, 1 - 1e-6, 0.5]), "simple", 1),
    "plane": (np.diag([1, 1, 0.2]), "plane", 2),
    "plane, zero": (np.diag([0, 0, -0.2]), "plane", 2),
    "multiple of I": (2.5 * np.eye(3), "whole space", 3),
    "minus I": (-np.eye(3), "whole space", 3),
    "Jordan 2": ([[1, 1, 0], [0, 1, 0], [0, 0, -5]], "defective", 0),
    "Jordan 3": ([[1, 1, 0], [0, 1, 1], [0, 0, 1]], "defective", 0),
    "Jordan 2 + 1": ([[1, 1, 0], [0, 1, 0], [0, 0, 1]], "defective", 0),
    "weak Jordan": ([[1, 1e-4, 0], [0, 1, 0], [0, 0, 0]], "defective", 0),
    "complex ahead": ([[1, 0.3, 0], [-0.3, 1, 0], [0, 0, 0.9]], "complex", 0),
    "slow rotation": ([[1, 1e-5, 0], [-1e-5, 1, 0], [0, 0, 0.9]], "complex", 0),
    "tie": ([[1, 0.1, 0], [-0.1, 1, 0], [0, 0, 1]], "tie", 0),
}


def bases(count: int, d: int, seed: int) -> list[np.ndarray]:
    """Random bases, far from orthogonal but not degenerate."""
    rng = np.random.default_rng(seed)
    found: list[np.ndarray] = [np.eye(d), np.linalg.qr(rng.normal(size=(d, d)))[0]]
    while len(found) < count:
        basis = rng.normal(size=(d, d))
        if np.linalg.cond(basis) < 100:
            found.append(basis)
    return found


@pytest.mark.parametrize("name", STRUCTURES)
def test_known_structure(name: str) -> None:
    block, kind, dimension = STRUCTURES[name]
    block = np.array(block, dtype=float)
    for basis in bases(60, 3, seed=1):
        inverse = np.linalg.inv(basis)
        space = dominant_eigenspace(basis @ block @ inverse)
        assert (space.kind, space.dimension) == (kind, dimension)
        assert space.exists == (dimension > 0)
        if not space.exists:
            assert space.reason
            assert space.projector is None
            continue
        gaps = np.linalg.eigvals(block).real.max() - np.linalg.eigvals(block).real
        assert space.value == pytest.approx(block[0, 0], abs=1e-11)
        if kind == "whole space":
            assert space.gap == np.inf
            continue
        np.testing.assert_allclose(space.gap, gaps[gaps > 1e-9].min(), rtol=1e-4)
        exact = basis[:, :dimension] @ inverse[:dimension]
        error = 1e-5 if name == "small gap" else 1e-10
        np.testing.assert_allclose(space.projector, exact, atol=error * np.linalg.norm(exact) ** 2)
        np.testing.assert_allclose(space.left @ space.basis, np.eye(dimension), atol=1e-12)
        np.testing.assert_allclose(space.basis.T @ space.basis, np.eye(dimension), atol=1e-12)
        np.testing.assert_allclose(space.projector @ space.projector, space.projector, atol=1e-9)


@pytest.mark.parametrize("factor", [1e-200, 1e-20, 1e20, 1e150])
@pytest.mark.parametrize("name", STRUCTURES)
def test_scale_does_not_matter(name: str, factor: float) -> None:
    block, kind, _ = STRUCTURES[name]
    basis = bases(3, 3, seed=2)[2]
    matrix = basis @ np.array(block, dtype=float) @ np.linalg.inv(basis)
    space = dominant_eigenspace(factor * matrix)
    assert space.kind == kind
    assert space.gap == pytest.approx(factor * dominant_eigenspace(matrix).gap, rel=1e-3)


@pytest.mark.parametrize("d", [2, 5, 16, 64])
def test_random_symmetric_and_not(d: int) -> None:
    rng = np.random.default_rng(d)
    values = np.sort(rng.normal(size=d))[::-1]
    orthogonal = np.linalg.qr(rng.normal(size=(d, d)))[0]
    space = dominant_eigenspace(orthogonal @ np.diag(values) @ orthogonal.T)
    assert space.gap == pytest.approx(values[0] - values[1])
    np.testing.assert_allclose(space.projector, np.outer(*[orthogonal[:, 0]] * 2), atol=1e-10)
    np.testing.assert_allclose(space.eigenvalues, values, atol=1e-12)
    basis = orthogonal + 0.3 * rng.normal(size=(d, d)) / np.sqrt(d)
    values[:3] = values[0]  # repeated: for d = 2 all of them
    inverse = np.linalg.inv(basis)
    space = dominant_eigenspace(basis @ np.diag(values) @ inverse)
    assert space.kind == ("whole space" if d == 2 else "subspace")
    np.testing.assert_allclose(space.projector, basis[:, :3] @ inverse[:3], atol=1e-9)


def test_zero_matrix_moves_nothing() -> None:
    space = dominant_eigenspace(np.zeros((3, 3)))
    assert space.kind == "whole space"
    np.testing.assert_array_equal(space.projector, np.eye(3))


def test_what_is_equal() -> None:
    """Differences below 1e-9 of the norm count as none, larger ones do not."""
    assert dominant_eigenspace(np.diag([1, 1 - 1e-10, 0])).kind == "plane"
    assert dominant_eigenspace(np.diag([1, 1 - 1e-8, 0])).kind == "simple"
    assert dominant_eigenspace(np.array([[1, 1e-10], [0, 1]])).kind == "whole space"
    assert dominant_eigenspace(np.array([[1, 1e-8], [0, 1]])).kind == "defective"
    # The same numbers from a product of large matrices are rounding.
    assert dominant_eigenspace(np.array([[1, 1e-8], [0, 1]]), scale=1e6).kind == "whole space"


@pytest.mark.parametrize(
    ("matrix", "fragments"),
    [
        ([[0, -2], [2, 0]], ["complex pair 0 ± 2i", "rotate", "0 + 2i, 0 - 2i"]),
        ([[3, 1], [0, 3]], ["largest eigenvalue 3 is defective", "2 times", "norm 1)", "3, 3"]),
        ([[0, -2, 0], [2, 0, 0], [0, 0, 0]], ["not strictly ahead", "0 ± 2i"]),
    ],
)
def test_reasons_name_the_numbers(matrix: list[list[float]], fragments: list[str]) -> None:
    reason = dominant_eigenspace(np.array(matrix)).reason
    for fragment in fragments:
        assert fragment in reason


def test_notes() -> None:
    assert dominant_eigenspace(np.diag([1, 0.5])).note is None
    assert "gap 1e-06 is small" in dominant_eigenspace(np.diag([1, 1 - 1e-6])).note
    assert "projector has norm" in dominant_eigenspace(np.array([[1, 1e5], [0, 0.5]])).note


@pytest.mark.parametrize(
    ("matrix", "message"),
    [(np.ones((2, 3)), "square"), (np.zeros((0, 0)), "square"), ([[np.nan, 0], [0, 1]], "finite")],
)
def test_bad_input(matrix: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dominant_eigenspace(np.array(matrix))


def test_format() -> None:
    assert format_eigenvalues(np.array([1, -1e-17, 2j])) == "1, 0, 0 + 2i"
    assert format_eigenvalues(np.array([0.5 - 0.25j])) == "0.5 - 0.25i"
