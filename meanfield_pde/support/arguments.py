"""What functions that users call are given, held against their annotations before anything is done.

    @typed
    def circle_mesh(cells: int = 800, *, grade: float = 1.0, ...) -> Mesh: ...

    circle_mesh("40")     InputError: circle_mesh: cells must be a whole number, got '40'

An annotation says of what type a value has to be; in which range, the function says. What fits is
passed on in that type: a number of numpy or a fraction as a float, a text that names a file as a
path, a list as a tuple. Annotations that are not listed in `_expected` are left unchecked, as are
those of results.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import math
import os
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
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

# How to come by one, where a number is often given in its place.
_EXAMPLES = {"dolfinx.Mesh": ", such as circle_mesh(800) or sphere_mesh(5120)"}


@dataclass(frozen=True)
class _Check:
    """Whether a value will do, what to call what would have done, and the value as it is used."""

    fits: Callable[[Any], bool]
    words: str
    used: Callable[[Any], Any] = lambda value: value


def typed_except[**P, R](*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The decorator `typed` for a function with arguments that the first rank alone has to give."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*arguments: P.args, **options: P.kwargs) -> R:
            given = signature.bind(*arguments, **options)
            looked_at = {n: value for n, value in given.arguments.items() if n not in names}
            given.arguments |= _checked(looked_at, _hints(function), f"{function.__name__}: ")
            return function(*given.args, **given.kwargs)

        return checked

    return decorate


def typed[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """The function, with an InputError for arguments that are not of the types it names."""
    return typed_except()(function)


def defaults_of(section: type) -> dict[str, Any]:
    """The defaults of the fields of a dataclass that have one, by name; none of another class."""
    found: dict[str, Any] = {}
    for one in fields(section) if is_dataclass(section) else ():
        if one.default is not MISSING:
            found[one.name] = one.default
        elif one.default_factory is not MISSING:
            found[one.name] = one.default_factory()
    return found


def required_keys(section: type, keys: Collection[str]) -> tuple[str, ...]:
    """Of the keys of a table those that must be there: all but fields that have a default."""
    optional = defaults_of(section)
    return tuple(key for key in keys if key not in optional)


def check_fields(instance: Any, where: str = "", *, unchecked: Collection[str] = ()) -> None:
    """InputError if a field of a dataclass is not of the type that it is annotated with.

    Args:
        instance: in the making, from its `__post_init__`.
        where: what its fields are called in messages, in front of their names.
        unchecked: fields that the class itself has more to say of.
    """
    names = [one.name for one in fields(instance) if one.init and one.name not in unchecked]
    given = {name: getattr(instance, name) for name in names}
    of_fields = _hints(instance.__class__)
    for name, value in _checked(given, of_fields, where or f"{type(instance).__name__}: ").items():
        object.__setattr__(instance, name, value)


def check_settings(
    instance: Any, where: str, *, zero: Collection[str] = (), infinite: Collection[str] = ()
) -> None:
    """InputError if a field is not of its type, or a number among them is not finite and > 0.

    Args:
        instance: a dataclass in the making, from its `__post_init__`.
        where: what its fields are called in messages, in front of their names.
        zero: fields that may be zero, too.
        infinite: fields that may be infinite, too.
    """
    check_fields(instance, where)
    for one in fields(instance):
        value = getattr(instance, one.name)
        for number in value.values() if isinstance(value, Mapping) else [value]:
            if not isinstance(number, int | float):
                continue
            least, most = one.name in zero, one.name in infinite
            if not (number > 0 or (least and number == 0)) or (math.isinf(number) and not most):
                expected = f"a {'' if most else 'finite '}number {'>=' if least else '>'} 0"
                raise InputError(f"{where}{one.name} must be {expected}, got {shown(number)}")


@functools.cache
def _hints(annotated: Any) -> dict[str, Any]:
    if isinstance(annotated, type):
        return typing.get_type_hints(annotated)
    # That of the result is left out: what it names may not be imported yet, see `_lazy`.
    given = {name: one for name, one in annotated.__annotations__.items() if name != "return"}
    names = inspect.unwrap(annotated).__globals__
    return typing.get_type_hints(types.SimpleNamespace(__annotations__=given), names)


def _checked(given: Mapping[str, Any], hints: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values as they are used; InputError if one is of another type."""
    used = {}
    for name, value in given.items():
        checks = _expected(hints.get(name, Any))
        check = next((one for one in checks if one.fits(value)), None)
        if check is None:
            expected = " or ".join(dict.fromkeys(one.words for one in checks))
            _explain(value, where + name, checks)
            raise InputError(f"{where}{name} must be {expected}, got {shown(value)}")
        used[name] = check.used(value)
    return used


def _explain(value: Any, name: str, checks: list[_Check]) -> None:
    """Raise what is known more exactly of a path or of an array that will not do."""
    if any(one.fits is _is_array for one in checks) and not isinstance(value, str | None):
        numbers_as_given(value, name)
    if any(one.fits is _is_path for one in checks) and isinstance(value, str | os.PathLike):
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
        of_all = functools.partial(_each, entry)
        return [_Check(functools.partial(_is_list, entry), f"a list of {_plural(entry)}", of_all)]
    if origin is collections.abc.Mapping:
        entries = [_expected(one) for one in typing.get_args(hint)]
        return [
            _Check(
                functools.partial(_is_table, *entries),
                f"a table from {' to '.join(map(_plural, entries))}",
                functools.partial(_each_of_table, *entries),
            )
        ]
    if origin is collections.abc.Iterable:
        return [_Check(_is_iterable, "a list")]
    if origin is collections.abc.Callable:
        return [_Check(callable, "a function")]
    simple = {
        int: _Check(_is_whole, "a whole number", int),
        float: _Check(is_number, "a number", float),
        bool: _Check(lambda value: isinstance(value, bool | np.bool_), "True or False", bool),
        str: _Check(lambda value: isinstance(value, str), "a text", str),
        Path: _Check(_is_path, "a path", Path),
        np.ndarray: _Check(_is_array, "an array of numbers", np.asarray),
        types.NoneType: _Check(lambda value: value is None, "None"),
    }
    if hint in simple:
        return [simple[hint]]
    if getattr(hint, "_is_protocol", False):
        has_all = functools.partial(_has, hint.__protocol_attrs__)
        return [_Check(has_all, f"one of {hint.__name__}")]
    if isinstance(hint, type) and hint is not Any:
        name = _name(hint)
        words = f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}{_EXAMPLES.get(name, '')}"
        return [_Check(lambda value: isinstance(value, hint), words)]
    return [_Check(lambda value: True, "anything")]


def _entries(arguments: tuple[Any, ...]) -> tuple[list[_Check]]:
    """What the entries of a list have to be; those of tuples of a certain length are not looked at.

    The field says itself what each of these is.
    """
    kinds = [one for one in arguments if one is not Ellipsis]
    return (_expected(kinds[0]) if len(kinds) == 1 else [_Check(lambda value: True, "values")],)


def _plural(checks: list[_Check]) -> str:
    names = (one.words.split(" ", 1)[-1] for one in checks)
    return " or ".join(name if name.endswith("s") else f"{name}s" for name in names)


def _is_list(entry: list[_Check], value: Any) -> bool:
    try:
        number_list(value, "")
    except InputError:
        return False
    return all(_fits(entry, one) for one in value)


def _fits(checks: list[_Check], value: Any) -> bool:
    return any(one.fits(value) for one in checks)


def _used(checks: list[_Check], value: Any) -> Any:
    return next(one for one in checks if one.fits(value)).used(value)


def _each(entry: list[_Check], values: Any) -> tuple[Any, ...]:
    return tuple(_used(entry, one) for one in values)


def _is_table(key: list[_Check], entry: list[_Check], value: Any) -> bool:
    """Whether a value is a mapping of such keys to such entries."""
    return isinstance(value, Mapping) and all(
        _fits(key, name) and _fits(entry, one) for name, one in value.items()
    )


def _each_of_table(key: list[_Check], entry: list[_Check], table: Any) -> dict[Any, Any]:
    return {_used(key, name): _used(entry, one) for name, one in table.items()}


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
