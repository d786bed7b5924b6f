"""`sweep --vary`: a case at every point of a grid of values of its keys."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from meanfield_pde import AdaptSettings, InputError, SolverError, read_case, read_result, sweep
from meanfield_pde.amr.settings import IndicatorSettings
from meanfield_pde.case.case import Case
from meanfield_pde.case.varied import varied_case
from meanfield_pde.cli.arguments import variation
from meanfield_pde.experiments import folder
from meanfield_pde.experiments.run import run_case
from meanfield_pde.results.tables import read_table
from tests.conftest import Command, JsonOf, Main, Write, curves
from tests.problems import CIRCLE

SHORT = (("until = 5.0\nsave_every = 0.5", "until = 0.5"), ("cells = 200", "cells = 40"))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1:10:4", [1, 4, 7, 10]),
        ("0:1:3", [0, 0.5, 1]),
        ("1.0:3:2", [1.0, 3.0]),
        ("1:1000:4:log", [1, 10, 100, 1000]),
        ("0.1,0.2, 0.4", [0.1, 0.2, 0.4]),
        ("muscl,upwind", ["muscl", "upwind"]),
        ("[1,0],[0,1]", [[1, 0], [0, 1]]),
        ('true,"a,b"', [True, '"a', 'b"']),
        ("-1:1:3", [-1, 0, 1]),
    ],
)
def test_values_of_an_option(text: str, values: list[Any]) -> None:
    assert variation(f"attention.beta={text}") == ("attention.beta", values)
    assert list(map(type, variation(f"x={text}")[1])) == list(map(type, values))


@pytest.mark.painted
def test_a_map_of_two_keys(
    main: Main, json_of: JsonOf, drawn: list[Figure], write_case: Write, tmp_path: Path
) -> None:
    """Each point is a run of its own; a grid that is made larger keeps the points it has."""
    case, out = write_case(CIRCLE, *SHORT), tmp_path / "out"
    arguments = ["sweep", case, "--vary", "attention.beta=1:16:3:log", "--output", out]
    noise = "--vary", "noise.strength=0.1,0.2"
    code, err = main(*arguments, *noise)
    assert (code, err.count("started"), err.count("concentration")) == (0, 6, 0)
    rows = read_table(out / "points.csv")
    points = [(beta, strength) for beta in (1, 4, 16) for strength in (0.1, 0.2)]
    assert [(row["attention.beta"], row["noise.strength"]) for row in rows] == points
    alone = run_case(
        replace(
            varied_case(read_case(case), {"attention.beta": 4, "noise.strength": 0.2}),
            output=replace(read_case(case).output, directory=tmp_path / "alone"),
        ),
        quiet=True,
    )
    for name in ("mean_norm", "free_energy"):
        assert rows[3][f"end.{name}"] == float(alone.history[name][-1])
    (mesh,) = drawn[-1].axes[0].collections
    shown = np.array([row["end.mean_norm"] for row in rows]).reshape(3, 2)
    np.testing.assert_array_equal(np.asarray(mesh.get_array()), shown.T)
    assert drawn[-1].axes[0].get_xscale() == "log"

    arguments[3] = "attention.beta=16,1,2"
    summary = json_of(*arguments, *noise, "--show", "end.second_xx", "--quiet")
    assert [row["attention.beta"] for row in summary["points"]] == [16, 16, 1, 1, 2, 2]
    assert summary["points"][0]["end.mean_norm"] == rows[4]["end.mean_norm"]
    (mesh,) = drawn[-1].axes[0].collections
    drawn_first = np.asarray(mesh.get_array())[0]  # in the order of the axis
    assert drawn_first.tolist() == [summary["points"][i]["end.second_xx"] for i in (2, 4, 0)]
    err = main(*arguments, *noise)[1]
    assert (err.count("finished"), err.count("started")) == (6, 0)
    assert main("plot", out, "--format", "svg")[0] == 0
    assert (out / "figures/points.svg").is_file()
    code, err = main(*arguments, *noise, "--quiet", "--show", "end.second_xz")
    assert (code, "no figures: there is no column 'end.second_xz'" in err) == (0, True)
    other = write_case(CIRCLE, *SHORT, ("0.3]]", "0.4]]"), name="other.toml")
    code, err = main("sweep", other, *arguments[2:], *noise)
    assert (code, "which differs in attention.value" in err) == (2, True)


def test_a_curve_with_intervals(drawn: list[Figure], write_case: Write, tmp_path: Path) -> None:
    """One key, an entry of a matrix, from Python, on three meshes; a point that was stopped."""
    case, out = read_case(write_case(CIRCLE, *SHORT)), tmp_path / "out"
    vary = {"attention.value[1][1]": np.array([0.3, -0.5])}
    summary = sweep(case, vary=vary, directory=out, check=True, quiet=True)
    assert summary["varied"] == {"attention.value[1][1]": [0.3, -0.5]}
    for row, name in zip(summary["points"], ("0.3", "-0.5"), strict=True):
        finest = read_result(out / f"level-2/attention.value.1.1={name}")
        assert finest.attention.layers[0].heads[0].value[1, 1] == float(name)
        assert len(finest.cells.points) == 160
        assert row["end.mean_x"] == float(finest.history["mean_x"][-1])
        assert row["end.mean_x_low"] < row["end.mean_x"] < row["end.mean_x_high"]
    lines = drawn[-1].axes[0].get_lines()
    np.testing.assert_array_equal(lines[0].get_xdata(), [-0.5, 0.3])
    assert drawn[-1].axes[0].get_xlabel() == "attention.value[1][1]"
    assert curves(drawn[-1]) == {}


def test_three_keys_have_a_map_each(drawn: list[Figure], write_case: Write, tmp_path: Path) -> None:
    case = read_case(write_case(CIRCLE, *SHORT))
    vary = {
        "attention.beta": [1, 2],
        "time.until": [0.25, 0.5],
        "solver.scheme": ["muscl", "upwind"],
    }
    found = sweep(case, vary=vary, directory=tmp_path / "out", quiet=True)["points"]
    assert [row["time"] for row in found[:4]] == [0.25, 0.25, 0.5, 0.5]
    maps = [axes for axes in drawn[-1].axes if axes.get_title()]
    assert [axes.get_title() for axes in maps] == [
        "solver.scheme = muscl",
        "solver.scheme = upwind",
    ]
    for axes, rest in zip(maps, ("muscl", "upwind"), strict=True):
        own = [row["end.mean_norm"] for row in found if row["solver.scheme"] == rest]
        shown = np.asarray(axes.collections[0].get_array())
        np.testing.assert_array_equal(shown.T.ravel(), own)


def test_a_point_that_fails_is_left_out_and_tried_again(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, out = write_case(CIRCLE, *SHORT), tmp_path / "out"
    arguments = ("sweep", case, "--vary", "attention.beta=1,2,4", "--quiet", "--output", out)

    def failing(one: Case, **options: Any) -> None:
        if one.attention.beta == 2:
            raise SolverError("it does not converge")
        run_case(one, **options)

    with monkeypatch.context() as patched:
        patched.setattr(folder, "run_case", failing)
        code, err = main(*arguments)
    assert code == 0
    assert "attention.beta = 2 failed: it does not converge" in err
    assert [row["end.mean_x"] is None for row in read_table(out / "points.csv")] == [0, 1, 0]
    assert main(*arguments) == (0, "")
    assert [row["end.mean_x"] is None for row in read_table(out / "points.csv")] == [0, 0, 0]
    with monkeypatch.context() as patched:
        patched.setattr(
            folder,
            "run_case",
            lambda one, **options: failing(replace(one, attention=one.attention.with_beta(2.0))),
        )
        code, err = main(*arguments[:-1], tmp_path / "none")
    assert (code, "all 3 points failed; it does not converge" in err) == (1, True)


@pytest.mark.parametrize(
    ("vary", "why"),
    [
        (("attention.bet=1,2",), "[attention] unknown key 'bet'; did you mean 'beta'?"),
        (("atention.beta=1,2",), "unknown section [atention]; did you mean 'attention'?"),
        (("beta=1,2",), "a key is its section and its name, such as attention.beta"),
        (("noise.strength=0.1,-1",), "noise.strength must be a number >= 0, got -1"),
        (("mesh.cells=40:81:3",), "mesh.cells = 60.5: mesh.cells must be a whole number >= 3"),
        (("mesh.cells=40,1900000000",), "take fewer cells"),
        (("attention.value[2][0]=1,2",), "there is no entry [2], but 2, from [0] on"),
        (("attention.beta[0]=1,2",), "40.0 has no entries"),
        (("attention.beta=5",), "attention.beta needs 2 different values or more, each once"),
        (("attention.beta=5,5.0",), "each once"),
        (("attention.beta=1:2",), "expected START:STOP:COUNT"),
        (("attention.beta=0:2:3:log",), "with ends > 0, got '0:2:3:log'"),
        (("attention.beta=1:2:99999",), "a count from 2 to 10000"),
        (("attention.beta=1,,2",), "a value between two commas is missing"),
        (("attention.beta",), "expected KEY=START:STOP:COUNT"),
        (("attention.beta=1:2:200", "noise.strength=1:2:200"), "40000 points are more than 10000"),
        (("attention.beta=1,2", "attention.beta=3,4"), "each key once, with all its values"),
        (("output.fields=none,pvd",), "output.fields is the same for all points"),
        (("mesh.kind=circle,sphere",), "mesh.kind 'sphere' needs a 3 x 3 attention.value"),
    ],
)
def test_what_cannot_be_varied_is_one_line_before_anything_runs(
    vary: tuple[str, ...], why: str, main: Main, write_case: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = [part for one in vary for part in ("--vary", one)]
    code, err = main("sweep", write_case(CIRCLE, *SHORT), *options, "--output", out)
    assert (code, err.count("\n")) == (2, 1)
    assert why in err
    assert not out.exists()


def test_betas_or_keys(main: Main, write_case: Write, tmp_path: Path) -> None:
    path = write_case(CIRCLE, *SHORT)
    code, err = main("sweep", path, "--beta", 1, 2, "--vary", "attention.beta=1,2")
    assert (code, "not allowed with argument --beta" in err) == (2, True)
    assert main("sweep", path)[0] == 2
    case, out = read_case(path), tmp_path / "out"
    for options in ({}, {"betas": (1, 2), "vary": {"attention.beta": (1, 2)}}):
        with pytest.raises(InputError, match="give one of them"):
            sweep(case, directory=out, **options)
    with pytest.raises(InputError, match="a sweep over betas has figures"):
        sweep(case, (1, 2), directory=out, show="end.energy")
    for wrong in ({"attention.beta": 3}, {"attention.beta": "12"}, {}):
        with pytest.raises(InputError, match="vary"):
            sweep(case, directory=out, vary=wrong)


def test_settings_that_no_file_holds_stay(write_case: Write) -> None:
    case = read_case(write_case(CIRCLE, *SHORT))
    own = AdaptSettings(1e-3, indicators=IndicatorSettings(profile=0.01))
    found = varied_case(
        replace(case, adapt=own), {"adapt.tolerance": 2e-3, "attention.beta": math.inf}
    )
    assert found.adapt is not None
    assert (found.adapt.tolerance, found.adapt.indicators.profile) == (2e-3, 0.01)
    assert math.isinf(found.attention.beta)


@pytest.mark.slow
def test_ranks_share_the_points_out(command: Command, write_case: Write, tmp_path: Path) -> None:
    """As many runs at once as ranks, each on one, with the numbers of one rank."""
    case = write_case(CIRCLE, *SHORT)
    arguments = ("sweep", case, "--vary", "attention.beta=1,2,4", "--quiet", "--output")
    for ranks in (1, 2):
        ended = command(*arguments, tmp_path / f"ranks{ranks}", ranks=ranks)
        assert (ended.returncode, ended.stderr) == (0, "")
    one, two = (read_table(tmp_path / f"ranks{ranks}/points.csv") for ranks in (1, 2))
    assert one == two
