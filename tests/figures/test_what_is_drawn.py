"""What figures show, against the numbers in the result folder: curves, colours, marks, limits."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from meanfield_pde import ProjectionLimit, read_result
from meanfield_pde.figures import mollweide
from meanfield_pde.figures.colours import distinct
from tests.conftest import Main, Write, curves
from tests.problems import CIRCLE, SPHERE

COMPARE = "[compare]\nlimit = true\nzero_temperature = true\np = [1, 2]\n"


@pytest.mark.painted
@pytest.mark.draws("density")
def test_the_circle(drawn: list[Figure], main: Main, write_case: Write, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main("run", write_case(CIRCLE), "--quiet", "--output", out) == (0, "")
    result = read_result(out)
    angle = np.degrees(np.arctan2(result.points[:, 1], result.points[:, 0]))
    order = np.argsort(angle)
    figure = drawn[0]
    history, profile = figure.axes[:2]
    # The heat map: a column for each time, in which each cell has its own density.
    (image,) = history.collections
    edges = image.get_coordinates()
    middle = (edges[1:, 0, 1] + edges[:-1, 0, 1]) / 2
    np.testing.assert_allclose(middle, angle[order], atol=0.5)
    norm = image.norm
    assert norm.vmax == pytest.approx(result.density.max())
    shown = np.asarray(image.get_array()).reshape(len(angle), len(result.times))
    np.testing.assert_allclose(shown, np.clip(result.density[:, order].T, norm.vmin, None))
    # Its colours in the file, at the place of a cell; the file has 150 points an inch.
    picture = imread(out / "figures/density.png")
    height, width = picture.shape[:2]
    assert (width, height) == tuple(np.round(np.asarray(figure.get_size_inches()) * 150))
    for cell in range(20, len(angle), 40):
        for time in (1.0, 4.0):
            place = history.transData.transform((time, angle[order][cell])) * 150 / figure.dpi
            colour = image.cmap(norm(shown[cell, np.argmin(np.abs(result.times - time))]))
            x, y = (round(float(one)) for one in place)
            np.testing.assert_allclose(picture[height - 1 - y, x], colour, atol=0.06)
    # Profiles, and the eigenvector of A, which is that of V here.
    lines = curves(figure, 1)
    times = [0.0, 1.5, 3.5, 5.0]
    assert list(lines)[:4] == [f"t = {time:g}" for time in times]
    for time in times:
        x, y = lines[f"t = {time:g}"]
        np.testing.assert_array_equal(x, angle[order])
        np.testing.assert_array_equal(y, result.density[result.times == time][0, order])
    (marked,) = [line for line in profile.get_lines() if "eigenvector" in str(line.get_label())]
    assert np.asarray(marked.get_xdata())[0] == pytest.approx(0, abs=1e-9)
    assert (profile.get_xlim(), profile.get_xlabel()) == (
        (-180, 180),
        "angle on the circle (degrees)",
    )
    assert "β = 40, 200 cells" in figure.get_suptitle()


@pytest.mark.draws("density")
def test_the_sphere(drawn: list[Figure], main: Main, write_case: Write, tmp_path: Path) -> None:
    """At the place of each cell the map has its density; the limit's places are marked."""
    out = tmp_path / "out"
    case = write_case(SPHERE)
    assert main("run", case, "--until", 2, "--quiet", "--output", out) == (0, "")
    result = read_result(out)
    figure = drawn[0]
    x, y = mollweide.project(result.points)
    axis = ProjectionLimit(result.attention).basis[:, 0]
    for panel, time in zip(figure.axes, range(3), strict=False):
        assert panel.get_title() == f"t = {time}"
        (image,) = panel.images
        shown = np.asarray(image.get_array(), dtype=float)
        rows, columns = shown.shape
        left, right, bottom, top = image.get_extent()
        column = ((x - left) / (right - left) * columns).astype(int)
        row = ((y - bottom) / (top - bottom) * rows).astype(int)
        density = np.clip(result.density[time], image.norm.vmin, None)
        seen = np.isfinite(shown[row, column])  # not the cells that the edge of the map cuts
        assert seen.mean() > 0.95
        np.testing.assert_allclose(shown[row, column][seen], density[seen])
        assert np.isnan(shown[0, 0])  # outside the map
        marks = curves(figure, time)["± dominant eigenvector of A = VBᵀ"]
        expected = mollweide.project(np.array([axis, -axis]))
        np.testing.assert_allclose(np.sort(marks, axis=1), np.sort(expected, axis=1), atol=1e-12)
    norm = figure.axes[0].images[0].norm
    assert norm.vmax == pytest.approx(result.density.max())
    assert all(panel.images[0].norm == norm for panel in figure.axes[:3])


@pytest.mark.painted
@pytest.mark.draws("distances")
def test_distances_with_their_intervals_and_rates(
    drawn: list[Figure], main: Main, write_case: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    case = write_case(CIRCLE + COMPARE)
    assert main("run", case, "--until", 2, "--quiet", "--output", out) == (0, "")
    assert imread(out / "figures/distances.png").std() > 0.05  # not empty
    result = read_result(out)
    assert result.limit is not None
    assert result.zero_masses is not None
    assert result.zero_masses.shape == result.masses.shape
    (figure,) = [one for one in drawn if "Wasserstein distances" in one.get_suptitle()]
    limit = ProjectionLimit(result.attention)
    for panel, p in enumerate((1, 2)):
        lines = curves(figure, panel)
        for label, key in (
            ("density to limit", f"w{p}_limit"),
            ("density to zero temperature", f"w{p}_zero"),
            ("zero temperature to limit", f"w{p}_zero_to_limit"),
        ):
            x, y = lines[label]
            np.testing.assert_array_equal(x, result.times)
            values = result.history[key]
            np.testing.assert_array_equal(y, np.where(values > 0, values, np.nan))
        x, y = lines["slope of the predicted rate"]
        slope = np.polyfit(x, np.log(y), 1)[0]
        assert slope == pytest.approx(-limit.decay_rate(p))
        grey = [one for one in figure.axes[panel].collections if one.get_label()[0] == "b"]
        width = np.concatenate([path.vertices for path in grey[0].get_paths()])[:, 1].max()
        bars = [
            result.history[f"quantisation_{name}"] for name in ("limit", "zero", "zero_to_limit")
        ]
        assert width == pytest.approx(np.max(bars))
        assert figure.axes[panel].get_ylabel() == f"$W_{p}$ (radians)"
        assert figure.axes[panel].get_xlim() == (0, 2)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_curves_differ_in_grey(count: int) -> None:
    """Ever lighter, neighbours by a tenth of the way from black to white or by their lines."""
    looks = distinct(count)
    grey = [float(np.dot(to_rgb(look["color"]), (0.299, 0.587, 0.114))) for look in looks]
    assert len(looks) == count
    assert grey[0] < 0.05
    assert grey[-1] < 0.75  # on white
    assert np.diff(grey).min() > 0.3 / count
    assert all(one["ls"] != other["ls"] for one, other in pairwise(looks))
