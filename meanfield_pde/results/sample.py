"""A run at points: density, velocity and limit on a grid of longitudes and latitudes, or anywhere.

    "1deg"      the sphere: the middles of boxes of 1 x 1 degrees, dimensions latitude, longitude;
                the circle: the middles of arcs of one degree, dimension angle
    points      rows of coordinates, dimension point

What there is to be had at points, by name, is in `VALUES`.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.history.history import History
from meanfield_pde.history.store import ZERO_MASSES
from meanfield_pde.mesh.geometry import AXES
from meanfield_pde.mesh.point_density import PointDensity
from meanfield_pde.results.folder import Result
from meanfield_pde.results.labelled import Labelled, LabelledArrays
from meanfield_pde.solver.observables import column_named
from meanfield_pde.solver.solution import Solution
from meanfield_pde.support.arguments import typed_except
from meanfield_pde.support.checks import choice, points_of, shown, to_sphere
from meanfield_pde.support.memory import check_fits
from meanfield_pde.support.npz import read_arrays, unused_arrays
from meanfield_pde.theory.projection_limit import ProjectionLimit

if TYPE_CHECKING:
    import xarray

LOG = logging.getLogger("meanfield_pde")

# Times that differ by no more are one: those of save_every are multiples, with rounding.
_SAME = 1e-9
TIME, POINT = "time", "point"
_UNITS = {2: "rad-1", 3: "sr-1"}  # of densities, in the notation of CF


@dataclass(frozen=True, eq=False)
class Grid:
    """Points with coordinates.

    Attributes:
        points: on the circle or sphere, N x d.
        coordinates: of the points, by name.
        dims: of what there is at them.
        shape: sizes of these dimensions.
    """

    points: np.ndarray
    coordinates: dict[str, Labelled]
    dims: tuple[str, ...]
    shape: tuple[int, ...]

    @classmethod
    def of_degrees(cls, step: float, dimension: int) -> Grid:
        """The middles of boxes, or arcs, of a number of degrees, which has to divide 180."""
        count = round(180 / step) if 0 < step <= 180 else 0
        if not count or abs(count * step - 180) > 1e-9 * 180:
            raise InputError(f"the degrees of a grid must divide 180, got {step:g}deg")
        size = 2 * count if dimension == 2 else 2 * count * count
        what = f"a grid of {step:g}deg"
        check_fits(8.0 * 100 * size, what, "take a coarser one")  # 200 numbers a point in all
        turn = (np.arange(2 * count) - count + 0.5) * (180 / count)
        if dimension == 2:
            angle = np.radians(turn)
            points = np.column_stack([np.cos(angle), np.sin(angle)])
            axis = Labelled(("angle",), turn, "degree", "angle from the x axis toward the y axis")
            width = np.full(size, math.pi / count)
            arcs = Labelled(("angle",), width, "rad", "length of the arc about each point")
            return cls(points, {"angle": axis, "box": arcs}, ("angle",), (size,))
        middle = (np.arange(count) + 0.5) * (180 / count) - 90
        latitude, longitude = np.radians(middle), np.radians(turn)
        across = np.cos(latitude)[:, None]
        points = np.stack(
            [
                across * np.cos(longitude),
                across * np.sin(longitude),
                np.broadcast_to(np.sin(latitude)[:, None], (count, 2 * count)),
            ],
            axis=-1,
        )
        # h (sin(l + h / 2) - sin(l - h / 2)) for boxes of h radians about latitude l.
        area = 2 * math.pi / count * math.sin(math.pi / count / 2) * np.cos(latitude)
        rows = ("latitude",)
        coordinates = {
            "latitude": Labelled(rows, middle, "degrees_north", "z up"),
            "longitude": Labelled(("longitude",), turn, "degrees_east", "0 at the x axis"),
            "box": Labelled(rows, area, "sr", "area of the box about each point"),
        }
        return cls(points.reshape(-1, 3), coordinates, (*rows, "longitude"), (count, 2 * count))

    @classmethod
    def of_points(cls, points: np.ndarray) -> Grid:
        """Points of the circle or sphere, N x d."""
        axes = zip(AXES, points.T, strict=False)
        coordinates = {name: Labelled((POINT,), x, "1", f"coordinate {name}") for name, x in axes}
        return cls(points, coordinates, (POINT,), (len(points),))


def grid_of(given: str | Path | np.ndarray, dimension: int) -> Grid:
    """Return the grid of a text such as "1deg", of points, or of an .npz file with `points`."""
    if isinstance(given, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)deg", given)):
        return Grid.of_degrees(float(match[1]), dimension)
    where = ""
    if isinstance(given, str | Path):
        path, where = Path(given), f"{given}: "
        if path.suffix.lower() != ".npz":
            raise InputError(
                f"a grid must be like '1deg', or an .npz file with points, got {shown(str(given))}"
            )
        try:
            arrays = read_arrays(path)
            if "points" not in arrays:
                raise InputError(f"the array 'points' is missing; found {sorted(arrays)}")
        except InputError as error:
            raise InputError(f"{where}{error}") from None
        if note := unused_arrays(arrays, ("points",)):
            LOG.info("%s%s", where, note)
        given = arrays["points"]
    try:
        points, note = to_sphere(points_of(given, dimension), lambda i: f"point {i[0]}")
    except InputError as error:
        raise InputError(f"{where}{error}") from None
    if not len(points):
        raise InputError(f"{where}there are no points")
    if note:
        LOG.info("%s%s", where, note)
    return Grid.of_points(points)


def saved_index(history: History, time: float, use: str) -> int:
    """Return the index of the saved time next to one; a line names it where it is another.

    Args:
        history: the saved times.
        time: not before the first or after the last.
        use: what is done with it, for the line.
    """
    saved = history.times
    where = f"{history.directory}: " if isinstance(history, Result) else ""
    if not saved[0] <= time <= saved[-1]:
        raise InputError(
            f"{where}there is no density at t = {time:g}, saved are {len(saved)} "
            f"times from {saved[0]:g} to {saved[-1]:g}"
        )
    index = int(np.abs(saved - time).argmin())
    if not math.isclose(saved[index], time, rel_tol=_SAME, abs_tol=_SAME):
        LOG.warning(
            "%st = %.10g was not saved; the nearest that was, t = %.10g, is %s",
            where,
            time,
            saved[index],
            use,
        )
    return index


# What a function of `VALUES` returns, by name.
Found = dict[str, Labelled]


def _density(history: History, grid: Grid, index: Sequence[int], name: str, zero: bool) -> Found:
    """The density and its logarithm at all times, those at zero temperature if wanted."""
    logs = np.empty((len(index), len(grid.points)))
    places: PointDensity | None = None
    for row, i in zip(logs, index, strict=True):
        if places is None or history.store.moves:
            cells = history.cells_at(i, zero_temperature=zero)
            places = PointDensity(cells.vertices, grid.points)
        row[:] = history.log_density_on(places, i, zero)
    unit = _UNITS[history.dimension]
    logs = logs.reshape(len(index), *grid.shape)
    dims = (TIME, *grid.dims)
    return {
        name: Labelled(dims, np.exp(logs), unit, name.replace("_", " ")),
        f"log_{name}": Labelled(dims, logs, "1", f"natural logarithm of {name} in {unit}"),
    }


def _of_density(history: History, grid: Grid, index: Sequence[int]) -> Found:
    return _density(history, grid, index, "density", zero=False)


def _of_zero_temperature(history: History, grid: Grid, index: Sequence[int]) -> Found:
    return _density(history, grid, index, "density_at_zero_temperature", zero=True)


def _of_velocity(history: History, grid: Grid, index: Sequence[int]) -> Found:
    assert isinstance(history, Result | Solution)
    found = np.array([history.velocity_at(grid.points, i) for i in index])
    shape = (len(index), *grid.shape)
    return {
        f"velocity_{axis}": Labelled(
            (TIME, *grid.dims),
            found[..., i].reshape(shape),
            "rad",
            f"{axis} of the velocity, per unit of time",
        )
        for i, axis in enumerate(AXES[: history.dimension])
    }


def _of_limit(history: History, grid: Grid, index: Sequence[int]) -> Found:
    """Where tokens at the points go at zero temperature; nan on the separatrix."""
    limit = ProjectionLimit(history.attention)
    found = np.full(grid.points.shape, math.nan)
    going = ~limit.on_separatrix(grid.points)
    found[going] = limit.map(grid.points[going])
    return {
        f"limit_{axis}": Labelled(
            grid.dims,
            found[:, i].reshape(grid.shape),
            "1",
            f"{axis} of where a token goes at zero temperature",
        )
        for i, axis in enumerate(AXES[: history.dimension])
    }


# What there is at points, in the order of the files.
VALUES: dict[str, Callable[[History, Grid, Sequence[int]], Found]] = {
    "density": _of_density,
    "zero-temperature": _of_zero_temperature,
    "velocity": _of_velocity,
    "limit": _of_limit,
}


@typed_except("grid")
def sample(
    history: Result | Solution,
    grid: str | Path | np.ndarray = "1deg",
    *,
    times: Sequence[float] | None = None,
    values: Sequence[str] = ("density",),
) -> LabelledArrays:
    """Return what a run has at points, with coordinates, units and attributes. On any rank alone.

    Args:
        history: what `solve`, `run_case` or `read_result` returned.
        grid: "1deg", for boxes of as many degrees; points N x d; or an .npz file with `points`.
        times: of each the nearest that was saved; by default all saved times.
        values: "density" (with its logarithm), "zero-temperature" (the same of the density
            compared with), "velocity" (by direct sums over all cells), and "limit" (where tokens
            go at zero temperature).
    """
    for one in values:
        if one in ("log_density", "log-density"):
            raise InputError("values: 'density' gives its logarithm too, as log_density")
        choice(one, "values", VALUES)
    where = grid_of(grid, history.dimension)
    wanted = history.times if times is None else times
    index = list(dict.fromkeys(saved_index(history, time, "taken") for time in wanted))
    if not index or not values:
        raise InputError("a sample needs at least one time, and one of the values")
    if "zero-temperature" in values and ZERO_MASSES not in history.store.names():
        raise InputError("there is no density at zero temperature: none was compared with")
    size = len(where.points) * len(index) * history.dimension * len(values)
    check_fits(3 * 8.0 * size, "the sample", "take fewer times, or points")
    found: Found = {}
    for name, compute in VALUES.items():
        if name in values:
            found |= compute(history, where, index)
    return LabelledArrays(
        {TIME: _times(history.times[index]), **where.coordinates}, found, _attributes(history)
    )


@typed_except("grid")
def to_xarray(
    history: Result | Solution, grid: str | Path | np.ndarray | None = None
) -> xarray.Dataset:
    """Return a run as a dataset of xarray, with coordinates, units and attributes.

    It holds the history (dimension time), and the density at the saved times: on a grid, as in
    `sample`; or by default the means over the cells (dimensions time, cell), with centres and
    volumes. The cells of an adaptive mesh stand one time after the other on one dimension, with the
    coordinate `cell_time`.
    """
    found = _on_cells(history) if grid is None else sample(history, grid)
    columns = {
        f"history_{name}" if name in {*found.coordinates, *found.variables} else name: Labelled(
            (TIME,), np.asarray(values, dtype=float), one.unit or "1", one.meaning or name
        )
        for name, values in history.history.items()
        for one in [column_named(name, history.dimension, history.cost)]
        if name != TIME
    }
    return LabelledArrays(
        found.coordinates, columns | found.variables, found.attributes
    ).to_xarray()


def _on_cells(history: History) -> LabelledArrays:
    """The means over the cells at all saved times."""
    count, moves = len(history.store), history.store.moves
    cells = [history.cells_at(i) for i in (range(count) if moves else range(1))]
    density = [history.density_at(i) for i in range(count)]
    rows = ("cell",)
    centres = np.concatenate([one.points for one in cells])
    volumes = np.concatenate([one.volumes for one in cells])
    coordinates = {
        TIME: _times(history.times),
        **{
            f"centre_{axis}": Labelled(rows, centres[:, i], "1", f"{axis} of the cell's centre")
            for i, axis in enumerate(AXES[: history.dimension])
        },
        "volume": Labelled(rows, volumes, _UNITS[history.dimension][:-2], "size of the cell"),
    }
    values = np.concatenate(density) if moves else np.array(density)
    if moves:
        each = np.repeat(history.times, [len(one) for one in density])
        coordinates["cell_time"] = Labelled(rows, each, "1", "saved time of the cell")
    dims = rows if moves else (TIME, *rows)
    mean = Labelled(dims, values, _UNITS[history.dimension], "mean density over the cell")
    return LabelledArrays(coordinates, {"density": mean}, _attributes(history))


def _times(times: np.ndarray) -> Labelled:
    return Labelled((TIME,), times, "1", "saved time t")


def _attributes(history: History) -> dict[str, str]:
    surface = {2: "circle", 3: "sphere"}[history.dimension]
    found = {
        "Conventions": "CF-1.11",
        "title": f"density of tokens on the {surface}",
        "source": f"meanfield_pde {version('meanfield_pde')}",
    }
    return found | ({"case": history.case_text} if isinstance(history, Result) else {})
