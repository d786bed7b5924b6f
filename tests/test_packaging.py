"""What is installed: the same packages by pip and conda, one version, and cases to begin with."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from meanfield_pde import read_case
from meanfield_pde.case.starter import starter_names
from tests.conftest import Command, Main

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What pip takes from PyPI under one name and conda from conda-forge under another.
CONDA = {"matplotlib": "matplotlib-base", "tomli-w": "tomli-w"}


def conda() -> dict[str, str]:
    """The packages of environment.yml and what is asked of their versions."""
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    return dict(re.findall(r"^  - ([\w-]+)((?:[<>=]=?.*)?)$", text, re.MULTILINE))


def requirements(lines: list[str]) -> dict[str, str]:
    """The names of pip's requirements and what is asked of their versions."""
    return dict(re.findall(r"^([\w-]+)(.*)$", "\n".join(lines), re.MULTILINE))


def test_conda_installs_what_pip_installs() -> None:
    environment = conda()
    for name, bound in requirements(PROJECT["dependencies"]).items():
        assert environment[CONDA.get(name, name)] == bound, name
    assert environment["python"] == PROJECT["requires-python"].replace(">=", "=")
    (wheel,) = PROJECT["optional-dependencies"]["fenicsx"]
    version = re.fullmatch(r"dolfinx-solver-real==(\d+\.\d+)\..*", wheel)
    assert version
    assert environment["fenics-dolfinx"] == f"={version[1]}"
    # Tests that need nothing from PyPI alone.
    test = requirements(PROJECT["optional-dependencies"]["test"])
    for name in ("pytest", "pytest-timeout", "pytest-xdist"):
        assert environment[name] == test[name]


def test_the_version_is_printed(command: Command) -> None:
    ended = command("--version", ranks=2)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"{version('meanfield_pde')}\n"


def test_one_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {PROJECT['version']}\n" in citation
    changes = (ROOT / "demos/CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", changes, re.MULTILINE)[0] == PROJECT["version"]


@pytest.mark.parametrize("name", starter_names())
def test_a_starter_is_the_demo_of_its_name(name: str, main: Main, tmp_path: Path) -> None:
    assert (ROOT / f"meanfield_pde/case/starters/{name}.toml").read_bytes() == (
        ROOT / f"demos/{name}.toml"
    ).read_bytes(), f"cp demos/{name}.toml meanfield_pde/case/starters/"


def test_demo_writes_a_case_that_runs(
    command: Command, main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command("demo", ranks=2)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines() == ["circle.toml: run it with meanfield-pde run circle.toml"]
    assert read_case(tmp_path / "circle.toml").dimension == 2
    assert main("run", "circle.toml", "--until", 0.1, "--quiet") == (0, "")
    for name, said in (("circle", "circle.toml: is there already"), ("spher", "mean 'sphere'?")):
        code, err = main("demo", name)
        assert (code, said in err) == (2, True), err
