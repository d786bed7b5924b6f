"""Columns of the history: records, those of users among them, and the page that lists them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from meanfield_pde import Attention, InputError, circle_mesh, read_result, solve, sphere_mesh
from meanfield_pde.case.file import read_case
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.diagnostics import Diagnostics
from meanfield_pde.solver.observables import MOST_OWN, Observable, columns
from meanfield_pde.theory.projection_limit import ProjectionLimit
from tests.conftest import Main, Write
from tests.problems import CIRCLE, MESHES

ROOT = Path(__file__).parents[2]
SQUARES = {"own_xx": "x**2", "own_xy": lambda points: points[:, 0] * points[:, 1]}


def same_moments(history: dict[str, np.ndarray]) -> None:
    for pair in ("xx", "xy"):
        own, moment = history[f"own_{pair}"], history[f"second_{pair}"]
        np.testing.assert_allclose(own, moment, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("d", "cells"), [(2, 80), (3, 320), (3, 5120)])
def test_means_over_cells_are_exact_whatever_their_width(d: int, cells: int) -> None:
    """Where cells are narrow and the integrand is smooth, the rule is not checked by halving them.

    The square of the distance has a kink where that is pi / 2, which cells are divided at.
    """
    axes = np.linalg.qr(np.random.default_rng(2).normal(size=(d, d)))[0]
    value = axes @ np.diag([1.0, 0.3, 0.2][:d]) @ axes.T
    attention = Attention(np.eye(d), np.eye(d), value, math.inf)
    volumes = FiniteVolumes(MESHES[d](cells))
    found = Diagnostics(volumes, 1e-10, attention, ProjectionLimit(attention))
    own = slice(0, volumes.owned)
    corners, volume = volumes.cell_points[own], volumes.volume[own]
    second = geometry.integrate(found.products, corners) / volume[:, None]
    np.testing.assert_allclose(found.second, second, rtol=0, atol=1e-12)

    def squared(x: np.ndarray) -> np.ndarray:
        return np.arctan2(geometry.norm(x @ axes[:, 1:]), np.abs(x @ axes[:, 0])) ** 2

    heights = corners @ axes[:, 0]
    whole = (heights.min(axis=1) > 0) | (heights.max(axis=1) < 0)
    assert 0 < (~whole).sum() < whole.sum()
    expected = np.zeros(volumes.owned)
    expected[whole] = geometry.integrate(squared, corners[whole]) / volume[whole]
    assert found.square_distance is not None
    own_squares = found.square_distance
    np.testing.assert_allclose(own_squares[whole], expected[whole], rtol=0, atol=1e-10)
    # Halves of cells with the kink may agree by chance, which left errors of 3e-6 of the sum.
    mean = own_squares @ volume / volume.sum()
    assert mean == pytest.approx({2: math.pi**2 / 12, 3: math.pi - 2}[d], abs=1e-10)


@pytest.mark.parametrize("d", [2, 3])
def test_an_own_second_moment_is_the_second_moment(d: int) -> None:
    attention = Attention(np.eye(d), np.eye(d), np.diag([1.0, 0.3, 0.2][:d]), 5.0)
    mesh = {2: circle_mesh(50), 3: sphere_mesh(80)}[d]
    solution = solve(attention, mesh, "1 + 0.5*x*y", until=1.0, observables=SQUARES)
    same_moments(solution.history)
    assert list(solution.history)[-2:] == ["own_xx", "own_xy"]


def test_slopes_and_patches_count_in_own_integrals() -> None:
    case = read_case(ROOT / "demos" / "circle-lopsided.toml")
    attention = case.attention.layers[0].with_beta(20.0)
    given = {**SQUARES, "x4": "x**4"}
    solution = solve(
        attention, circle_mesh(100), case.initial, until=7.0, adapt=1e-3, observables=given
    )
    same_moments(solution.history)
    assert solution.history["patch_mass"][-1] > 0.9
    assert list(solution.history)[-3:] == [*given]
    # Atoms at the centres of the cells that show patches would give another value.
    shown = solution.measure(-1)
    centres = shown.masses @ shown.points[:, 0] ** 4
    assert 1e-7 < abs(solution.history["x4"][-1] - centres) < 1e-4


def test_a_function_may_work_in_its_argument() -> None:
    def square(points: np.ndarray) -> np.ndarray:
        points *= points
        return points[:, 0]

    attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), 5.0)
    own = {"own_xx": square, "own_xy": SQUARES["own_xy"]}
    mesh = circle_mesh(50)
    solution = solve(attention, mesh, "1 + 0.5*x*y", until=1.0, adapt=1e-2, observables=own)
    same_moments(solution.history)


def test_an_own_integral_is_exact_for_densities_constant_in_cells() -> None:
    """Cells between the multiples of pi / 20, all of the same mass: ∫ x^4 = 3/8."""
    still = Attention(np.eye(2), np.eye(2), np.zeros((2, 2)), 1.0)
    solution = solve(still, circle_mesh(40), until=0.1, observables={"x4": "x**4"})
    np.testing.assert_allclose(solution.history["x4"], 3 / 8, rtol=1e-13)


@pytest.mark.parametrize(("d", "cells"), [(2, [50, 100, 200]), (3, [320, 1280, 5120])])
def test_integrals_are_of_fourth_order_for_a_smooth_density(d: int, cells: list[int]) -> None:
    """U = <a, x> under exp(2 u): its mean, and that of u^4, by quadrature in u."""
    axis = np.array([0.6, 0.0, 0.8])[[0, 2] if d == 2 else [0, 1, 2]]
    nodes, weights = np.polynomial.legendre.leggauss(400)
    angle = np.pi * (nodes + 1) / 2
    u, weights = np.cos(angle), weights * np.sin(angle) ** (d - 2) * np.exp(2 * np.cos(angle))
    exact = {"mean_norm": weights @ u / weights.sum(), "u4": weights @ u**4 / weights.sum()}
    still = Attention(np.eye(d), np.eye(d), np.zeros((d, d)), 1.0)
    errors: dict[str, list[float]] = {name: [] for name in exact}
    for count in cells:
        solution = solve(
            still,
            {2: circle_mesh, 3: sphere_mesh}[d](count),
            lambda points: np.exp(2 * points @ axis),
            until=0.0,
            observables={"u4": lambda points: (points @ axis) ** 4},
        )
        for name, value in exact.items():
            errors[name].append(abs(solution.history[name][0] - value))
    for found in errors.values():
        assert np.diff(np.log(found)).max() < -3.8 * np.log(2), errors
        assert found[-1] < 3e-7


def nothing(points: np.ndarray) -> np.ndarray:
    return np.zeros(3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mass": "x"}, r"observables\.mass: the history has a column of that name"),
        ({"mean_z": "x"}, "has a column of that name"),
        ({"w2_zero_low": "x"}, "has a column of that name"),
        ({"bar_zero": "x"}, "has a column of that name"),
        ({"x 4": "x"}, "a name must be letters, digits and _"),
        ({"µ": "x"}, "a name must be letters, digits and _"),
        ({4: "x"}, "a name must be letters, digits and _"),
        ({"a" * 41: "x"}, "may have 40 characters"),
        ({f"f{k}": "x" for k in range(MOST_OWN + 1)}, "100 observables at most, got 101"),
        ({"f": "x*z"}, r"observables\.f: 'z' is the third coordinate"),
        ({"f": "log(x)"}, r"observables\.f must be finite everywhere, got -inf at \(0, 1\)"),
        ({"f": nothing}, r"observables\.f must take points \(N x d\) to N numbers"),
        ({"f": lambda points: "no"}, r"what observables\.f returns must be"),
        ({"f": 3.0}, r"observables\.f must be a formula in quotes, or in Python a function"),
        (["x**4"], "observables must be functions or formulas by name"),
    ],
)
def test_what_is_refused(given: dict[str, object], says: str) -> None:
    attention = Attention(np.eye(2), np.eye(2), np.eye(2), 1.0)
    with pytest.raises(InputError, match=says):
        solve(attention, circle_mesh(20), until=1.0, observables=given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('energy = "x"', "observables.energy: the history has a column of that name"),
        ('f = "x^4"', "'^' is not a power here"),
        ("f = 4", "observables.f must be a formula in quotes"),
    ],
)
def test_what_a_case_file_is_refused_for(
    line: str, says: str, main: Main, write_case: Write
) -> None:
    code, message = main("run", write_case(CIRCLE + f"[observables]\n{line}\n"))
    assert code == 2
    assert says in message


def test_a_case_has_formulas_only(write_case: Write) -> None:
    """A file could not hold a function."""
    case = read_case(write_case(CIRCLE))
    with pytest.raises(InputError, match=r"observables\.f must be a formula in quotes, got"):
        replace(case, observables={"f": nothing})


OWN = '[observables]\nx4 = "x**4"\nfold = "cos(3*x)*y"\n[output]\nfields = "none"\n'


@pytest.mark.parametrize("adapt", ["", "[adapt]\ntolerance = 1e-2\n"])
def test_own_columns_are_resumed_read_and_drawn(
    adapt: str, main: Main, write_case: Write, tmp_path: Path
) -> None:
    text = CIRCLE.replace("cells = 200", "cells = 60").replace("until = 5.0", "until = 2.0")
    case = write_case(text + adapt + OWN)
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert main("run", case, "--quiet", "--output", whole) == (0, "")
    assert main("run", case, "--quiet", "--output", part, "--until", 1) == (0, "")
    assert main("run", case, "--quiet", "--output", part, "--resume")[0] == 0
    assert (part / "history.csv").read_bytes() == (whole / "history.csv").read_bytes()
    header = (whole / "history.csv").read_text().splitlines()[0]
    assert header.endswith(",x4,fold")
    result = read_result(whole)
    assert result.case.observables == {"x4": "x**4", "fold": "cos(3*x)*y"}
    kurtosis = result.measure(-1).masses @ result.measure(-1).points[:, 0] ** 4
    assert result.history["x4"][-1] == pytest.approx(kurtosis, abs=1e-2)
    assert not (whole / "figures").exists()
    assert main("plot", whole)[0] == 0
    assert (whole / "figures" / "history.png").is_file()
    other = write_case(case.read_text().replace("x**4", "x**6"))
    code, message = main("run", other, "--quiet", "--output", part, "--resume")
    assert code == 2
    assert "observables.x4" in message


@pytest.mark.parallel([2])
def test_own_columns_are_the_same_on_two_ranks(write_case: Write) -> None:
    case = read_case(write_case(CIRCLE + OWN))
    one, two = (
        solve(
            case.attention,
            circle_mesh(60, comm=comm),
            case.initial,
            until=5.0,
            save_every=0.5,
            observables=case.observables,
        ).history
        for comm in (MPI.COMM_SELF, MPI.COMM_WORLD)
    )
    assert len(one["x4"]) == 11
    for name in ("x4", "fold"):
        np.testing.assert_allclose(one[name], two[name], rtol=0, atol=1e-12)


def test_a_function_that_fails_on_the_way_ends_a_run_in_its_own_error() -> None:
    """Cells are narrow then, and it sees points that it has not seen before."""

    def only_probes(points: np.ndarray) -> np.ndarray:
        return np.where(np.abs(points[:, 0] - 0.5) < 1e-4, math.nan, 1.0)

    attention = Attention(np.eye(2), np.eye(2), np.eye(2), 1.0)
    with pytest.raises(InputError, match=r"observables\.f must be finite everywhere"):
        solve(attention, circle_mesh(20_000), until=0.0, observables={"f": only_probes})


def table_rows(find: Callable[[int], tuple[Observable, ...]] = columns) -> list[str]:
    """The rows of the table of columns in demos/reference/columns.md."""
    units: dict[tuple[str, str], dict[str, None]] = {}
    for d in (2, 3):
        for one in find(d):
            names = ", ".join(f"`{name}`" for name in (one.family or one.name).split(", "))
            units.setdefault((names, one.meaning), {})[one.unit] = None
    return [f"| {name} | {', '.join(unit)} | {text} |" for (name, text), unit in units.items()]


def test_the_page_lists_every_column_with_its_unit() -> None:
    page = (ROOT / "demos" / "reference" / "columns.md").read_text(encoding="utf-8")
    section = page.split("\n## Columns of the history\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `.*\|$", section, re.MULTILINE)
    assert listed == table_rows()
    assert all(one.meaning for d in (2, 3) for one in columns(d))
