"""Imports that wait until they are needed: a start is nearly all imports.

`meanfield-pde limit` takes 0.45 s of a core, 1.8 s with all of these (`/usr/bin/time -f %U`):

    public names    imported from the module where they stand, when they are asked for (below)
    commands        what a command works with is imported by its function, in `cli`
    matplotlib      by the functions of `experiments` and `cli` that have figures drawn, on the rank
                    that draws them
    DOLFINx, numba  by modules that work on a mesh or hold kernels; so what says what a case is, and
                    what theory predicts of it, imports neither such a module nor scipy's larger
                    parts, but in the functions that need them, or for types alone
    scipy.stats     where random numbers are drawn and lines fitted (0.4 s)
    scipy.optimize, scipy.interpolate   by distances that need them, and by the rank that concludes
                    a run (0.08 s)

`tests/support/test_starts.py` says which command may import what.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package that imports its public names when they are asked for (PEP 562, as a class)."""

    _HOMES: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name == "_HOMES" or name not in self._HOMES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(self._HOMES[name]), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # A subpackage that is imported does not take the place of a function of the same name.
        if not (name in self._HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._HOMES})


def import_when_asked(package: str) -> None:
    """Have a package import the names in its `_HOMES`, each from its module, when they are used."""
    module = sys.modules[package]
    module.__class__ = _Package
