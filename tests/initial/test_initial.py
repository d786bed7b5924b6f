"""Initial densities: normalisation, exact values, what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import i0, iv

from meanfield_pde.errors import InputError
from meanfield_pde.initial.formula import ExpressionDensity
from meanfield_pde.initial.pointwise import PointwiseDensity, probes
from meanfield_pde.initial.tokens import Tokens
from meanfield_pde.initial.uniform import Uniform
from meanfield_pde.initial.von_mises import Component, VonMises
from meanfield_pde.mesh.geometry import integrate, refined_integrals, rough_integrals
from meanfield_pde.mesh.surface import circle_surface, sphere_surface
from meanfield_pde.support.checks import real
from meanfield_pde.tokens.cloud import TokenCloud, write_tokens

CONCENTRATIONS = [0.0, 1e-300, 1e-9, 1e-3, 1.0, 30.0, 1e3, 1e4, 1e6]


def polar_nodes(concentration: float) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes in the polar angle, all where the density is not negligible."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    end = min(math.pi, 12 / math.sqrt(max(concentration, 1e-12)))
    return end * (nodes + 1) / 2, end * weights / 2


@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_von_mises_has_mass_one_on_the_circle(concentration: float) -> None:
    angle, weights = polar_nodes(concentration)
    mean = np.array([0.6, 0.8])
    across = np.array([-0.8, 0.6])
    points = np.outer(np.cos(angle), mean) + np.outer(np.sin(angle), across)
    density = VonMises((Component(1, concentration, (0.6, 0.8)),))
    assert 2 * weights @ density.density(points) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_von_mises_has_mass_one_on_the_sphere(concentration: float) -> None:
    angle, weights = polar_nodes(concentration)
    mean = np.array([2.0, -1.0, 2.0]) / 3
    across = np.array([1.0, 2.0, 0.0]) / math.sqrt(5)
    points = np.outer(np.cos(angle), mean) + np.outer(np.sin(angle), across)
    density = VonMises((Component(1, concentration, (2, -1, 2)),))
    mass = 2 * math.pi * (weights * np.sin(angle)) @ density.density(points)
    assert mass == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("k", [0.5, 3.0, 20.0])
def test_von_mises_values(k: float) -> None:
    circle, sphere = probes(2), probes(3)
    np.testing.assert_allclose(
        Component(1, k, (0, 2)).density(circle),
        np.exp(k * circle[:, 1]) / (2 * math.pi * i0(k)),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        Component(1, k, (0, 0, -3)).density(sphere),
        k * np.exp(-k * sphere[:, 2]) / (4 * math.pi * math.sinh(k)),
        rtol=1e-12,
    )


def test_von_mises_mean_resultant_length() -> None:
    angle = np.arange(256) * 2 * math.pi / 256
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    moment = points.T @ Component(1, 4, (1, 0)).density(points) * 2 * math.pi / 256
    np.testing.assert_allclose(moment, [iv(1, 4) / iv(0, 4), 0], atol=1e-14)


def test_mixture_weights_are_divided_by_their_sum() -> None:
    first, second = Component(7, 3, (0.6, 0.8)), Component(3, 1.5, (-0.8, 0.6))
    points = probes(2)
    expected = 0.7 * first.density(points) + 0.3 * second.density(points)
    np.testing.assert_allclose(VonMises((first, second)).density(points), expected, rtol=1e-14)
    huge = VonMises((Component(1e308, 1, (1, 0)), Component(1e308, 1, (1, 0))))
    np.testing.assert_allclose(huge.density(points), Component(1, 1, (1, 0)).density(points))


@pytest.mark.parametrize("size", [1e-200, 1e-5, 1.0, 1e200])
def test_only_the_direction_of_the_mean_counts(size: float) -> None:
    np.testing.assert_allclose(Component(1, 1, (3 * size, 4 * size)).direction, [0.6, 0.8])


@pytest.mark.parametrize("dimension", [2, 3])
def test_uniform(dimension: int) -> None:
    area = {2: 2 * math.pi, 3: 4 * math.pi}[dimension]
    density = Uniform()
    density.check(dimension)
    np.testing.assert_allclose(density.density(probes(dimension)) * area, 1)
    assert density.length_scale(dimension) == math.inf


def test_expression_values() -> None:
    density = ExpressionDensity("1 + 0.5*x + 0.3*x*y")
    for dimension in (2, 3):
        density.check(dimension)
        x, y = probes(dimension).T[:2]
        np.testing.assert_allclose(
            density.density(probes(dimension)), 1 + 0.5 * x + 0.3 * x * y, rtol=1e-15
        )


def test_rounding_below_zero_is_zero() -> None:
    density = ExpressionDensity("1 - x**2 - y**2")
    density.check(3)
    angle = np.linspace(0, 6, 100)
    equator = np.column_stack([np.cos(angle), np.sin(angle), 0 * angle])
    values = density.density(equator)
    assert (values >= 0).all()
    assert values.max() < 1e-15


@pytest.mark.parametrize(
    ("text", "dimension", "fragment"),
    [
        ("x", 2, "must be finite and >= 0 everywhere, got -1 at (-1, 0) from 'x'"),
        ("-1", 3, "got -1 at (1, 0, 0)"),
        ("0", 2, "zero everywhere: '0'"),
        ("0*x", 3, "zero everywhere"),
        ("1/x", 2, "got inf at (0, 1)"),
        ("log(x)", 3, "at (0, 1, 0) from 'log(x)'"),
        ("sqrt(y)", 2, "got nan at (0, -1)"),
        ("exp(1000*x)", 2, "got inf at (1, 0)"),
        ("1 + z", 2, "initial.density: 'z' is the third coordinate, but the dimension is 2"),
    ],
)
def test_expression_that_is_no_density(text: str, dimension: int, fragment: str) -> None:
    with pytest.raises(InputError) as caught:
        ExpressionDensity(text).check(dimension)
    assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("density", "dimension", "low", "high"),
    [
        (VonMises((Component(1, 1e4, (1, 0)), Component(0, 1e6, (1, 0)))), 2, 0.01, 0.01),
        (VonMises((Component(1, 0, (1, 0)),)), 2, math.inf, math.inf),
        (ExpressionDensity("3"), 3, math.inf, math.inf),
        (ExpressionDensity("2 + x"), 2, 2.9, 3.1),
        (ExpressionDensity("2 + z"), 3, 2.9, 3.1),
        (ExpressionDensity("exp(1e4*(x - 1))"), 2, 0.01, 0.02),
        (ExpressionDensity("1 + 0.5*sin(50*z)"), 3, 0.05, 0.07),
    ],
)
def test_length_scale(density: PointwiseDensity, dimension: int, low: float, high: float) -> None:
    assert low <= density.length_scale(dimension) <= high


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ((-1, 1, (1, 0)), "weight must be a number >= 0, got -1"),
        ((True, 1, (1, 0)), "weight must be a number >= 0, got True"),
        ((1, -1, (1, 0)), "concentration must be a number from 0 to 1e+12, got -1"),
        ((1, math.inf, (1, 0)), "concentration must be a number from 0 to 1e+12, got inf"),
        ((1, "3", (1, 0)), "got '3'"),
        ((1, 1, (0, 0)), "mean must be a non-zero vector, got [0.0, 0.0]"),
        ((1, 1, ()), "mean must be a non-zero vector"),
        ((1, 1, (1, math.nan)), "mean[1] must be a number, got nan"),
        ((1, 1, (1, "0")), "mean[1] must be a number, got '0'"),
        ((1, 1, "10"), "mean must be a list of numbers, got '10'"),
        ((1, 1, 1.0), "mean must be a list of numbers, got 1.0"),
    ],
)
def test_component_refused(arguments: tuple[Any, Any, Any], fragment: str) -> None:
    with pytest.raises(InputError) as caught:
        Component(*arguments)
    assert fragment in str(caught.value)


def test_mixture_refused() -> None:
    with pytest.raises(InputError, match="at least one component"):
        VonMises(())
    with pytest.raises(InputError, match="positive sum of weights, got 0"):
        VonMises((Component(0, 1, (1, 0)),))
    with pytest.raises(InputError, match=r"components\[1\]\.mean must have 2 entries"):
        VonMises((Component(1, 1, (1, 0)), Component(1, 1, (1, 0, 0)))).check(2)


def test_tokens(tmp_path: Path) -> None:
    tokens = Tokens(np.array([[1.0, 0.0], [0.0, 1.0 + 1e-8], [-1.0, 0.0]]))
    np.testing.assert_array_equal(tokens.points[1], [0, 1])
    np.testing.assert_allclose(tokens.measure().masses, 1 / 3)
    tokens.check(2)
    with pytest.raises(InputError, match="must have 3 coordinates"):
        tokens.check(3)
    positions = np.stack([tokens.points, -tokens.points])
    cloud = TokenCloud(np.array([0, 1]), positions, masses=np.array([1, 2, 1]))
    write_tokens(tmp_path / "tokens.npz", cloud)
    read = Tokens.read(tmp_path / "tokens.npz")
    np.testing.assert_array_equal(read.points, tokens.points)
    np.testing.assert_allclose(read.measure().masses, [0.25, 0.5, 0.25])
    with pytest.raises(InputError, match=r"tokens\.npz$"):
        read.check(3)


def test_tokens_refused() -> None:
    with pytest.raises(InputError, match="token 1 is not on the unit sphere"):
        Tokens(np.array([[1.0, 0.0], [0.0, 2.0]]))
    with pytest.raises(InputError, match="masses >= 0, got -1 at atom 1"):
        Tokens(np.eye(2), np.array([1.0, -1.0]))
    with pytest.raises(InputError, match="positive total mass"):
        Tokens(np.eye(2), np.zeros(2))


@pytest.mark.parametrize("value", [True, "1", None, math.nan, math.inf, 10**400, [1.0], 1j])
def test_real_refuses(value: object) -> None:
    with pytest.raises(InputError, match="it must be a number, got"):
        real(value, "it", "a number")


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.int64(1)])
def test_real_accepts(value: object) -> None:
    assert type(real(value, "it", "a number")) is float


@pytest.mark.parametrize("concentration", [0.0, 30.0, 1e4, 1e6, 1e8, 1e10, 1e12])
@pytest.mark.parametrize("dimension", [2, 3])
def test_cells_hold_the_mass_of_a_density_however_narrow(
    dimension: int, concentration: float
) -> None:
    """On a mesh far too coarse for it: nothing is lost, and the mixture keeps its weights."""
    make = {2: circle_surface, 3: sphere_surface}[dimension]
    surface = make(20)
    mean = np.array([0.48, 0.6, 0.64][:dimension])
    narrow = Component(0.7, concentration, tuple(mean))
    mixture = VonMises((narrow, Component(0.3, 0.0, tuple(mean))))
    cells = surface.points[surface.cells]
    peaks = (mixture.length_scale(dimension), mixture.peaks(dimension))
    masses = integrate(mixture.density, cells, *peaks)
    assert masses.sum() == pytest.approx(1, abs=1e-10)
    # A rank that holds only some of the cells, near the peak or far from it, finds the same.
    coarse, size = rough_integrals(mixture.density, cells)
    parts = np.array_split(np.arange(len(cells)), 3)
    found = [
        refined_integrals(mixture.density, cells[part], coarse[part], size.sum(), *peaks)
        for part in parts
    ]
    np.testing.assert_array_equal(np.concatenate(found), masses)
