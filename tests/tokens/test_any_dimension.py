"""Tokens in any dimension, from case files: there is no mesh beyond the sphere in space."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from meanfield_pde import ProjectionLimit, read_case, read_tokens
from meanfield_pde.case.text import case_text, same_case
from meanfield_pde.errors import InputError
from tests.conftest import Main, Write
from tests.problems import rotation

D = 5
# In the plane of the first two axes the case of the metastable phase; nothing attracts beyond it.
ROTATION = np.eye(D)
ROTATION[:2, :2] = rotation(0.5)
VALUE = ROTATION @ np.diag([1.0, 0.3, 0.2, 0.2, 0.2]) @ ROTATION.T
KEY_QUERY = np.linalg.solve(VALUE, np.diag([1.0, 0.3, 0.2, 0.2, 0.2]))
CASE = f"""
[attention]
query = {KEY_QUERY.T.tolist()}
key   = {np.eye(D).tolist()}
value = {VALUE.tolist()}
beta  = 80.0
[time]
until = 1.0
save_every = 0.5
"""
PEAK = f"""[initial]
kind = "von-mises"
components = [{{ weight = 1.0, concentration = 50.0, mean = {np.ones(D).tolist()} }}]
"""


@pytest.mark.parametrize("initial", ["", PEAK, '[initial]\nkind = "tokens"\npath = "given.npz"\n'])
def test_tokens_from_what_is_known_in_any_dimension(
    initial: str, main: Main, write_case: Write, tmp_path: Path
) -> None:
    given = np.vstack([np.eye(D), -np.eye(D)])
    np.savez(tmp_path / "given.npz", tokens=given)
    case, path = write_case(CASE + initial), tmp_path / "tokens.npz"
    assert main("tokens", case, "--count", 300, "--output", path)[0] == 0
    cloud = read_tokens(path)
    assert cloud.tokens.shape == (3, 300, D)
    np.testing.assert_allclose(np.linalg.norm(cloud.tokens, axis=2), 1, atol=1e-9)
    start = cloud.tokens[0]
    if "von-mises" in initial:
        assert (start.mean(axis=0) > 0.3).all()
    elif "tokens" in initial:
        assert (np.abs(start[:, None] - given).sum(axis=2).min(axis=1) < 1e-12).all()
    else:
        np.testing.assert_allclose(start.T @ start / 300, np.eye(D) / D, atol=0.06)
    # They gather.
    assert np.abs(cloud.tokens[-1][:, 0]).mean() > np.abs(start[:, 0]).mean()
    again = read_case(case, meshless=True)
    assert same_case(case_text(again), case_text(again))


@pytest.mark.painted
def test_lifetimes_of_tokens(main: Main, write_case: Write, tmp_path: Path) -> None:
    out = tmp_path / "lifetimes"
    arguments = ("--beta", 80, "--tokens", 20, 200, "--seeds", 1, "--output", out)
    path = write_case(CASE)
    case = read_case(path, meshless=True)
    code, err = main("lifetime", path, *arguments)
    assert code == 0, err
    summary = json.loads((out / "summary.json").read_text())
    assert summary["density"]["lifetimes"] == []
    # Twenty tokens have no tail that holds them at the eigenspace of A.
    assert summary["tokens"]["not_reached"] == [[80.0, 20, 0]]
    assert "; the axis was never at the eigenspace of A, but is at that of V" in err
    (many,) = (one["mean"] for one in summary["tokens"]["means"])
    assert many == pytest.approx(ProjectionLimit(case.attention).lifetime, rel=0.1)
    assert (out / "figures/lifetime.png").exists()
    assert main("plot", out)[0] == 0
    code, err = main("lifetime", write_case(CASE), "--beta", 80, "--output", tmp_path / "none")
    assert (code, err.count("\n")) == (2, 1)
    assert "lifetimes of tokens alone: give their numbers (--tokens), d = 5" in err


@pytest.mark.parametrize(
    ("command", "more", "message"),
    [
        ("run", "", "got 5 x 5; in other dimensions there are tokens alone, by `meanfield-pde tok"),
        ("tokens", '[initial]\nkind = "expression"\ndensity = "1 + x"\n', "give kind 'uniform',"),
        ("tokens", "[adapt]\ntolerance = 1e-3\n", "[adapt] needs a mesh, but mesh.kind is 'none'"),
        (
            "tokens",
            "[mesh]\ncells = 100\n",
            "mesh.cells applies to kind 'circle' and 'sphere', not",
        ),
        ("tokens", '[mesh]\nkind = "sphere"\n', "got 5 x 5; in other dimensions there are tokens"),
    ],
)
def test_what_needs_a_mesh_says_so(
    command: str, more: str, message: str, main: Main, write_case: Write, tmp_path: Path
) -> None:
    count = ("--count", 10) if command == "tokens" else ()
    code, err = main(command, write_case(CASE + more), *count, "--output", tmp_path / "out.npz")
    assert (code, err.count("\n"), message in err) == (2, 1, True), err
    assert not (tmp_path / "out.npz").exists()


def test_a_mesh_of_none_is_for_tokens(write_case: Write) -> None:
    case = write_case(
        CASE.replace(str(KEY_QUERY.T.tolist()), "[[1.0, 0.0], [0.0, 1.0]]")
        .replace(str(np.eye(D).tolist()), "[[1.0, 0.0], [0.0, 1.0]]")
        .replace(str(VALUE.tolist()), "[[1.0, 0.0], [0.0, 0.3]]")
        + '[mesh]\nkind = "none"\n'
    )
    assert not read_case(case, meshless=True).mesh.there
    with pytest.raises(InputError, match=r"mesh\.kind 'none' is for tokens alone"):
        read_case(case)
