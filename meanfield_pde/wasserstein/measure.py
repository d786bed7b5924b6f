"""Discrete measures: points with masses, and the `.npz` files that hold them."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.checks import LARGEST_COORDINATE, numbers
from meanfield_pde.support.npz import read_arrays, unused_arrays, write_arrays

LOG = logging.getLogger("meanfield_pde")


@dataclass(frozen=True)
class Measure:
    """A discrete measure, the sum of masses[i] times a unit atom at points[i].

    Attributes:
        points: N x d array.
        masses: N non-negative numbers, not all zero.
        spread: optional, N numbers: the second moment of the distribution that atom i stands for
            about its point (zero for a true atom). It gives the discretisation bar of a distance.
    """

    points: np.ndarray
    masses: np.ndarray
    spread: np.ndarray | None = None

    def __post_init__(self) -> None:
        points = np.atleast_2d(numbers(self.points, "points"))
        masses = np.atleast_1d(numbers(self.masses, "masses"))
        if points.ndim != 2 or masses.ndim != 1 or len(points) != len(masses):
            raise InputError(
                f"a measure needs points of shape (N, d) and N masses, "
                f"got {points.shape} and {masses.shape}"
            )
        if not np.isfinite(points).all() or not np.isfinite(masses).all():
            raise InputError("a measure needs finite points and masses")
        if points.size and np.abs(points).max() > LARGEST_COORDINATE:
            raise InputError(
                f"a measure needs coordinates up to {LARGEST_COORDINATE:g}, so that distances stay "
                f"finite, got {np.abs(points).max():g}"
            )
        if (masses < 0).any():
            raise InputError(
                f"a measure needs masses >= 0, got {masses.min():g} at atom {masses.argmin()}"
            )
        with np.errstate(over="ignore"):
            total = masses.sum()
        if not total > 0:
            raise InputError("a measure needs a positive total mass, got an empty or zero measure")
        if math.isinf(total):
            raise InputError("the total of the masses of a measure overflows; scale them down")
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "masses", masses)
        if self.spread is not None:
            spread = np.atleast_1d(numbers(self.spread, "spread"))
            if spread.shape != masses.shape or not (np.isfinite(spread) & (spread >= 0)).all():
                raise InputError(
                    "the spread of a measure needs one finite number >= 0 for each atom"
                )
            object.__setattr__(self, "spread", spread)

    @property
    def dimension(self) -> int:
        """Dimension d of the space the points live in."""
        return int(self.points.shape[1])

    @property
    def width(self) -> float:
        """Root of the mean spread, a bound on W_2 to the distribution that the atoms stand for."""
        if self.spread is None:
            return 0.0
        return math.sqrt(self.masses @ self.spread / self.masses.sum())

    @classmethod
    @typed
    def read(cls, path: str | Path) -> Measure:
        """Read an `.npz` file with arrays `points` and `masses` (and `spread`, if present)."""
        try:
            arrays = read_arrays(path)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        missing = {"points", "masses"} - arrays.keys()
        if missing:
            raise InputError(f"{path}: a measure needs the array '{sorted(missing)[0]}'")
        if unused := unused_arrays(arrays, ("points", "masses", "spread")):
            LOG.warning("%s: %s", path, unused)
        try:
            return cls(arrays["points"], arrays["masses"], arrays.get("spread"))
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    @typed
    def write(self, path: str | Path) -> None:
        """Write the measure as `.npz`, in which its name has to end."""
        arrays = {"points": self.points, "masses": self.masses}
        if self.spread is not None:
            arrays["spread"] = self.spread
        write_arrays(path, arrays)
