"""What is settled at import, and what ranks agree on when the code of a user fails on one."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest

from meanfield_pde import (
    Attention,
    InputError,
    Observer,
    SolverError,
    circle_mesh,
    simulate_tokens,
    solve,
)
from meanfield_pde.cli.main import build_parser
from meanfield_pde.errors import MeanfieldError, StoppedError
from meanfield_pde.support.checks import duration
from meanfield_pde.support.ranks import shared_errors
from tests.conftest import Main, Write, environment
from tests.problems import CIRCLE

ROOT = Path(__file__).parents[2]


@pytest.mark.parallel([2])
def test_what_one_rank_raises_all_raise() -> None:
    """A user's density, and a user's observer."""
    rank, one = MPI.COMM_WORLD.rank, Attention(np.eye(2), np.eye(2), np.eye(2), 1.0)

    def density(points: np.ndarray) -> np.ndarray:
        if rank == 1:
            raise ZeroDivisionError("mine")
        return np.ones(len(points))

    class Mine(Observer):
        def __init__(self, kind: type[BaseException]) -> None:
            self.kind = kind

        def stepped(self, simulation: object) -> None:
            if rank == 1:
                raise self.kind("mine")

    cases: list[tuple[Any, list[Observer], type[BaseException]]]
    cases = [(density, [], ZeroDivisionError)]
    for kind in (ZeroDivisionError, SystemExit, BaseException):
        cases.append(("1 + 0.5*x", [Mine(kind)], kind))
    for start, watching, kind in cases:
        with pytest.raises(kind if rank == 1 else SolverError) as raised:
            solve(one, circle_mesh(20), start, until=1.0, observers=watching)
        said = "mine" if rank == 1 else f"rank 1 failed: {kind.__name__}: mine"
        assert (type(raised.value), str(raised.value)) == (kind if rank == 1 else SolverError, said)


@pytest.mark.parametrize(
    "module",
    [
        "meanfield_pde._platform",
        "meanfield_pde.cli.options",
        "meanfield_pde.case.file",
        "meanfield_pde.attention.sum.tree",
        "dolfinx.cpp",
    ],
)
def test_ctrl_c_during_import_is_one_line(module: str, write_case: Write, tmp_path: Path) -> None:
    out = tmp_path / "out"
    case = write_case(CIRCLE)
    # An extension module makes enumerations, and is interrupted while it does.
    when = "enum.EnumType.__new__ = interrupt" if module == "dolfinx.cpp" else "interrupt()"
    code = (
        "import enum, os, signal, sys\n"
        "def interrupt(*arguments, **options): os.kill(os.getpid(), signal.SIGINT)\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == '{module}': {when}\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        f"sys.argv = ['bin/meanfield-pde', 'run', '{case}', '--output', '{out}']\n"
        "from meanfield_pde.cli.main import main\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "meanfield-pde: interrupted\n")
    assert not ended.stdout
    assert not out.exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("echo '(junk' > .petscrc; meanfield-pde info", "PETSc cannot read its options: Unknown"),
        ("mkdir x; cd x; rmdir ../x; meanfield-pde info", "the current folder cannot be read"),
        ("NUMBA_NUM_THREADS=0 meanfield-pde info", "NUMBA_NUM_THREADS must be a positive whole"),
        ("NUMBA_NUM_THREADS=" + "9" * 5000 + " meanfield-pde info", "NUMBA_NUM_THREADS must be"),
        ("MEANFIELD_PDE_THREADS=² meanfield-pde info", "MEANFIELD_PDE_THREADS must be a positive"),
        (
            "MEANFIELD_PDE_THREADS=1000000 meanfield-pde info",
            "MEANFIELD_PDE_THREADS = 1000000, and",
        ),
        ("MPLBACKEND=foo meanfield-pde info", "MPLBACKEND must be a backend of matplotlib"),
        ("printf '\\xff\\xa0' > matplotlibrc; meanfield-pde info", "matplotlibrc: not readable"),
        *(
            (f"mkfifo {name}; timeout 20 meanfield-pde --version", f"{shown} is a pipe or a device")
            for name, shown in (
                (".petscrc", '"$PWD/.petscrc"'),
                ("petscrc", '"$PWD/petscrc"'),
                ("matplotlibrc", "matplotlibrc"),
                ("ffcx_options.json", "ffcx_options.json"),
            )
        ),
        ("mkfifo rc; MATPLOTLIBRC=rc timeout 20 meanfield-pde info", "rc is a pipe or a device"),
    ],
)
def test_what_a_command_cannot_start_in_is_one_line(line: str, said: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    said = said.replace('"$PWD/', f"{tmp_path}/").replace('"', "")
    assert ended.stderr.startswith(f"meanfield-pde: {said}")


def test_errors_keep_their_options_between_ranks() -> None:
    from mpi4py import MPI

    with pytest.raises(StoppedError) as caught, shared_errors(MPI.COMM_SELF):
        raise StoppedError("stopped", "--resume")
    error: MeanfieldError = caught.value
    assert (str(error), error.options, error.exit_code) == ("stopped", "--resume", 75)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10min", 600), (" 1.5 h ", 5400)])
def test_durations(text: str, seconds: float) -> None:
    assert duration(text, "a") == seconds


@pytest.mark.parametrize("text", ["", "10", "min", "-1s", "0s", "1e3s", "10 days", "1" * 99 + "s"])
def test_wrong_durations(text: str) -> None:
    with pytest.raises(InputError, match=r"output\.checkpoint_every must be"):
        duration(text, "output.checkpoint_every")


def test_log_and_checkpoints_by_the_clock(main: Main, write_case: Write, tmp_path: Path) -> None:
    case = write_case(CIRCLE + '[output]\ncheckpoint_every = "10min"\n')
    log, out = tmp_path / "run.log", tmp_path / "out"
    run = ("run", case, "--until", 0.5, "--quiet", "--output", out, "--log", log)
    assert main(*run) == (0, "")
    assert 'checkpoint_every = "10min"' in (out / "case.toml").read_text()
    assert (out / "checkpoint.h5").exists()
    lines = log.read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ", line) for line in lines)
    assert (
        " INFO the density on the circle to t = 0.5, on 200 cells, by 1 rank x 1 thread"
        in "\n".join(lines)
    )
    assert " of them to the end; memory of a rank " in "\n".join(lines)
    assert " INFO done: t = 0.5 after " in lines[-1]


def test_what_does_not_end_is_refused(main: Main, write_case: Write, tmp_path: Path) -> None:
    case = write_case(CIRCLE, ("save_every = 0.5", ""))
    out = tmp_path / "out"
    code, err = main("run", case, "--until", 1e15, "--quiet", "--output", out)
    assert (code, err.count("\n"), "--allow-long" in err) == (2, 1, True)
    assert not out.exists()
    metastable = write_case((ROOT / "demos/circle.toml").read_text(), name="m.toml")
    many = ("--strength", 1e-13, 1e-12)
    for line in (
        ("tokens", case, "--count", 10, "--step", 1e-300, "--output", tmp_path / "a.npz"),
        ("lifetime", metastable, "--beta", 20, "--until", 1e15, "--quiet", "--output", out),
        ("transition", case, *many, "--quiet", "--output", tmp_path / "other"),
    ):
        code, err = main(*line)
        lines = [one for one in err.splitlines() if "attention sum" not in one]
        assert (code, len(lines), "does not end" in err) == (2, 1, True), err
    with pytest.raises(InputError, match="does not end"):
        simulate_tokens(np.eye(2), Attention(np.eye(2), np.eye(2), np.eye(2), 1.0), 1e15)


def test_what_a_large_mesh_needs_is_said_before_it_is_made(
    main: Main, write_case: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = (ROOT / "demos/circle.toml").read_text()
    case = write_case(demo, ("cells = 300\n\n[adapt]\ntolerance = 1e-3", "cells = 10_000_000"))
    monkeypatch.setattr("meanfield_pde.support.memory.machine_memory", lambda: 8e9)
    for line in (("run",), ("lifetime", "--beta", 20), ("transition", "--strength", 0.1, 0.2)):
        code, err = main(line[0], case, *line[1:], "--output", case.with_suffix(""))
        assert (code, err.count("\n")) == (2, 1)
        assert "mesh.cells = 10000000 needs about 25.7 GB, and this machine has 8 GB" in err
    monkeypatch.setattr("meanfield_pde.support.memory.machine_memory", lambda: 1e9)
    million = write_case(demo, ("cells = 300\n\n[adapt]\ntolerance = 1e-3", "cells = 1_000_000"))
    code, err = main("run", million, "--output", case.with_suffix(""))
    assert (code, "needs about 2.88 GB" in err) == (2, True), err
    monkeypatch.setattr("meanfield_pde.support.memory.machine_memory", lambda: 64e9)
    case = write_case(demo, ("cells = 300\n\n[adapt]\ntolerance = 1e-3", "cells = 10_000_000"))

    def no_mesh(*arguments: object, **options: object) -> None:
        raise InputError("no mesh")

    monkeypatch.setattr("meanfield_pde.experiments.case_mesh.circle_mesh", no_mesh)
    for free, shown in ((32e9, ()), (9e9, ("--quiet",))):  # a warning if it is not free now
        monkeypatch.setattr("meanfield_pde.experiments.cost.free_memory", lambda free=free: free)
        _, err = main("run", case, *shown, "--output", case.with_suffix(""))
        said = err.splitlines()
        assert "25.7 GB, 2535 bytes a cell; " in said[0]
        assert "no mesh" in said[1]


def test_the_batch_script_and_the_image_are_in_step() -> None:
    """Options that the command has, the extra and the Python of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    script = ROOT / "demos/hpc/run.slurm"
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    (line,) = re.findall(r"meanfield-pde run .*\\\n.*", text)
    build_parser().parse_args(["run", "a", *re.findall(r"--(?:quiet|resume)", line)])
    assert set(re.findall(r"--[a-z]+", line)) == {"--output", "--resume", "--quiet", "--log"}
    assert "srun --mpi=pmi2 " in text
    assert f'"$code" -eq {StoppedError.exit_code}' in text
    image = (ROOT / "demos/hpc/Containerfile").read_text()
    (python,) = re.findall(r"python:(\d+\.\d+)", image)
    assert project["requires-python"] == f">={python}"
    (extra,) = re.findall(r"/source\[(\w+)\]", image)
    assert extra in project["optional-dependencies"]
