"""The law of lifetimes in beta fitted to measurements: linear, and with its next term.

    lifetime - next term = slope beta + constant

with the next term of `stages.Departure`, which has no free number in it: only the slope and the
constant are fitted, and the slope is compared with the predicted one. Of measurements on a mesh the
next term is that of clusters that are no narrower than its cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meanfield_pde.theory.fits import LinearFit, fit_or_none
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.stages import Departure, departure

# A slope that is as near as this to the predicted one, relative to it, holds the law (a
# definition).
NEAR = 0.05


@dataclass(frozen=True, eq=False)
class LifetimeLaw:
    """The fit.

    Attributes:
        terms: what is predicted.
        beta: of the measurements, increasing.
        beyond: the next term of each.
        fit: of the lifetimes without it against beta; None if there are fewer than two.
        linear_slopes: of the lifetimes between neighbours, over the predicted slope.
        slopes: the same with the next term taken off.
    """

    terms: Departure
    beta: np.ndarray
    beyond: np.ndarray
    fit: LinearFit | None
    linear_slopes: np.ndarray
    slopes: np.ndarray

    @property
    def slope_over_predicted(self) -> float | None:
        """The fitted slope over the predicted one."""
        return None if self.fit is None else self.fit.slope / self.terms.slope

    def __call__(self, beta: np.ndarray) -> np.ndarray:
        """The predicted law at beta, with the constant that fits the measurements best."""
        lifetimes = np.zeros(0) if self.fit is None else self.fit(self.beta)
        constant = float((lifetimes - self.terms.slope * self.beta).mean())
        return self.terms.slope * beta + np.interp(beta, self.beta, self.beyond) + constant

    def describe(self) -> dict[str, Any]:
        """All of it for summary.json."""
        return {
            "predicted": self.terms.describe(),
            "next_term": [list(pair) for pair in zip(self.beta, self.beyond, strict=True)],
            "fit": None if self.fit is None else self.fit.describe(),
            "slope_over_predicted": self.slope_over_predicted,
            "slopes_over_predicted": list(self.slopes),
            "linear_slopes_over_predicted": list(self.linear_slopes),
            "holds_from": _holds_from(self.beta, self.slopes),
            "linear_holds_from": _holds_from(self.beta, self.linear_slopes),
        }


def fit_law(
    limit: ProjectionLimit, beta: np.ndarray, lifetime: np.ndarray, width: np.ndarray
) -> LifetimeLaw | None:
    """Fit measurements; None if no next term is derived for the case.

    Args:
        limit: of the attention, whatever its beta.
        beta: inverse temperatures.
        lifetime: measured; nan where the state had not ended.
        width: the least of the cells of the meshes; nan where it is not known.
    """
    terms = departure(limit)
    if terms is None:
        return None
    order = np.argsort(beta)
    order = order[np.isfinite(lifetime[order])]
    beta, lifetime, width = beta[order], lifetime[order], np.nan_to_num(width[order])
    beyond = np.array(
        [terms.beyond(float(b), float(w)) for b, w in zip(beta, width, strict=True)], dtype=float
    )
    slopes = [np.diff(one) / np.diff(beta) / terms.slope for one in (lifetime, lifetime - beyond)]
    return LifetimeLaw(terms, beta, beyond, fit_or_none(beta, lifetime - beyond), *slopes)


def _holds_from(beta: np.ndarray, slopes: np.ndarray) -> float | None:
    """The least beta from which on all slopes between neighbours are near the predicted one."""
    off = np.flatnonzero(np.abs(slopes - 1) > NEAR)
    first = int(off[-1]) + 1 if len(off) else 0
    return float(beta[first]) if first < len(slopes) else None
