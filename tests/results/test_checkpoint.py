"""Restart: a run that was killed and resumed gives what one without interruption gives."""

from __future__ import annotations

import re
from pathlib import Path

from mpi4py import MPI

import h5py
import numpy as np
import pytest

from meanfield_pde import Attention, circle_mesh, read_case, read_result, run_case
from meanfield_pde.history.history import History
from meanfield_pde.history.store import MemoryStore
from meanfield_pde.results.checkpoint import restore_checkpoint, write_checkpoint
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.solver.solution import Solution
from meanfield_pde.support.hdf5 import seal
from tests.conftest import Main, Write
from tests.problems import CIRCLE, OFTEN, SPHERE, run_and_kill

LONG = (("until = 5.0", "until = 12.0"), ("cells = 200", "cells = 400"))


def test_killed_and_resumed(main: Main, write_case: Write, tmp_path: Path) -> None:
    """Bit for bit on as many ranks."""
    case = write_case(CIRCLE + OFTEN, *LONG)
    assert main("run", case, "--output", tmp_path / "whole")[0] == 0
    out, whole = tmp_path / "killed", read_result(tmp_path / "whole")
    stopped = run_and_kill(case, out)
    assert 0 < stopped < 12
    code, err = main("run", case, "--output", out, "--resume")
    assert code == 0
    assert f"resumed at t = {stopped:.6g}, step " in err
    resumed = read_result(out)
    np.testing.assert_array_equal(resumed.times, whole.times)
    np.testing.assert_array_equal(resumed.masses, whole.masses)
    history = [(folder / "history.csv").read_bytes() for folder in (out, tmp_path / "whole")]
    assert history[0] == history[1]
    names = [
        {str(path.relative_to(folder)) for path in folder.rglob("*")}
        for folder in (out, tmp_path / "whole")
    ]
    assert names[0] == names[1]
    for path in (tmp_path / "whole/fields").iterdir():
        assert path.read_bytes() == (out / "fields" / path.name).read_bytes()


@pytest.mark.parallel([2])
def test_resumed_on_more_ranks(main: Main, write_case: Write) -> None:
    """To rounding, from whatever checkpoint was the one before the last."""
    comm = MPI.COMM_WORLD
    case = comm.bcast(write_case(CIRCLE + OFTEN, *LONG))
    out, folder = case.parent / "out", case.parent / "whole"
    if comm.rank == 0:
        whole = alone(case, folder)
        alone(case, out, until=3.0)
        (out / "summary.json").unlink()  # as if it had been killed after the checkpoint before
        (out / "checkpoint.previous.h5").replace(out / "checkpoint.h5")
    comm.barrier()
    code, err = main("run", case, "--output", out, "--resume")
    assert code == 0
    if comm.rank > 0:
        return
    (stopped,) = re.findall(r"resumed at t = (\S+), step ", err)
    assert 0 < float(stopped) < 3
    resumed = read_result(out)
    np.testing.assert_array_equal(resumed.times, whole.times)
    np.testing.assert_allclose(resumed.masses, whole.masses, rtol=1e-12)
    names = [
        {str(path.relative_to(one)) for path in one.rglob("*")} - {"checkpoint.previous.h5"}
        for one in (out, folder)
    ]
    assert names[0] == names[1]


def alone(case: Path, out: Path, **options: float) -> Solution:
    """A run on this rank."""
    return run_case(
        read_case(case, output=out, **options), comm=MPI.COMM_SELF, quiet=True, figures=False
    )


def test_resume_extends(main: Main, write_case: Write, tmp_path: Path) -> None:
    case, out = write_case(SPHERE), tmp_path / "out"
    run = ("run", case, "--quiet", "--output")
    assert main(*run, out, "--until", 2) == (0, "")
    assert main(*run, out, "--until", 3, "--resume") == (0, "")
    extended = read_result(out)
    assert extended.times.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert "until = 3.0" in (out / "case.toml").read_text()
    # The same times in one go: the steps end at the same places.
    at_once = write_case(SPHERE, ("[1.0]", "[1.0, 2.0]"), name="at-once.toml")
    assert main("run", at_once, "--quiet", "--until", 3, "--output", tmp_path / "other") == (0, "")
    np.testing.assert_array_equal(extended.masses, read_result(tmp_path / "other").masses)

    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    code, err = main(*run, out, "--until", 2.5, "--resume")
    assert (code, err.count("\n")) == (2, 1)
    assert "the checkpoint stands at t = 3, beyond time.until = 2.5" in err
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    # With nothing left to do, what a run concludes is concluded again.
    (out / "summary.json").unlink()
    assert main(*run, out, "--until", 3, "--resume") == (0, "")
    assert (out / "summary.json").exists()


def test_resume_starts_where_there_is_nothing_yet(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    """The first job of a chain and the next are one command."""
    case, out = write_case(SPHERE), tmp_path / "out"
    run = ("run", case, "--until", 1, "--output", out, "--resume")
    code, err = main(*run)
    assert (code, f"{out}: there is nothing to resume yet; the run starts" in err) == (0, True)
    code, err = main(*run)
    assert (code, "resumed at t = 1, step " in err) == (0, True)
    # Stopped before its first checkpoint, by the limit of a queue.
    whole = read_result(out)
    for name in ("checkpoint.h5", "checkpoint.previous.h5", "summary.json"):
        (out / name).unlink(missing_ok=True)
    (out / "mine.txt").write_text("stays")
    code, err = main(*run)
    assert (code, "there is nothing to resume yet" in err) == (0, True)
    np.testing.assert_array_equal(read_result(out).masses, whole.masses)
    assert (out / "mine.txt").exists()
    # But the results of another case are not replaced.
    for name in ("checkpoint.h5", "checkpoint.previous.h5", "summary.json"):
        (out / name).unlink(missing_ok=True)
    other = write_case(SPHERE, ("beta  = 40.0", "beta  = 41.0"), name="other.toml")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    code, err = main("run", other, "--output", out, "--resume")
    assert (code, "nothing to resume, there is no checkpoint.h5" in err) == (2, True)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_resume_between_saved_times(main: Main, write_case: Write, tmp_path: Path) -> None:
    """A time to save that the checkpoint has passed cannot be had any more."""
    case, out = write_case(SPHERE), tmp_path / "out"
    assert main("run", case, "--quiet", "--until", 3, "--output", out) == (0, "")
    with h5py.File(out / "checkpoint.h5", "r+") as file:  # as if killed between 1 and 3
        kept = file["history"][:2]
        del file["history"]
        file["history"], file.attrs["saved"] = kept, 2
        file["state"].attrs["time"] = 2.5
    seal(out / "checkpoint.h5")
    late = write_case(SPHERE, ("[1.0]", "[1.0, 2.0]"))
    code, err = main("run", late, "--quiet", "--until", 3, "--output", out, "--resume")
    assert (code, err.count("\n")) == (2, 1)
    assert "beyond the time to save 2;" in err


@pytest.mark.parametrize("damage", ["not HDF5", "incomplete", "another mesh"])
def test_damaged_checkpoint(damage: str, main: Main, write_case: Write, tmp_path: Path) -> None:
    case, out = write_case(CIRCLE), tmp_path / "out"
    assert main("run", case, "--until", 0, "--output", out)[0] == 0
    path = out / "checkpoint.h5"
    if damage == "not HDF5":
        path.write_text("x")
    else:
        with h5py.File(path, "r+") as file:
            if damage == "incomplete":
                del file["state"]
            else:
                file.attrs["mesh"] = "0"
        seal(path)
    before = path.read_bytes()
    code, err = main("run", case, "--output", out, "--resume")
    assert (code, err.count("\n"), str(path) in err) == (2, 1, True)
    assert path.read_bytes() == before


def test_resume_refuses_a_token_file_that_has_changed(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    """The case names the file only; what was made of it is in the checkpoint."""
    angle = np.linspace(0, 1, 7)
    tokens = np.column_stack([np.cos(angle), np.sin(angle)])
    np.savez(tmp_path / "tokens.npz", tokens=tokens)
    case = write_case(
        CIRCLE,
        ('kind = "expression"', 'kind = "tokens"'),
        ('density = "1 + 0.5*x + 0.3*x*y"', 'path = "tokens.npz"'),
    )
    out = tmp_path / "out"
    assert main("run", case, "--until", 1, "--quiet", "--output", out) == (0, "")
    np.savez(tmp_path / "tokens.npz", tokens=-tokens)
    code, err = main("run", case, "--until", 2, "--quiet", "--output", out, "--resume")
    assert (code, err.count("\n")) == (2, 1)
    assert "another initial density" in err


MOVING = {
    "circle": (CIRCLE, ("cells = 200", "cells = 60\n[adapt]\ntolerance = 1e-3")),
    # At beta = 40 the cells of tails, which stay, are narrow enough for the clusters.
    "sphere": (
        SPHERE.replace("beta  = 40.0", "beta  = 4.0"),
        ("cells = 320", "cells = 80\n[adapt]\ntolerance = 0.03"),
    ),
}


@pytest.mark.parametrize("kind", ["circle", pytest.param("sphere", marks=pytest.mark.slow)])
def test_a_mesh_that_moves(kind: str, main: Main, write_case: Write, tmp_path: Path) -> None:
    """Bit for bit after a kill, mesh included."""
    text, mesh = MOVING[kind]
    case = write_case(text + OFTEN, mesh, ("until = 5.0", "until = 2.0"))
    assert main("run", case, "--output", tmp_path / "whole")[0] == 0
    out = tmp_path / "killed"
    run_and_kill(case, out)
    assert main("run", case, "--output", out, "--resume")[0] == 0
    whole, killed = (read_result(tmp_path / name) for name in ("whole", "killed"))
    assert_same_meshes(whole, killed)
    for index in range(len(whole.times)):
        np.testing.assert_array_equal(killed.masses[index], whole.masses[index])
    # Two lines of h5py for one time, as the README says.
    with h5py.File(tmp_path / "whole/density.h5") as file:
        begin, end = file["offsets"][1:3]
        masses = file["masses"][begin:end]
    np.testing.assert_array_equal(masses, whole.masses[1])


@pytest.mark.parallel([2])
@pytest.mark.parametrize("kind", ["circle", pytest.param("sphere", marks=pytest.mark.slow)])
def test_a_mesh_that_moves_on_more_ranks(kind: str, main: Main, write_case: Write) -> None:
    """The same mesh, and masses to rounding."""
    text, mesh = MOVING[kind]
    comm = MPI.COMM_WORLD
    case = comm.bcast(write_case(text + OFTEN, mesh, ("until = 5.0", "until = 2.0")))
    assert main("run", case, "--output", case.parent / "two")[0] == 0
    if comm.rank > 0:
        return
    whole, two = alone(case, case.parent / "whole"), read_result(case.parent / "two")
    assert_same_meshes(whole, two)
    for index in range(len(whole.times)):
        np.testing.assert_allclose(two.masses[index], whole.masses[index], rtol=1e-11)


def assert_same_meshes(whole: History, other: History) -> None:
    """Bit for bit at each saved time, of which not all are the same."""
    assert len({len(masses) for masses in whole.masses}) > 1
    np.testing.assert_array_equal(other.times, whole.times)
    for index in range(len(whole.times)):
        np.testing.assert_array_equal(
            other.cells_at(index).vertices, whole.cells_at(index).vertices
        )


@pytest.mark.parametrize("tolerance", [None, 0.03])
def test_noise_goes_on_with_the_same_steps(tolerance: float | None, tmp_path: Path) -> None:
    """Those of the noise follow from earlier ones, on a mesh that moves as well."""

    def simulation() -> Simulation:
        one = np.eye(2)
        attention = Attention(one, one, np.diag([1.0, 0.4]), 20.0)
        start = "1 + 0.5*x + 0.3*x*y"
        return Simulation(attention, circle_mesh(40), start, noise=0.02, threads=1, adapt=tolerance)

    whole = simulation()
    whole.evolution.advance(1.3)
    write_checkpoint(tmp_path, whole)
    resumed = simulation()
    restore_checkpoint(tmp_path, resumed, MemoryStore())
    for one in (whole, resumed):
        one.evolution.advance(3.0)
    assert resumed.evolution.step == whole.evolution.step
    np.testing.assert_array_equal(resumed.evolution.masses, whole.evolution.masses)
