"""Mutants: small changes of the code, one at a time, and how many of them the tests notice.

    python -m tests.benchmarks.mutants [--quick] [--count 80] [--seed 0] [--number N ...]
        [--jobs 1]

Drawn from all places in `solver`, `mesh`, `wasserstein` and the attention sums, compiled functions
included, where an operator, a comparison, a number, a truth value, or one of min and max can be
another. The draw goes by digests of their lines, so that those drawn stay the same while code
changes elsewhere. Each is tried in a copy of the project with `pytest -x`, on the tests of its own
package and of those that build on it, nearest by import first. It is noticed if one fails, or does
not end in its time. Those that survive are shown as lines of code, and so are those that no result
can show, with the reason; these are not tried. An hour.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.benchmarks.tables import Table, options, present

ROOT = Path(__file__).parents[2]
# Folders of the package, and the folders of tests that they are tried on.
TRIED = {
    "solver": ("solver", "experiments"),
    "mesh": ("mesh", "amr", "solver"),
    "wasserstein": ("wasserstein", "verification"),
    "attention/sum": ("attention", "solver"),
}
# What an operator is replaced by.
OPERATORS: dict[type, tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"), ast.Mod: ("%", "*"), ast.Pow: ("**", "*"),
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
# Lines of drawn mutants that no result can show, with the reason; they are not tried.
EQUIVALENT = {
    "share = budget / 2 if k == 0 else budget / [2 -> 3] ** min(k + 2, 5)":
        "powers are given smaller parts of the budget, and so higher degrees: speed alone",
    "width = -(-(degree + 1) // 8) * [8 -> 9]":
        "columns beyond the degree, which are zero and which nobody reads: speed alone",
    "if points.shape[1] [<= -> <] 3:":
        "numpy adds up in three dimensions what compiled loops do: the same but for rounding",
    "row_first = left_a[i] [<= -> <] left_b[j]":
        "of two that are used up at once either may come first: the next arc has no mass",
    "return (masses, change) if change [<= -> <] steady else None":
        "a sum of rounded numbers that is just what was asked for",
    "if n * m [<= -> <] settings.coarsest**2:":
        "all arcs of a problem of this very size, or the best of them to begin with: speed alone",
    "_SIGMAS = np.logspace(0, -10, [21 -> 22])":
        "factors of 3.0 instead of 3.2 on the way to the same: speed alone",
    "x[j], y[j], rows[j], columns[j] = 0.0, [0.0 -> 1.0], 0.0, 0.0":
        "places without a source, whose weights are zero: any finite number will do",
    "_LOOKS = [4 -> 5]  # the last ones as a rule find nothing: a bound on the cost":
        "one more look that finds nothing: a bound on the cost",
    "return useful_threads(share [* -> /] self.estimate.chosen, self._settings.work_per_thread)":
        "how many threads share the work, on which no result depends: speed alone",
}  # fmt: skip
OTHER_NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Mutant:
    """A piece of a module's text, and what takes its place."""

    module: Path
    start: int
    stop: int
    new: str

    def text(self, text: str) -> str:
        """The text of the module with the mutant in it."""
        return text[: self.start] + self.new + text[self.stop :]

    def line(self) -> str:
        """The line, with the change in brackets."""
        text = (ROOT / self.module).read_text()
        first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", self.stop)
        change = f"[{text[self.start : self.stop]} -> {self.new}]"
        return (text[first : self.start] + change + text[self.stop : last]).strip()

    def row(self) -> int:
        """The number of the line."""
        return (ROOT / self.module).read_text().count("\n", 0, self.start) + 1


class _Places(ast.NodeVisitor):
    """All mutants of a module. Annotations, texts, decorators and imports have none."""

    def __init__(self, module: Path, text: str) -> None:
        self.module, self.text, self.found = module, text, list[Mutant]()
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._rows = text.splitlines()
        self.visit(ast.parse(text))

    def _at(self, row: int, column: int) -> int:
        # Columns are counted in bytes.
        return self._lines[row - 1] + len(self._rows[row - 1].encode()[:column].decode())

    def _start(self, node: ast.expr) -> int:
        return self._at(node.lineno, node.col_offset)

    def _stop(self, node: ast.expr) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.end_lineno, node.end_col_offset)

    def _between(self, left: ast.expr, kind: ast.AST, right: ast.expr) -> None:
        if type(kind) not in OPERATORS:
            return
        old, new = OPERATORS[type(kind)]
        first = self._stop(left)
        place = self.text.find(old, first, self._start(right))
        if place >= 0:
            self.found.append(Mutant(self.module, place, place + len(old), new))

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """An arithmetic operator."""
        self._between(node.left, node.op, node.right)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Comparisons, each by itself."""
        sides = [node.left, *node.comparators]
        for left, kind, right in zip(sides, node.ops, sides[1:], strict=False):
            self._between(left, kind, right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """The first of several."""
        self._between(node.values[0], node.op, node.values[1])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """An assignment that adds to what is there."""
        self._between(node.target, node.op, node.value)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """A number is larger by one, a truth value the other."""
        if isinstance(node.value, bool):
            new = repr(not node.value)
        elif isinstance(node.value, int | float):
            new = repr(node.value + 1)
        else:
            return
        self.found.append(Mutant(self.module, self._start(node), self._stop(node), new))

    def visit_Call(self, node: ast.Call) -> None:
        """Calls of min for max, and the other way round."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else name
        if name in OTHER_NAMES:
            stop = self._stop(node.func)
            new = OTHER_NAMES[name]
            self.found.append(Mutant(self.module, stop - len(name), stop, new))
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """The body and the defaults."""
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """The value."""
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """None: a text for people."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """None: texts for people, most of the time."""


def all_mutants() -> list[Mutant]:
    """All mutants of the packages that are looked at, in the order of the files."""
    found = []
    for package in TRIED:
        for path in sorted((ROOT / "meanfield_pde" / package).rglob("*.py")):
            found += _Places(path.relative_to(ROOT), path.read_text()).found
    return found


def drawn(seed: int, count: int) -> list[Mutant]:
    """Those with the least digests of seed, module and line; of equal lines, also which one."""
    met, digests = Counter[str](), {}
    for mutant in all_mutants():
        text = f"{seed} {mutant.module} {mutant.line()}"
        met[text] += 1
        digests[hashlib.sha256(f"{text} {met[text]}".encode()).digest()] = mutant
    return [digests[digest] for digest in sorted(digests)[:count]]


def _copy(folder: Path) -> None:
    """Put the project into a folder."""
    for name in ("meanfield_pde", "tests", "demos", "meshes"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy2(ROOT / name, folder)


def _imports(path: Path, exported: Mapping[str, str]) -> set[str]:
    """Modules of the package that a file imports, by way of what the package exports or not."""
    found = re.findall(r"^ *from (meanfield_pde[\w.]*) import (.*)", path.read_text(), re.MULTILINE)
    whole = {module for module, _ in found}
    items = {(module, item) for module, names in found for item in re.findall(r"\w+", names)}
    return whole | {exported.get(item, f"{module}.{item}") for module, item in items}


def _modules() -> dict[str, set[str]]:
    """What each module of the package imports, without what the package itself exports."""
    paths = (path.relative_to(ROOT) for path in (ROOT / "meanfield_pde").rglob("*.py"))
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    del names["meanfield_pde"]
    return {name: _imports(ROOT / path, {}) for name, path in names.items()}


def _users(module: Path) -> dict[str, int]:
    """Modules that import one, directly or not, each with how many imports away it is."""
    modules = _modules()
    found = {".".join(module.with_suffix("").parts): 0}
    for user in (waiting := list(found)):
        for name, imported in modules.items():
            if user in imported and name not in found:
                found[name] = found[user] + 1
                waiting.append(name)
    return found


def tests_of(mutant: Mutant) -> list[str]:
    """The files of tests that a mutant is tried on, those few imports away from its module first.

    Of those equally far away, those first that name it, or what it is about, more often.
    """
    inner = mutant.module.relative_to("meanfield_pde").as_posix()
    folders = next(folders for package, folders in TRIED.items() if inner.startswith(package))
    package = (ROOT / "meanfield_pde/__init__.py").read_text()
    exported = re.findall(r"^ *from (\S+) import (\w+) as", package, re.MULTILINE)
    away, words = _users(mutant.module), mutant.module.stem.split("_")

    def order(path: Path) -> tuple[int, int, Path]:
        imported = _imports(path, {item: module for module, item in exported})
        near = min((away[name] for name in imported if name in away), default=99)
        return near, -sum(path.read_text().lower().count(word) for word in words), path

    paths = [path for folder in folders for path in (ROOT / "tests" / folder).glob("test_*.py")]
    return [str(path.relative_to(ROOT)) for path in sorted(paths, key=order)]


def _keep_kernels(folder: Path, module: Path) -> None:
    """Let a copy have the compiled kernels that a mutant of a module cannot have changed."""
    script = "from meanfield_pde.support.kernels import kernel_folder; print(kernel_folder())"
    new, old = (
        Path(subprocess.check_output([sys.executable, "-c", script], cwd=root, text=True).strip())
        for root in (folder, ROOT)
    )
    changed = {name.rpartition(".")[2] for name in _users(module)}
    for package in (ROOT / "meanfield_pde").rglob("*/"):
        # Numba names folders of its cache by those of the modules.
        own = package.relative_to(ROOT)
        names = (
            f"{own.name}_{hashlib.sha1(str(root / own).encode()).hexdigest()}"
            for root in (folder, ROOT)
        )
        place, given = new / next(names), old / next(names)
        for path in given.glob("*.nb?"):
            if path.name.split(".")[0] not in changed:
                place.mkdir(exist_ok=True)
                shutil.copy2(path, place)


def failing(folder: Path, tests: Sequence[str]) -> str:
    """The first test of these files that fails in this copy, or does not end; empty if none."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-rfE"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "MEANFIELD_PDE_THREADS": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    # By a thread, which ends the process in a compiled loop, too.
    command += ["--timeout-method", "thread", "--color", "no"]
    with (folder / "printed.txt").open("w+") as printed:
        run = subprocess.Popen(
            [*command, *tests],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if run.wait() == 0:
            return ""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)  # what it has started
        printed.seek(0)
        named = re.findall(
            r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$|(Timeout)", printed.read(), re.MULTILINE
        )
        return "".join(named[-1]).removeprefix("tests/") if named else "end of the process"


def noticed_by(mutant: Mutant, folder: Path) -> str:
    """The test that notices a mutant in a copy; empty if none does."""
    path = folder / mutant.module
    text = path.read_text()
    try:
        path.write_text(mutant.text(text))
        if "kernels import" in text:
            _keep_kernels(folder, mutant.module)
        return failing(folder, tests_of(mutant))
    finally:
        shutil.copy2(ROOT / mutant.module, path)


def print_summary(
    chosen: Mapping[int, Mutant], survivors: Sequence[int], equivalent: Sequence[int]
) -> None:
    """How many are noticed, and lines with what is not."""
    others = len(chosen) - len(equivalent)
    print(f"\n{others - len(survivors)} of {others} noticed, and {len(equivalent)} equivalent\n")
    for number in (*survivors, *equivalent):
        line = chosen[number].line()
        print(f"- {number}: {EQUIVALENT.get(line, 'survives')}\n")
        print(f"      {chosen[number].module}: {line}\n")


OPTIONS = options("mutants", __doc__)
OPTIONS.add_argument("--count", type=int)
OPTIONS.add_argument("--seed", type=int, default=0)
OPTIONS.add_argument("--number", type=int, nargs="+", help="of those drawn, these alone")
OPTIONS.add_argument("--jobs", type=int, default=1)


def main() -> None:
    """Print the table, and those that survive."""
    asked = OPTIONS.parse_args()
    count = asked.count or (4 if asked.quick else 80)
    mutants = drawn(asked.seed, count)
    chosen = {i: mutants[i] for i in asked.number or range(count)}
    folders = SimpleQueue[Path]()

    def tried(number: int) -> tuple[int, str, float]:
        folder, started = folders.get(), time.perf_counter()
        try:
            found = noticed_by(chosen[number], folder)
        finally:
            folders.put(folder)
        return number, found, time.perf_counter() - started

    table = Table(f"Mutants, seed {asked.seed}", ["number", "module", "noticed by", "seconds"])
    survivors, equivalent = [], [i for i in chosen if chosen[i].line() in EQUIVALENT]
    with tempfile.TemporaryDirectory() as parent, ThreadPoolExecutor(asked.jobs) as pool:
        for job in range(asked.jobs):
            folders.put(Path(parent) / str(job))
            _copy(Path(parent) / str(job))
        for number, found, seconds in pool.map(tried, [i for i in chosen if i not in equivalent]):
            table.row(number, chosen[number].module.stem, found or "none", f"{seconds:.0f}")
            if not found:
                survivors.append(number)
    print_summary(chosen, survivors, equivalent)


if __name__ == "__main__":
    present(main, OPTIONS)
