"""What users give to functions that cannot use it: an InputError, before anything is done."""

from __future__ import annotations

import logging
import os
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from meanfield_pde import (
    AdaptSettings,
    Attention,
    ConstantField,
    ExpressionDensity,
    InputError,
    Measure,
    Observer,
    Perceptron,
    ProjectionLimit,
    TokenCloud,
    Tokens,
    Uniform,
    circle_mesh,
    compare_tokens,
    lifetime,
    push_forward,
    read_case,
    read_tokens,
    run_case,
    sample_tokens,
    simulate_tokens,
    solve,
    sphere_mesh,
    sweep,
    transition,
    wasserstein,
    write_tokens,
)
from meanfield_pde.amr.settings import IndicatorSettings, PatchSettings
from meanfield_pde.initial.expression import Expression
from meanfield_pde.solver.step_control import StepSettings
from meanfield_pde.support.npz import write_arrays
from tests.conftest import Write
from tests.problems import CIRCLE

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


CORNERS = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
CIRCLE_OF_ARCS = np.stack([CORNERS, np.roll(CORNERS, -1, axis=0)], axis=1)


class AsPath:
    """Something that says it is a path."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        if self.path is None:
            raise RuntimeError("no path")
        return self.path


class Unreadable:
    """Something that neither is an array nor can be printed."""

    def __array__(self, *arguments, **options):
        raise RuntimeError("no array")

    def __repr__(self):
        raise RuntimeError("no text")


def huge_values(points):
    """A density whose mass is out of range."""
    return np.full(len(points), 1e308)


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
    "a number as path of tokens": lambda: Tokens(IDENTITY, None, 1j),
    "a limit at infinity": lambda: push_forward(LIMIT, ARCS, lambda x: np.full(len(x), np.inf)),
    "an endless total": lambda: push_forward(LIMIT, CIRCLE_OF_ARCS, huge_values),
    "masses whose total overflows": lambda: push_forward(LIMIT, CIRCLE_OF_ARCS, [1e308] * 4),
    "no cells": lambda: push_forward(LIMIT, np.zeros((0, 2, 2)), []),
    "a cell that is not finite": lambda: push_forward(LIMIT, np.nan * ARCS, [1.0]),
    "negative bins": lambda: push_forward(LIMIT, ARCS, [1.0], bins=-1),
    "more bins than memory": lambda: push_forward(LIMIT, ARCS, [1.0], bins=10**12),
    "a length that is none": lambda: push_forward(LIMIT, ARCS, [1.0], length_scale=np.nan),
    "peaks that are nowhere": lambda: push_forward(LIMIT, ARCS, [1.0], peaks=[[np.nan, 0.0]]),
    "a path of bytes": lambda: MEASURE.write(AsPath(b"x.npz")),
    "a path that fails": lambda: MEASURE.write(AsPath(None)),
    "a mesh by its kind": lambda: circle_mesh(8, comm="world"),
    "an infinite spread": lambda: Measure(IDENTITY, [1.0, 1.0], [np.inf, 1.0]),
    "a table with other keys": lambda: AdaptSettings(0.1, buffer={"circle": 1}),
    "a table without the dimension": lambda: AdaptSettings.of(AdaptSettings(0.1, buffer={3: 1}), 2),
    "more rings than a mesh has": lambda: AdaptSettings(0.1, buffer={2: 10**9, 3: 0}),
    "coarser than refined": lambda: AdaptSettings(0.1, coarsen_to=0.5, refine_to=0.4),
    "no zero temperature at zero": lambda: ATTENTION.with_beta(np.inf).mean([[0.0, 0.0]]),
    "negative weights": lambda: ATTENTION.mean(IDENTITY, IDENTITY, [-1.0, 1.0]),
    "an order that is a text": lambda: LIMIT.decay_rate("x"),
    "an order that is no number": lambda: LIMIT.decay_rate(np.nan),
    "a density in dimension 5": lambda: Uniform().density(np.eye(5)),
    "a sweep of nothing": lambda: sweep(None, [1.0], directory="x"),
    "lifetimes of nothing": lambda: lifetime(None, [1.0], directory="x"),
    "a transition of nothing": lambda: transition(None, [1.0], directory="x"),
    "a formula in dimension 5": lambda: ExpressionDensity("1").density(np.eye(5)),
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


FAR = np.ma.masked_array(IDENTITY, mask=[[0, 0], [1, 1]])
NO_POINTS = ("x", {}, np.eye(3), [[np.nan, 0.0]], [[np.inf, 0.0]], [[1e200, 0.0]], 10**400, FAR)
NO_POINTS += (np.array([["2020-01-01"] * 2], dtype="datetime64[s]"), IDENTITY * 1j, Unreadable())
TAKE_POINTS = {
    "map": LIMIT.map,
    "coordinates": LIMIT.coordinates,
    "on_separatrix": LIMIT.on_separatrix,
    "distance_to_eigenspace": LIMIT.distance_to_eigenspace,
    "mean": lambda points: ATTENTION.mean(points, IDENTITY, [1.0, 1.0]),
    "sources of a mean": lambda points: ATTENTION.mean(IDENTITY, points, [1.0, 1.0]),
    "velocity": lambda points: ATTENTION.velocity(points, IDENTITY, [1.0, 1.0]),
    "velocity of a perceptron": Perceptron(IDENTITY, IDENTITY).velocity,
    "velocity of a field": ConstantField([1.0, 0.0]).velocity,
    "values of a formula": Expression("1 + x", ("x", "y")),
    "a measure": lambda points: Measure(points, np.ones(2)),
}


@pytest.mark.parametrize("call", TAKE_POINTS.values(), ids=TAKE_POINTS)
def test_points_that_are_none_are_refused(call):
    for points in NO_POINTS:
        with pytest.raises(InputError):
            call(points)


@pytest.mark.parametrize("settings", [AdaptSettings(0.1), IndicatorSettings(), PatchSettings()])
def test_settings_of_adaptive_meshes_that_are_no_finite_numbers_are_refused(settings):
    check_settings(settings, "adapt.")


def test_settings_of_steps_that_are_no_finite_numbers_are_refused():
    check_settings(StepSettings(), "steps.")
    assert StepSettings(lengths=np.int64(4)).lengths == 4


def check_settings(settings, section):
    """Every field with what it cannot be; the message names it."""
    for one in fields(settings):
        for wrong in ("x", np.nan, -1, object(), [1.0], 3j, {2: "x", 3: 1}):
            with pytest.raises(InputError, match=rf"^{section}.*{one.name}"):
                replace(settings, **{one.name: wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"mesh": "circle"},
        {"time": 5.0},
        {"initial": "1+x"},
        {"noise": 0.1},
        {"compare": True},
        {"attention": 3},
        {"solver": "upwind"},
        {"output": "x"},
        {"source": 1j},
        {"adapt": "x"},
    ],
    ids=str,
)
def test_fields_of_a_case_are_refused_by_name(wrong, write_case: Write):
    case = read_case(write_case(CIRCLE))
    with pytest.raises(InputError, match=f"{next(iter(wrong))}"):
        replace(case, **wrong)
    assert replace(case, adapt=Fraction(1, 10)).adapt == AdaptSettings(0.1)


def test_what_fits_is_taken_in_the_type_that_is_named(solution):
    steps = [
        solve(ATTENTION, circle_mesh(8), until=0.0, log_masses=np.bool_(one)).steps
        for one in (1, 0)
    ]
    assert steps == [0, 0]
    cloud = TokenCloud(np.zeros(1), IDENTITY)
    found = compare_tokens(solution, cloud, layer_step=Fraction(1, 20), samples=np.int64(2))
    assert found.notes[-1] == "times count layers of 0.05"


def test_functions_that_overwrite_their_points_do_no_harm():
    def overwriting(points):
        points[:] = 0.0
        return np.ones(len(points))

    tokens = sample_tokens(overwriting, 3, 0, 2)
    np.testing.assert_allclose(np.linalg.norm(tokens, axis=1), 1)
    found = push_forward(LIMIT, CIRCLE_OF_ARCS, overwriting)
    np.testing.assert_allclose(found.masses, 0.5)


@pytest.mark.parametrize("name", ["u.csv", "u", "u.npz.gz"])
def test_arrays_are_written_under_the_name_given_or_not_at_all(name, tmp_path: Path):
    path = tmp_path / name
    cloud = TokenCloud(np.zeros(1), IDENTITY, masses=[1.0, 2.0])
    for write in (MEASURE.write, lambda path: write_tokens(path, cloud)):
        with pytest.raises(InputError, match=r"\.npz"):
            write(path)
    assert not list(tmp_path.iterdir())


def test_suffixes_in_capitals_folders_and_pipes(tmp_path: Path):
    MEASURE.write(tmp_path / "new" / "U.NPZ")
    write_tokens(tmp_path / "T.NPZ", TokenCloud(np.zeros(1), IDENTITY))
    write_tokens(tmp_path / "T.CSV", TokenCloud(np.zeros(1), IDENTITY))
    assert Measure.read(tmp_path / "new" / "U.NPZ").dimension == 2
    for name in ("T.NPZ", "T.CSV"):
        np.testing.assert_array_equal(read_tokens(tmp_path / name).tokens, [IDENTITY])
    (tmp_path / "folder.npz").mkdir()
    os.mkfifo(tmp_path / "pipe.npz")
    for name in ("folder.npz", "pipe.npz", "new/U.NPZ/x.npz"):
        with pytest.raises(InputError, match=name.removesuffix("/x.npz")):
            MEASURE.write(tmp_path / name)
    with pytest.raises(InputError, match="holds other arrays"):  # which samples would replace
        compare_tokens(
            solve(ATTENTION, circle_mesh(8), until=0.0),
            TokenCloud(np.zeros(1), IDENTITY),
            band_file=tmp_path / "T.NPZ",
        )


def test_arrays_that_are_not_used_are_named(tmp_path: Path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("meanfield_pde"), "propagate", True)
    matrices = dict.fromkeys(("query", "key", "value"), IDENTITY)
    np.savez(tmp_path / "w.npz", **matrices, beta=7.0, foo=1)
    np.savez(tmp_path / "m.npz", points=IDENTITY, masses=[1, 1], weights=[1, 2])
    Attention.read(tmp_path / "w.npz", 3.0)
    Measure.read(tmp_path / "m.npz")
    assert "w.npz: arrays not used: beta, foo" in caplog.text
    assert "m.npz: arrays not used: weights" in caplog.text


def test_tokens_whose_file_holds_others_are_not_written_into_a_case(
    tmp_path: Path, write_case: Write
):
    case = replace(read_case(write_case(CIRCLE), output=tmp_path / "out"), compare=None)
    write_tokens(tmp_path / "t.npz", TokenCloud(np.zeros(1), IDENTITY))
    os.mkfifo(tmp_path / "pipe.npz")
    for tokens in (
        Tokens(IDENTITY, None, tmp_path / "nope.npz"),
        Tokens(IDENTITY, None, tmp_path / "pipe.npz"),
        Tokens(IDENTITY, None, "x"),
        Tokens(-IDENTITY, None, tmp_path / "t.npz"),
        Tokens(IDENTITY, [1.0, 2.0], tmp_path / "t.npz"),
    ):
        with pytest.raises(InputError, match=tokens.path.name):
            run_case(replace(case, initial=tokens), quiet=True)
    assert not (tmp_path / "out").exists()
    assert Tokens.read(str(tmp_path / "t.npz")).to_table()["path"] == str(tmp_path / "t.npz")


@pytest.mark.parametrize("scale", [1e-322, 1e-300])
def test_densities_so_small_that_their_digits_are_lost_are_refused(scale):
    mesh = circle_mesh(8)

    def function(points):
        return scale * (1 + 0.5 * points[:, 0])

    for density in (f"{scale}*(1 + 0.5*x)", function, np.full(8, scale)):
        with pytest.raises(InputError, match="scale it"):
            solve(ATTENTION, mesh, density, until=0.0)
    for density in (f"{scale}*(1 + 0.5*x)", function):
        with pytest.raises(InputError, match="scale it"):
            sample_tokens(density, 3, 0, 2)
    with pytest.raises(InputError, match="scale it"):
        push_forward(LIMIT, CIRCLE_OF_ARCS, function)


def test_a_comment_in_a_formula_is_refused():
    with pytest.raises(InputError, match=r"'#' is not allowed.* at column 3"):
        ExpressionDensity("1 # + 0.5*x")


def test_cells_at_zero_temperature_where_there_are_none_are_refused():
    moving = solve(ATTENTION, circle_mesh(8), until=0.0, adapt=0.5)
    for wrong in (True, "x", np.eye(2)):
        with pytest.raises(InputError, match=r"zero.temperature"):
            moving.cells_at(0, zero_temperature=wrong)


def test_densities_are_drawn_from_by_generators_only():
    for density in (Uniform(), ExpressionDensity("1 + 0.5*x"), Tokens(IDENTITY)):
        for wrong in ({"generator": 1}, {"count": 0}, {"count": "x"}, {"dimension": None}):
            given = {"generator": np.random.default_rng(0), "count": 3, "dimension": 2} | wrong
            with pytest.raises(InputError, match=next(iter(wrong))):
                density.sample(**given)


def test_tokens_of_another_attention_are_noted(solution):
    start = np.zeros(1)
    turned = np.array([[0.6, -0.8], [0.8, 0.6]])  # of which only query^T key matters
    same = TokenCloud(start, IDENTITY, query=turned, key=turned, value=ATTENTION.value, beta=5.0)
    other = TokenCloud(start, IDENTITY, query=2 * IDENTITY, value=np.stack([IDENTITY] * 3))
    both = TokenCloud(start, IDENTITY, query=turned, key=IDENTITY)
    said = "the token file says another {} than the density has".format
    for cloud, notes in (
        (same, ()),
        (other, (said("query"), said("value"))),
        (both, (said("query^T key"),)),
    ):
        assert compare_tokens(solution, cloud, samples=2).notes == notes


def test_many_steps_of_tokens_are_said_before_they_are_taken(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(
        "meanfield_pde.tokens.code.LOG.info", lambda *one: said.append(one[0] % one[1:])
    )
    monkeypatch.setattr(
        "meanfield_pde.tokens.code.evolve", lambda *a, **o: np.stack([IDENTITY] * 2)
    )
    simulate_tokens(IDENTITY, ATTENTION, 0.1, step=1e-9)
    simulate_tokens(IDENTITY, ATTENTION, 0.1, step=1e-3)
    assert said == ["about 1e+08 steps, of 1.0e-09 each"]


def test_files_of_arrays_hold_those_given_and_no_objects(tmp_path: Path) -> None:
    write_arrays(tmp_path / "two.npz", {"a": np.arange(3), "b": 1.5})
    with np.load(tmp_path / "two.npz", allow_pickle=False) as found:
        assert sorted(found.files) == ["a", "b"]
    with pytest.raises(InputError, match="'c' is an array of Python objects, not of numbers"):
        write_arrays(tmp_path / "objects.npz", {"c": np.array([None, 1])})
    assert not (tmp_path / "objects.npz").exists()
