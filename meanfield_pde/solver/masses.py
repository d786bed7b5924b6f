"""Masses of cells in one of two number formats, with one forward Euler step each.

`Doubles` are what they say. `ExtendedRange` holds a mass as mantissa 2^exponent, for tails below
the smallest double: the metastable state ends when the tail of the density has died out, and at
the predicted switch that may be 1e-1000. Either may hold the cells of a rank or all cells.

A forward Euler step of length h is a sum of positive terms,

    M_c(new) = M_c (1 - h out_c) + h in_c,
    out_c = sum_f max(q_f, 0) exp(g_f) / |c|,    in_c = sum_f max(-q_f, 0) rho_j exp(g_f),

with q_f the flux out of cell c and rho_j the density of the neighbour, so that log M is computed to
full relative accuracy, whatever its size. Mantissas and exponents are kept apart, because a single
number log M = -2000 would carry a relative error of 2e-13 in M. An extended step takes three times
as long as one with doubles; the two agree to rounding as long as doubles work.

A run begins with doubles and goes on with the extended range once its smallest mass comes near
their end (`LEAVE_DOUBLES`), unless the user says which it is to be.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from meanfield_pde.amr.remap import ZERO_EXPONENT, Remap
from meanfield_pde.errors import InputError
from meanfield_pde.history.store import MASSES
from meanfield_pde.solver.transport import Transport, scaled
from meanfield_pde.support.kernels import kernel

MANTISSA, EXPONENT = "mantissa", "exponent"
# Masses below the smallest normal double have lost their digits; they become exactly zero.
TINY = float(np.finfo(float).tiny)
# Doubles are left when a mass falls below exp(-this) = 1e-280, which leaves 28 decades to the
# smallest normal double: more than a step can cross, a stage leaving a cell 1 - 1 / e at least.
LEAVE_DOUBLES = 280 * math.log(10)
_LOG2 = math.log(2.0)  # from exponents of two to logarithms


class Masses(ABC):
    """Masses of cells: those of a rank, or of all.

    Attributes:
        values: what compiled functions take, masses (cells) or mantissas and exponents (2 x cells).
    """

    values: np.ndarray

    @property
    @abstractmethod
    def doubles(self) -> np.ndarray:
        """The masses as doubles; zero where they are below the smallest."""

    @property
    @abstractmethod
    def log(self) -> np.ndarray:
        """Their logarithms; -inf where a mass is exactly zero."""

    @property
    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint holds, by name; `of_arrays` takes it."""

    @abstractmethod
    def each(self, function: Callable[[np.ndarray], np.ndarray]) -> Self:
        """The same with a function applied to each array: copied, gathered, scattered."""

    @abstractmethod
    def remapped(self, remap: Remap) -> Self:
        """The masses of all cells on another forest."""

    @abstractmethod
    def plus(self, added: np.ndarray) -> Self:
        """The masses with others added."""

    @abstractmethod
    def times(self, kept: np.ndarray) -> Self:
        """The part of the masses that cells keep."""

    def euler(
        self, transport: Transport, flux: np.ndarray, length: float, before: Self, share: float
    ) -> None:
        """Forward Euler step, in place, then share x before + (1 - share) x it. Collective."""
        transport.euler(self.values, flux, length, before.values, share)

    def flush_and_check(self) -> float:
        """Flush what has lost its digits to zero; return -log of the smallest mass that is left.

        That of doubles; 0 where every mass can be held, and infinity where one is negative or not
        finite.
        """
        return float(flush_and_check(self.values))

    def copy(self) -> Self:
        """The same in arrays of its own."""
        return self.each(np.copy)


@dataclass(eq=False)
class Doubles(Masses):
    """Masses as doubles."""

    values: np.ndarray

    @property
    def doubles(self) -> np.ndarray:
        """The masses themselves, to be changed by nobody."""
        return self.values

    @property
    def log(self) -> np.ndarray:
        """Logarithms; -inf for zero."""
        with np.errstate(divide="ignore"):
            return np.log(self.values)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """By name."""
        return {MASSES: self.values}

    def each(self, function: Callable[[np.ndarray], np.ndarray]) -> Doubles:
        """Applied to the masses."""
        return Doubles(function(self.values))

    def remapped(self, remap: Remap) -> Doubles:
        """On another forest."""
        return Doubles(remap.doubles(self.values))

    def plus(self, added: np.ndarray) -> Doubles:
        """With others added."""
        return Doubles(self.values + added)

    def times(self, kept: np.ndarray) -> Doubles:
        """A part of each."""
        return Doubles(self.values * kept)


@dataclass(eq=False)
class ExtendedRange(Masses):
    """Masses mantissa 2^exponent, the mantissa in [1/2, 1); both are doubles, exponents whole."""

    values: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> ExtendedRange:
        """Masses given as doubles."""
        mantissa, exponent = np.frexp(np.asarray(values, dtype=float))
        return cls(np.stack([mantissa, np.where(mantissa > 0, exponent, ZERO_EXPONENT)]))

    @property
    def mantissa(self) -> np.ndarray:
        """The mantissas."""
        return self.values[0]

    @property
    def exponent(self) -> np.ndarray:
        """The exponents of two."""
        return self.values[1]

    @property
    def doubles(self) -> np.ndarray:
        """As doubles; zero where that is below the smallest."""
        return np.ldexp(self.mantissa, np.maximum(self.exponent, -2000.0).astype(np.int32))

    @property
    def log(self) -> np.ndarray:
        """Logarithms; -inf for zero."""
        with np.errstate(divide="ignore"):
            return np.log(self.mantissa) + self.exponent * _LOG2

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """By name; the doubles are there for whoever reads the file."""
        return {MASSES: self.doubles, MANTISSA: self.mantissa, EXPONENT: self.exponent}

    def each(self, function: Callable[[np.ndarray], np.ndarray]) -> ExtendedRange:
        """Applied to mantissas and to exponents."""
        return ExtendedRange(np.stack([function(row) for row in self.values]))

    def remapped(self, remap: Remap) -> ExtendedRange:
        """On another forest."""
        return ExtendedRange(np.stack(remap.extended(self.mantissa, self.exponent)))

    def plus(self, added: np.ndarray) -> ExtendedRange:
        """With others added."""
        return self._plus(ExtendedRange.of(added))

    def times(self, kept: np.ndarray) -> ExtendedRange:
        """A part of each."""
        rest = ExtendedRange(self.values * np.stack([kept, np.ones(len(kept))]))
        return rest._plus(ExtendedRange.of(np.zeros(len(kept))))

    def _plus(self, other: ExtendedRange) -> ExtendedRange:
        """Return M + M', cell by cell."""
        return ExtendedRange(_sum(self.values, other.values))


def of_arrays(arrays: Mapping[str, np.ndarray]) -> Masses:
    """Return the masses that `Masses.arrays` stand for."""
    if MASSES not in arrays or (MANTISSA in arrays) != (EXPONENT in arrays):
        raise InputError(
            f"the state needs {MASSES}, and {MANTISSA} with {EXPONENT} or neither, got "
            f"{', '.join(sorted(arrays))}"
        )
    if MANTISSA in arrays:
        return ExtendedRange(np.stack([arrays[MANTISSA], arrays[EXPONENT]]).astype(float))
    return Doubles(np.array(arrays[MASSES], dtype=float))


# What follows is compiled, and carries no types: numba compiles it for the arguments it meets.
@kernel
def flush_and_check(values):
    """See `Masses.flush_and_check`; in the extended range there is nothing to flush."""
    masses = values if values.ndim == 1 else values[0]  # known to the compiler
    valid = True
    smallest = 1.0
    for c in range(masses.size):
        if not 0.0 <= masses[c] < np.inf:
            valid = False
        elif values.ndim == 1:
            if masses[c] < TINY:
                masses[c] = 0.0
            else:
                smallest = min(smallest, masses[c])
    return -math.log(smallest) if valid else np.inf


@kernel
def _sum(values, others):
    """Return M + M', cell by cell, as mantissas and exponents."""
    result = np.empty_like(values)
    for c in range(values.shape[1]):
        scale = max(values[1, c], others[1, c])
        total = scaled(values[0, c], values[1, c] - scale)
        total += scaled(others[0, c], others[1, c] - scale)
        fraction, power = math.frexp(total)
        result[0, c] = fraction
        result[1, c] = scale + power if total > 0 else ZERO_EXPONENT
    return result
