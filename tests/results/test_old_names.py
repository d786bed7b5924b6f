"""Names of earlier versions are read wherever users have them, with one line that says the new.

`fixtures` holds folders of version 0.2: `before_checksums` and `lifetime` are written by commit
fd8a801, `with_checksums` by edc1392, of the cases beside them; at the end of the runs there are
clusters beside the cells.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from matplotlib.figure import Figure

from meanfield_pde import AdaptSettings, InputError, Solution, circle_mesh, read_case, solve
from meanfield_pde.case.text import case_text, differing_keys, same_case, same_problem
from meanfield_pde.experiments.cost import check_steps
from meanfield_pde.experiments.lifetime import density_lifetime
from meanfield_pde.results.folder import read_result
from meanfield_pde.results.tables import read_table
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.support import old_names
from meanfield_pde.verification import report
from tests.conftest import Main, Write
from tests.problems import CIRCLE, MIXTURE, metastable

FIXTURES = Path(__file__).parent / "fixtures"
COMMANDS = Path(__file__).parents[2] / "demos/reference/commands.md"
RUNS = ["before_checksums", "with_checksums"]
NEW = {"w1_error_estimate", "min_cell_width", "patch_mass", "quantisation_limit"}
OLD = {"mesh_error", "least_width", "spot_mass", "bar_limit"}
ADAPT = ("cells = 200", "cells = 40\n[adapt]\ntolerance = 0.05")
RESOLUTION = ("cells = 200", "cells = 40\nresolution = 0.05")


def header(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()[0].split(",")


def lines_about(err: str, what: str) -> list[str]:
    return [line for line in err.splitlines() if what in line]


@pytest.fixture(params=RUNS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a folder of an earlier version."""
    return Path(shutil.copytree(FIXTURES / request.param, tmp_path / request.param))


def test_an_old_folder_is_read_with_new_columns(
    old: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert set(header(old / "history.csv")) >= OLD
    result = read_result(old)
    read_result(old)
    (line,) = lines_about(caplog.text, "by new names")
    assert str(old) in line
    assert "mesh_error as w1_error_estimate" in line
    assert result.history.keys() >= NEW
    assert not OLD & result.history.keys()
    assert result.history["patch_mass"][-1] > 0.5
    with pytest.warns(FutureWarning, match="spot_mass is called patch_mass now"):
        assert result.history["spot_mass"] is result.history["patch_mass"]
    with pytest.raises(KeyError, match="no column 'spot'"):
        result.history["spot"]
    caplog.clear()
    adapt = result.case.adapt
    assert adapt is not None
    assert (adapt.tolerance, adapt.max_cells) == (0.05, 200_000)
    assert len(lines_about(caplog.text, "adapt.tolerance")) == 1


def test_an_old_history_is_held_byte_for_byte_against_its_rows(tmp_path: Path) -> None:
    """By the names that it has."""
    folder = Path(shutil.copytree(FIXTURES / "with_checksums", tmp_path / "out"))
    path = folder / "history.csv"
    path.write_text(path.read_text().replace("spot_mass", "patch_mass"))
    with pytest.raises(InputError, match="line 1 is not what the run wrote"):
        read_result(folder)


@pytest.mark.painted
@pytest.mark.draws("history")  # the next draws all of them
def test_an_old_folder_is_drawn_and_left_as_it_is(old: Path, main: Main) -> None:
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    code, err = main("plot", old)
    assert (code, len(lines_about(err, "by new names"))) == (0, 1), err
    assert (old / "figures/history.png").stat().st_size > 10_000
    code, err = main("run", FIXTURES / "circle.toml", "--output", old, "--quiet")
    assert code == 0, err
    assert len(lines_about(err, "finished results of this case")) == 1
    assert len(lines_about(err, "mesh.resolution is called adapt.tolerance now")) == 1
    assert before == {path.name: path.read_bytes() for path in old.iterdir() if path.is_file()}


def test_an_old_run_goes_on_with_new_columns(
    old: Path, main: Main, write_case: Write, drawn: list[Figure]
) -> None:
    text = (FIXTURES / "circle.toml").read_text(encoding="utf-8")
    case = write_case(text, ("resolution = 0.05", "[adapt]\ntolerance = 0.05\nmax_cells = 999"))
    saved = read_table(old / "history.csv")
    code, err = main("run", case, "--output", old, "--resume", "--until", 12.5, "--quiet")
    assert code == 0, err
    assert len(lines_about(err, "by new names")) == 1
    assert set(header(old / "history.csv")) >= NEW
    with h5py.File(old / "checkpoint.h5") as file:
        assert set(header(old / "history.csv")) == set(file.attrs["columns"])
    rows = read_table(old / "history.csv")
    assert rows[:-1] == saved
    assert rows[-1]["time"] == 12.5
    assert rows[-1]["patch_mass"] == pytest.approx(saved[-1]["patch_mass"], rel=1e-6)
    code, err = main("plot", old)
    assert (code, "earlier version" in err) == (0, False), err
    panels = {axes.get_title(): axes for axes in drawn[-1].axes}  # history.png
    # The estimate of the error is no distance, and the bounds of one are a band about it.
    distances = panels["$W_1$"]
    assert [len(distances.get_lines()), len(distances.collections)] == [1, 1]
    assert panels.keys() >= {"w1_error_estimate", "patch_mass"}
    summary = json.loads((old / "summary.json").read_text())
    assert summary["mesh"].keys() >= {"tolerance", "min_cell_width", "largest_w1_error_estimate"}
    assert list(summary["least_distances"]) == ["w1_limit"]


@pytest.mark.painted
def test_an_old_table_of_lifetimes_goes_on(tmp_path: Path, main: Main) -> None:
    folder = Path(shutil.copytree(FIXTURES / "lifetime", tmp_path / "out"))
    assert "least_width" in header(folder / "lifetime.csv")
    line = ("lifetime", FIXTURES / "lifetime.toml", "--output", folder, "--quiet", "--beta", 20, 40)
    code, err = main(*line, "--tokens", 20, "--seeds", 1)
    assert code == 0, err
    (said,) = lines_about(err, "by new names")
    assert str(folder / "lifetime.csv") in said
    rows = read_table(folder / "lifetime.csv")
    assert [row["kind"] for row in rows] == ["density", "density", "tokens", "tokens"]
    assert rows[0]["min_cell_width"] == 0.0013577625647595568
    assert "least_width" not in header(folder / "lifetime.csv")
    assert main("plot", folder)[0] == 0


def test_a_table_with_both_names_of_a_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lifetime.csv"
    path.write_text("least_width,min_cell_width\n1,2\n")
    with pytest.raises(InputError, match="column 'least_width' is the older name of 'min_cell_wid"):
        read_table(path)


def test_old_and_new_case_are_one(
    write_case: Write, main: Main, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = read_case(write_case(CIRCLE, ADAPT))
    assert caplog.text == ""
    old = read_case(write_case(CIRCLE, RESOLUTION))
    (line,) = caplog.text.splitlines()
    assert "some-case.toml: mesh.resolution is called adapt.tolerance now: write [adapt]" in line
    assert new.adapt == old.adapt == AdaptSettings(0.05)
    assert case_text(new) == case_text(old)
    assert "[adapt]\ntolerance = 0.05\nmax_cells = 200000\n" in case_text(new)
    text = CIRCLE.replace(*RESOLUTION)
    assert same_problem(CIRCLE.replace(*ADAPT), text)
    assert differing_keys(text, text.replace("0.05", "0.06")) == ("adapt.tolerance",)
    small = CIRCLE.replace(*ADAPT).replace("0.05", "0.05\nmax_cells = 500")
    assert differing_keys(text, small) == ("adapt.max_cells",)
    assert same_problem(text, small)
    assert same_case(text, small)
    both = write_case(CIRCLE, ("cells = 200", "resolution = 0.05\n[adapt]\ntolerance = 0.05"))
    code, err = main("run", both, "--output", tmp_path / "out")
    assert (code, err.count("\n")) == (2, 1)
    assert "mesh.resolution is the older name of adapt.tolerance; give one of them" in err


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("tolerance = 0.0", "adapt.tolerance must be a number of radians > 0 and < 1, got 0.0"),
        ("max_cells = 500", "adapt.tolerance is missing"),
        ("tolerance = 0.05\nmax_cells = 1.5", "adapt.max_cells must be a whole number >= 1"),
        ("tolerance = 0.05\nmax_cells = 9999999999", "adapt.max_cells must be at most 2147483647"),
        ("tolerance = 0.05\nmax_cells = 20", "more than adapt.max_cells = 20"),
        ("tolerence = 0.05", "did you mean 'tolerance'?"),
        (
            "tolerance = 0.05\nmax_cells = 100",
            "the mesh has 200 cells, more than adapt.max_cells = 100",
        ),
    ],
)
def test_wrong_adapt_tables(
    table: str, says: str, write_case: Write, main: Main, tmp_path: Path
) -> None:
    case = write_case(CIRCLE, ("cells = 200", f"cells = 200\n[adapt]\n{table}"))
    code, err = main("run", case, "--until", 0.1, "--output", tmp_path / "out", "--quiet")
    assert (code, err.count("\n"), says in err) == (2, 1, True), err


def short(**options: Any) -> Solution:
    return solve(metastable(5.0), circle_mesh(40), until=0.05, threads=1, **options)


def test_old_keywords_are_taken_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match="solve: resolution is called adapt now") as said:
        old = short(resolution=0.1)
    assert len(said) == 1
    assert said[0].filename == __file__
    new, full = short(adapt=0.1), short(adapt=AdaptSettings(0.1, max_cells=500))
    assert np.array_equal(old.masses[-1], new.masses[-1])
    assert np.array_equal(old.masses[-1], full.masses[-1])
    with pytest.raises(InputError, match="solve: resolution is the older name of adapt"):
        short(resolution=0.1, adapt=0.1)
    with pytest.raises(InputError, match=r"adapt.tolerance = 0.1 takes about .* adapt.max_cells"):
        short(adapt=AdaptSettings(0.1, max_cells=3))
    with pytest.warns(FutureWarning, match="Simulation: resolution is called adapt now"):
        Simulation(metastable(5.0), circle_mesh(40), MIXTURE, resolution=0.1).close()
    options: dict[str, Any] = {"resolution": 0.1, "however_long": True}
    with pytest.warns(FutureWarning) as several:
        found = density_lifetime(metastable(5.0), circle_mesh(20), MIXTURE, until=0.1, **options)
    assert len(several) == 2
    assert found.most_cells is not None
    assert found.most_cells > 20
    with pytest.raises(TypeError):
        check_steps([], 1.0, "until", however_long=True)  # no function that users call


def test_an_old_option_is_taken_with_a_line(main: Main, write_case: Write, tmp_path: Path) -> None:
    case = write_case(CIRCLE, ("cells = 200", "cells = 20"))
    line = ("run", case, "--until", 0.1, "--output", tmp_path / "out", "--quiet")
    assert main(*line, "--however-long") == (0, "--however-long is called --allow-long now\n")
    assert main(*line, "--overwrite", "--allow-long") == (0, "")
    code, err = main(*line, "--however-long", "--allow-long")
    assert (code, err.count("\n")) == (2, 1)
    assert "--however-long is the older name of --allow-long; give one of them" in err


def test_an_old_key_may_be_varied(main: Main, write_case: Write, tmp_path: Path) -> None:
    case, out = write_case(CIRCLE, ADAPT), tmp_path / "out"
    line = ("sweep", case, "--output", out, "--quiet")
    short = case.read_text(encoding="utf-8").replace("until = 5.0", "until = 0.1")
    assert "until = 0.1" in short
    case.write_text(short, encoding="utf-8")
    code, err = main(*line, "--vary", "mesh.resolution=0.1,0.2")
    assert (code, err.splitlines()[0]) == (0, "mesh.resolution is called adapt.tolerance now")
    assert [row["adapt.tolerance"] for row in read_table(out / "points.csv")] == [0.1, 0.2]
    both = ("--vary", "mesh.resolution=0.1,0.2", "--vary", "adapt.tolerance=0.3,0.4")
    code, err = main(*line, *both)
    assert (code, "adapt.tolerance is given twice" in err) == (2, True)


def test_an_old_attribute_is_read_with_a_warning() -> None:
    @old_names.accept_old_attributes
    @dataclass
    class TokenComparison:
        diagnosis: str

    with pytest.warns(FutureWarning, match="judgement is called diagnosis now") as said:
        assert TokenComparison("right").judgement == "right"
    assert said[0].filename == __file__
    assert set(old_names.ATTRIBUTES) == {report.TokenComparison.__name__}
    assert hasattr(report.TokenComparison, "judgement")


def test_help_names_new_options_only(capfd: pytest.CaptureFixture[str]) -> None:
    from meanfield_pde.cli.main import main

    with pytest.raises(SystemExit):
        main(["run", "--help"])
    out = capfd.readouterr().out
    assert ("--allow-long" in out, "however" in out) == (True, False)


def test_the_page_has_the_table_of_old_names() -> None:
    section = COMMANDS.read_text(encoding="utf-8").split("\n## Older names\n")[1].split("\n## ")[0]
    listed = dict(re.findall(r"^\| `([^`]+)`[^|]*\| `([^`]+)`", section, re.MULTILINE))
    keys = {".".join(one): ".".join(other) for one, other in old_names.CASE_KEYS.items()}
    known = keys | old_names.KEYWORDS | old_names.OPTIONS | old_names.COLUMNS
    known |= {old: new for own in old_names.ATTRIBUTES.values() for old, new in own.items()}
    assert known.items() <= listed.items()


def test_old_names_stand_in_one_module() -> None:
    package = Path(old_names.__file__).parents[1]
    old = [*old_names.COLUMNS, *old_names.KEYWORDS, *old_names.OPTIONS, "spot_", "leaf_changes"]
    old += [name for own in old_names.ATTRIBUTES.values() for name in own]
    wrong = re.compile("|".join(rf"(?<![\w-]){name}" for name in old))
    for path in [*package.rglob("*.py"), *package.rglob("*.toml")]:
        if path != Path(old_names.__file__):
            assert wrong.findall(path.read_text(encoding="utf-8")) == [], path


def test_what_is_read_again_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert old_names.new_columns(["time", "bar_zero"], tmp_path)[1] == "quantisation_zero"
    assert len(caplog.records) == 1
