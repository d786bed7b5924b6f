"""What a start imports: names when they are asked for, and libraries by what needs them."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import meanfield_pde
from tests.conftest import environment

ROOT = Path(__file__).parents[2]
SCIPY = tuple(map(int, version("scipy").split(".")[:2]))
LARGE = ("matplotlib", "numba", "dolfinx", "scipy.stats", "scipy.optimize", "scipy.sparse")
# Commands one after another, and the modules that are there after each.
COMMANDS = """
import json, sys
from meanfield_pde.cli.main import main
found = []
for line in {lines}:
    try:
        main(line.split())
    except SystemExit as ended:
        found.append([ended.code, sorted(sys.modules)])
print(json.dumps(found))
"""
ALL_BUT_FIGURES = """
import importlib, json, pathlib, sys
root = pathlib.Path(sys.argv[1])
for path in sorted((root / "meanfield_pde").rglob("*.py")):
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    if not name.startswith("meanfield_pde.figures."):
        importlib.import_module(name)
print(json.dumps([[0, sorted(sys.modules)]]))
"""
# As where mpi4py and petsc4py are, and DOLFINx is not; the wheel with both prepares PETSc.
NO_DOLFINX = """
import importlib.util, sys
from importlib.machinery import PathFinder
if importlib.util.find_spec("dolfinx_solver"):
    import dolfinx_solver
find = PathFinder.find_spec
hidden = lambda name, *where: None if name == "dolfinx" else find(name, *where)
PathFinder.find_spec = staticmethod(hidden)
"""
NAMES = """
import json
import meanfield_pde
def there(name):
    try:
        one = getattr(meanfield_pde, name)
        if name in ("circle_mesh", "sphere_mesh"):
            one(20)
    except ImportError as error:
        assert str(error).startswith("DOLFINx is not installed: pip install"), error
        return False
    return True
print(json.dumps([*found, [0, [name for name in meanfield_pde.__all__ if there(name)]]]))
"""


def started(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script that has ended well, and what it printed."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv[0] = 'meanfield-pde'\n{script}", *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )


def found_by(ended: subprocess.CompletedProcess[str]) -> list[tuple[int, set[str]]]:
    """The exit codes that a script has printed, and the modules that were there after each."""
    return [(code, set(names)) for code, names in json.loads(ended.stdout.splitlines()[-1])]


def test_a_command_imports_what_it_needs() -> None:
    lines = ("--version", "--help", "limit demos/circle.toml")
    found = found_by(started(COMMANDS.format(lines=lines)))
    assert [code for code, _ in found] == [0, 0, 0]
    for _, modules in found[:2]:
        without = (*LARGE, "scipy", "meanfield_pde.case.file", "meanfield_pde.theory")
        assert modules.isdisjoint(without)
    assert "scipy" in found[2][1]
    # scipy.linalg imports scipy.sparse before scipy 1.17.
    modules = found[2][1] - ({"scipy.sparse"} if SCIPY < (1, 17) else set())
    assert modules.isdisjoint(LARGE)


def test_what_the_page_on_python_names_works_without_dolfinx() -> None:
    page = (ROOT / "demos/reference/python.md").read_text(encoding="utf-8")
    section = page.split("\n## Without DOLFINx\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section)) & set(meanfield_pde.__all__)
    lines = ("--version", "--help", "limit demos/circle.toml", "info")
    ended = started(NO_DOLFINX + COMMANDS.format(lines=lines) + NAMES)
    *commands, (code, names) = found_by(ended)
    assert [code for code, _ in commands] == [0, 0, 0, 1]
    assert "DOLFINx is not installed: pip install" in ended.stderr
    assert (code, names) == (0, named)


def test_matplotlib_is_imported_by_figures_alone_and_scipy_stats_by_no_module() -> None:
    ((_, found),) = found_by(started(ALL_BUT_FIGURES, str(ROOT)))
    assert {"meanfield_pde.experiments.run", "meanfield_pde.cli.commands"} < found
    assert found.isdisjoint({"matplotlib", "scipy.stats"})


def test_names_are_those_that_checkers_of_types_see() -> None:
    """Each package says twice where its names stand, once for `_lazy` and once for mypy."""
    lazy = [
        path for path in (ROOT / "meanfield_pde").rglob("*.py") if "_HOMES =" in path.read_text()
    ]
    assert len(lazy) == 2
    for path in lazy:
        package = ".".join(path.parent.relative_to(ROOT).parts)
        homes = vars(sys.modules.get(package) or __import__(package, fromlist=["_"]))["_HOMES"]
        (checked,) = (
            node
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        )
        seen = {
            alias.asname: node.module
            for node in checked.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert seen == homes


def test_the_names_of_the_package() -> None:
    assert set(meanfield_pde.__all__) <= set(dir(meanfield_pde))
    for name in meanfield_pde.__all__:
        assert (
            inspect.getmodule(getattr(meanfield_pde, name)).__name__ == meanfield_pde._HOMES[name]
        )
    with pytest.raises(AttributeError, match="'meanfield_pde' has no attribute 'sovle'"):
        meanfield_pde.sovle  # type: ignore[attr-defined]  # noqa: B018


def test_a_subpackage_does_not_take_the_place_of_a_function() -> None:
    """`wasserstein` is both, and may have been imported as either before."""
    script = """
import sys
first, second = "import meanfield_pde.wasserstein.measure", "from meanfield_pde import wasserstein"
for lines in ((first, second), (second, first)):
    for name in [one for one in sys.modules if one.split(".")[0] == "meanfield_pde"]:
        del sys.modules[name]
    names = {}
    exec("\\n".join((*lines, "import meanfield_pde; found = meanfield_pde.wasserstein")), names)
    print(names["found"].__name__)
"""
    assert started(script).stdout == "wasserstein\nwasserstein\n"


def test_dolfinx_can_be_imported_by_a_script(tmp_path: Path) -> None:
    """After the package, whatever the script is given; DOLFINx alone fails on what is no text."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, meanfield_pde\nassert 'dolfinx' not in sys.modules\n"
        "import dolfinx.fem.petsc, h5py\nprint(len(sys.argv), dolfinx.__version__)\n"
    )
    ended = subprocess.run([sys.executable, script, b"bad\xff"], capture_output=True, text=True)
    assert ended.stdout.startswith("2 0."), ended.stderr
