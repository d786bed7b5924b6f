"""What the tests of the command line share: ways to write a case file and to run commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from meanfield_pde.cli import main as cli

# `mpiexec` and `meanfield-pde` are those of the environment that runs the tests.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
# Workers that test side by side share the cores with each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("MEANFIELD_PDE_THREADS", "1")

Command = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[..., Path]
Main = Callable[..., tuple[int, str]]
JsonOf = Callable[..., dict[str, Any]]


def environment() -> dict[str, str]:
    """One thread a rank: the tests share the cores with each other."""
    return os.environ | {"MEANFIELD_PDE_THREADS": "1"}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run `meanfield-pde`, or a Python script, as a user would; on several ranks if asked for."""

    def run(
        *arguments: object, ranks: int = 1, cwd: Path = tmp_path, script: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        line = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
        line += ["meanfield-pde"] if script is None else [sys.executable, str(script)]
        return subprocess.run(
            [*line, *map(str, arguments)],
            cwd=cwd,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
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


@pytest.fixture
def main(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Main:
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
def json_of(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> JsonOf:
    """Run a command with `--json` in this process; the object that it prints."""
    monkeypatch.setenv("MEANFIELD_PDE_THREADS", "1")

    def run(*arguments: object) -> dict[str, Any]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([*map(str, arguments), "--json"])
        assert not ended.value.code
        return json.loads(capfd.readouterr().out)

    return run


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures written in this process, in their order, as matplotlib's own objects."""
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
