"""What a user sees: the lines at the end of a run, and figures of folders in the formats asked."""

from __future__ import annotations

import json
import re
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
from matplotlib.figure import Figure

from meanfield_pde import ProjectionLimit, read_result
from meanfield_pde.experiments.lifetimes import TABLE
from meanfield_pde.figures.density import draw_density
from tests.conftest import Main, Write, curves
from tests.problems import CIRCLE, KEY_QUERY, SPHERE, VALUE

COMPARE = "[compare]\nlimit = true\np = [1]\n"
SWITCHING = (
    ("query = [[1.0, 0.0], [0.0, 1.0]]", f"query = {KEY_QUERY.tolist()}"),
    ("value = [[1.0, 0.2], [0.0, 0.3]]", f"value = {VALUE.tolist()}"),
    ("cells = 200", "cells = 60"),
    ("until = 5.0", "until = 2.0"),
)


@pytest.mark.parallel([2])
def test_a_run_ends_with_what_was_found(main: Main, write_case: Write) -> None:
    """Said by the first of two ranks."""
    comm, compare = MPI.COMM_WORLD, COMPARE.replace("p =", "zero_temperature = true\np =")
    case = comm.bcast(write_case(CIRCLE + compare))
    code, err = main("run", case, "--output", case.parent / "out")
    assert code == 0, err
    assert comm.rank == 0 or err == ""
    err = comm.bcast(err)
    lines = err.splitlines()
    summary = json.loads((case.parent / "out/summary.json").read_text())
    assert summary["phases"]["concentration"]["begin"] == 0.0
    end = summary["phases"]["concentration"]["end"]
    expected_end = summary["limit"]["log_beta_time"]
    cells = [re.split(r" {2,}", line) for line in lines]
    assert cells.count(["concentration", f"t = 0 to {end:.4g}", f"until {expected_end:.4g}"]) == 1
    least = summary["least_distances"]["w1_limit"]
    between = f"{least['low']:.4g} to {least['high']:.4g}"
    found = f"{least['value']:.4g} at t = {least['time']:g}"
    assert cells.count(["least W1 to the limit", found, between]) == 1
    assert not [line for line in lines if line.startswith("least") and "at t = 0" in line]
    assert "least W1 to zero temperature" not in err
    assert ["terminal", "not reached"] in cells
    assert sum(line.startswith("switching, terminal: ") for line in lines) == 1


FIVE = """
[attention]
query = [[1.0, 0.0], [0.0, 1.0]]
key   = [[1.0, 0.0], [0.0, 1.0]]
value = [[1.0, 0.0], [0.0, 1.0]]
beta  = 6.0
[mesh]
kind = "circle"
cells = 100
[initial]
kind = "tokens"
path = "five.npz"
[time]
until = 1.0
"""


def test_a_run_whose_mass_is_narrower_than_its_cells_says_so(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    angle = np.array([0.0, 0.3, 1.6, 1.9, 3.3])
    np.savez(tmp_path / "five.npz", tokens=np.column_stack([np.cos(angle), np.sin(angle)]))
    narrow = "100 % of the mass is in clusters narrower than the cells"
    for text, said in (
        (FIVE, True),
        (FIVE.replace("cells = 100", "cells = 100\n[adapt]\ntolerance = 1e-2"), False),
        (CIRCLE, False),
    ):
        out = tmp_path / f"out{len(text)}"
        code, err = main("run", write_case(text), "--until", 1, "--output", out)
        assert code == 0, err
        lines = [line for line in err.splitlines() if "narrower than the cells" in line]
        assert len(lines) == said
        if said:
            assert lines[0].startswith("from t = 0 on")
            assert narrow in lines[0]
            assert "[adapt] tolerance" in lines[0]
        summary = json.loads((out / "summary.json").read_text())
        assert ("unresolved" in summary) == said


def test_tokens_on_an_adaptive_mesh_are_resumed(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    angle = np.array([0.0, 0.3, 1.6, 1.9, 3.3])
    np.savez(tmp_path / "five.npz", tokens=np.column_stack([np.cos(angle), np.sin(angle)]))
    case = write_case(FIVE.replace("cells = 100", "cells = 60\n[adapt]\ntolerance = 3e-2"))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for out, *more in ((whole, 1), (parts, 0.5), (parts, 1, "--resume")):
        until = ("--until", *more)
        assert main("run", case, "--quiet", "--output", out, *until) == (0, "")
    first, second = (read_result(out) for out in (whole, parts))
    assert first.history["patch_mass"][-1] == 1
    for name, column in first.history.items():
        last = second.history[name][-1]
        assert last == pytest.approx(column[-1], rel=1e-2) or name in ("step", "cells"), name


@pytest.mark.painted
@pytest.mark.parametrize("form", ["pdf", "svg", "png"])
def test_plot_draws_in_the_format_and_at_the_times_asked_for(
    form: str, drawn: list[Figure], main: Main, write_case: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main("run", write_case(CIRCLE), "--quiet", "--output", out) == (0, "")
    assert not drawn
    code, err = main("plot", out, "--format", form, "--times", 1, 2.6)
    assert code == 0
    expected = [out / f"figures/{name}.{form}" for name in ("density", "history")]
    (other, *lines) = err.splitlines()
    assert other == f"{out}: t = 2.6 was not saved; the nearest that was, t = 2.5, is drawn"
    assert lines == [str(path) for path in expected]
    start = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}[form]
    assert all(path.read_bytes().startswith(start) for path in expected)
    assert sorted(path.name for path in (out / "figures").iterdir()) == sorted(
        path.name for path in expected
    )
    density, history = drawn
    assert list(curves(density, 1))[:2] == ["t = 1", "t = 2.5"]
    result = read_result(out)
    shown = {
        str(line.get_label()): np.asarray(line.get_ydata(), dtype=float)
        for axes in history.axes
        for line in axes.get_lines()
    }
    assert set(shown) == set(result.history) - {"time"}
    for name, values in shown.items():
        np.testing.assert_array_equal(values, result.history[name])


def test_times_that_were_not_saved_are_refused(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main("run", write_case(CIRCLE), "--quiet", "--until", 1, "--output", out) == (0, "")
    code, err = main("plot", out, "--times", 2)
    assert code == 2
    assert "no density at t = 2, saved are 3 times from 0 to 1" in err


def test_experiments_are_drawn_again(
    drawn: list[Figure], main: Main, write_case: Write, tmp_path: Path
) -> None:
    case = write_case(CIRCLE, *SWITCHING)
    assert main("sweep", case, "--beta", 5, 10, "--quiet", "--output", tmp_path / "sweep")[0] == 0
    sweep = drawn[-3:]
    code, err = main("plot", tmp_path / "sweep", "--format", "svg")
    assert code == 0
    names = ["sweep", "laws", "laplace"]
    assert [Path(line).name for line in err.splitlines()] == [f"{name}.svg" for name in names]
    for old, new in zip(sweep, drawn[-3:], strict=True):
        for panel in range(len(old.axes)):
            before, after = curves(old, panel), curves(new, panel)
            assert list(before) == list(after)
            for name, (x, y) in before.items():
                np.testing.assert_array_equal(x, after[name][0])
                np.testing.assert_array_equal(y, after[name][1])
    lives = tmp_path / "lives"
    arguments = ("--beta", 5, 10, "--tokens", 30, "--seeds", 2, "--quiet", "--output", lives)
    assert main("lifetime", case, *arguments)[0] == 0
    once = drawn[-1]
    code, err = main("plot", lives, "--format", "pdf")
    assert (code, err) == (0, f"{lives / 'figures/lifetime.pdf'}\n")
    assert (lives / TABLE).is_file()
    assert list(curves(once, 0)) == list(curves(drawn[-1], 0))
    # One number of tokens: its tick, and its markers inside the panel.
    drawn[-1].draw_without_rendering()  # as when it is painted, which settles its places
    axes = drawn[-1].axes[1]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["30"]
    inside = axes.get_window_extent()
    for line in axes.get_lines():
        if line.get_marker() not in ("", "None", None):
            points = axes.transData.transform(np.column_stack(line.get_data()))
            assert (points[:, 1] + 12 < inside.y1).all()
    code, err = main("plot", lives, "--times", 1)
    assert (code, "for the folder of a run only" in err) == (2, True)


def test_narrow_clusters_on_the_sphere_have_insets(
    drawn: list[Figure], main: Main, write_case: Write, tmp_path: Path
) -> None:
    case = write_case(SPHERE, ("cells = 320", "cells = 1280"), ("beta  = 40.0", "beta  = 100.0"))
    assert main("run", case, "--quiet", "--output", tmp_path / "out") == (0, "")
    history = read_result(tmp_path / "out")
    draw_density(tmp_path, history, ProjectionLimit(history.attention))
    (density,) = drawn
    maps = [axes for axes in density.axes if axes.get_title().startswith("t = ")]
    insets = [len(axes.child_axes) for axes in maps]
    assert insets[0] == 0
    assert insets[-1] == 2
    peaks = [np.max(inset.collections[0].get_array()) for inset in maps[-1].child_axes]
    assert max(peaks) == history.density[-1].max()


@pytest.mark.draws("distances")
def test_phases_that_were_not_reached_are_named(
    drawn: list[Figure], main: Main, write_case: Write, tmp_path: Path
) -> None:
    case = write_case(CIRCLE + COMPARE)
    assert main("run", case, "--quiet", "--output", tmp_path / "out") == (0, "")
    texts = [text.get_text() for axes in drawn[0].axes for text in axes.texts]
    assert "not reached: metastable, switching, terminal" in texts


def test_limit_writes_a_file(main: Main, write_case: Write, tmp_path: Path) -> None:
    case = write_case(CIRCLE)
    output = tmp_path / "limit.json"
    assert main("limit", case, "--json", "--output", output) == (0, f"written to {output}\n")
    assert json.loads(output.read_text())["dimension"] == 1
    code, err = main("limit", case, "--output", tmp_path / "none/limit.txt")
    assert code == 2
    assert f"none/limit.txt: there is no folder {tmp_path / 'none'}" in err


def test_a_run_at_zero_temperature_is_predicted_no_end(main: Main, write_case: Write) -> None:
    case = write_case(CIRCLE, ("beta  = 40.0", 'beta  = "inf"'))
    code, shown = main("run", case, "--until", 0.5, "--output", case.parent / "out")
    assert code == 0
    assert "until" not in shown
    assert "concentration" in shown
