"""What functions that users call are given, held against their annotations before anything is done.

    @typed
    def circle_mesh(cells: int = 800, *, grade: float = 1.0, ...) -> Mesh: ...

    circle_mesh("40")     InputError: circle_mesh: cells must be a whole number, got '40'

An annotation says of what type a value has to be; in which range, the function says. Annotations
that are not listed in `_expected` are left unchecked, as are those of results.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import (
    is_number,
    number_list,
    numbers_as_given,
    shown,
    to_path,
)

# Whether a value will do, and what to call what would have done.
_Check = tuple[Callable[[Any], bool], str]


def typed_except[**P, R](*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The decorator `typed` for a function with arguments that the first rank alone has to give."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*arguments: P.args, **options: P.kwargs) -> R:
            given = signature.bind(*arguments, **options).arguments
            looked_at = {name: value for name, value in given.items() if name not in names}
            _check(looked_at, _hints(function), f"{function.__name__}: ")
            return function(*arguments, **options)

        return checked

    return decorate


def typed[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """The function, with an InputError for arguments that are not of the types it names."""
    return typed_except()(function)


def check_fields(instance: Any, where: str = "") -> None:
    """InputError if a field of a dataclass is not of the type that it is annotated with.

    Args:
        instance: in the making, from its `__post_init__`.
        where: what its fields are called in messages, in front of their names.
    """
    given = {one.name: getattr(instance, one.name) for one in fields(instance) if one.init}
    of_fields = _hints(instance.__class__)
    _check(given, of_fields, where or f"{type(instance).__name__}: ")


@functools.cache
def _hints(annotated: Any) -> dict[str, Any]:
    if isinstance(annotated, type):
        return typing.get_type_hints(annotated)
    # That of the result is left out: what it names may not be imported yet, see `_lazy`.
    given = {name: one for name, one in annotated.__annotations__.items() if name != "return"}
    names = inspect.unwrap(annotated).__globals__
    return typing.get_type_hints(types.SimpleNamespace(__annotations__=given), names)


def _check(given: Mapping[str, Any], hints: Mapping[str, Any], where: str) -> None:
    for name, value in given.items():
        checks = _expected(hints.get(name, Any))
        if not any(fits(value) for fits, _ in checks):
            expected = " or ".join(dict.fromkeys(words for _, words in checks))
            _explain(value, where + name, checks)
            raise InputError(f"{where}{name} must be {expected}, got {shown(value)}")


def _explain(value: Any, name: str, checks: list[_Check]) -> None:
    """Raise what is known more exactly of a path or of an array that will not do."""
    if any(fits is _is_array for fits, _ in checks) and not isinstance(value, str | None):
        numbers_as_given(value, name)
    if any(fits is _is_path for fits, _ in checks) and isinstance(value, str | os.PathLike):
        to_path(value, name)


@functools.cache
def _expected(hint: Any) -> list[_Check]:
    """What an annotation asks for; of several checks one has to fit."""
    if isinstance(hint, typing.TypeAliasType):
        return _expected(hint.__value__)
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        parts = typing.get_args(hint)
        if Path in parts:  # then a text is one
            parts = tuple(part for part in parts if part is not str)
        return [check for part in parts for check in _expected(part)]
    if origin in (collections.abc.Sequence, tuple, list):
        (entry,) = _entries(typing.get_args(hint))
        return [(functools.partial(_is_list, entry), f"a list of {_plural(entry)}")]
    if origin is collections.abc.Iterable:
        return [(_is_iterable, "a list")]
    if origin is collections.abc.Callable:
        return [(callable, "a function")]
    simple = {
        int: (_is_whole, "a whole number"),
        float: (is_number, "a number"),
        bool: (lambda value: isinstance(value, bool | np.bool_), "True or False"),
        str: (lambda value: isinstance(value, str), "a text"),
        Path: (_is_path, "a path"),
        np.ndarray: (_is_array, "an array of numbers"),
        types.NoneType: (lambda value: value is None, "None"),
    }
    if hint in simple:
        return [simple[hint]]
    if getattr(hint, "_is_protocol", False):
        return [(functools.partial(_has, hint.__protocol_attrs__), f"one of {hint.__name__}")]
    if isinstance(hint, type) and hint is not Any:
        return [(lambda value: isinstance(value, hint), f"{_article(hint)} {_name(hint)}")]
    return [(lambda value: True, "anything")]


def _entries(arguments: tuple[Any, ...]) -> tuple[list[_Check]]:
    """What the entries of a list have to be; those of tuples of a certain length are not looked at.

    The field says itself what each of these is.
    """
    kinds = [one for one in arguments if one is not Ellipsis]
    return (_expected(kinds[0]) if len(kinds) == 1 else [(lambda value: True, "values")],)


def _plural(checks: list[_Check]) -> str:
    names = (words.split(" ", 1)[-1] for _, words in checks)
    return " or ".join(name if name.endswith("s") else f"{name}s" for name in names)


def _is_list(entry: list[_Check], value: Any) -> bool:
    try:
        number_list(value, "")
    except InputError:
        return False
    return all(any(fits(one) for fits, _ in entry) for one in value)


def _is_iterable(value: Any) -> bool:
    """Whether a loop may go over a value; nothing is taken from it."""
    try:
        iter(value)
    except TypeError:
        return False
    return not isinstance(value, str)


def _has(attributes: set[str], value: Any) -> bool:
    """Whether a value has all attributes; none of them is evaluated."""
    missing = object()
    found = (inspect.getattr_static(value, name, missing) for name in attributes)
    return all(one is not missing for one in found)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and is_number(value)


def _is_path(value: Any) -> bool:
    try:
        to_path(value, "")
    except InputError:
        return False
    return True


def _is_array(value: Any) -> bool:
    try:
        numbers_as_given(value, "")
    except InputError:
        return False
    return True


def _name(hint: type) -> str:
    package = hint.__module__.split(".")[0]
    return hint.__name__ if package == "meanfield_pde" else f"{package}.{hint.__name__}"


def _article(hint: type) -> str:
    return "an" if _name(hint)[0] in "AEIOUaeiou" else "a"
