"""Poisson kernels and the noisy uniform density: exact values, moments, what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import sph_harm_y

from meanfield_pde import Attention, InputError, NoisyUniform, PoissonKernel, sample_tokens, solve
from meanfield_pde.initial.base import InitialDensity
from meanfield_pde.initial.masses import cell_masses
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from tests.conftest import JsonOf, Write
from tests.oracles import circle_nodes, sphere_nodes
from tests.problems import CIRCLE, MESHES

MEANS = {2: (3.0, -4.0), 3: (1.0, 2.0, 2.0)}
NODES = {2: circle_nodes(400), 3: sphere_nodes(100)}
AREA = {2: 2 * math.pi, 3: 4 * math.pi}


def length_of_mean(d: int, r: float) -> float:
    """|∫ x dmu|, on the sphere by the integral over z in closed form."""
    if d == 2:
        return r
    return (1 + r * r) / (2 * r) - ((1 - r * r) / (2 * r)) ** 2 * math.log((1 + r) / (1 - r))


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("r", [0.2, 0.7])
def test_poisson_kernel_values_mass_and_mean(d: int, r: float) -> None:
    points, weights = NODES[d]
    kernel = PoissonKernel(MEANS[d], r)
    direction = np.array(MEANS[d]) / np.linalg.norm(MEANS[d])
    apart = ((points - r * direction) ** 2).sum(axis=1)
    exact = {2: (1 - r**2) / (2 * math.pi * apart), 3: (1 - r**2) ** 2 / (4 * math.pi * apart**2)}
    density = kernel.density(points)
    np.testing.assert_allclose(density, exact[d], rtol=1e-12)
    np.testing.assert_allclose(kernel.log_density(points), np.log(exact[d]), atol=1e-12)
    assert weights @ density == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(
        (weights * density) @ points, length_of_mean(d, r) * direction, atol=1e-12
    )


def test_the_published_order_of_the_sphere() -> None:
    """|w| = 0.2 (arXiv:1907.07150)."""
    assert length_of_mean(3, 0.2) == pytest.approx(0.264521, abs=5e-7)


@pytest.mark.parametrize("r", [0.0, 0.999, 1 - 1e-6])
def test_a_narrow_kernel_is_not_missed_by_cells(r: float) -> None:
    volumes = FiniteVolumes(MESHES[2](20))
    kernel = PoissonKernel((0.6, 0.8), r)
    assert kernel.cell_masses(volumes).sum() == pytest.approx(1, abs=1e-10)
    np.testing.assert_allclose(kernel.log_density(np.eye(2))[r == 0], -math.log(2 * math.pi))


@pytest.mark.parametrize(("d", "r"), [(2, 0.7), (3, 0.5), (5, 0.5)])
def test_tokens_of_a_poisson_kernel(d: int, r: float) -> None:
    """Moments of the map of uniform points; in any dimension the mean is along w."""
    mean = MEANS.get(d, (1.0, -1.0, 2.0, 0.0, 1.0))
    direction = np.array(mean) / np.linalg.norm(mean)
    tokens = sample_tokens(PoissonKernel(mean, r), 40_000, 1, d)
    np.testing.assert_allclose(np.linalg.norm(tokens, axis=1), 1, atol=1e-14)
    if d in NODES:
        points, weights = NODES[d]
        masses = weights * PoissonKernel(mean, r).density(points)
        for power in (1, 2, 3):
            exact = masses @ (points @ direction) ** power
            assert np.mean((tokens @ direction) ** power) == pytest.approx(exact, abs=0.015)
    across = tokens.mean(axis=0) - (tokens.mean(axis=0) @ direction) * direction
    assert np.abs(across).max() < 0.015


def test_a_poisson_kernel_stays_one_at_beta_zero() -> None:
    """Circle, V = I: r' = r (1 - r^2) / 2, so that r^2 / (1 - r^2) grows like exp(t)."""
    one = np.eye(2)
    start, until = 0.2, 2.0
    kernel = PoissonKernel((1.0, 0.0), start)
    solution = solve(Attention(one, one, one, 0.0), MESHES[2](200), kernel, until=until)
    odds = math.exp(until) * start**2 / (1 - start**2)
    r = math.sqrt(odds / (1 + odds))
    assert float(solution.history["mean_x"][-1]) == pytest.approx(r, abs=1e-4)
    exact = PoissonKernel((1.0, 0.0), r).density(solution.cells.points)
    np.testing.assert_allclose(solution.density_at(-1), exact, rtol=0.01)


def harmonics(points: np.ndarray, k: int) -> np.ndarray:
    """The real harmonics of degree k, of mean square one, each a row, by another library."""
    if points.shape[1] == 2:
        angle = np.arctan2(points[:, 1], points[:, 0])
        return math.sqrt(2) * np.array([np.cos(k * angle), np.sin(k * angle)])
    polar, around = np.arccos(points[:, 2]), np.arctan2(points[:, 1], points[:, 0])
    rows = [sph_harm_y(k, 0, polar, around).real]
    for m in range(1, k + 1):
        value = (-1) ** m * math.sqrt(2) * sph_harm_y(k, m, polar, around)
        rows += [value.real, value.imag]
    return math.sqrt(4 * math.pi) * np.array(rows)


@pytest.mark.parametrize(("d", "modes"), [(2, (1, 5, 40)), (3, (2, 7))])
def test_noisy_uniform_has_the_moments_of_its_seed(d: int, modes: tuple[int, ...]) -> None:
    points, weights = NODES[d]
    noisy = NoisyUniform(7, modes, 0.01)
    density = noisy.density(points)
    assert weights @ density == pytest.approx(1, abs=1e-13)
    np.testing.assert_allclose(noisy.log_density(points), np.log(density), atol=1e-15)
    for k in (*modes, 3):
        xi = np.random.default_rng([7, k]).standard_normal(2 if d == 2 else 2 * k + 1)
        found = harmonics(points, k) @ (weights * density)
        np.testing.assert_allclose(found, 0.01 * xi * (k in modes), atol=1e-13)


def test_noisy_uniform_is_the_same_on_every_mesh() -> None:
    """Masses of coarse cells are sums of those of the four fine cells of each."""
    noisy = NoisyUniform(7, (1, 3, 9), 0.05)
    meshes = [FiniteVolumes(MESHES[2](n)) for n in (25, 100)]
    coarse, fine = (volumes.gather(cell_masses(noisy, volumes)) for volumes in meshes)
    np.testing.assert_allclose(fine.reshape(25, 4).sum(axis=1), coarse, rtol=1e-9)


@pytest.mark.parametrize(("d", "modes"), [(2, (1, 2, 256)), (3, (1, 32))])
def test_what_is_accepted_is_positive(d: int, modes: tuple[int, ...]) -> None:
    """The largest amplitude that the message names, at points between those that were looked at."""
    with pytest.raises(InputError, match="at most") as refused:
        NoisyUniform(1, modes, 10.0).check(d)
    largest = float(str(refused.value).split("at most ")[1].split()[0])
    for share, positive in ((0.99, True), (1.6, False)):
        noisy = NoisyUniform(1, modes, share * largest)
        assert (noisy.density(NODES[d][0]) > 0).all() == positive


@pytest.mark.parametrize(
    ("kind", "given", "d", "why"),
    [
        (
            PoissonKernel,
            ((1, 0), 1.0),
            2,
            "initial.modulus must be a number from 0 to 1 - 1e",
        ),
        (PoissonKernel, ((1, 0), -0.1), 2, "initial.modulus must be a number from 0"),
        (PoissonKernel, ((0, 0), 0.1), 2, "initial.mean must be a non-zero vector"),
        (PoissonKernel, ((1, 0), 0.1), 3, "initial.mean must have 3 entries"),
        (NoisyUniform, (-1, (1,), 0.1), 2, "initial.seed must be a whole number >= 0"),
        (NoisyUniform, (1, (), 0.1), 2, "initial.modes must have a degree or more"),
        (NoisyUniform, (1, (2, 2), 0.1), 2, "each once"),
        (NoisyUniform, (1, (0,), 0.1), 2, r"initial.modes\[0\] must be a whole number >= 1"),
        (NoisyUniform, (1, (257,), 1e-3), 2, "initial.modes must be at most 256, got 257"),
        (NoisyUniform, (1, (33,), 1e-3), 3, "initial.modes must be at most 32, got 33"),
        (NoisyUniform, (1, (1,), 0), 2, "initial.amplitude must be a number > 0"),
        (NoisyUniform, (1, (1,), 0.1), 5, "tokens live in dimension 5"),
    ],
)
def test_what_is_refused(kind: type[InitialDensity], given: tuple, d: int, why: str) -> None:
    with pytest.raises(InputError, match=why):
        kind(*given).check(d)


def test_a_case_file_names_them(json_of: JsonOf, write_case: Write) -> None:
    given = 'kind = "expression"\ndensity = "1 + 0.5*x + 0.3*x*y"'
    for text in (
        'kind = "poisson-kernel"\nmean = [0.6, 0.8]\nmodulus = 0.5',
        'kind = "noisy-uniform"\nseed = 1\nmodes = [1, 2]\namplitude = 0.1',
    ):
        case = write_case(CIRCLE, (given, text), ("cells = 200", "cells = 40"))
        atoms = json_of("limit", case)["atoms"]
        assert sum(atom["mass"] for atom in atoms) == pytest.approx(1, abs=1e-9)
