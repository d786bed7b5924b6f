"""Which compiled functions call which; read from the text of the modules with `ast`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
TREES = {
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


PARTS = {(name, part.name) for name, tree in TREES.items() for part in functions(tree, {"part"})}


def test_parts_are_called_by_compiled_functions_alone() -> None:
    """Python would compile them in every process, as they are in no cache of their own."""
    assert len(PARTS) > 40
    called = []
    for name, tree in TREES.items():
        known = {part for module, part in PARTS if module == name}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                known |= {one.name for one in node.names if (node.module, one.name) in PARTS}
        compiled = {
            id(node) for one in functions(tree, {"kernel", "part"}) for node in ast.walk(one)
        }
        called += [
            f"{name}, line {node.lineno}: {node.id}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and node.id in known and id(node) not in compiled
        ]
    assert called == []
