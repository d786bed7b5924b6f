"""The page of measurements, made of what is kept: `python -m tests.benchmarks.records`.

`python -m tests.benchmarks.NAME --keep` puts what it prints into `demos/records/results.json`, one
entry a command. The page has each benchmark's own description, and below it what is kept of it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.tables import KEPT

HERE = Path(__file__).parent
PAGE = KEPT.parents[1] / "measurements.md"
ORDER = {
    "How accurate": ("adaptivity", "exact_solutions", "intervals", "sums", "tails"),
    "Lifetimes": ("lifetimes", "moving_triangles"),
    "How fast": (
        "beside",
        "time_to_accuracy",
        "public_solvers",
        "attention",
        "million",
        "ways",
        "step",
        "noise",
        "wasserstein",
        "first_start",
        "saved_times",
        "dry_run",
    ),
    "Among ranks": ("ranks", "growth", "memory"),
    "Particle codes": ("verification", "agreement"),
    "What is done to it": (
        "kills",
        "fuzz",
        "hostile",
        "damage",
        "early_signals",
        "disk",
        "mutants",
    ),
}
HEAD = """# Measurements

For whoever wants to know how fast and how accurate. Each table is what the command above it
printed, kept by its option `--keep` and put here by `python -m tests.benchmarks.records`: nothing
is typed by hand, and all of it is of version {version}. Other programs ran on the machine
meanwhile, which stretches wall times, and processor times by much less.
"""


def kept() -> dict[str, dict[str, Any]]:
    """What is kept: version, date, processor, seconds and printed lines of each command."""
    return dict(json.loads(KEPT.read_text(encoding="utf-8")))


def page() -> str:
    """The page that the kept results give."""
    found = kept()
    (version,) = {entry["version"] for entry in found.values()}
    lines = [HEAD.format(version=version).rstrip()]
    for title, names in ORDER.items():
        own = {name: [one for one in found if one.split()[0] == name] for name in names}
        lines += ["", f"## {title}"] if any(own.values()) else []
        for name, commands in own.items():
            lines += section(name, {one: found[one] for one in commands}) if commands else []
    return "\n".join(lines) + "\n"


def section(name: str, entries: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The lines of a benchmark: what it does, and each command with what it printed."""
    text = (HERE / f"{name}.py").read_text(encoding="utf-8")
    said = ast.get_docstring(ast.parse(text)) or ""
    first, _, rest = said.partition("\n")
    yield from ("", f"### {first.rstrip('.')}", *rest.rstrip().splitlines())
    for command, entry in entries.items():
        made = f"{entry['date']}, {entry['processor']}, {entry['seconds']} s"
        yield from ("", f"`python -m tests.benchmarks.{command}` ({made})", "")
        for line in entry["lines"]:
            yield "#" + line if line.startswith("### ") else line


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
