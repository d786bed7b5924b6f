"""The packages: each imports only those above it in the list of the page on the architecture.

All of it is read from the text of the modules with `ast`; nothing is imported.
"""

from __future__ import annotations

import ast
import functools
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "meanfield_pde"
ROOT = Path(__file__).parents[1]
# Decorators of functions that numba compiles, which carry no types.
COMPILED = {"kernel", "part", "intrinsic"}


def name_of(path: Path) -> str:
    """A module's dotted name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The syntax of all modules; 0.5 s, which workers that collect these tests do not take."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}


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


@functools.cache
def imports() -> dict[str, set[str]]:
    """The modules of the package that each of its modules imports."""
    return {name: imported(name, tree) for name, tree in trees().items()}


def package_of(module: str) -> str:
    """A subpackage, or a module that stands in none; "" is `meanfield_pde` itself."""
    return [*module.split("."), ""][1]


def packages() -> dict[str, set[str]]:
    """The packages that each imports; `meanfield_pde` itself, which re-exports, is none of them."""
    found: dict[str, set[str]] = {package_of(name): set() for name in SOURCES if package_of(name)}
    for name, modules in imports().items():
        if package_of(name):
            found[package_of(name)] |= {package_of(module) for module in modules} - {
                package_of(name)
            }
    return found


def listed() -> dict[str, str]:
    """The list on the page: what each package is for, in the order given there."""
    text = (ROOT / "demos/explanation/architecture.md").read_text(encoding="utf-8")
    section = text.split("\n## Packages\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^ {4}(\w+) {2,}(\S.*)$", section, re.MULTILINE))


def assert_no_cycle(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("a cycle of imports: " + " <- ".join(error.args[1]))


def test_no_cycle_between_packages() -> None:
    assert_no_cycle(packages())


def test_no_cycle_between_modules() -> None:
    assert_no_cycle(imports())


def test_each_package_imports_only_packages_listed_above_it() -> None:
    order = list(listed())
    assert sorted(order) == sorted(packages()), "the list has to have every package, and no other"
    back_edges = [
        f"{name} imports {module}"
        for name, modules in imports().items()
        for module in sorted(modules)
        if package_of(name) and package_of(module) not in order[: order.index(package_of(name)) + 1]
    ]
    assert back_edges == []


def test_the_list_says_what_each_package_says_itself() -> None:
    for package, purpose in listed().items():
        lines = (ast.get_docstring(trees()[f"{PACKAGE}.{package}"]) or "").splitlines()
        assert purpose == lines[0], package
        if SOURCES[f"{PACKAGE}.{package}"].name == "__init__.py":
            assert len(lines) > 2, f"{package}: what comes in, and what goes out?"


def test_modules_are_imported_from_where_they_stand() -> None:
    by_re_export = [name for name, modules in imports().items() if PACKAGE in modules]
    assert by_re_export == []


def untyped(node: ast.AST) -> list[str]:
    """The functions below a node that lack types and are not compiled, with their lines."""
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = (getattr(one, "func", one) for one in child.decorator_list)
            if COMPILED & {getattr(one, "id", None) for one in decorators}:
                continue
            if child.returns is None:
                found.append(f"{child.name}, line {child.lineno}")
        found += untyped(child)
    return found


def test_only_compiled_functions_have_no_types() -> None:
    """One setting of mypy, in pyproject.toml, accepts functions without any types."""
    assert {name: untyped(tree) for name, tree in trees().items() if untyped(tree)} == {}


def test_tests_share_problems_and_oracles_and_nothing_else() -> None:
    """What two tests need stands in `problems` or `oracles`; types of fixtures in `conftest`.

    The short form of a benchmark is a test that takes it from there.
    """
    shared = {"tests", "tests.problems", "tests.oracles", "tests.conftest", "tests.site_links"}
    shared |= {"tests.benchmarks.fuzz", "tests.benchmarks.kills", "tests.benchmarks.wasserstein"}
    shared |= {"tests.benchmarks.planted", "tests.benchmarks.exact_distance"}
    shared |= {"tests.benchmarks.characteristics", "tests.benchmarks.moving_arcs"}
    shared |= {"tests.benchmarks.adaptivity", "tests.benchmarks.damage"}
    shared |= {"tests.benchmarks.intervals", "tests.benchmarks.records", "tests.benchmarks.tables"}
    shared |= {"tests.benchmarks", "tests.benchmarks.growth", "tests.benchmarks.memory"}
    shared |= {"tests.benchmarks.hostile", "tests.benchmarks.sums", "tests.benchmarks.tails"}
    shared |= {"tests.benchmarks.moving_triangles", "tests.benchmarks.cubic_triangles"}
    shared |= {"tests.benchmarks.softmax_moments", "tests.benchmarks.triangle_mesh"}
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
    assert not re.search(rf"^\s*(from|import) {PACKAGE}", text, re.MULTILINE)
