"""The page of measurements: what benchmarks printed, kept with the command that printed it."""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.benchmarks.records import ORDER, PAGE, kept, page
from tests.benchmarks.tables import Table, options, present

NAMES = [name for names in ORDER.values() for name in names]
COMMANDS = sorted(kept())


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a benchmark."""
    parser = importlib.import_module(f"tests.benchmarks.{name}").OPTIONS
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def test_the_page_is_that_of_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
    assert {command.split()[0] for command in COMMANDS} <= set(NAMES)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_kept_is_of_this_version_and_can_be_measured_again(command: str) -> None:
    entry = kept()[command]
    assert entry["version"] == version("meanfield_pde")
    rows = [line for line in entry["lines"] if line.startswith("|")]
    assert len(rows) > 2, "no table"
    name, *arguments = shlex.split(command)
    assert not parser_of(name).parse_args(arguments).keep


@pytest.mark.parametrize("name", NAMES)
def test_options_of_benchmarks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All have the common ones, and refuse what is none."""
    assert parser_of(name).parse_args(["--quick", "--keep"]).keep
    with pytest.raises(SystemExit):
        parser_of(name).parse_args(["--quik"])
    assert f"tests.benchmarks.{name}: error" in capsys.readouterr().err


def test_what_is_printed_is_kept_if_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    monkeypatch.setattr("tests.benchmarks.tables.KEPT", results)
    parser = options("cubes", "Cubes.\n")
    parser.add_argument("--of", type=int)

    def main() -> None:
        table = Table("Cubes", ["n", "cube"])
        table.row(parser.parse_args().of, parser.parse_args().of ** 3)

    for arguments in (["--of", "2"], ["--of", "3", "--keep"], ["--keep", "--of", "3"]):
        monkeypatch.setattr(sys, "argv", ["cubes", *arguments])
        present(main, parser)
    assert capsys.readouterr().out.count("### Cubes") == 3
    ((command, entry),) = json.loads(results.read_text(encoding="utf-8")).items()
    assert command == "cubes --of 3"
    assert entry["lines"][0] == "### Cubes"
    assert entry["lines"][-1].split() == ["|", "3", "|", "27", "|"]
