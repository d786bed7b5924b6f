"""A run at points: grids, what is written in each format, the command, and datasets of xarray."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest
import scipy.io

from meanfield_pde import (
    Attention,
    CompareCase,
    InputError,
    ProjectionLimit,
    Solution,
    circle_mesh,
    sample,
    solve,
    sphere_mesh,
    to_xarray,
)
from meanfield_pde.results.sample import VALUES, grid_of
from tests.conftest import Main, Write
from tests.problems import CIRCLE, MESHES, on_sphere

SHORT = CIRCLE.replace("cells = 200", "cells = 40").replace("until = 5.0", "until = 1.0")


def solved(d: int, **options: Any) -> Solution:
    value = np.diag([1.0, 0.5, 0.3][:d])
    attention = Attention(np.eye(d), np.eye(d), value, 5.0)
    mesh = MESHES[d]({2: 60, 3: 320}[d])
    return solve(attention, mesh, "1 + 0.5*x*y", until=1.0, **options)


@pytest.mark.parametrize(("d", "shape"), [(2, (36,)), (3, (18, 36))])
def test_a_grid_has_boxes_of_the_whole_surface(d: int, shape: tuple[int, ...]) -> None:
    grid = grid_of("10deg", d)
    assert grid.shape == shape
    np.testing.assert_allclose(np.linalg.norm(grid.points, axis=1), 1, rtol=1e-15)
    box = grid.coordinates["box"].values
    total = box.sum() * {2: 1, 3: shape[-1]}[d]
    assert total == pytest.approx({2: 2 * np.pi, 3: 4 * np.pi}[d], rel=1e-13)
    x, y = grid.points[:, :2].T
    turn = grid.coordinates["angle" if d == 2 else "longitude"].values
    np.testing.assert_allclose(np.degrees(np.arctan2(y, x)), np.resize(turn, len(x)), atol=1e-12)
    if d == 3:
        latitude = np.repeat(grid.coordinates["latitude"].values, 36)
        np.testing.assert_allclose(np.degrees(np.arcsin(grid.points[:, 2])), latitude, atol=1e-12)


@pytest.mark.parametrize("d", [2, 3])
def test_values_are_those_at_the_points(d: int, tmp_path: Path) -> None:
    solution = solved(d, save_every=0.5, compare=CompareCase(zero_temperature=True, p=(1,)))
    points = on_sphere(np.random.default_rng(0), 30, d)
    points[0] = np.eye(d)[1]  # on the separatrix
    found = sample(solution, points, times=[0.5, 1], values=list(VALUES))
    np.testing.assert_array_equal(found.coordinates["time"].values, [0.5, 1])
    get = {name: one.values for name, one in found.variables.items()}
    for row, index in enumerate((1, 2)):
        logs = solution.log_at(points, index)
        np.testing.assert_array_equal(get["log_density"][row], logs)
        np.testing.assert_array_equal(get["density"][row], np.exp(logs))
        zero = solution.at(points, index, zero_temperature=True)
        np.testing.assert_array_equal(get["density_at_zero_temperature"][row], zero)
        velocity = np.stack([get[f"velocity_{axis}"][row] for axis in "xyz"[:d]], axis=1)
        np.testing.assert_array_equal(velocity, solution.velocity_at(points, index))
    limit = np.stack([get[f"limit_{axis}"] for axis in "xyz"[:d]], axis=1)
    assert np.isnan(limit[0]).all()
    np.testing.assert_array_equal(limit[1:], ProjectionLimit(solution.attention).map(points[1:]))

    for suffix in (".npz", ".nc", ".CSV"):
        found.write(tmp_path / f"sample{suffix}")
    with np.load(tmp_path / "sample.npz") as file:
        for name, one in (found.coordinates | found.variables).items():
            np.testing.assert_array_equal(file[name], one.values)
    with scipy.io.netcdf_file(tmp_path / "sample.nc", mmap=False) as file:
        for name, one in (found.coordinates | found.variables).items():
            assert file.variables[name].dimensions == one.dims
            np.testing.assert_array_equal(file.variables[name][:], one.values)
        unit = {2: b"rad-1", 3: b"sr-1"}[d]
        assert file.variables["density"].units == unit
        assert file.variables["density"].coordinates == " ".join("xyz"[:d]).encode()
    table = np.genfromtxt(tmp_path / "sample.CSV", delimiter=",", names=True)
    assert list(table.dtype.names or ()) == [*found.coordinates, *found.variables]
    np.testing.assert_array_equal(table["time"], np.repeat([0.5, 1], 30))
    np.testing.assert_array_equal(table["x"], np.tile(points[:, 0], 2))
    np.testing.assert_array_equal(table["density"], get["density"].ravel())
    np.testing.assert_array_equal(table["limit_x"], np.tile(get["limit_x"], 2))


@pytest.mark.parametrize("d", [2, 3])
def test_the_page_of_commands_names_all_variables(d: int) -> None:
    page = (Path(__file__).parents[2] / "demos/reference/commands.md").read_text(encoding="utf-8")
    table = page.split("| `--values` | variables |")[1].split("\n\n")[0]
    cells = [line.split("|")[2] for line in table.splitlines()[2:]]
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    solution = solved(d, compare=CompareCase(zero_temperature=True, p=(1,)))
    found = set[str]()
    for grid in ("30deg", np.eye(d)):
        arrays = sample(solution, grid, values=tuple(VALUES))
        found |= arrays.variables.keys() | arrays.coordinates.keys()
    others = {2: {"z", "velocity_z", "limit_z", "latitude", "longitude"}, 3: {"angle"}}[d]
    assert found == named - others


def test_a_grid_on_cells_that_move_with_time() -> None:
    solution = solved(2, save_every=0.5, adapt=3e-3)
    found = sample(solution, "1deg")
    box = found.coordinates["box"].values
    np.testing.assert_allclose(found.variables["density"].values @ box, 1, atol=1e-4)
    at = sample(solution, grid_of("1deg", 2).points)
    np.testing.assert_array_equal(at.variables["density"].values, found.variables["density"].values)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"grid": "7deg"}, "the degrees of a grid must divide 180, got 7deg"),
        ({"grid": "0deg"}, "must divide 180, got 0deg"),
        ({"grid": "0.0000001deg"}, "a grid of 1e-07deg needs about"),
        ({"grid": "one"}, "a grid must be like '1deg', or an .npz file"),
        ({"grid": "none.npz"}, "none.npz: no such file"),
        ({"grid": np.ones((3, 2))}, "point 0 is not on the unit sphere"),
        ({"grid": np.ones((0, 2))}, "there are no points"),
        ({"grid": np.eye(3)}, "points must be rows of 2 coordinates"),
        ({"times": [2.0]}, "there is no density at t = 2, saved are 2 times from 0 to 1"),
        ({"times": []}, "at least one time"),
        ({"values": ["mass"]}, "values must be one of 'density'"),
        ({"values": ["log_density"]}, "'density' gives its logarithm too"),
        ({"values": ["zero-temperature"]}, "no density at zero temperature"),
        ({"times": 1.0}, "sample: times must be"),
    ],
)
def test_what_is_refused(options: dict[str, object], says: str) -> None:
    solution = solved(2)
    with pytest.raises(InputError, match=says):
        sample(solution, **options)  # type: ignore[arg-type]


def test_what_is_no_run_and_no_file_is_refused(tmp_path: Path) -> None:
    for use in (sample, to_xarray):
        with pytest.raises(InputError, match="history must be a Result or a Solution, got 'out'"):
            use("out")  # type: ignore[operator]
    found = sample(solved(2), "90deg")
    with pytest.raises(InputError, match=r"the name must end in \.nc, \.npz or \.csv, got '\.txt'"):
        found.write(tmp_path / "a.txt")
    with pytest.raises(InputError, match="write: path must be a path, got 4"):
        found.write(4)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_there_is_no_limit_at_points_without_a_limit() -> None:
    turning = Attention(np.eye(2), np.eye(2), np.array([[0.0, -1.0], [1.0, 0.0]]), 5.0)
    solution = solve(turning, circle_mesh(20), until=0.1)
    with pytest.raises(InputError, match="no limit"):
        sample(solution, values=["limit"])


def test_the_command_writes_what_the_function_returns(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    assert main("run", write_case(SHORT), "--quiet", "--output", tmp_path / "out") == (0, "")
    np.savez(tmp_path / "points.npz", points=np.eye(2), masses=np.ones(2))
    line = ("sample", "out", "--grid", "points.npz", "--output", "a.csv")
    code, message = main_in(
        main, tmp_path, *line, "--times", 0, 0.6, "--values", "density", "limit"
    )
    assert code == 0, message
    assert "points.npz: arrays not used: masses" in message
    assert "t = 0.6 was not saved; the nearest that was, t = 0.5, is taken" in message
    assert "a.csv: density, log_density, limit_x, limit_y at t = 0, 0.5" in message
    table = np.genfromtxt(tmp_path / "a.csv", delimiter=",", names=True)
    np.testing.assert_array_equal(table["time"], [0, 0, 0.5, 0.5])


@pytest.mark.parallel([2])
def test_the_first_of_two_ranks_writes_and_says_so(main: Main, write_case: Write) -> None:
    comm = MPI.COMM_WORLD
    case = comm.bcast(write_case(SHORT))
    folder = case.parent
    assert main("run", case, "--quiet", "--output", folder / "out") == (0, "")
    code, message = main_in(main, folder, "sample", "out", "--output", "b.nc")
    said = "b.nc: density, log_density at t = 1\n" if comm.rank == 0 else ""
    assert (code, message) == (0, said)
    comm.barrier()
    with scipy.io.netcdf_file(folder / "b.nc", mmap=False) as file:
        assert file.variables["density"].shape == (1, 360)
        assert b"beta = 40.0" in file.case


def main_in(main: Main, folder: Path, *line: object) -> tuple[int, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return main(*line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nothing --output a.nc", "nothing: no such result folder"),
        ("out --output a.txt", "a.txt: the name must end in .nc, .npz or .csv, got '.txt'"),
        ("out --output none/a.nc", "there is no folder none"),
        ("out --output out/history.csv", "is a file of the result itself"),
        ("out --grid a.npz --output a.npz", "--output is the grid file itself"),
        ("out --grid bad.npz --output a.nc", "bad.npz: not an .npz file"),
        ("out --grid other.npz --output a.nc", "other.npz: the array 'points' is missing"),
        ("out --times 7 --output a.nc", "out: there is no density at t = 7"),
        ("out --times now --output a.nc", "expected a number, got 'now'"),
        (
            "out --values masses --output a.nc",
            "values must be one of 'density', 'zero-temperature', 'velocity', 'limit', got",
        ),
        ("out", "required: --output"),
    ],
)
def test_what_the_command_refuses(
    line: str, says: str, main: Main, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "refused"
    if not folder.is_dir():
        folder.mkdir()
        (folder / "case.toml").write_text(SHORT)
        assert main_in(main, folder, "run", "case.toml", "--quiet", "--output", "out")[0] == 0
        np.savez(folder / "a.npz", points=np.eye(2))
        np.savez(folder / "other.npz", places=np.eye(2))
        (folder / "bad.npz").write_text("points")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, message = main_in(main, folder, "sample", *line.split())
    assert code == 2
    assert says in message
    assert message.count("\n") == 1
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_without_xarray_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(InputError, match=r"pip install 'meanfield_pde\[xarray\]'"):
        to_xarray(solved(2))


@pytest.mark.parametrize("adapt", [None, 1e-2])
def test_a_dataset_of_xarray(adapt: float | None) -> None:
    pytest.importorskip("xarray")
    solution = solved(2, save_every=0.5, adapt=adapt, observables={"density": "x**4"})
    found = to_xarray(solution)
    np.testing.assert_array_equal(found.time, solution.times)
    for name in ("mean_x", "energy"):
        np.testing.assert_array_equal(found[name], solution.history[name])
    assert found.min_density.attrs["units"] == "1/rad"
    np.testing.assert_array_equal(found.history_density, solution.history["density"])
    last = found.density.where(found.cell_time == 1, drop=True) if adapt else found.density[-1]
    np.testing.assert_array_equal(last, solution.density_at(-1))
    box = found.volume.where(found.cell_time == 1, drop=True) if adapt else found.volume
    assert float((last * box).sum()) == pytest.approx(1, rel=1e-12)
    grid = to_xarray(solution, "5deg")
    assert grid.density.dims == ("time", "angle")
    assert grid.density.attrs["units"] == "rad-1"
    np.testing.assert_array_equal(grid.mean_x, solution.history["mean_x"])


def test_a_dataset_of_the_sphere() -> None:
    pytest.importorskip("xarray")
    attention = Attention(np.eye(3), np.eye(3), np.eye(3), 1.0)
    solution = solve(attention, sphere_mesh(80), "1 + 0.5*x", until=0.1)
    grid = to_xarray(solution, "10deg")
    assert grid.density.dims == ("time", "latitude", "longitude")
    total = (grid.density * grid.box).sum(("latitude", "longitude"))
    np.testing.assert_allclose(total, 1, atol=5e-3)
    assert to_xarray(solution).volume.attrs["units"] == "sr"
