"""The rooms of the house: each imports only those above it, listed in demos/numerics.md.

All of it is read from the text of the modules with `ast`; nothing is imported.
"""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

HOUSE = "meanfield_pde"
ROOT = Path(__file__).parents[1]
LONGEST_MODULE, LONGEST_FUNCTION = 300, 60
# Functions that may be longer: "module.function" and why.
LONG_FOR_A_REASON = {
    "meanfield_pde.attention.sum.harmonics.sums": "one compiled loop whose buffers are shared",
}


def name_of(path: Path) -> str:
    """A module's dotted name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path for path in sorted((ROOT / HOUSE).rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}


def imported(name: str, tree: ast.Module) -> set[str]:
    """The modules of the package that a module names in its imports, wherever these stand."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}, line {node.lineno}: imports name the whole path"
            module = node.module or ""
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                found.add(inner if inner in SOURCES else module)
    return {module for module in found if module in SOURCES and module != name}


IMPORTS = {name: imported(name, tree) for name, tree in TREES.items()}


def room_of(module: str) -> str:
    """A folder of the house, or a module that stands in no folder; "" is the house itself."""
    return [*module.split("."), ""][1]


def rooms() -> dict[str, set[str]]:
    """The rooms that each room imports; the front door, which re-exports, is none of them."""
    found: dict[str, set[str]] = {room_of(name): set() for name in SOURCES if room_of(name)}
    for name, modules in IMPORTS.items():
        if room_of(name):
            found[room_of(name)] |= {room_of(module) for module in modules} - {room_of(name)}
    return found


def listed() -> dict[str, str]:
    """The list in demos/numerics.md: what each room is for, in the order given there."""
    text = (ROOT / "demos/numerics.md").read_text(encoding="utf-8")
    section = text.split("\n## Rooms of the house\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^ {4}(\w+) {2,}(\S.*)$", section, re.MULTILINE))


def assert_no_cycle(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("a cycle of imports: " + " <- ".join(error.args[1]))


def test_no_cycle_between_rooms() -> None:
    assert_no_cycle(rooms())


def test_no_cycle_between_modules() -> None:
    assert_no_cycle(IMPORTS)


def test_each_room_imports_only_rooms_listed_above_it() -> None:
    order = list(listed())
    assert sorted(order) == sorted(rooms()), "the list has to have every room, and no other"
    back_edges = [
        f"{name} imports {module}"
        for name, modules in IMPORTS.items()
        for module in sorted(modules)
        if room_of(name) and room_of(module) not in order[: order.index(room_of(name)) + 1]
    ]
    assert back_edges == []


def test_the_list_says_what_each_room_says_itself() -> None:
    for room, purpose in listed().items():
        lines = (ast.get_docstring(TREES[f"{HOUSE}.{room}"]) or "").splitlines()
        assert purpose == lines[0], room
        if SOURCES[f"{HOUSE}.{room}"].name == "__init__.py":
            assert len(lines) > 2, f"{room}: what comes in, and what goes out?"


def test_inside_the_house_modules_are_imported_from_where_they_stand() -> None:
    by_the_front_door = [name for name, modules in IMPORTS.items() if HOUSE in modules]
    assert by_the_front_door == []


def test_no_module_is_long() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in SOURCES.items()}
    assert {name: count for name, count in lines.items() if count > LONGEST_MODULE} == {}


def test_no_function_is_long_but_for_a_reason() -> None:
    long = {
        f"{name}.{node.name}": node.end_lineno - node.lineno + 1
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    }
    assert {name: count for name, count in long.items() if name not in LONG_FOR_A_REASON} == {}
    assert set(LONG_FOR_A_REASON) <= set(long), "an exception that is no longer needed"


def test_tests_share_problems_and_oracles_and_nothing_else() -> None:
    """What two tests need stands in `problems` or `oracles`; types of fixtures in `conftest`.

    The short form of a benchmark is a test that takes it from there.
    """
    shared = {"tests", "tests.problems", "tests.oracles", "tests.conftest", "tests.reference_links"}
    shared |= {"tests.benchmarks.fuzz", "tests.benchmarks.kills", "tests.benchmarks.wasserstein"}
    shared |= {"tests.benchmarks.planted", "tests.benchmarks.exact_distance"}
    shared |= {"tests.benchmarks.characteristics", "tests.benchmarks.moving_arcs"}
    shared |= {"tests.benchmarks.adaptivity"}
    wrong = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tests":
                names = {node.module, *(f"tests.{alias.name}" for alias in node.names)}
                if node.module not in shared or (node.module == "tests" and not names <= shared):
                    wrong.append(f"{path.relative_to(ROOT)}: {node.module}")
    assert wrong == []


def test_oracles_do_not_import_what_they_check() -> None:
    text = (ROOT / "tests/oracles.py").read_text(encoding="utf-8")
    assert not re.search(rf"^\s*(from|import) {HOUSE}", text, re.MULTILINE)
