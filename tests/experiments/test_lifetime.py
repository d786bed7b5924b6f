"""Lifetimes: of the density and of tokens, their laws, and the command that measures them."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
from matplotlib.figure import Figure

from meanfield_pde import Attention, InputError, ProjectionLimit, circle_mesh, read_case
from meanfield_pde.experiments import lifetimes
from meanfield_pde.experiments.lifetime import density_lifetime, switching_progress, token_lifetime
from meanfield_pde.experiments.lifetimes import measure_lifetimes, summarise_lifetimes
from meanfield_pde.figures.lifetime import draw_lifetimes
from meanfield_pde.results.lock import FolderLock
from meanfield_pde.results.tables import read_table, write_table
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.theory.fits import fit_or_none, linear_fit
from tests.benchmarks.adaptivity import (
    KEY_QUERY,
    VALUE,
    circle_case,
    lopsided,
    lopsided_integral,
)
from tests.benchmarks.moving_arcs import Arcs, crossings
from tests.conftest import Main, Printed, Write, curves
from tests.problems import MIXTURE, limit_at, metastable, rotation

DEMO = Path(__file__).parents[2] / "demos/circle.toml"
MESH = "cells = 300\n\n[adapt]\ntolerance = 1e-3"


def test_lines() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    noise = np.array([0.1, -0.2, 0.05, 0.15, -0.1])
    fit = linear_fit(x, 3 + 2 * x + noise)
    assert (fit.slope, fit.intercept) == pytest.approx((1.995, 3.015), abs=1e-12)
    # Student's t with 3 degrees of freedom, 3.182, times the standard error by hand.
    residual = 2 * x + 3 + noise - fit(x)
    by_hand = 3.18244630528 * math.sqrt((residual**2).sum() / 3 / 10)
    assert fit.slope_error == pytest.approx(by_hand)
    assert 0.99 < fit.r_squared < 1
    assert linear_fit(x[:2], x[:2]).slope_error == math.inf
    assert fit_or_none(x, np.array([1.0, np.nan, np.nan, np.nan, np.nan])) is None
    with pytest.raises(InputError, match="two places"):
        linear_fit(np.ones(3), x[:3])


def test_tables_read_back(tmp_path: Path) -> None:
    rows = [{"kind": "density", "beta": 1 / 3, "seed": None, "log_masses": True}]
    write_table(tmp_path / "a.csv", rows)
    assert read_table(tmp_path / "a.csv") == rows
    assert read_table(tmp_path / "b.csv") == []


@pytest.mark.parametrize("row", ["3", "3,4,5"])
def test_tables_with_torn_rows(row: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"kind,beta\n1,2\n{row}\n")
    with pytest.raises(InputError, match=r"a.csv: not a readable table \(line 3 has not"):
        read_table(tmp_path / "a.csv")


def test_the_lifetime_does_not_depend_on_the_mesh_nor_on_the_range_of_doubles() -> None:
    attention = metastable(80.0)
    coarse, fine, logs = (
        density_lifetime(
            attention, circle_mesh(cells), MIXTURE, until=13.0, settings=SolverCase(log_masses=wide)
        )
        for cells, wide in ((200, "off"), (400, "off"), (200, "on"))
    )
    assert coarse.lifetime == pytest.approx(fine.lifetime, rel=0.05)
    assert fine.lifetime == pytest.approx(10.1, rel=0.02)
    assert fine.half == pytest.approx(11.1, rel=0.02)
    assert logs.lifetime == pytest.approx(coarse.lifetime, rel=1e-9)
    assert logs.log_masses


def test_a_lifetime_that_is_not_reached() -> None:
    found = density_lifetime(metastable(80.0), circle_mesh(100), MIXTURE, until=5.0)
    assert found.lifetime is None
    assert found.until == 5.0
    assert found.angle > 0.3


def test_tokens_leave_early_whatever_the_temperature() -> None:
    """200 tokens, far from the 38 of the density at beta = 320."""
    found = [token_lifetime(metastable(beta), MIXTURE, 200, 0) for beta in (320.0, 640.0)]
    assert all(5 < one.lifetime < 9 for one in found)
    assert found[0].lifetime == pytest.approx(found[1].lifetime, rel=0.15)
    assert all(one.angle < 0.05 for one in found)


@pytest.mark.slow
def test_lifetimes_grow_linearly_with_beta() -> None:
    """Measured over beta = 80 ... 640: within 2 % of the prediction."""
    betas = np.array([80.0, 160.0, 320.0])
    found = [
        density_lifetime(metastable(b), circle_mesh(200), MIXTURE, until=0.15 * b + 5)
        for b in betas
    ]
    slope = linear_fit(betas, np.array([one.lifetime for one in found])).slope
    assert slope == pytest.approx(limit_at(80.0).lifetime_per_beta, rel=0.15)


@pytest.mark.slow
def test_the_metastable_state_ends_where_the_tail_comes_from() -> None:
    """The tail is lost at e2 sooner than at e: slope 0.4255 in beta, not 0.768."""
    drift, value = np.diag([1, 0.2]), rotation(0.5) @ np.diag([1, 0.1]) @ rotation(0.5).T
    key_query = np.linalg.solve(value, drift)
    key_query /= np.linalg.norm(key_query, 2)
    betas, found = np.array([600.0, 1200.0]), []
    for beta in betas:
        attention = Attention(key_query, np.eye(2), value, beta)
        found.append(density_lifetime(attention, circle_mesh(200), MIXTURE).lifetime)
    slope = linear_fit(betas, np.array(found)).slope
    assert slope == pytest.approx(ProjectionLimit(attention).lifetime_per_beta, rel=0.1)


@pytest.mark.parametrize(
    ("attention", "why"),
    [
        (metastable(math.inf), "zero temperature"),
        (Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.2]), 50.0), "same dominant eigenspace"),
        (Attention(np.eye(2), np.eye(2), np.array([[0.0, -1.0], [1.0, 0.0]]), 50.0), "complex"),
    ],
)
def test_what_has_no_lifetime(attention: Attention, why: str) -> None:
    with pytest.raises(InputError, match=why):
        switching_progress(attention)


def test_the_laws_are_fitted(tmp_path: Path) -> None:
    """Measurements made up to obey both laws exactly."""
    limit = limit_at(80.0)
    row = {"angle": 0.0, "seed": None, "kind": "density", "count": 100}
    rows = [row | {"beta": b, "lifetime": 2 + limit.lifetime_per_beta * b} for b in (80.0, 160.0)]
    rows.append(row | {"beta": 320.0, "lifetime": None})
    for seed in range(2):
        rows += [
            row
            | {"kind": "tokens", "beta": 80.0, "count": n, "seed": seed}
            | {"lifetime": 1 + math.log(n) / limit.tail_rate + 0.1 * seed}
            for n in (100, 1000)
        ]
    summary = summarise_lifetimes(read_case(DEMO), rows)
    assert summary["density"]["slope_over_predicted"] == pytest.approx(1, rel=1e-5)
    assert summary["density"]["not_reached"] == [320.0]
    assert summary["tokens"]["slope_over_predicted"] == pytest.approx(1, rel=1e-5)
    assert summary["tokens"]["means"][0]["samples"] == 2


def assert_figure_shows(figure: Figure, rows: list[dict]) -> None:
    """Each lifetime of the density, its fit, and the slope that is predicted."""
    found = [row for row in rows if row["kind"] == "density"]
    lines = curves(figure)
    beta, lifetime = lines["density"]
    assert sorted(zip(beta, lifetime, strict=True)) == sorted(
        (row["beta"], row["lifetime"]) for row in found
    )
    fit, predicted = (
        next(line for label, line in lines.items() if label.startswith(name))
        for name in ("fit, slope", "predicted, slope")
    )
    expected = np.polyfit(beta, lifetime, 1)
    np.testing.assert_allclose(fit[1], np.polyval(expected, fit[0]))
    case = read_case(DEMO)
    slope = ProjectionLimit(case.attention).lifetime_per_beta
    np.testing.assert_allclose(predicted[1], slope * predicted[0])
    assert figure.axes[0].get_xlabel() == "inverse temperature β"


def test_the_figure_of_tokens_has_each_sample_and_its_mean(
    drawn: list[Figure], tmp_path: Path
) -> None:
    limit = limit_at(80.0)
    rows = [
        {"kind": "tokens", "beta": beta, "count": n, "seed": seed, "lifetime": seed + math.log(n)}
        for beta in (80.0, 160.0)
        for n in (100, 1000)
        for seed in (1, 3)
    ]
    rows.append({"kind": "density", "beta": 80.0, "count": 100, "seed": None, "lifetime": 9.0})
    draw_lifetimes(tmp_path, limit, rows)
    (figure,) = drawn
    lines = curves(figure, 1)
    for beta in (80, 160):
        count, mean = lines[f"tokens, β = {beta} (large: mean)"]
        np.testing.assert_allclose(count, [100, 1000], rtol=0.05)  # moved apart a little
        np.testing.assert_allclose(mean, 2 + np.log([100, 1000]))
    samples = figure.axes[1].get_lines()[0].get_ydata()
    assert sorted(samples) == pytest.approx(sorted(one["lifetime"] for one in rows[:4]))
    count, line = lines["fit, slope 1.000 in log N"]
    np.testing.assert_allclose(line, 2 + np.log(count))
    count, line = lines[f"predicted slope 1/r = {1 / limit.tail_rate:.3f}"]
    assert np.diff(line) / np.diff(np.log(count)) == pytest.approx(1 / limit.tail_rate)


def test_titles_say_what_is_drawn_and_not_what_is_predicted(
    drawn: list[Figure], tmp_path: Path
) -> None:
    row = {"kind": "density", "count": 400, "seed": None}
    fixed = [row | {"beta": beta, "lifetime": math.sqrt(beta)} for beta in (80.0, 160.0)]
    adapted = [one | {"most_cells": most} for one, most in zip(fixed, (500, 726), strict=True)]
    tokens = row | {"kind": "tokens", "beta": 80.0, "count": 100, "seed": 0, "lifetime": 5.0}
    for rows in (fixed, adapted, [*fixed, tokens]):
        draw_lifetimes(tmp_path, limit_at(80.0), rows)
    titles = [[axes.get_title() for axes in figure.axes] for figure in drawn]
    assert titles == [
        ["density, 400 cells"],
        ["density, up to 726 cells"],
        ["density, 400 cells", "N tokens"],
    ]


def test_cells_of_an_adapted_mesh_are_those_that_it_had(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    case = write_case(DEMO.read_text(), (MESH, "cells = 40\n[adapt]\ntolerance = 1e-2"))
    out = tmp_path / "out"
    code, err = main("lifetime", case, "--beta", 20, "--until", 0.2, "--output", out)
    assert code == 0
    (row,) = read_table(out / "lifetime.csv")
    assert row["most_cells"] > row["count"] == 40
    assert f"beta = 20, up to {row['most_cells']:.0f} cells (40 given): not ended" in err
    assert re.search(
        r"s\); given up as --until says, with the axis [\d.]+ of [\d.]+ degrees from that of V", err
    )


@pytest.mark.parallel([2])
def test_the_command_measures_once(
    main: Main, drawn: list[Figure], write_case: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    comm = MPI.COMM_WORLD
    case = comm.bcast(write_case(DEMO.read_text(), (MESH, "cells = 60")))
    out = case.parent / "out"
    arguments = ("lifetime", case, "--beta", 20, 30, "--tokens", 40, 80, "--seeds", 1)
    code, err = main(*arguments, "--output", out)
    assert code == 0, err
    if comm.rank > 0:
        assert err == ""
        return
    assert "density, slope in beta: " in err
    rows = read_table(out / "lifetime.csv")
    assert [(r["kind"], r["beta"]) for r in rows[:2]] == [("density", 20), ("density", 30)]
    assert len(rows) == 6
    summary = json.loads((out / "summary.json").read_text())
    assert summary["density"]["predicted_slope"] == pytest.approx(0.11283, rel=1e-4)
    # Again, with one more, on another number of ranks: only that is measured.
    measure_lifetimes(read_case(case), (20, 30, 35), directory=out, comm=MPI.COMM_SELF)
    err = capfd.readouterr().err
    assert err.count("beta = ") == 1
    assert "beta = 35, 60 cells" in err
    assert_figure_shows(drawn[-1], read_table(out / "lifetime.csv"))


def test_a_signal_keeps_what_is_measured(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the first measurement is written; the same command makes the second."""
    case, out = write_case(DEMO.read_text(), (MESH, "cells = 60")), tmp_path / "out"
    arguments = ("lifetime", case, "--beta", 20, 30, "--quiet", "--output", out)
    write = lifetimes.write_table

    def interrupted(path: Path, rows: list) -> None:
        write(path, rows)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(lifetimes, "write_table", interrupted)
        code, err = main(*arguments)
    assert (code, err.count("\n"), str(out) in err, "kept" in err) == (75, 1, True, True)
    kept = read_table(out / "lifetime.csv")
    assert [row["beta"] for row in kept] == [20]
    assert main(*arguments) == (0, "")
    rows = read_table(out / "lifetime.csv")
    assert [row["beta"] for row in rows] == [20, 30]
    assert rows[0] == kept[0]
    # One at a time in a folder.
    lock = FolderLock(out)
    lock.acquire()
    code, err = main(*arguments)
    assert (code, "another run is writing there" in err) == (2, True)
    lock.release()


def test_what_was_given_up_is_measured_again_with_more_time(
    main: Main, printed: Printed, write_case: Write, tmp_path: Path
) -> None:
    case, out = write_case(DEMO.read_text(), (MESH, "cells = 60")), tmp_path / "out"
    arguments = ("lifetime", case, "--beta", 30, "--tokens", 20, "--seeds", 1, "--output", out)
    for until, found in ((0.5, None), (0.4, None), (40, 2.0), (0.5, 2.0)):
        assert main(*arguments, "--until", until)[0] == 0
        rows = read_table(out / "lifetime.csv")
        assert len(rows) == 2
        for row in rows:
            assert (row["lifetime"] is None) == (found is None)
            assert row["until"] >= (found or 0.5)
    for until in ("inf", -1):
        code, err = main(*arguments, "--until", until)
        assert (code, "until must be a finite number > 0" in err) == (2, True)
    # The error of a mean of one is a number that JSON does not have.
    text = printed(*arguments, "--json", "--quiet")
    assert json.loads(text, parse_constant=pytest.fail)["tokens"]["means"][0]["error"] is None
    # Another case does not go there.
    other = write_case(DEMO.read_text(), (MESH, "cells = 100"), name="other.toml")
    code, err = main("lifetime", other, "--beta", 20, "--output", out)
    assert code == 2
    assert "another case, which differs in mesh.cells" in err
    code, err = main("lifetime", case, "--beta", -3)
    assert code == 2
    assert "--beta must be a finite number > 0" in err


def test_the_case_of_the_arcs_is_that_of_the_demo() -> None:
    """V and A with eigenvectors at 0.6 and -0.1 radians, the density and its integral."""
    case = read_case(DEMO.with_name("circle-lopsided.toml"))
    limit = ProjectionLimit(case.attention)
    assert limit.terminal.basis is not None
    for basis, angle in ((limit.basis, -0.1), (limit.terminal.basis, 0.6)):
        assert abs(basis[:, 0] @ [math.cos(angle), math.sin(angle)]) == pytest.approx(1, abs=1e-12)
    angle = np.linspace(-3, 3, 13)
    x = np.column_stack([np.cos(angle), np.sin(angle)])
    np.testing.assert_allclose(case.initial.density(x), lopsided(x))
    slope = (lopsided_integral(angle + 1e-6) - lopsided_integral(angle - 1e-6)) / 2e-6
    np.testing.assert_allclose(slope, lopsided(x), rtol=1e-8)


@pytest.mark.slow
def test_lifetimes_are_those_of_arcs_that_move_with_the_flow() -> None:
    """The arcs share nothing with the solver. E is at -0.1, F at 0.6, the first stop at V e."""
    beta = 80.0
    found = density_lifetime(circle_case(beta), circle_mesh(400), lopsided, adapt=1e-4)
    stop = VALUE @ [math.cos(-0.1), math.sin(-0.1)]
    levels = (math.atan2(stop[1], stop[0]) - 0.1) / 2, 0.25
    leaves, half = crossings(Arcs(VALUE, beta * KEY_QUERY, lopsided_integral), levels, 12.0)
    assert found.lifetime == pytest.approx(leaves, rel=2e-3)
    assert found.half == pytest.approx(half, rel=1e-2)


@pytest.mark.slow
def test_a_lifetime_decided_by_clusters_of_1e_7() -> None:
    """Cells that stay, of 1e-5, were 4 % short; arcs as in `adaptivity --part lifetimes`."""
    found = density_lifetime(circle_case(640.0), circle_mesh(100), lopsided, adapt=1e-3, until=54.0)
    assert found.min_cell_width is not None
    assert found.min_cell_width < 1e-6
    assert found.lifetime == pytest.approx(51.31, rel=1e-2)
    assert found.half == pytest.approx(52.92, rel=1e-2)
