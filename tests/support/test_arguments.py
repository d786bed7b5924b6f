"""What users give to functions that cannot use it: an InputError, before anything is done."""

from __future__ import annotations

import numpy as np
import pytest

from meanfield_pde import (
    Attention,
    InputError,
    Measure,
    Observer,
    ProjectionLimit,
    TokenCloud,
    circle_mesh,
    compare_tokens,
    push_forward,
    sample_tokens,
    simulate_tokens,
    solve,
    sphere_mesh,
    wasserstein,
)

IDENTITY = np.eye(2)
ATTENTION = Attention(IDENTITY, IDENTITY, np.diag([1.0, 0.3]), 5.0)
SECOND = np.timedelta64(1, "s")
BEYOND_DOUBLES = np.longdouble(10) ** 4000

NUMBERS = {
    "cells of a circle": lambda: circle_mesh(10**400),
    "more digits than Python prints": lambda: circle_mesh(10**5000),
    "cells of a sphere": lambda: sphere_mesh(10**400),
    "cells within doubles": lambda: sphere_mesh(10**307),
    "tokens": lambda: sample_tokens("1", 10**400, 0, 2),
    "tokens within doubles": lambda: sample_tokens("1", 10**307, 0, 2),
    "dimension": lambda: sample_tokens("1", 10, 0, 10**400),
    "a duration for a whole number": lambda: circle_mesh(SECOND),
    "a duration for a number": lambda: circle_mesh(8, grade=SECOND),
    "a duration for threads": lambda: solve(ATTENTION, circle_mesh(8), until=0.0, threads=SECOND),
    "a duration for beta": lambda: Attention(IDENTITY, IDENTITY, IDENTITY, SECOND),
    "step": lambda: simulate_tokens(IDENTITY, ATTENTION, 1.0, step=BEYOND_DOUBLES),
    "beta": lambda: Attention(IDENTITY, IDENTITY, IDENTITY, BEYOND_DOUBLES),
    "an array for beta": lambda: Attention(
        IDENTITY, IDENTITY, IDENTITY, np.array([BEYOND_DOUBLES])
    ),
    "a text for beta": lambda: Attention(IDENTITY, IDENTITY, IDENTITY, " 2_0 "),
    "rows for beta": lambda: Attention(IDENTITY, IDENTITY, IDENTITY, [[1.0], [2.0, 3.0]]),
    "a masked beta": lambda: Attention(IDENTITY, IDENTITY, IDENTITY, np.ma.masked),
    "a complex beta": lambda: Attention(IDENTITY, IDENTITY, IDENTITY, np.complex64(1)),
}

PATHS = (None, 1, "a\0b", "\ud800")
MEASURE = Measure(IDENTITY, [0.5, 0.5])
OTHER = Measure(-IDENTITY, [0.25, 0.75])
LIMIT = ProjectionLimit(ATTENTION)
ARCS = np.array([[[1.0, 0.0], [0.0, 1.0]]])


def observed(observers):
    """Solve something, with these observers."""
    return solve(ATTENTION, circle_mesh(8), until=0.0, observers=observers)


OBJECTS = {
    **{f"read {path!r}": lambda path=path: Measure.read(path) for path in PATHS},
    **{f"write {path!r}": lambda path=path: MEASURE.write(path) for path in PATHS},
    "no order": lambda: wasserstein(MEASURE, OTHER, IDENTITY),
    "a text as order": lambda: wasserstein(MEASURE, OTHER, "1"),
    "no duals": lambda: wasserstein(MEASURE, OTHER, 1, duals=[]),
    "three duals": lambda: wasserstein(MEASURE, OTHER, 1, duals=np.eye(3)),
    "texts as duals": lambda: wasserstein(MEASURE, OTHER, 1, duals=(["a", "b"], ["c", "d"])),
    "complex duals": lambda: wasserstein(MEASURE, OTHER, 1, duals=1j * IDENTITY),
    "masked duals": lambda: wasserstein(
        MEASURE, OTHER, 1, duals=[np.ma.masked_less([1.0, 2.0], 1.5), np.zeros(2)]
    ),
    "limit of nothing": lambda: ProjectionLimit(None),
    "limit of a matrix": lambda: ProjectionLimit(IDENTITY),
    "a density of one number": lambda: push_forward(LIMIT, ARCS, lambda points: 1.0),
    "a density of texts": lambda: push_forward(LIMIT, ARCS, lambda points: ["a"] * len(points)),
    "the class of observers": lambda: observed([Observer]),
    "an observer that is a number": lambda: observed(np.array([2.0])),
    "an array that is no list": lambda: observed(np.array(2.0)),
    "a text for observers": lambda: observed("text"),
    "a number as note": lambda: TokenCloud(np.zeros(1), IDENTITY, note=1),
    "an array as note": lambda: TokenCloud(np.zeros(1), IDENTITY, note=np.zeros(2)),
}


@pytest.mark.parametrize("call", OBJECTS.values(), ids=map(ascii, OBJECTS))
def test_objects_of_another_type_are_refused(call):
    with pytest.raises(InputError):
        call()


@pytest.mark.parametrize("call", NUMBERS.values(), ids=NUMBERS)
def test_numbers_that_are_none_or_that_a_double_does_not_hold_are_refused(call):
    with pytest.raises(InputError):
        call()


@pytest.mark.parametrize("beta", [np.inf, np.longdouble("inf"), np.array(2.0), np.array([2]), 2])
def test_beta_may_be_infinite_and_an_array_of_one_number(beta):
    assert Attention(IDENTITY, IDENTITY, IDENTITY, beta).beta == float(np.ravel(beta)[0])


@pytest.fixture(scope="module")
def solution():
    return solve(ATTENTION, circle_mesh(8), until=0.0)


@pytest.mark.parametrize(
    "options",
    [{"samples": 10**12}, {"samples": 0}, {"samples": -1}, {"seed": -1}, {"band_file": "a\0b"}],
    ids=str,
)
def test_samples_that_cannot_be_taken_are_refused(solution, options):
    cloud = TokenCloud(np.zeros(1), IDENTITY)
    with pytest.raises(InputError):
        compare_tokens(solution, cloud, **options)


def test_samples_are_kept_in_a_file_that_is_named_by_a_text(solution, tmp_path):
    path = tmp_path / "band.npz"
    cloud = TokenCloud(np.zeros(1), IDENTITY)
    for _ in range(2):
        compare_tokens(solution, cloud, samples=2, seed=10**30, band_file=str(path))
        assert path.exists()


@pytest.mark.parametrize("until", [1e308, 2**63, 1e10])
@pytest.mark.parametrize("beta", [5.0, np.inf])  # at the latter many steps are taken at once
def test_an_end_that_is_not_reached_is_refused_as_by_other_commands(until, beta):
    with pytest.raises(InputError, match="which does not end"):
        solve(ATTENTION.with_beta(beta), circle_mesh(8), until=until)


@pytest.mark.parametrize("of", ["measure", "density_at", "cells_at", "mesh_at", "function"])
def test_a_saved_time_that_there_is_not_is_an_input_error_that_says_how_many_there_are(
    solution, of
):
    at = getattr(solution, of)
    at(np.int64(-1))
    for wrong in (99, 1, -2, 10**300):
        with pytest.raises(InputError, match="there are 1, counted from 0") as caught:
            at(wrong)
        assert isinstance(caught.value, IndexError)
    for wrong in ("x", None, 0.0, True):
        with pytest.raises(InputError, match="must be a whole number"):
            at(wrong)


def test_velocities_and_tokens_of_a_time_that_there_is_not_are_refused(solution):
    for at in (solution.velocity, TokenCloud(np.zeros(1), IDENTITY).measure):
        at(0)
        for wrong in (None, "x", 1, -2):
            with pytest.raises(InputError):
                at(wrong)
