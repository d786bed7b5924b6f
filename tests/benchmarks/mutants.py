"""Mutants: small changes of the code, one at a time, and how many of them the tests notice.

    python -m tests.benchmarks.mutants [--quick] [--count 80] [--seed 0] [--number N ...]
        [--jobs 1]

Drawn from all places in `solver`, `mesh`, `wasserstein` and the attention sums, compiled functions
included, where an operator, a comparison, a number, a truth value, or one of min and max can be
another. The draw goes by digests of their lines, so that those drawn stay the same while code
changes elsewhere. Each is tried in a copy of the project with `pytest -x`, first on the tests of
its own package, nearest by import first, then on those of packages that build on it. A mutant is
noticed if a test fails, or if tests take three times as long as without it. Those that survive are
shown as lines of code, with a reason where one is equivalent. An hour.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.benchmarks.tables import Table, options, present

ROOT = Path(__file__).parents[2]
# Folders of the package, and folders of tests in the order in which they are tried.
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
OTHER_NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
LONGER = 3.0  # times as long as without the mutant: an endless loop, most likely


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


def folders_of(mutant: Mutant) -> tuple[str, ...]:
    """The folders of tests that a mutant is tried on."""
    inner = mutant.module.relative_to("meanfield_pde").as_posix()
    return next(tests for package, tests in TRIED.items() if inner.startswith(package))


def _copy(folder: Path) -> None:
    """Put the project into a folder."""
    for name in ("meanfield_pde", "tests", "demos", "meshes"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy2(ROOT / name, folder)


def _imports(path: Path) -> set[str]:
    """Modules of the package that a file imports."""
    found = re.findall(
        r"^ *from (meanfield_pde[\w.]*) import (\w+)", path.read_text(), re.MULTILINE
    )
    return {name for module, item in found for name in (module, f"{module}.{item}")}


def _users(module: Path) -> dict[str, int]:
    """Modules that import one, directly or not, each with how many imports away it is."""
    paths = (path.relative_to(ROOT) for path in (ROOT / "meanfield_pde").rglob("*.py"))
    imports = {".".join(path.with_suffix("").parts): _imports(ROOT / path) for path in paths}
    found = {".".join(module.with_suffix("").parts): 0}
    for user in (waiting := list(found)):
        for name, imported in imports.items():
            if user in imported and name not in found:
                found[name] = found[user] + 1
                waiting.append(name)
    return found


def nearest_first(folder: str, module: Path) -> list[str]:
    """The files of tests in a folder, those first that are few imports away from a module."""
    away = _users(module)

    def distance(path: Path) -> tuple[int, Path]:
        return min((away[name] for name in _imports(path) if name in away), default=99), path

    paths = sorted((ROOT / "tests" / folder).glob("test_*.py"), key=distance)
    return [str(path.relative_to(ROOT)) for path in paths]


def _kernel_folder(folder: Path) -> Path:
    """Where a copy keeps its compiled kernels."""
    script = "from meanfield_pde.support.kernels import kernel_folder; print(kernel_folder())"
    return Path(subprocess.check_output([sys.executable, "-c", script], cwd=folder, text=True)[:-1])


def _keep_kernels(old: Path, new: Path, module: Path) -> None:
    """Take over the compiled kernels that a mutant of a module cannot have changed."""
    changed = {name.rpartition(".")[2] for name in _users(module)}
    for path in old.rglob("*.nb?"):
        if path.name.split(".")[0] not in changed:
            place = new / path.relative_to(old)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)


def passed(folder: Path, tests: Sequence[str], limit: float) -> bool:
    """Whether all tests of these files pass, in this copy and within this many seconds."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "MEANFIELD_PDE_THREADS": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    run = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return run.wait(limit) == 0
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, 9)
        run.wait()
        return False


class Limits:
    """Seconds that tests of a folder may take, from what they take without a mutant."""

    def __init__(self, jobs: int) -> None:
        self._jobs, self._found, self._lock = jobs, dict[str, float](), threading.Lock()

    def __call__(self, tests: str, folder: Path) -> float:
        """The limit; measured in this copy, which then has compiled kernels, if it is not known."""
        with self._lock:
            if tests not in self._found:
                started = time.perf_counter()
                if not passed(folder, [f"tests/{tests}"], 3600.0):
                    raise SystemExit(f"tests/{tests} fails without a mutant")
                seconds = time.perf_counter() - started
                self._found[tests] = LONGER * seconds * self._jobs + 60
            return self._found[tests]


def noticed_by(mutant: Mutant, folder: Path, limits: Limits) -> str:
    """The folder of tests that notices a mutant in a copy; empty if none does."""
    path, kernels = folder / mutant.module, _kernel_folder(folder)
    for tests in folders_of(mutant):
        limit = limits(tests, folder)
        try:
            path.write_text(mutant.text(path.read_text()))
            if kernels != _kernel_folder(folder):
                _keep_kernels(kernels, _kernel_folder(folder), mutant.module)
            if not passed(folder, nearest_first(tests, mutant.module), limit):
                return tests
        finally:
            shutil.copy2(ROOT / mutant.module, path)
    return ""


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
    folders, limits = SimpleQueue[Path](), Limits(asked.jobs)

    def tried(number: int) -> tuple[int, str, float]:
        folder, started = folders.get(), time.perf_counter()
        try:
            found = noticed_by(chosen[number], folder, limits)
        finally:
            folders.put(folder)
        return number, found, time.perf_counter() - started

    table = Table(
        f"Mutants, seed {asked.seed}", ["number", "module", "noticed by tests of", "seconds"]
    )
    survivors = []
    with tempfile.TemporaryDirectory() as parent, ThreadPoolExecutor(asked.jobs) as pool:
        for job in range(asked.jobs):
            folders.put(Path(parent) / str(job))
            _copy(Path(parent) / str(job))
        for number, found, seconds in pool.map(tried, chosen):
            table.row(number, chosen[number].module.stem, found or "none", f"{seconds:.0f}")
            if not found:
                survivors.append(number)
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} noticed\n")
    for number in survivors:
        print(f"{number}: {chosen[number].module}:{chosen[number].row()}: {chosen[number].line()}")


if __name__ == "__main__":
    present(main, OPTIONS)
