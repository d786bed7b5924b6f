"""Phases: on synthetic histories whose times are known, and on real ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from meanfield_pde import (
    Attention,
    ProjectionLimit,
    circle_mesh,
    solve,
    sphere_mesh,
)
from meanfield_pde.attention.layers import Layers
from meanfield_pde.figures.distances import _draw_phases
from meanfield_pde.theory.phases import (
    NAMES,
    Phases,
    find_phases,
    first_crossing,
    phases_of_history,
)
from tests.conftest import Main, Write
from tests.problems import CIRCLE, KEY_QUERY, MIXTURE, VALUE, limit_at, metastable


def two_clusters(angle: np.ndarray, width: np.ndarray | float = 0.0) -> np.ndarray:
    """Second moments of clusters at ±angle, each of two halves at distance `width` to its sides."""
    moments = np.zeros((len(angle), 2, 2))
    for side in (-1, 1):
        x = np.column_stack([np.cos(angle + side * width), np.sin(angle + side * width)])
        moments += x[:, :, None] * x[:, None, :] / 2
    return moments


def synthetic(times: np.ndarray, switch: float, until: float = 0.5) -> np.ndarray:
    """Clusters that narrow like exp(-0.7 t), and turn from 0 to `until` about the time `switch`."""
    return two_clusters(until / (1 + np.exp(-2 * (times - switch))), 1.2 * np.exp(-0.7 * times))


def test_the_times_of_a_synthetic_history() -> None:
    times = np.linspace(0, 30, 601)
    found = find_phases(times, synthetic(times, 20.0), limit_at(100.0))
    # Width 1.2 exp(-0.7 t) = 0.25, and a logistic that reaches half of the progress at V e, that is
    # of (0.5 - atan(0.3 tan 0.5)) / 0.5, and 1/2 and 0.9.
    concentrated = math.log(1.2 / 0.25) / 0.7
    leaving = (0.5 - math.atan(0.3 * math.tan(0.5))) / 0.5 / 2
    leaves, arrives = 20 - math.log(1 / leaving - 1) / 2, 20 + math.log(9) / 2
    assert found.concentration.begin == 0
    assert found.concentration.end == pytest.approx(concentrated, abs=0.01)
    assert found.metastable.begin == found.concentration.end
    assert found.metastable.end == pytest.approx(leaves, abs=0.01)
    assert found.switching.begin == found.metastable.end
    assert found.switching.end == pytest.approx(arrives, abs=0.01)
    assert found.terminal.begin == found.switching.end
    assert found.terminal.end is None
    assert found.lifetime == found.metastable.end
    assert found.half == pytest.approx(20.0, abs=0.01)
    assert found.metastable.when == "t = 2.241 to 19.66"
    json.dumps(found.describe(), allow_nan=False)


def test_times_do_not_depend_on_how_often_they_are_saved() -> None:
    coarse, fine = (
        find_phases(times, synthetic(times, 20.0), limit_at(100.0))
        for times in (np.linspace(0, 30, 61), np.linspace(0, 30, 3001))
    )
    for one, other in zip(coarse, fine, strict=True):
        assert one.begin == pytest.approx(other.begin, abs=0.1)


def reached(found: Phases) -> list[str]:
    return [phase.name for phase in found if phase.reached]


def test_a_history_that_is_cut_short() -> None:
    for until, expected in ((1, 0), (3, 1), (10, 2), (20, 3), (30, 4)):
        times = np.linspace(0, until, 20 * until + 1)
        found = find_phases(times, synthetic(times, 20.0), limit_at(100.0))
        assert reached(found) == list(NAMES[:expected])
        for phase in list(found)[expected:]:
            assert phase.when == "not reached"
            assert "not reached" in found.describe()[phase.name]


def test_a_density_that_passes_by_is_not_metastable() -> None:
    """It turns from -0.6 through the eigenvector of A to that of V without a stop."""
    times = np.linspace(0, 30, 301)
    found = find_phases(times, two_clusters(0.5 - 1.1 * np.exp(-times)), limit_at(5.0))
    assert reached(found) == ["concentration", "terminal"]
    assert "less than 1/c" in str(found.metastable)


def test_where_v_has_no_dominant_eigenspace_nothing_is_said_of_its_own() -> None:
    """V turns by 0.5 rad and A = diag(1, 0.2): clusters leave E, and then turn for ever."""
    turn = np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])
    key_query = np.linalg.solve(turn, np.diag([1.0, 0.2]))
    limit = ProjectionLimit(Attention(key_query, np.eye(2), turn, beta=100.0))
    times = np.linspace(0, 30, 301)
    found = find_phases(times, two_clusters(np.sin(0.5) * np.maximum(times - 10, 0)), limit)
    assert reached(found) == ["concentration"]
    (reason,) = {found.metastable.reason, found.switching.reason, found.terminal.reason}
    assert reason is not None
    assert reason.startswith("V has no dominant eigenspace to leave for: the eigenvalues with")
    assert "complex pair 0.877583 ± 0.479426i" in reason


def test_narrow_noise_does_not_switch() -> None:
    """A dip of the progress below a level and back is not a second switch."""
    times = np.linspace(0, 30, 601)
    angle = 0.5 / (1 + np.exp(-2 * (times - 20.0))) + 0.02 * np.sin(9 * times)
    found = find_phases(times, two_clusters(angle, 1.2 * np.exp(-0.7 * times)), limit_at(100.0))
    assert found.half == pytest.approx(20.0, abs=0.2)
    assert found.lifetime == found.metastable.end == pytest.approx(20 - math.log(2) / 2, abs=0.2)


@pytest.mark.parametrize(
    ("matrices", "beta", "mesh"),
    [
        ((KEY_QUERY, np.eye(2), VALUE), math.inf, circle_mesh(200)),
        ((np.eye(2), np.eye(2), np.diag([1.0, 0.2])), 50.0, circle_mesh(200)),
        (
            (np.diag([1.0, 0.6, 0.5]), np.eye(3), np.diag([1.0, 0.4, 0.3])),
            math.inf,
            sphere_mesh(320),
        ),
        ((np.eye(3), np.eye(3), np.diag([1.0, 1.0, 0.2])), 50.0, sphere_mesh(320)),
    ],
    ids=["zero temperature", "V proportional to A", "sphere, zero temperature", "dim E = 2"],
)
def test_stable_states_only_concentrate(matrices: tuple, beta: float, mesh: object) -> None:
    d = len(matrices[2])
    initial = MIXTURE if d == 2 else "1 + 0.5*x*y + 0.4*z - 0.3*x"
    attention = Attention(*matrices, beta)
    solution = solve(attention, mesh, initial, until=20.0, save_every=0.5)
    found = phases_of_history(solution.history, ProjectionLimit(attention))
    assert reached(found) == ["concentration"]
    assert "stable" in str(found.metastable)


@pytest.mark.parametrize(
    ("value", "beta", "why"),
    [
        (VALUE, 0.0, "beta = 0"),
        (np.array([[0.0, -1.0], [1.0, 0.0]]), 20.0, "no limit"),
        (np.linalg.inv(KEY_QUERY), 20.0, "multiple of the identity"),
    ],
    ids=["beta = 0", "rotation", "A = I"],
)
def test_no_phases_where_there_is_nothing_to_reach(
    value: np.ndarray, beta: float, why: str
) -> None:
    query = np.eye(2) if why == "no limit" else KEY_QUERY
    attention = Attention(query, np.eye(2), value, beta)
    solution = solve(attention, circle_mesh(100), MIXTURE, until=10.0, save_every=1.0)
    found = phases_of_history(solution.history, ProjectionLimit(attention))
    assert reached(found) == []
    assert all(why in phase.reason for phase in found)


def test_no_phases_without_a_prediction() -> None:
    one = metastable(20.0)
    layers = Layers([one, one], 5.0)
    solution = solve(layers, circle_mesh(40), MIXTURE, until=6.0, save_every=1.0)
    assert "2 layers" in str(
        phases_of_history(solution.history, ProjectionLimit(layers)).concentration
    )
    found = phases_of_history(solution.history, ProjectionLimit(replace(one, normalise=False)))
    assert "without the denominator" in str(found.metastable)


def test_all_phases_of_a_run_whatever_its_mesh() -> None:
    """The circle at beta = 80: times of 200 and 400 cells within 5 %."""
    found = []
    for cells in (200, 400):
        attention = metastable(80.0)
        solution = solve(attention, circle_mesh(cells), MIXTURE, until=17.0, save_every=0.25)
        found.append(phases_of_history(solution.history, ProjectionLimit(attention)))
    coarse, fine = found
    assert reached(coarse) == reached(fine) == list(NAMES)
    for name in NAMES[1:]:
        begin = getattr(fine, name).begin
        assert getattr(coarse, name).begin == pytest.approx(begin, rel=0.05)
    assert fine.half == pytest.approx(11.1, rel=0.05)


def test_summary_and_figure_say_the_phases(main: Main, write_case: Write, tmp_path: object) -> None:
    case = write_case(CIRCLE + "[compare]\nlimit = true\n")
    assert main("run", case, "--quiet", "--output", f"{tmp_path}/out") == (0, "")
    with open(f"{tmp_path}/out/summary.json", encoding="utf-8") as file:
        phases = json.load(file)["phases"]
    assert phases["concentration"]["begin"] == 0
    assert phases["terminal"].startswith("not reached: ")


def test_phases_are_drawn_above_the_curves() -> None:
    times = np.linspace(0, 30, 301)
    axes = Figure().subplots()
    axes.set_xlim(0, 30)
    _draw_phases(axes, find_phases(times, synthetic(times, 20.0), limit_at(100.0)), 30.0)
    assert [text.get_text() for text in axes.texts] == ["metastable", "terminal"]
    assert [bar.get_gid() for bar in axes.patches] == list(NAMES)


def test_a_stop_on_the_way_is_found_and_drawn() -> None:
    """The axis goes to 0.7 of the way at 20, and on at 50; V e is at 0.675."""
    times = np.linspace(0, 80, 801)
    turn = 0.35 / (1 + np.exp(-2 * (times - 20))) + 0.15 / (1 + np.exp(-2 * (times - 50)))
    found = find_phases(times, two_clusters(turn, 1.2 * np.exp(-0.7 * times)), limit_at(400.0))
    first, stop, last = found.stages
    assert [one.place for one in found.stages] == pytest.approx([0, 0.7, 1], abs=1e-3)
    assert math.degrees(stop.angle) == pytest.approx(0.7 * math.degrees(0.5), abs=0.1)
    leaving = (0.5 - math.atan(0.3 * math.tan(0.5))) / 0.5
    ends = [20 - math.log(0.7 / (leaving / 2) - 1) / 2, 50]
    assert [first.end, stop.begin] == pytest.approx([ends[0]] * 2, abs=0.01)
    # Half of the way between V e and F: 0.7 + 0.3 g, g the logistic about 50.
    part = ((leaving + 1) / 2 - 0.7) / 0.3
    assert stop.end == last.begin == pytest.approx(50 - math.log(1 / part - 1) / 2, abs=0.01)
    assert last.end is None
    assert stop.expected_end == pytest.approx(0.233174 * 400, rel=1e-4)
    assert stop.name == "plateau at 0.7 of the way (20.1 degrees)"
    described = found.describe()["stages"]
    assert [one["expected"] for one in described] == pytest.approx([0, leaving, 1])
    axes = Figure().subplots()
    axes.set_xlim(0, 80)
    _draw_phases(axes, found, 80.0)
    (bar,) = [one for one in axes.patches if str(one.get_gid()).startswith("stage")]
    assert [bar.get_x(), bar.get_x() + bar.get_width()] == pytest.approx([stop.begin, stop.end])


def test_first_crossing() -> None:
    times = np.array([0.0, 1.0, 2.0, 3.0])
    values = np.array([0.0, 1.0, 0.5, 2.0])
    assert first_crossing(times, values, 0.5) == 0.5
    assert first_crossing(times, values, 1.25) == 2.5
    assert first_crossing(times, values, 0.5, after=0.8) == 0.8
    assert first_crossing(times, values, 0.0) == 0.0
    assert first_crossing(times, values, 3.0) is None
