"""Polynomials that stand for exp(s) on [-rho, rho], with bounds on their errors.

Cut off after degree p, the Chebyshev series exp(rho x) = I_0(rho) + 2 sum_k I_k(rho) T_k(x) is in
error by at most 2 sum_(k > p) I_k(rho), and its derivative by at most 2 sum_(k > p) I_k(rho) k^2 /
rho, as |T_k| <= 1 and |T_k'| <= k^2. A Taylor polynomial needs 2^p times as much of its last term.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ive

HIGHEST = 24  # degree
_SMALLEST, _LARGEST, _STEP = 0.02, 5.0, 1.12  # of rho
_EPSILON = float(np.finfo(float).eps)


@dataclass(frozen=True, eq=False)
class Exponentials:
    """Polynomials for a series of rho, each of which serves all up to it.

    Attributes:
        reach: the values of rho, in a geometric series.
        coefficients: of s^k, rho x degree x k.
        error: bounds of |exp(s) - polynomial|, rho x degree.
        slope_error: the same for the derivative.
    """

    reach: np.ndarray
    coefficients: np.ndarray
    error: np.ndarray
    slope_error: np.ndarray

    @classmethod
    def tabulate(cls) -> Exponentials:
        """The table for all rho and degrees."""
        count = 1 + int(np.ceil(np.log(_LARGEST / _SMALLEST) / np.log(_STEP)))
        reach = _SMALLEST * _STEP ** np.arange(count)
        degrees = np.arange(HIGHEST + 1)
        coefficients = np.zeros((count, HIGHEST + 1, HIGHEST + 1))
        number = np.arange(3 * HIGHEST)
        weight = 2 * ive(number, reach[:, None]) * np.exp(reach[:, None])
        weight[:, 0] /= 2
        for row, rho in enumerate(reach):
            for p in degrees:
                monomials = np.polynomial.chebyshev.cheb2poly(weight[row, : p + 1])
                coefficients[row, p, : p + 1] = monomials / rho ** degrees[: p + 1]

        def beyond(terms: np.ndarray) -> np.ndarray:
            return terms[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1 : HIGHEST + 2]

        # The part for rounding is an allowance, tested rather than proved.
        rounding = 4 * _EPSILON * np.exp(reach)[:, None]
        error = beyond(weight) + rounding
        slope_error = beyond(weight * number**2) / reach[:, None] + rounding * (1 + degrees)
        return cls(reach, coefficients, error, slope_error)
