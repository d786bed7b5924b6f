"""The reference of the Python interface: no name that is exported is without words."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import meanfield_pde
from meanfield_pde.mesh.fields import cell_function, vertex_function
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from tests.site_links import PYTHON, faults, public_names

ROOT = Path(__file__).parents[1]
# Exported, and what scripts get in their hands besides.
NAMES = {name: getattr(meanfield_pde, name) for name in meanfield_pde.__all__}
NAMES |= {one.__name__: one for one in (FiniteVolumes, cell_function, vertex_function)}


def described(kind: type) -> str:
    """The words on a class and those it is made from, in which its attributes are explained."""
    own_classes = [one for one in kind.__mro__ if one.__module__.startswith("meanfield_pde")]
    return "\n".join(one.__doc__ or "" for one in own_classes)


def attributes_set(kind: type) -> Iterator[str]:
    """Public attributes that the methods of a class set on themselves."""
    for node in ast.walk(ast.parse(inspect.getsource(kind))):
        if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
            continue
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr


def missing(name: str, one: object) -> list[str]:
    """What is exported with this name and has no words."""
    if not inspect.getdoc(one):
        return [name]
    if not inspect.isclass(one):
        return []
    wanted = [] if "Error" in name else list(attributes_set(one))
    if is_dataclass(one):
        wanted += [entry.name for entry in fields(one)]
    found = []
    text = described(one)
    for attribute in wanted:
        explained = re.search(rf"^\s*(?:\w+, )*{attribute}(?:, \w+)*:", text, re.MULTILINE)
        explained = explained or re.search(rf"[.:] {attribute}: ", text)
        own = getattr(one, attribute, None)
        if not (attribute.startswith("_") or explained or isinstance(own, property)):
            found.append(f"{name}.{attribute}")
    for member, value in vars(one).items():
        plain = inspect.isfunction(value) or isinstance(value, property | classmethod)
        if not member.startswith("_") and plain and not inspect.getdoc(getattr(one, member)):
            found.append(f"{name}.{member}")
    return found


def test_every_name_class_attribute_and_method_is_explained() -> None:
    assert [entry for name, one in NAMES.items() for entry in missing(name, one)] == []


def test_arguments_of_functions_are_named_in_their_docstrings() -> None:
    """Functions with more than three arguments list them."""
    found = []
    for name, one in NAMES.items():
        if inspect.isclass(one) or len(inspect.signature(one).parameters) <= 3:
            continue
        text = inspect.getdoc(one) or ""
        if "Arguments as for" not in text:
            for argument in inspect.signature(one).parameters:
                if not re.search(rf"^\s*(?:\w+, )*{argument}(?:, \w+)*:", text, re.MULTILINE):
                    found.append(f"{name}({argument})")
    assert found == []


def pages() -> list[Path]:
    """The README and all pages of the site."""
    return [ROOT / "README.md", *sorted((ROOT / "demos").rglob("*.md"))]


def test_the_reference_has_an_entry_and_an_example_for_every_export() -> None:
    """Its examples are executed when the site is built, which CI does with warnings as errors."""
    steps = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert re.search(r"^sphinx-build -W .* (\S+)\n.*site_links \1$", steps, re.MULTILINE)
    text = (ROOT / "demos/reference/python.md").read_text(encoding="utf-8")
    entries = re.findall(r"^\.\. auto(?:class|function|exception):: (\w+)$", text, re.MULTILINE)
    assert sorted(entries) == sorted(meanfield_pde.__all__)
    cells = re.findall(r"^```\{code-cell\} python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    used: set[str] = set()
    for node in ast.walk(ast.parse("\n".join(cells))):
        used |= {node.id} if isinstance(node, ast.Name) else set()
    assert set(meanfield_pde.__all__) <= used


def test_pages_import_what_is_exported() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for names in re.findall(r"^from meanfield_pde import (\w[\w, ]*\w)", text, re.MULTILINE):
            assert set(names.split(", ")) <= set(meanfield_pde.__all__), page.name


def test_faults_of_the_site_are_found(tmp_path: Path) -> None:
    """CI holds the site against these: entries that are missing, links to nowhere, the network."""
    python, other = tmp_path / PYTHON, tmp_path / "one.html"
    python.parent.mkdir()
    other.write_text(f"<p id='a'><a href='{PYTHON}#meanfield_pde.solve'>up</a>")
    good = "<p id='meanfield_pde.solve'><a href='../one.html#a'>1</a><a href='https://x.org'>2</a>"
    python.write_text(good)
    search = tmp_path / "searchindex.js"
    search.write_text('Search.setIndex({"alltitles": {"Architecture": [], "Glossary": []}})')
    assert faults(tmp_path, {"solve"}) == []
    links = "<a href='#b'>3</a><a href='two.html'>4</a><a href='../one.html#c'>5</a>"
    python.write_text(f"{good}{links}<script src='https://x.org/y.js'></script>")
    search.write_text('Search.setIndex({"alltitles": {"Architecture": []}})\n')
    assert faults(tmp_path, {"solve", "run"}) == [
        f"{PYTHON}: has no entry meanfield_pde.run",
        f"{PYTHON}: the link #b leads nowhere",
        f"{PYTHON}: the link ../one.html#c leads nowhere",
        f"{PYTHON}: loads https://x.org/y.js from the network",
        f"{PYTHON}: the link two.html leads nowhere",
        "search: knows no title Glossary",
    ]
    python.unlink()
    assert faults(tmp_path, set()) == [f"{tmp_path}: there is no {PYTHON}"]
    assert {"solve", "Solution.density", "Uniform.cell_masses"} <= public_names()
