"""Remap: masses taken from the leaves of one forest to those of another with the same roots.

Coarsened leaves hold the exact sum. A leaf that is refined gives its pieces p shares of its mass by
the density that is reconstructed in it (`mesh.quadratic_fit`),

    M_p = M ∫_p rho / sum over pieces q of ∫_q rho,

which add up to M to rounding, are positive, and have the relative accuracy w^3 |D^3 log rho| (w the
width of the leaf) however small M is.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.amr.forest import Forest
from meanfield_pde.mesh.geometry import quadrature
from meanfield_pde.mesh.quadratic_fit import Reconstruction, fits

# Exponent of a mass of exactly zero: an integer that is exact, below any that occurs.
ZERO_EXPONENT = -(2.0**52)


class Remap:
    """The conservative remap of masses between two forests.

    Attributes:
        origin: for each new leaf the leaf of `old` that holds it, or that holds its first part.

    Args:
        old, new: the forests.
        log_density: of each leaf of `old`; not used where nothing is refined.
    """

    def __init__(self, old: Forest, new: Forest, log_density: np.ndarray) -> None:
        # The old leaf with the first corner of each new one. The old leaves that are nobody's
        # first are merged into the new leaf that holds them.
        self.origin = np.searchsorted(old.keys, new.keys, "right") - 1
        rest = np.ones(old.count, dtype=bool)
        rest[self.origin] = False
        self._rest = np.flatnonzero(rest)
        self._into = np.searchsorted(new.keys, old.keys[self._rest], "right") - 1
        split = new.levels > old.levels[self.origin]
        self._share = np.ones(new.count)
        pieces = np.flatnonzero(split)
        if not len(pieces):
            return
        parent = self.origin[pieces]
        points, weights = quadrature(new.corners[pieces])
        found = fits(old.neighbours, old.corners, parent, points)
        rho = Reconstruction(parent, found).factors(log_density)
        weight = (weights * rho).sum(axis=1)
        total = np.bincount(parent, weight, old.count)
        self._share[pieces] = weight / total[parent]

    def doubles(self, values: np.ndarray) -> np.ndarray:
        """Masses of the new leaves from those of the old."""
        result = values[self.origin] * self._share
        np.add.at(result, self._into, values[self._rest])
        return result

    def extended(self, mantissa: np.ndarray, exponent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same for masses mantissa 2^exponent, of any size."""
        new_exponent = exponent[self.origin]
        np.maximum.at(new_exponent, self._into, exponent[self._rest])

        def scaled(leaves: np.ndarray, of: np.ndarray) -> np.ndarray:
            shift = np.maximum(exponent[leaves] - new_exponent[of], -2000.0)
            return np.ldexp(mantissa[leaves], shift.astype(np.int32))

        total = scaled(self.origin, np.arange(len(new_exponent))) * self._share
        np.add.at(total, self._into, scaled(self._rest, self._into))
        fraction, power = np.frexp(total)
        return fraction, np.where(fraction > 0, new_exponent + power, ZERO_EXPONENT)
