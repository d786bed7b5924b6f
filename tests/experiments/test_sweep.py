"""The sweep over beta: its laws on made-up histories, the envelope, and the command."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.special import ive

from meanfield_pde import Attention, InputError, ProjectionLimit, circle_mesh, read_result
from meanfield_pde.case.case import Case
from meanfield_pde.experiments import folder
from meanfield_pde.experiments.run import run_case
from meanfield_pde.experiments.sweep_analysis import (
    early_rate,
    least_distance,
    rows_of_run,
    summarise_sweep,
)
from meanfield_pde.figures.sweep import draw_sweep
from meanfield_pde.history.history import History
from meanfield_pde.history.store import MemoryStore
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.results.tables import read_table
from meanfield_pde.theory.envelope import fit_envelope, temperature_scale
from meanfield_pde.theory.laplace_principle import laplace_error
from tests.conftest import Command, Main, Write, curves
from tests.problems import CIRCLE, SPHERE, made_up

BETAS = (20.0, 80.0, 320.0)


def bound(times: np.ndarray, beta: float) -> np.ndarray:
    return 0.2 * temperature_scale(beta) * np.exp(0.3 * times) + 0.9 * np.exp(-times)


def obeying(beta: float) -> History:
    """A run whose distances obey the theorem with equality; its density is uniform."""
    cells = Cells.of(FiniteVolumes(circle_mesh(60)))
    times = np.linspace(0, 12, 241)
    distance = bound(times, beta)
    history = {"w1_limit": distance, "w1_limit_high": distance, "quantisation_limit": 0 * times}
    masses = np.tile(cells.volumes / (2 * np.pi), (len(times), 1))
    run = made_up(CIRCLE.replace("40.0", str(beta)), cells, times, masses)
    return replace(run, history=history)


def test_the_envelope_of_what_obeys_it_is_itself() -> None:
    times = np.tile(np.linspace(0, 12, 121), len(BETAS))
    betas = np.repeat(BETAS, 121)
    distances = np.array([bound(t, b) for t, b in zip(times, betas, strict=True)])
    found = fit_envelope(times, betas, distances, 1.0)
    assert found.growth == pytest.approx(0.3, abs=1e-3)
    assert (found.first, found.second) == pytest.approx((0.2, 0.9), rel=1e-2)
    assert found.excess < 1e-3
    assert (found(times, betas) >= distances).all()


def test_an_envelope_holds_at_every_point_whatever_the_points() -> None:
    random = np.random.default_rng(3)
    times, betas = random.uniform(0, 9, 400), random.choice(BETAS, 400)
    distances = np.exp(random.normal(-3, 1.5, 400))
    found = fit_envelope(times, betas, distances, 0.7)
    assert (found(times, betas) >= distances).all()
    assert min(found.first, found.second, found.growth) >= 0
    small = fit_envelope(times, betas, 1e-9 * distances, 0.7)
    assert (small(times, betas) >= 1e-9 * distances).all()
    assert small.first == pytest.approx(1e-9 * found.first)
    with pytest.raises(InputError, match="above zero"):
        fit_envelope(times, betas, 0 * distances, 0.7)


def test_least_distance_between_saved_times() -> None:
    times = np.linspace(0, 4, 9)
    assert least_distance(times, 1 + (times - 1.7) ** 2) == pytest.approx((1.7, 1.0))
    assert least_distance(times, np.exp(-times)) == (None, math.exp(-4))
    assert least_distance(times, np.exp(times)) == (0.0, 1.0)


def test_early_rate() -> None:
    times = np.linspace(0, 12, 121)
    assert early_rate(times, np.exp(-times) + 1e-5 * np.exp(times)) == pytest.approx(1, rel=0.02)
    assert early_rate(times, 2 + np.cos(times)) is None


def test_the_laws_of_a_made_up_sweep() -> None:
    """t* and least distance in closed form: C C1 s e^{Ct} = c C2 e^{-ct}."""
    runs = [obeying(beta) for beta in BETAS]
    limit = ProjectionLimit(runs[0].attention)
    rows = [row for run in runs for row in rows_of_run(run, limit)]
    for row in rows:
        scale = temperature_scale(row["beta"])
        at = math.log(0.9 / (0.3 * 0.2 * scale)) / 1.3
        assert row["least_time"] == pytest.approx(at, abs=2e-3)
        assert row["least_distance"] == pytest.approx(bound(at, row["beta"]), rel=1e-4)
    found = summarise_sweep(runs, rows, limit)["w1"]
    # W at t* is proportional to s^(1/1.3).
    assert found["least_distance_power_of_scale"]["slope"] == pytest.approx(1 / 1.3, rel=1e-3)
    assert found["least_time_fit_a_plus_b_log_beta"]["r_squared"] > 0.99
    assert found["early_rate_at_largest_beta"] == pytest.approx(1.0, rel=0.15)
    assert found["envelope"]["holds_at"] == found["envelope"]["points"] == 723


def test_the_figure_of_runs_whose_meshes_are_adapted(drawn: list[Figure], tmp_path: Path) -> None:
    """Cells are counted at all times of all runs; the band has the widths of each time."""
    runs = []
    for beta, most in ((20.0, 90), (80.0, 120)):
        run = obeying(beta)
        store = MemoryStore()
        for time in run.times:
            cells = Cells.of(FiniteVolumes(circle_mesh(60 if time < 1 else most)))
            masses = cells.volumes / (2 * np.pi)
            store.append(time, {"masses": masses} | cells.arrays())
        bar = np.exp(-run.times) / most
        runs.append(replace(run, store=store, history=run.history | {"quantisation_limit": bar}))
    limit = ProjectionLimit(runs[0].attention)
    rows = [row for run in runs for row in rows_of_run(run, limit)]
    draw_sweep(tmp_path, runs, rows, limit, summarise_sweep(runs, rows, limit))
    figure = drawn[0]
    assert figure.get_suptitle() == "Distance to the limit on the circle, 60 to 120 cells"
    bands = figure.axes[0].collections
    for run, band in zip(runs, bands, strict=True):
        corners = np.concatenate([path.vertices for path in band.get_paths()])
        for time, bar in zip(run.times[::40], run.history["quantisation_limit"][::40], strict=True):
            assert corners[corners[:, 0] == time, 1].max() == pytest.approx(bar)
    # Titles say what is drawn, not what should be found.
    assert not any("log" in axes.get_title() for axes in drawn[1].axes)


def test_the_laplace_principle_of_a_uniform_density() -> None:
    """The mean m is I_1(beta |z|)/I_0(beta |z|) times z/|z|, short of it by 1/(2 beta |z|)."""
    cells = Cells.of(FiniteVolumes(circle_mesh(2000)))
    attention = Attention(np.eye(2), np.eye(2), np.eye(2), 100.0)
    found = laplace_error(attention, cells.points, cells.volumes, cells.volumes)
    exact = 1 - ive(1, 100.0) / ive(0, 100.0)
    assert (found.largest, found.mean) == pytest.approx((exact, exact), rel=1e-3)


SHORT = [("until = 5.0", "until = 2.0"), ("cells = 200", "cells = 60")]


def assert_figures_show(figures: list[Figure], out: Path, summary: dict) -> None:
    """The distances of each run, the rows of the table, and the errors of the Laplace principle."""
    sweep, laws, laplace = figures
    rows = read_table(out / "sweep.csv")
    for panel, p in enumerate((1, 2)):
        lines = curves(sweep, panel)
        for beta in (20, 40):
            history = read_result(out / f"beta-{beta}").history
            np.testing.assert_array_equal(lines[f"β = {beta}"][0], history["time"])
            np.testing.assert_array_equal(lines[f"β = {beta}"][1], history[f"w{p}_limit"])
        assert "predicted rate" in lines
        least = [(r["beta"], r["least_time"]) for r in rows if r["p"] == p and r["least_time"]]
        drawn = curves(laws).get(f"$W_{p}$", ([], []))
        assert list(zip(*drawn, strict=True)) == least
    for row in summary["laplace"]:
        scale, largest = curves(laplace)[f"largest, t = {row['time']:g}"]
        at = np.isclose(scale, math.sqrt(math.log(row["beta"] + 1) / row["beta"]))
        assert largest[at] == pytest.approx([row["largest"]])


@pytest.mark.painted
def test_the_command_runs_each_beta_once(
    main: Main, drawn: list[Figure], write_case: Write, tmp_path: Path
) -> None:
    case, out = write_case(CIRCLE, *SHORT), tmp_path / "out"
    arguments = ("sweep", case, "--beta", 40, 20, "--output", out)
    code, err = main(*arguments)
    assert code == 0
    assert "beta = 20: started" in err
    table = (out / "sweep.csv").read_text()
    rows = read_table(out / "sweep.csv")
    assert [(row["beta"], row["p"]) for row in rows] == [(20, 1), (20, 2), (40, 1), (40, 2)]
    summary = json.loads((out / "summary.json").read_text())
    for p in (1, 2):
        found = summary[f"w{p}"]["envelope"]
        assert found["holds_at"] == found["points"] == 10
    assert {row["beta"] for row in summary["laplace"]} == {20, 40}
    assert "w1_zero" in read_result(out / "beta-20").history
    for name in ("sweep", "laws", "laplace"):
        assert (out / f"figures/{name}.png").is_file()
    assert_figures_show(drawn[-3:], out, summary)
    # Stopped in the first run, after its last checkpoint: that is resumed, the other is not run.
    (out / "beta-20/summary.json").unlink()
    code, err = main(*arguments)
    assert code == 0
    assert "beta = 40: finished" in err
    assert "beta = 20: resumed" in err
    assert (out / "sweep.csv").read_text() == table
    (out / "beta-20/summary.json").unlink()
    (out / "beta-20/checkpoint.h5").unlink()
    assert "beta = 20: started again" in main(*arguments)[1]
    code, err = main("sweep", write_case(CIRCLE), "--beta", 20, 40, "--output", out)
    assert code == 2
    assert "another case, which differs in mesh.cells, time.until" in err


def test_a_signal_keeps_what_has_run(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes at the end of the first run; the same command takes up the second."""
    case, out = write_case(CIRCLE, *SHORT), tmp_path / "out"
    arguments = ("sweep", case, "--beta", 20, 40, "--quiet", "--output", out)

    def interrupted(one: Case, **options: Any) -> None:
        run_case(one, **options)
        os.kill(os.getpid(), signal.SIGUSR1)

    with monkeypatch.context() as patched:
        patched.setattr(folder, "run_case", interrupted)
        code, err = main(*arguments)
    assert (code, err.count("\n"), str(out) in err, "kept" in err) == (75, 1, True, True)
    assert (out / "beta-40/summary.json").exists()
    assert not (out / "sweep.csv").exists()
    code, err = main(*(one for one in arguments if one != "--quiet"))
    assert (code, "beta = 40: finished" in err) == (0, True)
    assert len(read_table(out / "sweep.csv")) == 4


@pytest.mark.slow
def test_ranks_share_the_runs_out(command: Command, write_case: Write, tmp_path: Path) -> None:
    """Two runs at once on two ranks, against one after another on one."""
    case = write_case(CIRCLE, *SHORT)
    arguments = ("sweep", case, "--beta", 20, 40, "--quiet", "--output")
    for ranks, extra in ((1, ()), (2, ("--at-once", 2))):
        ended = command(*arguments, tmp_path / f"ranks{ranks}", *extra, ranks=ranks)
        assert (ended.returncode, ended.stderr) == (0, "")
    one, two = (read_table(tmp_path / f"ranks{ranks}/sweep.csv") for ranks in (1, 2))
    for ours, theirs in zip(one, two, strict=True):
        assert theirs["least_distance"] == pytest.approx(ours["least_distance"], rel=1e-9)
    summary = json.loads((tmp_path / "ranks2/beta-20/summary.json").read_text())
    assert summary["ranks"] == 1


@pytest.mark.parametrize(
    ("text", "change", "beta", "why"),
    [
        (CIRCLE, ("cells", "cells"), (20,), "--beta needs 2 different values"),
        (CIRCLE, ("cells", "cells"), (20, 0), "--beta must be a finite number > 0, got 0.0"),
        (CIRCLE, ("[[1.0, 0.2], [0.0, 0.3]]", "[[0, -1], [1, 0]]"), (20, 40), "no limit"),
        (CIRCLE, ("beta  = 40.0", "beta  = 4.0\nnormalise = false"), (20, 40), "denominator"),
        (
            CIRCLE,
            (
                "[[1.0, 0.2], [0.0, 0.3]]\n",
                "[[[1, 0], [0, 0.3]], [[1, 0.2], [0, 0.3]]]\nlayer_duration = 3.0\n",
            ),
            (20, 40),
            "does not change, got 2 layers",
        ),
        (SPHERE, ("[[1.0, 0.4", "[[1.0, 0.4"), (20, 20), "--beta needs 2 different"),
        (
            CIRCLE,
            ("[[1.0, 0.2], [0.0, 0.3]]", "[[1.0, 0.0], [0.0, 1.0]]"),
            (20, 40),
            "multiple of the identity",
        ),
    ],
)
def test_what_cannot_be_swept(
    text: str, change: tuple[str, str], beta: tuple, why: str, main: Main, write_case: Write
) -> None:
    code, err = main("sweep", write_case(text, change), "--beta", *beta)
    assert code == 2
    assert why in err
