"""Cases as text: a `Case` out as TOML, and two such texts compared key by key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tomli_w

from meanfield_pde.amr.settings import AdaptSettings
from meanfield_pde.case.attention_table import attention_table, tables_beside
from meanfield_pde.case.case import ADAPT_KEYS, Case
from meanfield_pde.case.file import (
    MESH_KEYS,
    OBSERVABLES,
    PLAIN_CLASSES,
    PLAIN_SECTIONS,
    Table,
    parse,
)
from meanfield_pde.solver.settings import AUTO, TimeCase
from meanfield_pde.support.arguments import defaults_of
from meanfield_pde.support.old_names import with_new_keys

# Results do not depend on it: whoever was refused for it goes on with a larger one.
MAX_CELLS_KEY = "adapt.max_cells"
FREE = ("time", "output", MAX_CELLS_KEY)  # what may change when a run is resumed


def case_text(case: Case) -> str:
    """The case as TOML, with every default spelled out; reading it gives the same case."""
    attention, mesh = case.attention, case.mesh
    tables: dict[str, Table] = {
        "attention": attention_table(attention),
        **tables_beside(attention),
        "mesh": _fields(
            mesh, "kind", *(key for key in MESH_KEYS[mesh.kind] if getattr(mesh, key) is not None)
        )
        | ({"path": mesh.path.resolve().as_posix()} if mesh.path else {}),
        "adapt": _fields(case.adapt, *ADAPT_KEYS) if case.adapt else {},
        "noise": _fields(case.noise, "strength") if case.noise.strength else {},
        "initial": case.initial.to_table(),
        "solver": _fields(case.solver, *PLAIN_SECTIONS["solver"]),
        "time": _fields(case.time, *_time_keys(case.time)),
        OBSERVABLES: dict(case.observables),
        "compare": _fields(case.compare, *PLAIN_SECTIONS["compare"]) if case.compare else {},
        "output": _fields(case.output, *PLAIN_SECTIONS["output"]),
    }
    text = tomli_w.dumps({name: table for name, table in tables.items() if table})
    # One line for each row of numbers; a line break inside brackets is never inside a string.
    return re.sub(
        r"\[\n((?:\s+[-+.\w]+,\n)+)\s*\]",
        lambda row: f"[{' '.join(row[1].split())[:-1]}]",
        text,
    )


def _time_keys(time: TimeCase) -> list[str]:
    saved = "save_at" if time.save_every is None else "save_every"
    return ["until", saved, *(() if time.steady is None else ("steady", "steady_metastable"))]


def differing_keys(text: str, other: str, *, ignore: Iterable[str] = ()) -> tuple[str, ...]:
    """Keys ("section.key") in which two case texts differ, those that `ignore` names left aside.

    Args:
        text: a case as written by `case_text`.
        other: the case to compare with.
        ignore: keys, or whole sections.
    """
    ours, theirs, skipped = _flat(text), _flat(other), set(ignore)
    return tuple(
        key
        for key in sorted(ours.keys() | theirs.keys())
        if not {key, key.split(".")[0]} & skipped and not _same(ours.get(key), theirs.get(key))
    )


def _same(one: object, other: object) -> bool:
    if _EARLIER_DEFAULT in (one, other):
        return {one, other} <= {_EARLIER_DEFAULT, AUTO, "muscl"}
    return one == other


def same_problem(text: str, other: str) -> bool:
    """Whether two case texts are one problem, which a run may resume: `FREE` aside."""
    return not differing_keys(text, other, ignore=FREE)


def same_case(text: str, other: str) -> bool:
    """Whether two case texts give the same results, wherever these are written."""
    return not differing_keys(text, other, ignore=("output.directory", MAX_CELLS_KEY))


def _fields(section: object, *names: str) -> Table:
    """The named fields as values that TOML knows."""
    return _plain({name: getattr(section, name) for name in names})


def _plain(values: Table) -> Table:
    known: dict[type, Callable[[Any], Any]] = {tuple: list, type(Path()): Path.as_posix}
    return {name: known.get(type(v), lambda same: same)(v) for name, v in values.items()}


def _flat(text: str) -> Table:
    """The values of a case text by "section.key"; one of an earlier version like one of this.

    A key that is newer than the text counts as its default.
    """
    tables, _ = with_new_keys(parse(text))
    solver = tables.get("solver", {})
    if "step_tolerance" not in solver and solver.get("scheme") == "muscl":
        solver["scheme"] = _EARLIER_DEFAULT
    for name, defaults in _DEFAULTS.items():
        if isinstance(table := tables.get(name), dict):
            tables[name] = defaults | table
    return {
        f"{section}.{key}": value
        for section, table in tables.items()
        for key, value in (table if isinstance(table, dict) else {"": table}).items()
    }


# The scheme of a text that was written before there was `step_tolerance`: then "muscl" was the
# default, and stands in all of them.
_EARLIER_DEFAULT = "muscl, of an earlier version"
# What the keys of a section are if they are left out.
_DEFAULTS = {
    name: _plain({key: one for key, one in defaults_of(section).items() if one is not None})
    for name, section in PLAIN_CLASSES.items()
} | {"adapt": {key: one for key, one in defaults_of(AdaptSettings).items() if key in ADAPT_KEYS}}
