"""The how-to pages: short, their cases are read, and their Python and their commands run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from meanfield_pde import read_case
from tests.conftest import Main, Write

PAGES = sorted((Path(__file__).parents[1] / "demos" / "howto").glob("*.md"))
LONGEST = 40
# Of what they are part of. Sections that a page has take the place of these.
CASE = """
[attention]
query = [[1.0, 0.0], [0.0, 1.0]]
key   = [[1.0, 0.0], [0.0, 1.0]]
value = [[1.0, 0.0], [0.0, 0.3]]
beta  = 20.0

[mesh]
kind = "circle"
cells = 100

[initial]
kind = "expression"
density = "1 + 0.5*x + 0.3*y"

[time]
until = 1.0
"""
# Commands that need a cluster, other ranks, or minutes.
NOT_RUN = re.compile(r"mpiexec|sweep|lifetime|transition|sphere|demos/|--interactive|-log_view")


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def with_sections(fragment: str) -> str:
    """The case, with the sections of a fragment in the place of its own."""
    case = CASE
    for name in set(re.findall(r"^\[+(\w+)", fragment, re.MULTILINE)):
        case = re.sub(rf"^\[{name}\].*?(?=^\[|\Z)", "", case, flags=re.DOTALL | re.MULTILINE)
    return f"{case}\n{fragment}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short_says_for_whom_it_is_and_its_cases_are_read(
    page: Path, tmp_path: Path, write_case: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    assert text.split("\n\n")[1].startswith("For whoever ")
    matrices = np.stack([np.eye(2), 2 * np.eye(2)])
    np.savez("weights.npz", query=np.eye(2), key=np.eye(2), value=matrices)
    for fragment in blocks(page, "toml"):
        assert read_case(write_case(with_sections(fragment))).dimension == 2


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_tells_to_run_runs(
    page: Path, tmp_path: Path, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEANFIELD_PDE_THREADS", "1")
    mpl.use("Agg")
    Path("case.toml").write_text(CASE, encoding="utf-8")
    np.savez("points.npz", points=np.eye(2))
    assert main("run", "case.toml", "--until", 1, "--quiet", "--output", "results/mine")[0] == 0
    names: dict[str, object] = {}
    for code in blocks(page, "python"):
        exec(code, names)
    for line in re.findall(r"^ {4}meanfield-pde (.*)$", page.read_text("utf-8"), re.MULTILINE):
        if not NOT_RUN.search(line):
            extra = ["--overwrite"] if line.startswith("run") else []
            words = shlex.split(line)
            code, message = main(*words[:2], *extra, *words[2:])
            assert code in (0, 3), (line, message)
