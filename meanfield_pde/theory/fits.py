"""Straight lines through measurements, with the uncertainty of what they give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from meanfield_pde.errors import InputError

CONFIDENCE = 0.95  # of all intervals that are shown: a definition


@dataclass(frozen=True)
class LinearFit:
    """y = intercept + slope x by least squares.

    Attributes:
        slope, intercept: of the line.
        slope_error, intercept_error: half widths of their 95 % confidence intervals, from the
            scatter about the line (Student's t); infinite for two points.
        r_squared: fraction of the variance of y that the line explains.
        points: how many there were.
    """

    slope: float
    intercept: float
    slope_error: float
    intercept_error: float
    r_squared: float
    points: int

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The line at x."""
        return self.intercept + self.slope * x

    def describe(self) -> dict[str, Any]:
        """All of it for summary.json."""
        return {
            "slope": self.slope,
            "slope_95": [self.slope - self.slope_error, self.slope + self.slope_error],
            "intercept": self.intercept,
            "intercept_95": [
                self.intercept - self.intercept_error,
                self.intercept + self.intercept_error,
            ],
            "r_squared": self.r_squared,
            "points": self.points,
        }


def linear_fit(x: np.ndarray, y: np.ndarray) -> LinearFit:
    """The line through two points or more, of at least two different x."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(x) != len(y) or len(np.unique(x)) < 2:
        raise InputError(f"a line needs measurements at two places or more, got {len(x)}")
    around, count = x - x.mean(), len(x)
    spread = float((around**2).sum())
    slope = float((around * (y - y.mean())).sum()) / spread
    intercept = float(y.mean() - slope * x.mean())
    if count == 2:
        return LinearFit(slope, intercept, math.inf, math.inf, 1.0, 2)
    total = float(((y - y.mean()) ** 2).sum())
    residual = float(((y - intercept - slope * x) ** 2).sum())
    quantile = float(stdtrit(count - 2, (1 + CONFIDENCE) / 2))
    slope_error = quantile * math.sqrt(residual / (count - 2) / spread)
    return LinearFit(
        slope,
        intercept,
        slope_error,
        slope_error * math.sqrt(spread / count + float(x.mean()) ** 2),
        1 - residual / total if total > 0 else 1.0,
        count,
    )


def fit_or_none(x: np.ndarray, y: np.ndarray) -> LinearFit | None:
    """The line through the finite measurements, or None if they are too few for one."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    there = np.isfinite(x) & np.isfinite(y)
    return linear_fit(x[there], y[there]) if len(np.unique(x[there])) >= 2 else None
