"""A constant external field: in the solver, tokens, verification and case files alike."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from meanfield_pde import (
    Attention,
    ConstantField,
    Heads,
    InputError,
    Perceptron,
    compare_tokens,
    read_case,
    read_result,
    run_case,
    sample_tokens,
    simulate_tokens,
    solve,
)
from meanfield_pde.attention.heads import push_beside
from meanfield_pde.attention.term import Sources, VelocityTerm
from meanfield_pde.case.text import case_text, same_case
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.velocity import MeanField, PointwiseFlux
from meanfield_pde.tokens.code import token_velocity
from tests.conftest import JsonOf, Main, Write
from tests.problems import CIRCLE, MESHES

STILL = Attention(np.eye(2), np.eye(2), np.zeros((2, 2)), 0.0)
DENSITY = "1 + 0.5*x + 0.3*x*y"
FIELD = ("[attention]", "[field]\nvector = [0.3, 0.4]\n[attention]")


def test_alone_it_moves_tokens_to_its_direction() -> None:
    """With angles from b: tan(angle / 2) decays like exp(-|b| t)."""
    layer = Heads([STILL], others=[ConstantField([0.0, 2.0])])
    start = np.array([[math.sin(a), math.cos(a)] for a in (0.3, -1.0, 3.0)])
    end = simulate_tokens(start, layer, 1.5).tokens[-1]
    expected = 2 * np.arctan(np.tan(np.array([0.3, -1.0, 3.0]) / 2) * math.exp(-3.0))
    np.testing.assert_allclose(np.arctan2(end[:, 0], end[:, 1]), expected, atol=1e-7)


def test_the_density_follows_the_exact_solution() -> None:
    """The uniform density becomes a Poisson kernel: |mean| = tanh(|b| t / 2) on the circle."""
    layer = Heads([STILL], others=[ConstantField([0.6, 0.8])])
    solution = solve(layer, MESHES[2](800), until=1.0, save_at=[0.5])
    for index, time in ((1, 0.5), (2, 1.0)):
        mean = [solution.history[f"mean_{axis}"][index] for axis in "xy"]
        np.testing.assert_allclose(mean, math.tanh(time / 2) * np.array([0.6, 0.8]), atol=2e-4)
    velocity = solution.velocity(0).x.array.reshape(-1, 2)
    assert np.linalg.norm(velocity, axis=1).max() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("d", [2, 3])
def test_density_and_tokens_agree_with_heads_beside_it(d: int) -> None:
    head = Attention(np.eye(d), np.eye(d), np.diag([1.0, 0.4, 0.2])[:d, :d], 3.0)
    layer = Heads([head], others=[ConstantField(np.arange(1, d + 1) / 4)])
    solution = solve(layer, MESHES[d](400 if d == 2 else 1280), DENSITY, until=1.0)
    cells = solution.cells
    moved = simulate_tokens(cells.points, layer, 1.0, masses=solution.masses[0], tolerance=1e-5)
    mean = solution.measure(-1).masses @ cells.points
    np.testing.assert_allclose(mean, solution.masses[0] @ moved.tokens[-1], atol=6e-3)


def test_verification_knows_it() -> None:
    head = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.4]), 3.0)
    right = Heads([head], others=[ConstantField([0.0, 0.4])])
    solution = solve(right, MESHES[2](200), DENSITY, until=1.0, save_every=0.25)
    start = sample_tokens(DENSITY, 60, 1, 2)
    agrees = simulate_tokens(start, right, 1.0, save_at=solution.times)
    right_code = compare_tokens(solution, agrees, samples=99, level=0.02)
    assert right_code.agrees
    without = simulate_tokens(start, head, 1.0, save_at=solution.times)
    found = compare_tokens(solution, without, band=right_code.band, level=0.02)
    assert not found.agrees
    assert "the external field that is left out" in str(found.cause)


def test_any_term_is_integrated_along_facets() -> None:
    """One that depends on the density, summed plainly, has the fluxes of the attention sum."""

    class Plain(VelocityTerm):
        depends_on_density = True
        dimension, speed_bound = 3, 1.0

        def push(
            self, x: np.ndarray, sources: Sources | None = None, *, tolerance: float = 1e-12
        ) -> np.ndarray:
            assert sources is not None
            weight = np.exp(2.0 * x @ sources.points.T + sources.log_masses)
            return (weight @ sources.points) / weight.sum(axis=1, keepdims=True)

    volumes = FiniteVolumes(MESHES[3](320))
    head = Attention(np.eye(3), np.eye(3), np.eye(3), 2.0)
    log_masses = np.log(volumes.volume) + volumes.centre[:, 0]
    found = PointwiseFlux(Plain(), volumes, 1e-12)
    expected = MeanField(head, volumes, 1e-12).facet_flux(log_masses)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found.facet_flux(log_masses), expected, atol=3e-3 * largest)
    x = volumes.vertices[:5]
    moved = found.field(log_masses, ())(x)
    np.testing.assert_allclose((moved * x).sum(axis=1), 0.0, atol=1e-14)


def test_terms_that_see_the_density_see_that_of_their_own_cloud() -> None:
    """As the reference code of tokens has it, for several clouds side by side, with weights."""

    class Attraction(ConstantField):
        depends_on_density = True

        def push(
            self, x: np.ndarray, sources: Sources | None = None, *, tolerance: float = 1e-12
        ) -> np.ndarray:
            assert sources is not None
            weight = np.exp(sources.log_masses)
            return np.broadcast_to(weight @ sources.points / weight.sum(), x.shape).copy()

    layer = Heads([STILL], others=[Attraction([1.0, 0.0])])
    clouds = np.random.default_rng(5).normal(size=(3, 7, 2))
    clouds /= np.linalg.norm(clouds, axis=-1, keepdims=True)
    masses = np.arange(1.0, 8.0)
    found = push_beside(layer, clouds, masses)
    for cloud, push in zip(clouds, found, strict=True):
        expected = token_velocity(layer, masses / masses.sum(), residual=True)(cloud)
        np.testing.assert_allclose(push, expected, atol=1e-14)


@pytest.mark.usefixtures("undrawn")
def test_in_a_case_file_and_back(write_case: Write, tmp_path) -> None:
    case = read_case(write_case(CIRCLE, FIELD), until=0.2, output=tmp_path / "out")
    again = tmp_path / "again.toml"
    again.write_text(case_text(case))
    assert same_case(case_text(case), case_text(read_case(again)))
    run_case(case, quiet=True)
    (term,) = read_result(tmp_path / "out").attention.beside
    assert term.vector.tolist() == [0.3, 0.4]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("vector = [1.0]", "field.vector must be d >= 2 numbers"),
        ("vector = [1.0, nan]", "field.vector[1] must be a finite number"),
        ("vector = [1.0, 0.0, 0.0]", "[field] is in dimension 3, but attention.value is 2 x 2"),
        ("", "field.vector is missing"),
        ("direction = [1.0, 0.0]", "direction"),
    ],
)
def test_refused(table: str, says: str, main: Main, write_case: Write) -> None:
    case = write_case(CIRCLE, ("[attention]", f"[field]\n{table}\n[attention]"))
    code, message = main("run", case)
    assert code == 2
    assert says in message


def test_refused_in_scripts() -> None:
    with pytest.raises(InputError, match="must be a list of numbers"):
        ConstantField("up")
    with pytest.raises(InputError, match="must have the same dimension"):
        Heads([STILL], others=[ConstantField([1.0, 0.0, 0.0])])


ALONE = """
[field]
vector = [0.6, 0.8]
[mesh]
cells = 200
[initial]
kind = "expression"
density = "1"
[time]
until = 1.0
save_every = 0.25
"""


@pytest.mark.parametrize("adapt", ["", "[adapt]\ntolerance = 1e-2\n"])
def test_a_term_may_stand_alone(
    adapt: str, main: Main, write_case: Write, tmp_path: Path, json_of: JsonOf
) -> None:
    case, out = write_case(ALONE + adapt), tmp_path / "out"
    code, err = main("run", case, "--output", out)
    assert code == 0, err
    result = read_result(out)
    mean = [result.history[f"mean_{axis}"][-1] for axis in "xy"]
    np.testing.assert_allclose(mean, math.tanh(0.5) * np.array([0.6, 0.8]), atol=2e-3)
    assert main("limit", case)[0] == 0
    tokens = tmp_path / "tokens.npz"
    assert main("tokens", case, "--count", 20, "--output", tokens)[0] == 0
    if not adapt:
        assert json_of("compare", out, tokens)["agrees"]
    # The case as run is read again, with the head that moves nothing.
    again = read_case(out / "case.toml")
    assert same_case(case_text(again), case_text(read_case(case, output=out)))


def test_a_perceptron_alone_on_the_sphere(write_case: Write) -> None:
    layer = Heads([], perceptron=Perceptron(np.eye(3), np.diag([1.0, 0.0, 0.0])))
    assert layer.dimension == 3
    x = np.array([[0.6, 0.8, 0.0]])
    np.testing.assert_allclose(layer.velocity(x), [[0.6 * 0.64, -0.6 * 0.6 * 0.8, 0.0]])
    with pytest.raises(InputError, match="at least one head, or a term beside it that has a dim"):
        Heads([])
    with pytest.raises(InputError, match=r"section \[attention\] is missing"):
        read_case(write_case("[mesh]\ncells = 200\n[time]\nuntil = 1.0\n"))
