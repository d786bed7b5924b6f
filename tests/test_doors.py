"""The recipes of demos/architecture.md, done as they stand there: a term, a density, observables.

Each is registered where the page says, and then used by run, tokens and compare.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from meanfield_pde import Attention, circle_mesh, read_case, read_result, solve
from meanfield_pde.amr.indicators import INDICATORS
from meanfield_pde.attention.term import TermBeside
from meanfield_pde.case.attention_table import TERMS
from meanfield_pde.case.text import case_text, same_case
from meanfield_pde.experiments.run import RUN_FIGURES, Drawing
from meanfield_pde.figures.density import save
from meanfield_pde.initial.kinds import KINDS
from meanfield_pde.solver import controller, observables
from meanfield_pde.solver.distances import COMPARED
from meanfield_pde.solver.integrator import (
    Integrator,
    Velocity,
    VelocityOf,
    checked,
    integrator_for,
)
from meanfield_pde.solver.masses import Masses
from meanfield_pde.solver.schemes import SCHEMES
from meanfield_pde.solver.step_control import StepSettings
from meanfield_pde.solver.transport import Transport
from meanfield_pde.tokens.cloud import read_tokens
from meanfield_pde.verification.hypotheses import TABLE
from tests.conftest import Main, Write

PAGE = Path(__file__).parents[1] / "demos" / "architecture.md"
CASE = """
[attention]
query = [[1.0, 0.0], [0.0, 1.0]]
key   = [[1.0, 0.0], [0.0, 1.0]]
value = [[0.5, 0.2], [0.0, 0.3]]
beta  = 3.0
[drag]
matrix = [[0.0, -0.9], [0.9, 0.0]]
[mesh]
cells = 200
[initial]
kind = "stripe"
width = 0.6
[time]
until = 1.0
save_every = 0.25
[observables]
x4 = "x**4"
[output]
fields = "none"
"""


def recipe(number: int) -> dict[str, Any]:
    """The names that the code of a recipe defines."""
    text = PAGE.read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[number]
    module = ModuleType(f"recipe_{number}")
    sys.modules[module.__name__] = module  # a case is sent to other ranks, its classes by name
    exec(code, module.__dict__)
    return vars(module)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Term, density and observable of the page, each in its one place."""
    term, density, spread = recipe(0)["Drag"], recipe(1)["Stripe"], recipe(2)["spread"]
    monkeypatch.setitem(TERMS, term.section, term)
    monkeypatch.setitem(KINDS, density.kind, density)
    columns = observables.columns
    monkeypatch.setattr(observables, "columns", lambda *given: (*columns(*given), spread))


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("adapt", ["", "[adapt]\ntolerance = 1e-2\n"])
def test_run_tokens_and_compare_use_what_was_added(
    adapt: str, main: Main, write_case: Write, tmp_path: Path
) -> None:
    case = write_case(CASE + adapt)
    out, right, wrong = tmp_path / "out", tmp_path / "right.npz", tmp_path / "wrong.npz"
    assert main("run", case, "--quiet", "--output", out) == (0, "")
    history = read_result(out).history
    names = list(history)
    assert names[-1] == "x4"
    assert ("spread" in names) == (not adapt)
    if not adapt:
        length = np.hypot(history["mean_x"], history["mean_y"])
        np.testing.assert_allclose(history["spread"], 1 - length, atol=1e-15)
    # The page's density is even in y, and its drag turns what has come together.
    assert history["mean_y"][0] == pytest.approx(0.0, abs=1e-12)
    assert main("tokens", case, "--count", 500, "--output", right)[0] == 0
    cloud = read_tokens(right)
    found = (cloud.tokens[-1][:, 0] ** 4).mean()
    assert found == pytest.approx(history["x4"][-1], abs=0.05)
    code, message = main("compare", out, right)
    assert code == 0, message
    without = write_case(CASE, ("[[0.0, -0.9], [0.9, 0.0]]", "[[0.0, 0.0], [0.0, 0.0]]"), name="b")
    assert main("tokens", without, "--count", 500, "--output", wrong)[0] == 0
    assert main("compare", out, wrong)[0] == 3


@pytest.mark.usefixtures("opened")
def test_a_case_with_what_was_added_is_written_and_read_back(
    write_case: Write, tmp_path: Path, main: Main
) -> None:
    text = case_text(read_case(write_case(CASE)))
    again = tmp_path / "again.toml"
    again.write_text(text, encoding="utf-8")
    assert same_case(text, case_text(read_case(again)))
    for old, new, says in (
        ("matrix = [[0.0, -0.9], [0.9, 0.0]]", "", "drag.matrix is missing"),
        ("width = 0.6", "width = -1", "initial.width must be a number > 0"),
        ("width = 0.6", "", "initial.width is missing"),
        ("matrix =", "matrices =", "matrix"),
    ):
        code, message = main("run", write_case(CASE, (old, new)))
        assert code == 2
        assert says in message


def test_the_observables_of_the_page() -> None:
    history = recipe(3)["history"]
    assert list(history)[-2:] == ["x4", "upper"]
    assert history["upper"][0] == pytest.approx(1 / np.pi, rel=1e-3)


@pytest.mark.draws
def test_a_figure_of_a_run_is_drawn_and_replaced(
    monkeypatch: pytest.MonkeyPatch, main: Main, write_case: Write, tmp_path: Path
) -> None:
    from matplotlib.figure import Figure

    def draw(what: Drawing) -> Path:
        figure = Figure()
        figure.subplots().plot(what.history.times, what.history.history["energy"])
        return save(figure, what.directory / "figures" / f"energy.{what.form}")

    monkeypatch.setitem(RUN_FIGURES, "energy", draw)
    without = CASE.replace('kind = "stripe"\nwidth = 0.6', 'kind = "uniform"')
    text = re.sub(r"\[drag\]\nmatrix = .*\n", "", without)
    case, out = write_case(text), tmp_path / "out"
    assert main("run", case, "--until", 0.25, "--quiet", "--output", out) == (0, "")
    figure = out / "figures" / "energy.png"
    assert figure.is_file()
    figure.write_text("old")
    mine = out / "figures" / "mine.png"
    mine.write_text("mine")
    line = ("run", case, "--until", 0.0, "--quiet", "--output", out, "--overwrite")
    assert main(*line) == (0, "")
    assert figure.read_bytes()[:4] == b"\x89PNG"
    assert mine.read_text() == "mine"


class ForwardEuler(Integrator):
    """One stage: as plain as an integrator can be."""

    coefficient = 1.0

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def step(
        self, masses: Masses, velocity: Velocity, velocity_of: VelocityOf | None, dt: float
    ) -> tuple[Masses, float] | None:
        """Return the masses after a step."""
        if not velocity.rate * dt <= self.transport.scheme.positive:
            return None
        after = masses.copy()
        after.euler(self.transport, velocity.flux, dt, masses, 0.0)
        return checked(after, self.transport.volumes.comm)


@pytest.mark.parametrize("adapt", [None, 1e-2])
@pytest.mark.parametrize("beta", [4.0, np.inf])
def test_an_integrator(beta: float, adapt: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), beta)
    steps = StepSettings(growth=0.01, courant=0.05)

    def mean() -> float:
        solution = solve(
            attention, circle_mesh(60), "1 + 0.4*x", until=0.5, adapt=adapt, steps=steps
        )
        assert abs(solution.history["mass"][-1] - 1) < 1e-13
        return float(solution.history["mean_x"][-1])

    expected = mean()
    monkeypatch.setattr(controller, "integrator_for", ForwardEuler)
    found = mean()
    assert found != expected
    assert found == pytest.approx(expected, abs=2e-3)


def test_the_table_names_what_there_is() -> None:
    """Every name of the table that is registered somewhere, and what stands there."""
    table = PAGE.read_text(encoding="utf-8").split("\n## Doors\n")[1].split("\n**")[0]
    there = {
        "TERMS": TERMS,
        "KINDS": KINDS,
        "INDICATORS": INDICATORS,
        "SCHEMES": SCHEMES,
        "COMPARED": COMPARED,
        "RUN_FIGURES": RUN_FIGURES,
        "TABLE": TABLE,
    }
    assert set(re.findall(r"`([A-Z_]{4,})`", table)) == set(there)
    assert all(len(one) > 1 for one in there.values())
    assert f"`{integrator_for.__name__}`" in table
    assert f"`{TermBeside.__name__}`" in table
