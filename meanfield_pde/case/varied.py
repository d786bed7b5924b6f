"""A case with other values of some of its keys, each named as messages name it.

attention.beta      attention.value[1][1]      initial.components[0].concentration
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meanfield_pde.case.attention_table import Table
from meanfield_pde.case.case import ADAPT_KEYS, Case
from meanfield_pde.case.file import case_of, parse
from meanfield_pde.case.text import case_text
from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import shown
from meanfield_pde.support.plain import plain

_KEY = re.compile(r"[\w-]+(?:\.[\w-]+|\[\d+\])+")


def varied_case(case: Case, values: Mapping[str, Any]) -> Case:
    """The case with other values, checked as those of a case file are; InputError names them.

    Args:
        case: in which every other key stays as it is.
        values: by their keys, "section.key", with [i] for an entry of a list, from 0 on.
    """
    document = parse(case_text(case))
    try:
        for key, value in values.items():
            _put(document, key, plain(value))
        found = case_of(document, Path("varied.toml"))
    except InputError as error:
        what = ", ".join(f"{key} = {shown(value)}" for key, value in values.items())
        raise InputError(f"{what}: {error}") from None
    adapt = found.adapt
    if adapt is not None and case.adapt is not None:  # with settings that no case file holds
        adapt = replace(case.adapt, **{key: getattr(adapt, key) for key in ADAPT_KEYS})
    return replace(found, adapt=adapt, source=None)


def _put(document: Table, key: str, value: Any) -> None:
    """Put a value in the place of a key, in a section of its own if there is none yet."""
    if not _KEY.fullmatch(key):
        raise InputError("a key is its section and its name, such as attention.beta")
    *way, last = [
        int(part[1:-1]) if part[0] == "[" else part for part in re.findall(r"[\w-]+|\[\d+\]", key)
    ]
    place: Any = document
    for step in way:
        place = _entry(
            document.setdefault(str(step), {}) if place is document else _inside(place, step)
        )
    if isinstance(last, int):
        _inside(place, last)
    elif not isinstance(place, dict):
        raise InputError(f"there is no '{last}' in {shown(place)}")
    place[last] = value


def _entry(found: Any) -> Any:
    """What was found, if it has entries of its own."""
    if not isinstance(found, dict | list):
        raise InputError(f"{shown(found)} has no entries")
    return found


def _inside(place: Any, step: str | int) -> Any:
    """The entry of a table or a list; InputError if there is none."""
    if isinstance(step, int) and isinstance(place, list):
        if step >= len(place):
            raise InputError(f"there is no entry [{step}], but {len(place)}, from [0] on")
        return place[step]
    if isinstance(place, dict) and step in place:
        return place[step]
    raise InputError(f"there is no entry '{step}' in {shown(place)}")
