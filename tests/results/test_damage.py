"""Damaged files of a result folder: refused in one line, or exactly the numbers as before."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from meanfield_pde import InputError, read_case, read_result, run_case
from meanfield_pde.support.checked_hdf5 import add_checksums
from meanfield_pde.support.hdf5 import new_hdf5
from tests.benchmarks.damage import Plan, damage
from tests.conftest import Command, Main, Write
from tests.problems import CIRCLE

SHORT: Plan = {
    ("finished", "case.toml"): ("read_result",),
    ("finished", "density.h5"): ("read_result",),
    ("finished", "summary.json"): ("run",),
    ("killed", "history.csv"): ("read_result",),
    ("killed", "density.h5"): ("read_result",),
    ("killed", "density.journal"): ("read_result",),
}
SMALL = ("cells = 200", "cells = 20")


@pytest.mark.usefixtures("undrawn")
def test_thirty_damages_of_each_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEANFIELD_PDE_THREADS", "1")
    assert damage(30, killed=False, cells=20, plan=SHORT) == []


@pytest.mark.usefixtures("undrawn")
def test_resumed_from_damaged_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit what the undamaged folder gives, or nothing."""
    monkeypatch.setenv("MEANFIELD_PDE_THREADS", "1")
    files = ("density.h5", "density.journal", "history.csv", "checkpoint.h5")
    plan: Plan = {("killed", name): ("resume",) for name in files}
    assert damage(2, killed=False, cells=20, plan=plan) == []


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_command_on_damaged_files(ranks: int, command: Command, tmp_path: Path) -> None:
    script = tmp_path / "damage.py"
    root = Path(__file__).parents[2]  # that of the tests, which are not installed
    script.write_text(
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from mpi4py import MPI\nfrom tests.benchmarks.damage import damage\n"
        "found = damage(3)\n"
        "assert MPI.COMM_WORLD.rank or found == []  # the first rank alone says what is wrong\n"
    )
    ended = command(ranks=ranks, script=script, timeout=280)  # 190 commands on each rank
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of finished runs, on a mesh as given and on one that moves."""
    folder = tmp_path_factory.mktemp("runs")
    for name, mesh in (("out", "cells = 20"), ("moving", "cells = 20\n[adapt]\ntolerance = 0.05")):
        case = folder / f"{name}.toml"
        case.write_text(CIRCLE.replace("cells = 200", mesh).replace("until = 5.0", "until = 1.0"))
        run_case(read_case(case, output=folder / name), quiet=True, figures=False)
    return folder


@pytest.fixture
def out(runs: Path, tmp_path: Path) -> Path:
    """The folder of a finished run, whose case stands beside it."""
    shutil.copy(runs / "out.toml", tmp_path / "some-case.toml")
    shutil.copytree(runs / "out", tmp_path / "out")
    return tmp_path / "out"


def half_of_the_last_masses(out: Path) -> None:
    """As an error of the disk may do: half of the last masses are zero."""
    with h5py.File(out / "density.h5") as file:
        masses = file["masses"]
        last = masses.id.get_offset() + masses.id.get_storage_size()
        size = masses.shape[1] * 8 // 2
    content = bytearray((out / "density.h5").read_bytes())
    content[last - size : last] = bytes(size)
    (out / "density.h5").write_bytes(content)


def test_half_of_the_last_masses_lost(out: Path, main: Main, tmp_path: Path) -> None:
    """The numbers of a distance are not said to be certified then, nor does a run go on."""
    half_of_the_last_masses(out)
    for line in (
        ("wasserstein", out, out),
        ("plot", out),
        ("run", tmp_path / "some-case.toml", "--quiet", "--output", out),
        ("run", tmp_path / "some-case.toml", "--quiet", "--resume", "--output", out),
    ):
        before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
        code, err = main(*line)
        assert (code, err.count("\n")) == (2, 1), err
        assert f"{out / 'density.h5'}: not a readable density file (its checksum is wrong" in err
        assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    """A change that somebody makes with an editor."""

    def change(out: Path) -> None:
        text = (out / name).read_text()
        assert old in text
        (out / name).write_text(text.replace(old, new, 1))

    return change


def a_digit(out: Path) -> None:
    """In the last row of the history."""
    text = (out / "history.csv").read_text()
    (out / "history.csv").write_text(text[:-30] + ("1" if text[-30] != "1" else "2") + text[-29:])


def a_row(out: Path) -> None:
    """The last row of the history is not there."""
    lines = (out / "history.csv").read_text().splitlines(keepends=True)
    (out / "history.csv").write_text("".join(lines[:-1]))


def by_another_program(out: Path) -> None:
    """Which leaves valid HDF5."""
    with h5py.File(out / "density.h5", "r+") as file:
        file["masses"][-1] = file["masses"][0]


def its_mark(out: Path) -> None:
    """The line with the checksum is taken away."""
    lines = (out / "case.toml").read_text().splitlines(keepends=True)
    assert lines[-1].startswith("# sha256 of the lines above: ")
    (out / "case.toml").write_text("".join(lines[:-1]))


def another_case(out: Path) -> None:
    """Whole, but of another run."""
    shutil.copy(out.with_name("other") / "case.toml", out / "case.toml")


EDITS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "beta": ("case.toml", replaced("case.toml", "beta = 40.0", "beta = 41.0"), "it was edited or"),
    "no checksum": ("case.toml", its_mark, "its checksum is missing"),
    "digit": ("history.csv", a_digit, "line 4 is not what the run wrote; it was edited or damaged"),
    "column": ("history.csv", replaced("history.csv", "mean_x", "mean_z"), "line 1 is not what"),
    "row": ("history.csv", a_row, "fewer rows than the 3 that the run wrote"),
    "masses": ("density.h5", by_another_program, "its checksums are missing"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_was_edited_is_named(edit: str, out: Path, main: Main) -> None:
    name, change, said = EDITS[edit]
    change(out)
    code, err = main("wasserstein", out, out)
    assert (code, err.count("\n")) == (2, 1), err
    assert f"{out / name}: not a readable" in err
    assert said in err


def test_the_case_of_another_run(out: Path, main: Main, write_case: Write, tmp_path: Path) -> None:
    other = write_case(CIRCLE, SMALL, ("40.0", "41.0"), name="other.toml")
    run = ("run", other, "--until", 0, "--quiet", "--output", tmp_path / "other")
    assert main(*run) == (0, "")
    another_case(out)
    code, err = main("plot", out)
    assert (code, err.count("\n"), "with other attention.beta" in err) == (2, 1, True)


def test_a_summary_that_was_edited_is_one_line(out: Path, main: Main, tmp_path: Path) -> None:
    """And no line about finished results before it."""
    run = ("run", tmp_path / "some-case.toml", "--quiet", "--output", out)
    path = out / "summary.json"
    right = path.read_text()
    edited, missing = json.loads(right), json.loads(right)
    edited["steps"] += 1
    del missing["sha256"]
    texts = {
        "{": "not a readable summary",
        json.dumps(edited, indent=2): "its checksum is wrong: it was edited",
        json.dumps(missing, indent=2): "its checksum is missing: it was edited",
    }
    for text, said in texts.items():
        path.write_text(text)
        code, err = main(*run)
        assert (code, err.count("\n"), str(path) in err, said in err) == (2, 1, True, True), err
    assert main(*run, "--resume") == (0, "")  # which concludes again
    assert json.loads(path.read_text())["steps"] == json.loads(right)["steps"]


def test_files_of_another_run_are_named(
    out: Path, main: Main, write_case: Write, tmp_path: Path
) -> None:
    """Another noise leaves the first row as it is, and so nothing but the case is different."""
    noise = ("[time]", "[noise]\nstrength = 0.1\n[time]")
    changes = (SMALL, ("until = 5.0", "until = 1.0"), noise)
    case = write_case(CIRCLE, *changes, name="other.toml")
    assert main("run", case, "--quiet", "--output", tmp_path / "other") == (0, "")
    assert main("run", case, "--until", 0, "--quiet", "--output", tmp_path / "start") == (0, "")
    run = ("run", tmp_path / "some-case.toml", "--quiet", "--output", out)
    shutil.copy(tmp_path / "other/summary.json", out)
    code, err = main(*run)
    assert (code, err.count("\n")) == (2, 1), err
    assert f"{out / 'summary.json'}: the summary of another run than that of history.csv" in err
    assert main(*run, "--resume") == (0, "")  # which concludes again
    code, err = main(*run)
    assert (code, "are left as they are" in err) == (0, True)
    (out / "checkpoint.previous.h5").unlink(missing_ok=True)
    for folder in ("other", "start"):
        shutil.copy(tmp_path / folder / "checkpoint.h5", out)
        code, err = main(*run, "--resume")
        assert (code, err.count("\n")) == (2, 1), err
        assert f"{out / 'checkpoint.h5'}: the checkpoint of another run than that of" in err


def test_what_is_missing_where_a_run_is_to_be_resumed_is_named(
    out: Path, main: Main, tmp_path: Path
) -> None:
    (out / "case.toml").unlink()
    code, err = main("run", tmp_path / "some-case.toml", "--resume", "--output", out)
    assert (code, "nothing to resume, there is no case.toml" in err) == (2, True)


@pytest.mark.parametrize("name", ["case.toml", "summary.json", "checkpoint.h5"])
def test_a_pipe_or_a_device_in_place_of_a_file_is_not_waited_for(
    name: str, out: Path, main: Main, tmp_path: Path
) -> None:
    run = ("run", tmp_path / "some-case.toml", "--quiet", "--output", out)
    for kind in ("a pipe", "a device"):
        (out / name).unlink()
        if kind == "a pipe":
            os.mkfifo(out / name)
        else:
            (out / name).symlink_to("/dev/null")
        for line in (run, (*run, "--resume"), (*run, "--overwrite")):
            code, err = main(*line)
            assert (code, err) == (2, f"meanfield-pde: {out / name} is {kind}, not a file\n")
        assert not (out / name).is_file()


def as_written_before(out: Path) -> None:
    """Make the folder what an earlier version would have written: no checksums, no rows."""
    with h5py.File(out / "density.h5") as file, new_hdf5(out / "old.h5") as old:
        for name in file:
            if name != "history":
                file.copy(name, old)
        old.attrs.update(file.attrs)
    (out / "old.h5").replace(out / "density.h5")
    its_mark(out)
    summary = json.loads((out / "summary.json").read_text())
    del summary["sha256"]
    (out / "summary.json").write_text(json.dumps(summary, indent=2))


def test_folders_of_an_earlier_version(
    out: Path, main: Main, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Read as before, with one line that says that nothing is checked; held against the history."""
    new = read_result(out)
    as_written_before(out)
    shutil.copytree(out, tmp_path / "kept")
    case = tmp_path / "some-case.toml"
    code, err = main("wasserstein", out, out)
    assert (code, err.count("\n"), err.count("without checksums")) == (0, 1, 1), err
    code, err = main("run", case, "--quiet", "--output", tmp_path / "kept")
    assert (code, err.count("\n"), err.count("without checksums")) == (0, 2, 1), err
    found = read_result(tmp_path / "kept")
    np.testing.assert_array_equal(found.masses, new.masses)
    for name, column in new.history.items():
        np.testing.assert_array_equal(found.history[name], column)
    run = ("run", case, "--until", 1.5, "--quiet", "--resume", "--output", out)
    assert main(*run)[0] == 0
    assert (out / "case.toml").read_text().splitlines()[-1].startswith("# sha256")
    resumed = read_result(out)
    assert resumed.store.checked
    np.testing.assert_array_equal(resumed.masses[:3], new.masses)
    kept = tmp_path / "kept"
    half_of_the_last_masses(kept)
    run = ("run", case, "--output", kept)
    for line in (("wasserstein", kept, kept), run, (*run, "--resume")):
        code, err = main(*line)
        assert code == 2
        assert "masses at t = 1 sum to" in err


@pytest.mark.parametrize("checked", [True, False])
def test_a_run_with_masses_that_are_no_numbers_is_not_finished(
    checked: bool, out: Path, main: Main, tmp_path: Path
) -> None:
    with h5py.File(out / "density.h5") as file:
        masses = file["masses"][()]
    masses[1] = np.nan
    crafted(out, "masses", masses, checked=checked)
    run = ("run", tmp_path / "some-case.toml", "--quiet", "--output", out)
    for line in (run, (*run, "--resume")):
        code, err = main(*line)
        assert (code, err.count("must be finite"), "finished" in err) == (2, 1, False), err
        assert str(out / "density.h5") in err


def crafted(out: Path, name: str, value: object, *, checked: bool) -> None:
    """Put an array of somebody's making in the place of one, with checksums or without."""
    if not checked:
        as_written_before(out)
    with h5py.File(out / "density.h5", "r+") as file:
        attributes = dict(file[name].attrs)
        del file[name]
        file[name] = value
        file[name].attrs.update(attributes)
    if checked:
        add_checksums(out / "density.h5")


@pytest.mark.parametrize("checked", [True, False])
def test_arrays_that_no_run_writes(
    checked: bool, out: Path, runs: Path, main: Main, tmp_path: Path
) -> None:
    moving = runs / "moving"
    with h5py.File(out / "density.h5") as file:
        arrays = {name: file[name][()] for name in file}
    with h5py.File(moving / "density.h5") as file:
        offsets = file["offsets"][()]
    wrong: list[tuple[Path, str, object]] = [
        (out, "masses", -arrays["masses"]),
        (out, "masses", np.full_like(arrays["masses"], np.nan)),
        (out, "masses", np.array([["a"] * 20] * 3, dtype="S1")),
        (out, "points", 2 * arrays["points"]),
        (out, "vertices", arrays["vertices"][:-1]),
        (out, "volumes", 0 * arrays["volumes"]),
        (out, "times", arrays["times"][::-1].copy()),
        (out, "times", np.array([0.0, 0.5, np.inf])),
        (out, "masses", h5py.Empty("f8")),
        (out, "times", h5py.Empty("f8")),
        (moving, "masses", h5py.Empty("f8")),
        (moving, "offsets", offsets.astype(float)),
        (moving, "offsets", np.array([0, 2 * offsets[-1], *offsets[2:]])),
        (moving, "offsets", offsets - 1),
    ]
    if checked:
        wrong.append((out, "history", arrays["history"][:, :3]))
    for folder, name, value in wrong:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        crafted(copy, name, value, checked=checked)
        code, err = main("wasserstein", copy, copy)
        lines = [line for line in err.splitlines() if line.startswith("meanfield-pde: ")]
        assert (code, len(lines)) == (2, 1), (name, err)
        assert "NoneType" not in err
        assert f"{copy}/density.h5: " in err or f"{copy}/history.csv: " in err, (name, err)


@pytest.mark.parametrize("checked", [True, False])
def test_histories_that_no_run_writes(checked: bool, out: Path, main: Main) -> None:
    if not checked:
        as_written_before(out)
    path = out / "history.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()]
    wrong = {
        "without moments": [row[:5] + row[7:] for row in rows],
        "a field of 1 MB": [rows[0], ["1" * 1_000_000, *rows[1][1:]], *rows[2:]],
        "a long name": [["m" * 1_000_000, *rows[0][1:]], *rows[1:]],
        "one name twice": [["mass", *rows[0][1:]], *rows[1:]],
        "other times": [rows[0], *[["9.0", *row[1:]] for row in rows[1:]]],
        "nothing": [],
    }
    for name, table in wrong.items():
        path.write_text("".join(",".join(row) + "\n" for row in table))
        code, err = main("wasserstein", out, out)
        lines = [line for line in err.splitlines() if line.startswith("meanfield-pde: ")]
        assert (code, len(lines), str(path) in lines[0]) == (2, 1, True), (name, err)
        assert len(lines[0]) < 300
        with pytest.raises(InputError):
            read_result(out)


def test_densities_copied_without_their_checksums_are_refused(out: Path, main: Main) -> None:
    """A copy of what HDF5 reads is what no version has written: rows of the history, unchecked."""
    path, copy = out / "density.h5", out / "copy.h5"
    with h5py.File(path) as file, h5py.File(copy, "w") as other:
        for name in file:
            file.copy(name, other)
        other.attrs.update(file.attrs)
        other["masses"][...] = np.roll(other["masses"][...], 5, axis=1)
    copy.replace(path)
    code, err = main("wasserstein", out, out)
    assert (code, "checksums are missing" in err) == (2, True), err
