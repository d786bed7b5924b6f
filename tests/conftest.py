"""What the tests of the command line share: ways to write a case file and to run commands."""

from __future__ import annotations

import gc
import importlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from meanfield_pde.cli import main as cli
from tests.together import note_passed, ranks_of, run_with_others, wait_for_others

if TYPE_CHECKING:  # ranks of tests with several import this file, too
    from matplotlib.figure import Figure

# `mpiexec` and `meanfield-pde` are those of the environment that runs the tests.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
# Workers that test side by side share the cores with each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("MEANFIELD_PDE_THREADS", "1")
# Nor are there cores for all ranks, and MPICH has those that wait poll 1000 times before they let
# another run: two ranks that give the fluxes of one took 23 s of a core at load 5, and take 8.5 s.
os.environ.setdefault("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")
# Results of tests need not outlive the machine: a run waits 30 times for the disk, 5 ms each on an
# idle one. Processes that tests start wait, as those of users do.
os.fsync = lambda handle: None
# Processes that tests start share bytecode, beside which they share kernels: 0.2 s of 1.3 s each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

Command = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[..., Path]
Main = Callable[..., tuple[int, str]]
Printed = Callable[..., str]
JsonOf = Callable[..., dict[str, Any]]


def environment() -> dict[str, str]:
    """One thread a rank: the tests share the cores with each other."""
    return os.environ | {"MEANFIELD_PDE_THREADS": "1"}


def pytest_configure(config: pytest.Config) -> None:
    """Have the session on several ranks choose tests as this one does: slow ones, say."""
    chosen = f"-m {shlex.quote(config.option.markexpr)}"
    os.environ["PYTEST_ADDOPTS"] = f"{os.environ.get('PYTEST_ADDOPTS', '')} {chosen}".strip()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among what is made while tests are collected, then or later.

    A million objects, all of which stay: it takes 2.6 s of 8.6 s of each worker, and later 0.7 s
    each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests on several ranks to the end, where kernels are there.

    While one rank compiles the others wait at full speed: 4 s of a core in a fresh clone.
    """
    items.sort(key=ranks_of)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note for the session that has started them what has passed on several ranks."""
    note_passed(report)


@pytest.fixture(autouse=True)
def together(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[None, None, None]:
    """Run all tests on as many ranks in one start of mpiexec, one after another on all of them."""
    folder = tmp_path_factory.getbasetemp()
    run_with_others(request.node, folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
    yield
    wait_for_others()


def draws(request: pytest.FixtureRequest) -> bool:
    """Whether runs that a test starts have to draw their figures."""
    return request.node.get_closest_marker("draws") is not None


@pytest.fixture
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Command:
    """Run `meanfield-pde`, or a Python script, as a user would; on several ranks if asked for."""

    def run(
        *arguments: object,
        ranks: int = 1,
        cwd: Path = tmp_path,
        script: Path | None = None,
        timeout: int = 120,
    ) -> subprocess.CompletedProcess[str]:
        line = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
        line += ["meanfield-pde"] if script is None else [sys.executable, str(script)]
        if arguments[:1] == ("run",) and not draws(request):
            arguments = ("run", "--no-figures", *arguments[1:])  # they take longer than most runs
        return subprocess.run(
            [*line, *map(str, arguments)],
            cwd=cwd,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def write_case(tmp_path: Path) -> Write:
    """Write a case file, with replacements that must apply."""

    def write(text: str, *changes: tuple[str, str], name: str = "some-case.toml") -> Path:
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@contextmanager
def coarse_views() -> Generator[None, None, None]:
    """Draw views of the sphere by few pixels: log rho is reconstructed at each of them."""
    from meanfield_pde.figures import views

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(views, "PIXELS", 60)
        views._disc.cache_clear()
        yield
    views._disc.cache_clear()


def leave_figures_empty(patched: pytest.MonkeyPatch) -> None:
    """Have files of figures be empty: matplotlib's objects are made, but not laid out and painted.

    That took a quarter of the time of this process.
    """
    from matplotlib.figure import Figure

    write = Figure.savefig

    def savefig(figure: Figure, target: object, **options: object) -> None:
        if isinstance(target, Path):
            target.touch()
        else:  # a frame of an animation, in memory
            write(figure, target, **options)

    patched.setattr(Figure, "savefig", savefig)


@pytest.fixture
def unrendered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files of figures be empty, but not in tests that look at them, marked `painted`."""
    if not request.node.get_closest_marker("painted"):
        leave_figures_empty(monkeypatch)


@pytest.fixture
def undrawn(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, unrendered: None
) -> Generator[None, None, None]:
    """Have runs in this process leave out their figures, except in tests marked `draws`.

    Where they are drawn, views of the sphere are coarse, and if figures are named, no others are
    drawn: with its panels the history takes 0.3 s.
    """
    importlib.import_module("meanfield_pde.experiments.redraw")  # with what `plot` draws by
    from meanfield_pde.experiments import run

    marker = request.node.get_closest_marker("draws")
    if marker is None:
        monkeypatch.setattr(run, "draw_run", lambda *arguments: [])
    elif marker.args:
        for name in run.RUN_FIGURES.keys() - set(marker.args):
            monkeypatch.setitem(run.RUN_FIGURES, name, lambda what: None)
    with coarse_views():
        yield


@pytest.fixture
def main(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, undrawn: None) -> Main:
    """Run a command in this process; its exit code, and what it wrote to standard error."""
    monkeypatch.setenv("MEANFIELD_PDE_THREADS", "1")

    def run(*arguments: object) -> tuple[int, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code, capfd.readouterr().err

    return run


@pytest.fixture
def printed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, undrawn: None
) -> Printed:
    """Run a command in this process that succeeds; what it wrote to standard output."""
    monkeypatch.setenv("MEANFIELD_PDE_THREADS", "1")

    def run(*arguments: object) -> str:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        assert not ended.value.code
        return capfd.readouterr().out

    return run


@pytest.fixture
def json_of(printed: Printed) -> JsonOf:
    """Run a command with `--json` in this process; the object that it prints."""
    return lambda *arguments: json.loads(printed(*arguments, "--json"))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, unrendered: None) -> list[Figure]:
    """The figures written in this process, in their order, as matplotlib's own objects."""
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    write = Figure.savefig

    def savefig(figure: Figure, *arguments: object, **options: object) -> None:
        write(figure, *arguments, **options)
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


def curves(figure: Figure, panel: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The labelled curves of a panel; each has a point at least that can be seen."""
    axes = figure.axes[panel]
    (left, right), (bottom, top) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    found = {}
    for line in axes.get_lines():
        label = str(line.get_label())
        x, y = (np.asarray(values, dtype=float) for values in line.get_data(orig=False))
        if label.startswith("_") or not len(x):
            continue
        if line.get_transform() == axes.transData:  # a line across the panel has other units
            seen = (x >= left) & (x <= right) & (y >= bottom) & (y <= top)
            assert seen.any(), f"{label} lies outside its panel"
        found[label] = x, y
    return found
