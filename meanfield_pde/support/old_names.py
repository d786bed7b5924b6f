"""Names of earlier versions, which are still read, with one line that says the new ones.

Users have them in case files, result folders, scripts and commands. All of them stand here, and in
the table "Older names" of demos/reference/commands.md, which a test holds against these.
"""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import did_you_mean

LOG = logging.getLogger("meanfield_pde")

# Section and key of a case file.
CASE_KEYS = {("mesh", "resolution"): ("adapt", "tolerance")}
# Attributes in Python, by the names of their classes.
ATTRIBUTES = {"TokenComparison": {"judgement": "diagnosis"}}
# Keyword arguments in Python.
KEYWORDS = {"resolution": "adapt", "however_long": "allow_long"}
# Options of commands.
OPTIONS = {"--however-long": "--allow-long"}
# Columns of history.csv, of the rows in density.h5 and checkpoint.h5, and of lifetime.csv.
COLUMNS = {
    "mesh_error": "w1_error_estimate",
    "least_width": "min_cell_width",
    "spot_mass": "patch_mass",
    "bar_limit": "quantisation_limit",
    "bar_zero": "quantisation_zero",
    "bar_zero_to_limit": "quantisation_zero_to_limit",
}
# What other tables call a column of the history: `order` is one of transition.csv.
ELSEWHERE = {"order": "mean_norm"}
# Arrays of a state in checkpoint.h5, by the beginnings of their names, and an array that has
# become the attribute of this name.
_STATE_ARRAYS = {"spot_": "patch_"}
_STATE_CLOCKS = {"leaf_changes": "regrids"}

_SAID: set[str] = set()  # lines about files: a folder may be read several times


def with_new_keys(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the tables of a case with new keys for old ones, and a line for each of these.

    InputError if a key is given by both names.
    """
    tables, lines = dict(document), list[str]()
    for (old_section, old), (section, new) in CASE_KEYS.items():
        given, there = tables.get(old_section), tables.get(section, {})
        if not (isinstance(given, dict) and isinstance(there, dict) and old in given):
            continue
        name = f"{section}.{new}"
        if new in there:
            raise InputError(f"{old_section}.{old} is the older name of {name}; give one of them")
        tables[old_section] = {key: value for key, value in given.items() if key != old}
        tables[section] = there | {new: given[old]}
        lines.append(f"{old_section}.{old} is called {name} now: write [{section}] {new} = ...")
    return tables, lines


def new_case_key(key: str) -> str:
    """Return a key of a case, "section.key", by its new name, and say so in one line."""
    section, _, name = key.partition(".")
    if (section, name) not in CASE_KEYS:
        return key
    new = ".".join(CASE_KEYS[section, name])
    LOG.warning("%s is called %s now", key, new)
    return new


def accept_old_attributes[C](kind: type[C]) -> type[C]:
    """Return the class, which has its attributes by old names, too, with a FutureWarning."""
    for old, new in ATTRIBUTES[kind.__name__].items():

        def renamed(own: C, old: str = old, new: str = new) -> Any:
            message = f"{kind.__name__}: {old} is called {new} now"
            warnings.warn(message, FutureWarning, stacklevel=2)
            return getattr(own, new)

        setattr(kind, old, property(renamed, doc=f"Its older name: see `{new}`."))
    return kind


def accept_old_keywords[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, which takes the old names of its keyword arguments, too.

    A FutureWarning names the new one; InputError if an argument is given by both.
    """
    known = inspect.signature(function).parameters
    renamed = {old: new for old, new in KEYWORDS.items() if new in known}
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def renewed(*arguments: P.args, **options: P.kwargs) -> R:
        for old in renamed.keys() & options.keys():
            new = renamed[old]
            if new in options:
                raise InputError(f"{name}: {old} is the older name of {new}; give one of them")
            message = f"{name}: {old} is called {new} now"
            warnings.warn(message, FutureWarning, stacklevel=2)
            options[new] = options.pop(old)
        return function(*arguments, **options)

    return renewed


def with_new_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return command-line arguments with new options for old ones, and a line for each of these.

    InputError if an option is given by both names.
    """
    found = [one for one in arguments if one in OPTIONS]
    for old in found:
        if OPTIONS[old] in arguments:
            raise InputError(f"{old} is the older name of {OPTIONS[old]}; give one of them")
    lines = [f"{old} is called {OPTIONS[old]} now" for old in dict.fromkeys(found)]
    return [OPTIONS.get(one, one) for one in arguments], lines


def new_columns(names: Iterable[str], where: object) -> list[str]:
    """Return columns with new names for old ones, and say so in one line about the file.

    Args:
        names: of the columns, in their order.
        where: the file or folder that they are read from.
    """
    names = list(names)
    old = [name for name in names if name in COLUMNS]
    for name in old:
        if COLUMNS[name] in names:
            raise InputError(
                f"{where}: column '{name}' is the older name of '{COLUMNS[name]}', which is "
                "there, too"
            )
    if old:
        read = ", ".join(f"{name} as {COLUMNS[name]}" for name in old)
        line = f"{where}: written by an earlier version; its columns are read by new names, {read}"
        if line not in _SAID:
            _SAID.add(line)
            LOG.warning("%s", line)
    return [COLUMNS.get(name, name) for name in names]


class Columns[T](dict[str, T]):
    """Columns by name, of which one asked for by its old name is found, with a FutureWarning.

    KeyError names those that there are.
    """

    def __missing__(self, name: str) -> T:
        new = COLUMNS.get(name, name)
        if new not in self:
            near = did_you_mean(ELSEWHERE.get(name, name), self) or "."
            raise KeyError(f"no column '{name}'{near} There are {', '.join(self)}")
        warnings.warn(f"the column {name} is called {new} now", FutureWarning, stacklevel=2)
        return self[new]


def new_state_arrays(names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return what arrays of a state in a checkpoint, and clocks kept as such, are called now.

    Args:
        names: those in the file.

    Returns:
        By new name the name in the file: the arrays, and the clocks.
    """
    arrays, clocks = dict[str, str](), dict[str, str]()
    for name in names:
        if name in _STATE_CLOCKS:
            clocks[_STATE_CLOCKS[name]] = name
            continue
        begin = next((one for one in _STATE_ARRAYS if name.startswith(one)), "")
        arrays[_STATE_ARRAYS.get(begin, "") + name.removeprefix(begin)] = name
    return arrays, clocks
