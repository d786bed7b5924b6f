"""Which compiled functions call which, read from the text of the modules; and where they go."""

from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core.codegen import CPUCodeLibrary

from meanfield_pde.support import kernels
from tests.conftest import Command, environment

ROOT = Path(__file__).parents[2]


def trees() -> dict[str, ast.Module]:
    """The syntax of all modules, by name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text("utf-8"))
        for path in (ROOT / "meanfield_pde").rglob("*.py")
    }


def functions(tree: ast.Module, decorators: set[str]) -> list[ast.FunctionDef]:
    """Those with one of the decorators, with options or without."""
    return [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(one).partition("(")[0] in decorators for one in node.decorator_list)
    ]


def test_parts_are_called_by_compiled_functions_alone() -> None:
    """Python would compile them in every process, as they are in no cache of their own."""
    modules, called = trees(), []
    parts = {
        (name, one.name) for name, tree in modules.items() for one in functions(tree, {"part"})
    }
    assert len(parts) > 40
    for name, tree in modules.items():
        known = {part for module, part in parts if module == name}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                known |= {one.name for one in node.names if (node.module, one.name) in parts}
        compiled = {
            id(node) for one in functions(tree, {"kernel", "part"}) for node in ast.walk(one)
        }
        called += [
            f"{name}, line {node.lineno}: {node.id}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and node.id in known and id(node) not in compiled
        ]
    assert called == []


def test_kernels_go_to_a_private_folder_where_nothing_else_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_folder = tmp_path / "file"
    no_folder.touch()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(no_folder))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(kernels, "PACKAGE", no_folder)
    folder = kernels.kernel_folder.__wrapped__()
    assert folder is not None
    assert folder.parent == tmp_path / f"meanfield_pde-{os.getuid()}"
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "given"))
    given = kernels.kernel_folder.__wrapped__()
    assert given is not None
    assert given.parent == tmp_path / "given"


def test_kernels_compile_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "kernel_folder", lambda: None)
    assert kernels.kernel(lambda x: x + 1)(1) == 2


def test_a_kernel_is_optimised_in_full_and_its_parts_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel that another calls is one that Python may call as well."""
    monkeypatch.setattr(kernels, "kernel_folder", lambda: None)
    full, found = numba.config.OPT, {}
    finalize = CPUCodeLibrary.finalize

    def noted(library: CPUCodeLibrary) -> None:
        found[library.name.partition(".<locals>.")[2].partition("[")[0]] = int(numba.config.OPT)
        finalize(library)

    monkeypatch.setattr(CPUCodeLibrary, "finalize", noted)

    @kernels.part
    def deep(x):
        return x + 1

    @kernels.kernel
    def inner(x):
        return deep(x) + 1

    @kernels.part
    def between(x):
        return inner(x) + 1

    @kernels.kernel
    def outer(x):
        return between(x) + deep(x)

    assert outer(1) == 6
    assert found == {"deep": 1, "inner": full, "between": 1, "outer": full}
    assert numba.config.OPT == full > 1
    assert numba.njit(lambda x: x + 2)(1) == 3
    assert found["<lambda>"] == full


def test_a_kernel_is_compiled_again_when_one_that_it_calls_has_changed(tmp_path: Path) -> None:
    """By itself numba keeps a kernel as long as the module that it stands in has not changed."""
    module = "import numba\nfrom kernels import kernel\n{}@kernel\ndef {}(x):\n    return {}\n"
    (tmp_path / "outer.py").write_text(
        module.format("from inner import inner\n", "outer", "inner(x)")
    )
    ask = (
        "import pathlib, sys; sys.path += sys.argv[1:]; import kernels\n"
        "kernels.PACKAGE = pathlib.Path(sys.argv[1]); kernels.kernel_folder.cache_clear()\n"
        "from outer import outer; print(outer(1), sum(outer.stats.cache_hits.values()))"
    )
    found_by_run, folder = [], Path(kernels.__file__).parent
    for added in (1, 10, 10):  # of another length: Python's cache knows a text by seconds and size
        (tmp_path / "inner.py").write_text(module.format("", "inner", f"x + {added}"))
        command = [sys.executable, "-c", ask, str(tmp_path), str(folder)]
        found = subprocess.run(command, env=environment(), capture_output=True, text=True)
        found_by_run.append(found.stdout.split())
    assert found_by_run == [["2", "0"], ["11", "0"], ["11", "1"]]


def test_a_folder_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in it is executed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / f"meanfield_pde-{os.getuid()}"
    assert kernels.own_folder() == folder
    folder.chmod(0o777)
    assert kernels.own_folder() != folder
    folder.rmdir()
    folder.symlink_to("/")
    assert kernels.own_folder() != folder


COMPILING = """
import os, numba.core.compiler as compiler
from meanfield_pde.attention.sum.tree import summarise_nodes
import numpy as np
from mpi4py import MPI
compiled, compile_extra = [], compiler.compile_extra
def counted(*arguments, **options):
    compiled.append(arguments[2].__name__)
    return compile_extra(*arguments, **options)
compiler.compile_extra = counted
MPI.COMM_WORLD.Barrier()
summarise_nodes(np.zeros(8), np.zeros((3, 8)), np.zeros(1), np.zeros((3, 1)))
os.write(1, f"{compiled.count('summarise_nodes')}\\n".encode())
"""


@pytest.mark.slow
def test_one_rank_of_a_machine_compiles(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others, which come to the kernel at the same time, take it from the cache."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    script = tmp_path / "compiling.py"
    script.write_text(COMPILING)
    ended = command(ranks=4, script=script)
    assert sorted(ended.stdout.split()) == ["0", "0", "0", "1"], ended.stderr


STOPPED = """
import os, signal, numba.core.compiler as compiler
from meanfield_pde.attention.sum.tree import summarise_nodes
import numpy as np
def stop(*arguments, **options):
    os.write(1, b"compiling\\n")
    os.kill(os.getpid(), signal.SIGSTOP)
compiler.compile_extra = stop
summarise_nodes(np.zeros(8), np.zeros((3, 8)), np.zeros(1), np.zeros((3, 1)))
"""
ANOTHER = """
import numpy as np
from meanfield_pde.attention.sum.tree import bisect
print(bisect(np.zeros((2, 3)), (1,)).tolist())
"""


@pytest.mark.slow
def test_a_process_that_is_stopped_holds_up_its_own_kernel_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wants the same says that it waits, and goes on once that process has ended."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    given: dict[str, Any] = {"env": environment(), "text": True, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", STOPPED], **given) as stopped:
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "compiling\n"
        try:
            other = subprocess.run([sys.executable, "-c", ANOTHER], timeout=100, **given)
            assert other.stdout == "[0, 1]\n"
            same = STOPPED.replace("compiler.compile_extra = stop", "") + "print('done')"
            with subprocess.Popen(
                [sys.executable, "-c", same], stderr=subprocess.PIPE, **given
            ) as waiting:
                assert waiting.stderr is not None
                line = waiting.stderr.readline()
                assert "waits for another process to compile" in line
                assert "summarise_nodes" in line
                stopped.kill()
                assert waiting.communicate(timeout=100)[0] == "done\n"
        finally:
            stopped.kill()
