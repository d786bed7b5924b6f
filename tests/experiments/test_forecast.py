"""What `run --dry-run` says of a run before it begins, and what it leaves as it is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import pytest

from meanfield_pde import read_case, read_result, run_case
from meanfield_pde.case.case import MeshCase
from meanfield_pde.experiments import forecast as forecasts
from meanfield_pde.experiments.forecast import in_bytes, in_words
from meanfield_pde.experiments.pilot import run_pilot
from meanfield_pde.experiments.run import forecast_run
from tests.conftest import Main, Printed, Write
from tests.problems import CIRCLE, SPHERE

COMPARE = "[compare]\nlimit = true\nzero_temperature = true\n"


def by_name(text: str) -> dict[str, str]:
    """The lines that are printed, by what they are about."""
    return dict(line.split(": ", 1) for line in text.splitlines())


@pytest.mark.parallel([1, 2])
def test_nothing_is_written(
    printed: Printed, write_case: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = MPI.COMM_WORLD
    case = comm.bcast(write_case(CIRCLE + COMPARE))
    monkeypatch.chdir(case.parent)
    before = sorted(case.parent.rglob("*"))
    text = printed("run", case, "--dry-run")
    assert comm.rank == 0 or text == ""
    said, ranks = by_name(comm.bcast(text)), comm.size
    assert sorted(case.parent.rglob("*")) == before
    assert said["cells"] == "200"
    assert re.fullmatch(rf"about \d+ MB, on {ranks} ranks?", said["memory of a rank"])
    assert re.fullmatch(r"about [\d.]+ s", said["time"])
    assert said["would be written"].startswith("results/some-case, 11 saved times, about ")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("text", [CIRCLE, SPHERE, CIRCLE + "[noise]\nstrength = 0.1\n"])
def test_steps_are_those_of_the_run(text: str, write_case: Write, tmp_path: Path) -> None:
    """By a pilot on fewer cells; and the state in memory is what is saved."""
    case = read_case(write_case(text), output=tmp_path / "out")
    case = replace(case, mesh=MeshCase(case.mesh.kind, 3 * (case.mesh.cells or 1)))
    found = forecast_run(case)
    assert found is not None
    assert found.steps is not None
    assert found.seconds is not None
    assert not (tmp_path / "out").exists()
    solution = run_case(case, quiet=True)
    assert found.steps == pytest.approx(solution.steps + solution.rejected, rel=0.25)
    assert found.saved_times == len(solution.times)
    assert found.cells == found.most_cells == len(solution.masses[0])
    assert found.pilot_ended is None
    # Far wider than what is promised of a quiet machine (tests/benchmarks/dry_run.py).
    assert 0.1 < found.seconds / solution.wall_time < 10
    files = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert 0.2 < found.bytes_written / (files + 1e6) < 5  # figures of a megabyte


@pytest.mark.usefixtures("undrawn")
def test_at_zero_temperature_steps_are_those_of_the_cells(
    write_case: Write, tmp_path: Path
) -> None:
    case = read_case(write_case(CIRCLE, ("beta  = 40.0", 'beta = "inf"')), output=tmp_path / "o")
    found, solution = forecast_run(case), run_case(case, quiet=True)
    assert found is not None
    assert found.steps == pytest.approx(solution.steps, rel=0.1)


def test_of_an_adaptive_mesh_a_bound(printed: Printed, write_case: Write) -> None:
    adapted = "[adapt]\ntolerance = 1e-2\nmax_cells = 100000\n"
    said = by_name(printed("run", write_case(CIRCLE + adapted), "--dry-run"))
    assert re.fullmatch(r"\d+ as it begins, 100000 at most \(adapt.max_cells\)", said["cells"])
    assert said["steps"] == "not known: the mesh will change"
    assert re.match(r"not known; a step takes [\d.e-]+ s as it begins", said["time"])
    memory = re.match(r"at most (\d+) MB", said["memory of a rank"])
    assert memory is not None
    wider = write_case(CIRCLE + adapted.replace("100000", "1000000"))
    more = by_name(printed("run", wider, "--dry-run"))
    larger = re.match(r"at most (\d+) MB", more["memory of a rank"])
    assert larger is not None
    # What this process has had by now is part of both.
    # 2,535 bytes for each of 900,000 cells, and 90 in the figure of each of the 11 saved times.
    assert int(larger[1]) - int(memory[1]) == pytest.approx(0.9 * (2535 + 90 * 11), rel=0.02)


def test_a_pilot_that_runs_out_of_time_says_so(write_case: Write) -> None:
    case = read_case(write_case(CIRCLE))
    whole, cut = run_pilot(case, 60.0), run_pilot(case, 0.0)
    assert whole.finished
    assert not cut.finished
    assert len(cut.times) == 1
    assert cut.steps(0.0, 5.0) == pytest.approx(5.0 / cut.times[0])
    half = whole.steps(0.0, 2.5)
    assert half + whole.steps(2.5, 5.0) == pytest.approx(whole.tried[-1])
    assert set(whole.states) <= set(range(1, len(whole.times) + 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--resume",), "--dry-run says what a whole run takes, so --resume has no meaning"),
        (("--until", "9e10"), "steps away, which does not end"),
        (("--until", "-1"), "time.until must be a number >= 0, got -1"),
    ],
)
def test_what_run_refuses_is_refused(
    options: tuple[str, ...], message: str, main: Main, write_case: Write, tmp_path: Path
) -> None:
    case = write_case(CIRCLE, ("save_every = 0.5", ""))
    code, err = main("run", case, "--dry-run", "--output", tmp_path / "out", *options)
    errors = [line for line in err.splitlines() if line.startswith("meanfield-pde: ")]
    assert (code, len(errors), message in errors[0]) == (2, 1, True), err
    assert not (tmp_path / "out").exists()


def test_results_that_are_there_are_named_and_left(
    printed: Printed, main: Main, write_case: Write, tmp_path: Path
) -> None:
    case, out = write_case(CIRCLE), tmp_path / "out"
    assert main("run", case, "--until", 1, "--output", out, "--quiet") == (0, "")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    finished = printed("run", case, "--until", 1, "--output", out, "--dry-run")
    assert "they would be left as they are" in finished
    code, err = main("run", case, "--output", out, "--dry-run")
    assert (code, "holds results of another case" in err) == (2, True)
    assert "cells: 200" in printed("run", case, "--output", out, "--dry-run", "--overwrite")
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


@pytest.mark.parametrize("adapt", ["", "[adapt]\ntolerance = 1e-2\n"])
def test_a_long_run_says_what_it_takes(
    adapt: str, main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is the run that does not say so, bit for bit."""
    case = write_case(CIRCLE + adapt)
    code, err = main("run", case, "--until", 2, "--output", tmp_path / "short")
    assert (code, "this run will take" in err) == (0, False)
    monkeypatch.setattr(forecasts, "LOOK", 0.0)
    monkeypatch.setattr(forecasts, "LONG", 0.0)
    code, err = main("run", case, "--until", 2, "--output", tmp_path / "long")
    assert code == 0
    (line,) = [one for one in err.splitlines() if one.startswith("this run will take about ")]
    assert re.search(
        r"take about [\d.e-]+ s more: \d+ cells, about [1-9]\d* steps, \d+ MB of memory on a rank, "
        r"[\d.]+ MB in ",
        line,
    )
    short, long = (read_result(tmp_path / name) for name in ("short", "long"))
    for i in range(len(short.times)):
        assert (long.measure(i).masses == short.measure(i).masses).all()


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_ends_within_the_trial(printed: Printed, write_case: Write) -> None:
    said = by_name(printed("run", write_case(CIRCLE), "--until", 1e-3, "--dry-run"))
    assert said["steps"] == "about 1"


def test_times_and_sizes_in_words() -> None:
    assert [in_words(s) for s in (0.034, 12.3, 80, 800, 9000, 1e6)] == [
        "0.034 s", "12 s", "80 s", "13 minutes", "2.5 hours", "12 days",
    ]  # fmt: skip
    assert [in_bytes(b) for b in (2.5e6, 3.21e9)] == ["2.5 MB", "3.2 GB"]
