"""Figures: one for every kind of result, with what they say checked in matplotlib's own objects."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from meanfield_pde import (
    Attention,
    ProjectionLimit,
    circle_mesh,
    read_result,
    solve,
    sphere_mesh,
)
from meanfield_pde.figures import density as figures
from meanfield_pde.figures import distances as distance_figure
from meanfield_pde.figures import mollweide, views
from meanfield_pde.figures.marks import Mark, marks
from meanfield_pde.history.history import History
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.theory.phases import find_phases
from tests.conftest import Main, Write, curves
from tests.problems import CIRCLE, SPHERE, made_up

pytestmark = pytest.mark.painted

UPRIGHT = ("[[1.0, 0.2], [0.0, 0.3]]", "[[0.3, 0.0], [0.4, 1.0]]")


def picture(path: Path) -> np.ndarray:
    """A figure's file; what it shows is asked in `test_what_is_drawn`, and of the figure itself."""
    image = imread(path)
    assert image.std() > 0.05  # not empty
    return image


@pytest.mark.parametrize(
    ("text", "until"),
    [
        pytest.param(CIRCLE, 0, marks=pytest.mark.draws, id="once"),
        pytest.param(CIRCLE, 0.5, marks=pytest.mark.draws("density"), id="circle"),
        pytest.param(SPHERE, 0.5, marks=pytest.mark.draws, id="sphere"),
    ],
)
def test_run_draws_and_plot_draws_again(
    text: str, until: float, main: Main, write_case: Write, tmp_path: Path
) -> None:
    """A single saved time included."""
    out = tmp_path / "out"
    code, err = main("run", write_case(text), "--until", until, "--quiet", "--output", out)
    left_out = f"time.save_at: 1 of 1 times are beyond t = {until:g} and are left out\n"
    assert (code, err) == (0, left_out if text is SPHERE else "")
    assert len(read_result(out).times) == (1 if until == 0 else 2)
    drawn = picture(out / "figures/density.png")
    paths = sorted((out / "figures").iterdir())
    for path in paths:
        path.unlink()
    (out / "figures").rmdir()
    code, err = main("plot", out)
    assert code == 0
    assert err == "".join(f"{path}\n" for path in paths)
    np.testing.assert_array_equal(picture(out / "figures/density.png"), drawn)


@pytest.mark.draws
def test_a_run_that_draws_nothing(main: Main, write_case: Write, tmp_path: Path) -> None:
    out = tmp_path / "out"
    case = write_case(CIRCLE)
    code, err = main("run", case, "--until", 0, "--no-figures", "--output", out)
    assert (code, ", figures in" in err) == (0, False)
    assert (out / "summary.json").exists()
    assert not (out / "figures").exists()


def test_views_show_the_hemispheres_of_both_clusters(tmp_path: Path) -> None:
    """Pixels are points of the sphere, and the cap of the cluster at -e is in the second view."""
    axis = np.array([0.6, 0.0, 0.8])
    for eye in (axis, -axis, np.array([0.0, 0.0, 1.0])):
        view = views.View.towards(eye)
        np.testing.assert_allclose(view.axes @ view.axes.T, np.eye(3), atol=1e-15)
        points = view.points()
        np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, rtol=1e-14)
        assert (points @ eye > 0).all()
        assert len(points) / views.PIXELS**2 == pytest.approx(math.pi / 4, abs=0.01)
        x, y = view.seen(np.array([eye, -eye]))
        np.testing.assert_allclose([x[0], y[0]], 0, atol=1e-15)
        assert np.isnan([x[1], y[1]]).all()
    head = Attention(np.eye(3), np.eye(3), np.outer(axis, axis), 20.0)
    solution = solve(head, sphere_mesh(320), lambda x: np.exp(-9 * (1 + x @ axis)), until=0.0)
    path = views.draw_views(tmp_path, solution, ProjectionLimit(head))
    assert path is not None
    shown = picture(path)[..., :3]
    bright = (shown[..., 0] > 0.7) & (shown[..., 2] < 0.6)  # yellow, the largest density
    top, bottom = np.array_split(bright[:, : int(0.7 * bright.shape[1])], 2)
    assert top.sum() == 0
    assert bottom.sum() > 100


def some_history(text: str, points: np.ndarray, masses: np.ndarray) -> History:
    cells = Cells(
        points=points,
        volumes=np.full(len(points), 2 * np.pi * (points.shape[1] - 1) / len(points)),
        spread=np.zeros(len(points)),
        vertices=points[:, None] + 0.1 * np.eye(points.shape[1]),
    )
    return made_up(text, cells, np.arange(len(masses)), masses)


def projection_of(history: History) -> ProjectionLimit:
    return ProjectionLimit(history.attention)


def draw(history: History) -> Figure:
    make = figures._draw_circle if history.dimension == 2 else figures._draw_sphere
    return make(history, projection_of(history), np.zeros(0, dtype=int))


def marks_of(history: History) -> list[Mark]:
    return marks(history, projection_of(history))


def circle_history(times: int, text: str = CIRCLE, smallest: float = 0.0) -> History:
    angle = np.linspace(-np.pi, np.pi, 40, endpoint=False) + 0.01
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    masses = np.exp(np.arange(times)[:, None] * 9 * np.cos(angle))
    masses /= masses.sum(axis=1, keepdims=True)
    return some_history(text, points, np.where(masses < smallest, 0.0, masses))


@pytest.mark.parametrize(("times", "panels"), [(1, 1), (2, 1), (4, 2), (30, 2)])
def test_circle_panels(times: int, panels: int, tmp_path: Path) -> None:
    """A heat map only where there are times enough for one."""
    figure = draw(circle_history(times))
    plots = [axes for axes in figure.axes if axes.get_xlabel()]
    assert len(plots) == panels
    picture(figures.save(figure, tmp_path / "figures/a.png"))


def test_empty_cells_and_steep_densities(drawn: list[Figure], tmp_path: Path) -> None:
    result = circle_history(40, smallest=1e-30)
    assert (result.masses == 0).any()
    picture(figures.draw_density(tmp_path, result, projection_of(result)))
    history, profile = drawn[-1].axes[:2]
    (image,) = history.collections
    shown = np.asarray(image.get_array())
    assert shown.min() == image.norm.vmin > 0
    assert image.norm.vmax / image.norm.vmin == pytest.approx(10**figures.DECADES, rel=1e-9)
    lowest, highest = profile.get_ylim()
    assert highest / lowest == pytest.approx(6 * 10**figures.PROFILE_DECADES)
    last = profile.get_lines()[3].get_ydata()
    order = np.argsort(np.arctan2(result.points[:, 1], result.points[:, 0]))
    np.testing.assert_array_equal(np.isnan(last), result.masses[-1, order] == 0)


def test_clusters_narrower_than_a_pixel_are_seen() -> None:
    """On a mesh that follows the mass: each time shows its largest density, where it is."""
    attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.2]), math.inf)
    solution = solve(attention, circle_mesh(40), "1 + 0.5*x", until=8.0, save_every=1.0, adapt=1e-3)
    angle, density = figures._common_grid(solution, np.arange(9))
    widths = solution.cells_at(8).volumes
    assert np.degrees(widths.min()) < 0.1 * np.diff(angle).min()
    for index, row in enumerate(density):
        own = solution.density_at(index)
        peak = solution.cells_at(index).points[own.argmax()]
        assert row.max() == own.max()
        here = np.radians(angle[row == row.max()])
        near = peak @ [np.cos(here), np.sin(here)]
        assert near.max() > np.cos(np.radians(np.diff(angle).min()))
    assert density[0].min() == pytest.approx(solution.density_at(0).min())


def test_directions_are_marked_once(tmp_path: Path) -> None:
    """A = V here; the two directions differ where B is no multiple of I."""
    labels = [mark.label for mark in marks_of(circle_history(1))]
    assert labels == ["± dominant eigenvector of A = VBᵀ and of V"]
    other = CIRCLE.replace("query = [[1.0, 0.0], [0.0, 1.0]]", "query = [[1.0, 0.5], [0.0, 1.0]]")
    found = marks_of(circle_history(1, other.replace(*UPRIGHT)))
    assert [mark.label for mark in found] == [
        "± dominant eigenvector of A = VBᵀ",
        "± dominant eigenvector of V",
    ]
    np.testing.assert_allclose(np.abs(found[1].points), [[0, 1], [0, 1]], atol=1e-12)


def test_a_plane_is_marked_as_a_great_circle(tmp_path: Path) -> None:
    one = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    plane = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.2]]
    text = f"[attention]\nquery = {one}\nkey = {one}\nvalue = {plane}\nbeta = 5.0\n"
    cells = Cells.of(FiniteVolumes(sphere_mesh(20)))
    result = made_up(text, cells, np.zeros(1), np.arange(1.0, 21.0)[None])
    (mark,) = marks_of(result)
    assert mark.label == "± dominant eigenspace of A = VBᵀ and of V"
    assert mark.points.shape[0] > 100
    np.testing.assert_allclose(mark.points[:, 2], 0, atol=1e-12)
    figure = draw(result)
    x, y = curves(figure)[mark.label]
    np.testing.assert_allclose(y[np.isfinite(x)], 0, atol=1e-9)  # the equator, all around
    assert np.nanmin(x) == pytest.approx(-2 * np.sqrt(2), rel=0.01)
    assert np.nanmax(x) == pytest.approx(2 * np.sqrt(2), rel=0.01)


@pytest.mark.parametrize(("times", "maps"), [(1, 1), (2, 2), (7, 6)])
def test_sphere_maps(times: int, maps: int, tmp_path: Path) -> None:
    cells = Cells.of(FiniteVolumes(sphere_mesh(320)))
    masses = np.exp(np.arange(times)[:, None] * 3 * cells.points[:, 2])
    text = SPHERE.replace("40.0", '"inf"')
    figure = draw(made_up(text, cells, np.arange(times), masses))
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert len(titles) == maps
    assert titles[0] == "t = 0"
    assert titles[-1] == f"t = {times - 1}"
    assert "zero temperature, 320 cells" in figure.get_suptitle()
    picture(figures.save(figure, tmp_path / "figures/a.png"))


def test_pixels_show_the_cell_below_them() -> None:
    """The map there and back: the pixel at the place of a centre shows the cell around it."""
    cells = Cells.of(FiniteVolumes(sphere_mesh(80)))
    cell, inside = mollweide.pixel_cells(cells)
    shown = np.full(inside.shape, -1)
    shown[inside] = cell
    x, y = mollweide.project(cells.points)
    column = ((x / (2 * np.sqrt(2)) + 1) / 2 * shown.shape[1]).astype(int)
    row = ((y / np.sqrt(2) + 1) / 2 * shown.shape[0]).astype(int)
    np.testing.assert_array_equal(shown[row, column], np.arange(80))


def test_no_distances_are_drawn_for_a_run_that_did_not_compare(tmp_path: Path) -> None:
    other = circle_history(3)
    projection = projection_of(other)
    obstacle = find_phases(np.zeros(1), np.eye(2)[None] / 2, projection)
    assert distance_figure.draw_distances(tmp_path, other, projection, obstacle) is None
