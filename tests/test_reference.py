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
from tests.reference_links import FRONT, faults, public_names

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


def test_the_reference_holds_what_is_exported_and_is_built_in_ci() -> None:
    """Pdoc shows what `__all__` names; nothing else that a page tells users to import is hidden."""
    steps = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert re.search(r"^pdoc --output-directory (\S+) meanfield_pde .*\n.*_links \1$", steps, re.M)
    shown = set(meanfield_pde.__all__)
    for page in (ROOT / "README.md", *(ROOT / "demos").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for names in re.findall(r"^from meanfield_pde import (.*)$", text, re.MULTILINE):
            assert set(names.split(", ")) <= shown, page.name


def test_faults_of_the_reference_are_found(tmp_path: Path) -> None:
    """CI holds what pdoc writes against these: entries that are missing, links to nowhere."""
    other = tmp_path / "meanfield_pde"
    other.mkdir()
    (other / "one.html").write_text("<p id='a'><a href='../meanfield_pde.html#solve'>up</a>")
    good = "<p id='solve'><a href='meanfield_pde/one.html#a'>1</a><a href='https://x.org'>2</a>"
    (tmp_path / FRONT).write_text(good)
    assert faults(tmp_path, {"solve"}) == []
    links = "<a href='#b'>3</a><a href='two.html'>4</a><a href='meanfield_pde/one.html#c'>5</a>"
    (tmp_path / FRONT).write_text(good + links)
    assert faults(tmp_path, {"solve", "run"}) == [
        f"{FRONT}: has no entry run",
        f"{FRONT}: the link #b leads nowhere",
        f"{FRONT}: the link meanfield_pde/one.html#c leads nowhere",
        f"{FRONT}: the link two.html leads nowhere",
    ]
    assert faults(other, set()) == [f"{other}: there is no {FRONT}"]
    assert {"solve", "Solution.density", "Uniform.cell_masses"} <= public_names()
