"""What values on a sequence of meshes say of the value in the limit: Richardson's extrapolation.

With f_0, f_1, ..., f_n on meshes of widths h, h / r, h / r^2, ... let d = f_n - f_(n-1) and D =
f_(n-1) - f_(n-2). The observed order is

    p = log |D / d| / log r,

and the error of f_n is estimated as in the grid convergence index (Roache 1994; the larger factor
where the order is off as by Eca and Hoekstra 2014),

    e = max(|d|, |D| / r^3) / (r^min(p, 3) - 1),        interval  f_n ± F e.

|D| / r^3 is what d would be with order three, that of the method in space and time; where d is
less, two terms of an error have cancelled on one mesh. The order counts as three at most.

Values do not converge if p is below `LEAST_ORDER`, or if there is none on one of the meshes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meanfield_pde.errors import InputError

# F where the order is within `_NEAR` of three and where it is not, and F (r^p - 1) where the sign
# of the differences changes, so that there is no order to go by. The first two are Roache's for
# three and for two meshes. The rest was tuned on seed 1 of `tests.benchmarks.intervals`, and is
# judged by another seed.
REGULAR, IRREGULAR, ALTERNATING = 1.25, 3.0, 2.0
_NEAR = 0.3
# Below it a mesh that is twice as fine takes less than a third off the error.
LEAST_ORDER, MOST_ORDER = 0.5, 3.0
FEWEST = 3  # levels: two differences, for an order
# Differences below it, for numbers of the size of one, are those of sums (1e-10) and rounding.
_ROUNDING = 1e-10
LARGE = 1e6  # numbers from here on, such as energies, are written with a power of ten


@dataclass(frozen=True)
class Interval:
    """A number with its interval.

    Attributes:
        value: on the finest mesh; None if there is none.
        low, high: the interval; None if the values do not converge.
        order: that was observed; None where there is none, as where nothing changes.
        converging: whether they do.
        values: on all meshes, from the coarsest on.
    """

    value: float | None
    low: float | None
    high: float | None
    order: float | None
    converging: bool
    values: tuple[float | None, ...]

    def describe(self) -> dict[str, Any]:
        """All of it for summary.json."""
        return asdict(self) | {"values": list(self.values)}

    def columns(self, name: str) -> dict[str, Any]:
        """The columns of a table that stand beside that of the value."""
        found = self.low, self.high, self.order, self.converging
        return dict(zip(interval_columns(name), found, strict=True))


def interval_columns(name: str) -> tuple[str, str, str, str]:
    """The names of the columns beside that of a number."""
    return f"{name}_low", f"{name}_high", f"{name}_order", f"{name}_converging"


def interval(values: Sequence[float | None], ratio: float, spread: float = 0.0) -> Interval:
    """The interval of a number from its values on a sequence of meshes.

    Args:
        values: from the coarsest mesh to the finest, three or more; None where there is none.
        ratio: r, how many times finer each mesh is than the one before.
        spread: how far the last may be off whatever the mesh, as by interpolation; is added.
    """
    if len(values) < FEWEST:
        raise InputError(f"an interval needs {FEWEST} levels or more, got {len(values)}")
    found = tuple(None if one is None or math.isnan(one) else float(one) for one in values)
    first, second, last = found[-3:]
    if first is None or second is None or last is None:
        return Interval(last, None, None, None, False, found)
    before, latest = second - first, last - second
    rounding = _ROUNDING * max(1.0, abs(last))
    if max(abs(before), abs(latest)) <= rounding:
        half = rounding + spread
        return Interval(last, last - half, last + half, None, True, found)
    order = math.log(max(abs(before), 1e-300) / max(abs(latest), 1e-300)) / math.log(ratio)
    if not order >= LEAST_ORDER:
        return Interval(last, None, None, order, False, found)
    change = max(abs(latest), abs(before) / ratio**MOST_ORDER)
    if before * latest < 0:
        half = ALTERNATING * change
    else:
        factor = REGULAR if abs(order - MOST_ORDER) < _NEAR else IRREGULAR
        half = factor * change / (ratio ** min(order, MOST_ORDER) - 1)
    half += rounding + spread
    return Interval(last, last - half, last + half, order, True, found)


def in_words(
    value: float | None, low: float | None, high: float | None, converging: bool, **_: Any
) -> str:
    """An interval as text, with as many digits as it leaves."""
    if value is None:
        return "not reached on the finest mesh"
    if not converging or low is None or high is None:
        return f"{value:.6g}, not converging"
    half = (high - low) / 2
    last = math.floor(math.log10(half)) - 1  # the decimal place of the last digit
    if abs(value) >= LARGE:
        digits = min(max(1, math.floor(math.log10(abs(value))) - last + 1), 12)
        return f"{value:.{digits}g} ± {half:.2g}"
    return f"{value:.{min(max(0, -last), 12)}f} ± {half:.2g}"
