"""`converge`, and `--check` of the other experiments: levels, intervals, folders, figures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from meanfield_pde import InputError, converge, read_case, read_result, run_case
from meanfield_pde.experiments import folder
from meanfield_pde.experiments.levels import level
from meanfield_pde.figures.bars import draw_rows
from meanfield_pde.figures.converge import draw_convergence
from meanfield_pde.results.moments import phases_of_run
from meanfield_pde.results.names import MOMENTS
from meanfield_pde.results.tables import read_history, read_table
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.richardson import interval
from tests.benchmarks.intervals import SEED, judged, problems
from tests.conftest import Command, JsonOf, Main, Write
from tests.problems import CIRCLE, OFTEN, SPHERE

SMALL = ("cells = 200", "cells = 40"), ("save_every = 0.5", "save_every = 0.25")
SHORT = (*SMALL, ("until = 5.0", "until = 0.5"))
# A metastable phase of beta = 20, as in demos/circle.toml.
SWITCHING = """
[attention]
query = [[0.8153533, -0.1042034], [-0.5210169, 0.2968871]]
key   = [[1.0, 0.0], [0.0, 1.0]]
value = [[0.8391058, 0.2945148], [0.2945148, 0.4608942]]
beta  = 20.0
[mesh]
kind = "circle"
cells = 100
[initial]
kind = "expression"
density = "1 + 0.5*x + 0.3*x*y"
[time]
until = 8.0
"""


def test_levels_are_finer_in_all_that_decides_the_error(write_case: Write) -> None:
    case = read_case(write_case(SPHERE))
    given, finer = level(case, 0).case, level(case, 1)
    assert (given.mesh.cells, finer.case.mesh.cells) == (320, 1280)
    assert finer.case.solver.step_tolerance == given.solver.step_tolerance / 4
    assert finer.case.solver.tolerance == pytest.approx(given.solver.tolerance / 8)
    assert finer.steps is not None
    assert finer.steps.growth == 0.1
    adaptive = read_case(write_case(CIRCLE + "[adapt]\ntolerance = 3e-3\n", name="adaptive.toml"))
    adapt = level(adaptive, 2).case.adapt
    assert adapt is not None
    assert adapt.tolerance == pytest.approx(3e-3 / 9)
    assert adapt.indicators.kernels[2] == pytest.approx(0.5 / 3)
    assert level(adaptive, 2).case.mesh.cells == 600


@pytest.mark.usefixtures("undrawn")
def test_intervals_hold_exact_moments() -> None:
    """Kuramoto's model and the circle at zero temperature, at the seed that the page is about."""
    counts = {"Kuramoto": 2, "zero temperature, circle": 1}
    drawn = problems(SEED, counts)
    found = [one for problem in drawn for one in judged(problem)]
    assert len(found) == 12
    sure = [one for one in found if one.interval["converging"]]
    assert len(sure) >= 11
    assert all(one.holds for one in sure)
    assert np.median([one.width for one in sure]) < 5


def test_command(main: Main, json_of: JsonOf, write_case: Write, tmp_path: Path) -> None:
    case, out = write_case(CIRCLE, *SHORT), tmp_path / "out"
    arguments = ("converge", case, "--output", out)
    numbers = json_of(*arguments, "--quiet")["numbers"]
    assert {"end.mean_x", "end.second_xy", "end.lyapunov"} <= set(numbers)
    one = numbers["end.mean_x"]
    assert {"value", "low", "high", "order", "converging"} <= set(one)
    assert one["low"] < one["value"] < one["high"]
    last = read_result(out / "level-2").history["mean_x"][-1]
    assert one["value"] == pytest.approx(float(last), abs=0)
    rows = {row["number"]: row for row in read_table(out / "converge.csv")}
    assert rows["end.mean_x"]["level_0"] == one["values"][0]
    assert main("plot", out, "--format", "svg")[0] == 0
    assert (out / "figures/converge.svg").is_file()
    err = main(*arguments)[1]
    assert [f"level {k}: finished" in err for k in range(3)] == [True] * 3


def test_figure(tmp_path: Path) -> None:
    numbers = {
        "lifetime": interval([1.1, 1.02, 1.0], 2.0).describe(),
        "half_time": interval([None, 1.3, 1.4], 2.0).describe(),
        "end.mean_x": interval([0.1, 0.2, 0.4], 2.0).describe(),
    }
    path = draw_convergence(tmp_path, numbers, ("100 cells", "200 cells", "400 cells"))
    assert path.stat().st_size > 10_000


def test_wrong_input_is_one_line(main: Main, write_case: Write, tmp_path: Path) -> None:
    case, out = write_case(CIRCLE, *SHORT), tmp_path / "out"
    code, err = main("converge", case, "--levels", 2, "--output", out)
    assert (code, err.count("\n"), "--levels" in err) == (2, 1, True)
    assert not out.exists()
    with pytest.raises(InputError, match="levels"):
        converge(read_case(case), levels=0)
    mesh = tmp_path / "mesh.xdmf"
    assert main("mesh", "circle", "--cells", 40, "--output", mesh)[0] == 0
    text = CIRCLE.replace('kind = "circle"\ncells = 200', f'kind = "file"\npath = "{mesh}"')
    given = write_case(text, name="file.toml")
    code, err = main("converge", given, "--output", out)
    assert (code, err.count("\n"), "no finer meshes" in err) == (2, 1, True)


@pytest.mark.usefixtures("undrawn")
def test_a_level_that_was_stopped_goes_on(
    write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = read_case(write_case(SWITCHING + OFTEN, ("until = 8.0", "until = 3.0")))

    class StoppedHereError(Exception):
        pass

    def stop(one: Any, **options: Any) -> None:
        if one.output.directory.name == "level-1":
            raise StoppedHereError
        run_case(one, **options)

    with monkeypatch.context() as patched:
        patched.setattr(folder, "run_case", stop)
        with pytest.raises(StoppedHereError):
            converge(case, directory=tmp_path / "out", quiet=True)
    written = (tmp_path / "out/level-0/summary.json").stat().st_mtime_ns
    stopped = converge(case, directory=tmp_path / "out", quiet=True)
    assert (tmp_path / "out/level-0/summary.json").stat().st_mtime_ns == written
    whole = converge(case, directory=tmp_path / "whole", quiet=True)
    assert stopped["numbers"] == whole["numbers"]


@pytest.mark.usefixtures("undrawn")
def test_times_of_events_do_not_depend_on_saved_times(write_case: Write, tmp_path: Path) -> None:
    """With the saved times alone, linear between them, a lifetime of 4.4 was 3.9 to 4.6."""
    found = []
    for name, save in (("ends", ""), ("often", "save_every = 0.1\n"), ("odd", "save_at = [4.0]\n")):
        case = read_case(write_case(SWITCHING + save, name=f"{name}.toml"), output=tmp_path / name)
        history = run_case(case, quiet=True).history
        phases = phases_of_run(tmp_path / name, history, ProjectionLimit(case.attention))
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert summary["phases"]["lifetime"] == phases.lifetime
        assert phases.lifetime is not None
        assert phases.half is not None
        found.append([phases.lifetime, phases.half])
    # Steps end at saved times, and are others then.
    assert np.ptp(found, axis=0).max() < 2e-3


@pytest.mark.usefixtures("undrawn")
def test_moments_of_a_resumed_run_are_those_of_one_that_was_not(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    text = write_case(SWITCHING + OFTEN, ("until = 8.0", "until = 2.0"))
    whole, half = (read_case(text, output=tmp_path / name) for name in ("whole", "half"))
    run_case(whole, quiet=True)
    run_case(read_case(text, output=tmp_path / "half", until=1.0), quiet=True)
    first = read_history(tmp_path / "half" / MOMENTS)
    (tmp_path / "half/summary.json").unlink()
    run_case(half, quiet=True, resume=True)
    table = read_history(tmp_path / "half" / MOMENTS)
    assert list(table["time"][: len(first["time"])]) == list(first["time"])
    assert table["time"][-1] == 2.0
    assert (np.diff(table["time"]) > 0).all()
    with (tmp_path / "half" / MOMENTS).open("a") as file:
        file.write("3.0,1.0,0.0,0.0\n")
    code, err = main("plot", tmp_path / "half")
    assert (code, err.count("\n"), "moments.csv: not what the run wrote" in err) == (2, 1, True)
    # Damaged, it is given up, and times of events are those of the history.
    (tmp_path / "half" / MOMENTS).write_text("time\nx\n")
    later = read_case(text, output=tmp_path / "half", until=2.5)
    run_case(later, quiet=True, resume=True)
    assert not (tmp_path / "half" / MOMENTS).exists()


def test_lifetimes_with_intervals(main: Main, write_case: Write, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("lifetime", write_case(SWITCHING), "--beta", 15, 20, "--output", out, "--quiet")
    code, err = main(*arguments, "--check")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("beta = 15: ")
    assert "no metastable phase" in err  # is predicted at this beta
    rows = [row for row in read_table(out / "lifetime.csv") if row["count"] == 400]
    assert [row["beta"] for row in rows] == [15, 20]
    for row in rows:
        assert row["lifetime_converging"] is True
        assert row["lifetime_low"] < row["lifetime"] < row["lifetime_high"]
        assert row["half_high"] - row["half_low"] < 0.1
    summary = json.loads((out / "summary.json").read_text())
    assert [one["beta"] for one in summary["density"]["intervals"]] == [15, 20]
    table = read_table(out / "lifetime.csv")
    code, err = main(*arguments[:-1], "--check")
    assert (code, err.count("ended at"), err.count("the lifetime is ")) == (0, 0, 2)
    assert read_table(out / "lifetime.csv") == table  # nothing is measured again
    assert main("plot", out)[0] == 0


@pytest.mark.usefixtures("undrawn")
def test_sweep_with_intervals(main: Main, write_case: Write, tmp_path: Path) -> None:
    out = tmp_path / "out"
    changes = ("cells = 100", "cells = 50"), ("until = 8.0", "until = 5.0")
    case = write_case(SWITCHING + "save_every = 0.5\n", *changes)
    code, err = main("sweep", case, "--beta", 10, 20, "--check", "--output", out, "--quiet")
    assert (code, err) == (0, "")
    rows = read_table(out / "sweep.csv")
    assert [(row["beta"], row["p"]) for row in rows] == [(10, 1), (10, 2), (20, 1), (20, 2)]
    row = rows[2]
    assert row["least_time_high"] - row["least_time_low"] > 0.5  # by the saved times alone
    assert (out / "level-2/beta-20/summary.json").is_file()


def test_transition_with_intervals(main: Main, write_case: Write, tmp_path: Path) -> None:
    """Q = K = V = I without the denominator, whose threshold on the circle is I_1(beta) / beta."""
    from scipy.special import iv

    identity = "[[1.0, 0.0], [0.0, 1.0]]"
    text = (
        f"[attention]\nquery = {identity}\nkey = {identity}\nvalue = {identity}\nbeta = 2.0\n"
        'normalise = false\n[mesh]\nkind = "circle"\ncells = 12\n[initial]\n'
        'kind = "expression"\ndensity = "exp(2*x)"\n[time]\nuntil = 1.0\n'
    )
    arguments = ("transition", write_case(text), "--strength", 0.6, 1.0, "--check")
    assert main(*arguments, "--output", tmp_path / "out", "--quiet") == (0, "")
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    threshold = summary["numbers"]["threshold"]
    assert threshold["low"] < iv(1, 2.0) / 2.0 < threshold["high"]
    assert threshold["order"] == pytest.approx(2, abs=0.1)
    rows = read_table(tmp_path / "out/transition.csv")
    assert all(row["order_low"] <= row["order"] <= row["order_high"] for row in rows)
    assert (tmp_path / "out/level-2/transition.csv").is_file()


def test_markers_are_hollow_where_values_do_not_converge() -> None:
    axes = Figure().subplots()
    rows = [
        {"t": 1.0, "t_low": 0.5, "t_high": 1.5, "t_converging": True},
        {"t": 2.0, "t_low": None, "t_high": None, "t_converging": False},
    ]
    draw_rows(axes, [1.0, 2.0], rows, "t", "o", "C0", "times")
    filled, hollow, *caps = axes.get_lines()
    assert (list(filled.get_ydata()), list(hollow.get_ydata())) == ([1.0], [2.0])
    assert (filled.get_markerfacecolor(), hollow.get_markerfacecolor()) == ("C0", "none")
    assert sorted(float(cap.get_ydata()[0]) for cap in caps) == [0.5, 1.5]


@pytest.mark.slow
def test_ranks(command: Command, write_case: Write, tmp_path: Path) -> None:
    case = write_case(CIRCLE, *SHORT)
    found = []
    for ranks in (1, 2):
        out = tmp_path / f"ranks{ranks}"
        ended = command("converge", case, "--quiet", "--output", out, ranks=ranks)
        assert (ended.returncode, ended.stderr) == (0, "")
        found.append(json.loads((out / "summary.json").read_text())["numbers"])
    for name, one in found[0].items():
        assert found[1][name]["value"] == pytest.approx(one["value"], rel=1e-9, abs=1e-9)
        assert found[1][name]["converging"] == one["converging"]
    assert math.isfinite(found[0]["end.mean_x"]["low"])
