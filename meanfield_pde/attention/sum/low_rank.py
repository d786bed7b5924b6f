"""The sum for short scores: an expansion in Fourier modes or spherical harmonics.

With w = r u, |u| = 1, and y on the circle or the sphere at the angle g from u,

    exp(<w, y>) = sum_k (2 - [k = 0]) I_k(r) cos(k g) = sum_k (2 k + 1) i_k(r) P_k(cos g),

and the addition theorem separates u from y. Sources enter through their moments, and the cost is
(sources + targets) times the number of terms instead of sources times targets. The sum over y that
the mean needs is the same expansion for the masses M y, whose moments follow from those of M.

The weights of the terms are positive and add up to e^r. What is left out beyond the degree L is
therefore at most e^r T_L(r) times the mass, T_L the share of the weights beyond L; rounding adds a
multiple of the machine's precision. Against a Z that may be as small as e^(-r) this is an absolute
error, so that each mean is accepted only if the Z found shows that it is within the tolerance:
with both sums in error by at most e, the mean is in error by at most 2 e / Z and log Z by less.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.attention.sum.harmonics import BATCH, GROUPS, moments, sums
from meanfield_pde.attention.sum.tree import TILE
from meanfield_pde.support.threads import in_parts

HIGHEST_DEGREE = 160
_EPSILON = float(np.finfo(float).eps)
# The part of the tolerance that the terms left out may use up where Z is as large as it can be.
_TRUNCATION = 1e-4


def degree_for(longest: float, tolerance: float, dimension: int) -> int | None:
    """The degree L that scores of length `longest` need; None if it is beyond the highest."""
    enough = _beyond(longest, dimension)[: HIGHEST_DEGREE + 1] <= _TRUNCATION * tolerance + _EPSILON
    return int(enough.argmax()) if enough.any() else None


def _beyond(r: float, dimension: int) -> np.ndarray:
    """T_L(r) for L = 0, 1, ...: the share of the weights beyond degree L.

    The ratios of neighbours, I_k / I_(k-1) = r / (r I_(k+1) / I_k + 2 k) and the same with 2 k + 1
    for i_k, are stable from the top down.
    """
    last = 3 * HIGHEST_DEGREE
    ratio = np.ones(last + 1)
    following = 0.0
    for k in range(last, 0, -1):
        following = ratio[k] = r / (r * following + 2 * k + dimension - 2)
    number = np.arange(last + 1)
    multiplicity = 2.0 * number + 1 if dimension == 3 else np.where(number > 0, 2.0, 1.0)
    weight = multiplicity * np.cumprod(ratio)
    # Summed from the small end, with nothing beyond the last.
    beyond = np.append(np.cumsum(weight[:0:-1])[::-1], 0.0)
    return beyond / weight.sum()


class Expansion:
    """The expansion to degree L; its terms are numbered order by order, (m, k) with k >= m.

    On the sphere a term is p_km(z) e^(i m f), z the third coordinate and f the longitude, with
    p_km = sqrt((2 - [m = 0]) (k - m)! / (k + m)!) P_k^m, so that the addition theorem reads
    P_k(cos g) = sum_m p_km(z) p_km(z') cos m (f - f'). On the circle it is e^(i m f), k = m only.

    Attributes:
        degree: L.
        terms: number of terms of the sources' moments, which go to the degree L + 1.
        error: bound on the error of a sum, relative to e^r times the mass.
    """

    def __init__(self, dimension: int, degree: int, longest: float) -> None:
        self.dimension = dimension
        self.degree = degree
        # The part for rounding is an allowance, tested rather than proved.
        self.error = 2 * float(_beyond(longest, dimension)[degree]) + (degree + 32) * _EPSILON
        self._outer = _Terms(dimension, degree + 1)
        self._inner = _Terms(dimension, degree)
        self.terms = len(self._outer.grade)

    def moments(
        self, points: np.ndarray, masses: np.ndarray, groups: np.ndarray, threads: int = 1
    ) -> np.ndarray:
        """Moments of each group of sources listed, groups x 2 x terms (real, imaginary)."""
        terms = self._outer
        out = np.empty((len(groups), 2, self.terms))

        def do(part: tuple[int, int]) -> None:
            moments(
                part, points, masses, groups, terms.first, terms.second, terms.start, terms.offset,
                out,
            )  # fmt: skip

        in_parts(do, len(groups), threads)
        return out

    def sums(
        self, scores: np.ndarray, tiles: np.ndarray, total: np.ndarray, threads: int = 1
    ) -> np.ndarray:
        """Rows sum of M y e^<w, y> and Z, both times e^-r, for the targets of the tiles listed.

        Args:
            scores: 3 x N.
            tiles: numbers of the tiles.
            total: the moments added up over all groups, 2 x terms.
            threads: on how many.
        """
        terms = self._inner
        fields = self._fields(total[0] + 1j * total[1])
        out = np.empty((4, len(tiles) * TILE))

        def do(part: tuple[int, int]) -> None:
            sums(
                part, scores, tiles, fields, terms.first, terms.second, terms.start, terms.offset,
                self.dimension, out,
            )  # fmt: skip

        in_parts(do, -(-len(tiles) // BATCH), threads)
        return out

    def _fields(self, packed: np.ndarray) -> np.ndarray:
        """Moments of M x, M y, M z and M to degree L, terms x 8, from those of M to L + 1.

        Up and down are the moments of M (x ± i y); the formulas are the recurrences of the
        associated Legendre functions, with the norms of p_km.
        """
        outer, inner = self._outer, self._inner
        moment = np.zeros((self.degree + 3, self.degree + 3), dtype=complex)
        moment[outer.order, outer.grade] = packed
        m, k = inner.order, inner.grade
        same = moment[m, k]
        if self.dimension == 2:
            up = moment[m + 1, k + 1]
            down = np.where(m > 0, moment[m - 1, k - 1], np.conj(up))
            along = np.zeros_like(same)
        else:
            # An index of -1 meets a factor of zero, or the last row, which is empty.
            along = np.sqrt((k + 1) ** 2 - m**2) * moment[m, k + 1]
            along = (along + np.sqrt(k**2 - m**2) * moment[m, k - 1]) / (2 * k + 1)
            up = np.sqrt((k + m + 1) * (k + m + 2)) * moment[m + 1, k + 1]
            up -= np.sqrt(np.maximum((k - m) * (k - m - 1), 0)) * moment[m + 1, k - 1]
            up *= np.where(m == 0, np.sqrt(0.5), 1.0) / (2 * k + 1)
            down = np.sqrt(np.maximum((k + m) * (k + m - 1), 0)) * moment[m - 1, k - 1]
            down -= np.sqrt((k - m + 1) * (k - m + 2)) * moment[m - 1, k + 1]
            down *= np.where(m == 1, np.sqrt(2.0), 1.0) / (2 * k + 1)
            down = np.where(m > 0, down, np.conj(up))
        fields = np.stack([(up + down) / 2, (up - down) / 2j, along, same], axis=1)
        return np.ascontiguousarray(fields).view(float)


class _Terms:
    """The terms up to a degree, and the recurrence p_k = first z p_(k-1) - second p_(k-2)."""

    def __init__(self, dimension: int, degree: int) -> None:
        size = degree + 1
        counts = size - np.arange(size) if dimension == 3 else np.ones(size, dtype=int)
        self.offset = np.concatenate([[0], np.cumsum(counts)])
        self.order = m = np.repeat(np.arange(size), counts)
        self.grade = k = m + np.arange(len(m)) - self.offset[m]
        root = np.sqrt(np.maximum(k**2 - m**2, 1))
        self.first = np.where(k > m, (2 * k - 1) / root, 0.0)
        self.second = np.where(k > m + 1, np.sqrt(np.maximum((k - 1) ** 2 - m**2, 0)) / root, 0.0)
        # p_mm = start_m sin^m.
        step = np.arange(1.0, size)
        growth = np.sqrt((2 * step - 1) / (2 * step) * np.where(step == 1, 2.0, 1.0))
        self.start = np.append(1.0, np.cumprod(growth)) if dimension == 3 else np.ones(size)


def all_groups() -> np.ndarray:
    """The numbers of the groups in which the moments of the sources are summed."""
    return np.arange(GROUPS)
