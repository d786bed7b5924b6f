"""Every kind of initial density, found by its name; and what only scripts give."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from meanfield_pde.errors import InputError
from meanfield_pde.initial.base import Content, InitialDensity
from meanfield_pde.initial.formula import ExpressionDensity
from meanfield_pde.initial.given import CellMasses, FunctionDensity, InitialLike, as_initial
from meanfield_pde.initial.kinds import KINDS
from meanfield_pde.initial.masses import cell_masses
from meanfield_pde.initial.noisy_uniform import NoisyUniform
from meanfield_pde.initial.poisson_kernel import PoissonKernel
from meanfield_pde.initial.sampling import sample_tokens
from meanfield_pde.initial.tokens import Tokens
from meanfield_pde.initial.uniform import Uniform
from meanfield_pde.initial.von_mises import Component, VonMises
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.surface import circle_mesh, sphere_mesh
from meanfield_pde.tokens.cloud import TokenCloud, write_tokens
from meanfield_pde.wasserstein.measure import Measure

MIXTURE = VonMises((Component(0.7, 3, (0.6, 0.8)), Component(0.3, 0, (-1, 0))))


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    angle = np.linspace(0.1, 6, 40)
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    cloud = TokenCloud(np.zeros(1), points[None], masses=np.arange(40.0))
    write_tokens(tmp_path / "tokens.npz", cloud)
    return Tokens.read(tmp_path / "tokens.npz")


@pytest.fixture
def one_of_each(tokens: Tokens) -> list[InitialDensity]:
    return [
        Uniform(),
        NoisyUniform(seed=3, modes=(1, 4), amplitude=0.2),
        MIXTURE,
        PoissonKernel((0.6, -0.8), 0.4),
        ExpressionDensity("1 + 0.5*x*y"),
        tokens,
    ]


def test_every_kind_comes_back_from_its_own_table(one_of_each: list[InitialDensity]) -> None:
    assert [one.kind for one in one_of_each] == list(KINDS)
    for density in one_of_each:
        table = density.to_table()
        assert table.keys() == {"kind", *density.keys}
        again = KINDS[table["kind"]].from_table(table, Path("elsewhere"))
        assert type(again) is type(density)
        for field in dataclasses.fields(density):
            given, read = getattr(density, field.name), getattr(again, field.name)
            np.testing.assert_array_equal(read, given)


def test_every_kind_fills_cells_and_is_sampled_alike(one_of_each: list[InitialDensity]) -> None:
    """The mean of many tokens is that of the masses of fine cells, to sampling error and width."""
    volumes = FiniteVolumes(circle_mesh(400))
    centre = volumes.centre[: volumes.owned]
    for density in one_of_each:
        mean = volumes.comm.allreduce(cell_masses(density, volumes) @ centre)
        drawn = sample_tokens(density, 20_000, 1, 2).mean(axis=0)
        np.testing.assert_allclose(drawn, mean, atol=0.03)


def test_exact_form(one_of_each: list[InitialDensity]) -> None:
    points = np.array([[0.6, 0.8], [-1.0, 0.0]])
    *pointwise, tokens = one_of_each
    for density in pointwise:
        exact = density.exact(2)
        assert isinstance(exact, Content)
        assert callable(exact.values)
        assert (exact.values(points) > 0).all()
    atoms = tokens.exact(2)
    assert isinstance(atoms, Measure)
    assert len(atoms.points) == 40


def test_what_scripts_give_is_the_same_density() -> None:
    """A formula, its function, and the masses it has in the cells."""
    volumes = FiniteVolumes(sphere_mesh(320))
    formula = cell_masses("2 + x", volumes)
    np.testing.assert_allclose(cell_masses(lambda p: 2 + p[:, 0], volumes), formula, rtol=1e-12)
    # Divided by their sum, which is 4 but for rounding.
    scaled = cell_masses(volumes.gather(formula) * 4, volumes)
    np.testing.assert_allclose(scaled, formula, rtol=1e-15)
    assert as_initial("2 + x") == ExpressionDensity("2 + x")
    assert as_initial(MIXTURE) is MIXTURE


def test_tokens_of_a_function() -> None:
    """<x> of 1 + 0.9 z on the sphere is 0.3 along z; a function and a formula draw the same."""
    of_function = sample_tokens(lambda p: 1 + 0.9 * p[:, 2], 4000, 3, 3)
    np.testing.assert_array_equal(of_function, sample_tokens("1 + 0.9*z", 4000, 3, 3))
    np.testing.assert_allclose(of_function.mean(axis=0), [0, 0, 0.3], atol=0.04)


@pytest.mark.parametrize(
    ("initial", "fragment"),
    [
        (lambda p: p[:, 0], "must be finite and >= 0 everywhere"),
        (lambda p: np.full(len(p), np.nan), "must be finite and >= 0 everywhere"),
        (lambda p: np.zeros(len(p)), "zero wherever it was tried"),
        (np.ones(5), "cannot be drawn from the masses of cells"),
    ],
)
def test_tokens_of_what_scripts_give_refused(initial: InitialLike, fragment: str) -> None:
    with pytest.raises(InputError, match=fragment):
        sample_tokens(initial, 10, 0, 2)


def test_no_case_file_holds_what_only_scripts_give() -> None:
    with pytest.raises(InputError, match="cannot hold a Python function; give a formula"):
        FunctionDensity(np.sum).to_table()
    with pytest.raises(InputError, match="cannot hold the masses of cells"):
        CellMasses(np.ones(3)).to_table()
    with pytest.raises(InputError, match="names tokens by their file"):
        Tokens(np.eye(2)).to_table()


def test_masses_refused() -> None:
    volumes = FiniteVolumes(circle_mesh(10))
    with pytest.raises(InputError, match=r"each of the 10 cells, got an array of shape \(9,\)"):
        cell_masses(np.ones(9), volumes)
    with pytest.raises(InputError, match="must be finite and >= 0 in every cell"):
        cell_masses(lambda p: p[:, 0], volumes)
    with pytest.raises(InputError, match="must have a positive, finite mass, got 0"):
        cell_masses(np.zeros(10), volumes)


def test_a_function_of_another_shape_is_refused() -> None:
    volumes = FiniteVolumes(circle_mesh(10))
    for function in (lambda points: points, lambda points: 1.0, lambda points: ["a"] * len(points)):
        with pytest.raises(InputError, match="the initial density"):
            cell_masses(function, volumes)


def test_masked_masses_are_refused() -> None:
    masses = np.ma.masked_equal(np.arange(10.0), 3.0)
    with pytest.raises(InputError, match="initial masses is a masked array with 1 entries"):
        cell_masses(masses, FiniteVolumes(circle_mesh(10)))


def test_more_tokens_than_the_memory_holds_are_refused_at_once() -> None:
    with pytest.raises(InputError, match="drawing 1000000000000 tokens needs about"):
        sample_tokens("1", 10**12, 0, 2)
