"""The recipes of demos/explanation/architecture.md, done as they stand there, one after the other.

Each is registered where the page says, and then used.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from meanfield_pde import (
    Attention,
    InputError,
    Layers,
    circle_mesh,
    read_case,
    read_result,
    sample_tokens,
    solve,
    sphere_mesh,
)
from meanfield_pde.amr import indicators
from meanfield_pde.amr.indicators import INDICATORS
from meanfield_pde.attention.field import ConstantField
from meanfield_pde.attention.heads import Heads
from meanfield_pde.attention.term import TermBeside
from meanfield_pde.case.attention_table import TERMS, tables_beside
from meanfield_pde.case.text import case_text, same_case
from meanfield_pde.cli import main as cli
from meanfield_pde.cli.arguments import Command
from meanfield_pde.experiments import summary
from meanfield_pde.experiments.run import RUN_FIGURES
from meanfield_pde.figures import distances as distances_figure
from meanfield_pde.initial.kinds import KINDS
from meanfield_pde.results.sample import VALUES
from meanfield_pde.solver import controller, distances, observables, settings
from meanfield_pde.solver.chosen_integrator import integrator_class
from meanfield_pde.solver.schemes import SCHEMES
from meanfield_pde.solver.settings import COMPARED, CompareCase
from meanfield_pde.solver.step_control import StepSettings
from meanfield_pde.theory.phases import phases_of_history
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.tokens.cloud import TokenCloud, read_tokens
from meanfield_pde.tokens.code import simulate_tokens
from meanfield_pde.verification.diagnosis import diagnose
from meanfield_pde.verification.hypotheses import TABLE
from meanfield_pde.verification.trajectories import Trajectories
from meanfield_pde.wasserstein.measure import Measure
from tests.conftest import Main, Write

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "demos" / "explanation" / "architecture.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
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


PLAIN = CASE.replace("[drag]\nmatrix = [[0.0, -0.9], [0.9, 0.0]]\n", "").replace(
    'kind = "stripe"\nwidth = 0.6', 'kind = "uniform"'
)


def recipe(name: str) -> Any:
    """What the recipe that defines it has under a name."""
    (code,) = (one for one in RECIPES if re.search(rf"^(class |def )?{name}\b", one, re.MULTILINE))
    module = ModuleType(f"recipe_{name}")
    sys.modules[module.__name__] = module  # a case is sent to other ranks, its classes by name
    exec(code, module.__dict__)
    return vars(module)[name]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Term, density and observable of the page, each in its one place."""
    term, density, spread = recipe("Drag"), recipe("Stripe"), recipe("spread")
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
    assert main("tokens", case, "--count", 100, "--output", right)[0] == 0
    cloud = read_tokens(right)
    found = (cloud.tokens[-1][:, 0] ** 4).mean()
    assert found == pytest.approx(history["x4"][-1], abs=0.05)
    code, message = main("compare", out, right)
    assert code == 0, message
    without = write_case(CASE, ("[[0.0, -0.9], [0.9, 0.0]]", "[[0.0, 0.0], [0.0, 0.0]]"), name="b")
    assert main("tokens", without, "--count", 100, "--output", wrong)[0] == 0
    assert main("compare", out, wrong)[0] == 3
    code, message = main("limit", case)
    assert (code, message.count("\n")) == (2, 1)
    assert "a drag, which depends on the density" in message


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


@dataclass(frozen=True, eq=False)
class Swirl(TermBeside):
    """g(x) = rate (x_2, -x_1, 0): two keys that may be left out, and no dimension."""

    section, keys, noun = "swirl", ("rate", "name"), "a swirl"
    rate: float = 1.0
    name: str | None = None

    @property
    def speed_bound(self) -> float:
        """|rate|."""
        return abs(self.rate)

    def push(self, x: np.ndarray, sources: Any = None, *, tolerance: float = 1e-12) -> np.ndarray:
        """G at each row of x."""
        push = np.zeros_like(x)
        push[..., :2] = self.rate * np.stack([x[..., 1], -x[..., 0]], axis=-1)
        return push


def test_a_term_of_any_dimension_with_keys_that_may_be_left_out(
    monkeypatch: pytest.MonkeyPatch, write_case: Write, tmp_path: Path
) -> None:
    monkeypatch.setitem(TERMS, "swirl", Swirl)
    stripe = recipe("Stripe")

    @dataclass(frozen=True)
    class Optional(stripe):  # type: ignore[misc]
        width: float = 0.6

    monkeypatch.setitem(KINDS, "stripe", Optional)
    matrix = "matrix = [[0.0, -0.9], [0.9, 0.0]]"
    short = write_case(CASE, ("[drag]", "[swirl]"), (matrix, ""), ("width = 0.6", ""))
    case = read_case(short)
    (term,) = case.attention.layers[0].beside
    assert isinstance(term, Swirl)
    assert (term.dimension, term.rate) == (None, 1.0)
    assert term.velocity(np.eye(2)[:1]).tolist() == [[0.0, -1.0]]
    text = case_text(case)
    assert "[swirl]\nrate = 1.0\n" in text
    assert "width = 0.6\n" in text
    again = tmp_path / "again.toml"
    again.write_text(text, encoding="utf-8")
    assert same_case(text, case_text(read_case(again)))
    for d, mesh in ((2, circle_mesh(40)), (3, sphere_mesh(80))):
        still = Attention(np.eye(d), np.eye(d), np.zeros((d, d)), 1.0)
        turned = solve(Heads([still], others=[Swirl(0.5)]), mesh, "1 + 0.5*x", until=1.0).history
        assert turned["mean_y"][-1] < -0.2 * turned["mean_x"][0]
    with pytest.raises(InputError, match="the terms beside them, must have the same dimension"):
        Heads([still], others=[Swirl(), ConstantField([1.0, 0.0])])
    two = [Heads([still], others=[Swirl(rate)]) for rate in (0.5, 1.0)]
    for layers in (two, [two[0], Heads([still])]):
        with pytest.raises(InputError, match="in all layers; these have several"):
            tables_beside(Layers(layers, 1.0))


def test_the_observables_of_the_page() -> None:
    history = recipe("history")
    assert list(history)[-2:] == ["x4", "upper"]
    assert history["upper"][0] == pytest.approx(1 / np.pi, rel=1e-3)


@pytest.mark.draws
def test_a_figure_of_ones_own_that_fails_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, main: Main, write_case: Write, tmp_path: Path
) -> None:
    def draw(what: object) -> Path:
        raise AttributeError("no such thing")

    monkeypatch.setitem(RUN_FIGURES, "own", draw)
    code, err = main(
        "run", write_case(PLAIN), "--until", 0, "--quiet", "--output", tmp_path / "out"
    )
    assert (code, err) == (0, "no figures: a figure cannot be drawn (no such thing)\n")


@pytest.mark.painted
@pytest.mark.draws("energy")
def test_a_figure_of_a_run_is_drawn_and_replaced(
    monkeypatch: pytest.MonkeyPatch, main: Main, write_case: Write, tmp_path: Path
) -> None:
    monkeypatch.setitem(RUN_FIGURES, "energy", recipe("draw_energy"))
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

    expected, euler = mean(), recipe("ForwardEuler")
    monkeypatch.setattr(controller, "integrator_class", lambda: euler)
    found = mean()
    assert found != expected
    assert found == pytest.approx(expected, abs=2e-3)


def test_an_integrator_in_a_file_is_chosen_by_an_option(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    """In files that stand before those of `solver`, with the edits that the page names."""
    (code,) = (one for one in RECIPES if "class ForwardEuler" in one)
    (choice,) = re.findall(r"`(if PETSc\.Options\(\)\.getBool.*?): (return \w+)` there", TEXT)
    before = tmp_path / "before"
    before.mkdir()
    (before / "forward_euler.py").write_text(code, encoding="utf-8")
    name = "chosen_integrator.py"
    text = (ROOT / "meanfield_pde" / "solver" / name).read_text(encoding="utf-8")
    for old, new in (
        ("\nfrom meanfield_pde", "\nfrom meanfield_pde.solver.forward_euler import ForwardEuler"),
        ("\n    if any(", f"\n    {choice[0]}:\n        {choice[1]}"),
    ):
        assert old in text
        text = text.replace(old, new + old, 1)
    (before / name).write_text(text, encoding="utf-8")
    plain = CASE.replace('kind = "stripe"\nwidth = 0.6', 'kind = "expression"\ndensity = "1 + x"')
    case = write_case(re.sub(r"\[drag\]\nmatrix = .*\n", "", plain))
    run = ("run", str(case), "--until", "0.25", "--quiet", "--output")
    script = f"""
import sys
import meanfield_pde.solver
meanfield_pde.solver.__path__.insert(0, {str(before)!r})
from meanfield_pde.figures import failures
failures.drawn_if_possible = lambda *arguments: []
from meanfield_pde.cli.main import main
for option in (["-typo"], ["-forward_euler", "maybe"], ["-forward_euler"]):
    try:
        main([*sys.argv[1:], *option])
    except SystemExit as ended:
        print(option[-1], "ends with", ended.code, file=sys.stderr)
"""
    line = [sys.executable, "-c", script, *run, "out"]
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    typo, typo_ends, maybe, maybe_ends, *rest = ended.stderr.splitlines()
    assert ("-typo" in typo, typo_ends) == (True, "-typo ends with 2")
    assert ("maybe" in maybe, maybe_ends) == (True, "maybe ends with 2")
    assert rest == ["-forward_euler ends with 0"]
    assert main(*run, tmp_path / "other")[0] == 0
    ours, other = (read_result(tmp_path / one).history for one in ("out", "other"))
    assert ours["mean_x"][-1] != other["mean_x"][-1]
    assert ours["mean_x"][-1] == pytest.approx(other["mean_x"][-1], abs=1e-3)
    code, message = main(*run, tmp_path / "third", "-forward_euler")
    assert code == 2
    assert "-forward_euler is not one that this solver asks for" in message


def test_an_indicator(monkeypatch: pytest.MonkeyPatch) -> None:
    pole = recipe("Pole")
    still = Attention(np.eye(2), np.eye(2), np.zeros((2, 2)), 0.0)

    def widths() -> tuple[float, float]:
        solution = solve(still, circle_mesh(40), until=0.1, adapt=0.1)
        cells = solution.cells_at(-1)
        width = np.linalg.norm(np.diff(cells.vertices, axis=1)[:, 0], axis=1)
        there = cells.vertices.mean(axis=1)[:, -1] > 0.91
        return float(width[there].max()), float(width[~there].max())

    assert widths()[0] > 0.1
    monkeypatch.setattr(indicators, "INDICATORS", (*INDICATORS, pole))
    inside, outside = widths()
    assert inside <= 0.02
    assert outside > 0.1


def test_a_reconstruction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the slopes: between those and none, in how much is smeared."""
    monkeypatch.setitem(SCHEMES, "half", recipe("half"))
    assert SCHEMES["half"].positive == SCHEMES["muscl"].positive
    turn = Attention(np.eye(2), np.eye(2), [[0.0, -1.0], [1.0, 0.0]], np.inf)
    peaks = [
        solve(turn, circle_mesh(60), "exp(4*x)", until=3.0, scheme=one).history["max_density"][-1]
        for one in ("upwind", "half", "muscl")
    ]
    assert peaks[0] + 0.02 < peaks[1] < peaks[2] - 0.02


def test_a_distance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pole, to_pole = recipe("pole"), recipe("to_pole")
    for module in (settings, distances, observables, distances_figure, summary):
        monkeypatch.setattr(module, "COMPARED", (*COMPARED, pole))
    monkeypatch.setitem(distances_figure._STYLES, "pole", ("#CC79A7", ":"))
    pairs = distances.Distances._pairs

    def with_pole(self: Any, density: Measure, *others: Any) -> dict[str, Any]:
        return pairs(self, density, *others) | {"pole": to_pole(density)}

    monkeypatch.setattr(distances.Distances, "_pairs", with_pole)

    @dataclass(frozen=True)
    class Compare(CompareCase):
        pole: bool = False

    with pytest.raises(InputError, match="zero_temperature = true or pole = true"):
        Compare()
    with pytest.raises(InputError, match=r"compare\.pole must be true or false"):
        Compare(limit=True, pole=1)  # type: ignore[arg-type]
    attention = Attention(np.eye(2), np.eye(2), np.diag([0.2, 1.0]), 4.0)
    case = {"until": 1.0, "compare": Compare(pole=True)}
    solution = solve(attention, circle_mesh(60), "1 + 0.9*y", **case)
    history = solution.history
    # The distance to the pole of the density (1 + 0.9 sin t) / 2 pi is pi / 2 - 0.9 * 2 / pi.
    assert history["w1_pole"][0] == pytest.approx(np.pi / 2 - 1.8 / np.pi, abs=1e-3)
    assert history["w1_pole_low"][-1] <= history["w1_pole"][-1] <= history["w1_pole_high"][-1]
    assert history["w1_pole"][-1] < 0.9 * history["w1_pole"][0]
    least = {"w1_pole": {"value": 0.5, "time": 1.0}}
    projection = ProjectionLimit(attention)
    phases = phases_of_history(history, projection)
    lines = summary.findings({"least_distances": least, "limit": {}}, phases)
    (line,) = [line for line in lines if "pole" in line]
    assert re.split(r" {2,}", line) == ["least W1 to the pole", "0.5 at t = 1", "atoms"]
    figure = distances_figure.draw_distances(tmp_path, solution, projection, phases)
    assert figure is not None
    assert figure.is_file()


def test_a_command(
    monkeypatch: pytest.MonkeyPatch, main: Main, write_case: Write, tmp_path: Path
) -> None:
    add_commands, add_entropy = cli.add_commands, recipe("add_entropy")

    def with_entropy(command: Command) -> None:
        add_commands(command)
        add_entropy(command)

    monkeypatch.setattr(cli, "add_commands", with_entropy)
    out = tmp_path / "out"
    assert main("run", write_case(PLAIN), "--until", 0, "--quiet", "--output", out) == (0, "")
    printed: list[float] = []
    monkeypatch.setitem(add_entropy.__globals__, "print", printed.append)
    assert main("entropy", out) == (0, "")
    assert printed == [pytest.approx(np.log(2 * np.pi))]
    code, message = main("entropy", tmp_path / "none")
    assert (code, message.count("\n")) == (2, 1)


def test_a_value_at_points(
    monkeypatch: pytest.MonkeyPatch, main: Main, write_case: Write, tmp_path: Path
) -> None:
    monkeypatch.setitem(VALUES, "east", recipe("east"))
    assert main("run", write_case(PLAIN), "--quiet", "--output", tmp_path / "out") == (0, "")
    path = tmp_path / "east.npz"
    line = ("sample", tmp_path / "out", "--values", "density", "east", "--output", path)
    code, message = main(*line, "--times", 0, 1)
    assert code == 0
    assert "density, log_density, east at t = 0, 1" in message
    with np.load(path) as found:
        right = np.abs(found["angle"]) < 90
        np.testing.assert_array_equal(found["east"], found["density"] * right)


def test_what_a_code_may_do_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by the row that was added, where one number would do, too."""
    attention = Attention(np.eye(2), np.eye(2), [[0.9, 0.3], [-0.2, 0.5]], 3.0)
    wrong = Attention(np.eye(2), np.eye(2), np.array([[0.9, 0.3], [-0.2, 0.5]]) / 2, 3.0)
    tokens = sample_tokens("1 + 0.4*x", 100, 0, 2)
    moved = simulate_tokens(tokens, wrong, 1.0, save_at=[0.5])
    cloud = TokenCloud(moved.times, moved.tokens)

    def cause() -> str:
        found = diagnose(cloud, attention)
        assert found is not None
        assert found.cause is not None
        return found.cause.name

    assert cause().startswith("time runs 0.5 ")
    level, row = TABLE["no number"], recipe("half_value")
    monkeypatch.setitem(TABLE, "no number", replace(level, rows=(*level.rows, row)))
    assert cause() == "half of V"


def test_rows_of_one_head_are_asked_of_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def row(trajectories: Trajectories) -> tuple[()]:
        asked.append(len(trajectories.right.attention.layers[0].heads))
        return ()

    for name, level in TABLE.items():
        monkeypatch.setitem(TABLE, name, replace(level, rows=(row,)))
    head = Attention(np.eye(2), np.eye(2), [[0.9, 0.3], [-0.2, 0.5]], 3.0)
    moved = simulate_tokens(sample_tokens("1 + 0.4*x", 100, 0, 2), head, 1.0, save_at=[0.5])
    cloud = TokenCloud(moved.times, moved.tokens)
    for attention in (head.with_beta(1.0), Heads([head, head])):
        diagnose(cloud, attention)
    assert asked == [1] * len(TABLE) + [2] * (len(TABLE) - 3)


def test_examples_pass_the_checks_of_the_package() -> None:
    """Types and docstrings throughout, so that they may be put into files as they are."""
    for code in RECIPES:
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                assert ast.get_docstring(node), node.name
            if isinstance(node, ast.FunctionDef):
                assert node.returns is not None, node.name
                given = (*node.args.args, *node.args.kwonlyargs)
                assert all(one.annotation or one.arg == "self" for one in given), node.name


def test_the_table_names_what_there_is() -> None:
    """Every name of the table that is registered somewhere, and what stands there."""
    table = TEXT.split("\n## Recipes\n")[1].split("\n**")[0]
    there = {
        "TERMS": TERMS,
        "KINDS": KINDS,
        "INDICATORS": INDICATORS,
        "SCHEMES": SCHEMES,
        "COMPARED": COMPARED,
        "RUN_FIGURES": RUN_FIGURES,
        "VALUES": VALUES,
        "TABLE": TABLE,
    }
    assert set(re.findall(r"`([A-Z_]{4,})`", table)) == set(there)
    assert all(len(one) > 1 for one in there.values())
    assert f"`{integrator_class.__name__}`" in table
    assert f"`{TermBeside.__name__}`" in table
