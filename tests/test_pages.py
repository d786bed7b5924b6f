"""README and the pages in demos/: code that runs, commands that exist, links to files."""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meanfield_pde import Layers, read_case
from meanfield_pde.attention.heads import Heads
from meanfield_pde.cli.main import build_parser
from tests.conftest import Main, Write
from tests.problems import CIRCLE

ROOT = Path(__file__).parents[1]
DEMOS = ROOT / "demos"
PAGES = {
    path.relative_to(ROOT).as_posix().removeprefix("demos/"): path
    for path in (ROOT / "README.md", *sorted(DEMOS.rglob("*.md")))
    if "results" not in path.relative_to(ROOT).parts
}
COMMANDS, CASE = "reference/commands.md", "reference/case.md"
TUTORIALS = ["first_steps", "own_case", "read_results", "particle_code"]
LONGEST_README = 150


def text_of(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").splitlines()) <= LONGEST_README


def test_every_demo_stands_in_the_site() -> None:
    """Pages that do not are found by Sphinx, for which that is a warning."""
    listed = set(re.findall(r"^(\w+)$", text_of("index.md") + text_of("scripts.md"), re.MULTILINE))
    assert {path.stem for path in DEMOS.glob("*.py")} <= listed


def anchors_of(path: Path) -> set[str]:
    """Anchors of headings, as GitHub and the site make them."""
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings_that_are_there(page: str) -> None:
    text = re.sub(r"^(```|\$\$).*?^\1$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ {4}.*$|\$[^$]*\$", "", text, flags=re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not link.startswith("https://"):
            place, _, anchor = link.partition("#")
            target = PAGES[page].parent / place if place else PAGES[page]
            assert target.exists(), link
            assert not anchor or anchor in anchors_of(target), link
    # Files that are named in the text, too.
    for name in re.findall(r"`((?:demos|tests|meshes)/[\w./-]+\.\w+)`", text):
        assert (ROOT / name).is_file(), name


def test_every_page_says_for_whom_it_is() -> None:
    """Behind its title, and behind the equation or the figure that may follow it."""
    pages = [page for page in PAGES if page not in ("README.md", "index.md")]
    texts = {page: text_of(page) for page in pages}
    texts |= {page: (DEMOS / f"{page}.py").read_text("utf-8") for page in TUTORIALS}
    assert [
        page for page, text in texts.items() if "\nFor whoever " not in without_marks(text)
    ] == []


def without_marks(text: str) -> str:
    """A script's comments as text."""
    return re.sub(r"^# ", "", text, flags=re.MULTILINE)


# What stands for a number or a sentence that is still to come, in whatever way it was noted.
UNFILLED = re.compile(
    r"@\w+@|\b(?:TBD|TODO|FIXME|XXX|TKTK)\b|\?\?|\{\{|<(?:number|value|time|fill)\b|\blorem ipsum\b"
    r"|^\|.*\|\s*(?:\?|_+|\.\.\.|…)\s*\|",
    re.IGNORECASE | re.MULTILINE,
)


@pytest.mark.parametrize("page", PAGES)
def test_no_place_of_a_page_is_left_to_be_filled(page: str) -> None:
    assert [match.group() for match in UNFILLED.finditer(text_of(page))] == []


@pytest.mark.parametrize(
    "text", ["| 1,280 | @N@ | 20.9 |", "takes TBD seconds", "| 12 | ? | 3 |", "(W1 = ??)", "a TODO"]
)
def test_places_to_be_filled_are_found(text: str) -> None:
    assert UNFILLED.search(text)


def known_options() -> dict[str, set[str]]:
    """The options of every command."""
    parser = build_parser()
    (commands,) = (
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    return {
        name: {option for action in sub._actions for option in action.option_strings}
        for name, sub in commands.choices.items()
    }


def test_commands_and_options_of_the_pages_exist() -> None:
    known = known_options()
    found = set()
    for page in PAGES:
        for line in re.findall(r"meanfield-pde ([a-z][^`\n]*)", text_of(page)):
            name = line.split()[0].rstrip(":;,.)")
            if name not in known:
                assert name in ("and", "is", "pip"), (page, line)  # the last after `conda run -n`
                continue
            found.add(name)
            options = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", line.split("    ")[0]))
            assert options <= known[name], (page, line)
    # Every command, with all its options, stands on the page of commands.
    listed = text_of(COMMANDS)
    assert found == set(known)
    for name in known:
        assert f"    meanfield-pde {name}" in listed, name


def test_the_python_of_the_readme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As printed, but for the size of the mesh."""
    monkeypatch.chdir(tmp_path)
    (solving,) = blocks("README.md", "python")
    exec(solving.replace("circle_mesh(800)", "circle_mesh(100)"), {})


def test_the_python_of_the_result_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, main: Main, write_case: Write
) -> None:
    monkeypatch.chdir(tmp_path)
    for change in ((), (("cells = 200", "cells = 40\n[adapt]\ntolerance = 1e-2"),)):
        case = write_case(CIRCLE, *change)
        arguments = ("--until", 1, "--quiet", "--overwrite", "--output", "results/mine")
        assert main("run", case, *arguments) == (0, "")
        names: dict[str, Any] = {}
        for block in blocks("reference/files.md", "python"):
            exec(block, names)
        assert names["masses"].sum() == pytest.approx(1, abs=1e-12)
        summary = json.loads(Path("results/mine/summary.json").read_text(encoding="utf-8"))
        listed = text_of("reference/files.md").split("\n## What was concluded\n")[1]
        assert set(summary) <= set(re.findall(r"`(\w+)`", listed.split("\n## ")[0]))


def test_the_cases_of_the_pages_are_read(tmp_path: Path) -> None:
    head, case = blocks("README.md", "toml")[0], blocks(CASE, "toml")[0]
    assert tomllib.loads(head)["attention"].items() <= tomllib.loads(case)["attention"].items()
    path = tmp_path / "case.toml"
    path.write_text(case, encoding="utf-8")
    assert read_case(path).mesh.cells == 800
    heads, layers = blocks(CASE, "toml")[1:]
    matrices = np.stack([np.eye(2), 2 * np.eye(2)])
    np.savez(tmp_path / "weights.npz", query=np.eye(2), key=np.eye(2), value=matrices)
    rest = case[case.index("[mesh]") : case.index("[compare]")]
    path.write_text(heads + rest, encoding="utf-8")
    assert isinstance(read_case(path).attention, Heads)
    rest = rest.replace("until = 10.0", "until = 1.0").replace(", 1.0, 2.0]", "]")
    path.write_text(f"{layers}beta = 4.0\n{rest}", encoding="utf-8")
    assert isinstance(read_case(path).attention, Layers)


def test_shell_blocks_are_commands_for_set_up_and_for_ranks() -> None:
    run, test = blocks("README.md", "sh")
    assert run.rstrip().endswith("&& .venv/bin/meanfield-pde run demos/circle.toml")
    # What CI runs, word for word.
    assert test.rstrip().endswith("&& .venv/bin/python -m pytest -n 2")
    (ranks,) = blocks("howto/install.md", "sh")
    assert ranks == ".venv/bin/mpiexec -n 4 .venv/bin/meanfield-pde run demos/circle.toml\n"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_kind_that_is_tested_here(page: str) -> None:
    tested = {
        "README.md": {"sh", "toml", "python"},
        "explanation/architecture.md": {"python"},  # by test_doors
        "reference/case.md": {"toml"},
        "howto/install.md": {"sh"},
        "reference/files.md": {"python"},
    }
    if page.startswith("howto/"):
        tested[page] = tested.get(page, set()) | {"python", "toml"}  # by test_howto
    opened = re.findall(r"^```([^`\n]*)\n.*?^```$", text_of(page), re.DOTALL | re.MULTILINE)
    # What is in braces is Sphinx's, which executes code cells.
    assert {one for one in opened if not one.startswith("{")} <= tested.get(page, set())
