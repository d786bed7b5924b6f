"""Intervals from values on a sequence of meshes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meanfield_pde import InputError
from meanfield_pde.theory.richardson import IRREGULAR, REGULAR, in_words, interval


def test_order_and_width_of_a_pure_power() -> None:
    for ratio, order in ((2.0, 3.0), (math.sqrt(3), 3.0), (2.0, 2.0), (2.0, 1.0)):
        values = [1 + 0.3 * ratio ** (-order * k) for k in range(3)]
        found = interval(values, ratio)
        assert found.order == pytest.approx(order)
        factor = REGULAR if order == 3 else IRREGULAR
        error = values[-1] - 1
        assert found.high is not None
        assert found.low is not None
        assert found.high - found.low == pytest.approx(2 * factor * error, rel=1e-6)
        assert found.low < 1 < found.high


def test_a_higher_order_counts_as_three() -> None:
    """With errors of h^4 the interval holds, and is as wide as differences of order three say."""
    values = [1 + 0.3 * 2.0 ** (-4 * k) for k in range(3)]
    found = interval(values, 2.0)
    assert found.order == pytest.approx(4)
    assert found.high == pytest.approx(values[-1] + IRREGULAR * (values[0] - values[1]) / 8 / 7)


def test_cancellation_on_one_mesh_does_not_narrow_the_interval() -> None:
    """Errors of h^2 and h^3 of opposite sign, so that the last two values are the same."""
    values = [1 + a for a in (0.3, 0.02, 0.0200000001)]
    found = interval(values, 2.0)
    assert found.converging
    assert found.low is not None
    assert found.low < 1


def test_alternating_values() -> None:
    found = interval([1.1, 0.98, 1.01], 2.0)
    assert found.converging
    assert (found.low, found.high) == pytest.approx((0.95, 1.07))


@pytest.mark.parametrize(
    "values",
    [(1.0, 1.1, 1.2), (1.0, 1.1, 1.0), (1.0, 1.0, 1.1), (1.0, None, 1.1), (1.0, 1.1, None)],
)
def test_not_converging(values: tuple[float | None, ...]) -> None:
    found = interval(values, 2.0)
    assert (found.converging, found.low, found.high) == (False, None, None)
    assert found.value == values[-1]
    text = in_words(**found.describe())
    assert "not converging" in text or "not reached" in text


def test_what_does_not_change_is_known_to_rounding() -> None:
    found = interval([0.5, 0.5 + 1e-13, 0.5], 2.0)
    assert (found.converging, found.order) == (True, None)
    assert found.low == pytest.approx(0.5, abs=1e-9)


def test_interpolation_is_added() -> None:
    values = (1.16, 1.04, 1.01)
    plain, wider = interval(values, 2.0), interval(values, 2.0, 0.25)
    assert plain.high is not None
    assert wider.high == pytest.approx(plain.high + 0.25)


def test_only_the_three_finest_count() -> None:
    values = [7.0, *(1 + 0.3 * 4.0**-k for k in range(3))]
    assert interval(values, 2.0).high == interval(values[1:], 2.0).high
    with pytest.raises(InputError, match="3 levels or more"):
        interval(values[:2], 2.0)


def test_words_have_the_digits_that_are_known() -> None:
    found = interval([1 + 0.01 * 8.0**-k for k in range(3)], 2.0)
    assert in_words(**found.describe()) == "1.00016 ± 0.0002"
    large = interval([1e30 * (1 + 0.01 * 8.0**-k) for k in range(3)], 2.0)
    assert in_words(**large.describe()) == "1.00016e+30 ± 2e+26"
    assert np.isfinite(found.describe()["order"])
