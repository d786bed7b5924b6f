"""Runs that are refused, stopped, or out of disk: nothing is lost, and one line says why."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from mpi4py import MPI

import h5py
import numpy as np
import pytest

from meanfield_pde import InputError, StorageError, read_result
from meanfield_pde.results.lock import FolderLock
from meanfield_pde.results.names import LOCK
from meanfield_pde.support.hdf5 import check_seal, new_hdf5, seal
from tests.conftest import Main, Write, environment
from tests.problems import CIRCLE

OFTEN = "[output]\ncheckpoint_every = 5\n"
LONG = (("until = 5.0", "until = 2000.0"), ("save_every = 0.5", "save_every = 2.0"))


@pytest.mark.draws("density")
def test_nothing_of_others_is_removed(main: Main, write_case: Write, tmp_path: Path) -> None:
    """Names like those of temporary files, and files in the folders of the results."""
    out, case = tmp_path / "out", write_case(CIRCLE)
    (out / ".conda.3.12").mkdir(parents=True)
    (out / ".notes.2024.txt").write_text("mine")
    assert main("run", case, "--until", 0, "--quiet", "--output", out) == (0, "")
    (out / "figures/.mine.7.png").write_text("mine")
    (out / "fields/notes.txt").write_text("mine")
    run = ("run", case, "--until", 0.1, "--quiet", "--overwrite", "--output", out)
    assert main(*run) == (0, "")
    for name in (".conda.3.12", ".notes.2024.txt", "figures/.mine.7.png", "fields/notes.txt"):
        assert (out / name).exists(), name


def test_finished_results_are_left_as_they_are(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    out, case = tmp_path / "out", write_case(CIRCLE)
    run = ("run", case, "--until", 0.1, "--quiet", "--output", out)
    assert main(*run) == (0, "")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    code, err = main(*run)
    assert (code, err.count("\n"), "finished" in err, str(out) in err) == (0, 1, True, True)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    (out / "summary.json").unlink()  # as if it had been stopped
    code, err = main(*run)
    assert (code, err.count("\n")) == (2, 1)
    for part in (str(out), "--resume", "--overwrite"):
        assert part in err
    assert main(*run, "--resume") == (0, "")
    assert main(*run, "--overwrite") == (0, "")


def test_an_empty_output_is_refused(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, err = main("run", write_case(CIRCLE), "--output", "")
    assert (code, err.count("\n"), "--output" in err) == (2, 1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["some-case.toml"]


def start(case: Path, out: Path, *, ranks: int) -> subprocess.Popen[str]:
    """A run in the background, on several ranks."""
    line = ["mpiexec", "-n", str(ranks), "meanfield-pde", "run", str(case), "--quiet"]
    return subprocess.Popen(
        [*line, "--output", str(out)],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 60
    while not path.exists() and time.monotonic() < limit:
        time.sleep(0.01)


@contextmanager
def files_of_at_most(most: int) -> Generator[None, None, None]:
    """Have the system refuse this process to write more than n bytes into a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parallel([1, 2])
def test_a_disk_that_takes_no_more(main: Main, write_case: Write) -> None:
    """The system refuses to write more than so much into a file: one line; the rest is valid."""
    comm = MPI.COMM_WORLD
    case, kilobytes = comm.bcast(write_case(CIRCLE + OFTEN, *LONG)), {1: 45, 2: 30}[comm.size]
    out = case.parent / "out"
    with files_of_at_most(1000 * kilobytes):
        code, err = main("run", case, "--output", out, "--quiet")
    assert code == 1, err
    if comm.rank > 0:
        assert err == ""
        return
    assert err.count("\n") == 1
    assert "cannot be written (File too large)" in err
    assert str(out) in err
    if kilobytes > 30:
        assert len(read_result(out).times) > 1


def test_hdf5_never_sees_a_failed_write(tmp_path: Path) -> None:
    """The error of the system comes out at the end, whatever was being written."""
    code = (
        "import resource, sys, numpy as np\nfrom pathlib import Path\n"
        "from meanfield_pde.support.hdf5 import new_hdf5\n"
        "for most in (0, 1000, 50_000, 100_000):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))\n"
        "    try:\n"
        "        with new_hdf5(Path(sys.argv[1])) as file:\n"
        "            file['a'] = np.arange(1e4)\n"
        "            rows = file.create_dataset('b', (9, 1000), dtype=float)\n"
        "            for i in range(9): rows[i] = i\n"
        "            file.create_group('c').attrs['names'] = ['x', 'y']\n"
        "    except OSError as error: print(error.strerror)\n"
    )
    line = [sys.executable, "-c", code, str(tmp_path / "a.h5")]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, 4 * "File too large\n", "")
    with new_hdf5(tmp_path / "b.h5") as file:
        file["a"] = np.arange(7)
    with h5py.File(tmp_path / "b.h5") as file:
        assert file["a"][()].tolist() == list(range(7))


@pytest.mark.draws("density")
@pytest.mark.parametrize("name", ["fields", "figures"])
def test_files_where_folders_should_be(
    name: str, main: Main, write_case: Write, tmp_path: Path
) -> None:
    out, case = tmp_path / "out", write_case(CIRCLE)
    assert main("run", case, "--until", 0, "--quiet", "--output", out) == (0, "")
    shutil.rmtree(out / name)
    (out / name).write_text("a file")
    code, err = main("run", case, "--until", 0, "--overwrite", "--quiet", "--output", out)
    assert (code, err.count("\n"), str(out / name) in err) == (2, 1, True)
    assert (out / name).read_text() == "a file"
    assert (out / "summary.json").exists()


@pytest.mark.draws
def test_a_figure_that_matplotlib_cannot_draw_is_one_line_without_the_name_of_an_exception(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `text.usetex: True` in a matplotlibrc, and no LaTeX."""

    def without_latex(*arguments: object, **options: object) -> None:
        raise RuntimeError("Failed to process string with tex\nbecause latex could not be found")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", without_latex)
    out = tmp_path / "out"
    code, err = main("run", write_case(CIRCLE), "--until", 0, "--quiet", "--output", out)
    assert (code, err.count("\n")) == (0, 1), err
    assert err.startswith("no figures: a figure cannot be drawn (Failed to process string with tex")
    assert (out / "summary.json").exists()
    code, err = main("plot", out)
    assert (code, err.count("\n"), "RuntimeError" in err) == (1, 1, False), err


@pytest.mark.draws
def test_a_figure_that_cannot_be_written_fails_no_run(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise StorageError("figures/density.png: cannot be written (No space left on device)")

    monkeypatch.setattr("meanfield_pde.figures.density.draw_density", full)
    out = tmp_path / "out"
    code, err = main("run", write_case(CIRCLE), "--until", 0, "--quiet", "--output", out)
    assert (code, err.count("\n"), "no figures" in err) == (0, 1, True)
    assert (out / "summary.json").exists()


@contextmanager
def no_superuser() -> Generator[None, None, None]:
    """Have this thread write where the permissions say so, which a superuser may do anywhere.

    CAP_DAC_OVERRIDE is taken from the set of capabilities that hold (capabilities(7)).
    """
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    before = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    assert libc.capset(header, (ctypes.c_uint32 * 6)(before[0] & ~(1 << 1), *before[1:])) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0


def test_a_folder_that_is_read_only(main: Main, write_case: Write, tmp_path: Path) -> None:
    """`plot` and `compare` say so before any work, and put their figures elsewhere if asked to."""
    case, out = write_case(CIRCLE, ("cells = 200", "cells = 40")), tmp_path / "out"
    assert main("run", case, "--until", 0.5, "--quiet", "--output", out) == (0, "")
    assert main("plot", out)[0] == 0
    tokens, other = tmp_path / "t.npz", tmp_path / "other"
    assert main("tokens", case, "--count", 4, "--until", 0.5, "--output", tokens)[0] == 0
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    folders = [out, *(path for path in out.rglob("*") if path.is_dir())]
    assert out / "figures" in folders
    for folder in folders:
        folder.chmod(0o555)
    try:
        with no_superuser():
            for line in (
                ("plot", out),
                ("compare", out, tokens),
                ("run", case, "--until", 0.5, "--overwrite", "--quiet", "--output", out),
                ("limit", case, "--output", out / "limit.txt"),
            ):
                code, err = main(*line)
                assert (code, err.count("\n"), f"{out}" in err) == (1, 1, True), line
                assert "cannot be written (Permission denied)" in err, line
                assert ("--output" in err) == (line[0] in ("plot", "compare"))
            assert main("plot", out, "--output", other)[0] == 0
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert {path.name for path in (other / "figures").iterdir()} >= {"density.png", "history.png"}
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def busy(path: Path) -> None:
    raise OSError(errno.EBUSY, "Device or resource busy", str(path))


def test_one_run_in_a_folder(
    write_case: Write, main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, case = tmp_path / "out", write_case(CIRCLE)
    lock = FolderLock(out)
    lock.acquire()
    with pytest.raises(InputError, match=rf"another run is writing there \(process {os.getpid()}"):
        FolderLock(out).acquire()
    code, err = main("run", case, "--until", 0, "--quiet", "--output", out)
    assert (code, err.count("\n"), "another run" in err) == (2, 1, True)
    lock.release()
    assert not out.exists()
    # A folder that cannot be removed, since another disk was put in its place, say.
    lock = FolderLock(out)
    lock.acquire()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rmdir", busy)
        lock.release()
    # What a killed run leaves is a file that nobody holds.
    (out / LOCK).write_text('{"host": "elsewhere", "process": 1}\n')
    assert main("run", case, "--until", 0, "--quiet", "--output", out) == (0, "")
    assert not (out / LOCK).exists()


@pytest.mark.parametrize("kind", ["symbolic", "dangling", "hard", "pipe"])
def test_a_lock_that_is_no_file_of_ours(
    kind: str, main: Main, write_case: Write, tmp_path: Path
) -> None:
    """What a link leads to is somebody's, and stays as it is."""
    out, other = tmp_path / "out", tmp_path / "precious.txt"
    out.mkdir()
    if kind != "dangling":
        other.write_text("precious")
    if kind == "pipe":
        os.mkfifo(out / LOCK)
    elif kind == "hard":
        os.link(other, out / LOCK)
    else:
        (out / LOCK).symlink_to(other)
    code, err = main("run", write_case(CIRCLE), "--until", 0, "--quiet", "--output", out)
    assert (code, err.count("\n"), str(out / LOCK) in err) == (2, 1, True), err
    assert os.path.lexists(out / LOCK)
    assert other.exists() == (kind != "dangling")
    assert kind == "dangling" or other.read_text() == "precious"


@pytest.mark.parametrize("place", ["loop", "loop/out", "out/case.toml", "mesh"])
def test_a_loop_of_links(
    place: str, main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    case = write_case(CIRCLE)
    if place == "mesh":
        mesh = ('kind = "circle"\ncells = 200', 'kind = "file"\npath = "loop"')
        case = write_case(CIRCLE, mesh)
    loop = tmp_path / {"out/case.toml": place}.get(place, "loop")
    loop.symlink_to(loop.name)
    output = {"mesh": "new", "out/case.toml": "out"}.get(place, place)
    code, err = main("run", case, "--until", 0, "--quiet", "--output", output)
    assert (code, err.count("\n"), "loop" in err or "case.toml" in err) == (2, 1, True), err
    assert loop.is_symlink()


@pytest.mark.parametrize(
    ("number", "ranks"), [(signal.SIGTERM, 1), (signal.SIGUSR1, 2), (signal.SIGHUP, 1)]
)
def test_a_signal_stops_a_run_that_can_be_resumed(
    number: signal.Signals, ranks: int, main: Main, write_case: Write, tmp_path: Path
) -> None:
    """On one rank the run is in this process, which it leaves to handle signals as before."""
    out, case = tmp_path / "out", write_case(CIRCLE + "[output]\ncheckpoint_every = 0\n", *LONG)
    if ranks > 1:
        process = start(case, out, ranks=ranks)
        wait_for(out / "history.csv")
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        code = process.returncode
    else:
        handler = signal.getsignal(number)
        sender = threading.Thread(
            target=lambda: (wait_for(out / "history.csv"), os.kill(os.getpid(), number))
        )
        sender.start()
        code, err = main("run", case, "--output", out, "--quiet")
        sender.join()
        assert signal.getsignal(number) == handler
    assert code == 75, err
    assert (err.count("\n"), "--resume" in err, str(out) in err) == (1, True, True)
    with h5py.File(out / "checkpoint.h5") as file:
        time_reached, step = file["state"].attrs["time"], file["state"].attrs["step"]
    assert f"stopped by a signal at t = {time_reached:.6g}, step {step};" in err
    until = 2.0 * (1 + time_reached // 2)
    code, err = main("run", case, "--until", until, "--resume", "--output", out)
    assert code == 0, err
    assert f"resumed at t = {time_reached:.6g}, step {step}" in err


STARTING = """
import importlib.abc, os, signal, sys
class Signals(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "{module}": os.kill(os.getpid(), signal.{signal})
sys.meta_path.insert(0, Signals())
sys.argv = ["meanfield-pde", *sys.argv[1:]]
from meanfield_pde.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("meanfield_pde.attention.head", "SIGTERM"),  # PETSc has just been initialised
        pytest.param("meanfield_pde._platform", "SIGTERM", marks=pytest.mark.slow),
        pytest.param("mpi4py.MPI", "SIGUSR1", marks=pytest.mark.slow),
        pytest.param("meanfield_pde.attention.head", "SIGUSR1", marks=pytest.mark.slow),
    ],
)
def test_a_signal_while_the_command_starts(
    module: str, name: str, write_case: Write, tmp_path: Path
) -> None:
    code = STARTING.format(module=module, signal=name)
    ended = subprocess.run(
        [sys.executable, "-c", code, "run", str(write_case(CIRCLE)), "--output", tmp_path / "out"],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (75, 1), ended.stderr
    assert "stopped by a signal before the first step; nothing is lost" in ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "code"),
    [("SIGHUP", 129), pytest.param("SIGTERM", 143, marks=pytest.mark.slow)],
)
def test_a_signal_while_a_command_starts_that_cannot_go_on(
    name: str, code: int, write_case: Write, tmp_path: Path
) -> None:
    script = STARTING.format(module="meanfield_pde.attention.head", signal=name)
    ended = subprocess.run(
        [sys.executable, "-c", script, "limit", str(write_case(CIRCLE))],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stderr == f"meanfield-pde: limit ended by {name}; no file was written\n"
    assert ended.stdout == ""


LATE = """
import os, signal, sys
class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGTERM):
        kill(process, number)
sys.late = Late()  # deleted when Python has put the defaults of signals back
sys.argv = ["meanfield-pde", "demo", "circle"]
from meanfield_pde.cli.main import main
main()
"""


def test_a_signal_while_python_ends_changes_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LATE],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (0, 1), ended.stderr


ENDING = """
import os, signal, sys
sys.argv = ["meanfield-pde", *sys.argv[1:]]
from meanfield_pde.cli import main
import meanfield_pde.{module} as module
before = module.{function}
def ended(*arguments, **options):
    before(*arguments, **options)
    both = signal.SIGTERM, signal.SIGHUP
    if {together}:
        signal.pthread_sigmask(signal.SIG_BLOCK, both)
    for number in both:
        os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
module.{function} = ended
main.main()
"""


@pytest.mark.parametrize(
    ("module", "function", "together"),
    [
        ("theory.push_forward", "limit_of", False),
        ("theory.push_forward", "limit_of", True),
        ("cli.commands", "replace_text", False),
    ],
)
def test_a_signal_ends_a_command_that_cannot_go_on(
    module: str, function: str, together: bool, write_case: Write, tmp_path: Path
) -> None:
    """One line says what was written by then, whichever signals follow the first."""
    out = tmp_path / "limit.txt"
    line = ["limit", str(write_case(CIRCLE)), "--output", str(out)]
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            ENDING.format(module=module, function=function, together=together),
            *line,
        ],
        env=environment(),
        capture_output=True,
        text=True,
    )
    written = f"written before, and whole: {out}" if out.exists() else "no file was written"
    assert out.exists() == (function == "replace_text")
    # Of signals that come together the one of the least number is first.
    name, code = ("SIGHUP", 129) if together else ("SIGTERM", 143)
    assert ended.stderr == f"meanfield-pde: limit ended by {name}; {written}\n"
    assert ended.returncode == code


def test_a_run_after_nohup_goes_on_when_the_terminal_is_closed(
    write_case: Write, tmp_path: Path
) -> None:
    script = STARTING.format(module="meanfield_pde.attention.head", signal="SIGHUP")
    out, ignored = tmp_path / "out", ["bash", "-c", 'trap "" HUP; exec "$@"', "bash"]
    line = ["run", str(write_case(CIRCLE)), "--quiet", "--no-figures", "--until", "0"]
    line += ["--output", str(out)]
    ended = subprocess.run(
        [*ignored, sys.executable, "-c", script, *line],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert read_result(out).times == [0.0]


@pytest.mark.slow
def test_ctrl_c_on_two_ranks_is_said_once(write_case: Write, tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom meanfield_pde.cli import commands, main\n"
        "def interrupted(options): raise KeyboardInterrupt\n"
        "commands.run = interrupted\nmain.main(sys.argv[1:])\n"
    )
    ended = subprocess.run(
        ["mpiexec", "-n", "2", sys.executable, "-c", code, "run", str(write_case(CIRCLE))],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert ended.returncode != 0
    assert ended.stderr.count("meanfield-pde: interrupted") == 1, ended.stderr


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    case = write_case(CIRCLE + OFTEN, ("until = 5.0", "until = 1.0"))
    out, whole = tmp_path / "out", tmp_path / "whole"
    assert main("run", case, "--quiet", "--output", whole) == (0, "")
    shutil.copytree(whole, out)
    newest, before = out / "checkpoint.h5", out / "checkpoint.previous.h5"
    shutil.copy(newest, before)
    content = bytearray(newest.read_bytes())
    with h5py.File(newest) as file:
        place = file["state/masses"].id.get_offset()
    content[place + 80] ^= 1  # one bit of one mass
    newest.write_bytes(content)
    code, err = main("run", case, "--quiet", "--resume", "--output", out)
    assert (code, err.count("\n")) == (0, 1)
    assert f"{newest}: not a readable checkpoint (its checksum is wrong); going on from" in err
    np.testing.assert_array_equal(read_result(out).masses, read_result(whole).masses)
    newest.write_bytes(content)
    before.unlink()
    code, err = main("run", case, "--quiet", "--resume", "--output", out)
    assert (code, err.count("\n"), "checksum" in err) == (2, 1, True)


def test_hdf5_is_not_given_a_damaged_checkpoint(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may never come back from one: a byte of an attribute can be enough."""
    case, out = write_case(CIRCLE), tmp_path / "out"
    assert main("run", case, "--until", 0, "--quiet", "--output", out) == (0, "")
    path = out / "checkpoint.h5"
    content, opened = path.read_bytes(), []
    open_file = h5py.File

    def noted(name: object, *arguments: object, **options: object) -> h5py.File:
        opened.append(name)
        return open_file(name, *arguments, **options)

    monkeypatch.setattr(h5py, "File", noted)
    for place in range(0, len(content), len(content) // 40):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(ValueError, match="checksum is wrong"):
            check_seal(path)
    for damaged in (content[:-1], content + b"x", b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="checksum is wrong"):
            check_seal(path)
    code, err = main("run", case, "--quiet", "--resume", "--output", out)
    assert (code, err.count("\n"), "its checksum is wrong" in err) == (2, 1, True)
    assert path not in opened


@pytest.mark.parametrize("damage", ["nan", "shape", "rows", "negative", "time"])
def test_checkpoints_that_no_run_writes(
    damage: str, main: Main, write_case: Write, tmp_path: Path
) -> None:
    """With a checksum that is right."""
    case, out = write_case(CIRCLE), tmp_path / "out"
    assert main("run", case, "--until", 0, "--quiet", "--output", out) == (0, "")
    with h5py.File(out / "checkpoint.h5", "r+") as file:
        masses = file["state/masses"][()]
        if damage == "shape":
            del file["state/masses"]
            file["state/masses"] = masses[:-1]
        elif damage == "rows":
            del file["history"]
            file["history"] = np.zeros((1, 3))
        elif damage == "time":
            file["state"].attrs["time"] = np.nan
        else:
            masses[3] = {"nan": np.nan, "negative": -1.0}[damage]
            file["state/masses"][()] = masses
    seal(out / "checkpoint.h5")
    code, err = main("run", case, "--quiet", "--resume", "--output", out)
    assert (code, err.count("\n"), str(out / "checkpoint.h5") in err) == (2, 1, True)
