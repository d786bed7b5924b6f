"""The result folder: its files, that they agree with each other, and that they are never lost."""

from __future__ import annotations

import base64
import csv
import json
import random
import subprocess
import time
import tomllib
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

import h5py
import numpy as np
import pytest
from matplotlib.image import imread

from meanfield_pde import InputError, read_result
from meanfield_pde.case.text import same_case
from meanfield_pde.cli import main as cli
from meanfield_pde.experiments.run import RUN_FIGURES
from meanfield_pde.history.file_store import FileStore
from meanfield_pde.results.claim import claim_folder
from meanfield_pde.support.checked_hdf5 import add_checksums
from tests.conftest import Main, Write, coarse_views, environment, leave_figures_empty
from tests.problems import CIRCLE, SPHERE

TOP = {"case.toml", "history.csv", "moments.csv", "density.h5", "fields", "checkpoint.h5"} | {
    "figures",
    "summary.json",
}
COLUMNS = {
    2: "time step mass min_density max_density mean_x mean_y second_xx second_xy second_yy "
    "energy lyapunov log_energy unresolved_mass mean_norm",
    3: "time step mass min_density max_density mean_x mean_y mean_z second_xx second_xy second_xz "
    "second_yy second_yz second_zz energy lyapunov log_energy unresolved_mass mean_norm",
}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def vtu_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a .vtu file, read as the format says: base64 of the size and the bytes."""
    kinds = {"Float64": "<f8", "Int64": "<i8", "UInt8": "u1"}
    arrays = {}
    for array in ET.parse(path).iter("DataArray"):
        data = base64.b64decode(array.text or "")
        assert int.from_bytes(data[:8], "little") == len(data) - 8
        arrays[array.attrib["Name"]] = np.frombuffer(data[8:], kinds[array.attrib["type"]])
    return arrays


@pytest.fixture(scope="module", params=[2, 3], ids=["circle", "sphere"])
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("result")
    case = folder / "case.toml"
    case.write_text(CIRCLE if request.param == 2 else SPHERE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched, coarse_views():
        patched.setenv("MEANFIELD_PDE_THREADS", "1")
        leave_figures_empty(patched)
        with pytest.raises(SystemExit) as ended:
            cli.main(["run", str(case), "--output", str(folder / "out"), "--quiet"])
    assert not ended.value.code
    return folder / "out"


FIGURES = {"figures/density.png", "figures/history.png"}


def test_files(result: Path) -> None:
    saved = len(read_result(result).times)
    fields = {f"fields/density{i:06d}.vtu" for i in range(saved)} | {"fields/density.pvd"}
    figures = FIGURES | ({"figures/views.png"} if read_result(result).dimension == 3 else set())
    assert files(result) == TOP - {"fields", "figures"} | fields | figures


def test_history(result: Path) -> None:
    """Columns of the contract in their order, a row for each saved time, every digit."""
    read = read_result(result)
    with (result / "history.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == COLUMNS[read.dimension].split()
    assert [float(row[0]) for row in rows] == read.times.tolist()
    for row in rows:
        assert row[1] == str(int(row[1]))
        for text in row[:1] + row[2:]:
            assert repr(float(text)) == text
    np.testing.assert_array_equal(read.history["mass"], read.masses.sum(axis=1))
    np.testing.assert_array_equal(read.history["max_density"], read.density.max(axis=1))
    expected = np.arange(0, 5.5, 0.5) if read.dimension == 2 else [0.0, 1.0, 5.0]
    np.testing.assert_array_equal(read.times, expected)


def test_density(result: Path) -> None:
    with h5py.File(result / "density.h5") as file:
        data = {name: file[name][()] for name in file}
        assert file.attrs["version"] == version("meanfield_pde")
        assert same_case(file.attrs["case"], (result / "case.toml").read_text())
    cells, d = data["points"].shape
    assert data["volumes"].shape == data["spread"].shape == (cells,)
    assert data["masses"].shape == (len(data["times"]), cells)
    assert data["vertices"].shape == (cells, d, d)
    np.testing.assert_allclose(np.linalg.norm(data["points"], axis=1), 1, rtol=1e-15)
    np.testing.assert_allclose(data["volumes"].sum(), 2 * np.pi * (1 if d == 2 else 2), rtol=1e-13)
    np.testing.assert_allclose(data["masses"].sum(axis=1), 1, rtol=1e-13)
    assert (data["masses"] > 0).all()


def test_pvd(result: Path) -> None:
    """What ParaView shows is what density.h5 holds, bit for bit."""
    read = read_result(result)
    entries = ET.parse(result / "fields/density.pvd").findall("Collection/DataSet")
    assert [float(one.attrib["timestep"]) for one in entries] == read.times.tolist()
    with h5py.File(result / "density.h5") as file:
        vertices = file["vertices"][()]
    for entry, density in zip(entries, read.density, strict=True):
        arrays = vtu_arrays(result / "fields" / entry.attrib["file"])
        np.testing.assert_array_equal(arrays["density"], density)
    cells, d = read.points.shape
    corners = arrays["Points"].reshape(-1, 3)[arrays["connectivity"].reshape(cells, d), :d]
    np.testing.assert_array_equal(np.sort(corners, axis=1), np.sort(vertices, axis=1))
    np.testing.assert_array_equal(arrays["offsets"], d * np.arange(1, cells + 1))
    assert set(arrays["types"]) == {3 if d == 2 else 5}
    if d == 3:  # seen from outside, the corners of every triangle run counterclockwise
        assert (np.linalg.det(corners) > 0).all()


def test_summary(result: Path) -> None:
    summary = json.loads((result / "summary.json").read_text())
    read = read_result(result)
    assert summary["time"] == 5.0
    assert summary["steps"] == read.history["step"][-1]
    assert summary["cells"] == len(read.points)
    assert (summary["ranks"], summary["threads_per_rank"]) == (1, 1)
    assert summary["mass_drift"] < 1e-13
    assert 0 < summary["wall_time_seconds"] < 120
    parts = summary["seconds"]
    assert set(parts) == {"steps", "distances", "output"}
    assert min(parts["steps"], parts["output"]) > 0
    assert sum(parts.values()) == pytest.approx(summary["wall_time_seconds"])
    assert {"meanfield_pde", "petsc", "dolfinx"} <= set(summary["versions"])


def test_case_runs_again_to_the_same_result(
    result: Path, main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main("run", result / "case.toml", "--output", "again", "--quiet") == (0, "")
    one, other = read_result(result), read_result(tmp_path / "again")
    np.testing.assert_array_equal(one.masses, other.masses)
    assert (result / "history.csv").read_bytes() == (tmp_path / "again/history.csv").read_bytes()
    text = (tmp_path / "again/case.toml").read_text()
    assert same_case(text, (result / "case.toml").read_text())
    document = tomllib.loads(text)
    assert document["solver"] == {
        "scheme": "auto",
        "tolerance": 1e-10,
        "log_masses": "auto",
        "step_tolerance": 1e-3,
    }
    assert document["output"] == {"directory": "again", "fields": "pvd", "checkpoint_every": 100}


@pytest.mark.parametrize("text", [CIRCLE, SPHERE], ids=["circle", "sphere"])
def test_xdmf(text: str, main: Main, write_case: Write, tmp_path: Path) -> None:
    case = write_case(text + '[output]\nfields = "xdmf"\n')
    assert main("run", case, "--until", 1, "--output", tmp_path / "out")[0] == 0
    read = read_result(tmp_path / "out")
    grids = ET.parse(tmp_path / "out/fields/density.xdmf").findall("Domain/Grid/Grid")
    assert [float(grid.findall("Time")[0].attrib["Value"]) for grid in grids] == read.times.tolist()
    for grid, density in zip(grids, read.density, strict=True):
        for item in grid.iter("DataItem"):
            name, _, dataset = (item.text or "").partition(":")
            with h5py.File(tmp_path / "out/fields" / name) as file:
                values = file[dataset][()]
            assert list(map(int, item.attrib["Dimensions"].split())) == list(values.shape)
            assert int(item.attrib["Precision"]) == values.dtype.itemsize
        np.testing.assert_array_equal(values, density.astype(np.float32))


@pytest.mark.draws
def test_without_fields_and_checkpoints(main: Main, write_case: Write, tmp_path: Path) -> None:
    case = write_case(CIRCLE + '[output]\nfields = "none"\ncheckpoint_every = 0\n')
    assert main("run", case, "--until", 1, "--output", tmp_path / "out")[0] == 0
    left = {"case.toml", "history.csv", "moments.csv", "density.h5", "summary.json"} | FIGURES
    assert files(tmp_path / "out") == left


def test_folder_of_another_case(main: Main, write_case: Write, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = ("--until", 0.1, "--output", out)
    case, other = write_case(CIRCLE), write_case(CIRCLE, ("40.0", "41.0"), name="other.toml")
    assert main("run", case, *run)[0] == 0
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    code, err = main("run", other, *run)
    assert code == 2
    assert err.count("\n") == 1
    for part in (str(out), "differs in attention.beta;", "--overwrite"):
        assert part in err
    code, err = main("run", other, *run, "--resume")
    assert (code, err.count("\n"), "another case" in err) == (2, 1, True)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    (out / "mine.txt").write_text("kept")
    (out / "fields/density000099.vtu").write_text("of an older run")
    left = out / ".density.meanfield_pde-tmp-123.h5"
    left.write_text("left by a run that was killed")
    assert main("run", other, *run, "--overwrite")[0] == 0
    assert "beta = 41.0" in (out / "case.toml").read_text()
    assert (out / "mine.txt").exists()
    assert not (out / "fields/density000099.vtu").exists()
    assert not left.exists()


def test_nothing_but_results_is_replaced(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case = write_case(CIRCLE, name="case.toml")
    code, err = main("run", case, "--output", ".", "--overwrite")
    assert (code, err.count("\n"), "the case file" in err) == (2, 1, True)
    assert case.read_text() == CIRCLE
    (tmp_path / "work/figures").mkdir(parents=True)
    code, err = main("run", case, "--output", "work", "--overwrite")
    assert (code, err.count("\n"), "not a result folder" in err) == (2, 1, True)
    assert (tmp_path / "work/figures").exists()


def test_a_run_that_goes_on_has_no_conclusion_yet(tmp_path: Path) -> None:
    for resume in (True, False):
        (tmp_path / "summary.json").touch()
        claim_folder(tmp_path, CIRCLE, RUN_FIGURES, resume=resume)
        assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize(
    ("name", "text"), [("case.toml", "x["), ("history.csv", ""), ("density.h5", "x")]
)
def test_damaged_result(
    name: str, text: str, main: Main, write_case: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main("run", write_case(CIRCLE), "--until", 0, "--output", out)[0] == 0
    (out / name).write_text(text)
    code, err = main("plot", out)
    assert (code, err.count("\n"), str(out / name) in err) == (2, 1, True)
    with pytest.raises(InputError, match="not a readable"):
        read_result(out)


def test_results_that_do_not_fit_together(main: Main, write_case: Write, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main("run", write_case(CIRCLE), "--until", 0, "--output", out)[0] == 0
    history = out / "history.csv"
    text = history.read_text()
    history.write_text(text.splitlines()[0] + "\n")
    with pytest.raises(InputError, match="fewer rows than"):
        read_result(out)
    history.write_text(text)
    for name, wrong, message in (
        ("volumes", np.ones(3), "numbers for each cell"),
        ("times", 0.0, "not a readable density file"),
    ):
        with h5py.File(out / "density.h5", "a") as file:
            right = file[name][()]
            del file[name]
            file[name] = wrong
        add_checksums(out / "density.h5")
        with pytest.raises(InputError, match=message):
            read_result(out)
        with h5py.File(out / "density.h5", "a") as file:
            del file[name]
            file[name] = right
        add_checksums(out / "density.h5")


def assert_readable(folder: Path) -> int:
    """Every file is whole; how many there are. Temporary files have names with a dot."""
    count = 0
    for path in folder.rglob("*"):
        if path.is_dir() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        count += 1
        match path.suffix:
            case ".h5":
                with h5py.File(path) as file:
                    file.visititems(lambda _, one: isinstance(one, h5py.Group) or one[()])
            case ".csv":
                with path.open(newline="") as lines:
                    assert len({len(row) for row in csv.reader(lines)}) == 1
            case ".json":
                json.loads(path.read_text())
            case ".toml":
                tomllib.loads(path.read_text())
            case ".vtu":
                vtu_arrays(path)
            case ".pvd":
                for entry in ET.parse(path).iter("DataSet"):
                    assert (path.parent / entry.attrib["file"]).exists()
            case ".png":
                imread(path)
            case ".journal":
                assert len(FileStore.open(path.with_suffix(".h5")).all()) > 0
            case _:
                pytest.fail(f"unexpected file {path}")
    return count


@pytest.mark.slow
def test_killed_at_any_time(main: Main, write_case: Write, tmp_path: Path) -> None:
    """In one folder again and again, so that the removal of the run before is hit as well."""
    case = write_case(
        CIRCLE + "[output]\ncheckpoint_every = 1\n",
        ("save_every = 0.5", "save_every = 0.05"),
        ("until = 5.0", "until = 40.0"),
    )
    out = tmp_path / "out"
    # What is compiled at first use must not count as time to be killed at.
    assert main("run", case, "--until", 0.1, "--quiet", "--output", tmp_path / "first") == (0, "")
    random.seed(1)
    counts = []
    for _ in range(5):
        line = ["meanfield-pde", "run", str(case), "--output", str(out), "--quiet", "--overwrite"]
        process = subprocess.Popen(line, env=environment())
        limit = time.monotonic() + 60
        begun = out.stat().st_mtime_ns if out.exists() else 0
        while (not out.exists() or out.stat().st_mtime_ns == begun) and time.monotonic() < limit:
            time.sleep(0.005)
        time.sleep(random.uniform(0.0, 1.0))
        process.kill()
        assert process.wait() == -9
        counts.append(assert_readable(out))
    assert len({*counts}) > 1
    assert min(counts) > 0
