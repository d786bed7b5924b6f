"""The command line: exit codes, one line for each wrong input, and nothing written then."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from meanfield_pde import SolverError, TokenCloud, write_tokens
from meanfield_pde.mesh.files import read_surface, write_surface
from meanfield_pde.mesh.surface import Surface, circle_surface
from tests.conftest import Command, Main, Printed, Write, environment
from tests.problems import CIRCLE, SPHERE

IDENTITY = "[[1.0, 0.0], [0.0, 1.0]]"
VALUE = "[[1.0, 0.2], [0.0, 0.3]]"
DENSITY = "1 + 0.5*x + 0.3*x*y"
SAVE = "save_every = 0.5"

WRONG = {
    "misspelt key": ([("beta  =", "betta =")], "[attention] unknown key 'betta'", "'beta'"),
    "unknown key": ([("[time]", "[time]\nsteps = 3")], "[time] unknown key 'steps'", "until"),
    "unknown section": ([("[time]", "[tims]")], "unknown section [tims]", "'time'"),
    "ragged": ([(VALUE, "[[1.0, 0.2], [0.3]]")], "attention.value", "equal length", "1 in row 1"),
    "not finite": ([(VALUE, "[[1.0, inf], [0, 1]]")], "attention.value[0][1]", "finite", "inf"),
    "not square": ([(VALUE, "[[1.0, 0.2]]")], "attention.value", "square (d x d)", "1 x 2"),
    "query too wide": (
        [(f"query = {IDENTITY}", "query = [[1, 0, 0]]")],
        "attention.query",
        "1 x 3",
    ),
    "dimension 1": ([(VALUE, "[[1.0]]"), (IDENTITY, "[[1.0]]")], "attention.value", "2 x 2"),
    "dimension 4": (
        [(VALUE, f"[{', '.join(['[1, 0, 0, 0]'] * 4)}]"), (IDENTITY, "[[1, 0, 0, 0]]")],
        "attention.value must be 2 x 2",
        "got 4 x 4",
    ),
    "another mesh": ([('"circle"', '"sphere"')], "mesh.kind 'sphere' needs a 3 x 3", "got 2 x 2"),
    "negative beta": ([("40.0", "-1.0")], "attention.beta must be a number >= 0", "got -1.0"),
    "beta nan": ([("40.0", "nan")], "attention.beta must be a number >= 0", "got nan"),
    "singular": (
        [("40.0", '"inf"'), (f"key   = {IDENTITY}", "key = [[1, 0], [0, 0]]")],
        "zero temperature",
        "singular values are [1. 0.]",
    ),
    "negative density": ([(DENSITY, "0.3 + x")], "initial.density must be finite and >= 0", "-0.7"),
    "a comment": ([(DENSITY, "1 # + x")], "initial.density: '#' is not allowed", "column 3"),
    "tiny density": ([(DENSITY, "1e-322*(1 + x)")], "must not be below 1e-280 everywhere"),
    "a number for a bias": (
        [
            (
                "[mesh]",
                f"[perceptron]\nweights_in = {VALUE}\nweights_out = {VALUE}\nbias_in = 1\n[mesh]",
            )
        ],
        "perceptron.bias_in must be a list of numbers, got 1",
    ),
    "zero density": ([(DENSITY, "0 * x")], "initial.density is zero everywhere", "'0 * x'"),
    "negative end": ([("until = 5.0", "until = -2.0")], "time.until", ">= 0", "got -2.0"),
    "beyond the end": ([(SAVE, "save_at = [1, 9]")], "time.save_at[1]", "time.until = 5.0", "9.0"),
    "unsorted": ([(SAVE, "save_at = [2, 1]")], "time.save_at must increase", "1.0 after 2.0"),
    "missing tokens": (
        [('kind = "expression"', 'kind = "tokens"'), (f'density = "{DENSITY}"', 'path = "no.npz"')],
        "initial.path",
        "does not exist",
    ),
    "missing mesh": (
        [('kind = "circle"\ncells = 200', 'kind = "file"\npath = "no.xdmf"')],
        "mesh.path",
        "no.xdmf",
    ),
    "not TOML": ([("[time]", "[time")], "not valid TOML", "line"),
}


def assert_one_line(err: str, *parts: str) -> None:
    assert err.startswith("meanfield-pde: "), err
    assert err.count("\n") == 1
    assert err.endswith("\n")
    for part in parts:
        assert part in err


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_case(wrong: str, main: Main, write_case: Write, tmp_path: Path) -> None:
    changes, *parts = WRONG[wrong]
    case = write_case(CIRCLE, *changes)
    code, err = main("run", case, "--output", tmp_path / "out")
    assert code == 2
    assert_one_line(err, str(case), *parts)
    assert [path.name for path in tmp_path.iterdir()] == [case.name]


def test_missing_case_file(main: Main, write_case: Write, tmp_path: Path) -> None:
    write_case(CIRCLE)
    code, err = main("run", tmp_path / "some-cas.toml")
    assert code == 2
    assert_one_line(err, "some-cas.toml: no such case file", "did you mean 'some-case.toml'")


def test_mesh_with_a_boundary(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the middle of a message with long paths is left out
    whole = circle_surface(12)
    write_surface(tmp_path / "open.xdmf", Surface(whole.points, whole.cells[:-1]))
    case = write_case(CIRCLE, ('kind = "circle"\ncells = 200', 'kind = "file"\npath = "open.xdmf"'))
    code, err = main("run", case.name, "--output", "out")
    assert code == 2
    assert_one_line(err, "mesh.path: ", "open.xdmf", "vertex")
    assert not (tmp_path / "out").exists()


def test_mesh_of_another_dimension(main: Main, write_case: Write, tmp_path: Path) -> None:
    write_surface(tmp_path / "circle.xdmf", circle_surface(12))
    mesh = ('kind = "sphere"\ncells = 320', 'kind = "file"\npath = "circle.xdmf"')
    code, err = main("run", write_case(SPHERE, mesh), "--output", tmp_path / "out")
    assert code == 2
    assert_one_line(err, "3")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["COMMAND"]),
        (["rum"], ["invalid choice: 'rum'", "run"]),
        (["run"], ["CASE.toml"]),
        (["run", "some-case.toml", "--quite"], ["--quite"]),
        (["run", "some-case.toml", "--unti", "3"], ["--unti"]),
        (["run", "some-case.toml", "--until", "-3"], ["time.until", "-3"]),
        (["run", "some-case.toml", "--until", "soon"], ["--until", "'soon'"]),
        (["run", "some-case.toml", "--until", "nan"], ["--until", "'nan'"]),
        (["run", "some-case.toml", "--resume", "--dry-run"], ["--resume has no meaning"]),
        (["run", "some-case.toml", "--resume", "--overwrite"], ["exclude each other"]),
        (["run", "some-case.toml", "--output", "some-case.toml"], ["is a file"]),
        (["run", "some-case.toml", "--output", "some-case.toml/a"], ["cannot write the results"]),
        (["run", "some-case.toml", "--output", "/proc/a"], ["/proc/a: cannot write the results"]),
        (
            ["run", "some-case.toml", "-n", "4", "--quiet"],
            ["-n", "`mpiexec -n 4 meanfield-pde run some-case.toml --quiet`"],
        ),
        (["run", "-np"], ["-np", "`mpiexec -n N meanfield-pde run`"]),
        (["run", "some-case.toml", "-ts_typo", "3"], ["-ts_typo"]),
        (["run", "some-case.toml", "-ts_typo", "3", "--until", "3"], ["--until", "before"]),
        (["run", "some-case.toml", "-ts_dt", "1"], ["-ts_dt has no effect"]),
        (["run", "some-case.toml", "-ts_adapt_type", "basic"], ["-ts_adapt_type has no effect"]),
        (["run", "some-case.toml", "-ts_type", "rk"], ["-ts_type rk", "ssp"]),
        (["run", "some-case.toml", "-ts_type", "typo"], ["Unknown TS type: typo"]),
        (["run", "some-case.toml", "-ts_ssp_type", "typo"], ["typo"]),
        (["run", "some-case.toml", "-ts_ssp_nstages", "few"], ["few"]),
        (["run", "some-case.toml", "-ts_ssp_nstages", "1"], ["-ts_ssp_num_stages 1"]),
        (["run", "some-case.toml", "-ts_ssp_nstages", "100000000"], ["at most 1000 stages"]),
        (["run", "some-case.toml", "-ts_ssp_nstages", "9", "9"], ["one value"]),
        (["plot", "nowhere"], ["nowhere: no such result folder"]),
        (["plot", "."], ["not a result folder", "case.toml"]),
        (["mesh", "torus", "--cells", "9", "--output", "a.xdmf"], ["'torus'"]),
        (["mesh", "circle", "--cells", "2", "--output", "a.xdmf"], ["3", "got 2"]),
        (["mesh", "circle", "--cells", "few", "--output", "a.xdmf"], ["--cells", "'few'"]),
        (["mesh", "circle", "--cells", "9", "--output", "a.vtk"], ["a.vtk", ".xdmf"]),
        (["mesh", "circle", "--cells", "9", "--output", "no/a.xdmf"], ["there is no folder no"]),
    ],
)
def test_wrong_command_line(
    arguments: list[str],
    parts: list[str],
    main: Main,
    write_case: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_case(CIRCLE)
    code, err = main(*arguments)
    assert code == 2
    assert_one_line(err, *parts)
    assert [path.name for path in tmp_path.iterdir()] == ["some-case.toml"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--grade", "2"], ["--grade and --grade-to go together"]),
        (["--grade-to", "1,0"], ["--grade and --grade-to go together"]),
        (["--grade", "2", "--grade-to", "1,0,0"], ["2 finite numbers", "[1.0, 0.0, 0.0]"]),
        (["--grade", "2", "--grade-to", "-1,a"], ["--grade-to", "'a'"]),
        (["--grade", "0", "--grade-to", "1,0"], ["grade", ">= 1", "got 0.0"]),
    ],
)
def test_wrong_grade(arguments: list[str], parts: list[str], main: Main, tmp_path: Path) -> None:
    code, err = main("mesh", "circle", "--cells", 9, *arguments, "--output", tmp_path / "a.xdmf")
    assert code == 2
    assert_one_line(err, *parts)
    assert not list(tmp_path.iterdir())


def test_mesh_command_writes_what_a_case_reads(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    graded = ("--grade", 3, "--grade-to", "-1,0.5")
    assert main("mesh", "circle", "--cells", 60, *graded, "--output", tmp_path / "a.xdmf")[0] == 0
    assert len(read_surface(tmp_path / "a.xdmf").cells) == 60
    case = write_case(CIRCLE, ('kind = "circle"\ncells = 200', 'kind = "file"\npath = "a.xdmf"'))
    assert main("run", case, "--until", 0.1, "--output", tmp_path / "out")[0] == 0
    sphere = ("mesh", "sphere", "--cells", 100, "--output", tmp_path / "b.xdmf")
    code, err = main(*sphere)  # the least 20 n^2 that is at least 100
    assert (code, "b.xdmf: 180 cells" in err) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (("[time]", "[noise]\nstrength = 1e300\n[time]"), ["noise.strength = 1e+300", "lower it"]),
        (
            ("40.0\n[mesh]", "1e12\n[adapt]\ntolerance = 1e-2\n[mesh]"),
            ["adapt.tolerance = 0.01 takes", "a smaller beta"],
        ),
    ],
)
def test_what_cannot_be_followed_is_wrong_input(
    change: tuple[str, str], parts: list[str], main: Main, write_case: Write, tmp_path: Path
) -> None:
    code, err = main("run", write_case(CIRCLE, change), "--quiet", "--output", tmp_path / "out")
    assert code == 2
    assert_one_line(err, *parts)


def test_what_is_no_file_is_not_waited_for(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_case(CIRCLE, name="c.toml")
    write_case(f'{CIRCLE}[output]\ndirectory = "{"a/" * 2500}"\n', name="long.toml")
    (tmp_path / "weights").mkdir()
    for name in ("weights/model.safetensors", "pipe.npz", "log", "m.h5"):
        os.mkfifo(name)
    os.symlink("loop", "loop")
    os.symlink("log", "link")
    run = ("run", "c.toml", "--until", 0, "--output")
    tokens = ("tokens", "c.toml", "--count", 3, "--output")  # refused before they are moved
    os.mkdir("folder.npz")
    for arguments, parts in (
        (("audit", "weights"), ["weights/model.safetensors is a pipe, not a file"]),
        (("wasserstein", "pipe.npz", "pipe.npz"), ["pipe.npz is a pipe, not a file"]),
        ((*run, "a", "--log", "log"), ["log is a pipe or a socket"]),
        ((*run, "a", "-log_view", ":log"), ["log is a pipe or a socket"]),
        ((*run, "loop/a"), ["loop/a", "Too many levels of symbolic links"]),
        ((*run, "bad\udcff"), ["characters in it that are not text", "LC_ALL"]),
        (("limit", "c.toml", "--output", "/"), ["/: cannot be written (it is a folder)"]),
        ((*run, "a", "--log", "no/log"), ["no/log: there is no folder no"]),
        ((*run, "a", "-log_view", ":no/log"), ["no/log: there is no folder no"]),
        ((*run, "a/" * 2500), ["a path of at most 4000 characters"]),
        (("run", "long.toml"), ["output.directory must be a path of at most 4000 characters"]),
        (("limit", "c.toml", "--output", "log"), ["log is a pipe, not a file"]),
        (("limit", "c.toml", "--output", "link"), ["link is a pipe, not a file"]),
        (("limit", "c.toml", "--output", "./c.toml"), ["c.toml: --output is the case file itself"]),
        (("mesh", "circle", "--cells", 9, "--output", "m.xdmf"), ["m.h5 is a pipe, not a file"]),
        (("mesh", "circle", "--cells", 9, "--output", "/proc/m.xdmf"), ["/proc/m.xdmf: cannot be"]),
        (("limit", "c.toml", "--output", "/proc/m.json"), ["/proc/m.json: cannot be written"]),
        ((*tokens, "pipe.npz"), ["pipe.npz is a pipe, not a file"]),
        ((*tokens, "/proc/t.npz"), ["/proc/t.npz: cannot be written"]),
        ((*tokens, "folder.npz"), ["folder.npz: cannot be written (it is a folder)"]),
    ):
        code, err = main(*arguments)
        assert code == 2, err
        assert_one_line(err, *parts)
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "c.toml").read_text() == CIRCLE
    assert (tmp_path / "log").is_fifo()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("limit c.toml --json 2>&-", 0, '"eigenvalues"'),
        ("limit $'bad\\xff.toml'", 2, "characters in it that are not text"),
        ("--version >/dev/full", 1, "No space left"),
        pytest.param("limit c.toml >/dev/full", 1, "No space left", marks=pytest.mark.slow),
        pytest.param("limit c.toml <&- >&- 2>&-", 0, "", marks=pytest.mark.slow),
    ],
)
def test_closed_streams_and_arguments_that_are_no_text(
    line: str, code: int, said: str, write_case: Write, tmp_path: Path
) -> None:
    write_case(CIRCLE, name="c.toml")
    ended = subprocess.run(
        ["bash", "-c", f"meanfield-pde {line}"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == code
    assert said in ended.stdout + ended.stderr
    if code:
        assert_one_line(ended.stderr, said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tokens c.toml --count 9 --output log.npz", "log.npz is a pipe, not a file"),
        ("tokens c.toml --count 9", "out/tokens.npz is a pipe, not a file"),
        ("tokens c.toml --count 9 --output a.npz", "--output is an input of c.toml itself"),
        ("tokens a.npz --count 9 --output a.npz", "--output is the case file itself"),
        ("limit c.toml --output a.npz", "--output is an input of c.toml itself"),
        ("run c.toml --log ./c.toml", "--log is the case file itself"),
        ("run c.toml --output log.npz", "log.npz is a pipe or a device, not a folder"),
        ("sweep c.toml --beta 1 2 --output c.toml", "c.toml is a file, not a folder"),
        ("lifetime c.toml --beta 1 --output log.npz", "not a folder"),
        ("transition c.toml --strength 1 2 --output log.npz", "not a folder"),
        ("audit a.npz --output a.npz", "a.npz is a file, not a folder"),
        ("compare done a.npz --output a.npz", "a.npz is a file, not a folder"),
        ("plot done --output log.npz", "log.npz is a pipe or a device, not a folder"),
        ("mesh circle --cells 9 --output m.xdmf", "m.h5 is a pipe, not a file"),
    ],
)
def test_what_may_not_be_written_is_refused_before_any_work(
    line: str,
    said: str,
    main: Main,
    write_case: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pipe or an input in the place of an output, for every command that has one."""

    def work(*arguments: object, **options: object) -> None:
        raise AssertionError("this takes hours")

    for name in (
        "tokens.code.simulate_tokens",
        "theory.projection_limit.ProjectionLimit",
        "experiments.run.run_case",
        "mesh.surface.circle_surface",
    ):
        monkeypatch.setattr(f"meanfield_pde.{name}", work)
    monkeypatch.chdir(tmp_path)
    for place in ("out", "done"):
        (tmp_path / place).mkdir()
    for pipe in ("log.npz", "out/tokens.npz", "m.h5"):
        os.mkfifo(pipe)
    write_tokens("a.npz", TokenCloud(np.zeros(1), np.eye(2)))
    own = 'kind = "tokens"\npath = "a.npz"\n[output]\ndirectory = "out"\n'
    case = write_case(
        CIRCLE, ('kind = "expression"\ndensity = "1 + 0.5*x + 0.3*x*y"\n', own), name="c.toml"
    ).read_bytes()
    tokens = Path("a.npz").read_bytes()
    code, err = main(*line.split())
    assert code == 2, err
    assert_one_line(err, said)
    assert (Path("c.toml").read_bytes(), Path("a.npz").read_bytes()) == (case, tokens)


def test_options_of_petsc_in_the_environment(
    main: Main, command: Command, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are checked as those of the command line are."""
    case = write_case(CIRCLE)
    for given, said in (
        ("-ts_typo 3", "the PETSc option -ts_typo is not one that this solver asks for"),
        ("-ts_dt 1", "-ts_dt has no effect here"),
        # What PETSc acts on when it begins, and where it crashes or ends with a page of its own.
        ("-history none/x", "-history is not one that this solver asks for"),
        ("-options_file none", "-options_file is not one that this solver asks for"),
        ("-fp_trap", "-fp_trap is not one that this solver asks for"),
        ("-log_view :none/x", "none/x: there is no folder none"),
        ("-", "PETSC_OPTIONS must begin with an option"),
        ("-ts_type 'ssp", "PETSC_OPTIONS cannot be read"),
    ):
        monkeypatch.setenv("PETSC_OPTIONS", given)
        code, message = main("run", case, "--until", 0.1, "--quiet", "--output", tmp_path / "a")
        assert code == 2, message
        assert_one_line(message, said)
        assert not (tmp_path / "a").exists()
    run = ("run", case, "--until", 0.1, "--quiet", "--output")
    # Where PETSc begins, which would act on each of the three, or end the process.
    monkeypatch.setenv("PETSC_OPTIONS", "-history none/x -options_file none -fp_trap")
    ended = command(*run, tmp_path / "a")
    assert ended.returncode == 2, ended.stderr
    assert_one_line(ended.stderr, "-history is not one that this solver asks for")
    assert not (tmp_path / "a").exists()
    monkeypatch.setenv("PETSC_OPTIONS", "-ts_ssp_nstages 9")
    ended = command(*run, tmp_path / "b")
    assert (ended.returncode, ended.stderr) == (0, "")
    monkeypatch.delenv("PETSC_OPTIONS")
    assert main(*run, tmp_path / "c", "-ts_ssp_nstages", 9)[0] == 0
    assert main(*run, tmp_path / "d")[0] == 0
    b, c, d = ((tmp_path / name / "history.csv").read_text() for name in "bcd")
    assert b == c != d


def test_petsc_options_are_used(
    command: Command,
    main: Main,
    write_case: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    case, log = write_case(CIRCLE), tmp_path / "log.txt"
    until = ("--until", 0.1, "--quiet", "--output")
    # Either name of the option; PETSc itself reads but one of them.
    assert main("run", case, *until, tmp_path / "a", "-ts_ssp_nstages", 9)[0] == 0
    assert main("run", case, *until, tmp_path / "e", "-ts_ssp_num_stages", 9)[0] == 0
    third = ("-ts_ssp_type", "rks3", "-ts_ssp_nstages", 9, "-log_view", f":{log}")
    assert main("run", case, *until, tmp_path / "b", *third) == (0, "")
    assert "TSStep" in log.read_text()
    # In a process of its own: PETSc makes no other objects after a log that could not be written.
    ended = command("run", case, "--until", 0, "--quiet", "-log_view", ":/dev/full")
    assert ended.returncode == 1
    assert_one_line(ended.stderr, "/dev/full: cannot be written")
    # Options end with their command.
    assert main("run", case, *until, tmp_path / "c")[0] == 0
    assert main("run", case, *until, tmp_path / "d")[0] == 0
    history = {name: (tmp_path / name / "history.csv").read_text() for name in "abcde"}
    assert history["c"] == history["d"]
    assert history["a"] == history["e"]
    assert len(set(history.values())) == 3


@pytest.mark.parallel([2])
def test_help_is_printed_once(printed: Printed) -> None:
    shown = printed("run", "--help")
    assert shown.count("usage: meanfield-pde run") == (MPI.COMM_WORLD.rank == 0)


def test_info(printed: Printed) -> None:
    shown = printed("info")
    for name in ("meanfield_pde", "dolfinx", "petsc", "numba", "cores", "threads/rank", "MPI"):
        assert f"\n{name} " in f"\n{shown}"


def test_debug_gives_the_traceback(main: Main) -> None:
    for arguments in (("--debug", "run", "no.toml"), ("run", "no.toml", "--debug")):
        code, err = main(*arguments)
        assert code == 2
        assert "Traceback" in err
        assert err.splitlines()[-1].startswith("meanfield-pde: no.toml: no such case file")


def test_message_appears_once_and_both_ranks_end(command: Command, write_case: Write) -> None:
    case = write_case(CIRCLE, ("40.0", "-1.0"))
    ended = command("run", case, ranks=2)
    assert ended.returncode == 2
    assert_one_line(ended.stderr, "attention.beta")
    assert ended.stdout == ""
    assert not (case.parent / "results").exists()


@pytest.mark.parallel([2])
def test_wrong_options_of_petsc_are_said_by_one_rank(
    main: Main, write_case: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = MPI.COMM_WORLD
    case = comm.bcast(write_case(CIRCLE))
    monkeypatch.chdir(case.parent)
    code, err = main("run", case, "-ts_typo", 3)
    assert code == 2
    if comm.rank == 0:
        assert_one_line(err, "-ts_typo")
    else:
        assert err == ""
    assert not (case.parent / "results").exists()


def test_ranks_with_different_commands_are_refused(tmp_path: Path) -> None:
    one = ["-n", "1", "meanfield-pde"]
    line = ["mpiexec", *one, "info", ":", *one, "demo", "circle"]
    ended = subprocess.run(
        line, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert_one_line(ended.stderr, "all ranks must be given the same command")
    assert list(tmp_path.iterdir()) == []


BROKEN = """
import sys
from mpi4py import MPI
from meanfield_pde import SolverError
from meanfield_pde.cli import main as cli
from meanfield_pde.solver import simulation
cli.PATIENCE = 0.2
def broken(self, *arguments):
    raise {error}("no such luck")
if MPI.COMM_WORLD.rank == {rank}:
    simulation.Simulation.{method} = broken
cli.main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("error", "rank", "method"),
    [
        ("KeyError", 1, "save"),
        pytest.param("KeyError", 0, "save", marks=pytest.mark.slow),
        ("SolverError", 1, "solution"),
    ],
)
def test_one_failing_rank_ends_all(
    error: str, rank: int, method: str, command: Command, write_case: Write, tmp_path: Path
) -> None:
    script = tmp_path / "broken.py"
    script.write_text(BROKEN.format(error=error, rank=rank, method=method), encoding="utf-8")
    start = time.monotonic()
    ended = command("run", write_case(CIRCLE), ranks=2, script=script)
    assert ended.returncode != 0
    assert time.monotonic() - start < 60  # on the first use kernels are compiled
    assert f"rank {rank}" in ended.stderr
    assert "no such luck" in ended.stderr


def test_failure_is_exit_code_1(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise SolverError("no such luck")

    monkeypatch.setattr("meanfield_pde.solver.simulation.Simulation.save", broken)
    code, err = main("run", write_case(CIRCLE), "--quiet", "--output", tmp_path / "out")
    assert code == 1
    assert_one_line(err, "no such luck")


@pytest.mark.parallel([2])
def test_messages_only_without_a_terminal(
    main: Main, printed: Printed, write_case: Write, tmp_path: Path
) -> None:
    comm = MPI.COMM_WORLD
    case, folder = comm.bcast(write_case(CIRCLE)), comm.bcast(tmp_path)
    until = ("run", case, "--until", 0.2)
    quiet = (*until, "--quiet", "--overwrite", "--output", folder / "b")
    assert main(*quiet) == (0, "")
    assert printed(*quiet) == ""
    code, err = main(*until, "--output", folder / "a")
    assert code == 0
    if comm.rank > 0:
        assert err == "", "one rank speaks"
        return
    first, *_, last = lines = err.splitlines()
    assert len(lines) == len(set(lines))
    assert "|" not in err, "there is no bar"
    assert first == "the density on the circle to t = 0.2, on 200 cells, by 2 ranks x 1 thread"
    assert last.startswith("done: t = 0.2 after ")


def test_progress_bar_on_a_terminal(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    shown = bytearray()

    def read() -> None:  # what nobody reads fills the terminal, and the run waits
        with contextlib.suppress(OSError):  # the other side has closed the terminal
            while part := os.read(screen, 65536):
                shown.extend(part)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(terminal, "w") as stderr, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        assert main("run", write_case(CIRCLE), "--until", 40, "--output", tmp_path / "a")[0] == 0
    reader.join(60)
    os.close(screen)
    bars = [line for line in shown.decode().split("\r") if "|" in line]
    for part in ("t = ", " of 40 |", " to go"):
        assert part in bars[-1]
