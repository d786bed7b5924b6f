"""`limit` and `wasserstein`, and runs that compare: in one piece, resumed, on two ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from meanfield_pde import Measure, read_result, wasserstein
from meanfield_pde.results.measures import read_measure
from meanfield_pde.wasserstein import METHODS
from tests.conftest import Command, JsonOf, Main, Printed, Write
from tests.problems import CIRCLE, SPHERE

ROOT = Path(__file__).parents[2]
COMPARE = "[compare]\nlimit = true\nzero_temperature = true\np = [1, 2]\n"
TURN = "[[0.0, -1.0], [1.0, 0.0]]"


def test_limit_prints_a_report_or_json(
    printed: Printed, json_of: JsonOf, write_case: Write
) -> None:
    case = write_case(CIRCLE)
    assert "two atoms at ±" in printed("limit", case)
    found = json_of("limit", case)
    assert found["dimension"] == 1
    assert found["contraction_rate"] > 0


def test_limit_has_the_masses_of_the_atoms(
    printed: Printed, json_of: JsonOf, main: Main, write_case: Write, tmp_path: Path
) -> None:
    """1 + 0.5 x + 0.3 x y on either side of the line <l, x> = 0, with l = (1, 2/7) / |l|."""
    case = write_case(CIRCLE)
    found = json_of("limit", case)
    start = np.arctan2(-1.0, 2 / 7)  # a direction on the line; its side is half a turn from there
    rise = np.sin(start + np.pi) - np.sin(start)
    plus = (np.pi + 0.5 * rise) / (2 * np.pi)  # x y has no mean over half a turn
    for atom, mass, sign in zip(found["atoms"], (plus, 1 - plus), (1, -1), strict=True):
        np.testing.assert_allclose(atom["point"], sign * np.array(found["basis"][0]), rtol=1e-15)
        assert atom["mass"] == pytest.approx(
            mass if found["left"][0][0] > 0 else 1 - mass, rel=1e-9
        )
    shown = [f"{atom['mass']:.6g}" for atom in found["atoms"]]
    assert f", of mass {shown[0]} at + and {shown[1]} at -\n" in printed("limit", case)
    assert main("run", case, "--quiet", "--until", 0.1, "--output", tmp_path / "out")[0] == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    for one, other in zip(summary["limit"]["atoms"], found["atoms"], strict=True):
        assert one["point"] == other["point"]
        assert one["mass"] == pytest.approx(other["mass"], rel=1e-9)


def test_limit_lists_no_atoms_of_a_great_circle(json_of: JsonOf, write_case: Write) -> None:
    head = "[attention]\nbeta = 40.0\n" + "".join(
        f"{name} = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, {last}]]\n"
        for name, last in (("query", 1.0), ("key", 1.0), ("value", 0.5))
    )
    found = json_of("limit", write_case(head + "[time]\nuntil = 1.0\n"))
    assert found["dimension"] == 2
    assert found["atoms"] is None


def test_limit_says_where_no_metastable_phase_is_to_be_expected(
    printed: Printed, json_of: JsonOf, write_case: Write
) -> None:
    sentence = "no metastable phase is to be expected, because "
    for beta, reason in (
        ("80.0", None),
        ("40.0", "clusters are predicted to gather until about 2.71 and to leave at about 4.51"),
        ("1.0", "clusters are predicted to leave at about 0.113, before they have gathered at"),
        ("0.0", "at beta = 0 query and key do not act"),
        ('"inf"', "nothing is predicted to end the concentrated state"),
    ):
        case = write_case((ROOT / "demos" / "circle.toml").read_text(), ("80.0", beta))
        found = json_of("limit", case)["no_metastable_phase"]
        text = printed("limit", case)
        if reason is None:
            assert found is None
            assert sentence not in text
        else:
            assert found.startswith(reason)
            assert sentence + found in text


def test_limit_answers_with_noise_and_says_what_it_left_aside(
    main: Main, json_of: JsonOf, write_case: Write
) -> None:
    noise = '[noise]\nstrength = 0.1\n[solver]\nlog_masses = "on"\n'
    case = write_case(CIRCLE + noise + COMPARE)
    left = ["noise.strength = 0.1", "compare.limit = true", "compare.zero_temperature = true"]
    found = json_of("limit", case)
    assert found["left_aside"] == left
    assert found | {"left_aside": []} == json_of("limit", write_case(CIRCLE, name="still.toml"))
    code, err = main("limit", case)
    assert (code, err.count("\n")) == (0, 1)
    assert f"{' and '.join(left)} are left aside" in err
    wrong = write_case(CIRCLE + noise + COMPARE.replace("p = [1, 2]", "p = [3]"))
    assert main("limit", wrong)[0] == 2


def test_limit_says_why_there_is_none(json_of: JsonOf, write_case: Write) -> None:
    case = write_case(CIRCLE, ("[[1.0, 0.2], [0.0, 0.3]]", TURN))
    found = json_of("limit", case)
    assert found["exists"] is False
    assert "complex" in found["reason"]


def test_run_refuses_to_compare_with_a_limit_that_does_not_exist(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    case = write_case(CIRCLE + COMPARE, ("[[1.0, 0.2], [0.0, 0.3]]", TURN))
    code, err = main("run", case, "--output", tmp_path / "out")
    assert code == 2
    assert "no limit" in err
    assert "complex" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def write_measures(folder: Path) -> tuple[Path, Path]:
    angle = np.array([0.0, 1.0, 2.0])
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    Measure(points, np.array([0.5, 0.5, 0.0])).write(folder / "a.npz")
    Measure(points, np.array([0.0, 0.5, 0.5])).write(folder / "b.npz")
    return folder / "a.npz", folder / "b.npz"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("p", "cost", "expected"),
    [(1, "geodesic", 1.0), (2, "geodesic", 1.0), (1, "chordal", np.sin(1.0))],
)
def test_wasserstein_of_two_files(
    p: int, cost: str, expected: float, method: str, json_of: JsonOf, tmp_path: Path
) -> None:
    """Half of the mass moves by 2, or all of it by 1; chords make the long way cheaper."""
    options = ("--p", p, "--cost", cost, "--method", method)
    found = json_of("wasserstein", *write_measures(tmp_path), *options)
    assert found[f"w{p}"] == pytest.approx(expected, rel=1e-9)
    assert found["low"] <= found[f"w{p}"] * (1 + 1e-12)
    assert found["high"] >= found[f"w{p}"] * (1 - 1e-12)
    assert ("scipy" in found["method"]) == (method == "scipy")


def test_wasserstein_wrong_input(main: Main, tmp_path: Path) -> None:
    first, second = write_measures(tmp_path)
    outside = tmp_path / "outside.npz"
    Measure(np.array([[2.0, 0.0]]), np.ones(1)).write(outside)
    space = tmp_path / "space.npz"
    Measure(np.eye(3), np.ones(3)).write(space)
    negative = tmp_path / "negative.npz"
    np.savez(negative, points=np.eye(2), masses=np.array([1.0, -1.0]))
    empty = tmp_path / "empty.npz"
    np.savez(empty, points=np.zeros((0, 2)), masses=np.zeros(0))
    for wrong, part in (
        (tmp_path / "none.npz", "none.npz"),
        (outside, "unit sphere"),
        (space, "dimension"),
        (negative, "masses >= 0"),
        (empty, "empty"),
    ):
        code, err = main("wasserstein", first, wrong)
        assert code == 2, err
        assert err.count("\n") == 1
        assert part in err, err
    code, err = main("wasserstein", first, second, "--p", 3)
    assert code == 2


def test_distances_of_tokens_folders_and_single_precision(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    """Tokens and points in single precision are put back on the sphere, with a note."""
    angle = np.linspace(0.1, 6.0, 40)
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    single = tmp_path / "single.npz"
    np.savez(single, points=points.astype("f4"), masses=np.ones(40, dtype="f4"))
    tokens = tmp_path / "tokens.npz"
    np.savez(tokens, times=np.array([0.0, 1.0]), tokens=np.stack([points[::-1], points]))
    table = tmp_path / "tokens.csv"
    rows = [f"{i},{x!r},{y!r}" for i, (x, y) in enumerate(points.tolist())]
    table.write_text("\n".join(["token,x,y", *rows]))
    out = tmp_path / "out"
    assert main("run", write_case(CIRCLE), "--quiet", "--until", 1, "--output", out)[0] == 0
    found = {}
    for path in (single, tokens, table):
        code, err = main("wasserstein", path, out)
        assert code == 0, err
        assert ("renormalised" in err) == (path == single), err
        assert str(path) in err or path != single, err
        first, second = (read_measure(one) for one in (path, out))
        found[path] = wasserstein(first, second, p=1).value
    assert found[tokens] == found[table]
    assert found[single] == pytest.approx(found[tokens], abs=1e-6)
    sphere = tmp_path / "sphere.npz"
    np.savez(sphere, points=np.eye(3), masses=np.ones(3))
    code, err = main("wasserstein", sphere, tokens)
    assert code == 2
    assert f"{sphere} is of dimension 3, {tokens} of 2" in err
    far = tmp_path / "far.npz"
    np.savez(far, points=np.array([[1.0, 0.0], [0.0, 1.1]]), masses=np.ones(2))
    code, err = main("wasserstein", tokens, far)
    assert code == 2
    assert f"{far}: point 1" in err


def test_compared_run_is_complete_and_resumes(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    """Resumed from t = 1, densities are the same bits and distances the same to the interval."""
    case = write_case(CIRCLE + COMPARE)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main("run", case, "--until", 2, "--quiet", "--output", whole) == (0, "")
    assert main("run", case, "--until", 1, "--quiet", "--output", parts) == (0, "")
    assert main("run", case, "--until", 2, "--quiet", "--output", parts, "--resume") == (0, "")
    first, second = read_result(whole), read_result(parts)
    assert np.array_equal(first.masses, second.masses)
    assert first.zero_masses is not None
    assert second.zero_masses is not None
    assert np.array_equal(first.zero_masses, second.zero_masses)
    for name, column in first.history.items():
        assert column == pytest.approx(second.history[name], rel=1e-7, abs=1e-12, nan_ok=True)
    names = list(first.history)
    assert names[names.index("lyapunov") + 1 : names.index("w2_limit")] == [
        "w1_limit", "w1_limit_low", "w1_limit_high",
        "w1_zero", "w1_zero_low", "w1_zero_high", "w1_zero_to_limit",
    ]  # fmt: skip
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["distances_not_closed"] == {}
    assert set(summary["least_distances"]) >= {"w1_limit", "w2_zero"}


@pytest.mark.slow
def test_distances_do_not_depend_on_ranks(
    command: Command, write_case: Write, tmp_path: Path
) -> None:
    case = write_case(SPHERE + COMPARE)
    for ranks in (1, 2):
        out = tmp_path / str(ranks)
        done = command("run", case, "--until", 1, "--quiet", "--output", out, ranks=ranks)
        assert done.returncode == 0, done.stderr
    one, two = (read_result(tmp_path / str(ranks)).history for ranks in (1, 2))
    for name in one:
        assert one[name] == pytest.approx(two[name], rel=1e-7, abs=1e-12, nan_ok=True), name


def test_what_is_only_true_of_atoms_is_called_so(
    main: Main, printed: Printed, json_of: JsonOf, write_case: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main("run", write_case(CIRCLE), "--quiet", "--until", 1, "--output", out)[0] == 0
    atoms = tmp_path / "atoms.npz"
    np.savez(atoms, points=np.eye(2), masses=np.ones(2))
    text = printed("wasserstein", out, atoms)
    assert "between atoms " in text
    assert "between densities " in text
    assert "certified interval" not in text
    shown = json_of("wasserstein", out, atoms)
    found = wasserstein(read_measure(out), read_measure(atoms), p=1)
    assert shown["densities"] == list(found.continuous)
    assert (
        shown["densities"][0] < shown["low"] <= shown["w1"] <= shown["high"] < shown["densities"][1]
    )
