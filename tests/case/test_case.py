"""Cases and case files: defaults, round trips, and one clear line for every wrong input."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meanfield_pde.attention.field import ConstantField
from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.heads import Heads
from meanfield_pde.attention.layers import AttentionLike, Layers
from meanfield_pde.case.case import Case, MeshCase, OutputCase
from meanfield_pde.case.file import read_case
from meanfield_pde.case.text import case_text, differing_keys, same_case, same_problem
from meanfield_pde.errors import InputError
from meanfield_pde.initial.formula import ExpressionDensity
from meanfield_pde.initial.tokens import Tokens
from meanfield_pde.initial.uniform import Uniform
from meanfield_pde.initial.von_mises import Component, VonMises
from meanfield_pde.solver.settings import CompareCase, SolverCase, TimeCase
from meanfield_pde.tokens.cloud import TokenCloud, write_tokens

CIRCLE = """
[attention]
query = [[1.0, 0.0], [0.0, 1.0]]
key   = [[1.0, 0.0], [0.0, 1.0]]
value = [[1.0, 0.0], [0.0, 0.3]]
beta  = 40.0
"""
SPHERE = """
[attention]
query = [[1.0, 0.0, 0.5]]
key   = [[1.0, 0.0, 0.1]]
value = [[1, 0, 0], [0, 1, 0], [0, 0, 0.3]]
beta  = 3
"""
TIME = "[time]\nuntil = 10.0\n"
CONTRACT = (
    CIRCLE
    + """
[mesh]
kind  = "circle"
cells = 800
grade = 1.0
[initial]
kind = "von-mises"
components = [ { weight = 0.7, concentration = 3.0, mean = [0.6, 0.8] },
               { weight = 0.3, concentration = 1.5, mean = [-0.8, 0.6] } ]
[solver]
scheme = "muscl"
tolerance = 1e-10
[time]
until = 10.0
save_at = [0.5, 1.0, 2.0]
[compare]
limit = true
zero_temperature = true
p = [1, 2]
cost = "geodesic"
[output]
directory = "results/circle"
fields = "pvd"
checkpoint_every = 100
"""
)
HEAD = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), 40.0)


@pytest.fixture
def case(tmp_path: Path) -> Callable[[str], Path]:
    """Write a case file, next to the inputs that cases may name."""
    tokens = TokenCloud(np.array([0.0, 1.0]), np.array([[[1, 0], [0, 1]], [[1, 0], [0.6, 0.8]]]))
    write_tokens(tmp_path / "tokens.npz", tokens)
    spread = TokenCloud(np.zeros(1), np.eye(3)[None])
    write_tokens(tmp_path / "tokens3.csv", spread)
    np.savez(tmp_path / "weights.npz", query=np.eye(2), key=np.eye(2), value=np.diag([1.0, 0.3]))
    np.savez(tmp_path / "keyless.npz", query=np.eye(2), value=np.eye(2))
    (tmp_path / "mesh.xdmf").write_text("<Xdmf/>")

    def write(text: str, name: str = "case.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_case_of_the_documentation(case: Callable[[str], Path]) -> None:
    path = case(CONTRACT)
    read = read_case(path)
    np.testing.assert_array_equal(read.attention.value, np.diag([1.0, 0.3]))
    assert read.attention.beta == 40.0
    assert read.dimension == 2
    assert read.mesh == MeshCase("circle", 800, 1.0)
    assert read.initial == VonMises(
        (Component(0.7, 3.0, (0.6, 0.8)), Component(0.3, 1.5, (-0.8, 0.6)))
    )
    assert read.solver == SolverCase("muscl", 1e-10)
    assert read.time == TimeCase(10.0, (0.5, 1.0, 2.0))
    assert read.time.save_times == (0.0, 0.5, 1.0, 2.0, 10.0)
    assert read.compare == CompareCase(True, True, (1, 2), "geodesic")
    assert read.output == OutputCase(Path("results/circle"), "pvd", 100)
    assert read.source == path
    written = tomllib.loads(case_text(read))
    # The defaults that are not shown there.
    assert written["attention"].pop("normalise") is True
    assert written["compare"].pop("time_limit") == 60.0
    assert written["solver"].pop("log_masses") == "auto"
    assert written["solver"].pop("step_tolerance") == 1e-3
    assert written == tomllib.loads(CONTRACT)


def test_defaults(case: Callable[..., Path]) -> None:
    read = read_case(case(CIRCLE + TIME, "two.words.toml"))
    assert read.mesh == MeshCase("circle", 800, 1.0)
    assert read.initial == Uniform()
    assert read.solver == SolverCase("auto", 1e-10)
    assert read.compare is None
    assert read.output == OutputCase(Path("results/two.words"), "pvd", 100)
    assert read.time.save_times == (0.0, 10.0)
    assert read_case(case(SPHERE + TIME)).mesh == MeshCase("sphere", 5120, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        CONTRACT,
        CIRCLE + TIME,
        SPHERE + TIME,
        CIRCLE.replace("40.0", "inf") + TIME,
        CIRCLE.replace("40.0", '"inf"') + TIME + "[compare]\nzero_temperature = true\np = [2]",
        '[attention]\nweights = "weights.npz"\nbeta = 0\n' + TIME + "save_every = 0.25",
        SPHERE + TIME + "save_at = []\n[mesh]\nkind = 'sphere'\ncells = 20\ngrade = 2",
        SPHERE + TIME + "[mesh]\nkind = 'file'\npath = 'mesh.xdmf'",
        SPHERE + TIME + "[initial]\nkind = 'tokens'\npath = './tokens3.csv'",
        CIRCLE + TIME + "[initial]\nkind = 'tokens'\npath = 'tokens.npz'",
        SPHERE + TIME + "[initial]\nkind = 'expression'\ndensity = '1 + 0.5*x*z'",
        CIRCLE + TIME + "[output]\ndirectory = '[1,\\t2]'\nfields = 'none'\ncheckpoint_every = 0",
    ],
)
def test_round_trip(
    case: Callable[..., Path], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_case(case(text))
    written = case_text(first)
    # The text stands alone: neither where it lies nor the current directory matters.
    monkeypatch.chdir("/")
    elsewhere = tmp_path / "elsewhere" / "other.toml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(written, encoding="utf-8")
    again = read_case(elsewhere)
    assert case_text(again) == written
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(
            getattr(again.attention, name), getattr(first.attention, name)
        )
    assert again.attention.beta == first.attention.beta
    for name in ("mesh", "solver", "time", "compare", "output"):
        assert getattr(again, name) == getattr(first, name)
    if isinstance(first.initial, Tokens):
        assert isinstance(again.initial, Tokens)
        np.testing.assert_array_equal(again.initial.points, first.initial.points)
    else:
        assert again.initial == first.initial
    assert "inf" not in written or 'beta = "inf"' in written


def test_numbers_keep_every_digit(case: Callable[[str], Path]) -> None:
    rng = np.random.default_rng(1)
    given = Case(
        attention=Attention(rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), np.eye(3) / 3, 0.1),
        mesh=MeshCase("sphere"),
        time=TimeCase(1 / 3, tuple(np.array([1 / 7, 1 / 5]))),
    )
    read = read_case(case(case_text(given)))
    np.testing.assert_array_equal(read.attention.query, given.attention.query)
    np.testing.assert_array_equal(read.attention.key, given.attention.key)
    assert read.time == given.time


def test_rows_of_numbers_stand_on_one_line(case: Callable[[str], Path]) -> None:
    written = case_text(read_case(case(CONTRACT)))
    assert "value = [\n    [1.0, 0.0],\n    [0.0, 0.3],\n]\n" in written
    assert "mean = [-0.8, 0.6]\n" in written
    assert "save_at = [0.5, 1.0, 2.0]\n" in written


def test_paths_are_relative_to_the_case_file(
    case: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case(CIRCLE + TIME + "[mesh]\nkind = 'file'\npath = 'mesh.xdmf'")
    monkeypatch.chdir(tmp_path.parent)
    read = read_case(f"{tmp_path.name}/case.toml")
    assert read.mesh.path == (tmp_path / "mesh.xdmf").resolve()
    assert read.output.directory == Path("results/case")


def test_overrides(case: Callable[..., Path]) -> None:
    path = case(CONTRACT)
    read = read_case(path, until=1.5, output="elsewhere")
    assert read.time == TimeCase(1.5, (0.5, 1.0))
    assert read.output.directory == Path("elsewhere")
    assert read_case(path, until=20).time.save_times == (0, 0.5, 1, 2, 20)
    assert read_case(case(CIRCLE, "endless.toml"), until=2).time == TimeCase(2.0)
    with pytest.raises(InputError, match=r"case\.toml: time\.until must be a number >= 0, got -1"):
        read_case(path, until=-1)
    with pytest.raises(InputError, match=r"output\.directory must be a path in quotes, got ''"):
        read_case(path, output="")


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        # Sections and keys.
        ("", "section [attention] is missing; it needs query, key, value, beta"),
        (CIRCLE, "section [time] is missing; it needs until"),
        (CIRCLE + "[time]", "time.until is missing"),
        (CIRCLE.replace("beta  = 40.0", "") + TIME, "attention.beta is missing"),
        (CIRCLE.replace("value", "valeu") + TIME, "[attention] unknown key 'valeu'; did you mean"),
        (CIRCLE.replace("value", "valeu") + TIME, "did you mean 'value'?"),
        (TIME + "[atention]\nbeta = 1", "unknown section [atention]; did you mean 'attention'?"),
        (TIME + "[foo]", "unknown section [foo] (known: attention, "),
        (
            TIME + "[noise]\nsigma = 0.1",
            "[noise] unknown key 'sigma'; write strength, which is s^2 / 2",
        ),
        (
            "[attention.heads]\nbeta = 1.0\n" + TIME,
            "a section [[attention.heads]] in double brackets",
        ),
        (
            "[attention.heads]\nbeta = 1.0\n[attention.heads]\nbeta = 2.0\n" + TIME,
            "; several heads are sections [[attention.heads]] in double brackets, one for each",
        ),
        ("[attention]\nheads = [{\nbeta = 1.0 }]\n" + TIME, "are sections [[attention.heads]]"),
        (
            TIME + "[time.more]",
            "[time] unknown key 'more' (known: until, save_at, save_every, steady, steady_metast",
        ),
        ("until = 3\n" + CIRCLE, "key 'until' must stand below [time]"),
        ("kind = 'circle'\n" + CIRCLE, "key 'kind' must stand below [initial] or [mesh]"),
        ("mesh = 'circle'\n" + CIRCLE, "[mesh] must be a section, got mesh = 'circle'"),
        ("[[time]]\nuntil = 3", "write [time] once, not [[time]]"),
        ("[[attention]]\n" + TIME, "not [[attention]]; several heads are [[attention.heads]]"),
        (
            "[[attention.heads]\nbeta = 1.0\n" + TIME,
            "several heads are sections [[attention.heads]]",
        ),
        (CIRCLE + TIME + "cells = 10", "[time] unknown key 'cells'; it belongs to [mesh]"),
        ("[attention\n", "not valid TOML: Expected ']'"),
        (CIRCLE + "beta = 3\n", "not valid TOML: Cannot overwrite a value (at line 7, column"),
        (CIRCLE + "[time]\nuntil = 1,0", "(at line 8, column"),
        ("x = " + "[" * 5000, "nested too deeply"),
        # Attention.
        (CIRCLE.replace("40.0", "-1") + TIME, "attention.beta must be a number >= 0 or"),
        (
            CIRCLE.replace("40.0", "nan") + TIME,
            'attention.beta must be a number >= 0 or "inf", got',
        ),
        (CIRCLE.replace("40.0", "-inf") + TIME, "got -inf"),
        (CIRCLE.replace("40.0", "true") + TIME, "attention.beta must be a number"),
        (CIRCLE.replace("40.0", "'40'") + TIME, "attention.beta must be a number"),
        (CIRCLE.replace("40.0", "1" + 400 * "0") + TIME, "attention.beta must be a number"),
        (CIRCLE.replace("40.0", "[1]") + TIME, "attention.beta must be one number, got [1.0]"),
        (CIRCLE.replace("0.3]]", "0.3, 1]]") + TIME, "attention.value must have rows of equal"),
        (CIRCLE.replace("0.3]]", "0.3, 1]]") + TIME, "2 entries in row 0 and 3 in row 1"),
        (CIRCLE.replace("0.3", "nan") + TIME, "attention.value[1][1] must be a finite number, got"),
        (CIRCLE.replace("0.3", "-inf") + TIME, "attention.value[1][1] must be a finite number"),
        (CIRCLE.replace("0.3", "'0.3'") + TIME, "attention.value[1][1] must be a finite number"),
        (CIRCLE.replace("0.3", "true") + TIME, "attention.value[1][1] must be a finite number"),
        (CIRCLE.replace("0.3", "[0.3]") + TIME, "attention.value[1][1] must be a finite number"),
        (CIRCLE.replace("[[1.0, 0.0], [0.0, 0.3]]", "3") + TIME, "value must be a matrix [["),
        (CIRCLE.replace("[[1.0, 0.0], [0.0, 0.3]]", "[1, 2]") + TIME, "got [1, 2]"),
        (CIRCLE.replace("[[1.0, 0.0], [0.0, 0.3]]", "[]") + TIME, "attention.value must be a"),
        (CIRCLE.replace("[[1.0, 0.0], [0.0, 0.3]]", "[[1, 2]]") + TIME, "must be square"),
        (CIRCLE.replace("[[1.0, 0.0], [0.0, 0.3]]", "[[1]]") + TIME, "at least 2 x 2"),
        (SPHERE.replace("0.5]]", "0.5], [1, 1, 1]]") + TIME, "the same number of rows"),
        (SPHERE.replace(", 0.5]]", "]]") + TIME, "as many columns as value (3)"),
        (SPHERE.replace("= 3", "= inf") + TIME, "zero temperature (attention.beta = inf) needs B"),
        (
            SPHERE + TIME + "[compare]\nzero_temperature = true",
            "compare.zero_temperature: zero temperature",
        ),
        (
            "[attention]\nbeta = 1\n"
            + "".join(f"{name} = {np.eye(4).tolist()}\n" for name in ("query", "key", "value"))
            + TIME,
            "attention.value must be 2 x 2 (tokens on the circle) or 3 x 3 (on the sphere), got 4",
        ),
        ("[attention]\nweights = 'no.npz'\nbeta = 1", "attention.weights names a file that does"),
        ("[attention]\nweights = 'mesh.xdmf'\nbeta = 1", "not a readable .npz file of weights"),
        ("[attention]\nweights = 'keyless.npz'\nbeta = 1", "the array 'key' is missing"),
        ("[attention]\nweights = 3\nbeta = 1", "attention.weights must be a path in quotes"),
        ("[attention]\nweights = 'weights.npz'", "attention.beta is missing"),
        (CIRCLE + "weights = 'weights.npz'", "[attention] give weights or query, not both"),
        # Mesh.
        (CIRCLE + TIME + "[mesh]\nkind = 'circel'", "mesh.kind must be one of 'circle', 'sphere',"),
        (CIRCLE + TIME + "[mesh]\nkind = 'circel'", "got 'circel'; did you mean 'circle'?"),
        (CIRCLE + TIME + "[mesh]\nkind = ['circle']", "mesh.kind must be one of"),
        (CIRCLE + TIME + "[mesh]\nkind = 'sphere'", "mesh.kind 'sphere' needs a 3 x 3 attention."),
        (SPHERE + TIME + "[mesh]\nkind = 'circle'", "needs a 2 x 2 attention.value, got 3 x 3"),
        (CIRCLE + TIME + "[mesh]\ncells = 2", "mesh.cells must be a whole number >= 3, got 2"),
        (SPHERE + TIME + "[mesh]\ncells = 19", "mesh.cells must be a whole number >= 20, got 19"),
        (CIRCLE + TIME + "[mesh]\ncells = 10000000000", "mesh.cells must be at most 2147483647"),
        (CIRCLE + TIME + "[mesh]\ncells = 800.0", "mesh.cells must be a whole number >= 3, got 8"),
        (CIRCLE + TIME + "[mesh]\ncells = true", "mesh.cells must be a whole number"),
        (
            CIRCLE + TIME + "[mesh]\ngrade = 0.5",
            "mesh.grade must be a number >= 1 and <= 10000, got",
        ),
        (
            CIRCLE + TIME + "[mesh]\ngrade = inf",
            "grade must be a number >= 1 and <= 10000, got inf",
        ),
        (CIRCLE + TIME + "[mesh]\npath = 'a'", "mesh.path applies to kind 'file', not to 'circle'"),
        (CIRCLE + TIME + "[mesh]\nkind = 'file'", "mesh.path is missing"),
        (
            CIRCLE + TIME + "[mesh]\nkind = 'file'\npath = 'mesh.xdmf'\ncells = 8",
            "mesh.cells applies to kind 'circle' and 'sphere', not to 'file'",
        ),
        (CIRCLE + TIME + "[mesh]\nkind = 'file'\npath = 'no.xdmf'", "mesh.path names a file that"),
        (CIRCLE + TIME + "[mesh]\nkind = 'file'\npath = 7", "mesh.path must be a path in quotes"),
        # Initial density.
        (CIRCLE + TIME + "[initial]\nkind = 'vonmises'", "did you mean 'von-mises'?"),
        (CIRCLE + TIME + "[initial]\nkind = ['uniform']", "initial.kind must be one of 'uniform',"),
        (CIRCLE + TIME + "[initial]\nkind = 'von-mises'", "initial.components is missing"),
        (
            CIRCLE + TIME + "[initial]\ncomponents = []",
            "initial.components applies to kind 'von-mises', not to 'uniform'",
        ),
        (CIRCLE + TIME + "[initial]\nkind = 'von-mises'\ncomponents = []", "at least one"),
        (CIRCLE + TIME + "[initial]\nkind = 'von-mises'\ncomponents = 3", "must be a list of tabl"),
        (CIRCLE + TIME + "[initial]\nkind = 'von-mises'\ncomponents = [3]", "got [3]"),
        (CONTRACT.replace("weight = 0.3", "wight = 0.3"), "initial.components[1] unknown key 'wi"),
        (CONTRACT.replace("weight = 0.3, ", ""), "initial.components[1].weight is missing"),
        (
            CONTRACT.replace("= 0.3, c", "= -1, c"),
            "components[1].weight must be a number >= 0, got",
        ),
        (CONTRACT.replace("0.7,", "0,").replace("0.3,", "0,"), "positive sum of weights"),
        (CONTRACT.replace("3.0, mean", "-3, mean"), "initial.components[0].concentration must be"),
        (CONTRACT.replace("[0.6, 0.8]", "[0, 0]"), "components[0].mean must be a non-zero vector"),
        (CONTRACT.replace("[0.6, 0.8]", "[0, 0, 1]"), "components[0].mean must have 2 entries"),
        (
            CIRCLE + TIME + "[initial]\nkind = 'expression'\ndensity = 'x'",
            "initial.density must be",
        ),
        (CIRCLE + TIME + "[initial]\nkind = 'expression'\ndensity = '0'", "zero everywhere"),
        (
            CIRCLE + TIME + "[initial]\nkind = 'expression'\ndensity = 3",
            "a formula in quotes, got 3",
        ),
        (CIRCLE + TIME + "[initial]\nkind = 'expression'\ndensity = '1+z'", "initial.density: 'z'"),
        (
            CIRCLE + TIME + "[initial]\nkind = 'expression'\ndensity = '1 + sinn(x)'",
            "initial.density: unknown name 'sinn'; did you mean 'sin'?",
        ),
        (CIRCLE + TIME + "[initial]\nkind = 'tokens'", "initial.path is missing"),
        (CIRCLE + TIME + "[initial]\nkind = 'tokens'\npath = 'x.npz'", "initial.path names a file"),
        (CIRCLE + TIME + "[initial]\nkind = 'tokens'\npath = 'mesh.xdmf'", "must end in .npz or"),
        (
            CIRCLE + TIME + "[initial]\nkind = 'tokens'\npath = 'tokens3.csv'",
            "initial tokens must have 2 coordinates",
        ),
        # Solver, time, comparison, output.
        (CIRCLE + TIME + "[solver]\nscheme = 'muscle'", "got 'muscle'; did you mean 'muscl'?"),
        (
            CIRCLE + TIME + "[solver]\nscheme = 2",
            "solver.scheme must be one of 'auto', 'muscl', 'quadratic', 'upwind'",
        ),
        (CIRCLE + TIME + "[solver]\ntolerance = 0", "solver.tolerance must be a number from 1e-14"),
        (CIRCLE + TIME + "[solver]\ntolerance = '1e-8'", "solver.tolerance must be a number from"),
        (CIRCLE + "[time]\nuntil = -1", "time.until must be a number >= 0, got -1"),
        (CIRCLE + "[time]\nuntil = inf", "time.until must be a number >= 0, got inf"),
        (CIRCLE + "[time]\nuntil = '10'", "time.until must be a number >= 0, got '10'"),
        (CIRCLE + TIME + "save_at = [1, 11]", "time.save_at[1] must be between 0 and time.until ="),
        (CIRCLE + TIME + "save_at = [-1]", "time.save_at[0] must be between 0"),
        (CIRCLE + TIME + "save_at = [2, 1]", "time.save_at must increase, got 1.0 after 2.0"),
        (CIRCLE + TIME + "save_at = [1, 1]", "time.save_at must increase, got 1.0 after 1.0"),
        (CIRCLE + TIME + "save_at = [nan]", "time.save_at[0] must be a number, got nan"),
        (CIRCLE + TIME + "save_at = 1", "time.save_at must be a list of numbers, got 1"),
        (CIRCLE + TIME + "save_every = 0", "time.save_every must be a number > 0, got 0"),
        (CIRCLE + TIME + "save_every = 1e-9", "at most 100000 saved times"),
        (CIRCLE + TIME + "save_every = 1\nsave_at = [1]", "exclude each other; give one"),
        (CIRCLE + TIME + "[compare]", "[compare] needs limit = true or zero_temperature = true"),
        (CIRCLE + TIME + "[compare]\nlimit = 1", "compare.limit must be true or false, got 1"),
        (
            CIRCLE + TIME + "[compare]\nlimit = true\np = [3]",
            "compare.p must be [1], [2] or [1, 2]",
        ),
        (CIRCLE + TIME + "[compare]\nlimit = true\np = [2, 1]", "compare.p must be [1], [2] or"),
        (CIRCLE + TIME + "[compare]\nlimit = true\np = 1", "compare.p must be a list of numbers"),
        (CIRCLE + TIME + "[compare]\nlimit = true\np = [1.5]", "compare.p must be a whole number"),
        (CIRCLE + TIME + "[compare]\nlimit = true\ncost = 'cordal'", "did you mean 'chordal'?"),
        (CIRCLE + TIME + "[output]\ndirectory = ''", "output.directory must be a path in quotes"),
        (CIRCLE + TIME + "[output]\ndirectory = 3", "output.directory must be a path in quotes"),
        (CIRCLE + TIME + "[output]\nfields = 'pdv'", "output.fields must be one of 'pvd', 'xdmf',"),
        (
            CIRCLE + TIME + "[output]\ncheckpoint_every = -1",
            "checkpoint_every must be a whole numbe",
        ),
    ],
)
def test_wrong_input(case: Callable[[str], Path], text: str, fragment: str) -> None:
    path = case(text)
    with pytest.raises(InputError) as caught:
        read_case(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert fragment in message
    assert "\n" not in message
    assert len(message) < 400 + len(str(path.parent)) * 3


def test_files_that_cannot_be_read(case: Callable[..., Path], tmp_path: Path) -> None:
    case(CONTRACT, "circle.toml")
    with pytest.raises(InputError, match=r"circel\.toml: no such case file; did you mean 'circle"):
        read_case(tmp_path / "circel.toml")
    with pytest.raises(InputError, match=r"no such case file$"):
        read_case(tmp_path / "no" / "circle.toml")
    with pytest.raises(InputError, match="no such case file"):
        read_case(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not a readable case file"):
        read_case(tmp_path / "binary.toml")


def test_which_texts_are_the_same_problem(case: Callable[[str], Path]) -> None:
    text = case_text(read_case(case(CONTRACT)))

    def changed(*edits: tuple[str, str]) -> str:
        edited = CONTRACT
        for before, after in edits:
            assert before in edited
            edited = edited.replace(before, after)
        return case_text(read_case(case(edited)))

    longer = changed(("until = 10.0", "until = 20.0"), ('"pvd"', '"none"'))
    moved = changed(("results/circle", "results/moved"))
    colder = changed(("40.0", "41.0"))
    every = changed(("save_at = [0.5, 1.0, 2.0]", "save_every = 1"))
    assert same_problem(text, text)
    assert same_case(text, text)
    assert same_problem(text, longer)
    assert not same_case(text, longer)
    assert same_problem(text, moved)
    assert same_case(text, moved)
    assert not same_problem(text, colder)
    assert not same_case(text, colder)
    assert not same_problem(text, changed(("p = [1, 2]", "p = [1]")))
    assert same_problem(text, every)
    assert differing_keys(text, every) == ("time.save_at", "time.save_every")
    assert differing_keys(text, colder) == ("attention.beta",)
    assert differing_keys(text, longer) == ("output.fields", "time.until")
    assert differing_keys(text, longer, ignore=("time", "output.fields")) == ()
    assert differing_keys("a = 1", "a = 2") == ("a.",)
    with pytest.raises(InputError, match="not valid TOML"):
        same_case(text, "[")


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("time_limit = 60.0", "time_limit = 5.0"),
        ("zero_temperature = false", "zero_temperature = true"),
        ("p = [1]", "p = [2]"),
        ("grade = 1.0", "grade = 2.0"),
        ('log_masses = "auto"', 'log_masses = "on"'),
        ("checkpoint_every = 100", "checkpoint_every = 7"),
        ("max_cells = 200000", None),
    ],
)
def test_a_key_that_is_newer_than_a_text_counts_as_its_default(
    line: str, other: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "case.toml"
    more = "[compare]\nlimit = true\n[adapt]\ntolerance = 1e-2\n"
    path.write_text(CIRCLE + TIME + more, encoding="utf-8")
    text = case_text(read_case(path))
    assert f"\n{line}\n" in text
    older = text.replace(f"\n{line}\n", "\n")
    assert same_case(text, older)
    assert same_problem(older, text)
    if other is not None:
        assert not same_case(text.replace(line, other), older)


@pytest.mark.parametrize(
    ("time", "saved"),
    [
        (TimeCase(0), (0,)),
        (TimeCase(2), (0, 2)),
        (TimeCase(2, (0, 1)), (0, 1, 2)),
        (TimeCase(2, (1, 2)), (0, 1, 2)),
        (TimeCase(2, save_every=3), (0, 2)),
        (TimeCase(2, save_every=2), (0, 2)),
        (TimeCase(2, save_every=0.75), (0, 0.75, 1.5, 2)),
        (TimeCase(0, save_every=1), (0,)),
        (TimeCase(2, save_every=1.5).with_until(4), (0, 1.5, 3, 4)),
    ],
)
def test_saved_times(time: TimeCase, saved: tuple[float, ...]) -> None:
    assert time.save_times == saved


@pytest.mark.parametrize("count", [3, 7, 10, 49, 1000])
def test_evenly_saved_times_end_once(count: int) -> None:
    assert len(TimeCase(1.0, save_every=1 / count).save_times) == count + 1
    assert len(TimeCase(count * 0.1, save_every=0.1).save_times) == count + 1


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (lambda: MeshCase("file"), "mesh.path is missing"),
        (lambda: MeshCase("file", path="m.msh", grade=2), "do not apply to kind 'file'"),
        (lambda: MeshCase("circle", path="m.msh"), "mesh.path applies to kind 'file' only"),
        (lambda: MeshCase("circle", cells=np.float64(8)), "mesh.cells must be a whole number"),
        (lambda: OutputCase("a\0b"), "output.directory must be a path"),
        (
            lambda: Case(attention=HEAD, mesh=MeshCase("sphere"), time=TimeCase(1)),
            "mesh.kind 'sphere' needs a 3 x 3",
        ),
        (
            lambda: Case(
                attention=HEAD,
                mesh=MeshCase("circle"),
                time=TimeCase(1),
                initial=ExpressionDensity("1 + 2*x"),
            ),
            "initial.density must be finite and >= 0",
        ),
        (
            lambda: case_text(
                Case(
                    attention=HEAD,
                    mesh=MeshCase("circle"),
                    time=TimeCase(1),
                    initial=Tokens(np.eye(2)),
                )
            ),
            "write them with write_tokens",
        ),
    ],
)
def test_wrong_use_from_python(make: Callable[[], Any], fragment: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert fragment in str(caught.value)


def test_numpy_values_are_welcome() -> None:
    time = TimeCase(np.float32(2), tuple(np.linspace(0.5, 2, 4)))
    assert time == TimeCase(2.0, (0.5, 1.0, 1.5, 2.0))
    assert MeshCase("circle", np.int64(8), np.int32(1)) == MeshCase("circle", 8, 1.0)
    assert type(MeshCase("circle", np.int64(8)).cells) is int
    assert math.isclose(TimeCase(np.int64(3)).until, 3)


HEAD = Attention(np.eye(2), np.eye(2), np.eye(2), 2.0)
EAST, NORTH = ConstantField([1.0, 0.0]), ConstantField([0.0, 1.0])


@pytest.mark.parametrize(
    ("attention", "fragment"),
    [
        (Heads([HEAD], None, [EAST, NORTH]), "one section for each kind of term"),
        (Layers([Heads([HEAD], None, [EAST]), HEAD], 1.0), "the same terms"),
        (Layers([Heads([HEAD], None, [one]) for one in (EAST, NORTH)], 1.0), "the same terms"),
    ],
)
def test_terms_that_no_case_file_holds(attention: AttentionLike, fragment: str) -> None:
    """Refused, and not left out of the text."""
    case = Case(attention=attention, mesh=MeshCase("circle", 8), time=TimeCase(1.0))
    with pytest.raises(InputError, match=fragment):
        case_text(case)


def test_a_boolean_of_numpy_is_written_as_any() -> None:
    bare = Attention(np.eye(2), np.eye(2), np.eye(2), 2.0, normalise=np.False_)
    case = Case(attention=bare, mesh=MeshCase("circle", 8), time=TimeCase(1.0))
    assert tomllib.loads(case_text(case))["attention"]["normalise"] is False
