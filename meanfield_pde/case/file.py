"""Case files: TOML in, `Case` out.

Nothing is silently ignored: an unknown section, an unknown key, or a key that does not belong to
the chosen kind is an error, of one line, that names the file, the key and what was expected.
"""

from __future__ import annotations

import difflib
import logging
import re
import reprlib
import tomllib
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from meanfield_pde.amr.settings import AdaptSettings
from meanfield_pde.attention.layers import MATRICES
from meanfield_pde.case.attention_table import (
    ATTENTION_KEYS,
    TERMS,
    Table,
    attention_of,
)
from meanfield_pde.case.case import (
    ADAPT_KEYS,
    DIMENSIONS,
    NO_MESH,
    Case,
    MeshCase,
    OutputCase,
    check_dimension,
)
from meanfield_pde.errors import InputError
from meanfield_pde.initial.base import InitialDensity
from meanfield_pde.initial.kinds import KINDS
from meanfield_pde.solver.settings import CompareCase, NoiseCase, SolverCase, TimeCase
from meanfield_pde.support.arguments import typed_except
from meanfield_pde.support.checks import choice, did_you_mean, input_path, known_keys
from meanfield_pde.support.old_names import with_new_keys

LOG = logging.getLogger("meanfield_pde")

OBSERVABLES = "observables"
# Sections whose keys are the fields of a class.
PLAIN_CLASSES: dict[str, type] = {
    "mesh": MeshCase,
    "noise": NoiseCase,
    "solver": SolverCase,
    "time": TimeCase,
    "compare": CompareCase,
    "output": OutputCase,
}
PLAIN_SECTIONS: dict[str, tuple[str, ...]] = {
    name: tuple(key.name for key in fields(section)) for name, section in PLAIN_CLASSES.items()
}
# The keys besides `kind` that each kind takes.
MESH_KEYS = {
    "circle": ("cells", "grade"),
    "sphere": ("cells", "grade"),
    "file": ("path",),
    NO_MESH: (),
}


def known_sections() -> dict[str, tuple[str, ...]]:
    """The sections of a case file and their keys, with the terms and densities there are now."""
    initial = dict.fromkeys(key for one in KINDS.values() for key in one.keys)
    return {
        "attention": ATTENTION_KEYS,
        **{name: term.keys for name, term in TERMS.items()},
        "initial": ("kind", *initial),
        "adapt": ADAPT_KEYS,
        OBSERVABLES: (),  # each key is a column
        **PLAIN_SECTIONS,
    }


@typed_except("until", "output")  # of which messages say where they belong in the file
def read_case(
    path: str | Path,
    *,
    until: float | None = None,
    output: str | Path | None = None,
    unused: Collection[str] = (),
    meshless: bool = False,
) -> Case:
    """Read and check a case file.

    Paths of inputs are relative to the folder of the case file, the output directory to the
    current directory; its default is results/<name of the case file>.

    Args:
        path: the TOML file.
        until: replaces [time] until; listed times to save beyond it are left out.
        output: replaces [output] directory.
        unused: "solver", "compare": sections of a case that is not to be run. Their values are
            checked, and not whether they fit the rest.
        meshless: whether there may be no mesh, for tokens alone, in any dimension.
    """
    path = Path(path)
    try:
        document, notes = with_new_keys(_load(path))
        for note in notes:
            LOG.warning("%s: %s", path, note)
        return _case(_sections(document), path, until, output, unused, meshless)
    except InputError as error:
        message = " ".join(str(error).split())  # numpy breaks the lines of what it prints
        raise InputError(f"{path}: {message}") from None


def case_of(document: Table, path: Path) -> Case:
    """The case of the tables of a case file; inputs are relative to the folder of the path."""
    return _case(_sections(document), path, None, None, (), meshless=False)


def _load(path: Path) -> Table:
    if not path.is_file():
        stems = [one.stem for one in path.parent.glob("*.toml")]
        close = difflib.get_close_matches(path.stem, stems, n=1)
        near = f"; did you mean '{close[0]}.toml'?" if close else ""
        raise InputError(f"no such case file{near}")
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"not a readable case file ({error})") from None


def input_files(path: Path) -> list[Path]:
    """The case file, and the files of weights, tokens and meshes that it names, if it is one."""
    try:
        document = _load(path)
    except InputError:  # of which `read_case` says what is wrong
        return [path]
    tables = (table for table in document.values() if isinstance(table, dict))
    named = (table.get(key) for table in tables for key in ("weights", "path"))
    return [path, *(path.parent / name for name in named if isinstance(name, str))]


def parse(text: str) -> Table:
    """The text of a case file as nested tables, not yet checked; InputError unless it is TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not valid TOML: {error}{_about_heads(text)}") from None
    except RecursionError:
        raise InputError("not valid TOML: brackets are nested too deeply") from None
    except ValueError:  # Python reads no more digits
        raise InputError("not valid TOML: a number has more than 4300 digits") from None


def _about_heads(text: str) -> str:
    """How several heads are written, for texts in which they may be what is wrong."""
    if not re.search(r"^\s*(?:heads\s*=|\[+\s*attention\.heads\b)", text, re.MULTILINE):
        return ""
    return "; several heads are sections [[attention.heads]] in double brackets, one for each"


def _sections(document: Table) -> dict[str, Table]:
    """The sections that are there, each a table without unknown keys."""
    known = known_sections()
    for name, table in document.items():
        if name not in known:
            homes = [section for section, keys in known.items() if name in keys]
            if homes and not isinstance(table, dict):
                raise InputError(f"key '{name}' must stand below [{'] or ['.join(homes)}]")
            raise InputError(
                f"unknown section [{name}]{did_you_mean(name, known)} (known: {', '.join(known)})"
            )
        if not isinstance(table, dict):
            if isinstance(table, list) and table and isinstance(table[0], dict):
                heads = "; several heads are [[attention.heads]]" if name == "attention" else ""
                raise InputError(f"write [{name}] once, not [[{name}]]{heads}")
            raise InputError(f"[{name}] must be a section, got {name} = {reprlib.repr(table)}")
        if name == "noise" and "sigma" in table:  # as the pages write it, and others for its root
            raise InputError(
                "[noise] unknown key 'sigma'; write strength, which is s^2 / 2 for tokens that "
                "follow dx = v dt + s dW, and stands before the Laplace-Beltrami operator"
            )
        if name != OBSERVABLES:
            known_keys(table, known[name], f"[{name}]", known)
    return document


def _case(
    sections: dict[str, Table],
    path: Path,
    until: float | None,
    output: Any,
    unused: Collection[str],
    meshless: bool,
) -> Case:
    beside = {name: sections[name] for name in TERMS if name in sections}
    # Terms such as [perceptron] may stand alone.
    if "heads" not in sections.get("attention", {}) and not (
        beside and "attention" not in sections
    ):
        attention_keys = () if "weights" in sections.get("attention", {}) else MATRICES
        _require(sections, "attention", *attention_keys, "beta")
    attention = attention_of(sections.get("attention"), path.parent, beside)
    d = attention.dimension if meshless else check_dimension(attention)
    if "noise" in sections:
        _require(sections, "noise", "strength")
    if "adapt" in sections:
        _require(sections, "adapt", "tolerance")
    mesh: Table = {"kind": next((kind for kind in DIMENSIONS if DIMENSIONS[kind] == d), NO_MESH)}
    mesh |= sections.get("mesh", {})
    choice(mesh["kind"], "mesh.kind", MESH_KEYS)
    if mesh["kind"] == NO_MESH and not meshless:
        raise InputError(
            "mesh.kind 'none' is for tokens alone: `meanfield-pde tokens` and `lifetime --tokens`"
        )
    _check_kind(mesh, "mesh", MESH_KEYS)
    if "path" in mesh:
        mesh["path"] = input_path(mesh["path"], "mesh.path", path.parent)
    outputs: Table = {"directory": Path("results") / path.stem} | sections.get("output", {})
    if output is not None:
        outputs["directory"] = output
    solver = SolverCase(**sections.get("solver", {}))
    compare = CompareCase(**sections["compare"]) if "compare" in sections else None
    return Case(
        attention=attention,
        mesh=MeshCase(**mesh),
        adapt=AdaptSettings(**sections["adapt"]) if "adapt" in sections else None,
        initial=_initial(sections.get("initial", {}), path.parent),
        noise=NoiseCase(**sections.get("noise", {})),
        solver=SolverCase() if "solver" in unused else solver,
        time=_time(sections, until),
        observables=sections.get(OBSERVABLES, {}),
        compare=None if "compare" in unused else compare,
        output=OutputCase(**outputs),
        source=path,
    )


def _time(sections: dict[str, Table], until: float | None) -> TimeCase:
    if until is None:
        _require(sections, "time", "until")
        return TimeCase(**sections["time"])
    table: Table = {"until": until} | sections.get("time", {})
    asked = TimeCase(**table)
    cut = asked.with_until(until)
    if left_out := len(asked.save_at) - len(cut.save_at):
        LOG.warning(
            "time.save_at: %d of %d times are beyond t = %g and are left out",
            left_out,
            len(asked.save_at),
            cut.until,
        )
    return cut


def _initial(table: Table, folder: Path) -> InitialDensity:
    table = {"kind": "uniform"} | table
    kind = table["kind"]
    choice(kind, "initial.kind", KINDS)
    _check_kind(table, "initial", {name: one.keys for name, one in KINDS.items()})
    _require({"initial": table}, "initial", *KINDS[kind].required())
    return KINDS[kind].from_table(table, folder)


def _require(sections: dict[str, Table], name: str, *keys: str) -> None:
    if name not in sections:
        raise InputError(f"section [{name}] is missing; it needs {', '.join(keys)}")
    for key in keys:
        if key not in sections[name]:
            raise InputError(f"{name}.{key} is missing")


def _check_kind(table: Table, section: str, kinds: dict[str, tuple[str, ...]]) -> None:
    """Refuse keys that the section knows, but not for the chosen kind."""
    kind = table["kind"]
    for key in table:
        if key != "kind" and key not in kinds[kind]:
            homes = " and ".join(f"'{one}'" for one, keys in kinds.items() if key in keys)
            raise InputError(f"{section}.{key} applies to kind {homes}, not to '{kind}'")
