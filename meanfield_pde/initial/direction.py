"""Directions that users give as vectors of any length but zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import number_list, real


def vector_of(given: Any, name: str) -> tuple[float, ...]:
    """Return the entries of a vector that has a direction; InputError for others."""
    entries = number_list(given, name)
    found = tuple(real(v, f"{name}[{i}]", "a number") for i, v in enumerate(entries))
    if not any(found):
        raise InputError(f"{name} must be a non-zero vector, got {list(found)}")
    return found


def unit_vector(entries: tuple[float, ...]) -> np.ndarray:
    """Return the unit vector along a vector."""
    vector = np.array(entries)
    vector /= np.abs(vector).max()  # the square of a very small or large entry is out of range
    return vector / np.linalg.norm(vector)
