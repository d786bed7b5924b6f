"""Insets of the sphere's maps: which way is up, how far they reach, and which clusters have one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meanfield_pde import ProjectionLimit
from meanfield_pde.amr.forest import Forest
from meanfield_pde.figures import animation, mollweide
from meanfield_pde.figures.clusters import find_clusters
from meanfield_pde.figures.density import draw_density
from meanfield_pde.history.history import History
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.geometry import cell_spread, cell_volume, normalised
from meanfield_pde.mesh.surface import sphere_surface
from tests.conftest import coarse_views
from tests.problems import SPHERE, made_up

# Longitude and latitude, in degrees: the middle, both edges of the map, both poles.
PLACES = [(0, 0), (-100, 35), (179.5, 20), (-179.5, -30), (130, 88), (-40, -88)]


def at(longitude: float, latitude: float) -> np.ndarray:
    a, b = math.radians(longitude), math.radians(latitude)
    return np.array([math.cos(b) * math.cos(a), math.cos(b) * math.sin(a), math.sin(b)])


def east_and_north(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    east = np.cross([0, 0, 1], point)
    east /= np.linalg.norm(east)
    return east, np.cross(point, east)


def moved(point: np.ndarray, to_east: float, to_north: float) -> np.ndarray:
    """The point so far, in radians, to the east and to the north of another."""
    east, north = east_and_north(point)
    length = math.hypot(to_east, to_north)
    return math.cos(length) * point + math.sin(length) / length * (
        to_east * east + to_north * north
    )


def history(*blobs: tuple[np.ndarray, float, float]) -> History:
    """Uniform at first; then blobs (centre, width in radians, mass) on cells as fine as they are.

    The last time is one at which all blobs are a hundred times as narrow as a pixel of the map.
    """
    forest = Forest.of(sphere_surface(320))
    for level in range(28):
        middle, cell = normalised(forest.corners.mean(axis=1)), 2 ** (-level / 2)
        split = np.zeros(forest.count, dtype=bool)
        for centre, width, _ in blobs:
            reach = max(6 * width, 0.6 * cell) if 0.2 * cell > 0.3 * width else 0.0
            split |= np.linalg.norm(middle - centre, axis=1) < reach
        if not split.any():
            break
        forest = forest.refined(split)
    corners = forest.corners
    points = normalised(corners.mean(axis=1))
    volumes = cell_volume(corners)
    cells = Cells(points, volumes, cell_spread(corners, points), corners)
    density = np.full(len(points), 1e-9)
    for centre, width, mass in blobs:
        square = ((points - centre) ** 2).sum(axis=1)
        density += mass / (2 * math.pi * width**2) * np.exp(-square / (2 * width**2))
    masses = np.array([volumes, density * volumes])
    masses /= masses.sum(axis=1, keepdims=True)
    return made_up(SPHERE, cells, np.arange(2.0), masses)


def maps_of(result: History, drawn: list[Figure], folder: Path) -> list[Axes]:
    draw_density(folder, result, ProjectionLimit(result.attention))
    return [axes for axes in drawn[-1].axes if axes.get_title().startswith("t = ")]


def on_the_sphere(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Points of the sphere at map coordinates, those beyond the edges left out."""
    seen = np.isfinite(x)
    turn = np.arcsin(np.clip(y[seen] / math.sqrt(2), -1, 1))
    latitude = np.arcsin(np.clip((2 * turn + np.sin(2 * turn)) / math.pi, -1, 1))
    longitude = math.pi * x[seen] / (2 * math.sqrt(2) * np.maximum(np.cos(turn), 1e-9))
    flat = np.cos(latitude)
    return np.column_stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)])


def test_pixels_of_an_adapted_mesh_show_the_cell_below_them() -> None:
    """Beside much smaller cells, too, whose centres are nearer than that of the cell."""
    cells = history((at(10, 20), 1e-3, 0.5), (at(100, 20), 1e-2, 0.5)).cells_at(1)
    cell, inside = mollweide.pixel_cells(cells)
    y, x = (np.argwhere(inside) + 0.5).T
    points = on_the_sphere(
        (x / mollweide.WIDE * 4 - 2) * math.sqrt(2), (y / mollweide.HIGH * 2 - 1) * math.sqrt(2)
    )
    assert np.einsum("pd,pdj->pj", points, np.linalg.inv(cells.vertices)[cell]).min() > -1e-12


def test_north_is_up_east_is_right_and_windows_are_their_extents(
    drawn: list[Figure], tmp_path: Path
) -> None:
    """Lighter blobs to the east and to the north of heavy ones; windows as the map has them."""
    gap, shares = 0.04, (0.82, 0.14, 0.04)
    clusters = [
        np.array([at(*one), moved(at(*one), gap, 0), moved(at(*one), 0, gap)]) for one in PLACES
    ]
    weights = [0.24, 0.21, 0.18, 0.15, 0.12, 0.1]  # so that the order is this one
    blobs = [
        (point, 0.006, weight * share)
        for points, weight in zip(clusters, weights, strict=True)
        for point, share in zip(points, shares, strict=True)
    ]
    first, last = maps_of(history(*blobs), drawn, tmp_path)
    assert first.child_axes == []
    windows = [line for line in last.get_lines() if line.get_label() == "_window"]
    for number, (points, inset, window) in enumerate(
        zip(clusters, last.child_axes, windows, strict=True), 1
    ):
        (cells,) = inset.collections
        density = np.asarray(cells.get_array())
        place = np.array([path.vertices[:3].mean(axis=0) for path in cells.get_paths()])
        mean = normalised(np.asarray(shares) @ points)
        east, north = east_and_north(mean)
        for point in points:
            angle = math.acos(mean @ point)
            across = np.array([east @ point, north @ point])
            expected = angle * across / np.linalg.norm(across)
            near = np.linalg.norm(place - expected, axis=1) < 0.02
            found = place[np.where(near, density, 0).argmax()]
            np.testing.assert_allclose(found, expected, atol=0.004)
        # The edge of the window, taken back from the map, is as far away as the inset says.
        low, half = inset.get_xlim()
        assert (-low, inset.get_ylim()) == (half, (-half, half))
        assert inset.get_xlabel() == f"{number}: ±{half:.2g} rad"
        x, y = np.asarray(window.get_data(), dtype=float)
        angle = np.arccos(on_the_sphere(x, y) @ mean)
        assert angle.min() == pytest.approx(half, abs=0.005)
        assert angle.max() == pytest.approx(math.sqrt(2) * half, abs=0.005)
        # No line across the map.
        assert (np.abs(np.diff(x))[np.isfinite(np.diff(x))] < 1).all()


def test_each_cluster_has_an_inset_however_narrow(drawn: list[Figure], tmp_path: Path) -> None:
    """Four, one of them 1e-4 wide, one beside another, and a wide one that the map shows."""
    blobs = [
        (at(0, 10), 0.02, 0.4),
        (at(12, 10), 0.01, 0.1),
        (at(180, -10), 1e-4, 0.25),
        (at(90, 60), 0.03, 0.1),
        (at(-90, -40), 0.5, 0.15),
    ]
    result = history(*blobs)
    _, last = maps_of(result, drawn, tmp_path)
    assert len(last.child_axes) == 4
    names = [inset.get_xlabel().partition(":")[0] for inset in last.child_axes]
    assert names == [text.get_text() for text in last.texts] == ["1", "2", "3", "4"]
    # Each shows its own peak in the middle, in the colours of the map.
    order = [blobs[0], blobs[2], blobs[1], blobs[3]]
    (image,) = last.images
    for inset, (centre, *_) in zip(last.child_axes, order, strict=True):
        (cells,) = inset.collections
        (half,) = {inset.get_xlim()[1], inset.get_ylim()[1]}
        peak = np.argmax(cells.get_array())
        assert np.abs(cells.get_paths()[peak].vertices).max() < 0.5 * half
        near = np.linalg.norm(result.points - centre, axis=1) < max(0.05, half)
        assert np.max(cells.get_array()) == result.density[-1][near].max()
        assert cells.norm == image.norm
    # Marks are open, so that what they mark is seen.
    marks = [line for line in last.get_lines() if "eigenvector" in str(line.get_label())]
    assert {line.get_markerfacecolor() for line in marks} == {"none"}
    assert {line.get_marker() for line in marks} <= {"o", "D"}
    # No cluster falls between the pixels of the map.
    assert np.nanmax(image.get_array()) == result.density[-1].max()


def test_tails_and_great_circles_are_no_clusters() -> None:
    ring = [(at(longitude, 0), 0.05, 1 / 60) for longitude in range(0, 360, 6)]
    core = [(at(20, 30), 0.02, 0.7), (at(20, 30), 0.2, 0.3)]
    for blobs, count in ((ring, 0), (core, 1)):
        result = history(*blobs)
        assert len(find_clusters(result.cells, result.density_at(1))) == count


def test_frames_of_the_animation_have_them_too() -> None:
    """As the map of the same time has them, and none is left over from another time."""
    blobs = [(at(0, 0), 1e-4, 0.6), (at(179.99, 20), 1e-4, 0.4)]
    result = history(*blobs)
    with coarse_views():  # beside the map
        figure, update = animation.sphere_frames(result, ProjectionLimit(result.attention))
    axes = figure.axes[0]
    for index, count in ((0, 0), (1, 2), (0, 0), (1, 2)):
        update(index)
        assert len(axes.child_axes) == len(axes.texts) == count
        shown = np.asarray(axes.images[0].get_array(), dtype=float)
        for centre, *_ in blobs:  # far narrower than a pixel, and one at the edge of the map
            near = np.linalg.norm(result.points - centre, axis=1) < 0.1
            peak = result.density[index][near].max()
            assert np.isclose(shown, np.clip(peak, axes.images[0].norm.vmin, None)).any()
    names = [inset.get_xlabel() for inset in axes.child_axes]
    assert [name.partition(":")[0] for name in names] == ["1", "2"]
