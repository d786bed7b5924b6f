"""Particle codes, right and wrong, against the density: what `compare` says of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from mpi4py import MPI

import numpy as np
import pytest
from scipy.stats import norm

from meanfield_pde import Attention, InputError, Uniform, circle_mesh, solve, sphere_mesh
from meanfield_pde.attention.layers import Layers
from meanfield_pde.initial.sampling import sample_tokens
from meanfield_pde.judging import report as token_report
from meanfield_pde.judging.comparison import common_times, compare_tokens
from meanfield_pde.judging.statistics import SamplingBand, sample_cells, sampling_band
from meanfield_pde.tokens.cloud import TokenCloud, read_tokens, write_tokens
from meanfield_pde.tokens.code import evolve, simulate_tokens, token_velocity
from tests import oracles

DENSITY = "1 + 0.4*x + 0.6*x*y"
HEAD = Attention(
    query=np.array([[1.0, 0.4], [-0.3, 0.8]]),
    key=np.array([[0.9, -0.2], [0.8, 1.1]]),
    value=np.array([[1.5, 1.0], [-0.6, 1.0]]),
    beta=1.5,
)
TIMES = [1.0, 2.0, 3.0]
COUNT = 300


@pytest.fixture(scope="module")
def solution():
    return solve(HEAD, circle_mesh(400), DENSITY, until=TIMES[-1], save_at=TIMES[:-1])


@pytest.fixture(scope="module")
def band(solution):
    return sampling_band(solution, np.arange(4), COUNT, samples=60, comm=MPI.COMM_SELF)


def initial(seed, count=COUNT):
    return sample_tokens(DENSITY, count, seed, 2)


def run(attention=HEAD, seed=0, **options):
    return simulate_tokens(initial(seed), attention, TIMES[-1], save_at=TIMES, **options)


def freeze_a_third(seed=0):
    x = initial(seed)
    moving = token_velocity(HEAD)
    still = (np.arange(COUNT) % 3 == 0)[:, None]
    paths = evolve(x, HEAD, [0.0, *TIMES], lambda _: lambda y: np.where(still, 0, moving(y)))
    return TokenCloud(np.array([0.0, *TIMES]), paths)


FAULTS = {
    "beta off by 20%": (lambda: run(HEAD.with_beta(1.8)), "beta = 1.8 instead of 1.5"),
    "V transposed": (lambda: run(replace(HEAD, value=HEAD.value.T)), "V transposed"),
    "Q and K swapped": (
        lambda: run(replace(HEAD, query=HEAD.key, key=HEAD.query)),
        "Q and K swapped",
    ),
    "no denominator": (
        lambda: run(replace(HEAD, normalise=False)),
        "a softmax without its denominator",
    ),
    "step 0.5": (lambda: run(step=0.5), "Euler steps of 0.5"),
    "layers of 0.5": (
        lambda: run(step=0.5, residual=True),
        "layers x + h V m of h = 0.5",
    ),
    "frozen": (freeze_a_third, "a code that leaves 100 of 300 tokens frozen"),
    "-V": (lambda: run(replace(HEAD, value=-HEAD.value)), "-V instead of V"),
    "divided by sqrt(d)": (
        lambda: run(HEAD.with_beta(1.5 / math.sqrt(2))),
        "scores divided by the square root of their dimension",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_named(solution, band, fault):
    make, name = FAULTS[fault]
    found = compare_tokens(solution, make(), band=band)
    assert not found.agrees, found.scores
    assert not found.reproduced
    assert found.cause.name.startswith(name)
    text = f"within sampling error of the density (z = {found.score:.1f}), but not right"
    if not found.within_sampling_error:
        text = f"deviates from t = {found.since:g} on (z = {found.score:.1f})"
        assert found.since in TIMES
    assert found.verdict.startswith(text)
    assert f"its trajectories are those of {name}" in found.verdict


def count_agreements(solution, band, seeds):
    scores = []
    for seed in seeds:
        found = compare_tokens(solution, run(seed=seed, tolerance=1e-6), band=band)
        assert found.reproduced
        scores.append(found.score)
    return int((np.array(scores) < 2).sum())


def test_a_right_code_agrees(solution, band):
    assert count_agreements(solution, band, range(12)) >= 11


@pytest.mark.slow
def test_a_right_code_agrees_in_95_of_100_seeds(solution, band):
    assert count_agreements(solution, band, range(100)) >= 95


def test_another_implementation_agrees(solution, band):
    """Plain numpy, classical Runge-Kutta with fixed steps, from a seed of its own."""
    x = initial(123)
    weights = np.full(COUNT, 1 / COUNT)
    matrices = (HEAD.query, HEAD.key, HEAD.value, HEAD.beta)
    tokens = [x]
    for _ in TIMES:
        tokens.append(oracles.characteristics(tokens[-1], weights, *matrices, 1.0, 40))
    cloud = TokenCloud(np.array([0.0, *TIMES]), np.array(tokens))
    found = compare_tokens(solution, cloud, band=band)
    assert found.agrees
    assert found.reference_distance < 1e-5
    assert found.verdict == f"agrees within sampling error (z = {found.score:.1f})"
    single = replace(cloud, times=cloud.times[2:3], tokens=cloud.tokens[2:3])
    late = compare_tokens(solution, single, samples=20)
    assert late.agrees
    assert late.reference_distance is None
    assert late.verdict.startswith("agrees within sampling error (z = ")


def test_a_fault_too_small_for_the_number_of_tokens_is_named_all_the_same(solution, band):
    found = compare_tokens(solution, run(HEAD.with_beta(1.54)), band=band)
    assert found.within_sampling_error
    assert not found.agrees
    assert "but not right: its trajectories are those of beta = 1.54 instead" in found.verdict


def test_fluctuations_that_grow_are_no_fault():
    """The uniform density is an unstable equilibrium: it stays, and any N tokens leave it."""
    head = Attention(np.eye(2), np.eye(2), np.eye(2), 2.0)
    solution = solve(head, circle_mesh(100), until=6.0, save_every=3.0)
    cloud = simulate_tokens(sample_tokens(Uniform(), 100, 0, 2), head, 6.0, save_at=[3.0])
    found = compare_tokens(solution, cloud, samples=30)
    assert found.agrees
    assert found.band.expected[2] > 3 * found.band.expected[0]


def test_an_unusual_sample_is_told_from_a_wrong_code(solution, band):
    narrow = replace(band, expected=band.expected / 3, deviation=band.deviation / 5)
    narrow = replace(narrow, expected=np.where(band.times == 0, 1, narrow.expected))
    found = compare_tokens(solution, run(), band=narrow)
    assert not found.agrees
    assert "the code is right, and its sample an unusual one" in found.verdict


def test_other_initial_tokens_are_told_from_a_wrong_code(solution, band):
    x = sample_tokens(Uniform(), COUNT, 0, 2)
    cloud = simulate_tokens(x, HEAD, TIMES[-1], save_at=TIMES)
    found = compare_tokens(solution, cloud, band=band)
    assert not found.agrees
    assert "the code is right, but its initial tokens are no sample" in found.verdict


def test_a_fault_that_is_none_of_the_variants_is_not_given_a_name(solution, band):
    cloud = run(replace(HEAD, value=np.array([[0.2, -1.0], [1.0, 0.2]])))
    found = compare_tokens(solution, cloud, band=band)
    assert not found.agrees
    assert found.cause is None
    assert "no variant tried explains it" in found.verdict


def test_a_variant_that_only_comes_near_is_not_the_cause(solution, band):
    """With V too small: Euler steps too long look like it, and are not it."""
    found = compare_tokens(solution, run(replace(HEAD, value=0.95 * HEAD.value)), band=band)
    assert found.cause is None
    assert found.nearest is not None
    assert "but not the same" in found.verdict


def test_tokens_that_go_on_after_the_last_layer():
    layers = Layers([HEAD, HEAD], 0.5)
    solution = solve(layers, circle_mesh(100), DENSITY, until=1.0, save_at=[0.5])
    x = sample_tokens(DENSITY, 100, 0, 2)
    cloud = simulate_tokens(x, HEAD, 2.0, save_at=[0.5, 1.0])
    assert compare_tokens(solution, cloud).agrees


def test_layer_steps(solution, band):
    """A file that counts layers: 30 layers of 0.1 follow the equation closely enough."""
    cloud = run(step=0.02, residual=True)
    layers = replace(cloud, times=cloud.times / 0.02)
    found = compare_tokens(solution, layers, band=band, layer_step=0.02)
    assert found.agrees
    assert found.times.tolist() == pytest.approx([0, *TIMES])
    coarse = run(step=0.5, residual=True)
    found = compare_tokens(
        solution, replace(coarse, times=coarse.times / 0.5), band=band, layer_step=0.5
    )
    # These are too few tokens to tell even layers of this length from the density.
    assert found.agrees
    assert "its trajectories are those of layers x + h V m of h = 0.5" in found.notes[-1]


def test_weighted_tokens_on_the_sphere():
    query, key = np.eye(3) + 0.3 * np.random.default_rng(0).normal(size=(2, 3, 3))
    head = Attention(query, key, np.diag([1.5, 0.5, -0.2]), 3.0)
    density = "1 + 0.5*z + 0.3*x"
    solution = solve(head, sphere_mesh(320), density, until=1.0)
    x = sample_tokens(density, 120, 1, 3)
    masses = 1 + np.random.default_rng(2).random(120)
    right = simulate_tokens(x, head, 1.0, masses=masses)
    found = compare_tokens(solution, right, samples=8)
    assert found.agrees
    assert found.reproduced
    assert found.w2[0].gap < 1e-6
    forgotten = replace(simulate_tokens(x, head, 1.0), masses=masses)
    wrong = compare_tokens(solution, forgotten, band=found.band)
    assert wrong.reference_distance > 1e4 * found.reference_distance


def test_moments_and_certified_distances(solution, band):
    found = compare_tokens(solution, run(), band=band)
    np.testing.assert_allclose(found.moments, run().tokens.mean(axis=1), atol=1e-12)
    np.testing.assert_allclose(found.expected_moments[:, 0], solution.history["mean_x"], atol=1e-4)
    assert np.abs(found.moment_scores).max() < 3.5
    for one in (*found.w1, *found.w2):
        assert one.low <= one.value <= one.high
        assert one.gap < 1e-8
    summary = json.loads(json.dumps(token_report.summary(found)))
    assert summary["agrees"] is True
    assert summary["within_sampling_error"] is True
    assert len(summary["times"]) == 4
    assert {"w1", "w1_low", "w2_high", "expected_w1", "z", "mean_y_z"} <= summary["times"][1].keys()
    assert found.verdict in token_report.table(found)


def test_scores_of_samples_are_those_of_a_normal_law(solution):
    """What decides, z > 2, happens to samples about as often as it should."""
    band = sampling_band(solution, np.array([3]), 100, samples=100, seed=1)
    fresh = sampling_band(solution, np.array([3]), 100, samples=100, seed=2)
    assert fresh.expected == pytest.approx(band.expected, rel=0.15)
    assert band.quantile(0.5) < band.expected < band.quantile(0.9)
    # The score is the normal quantile of the probability of the gamma law.
    for probability in (0.1, 0.5, 0.99):
        assert band.score(band.quantile(probability)) == pytest.approx(norm.ppf(probability))
    # Far out, where probabilities underflow, it still grows.
    far = np.array([band.score(k * band.expected)[0] for k in (5, 20, 50, 200)])
    assert (np.diff(far) > 1).all()


def test_the_score_of_many_times_allows_for_their_number():
    one = SamplingBand(np.zeros(1), np.ones(1), np.full(1, 0.4), np.ones((1, 2)))
    ten = SamplingBand(np.arange(10.0), np.ones(10), np.full(10, 0.4), np.ones((10, 2)))
    high = np.ones(10)
    high[3] = 2.0
    assert ten.joint_score(high) < one.joint_score(np.array([2.0])) == one.score(np.array([2.0]))[0]
    expected = norm.isf(1 - (1 - norm.sf(one.joint_score(np.array([2.0])))) ** 10)
    assert ten.joint_score(high) == pytest.approx(expected)
    assert ten.first_beyond(high, 2.0) is None
    high[7] = 4.0
    assert ten.first_beyond(high, 2.0) == 7


@pytest.mark.parametrize(("make", "cells"), [(circle_mesh, 12), (sphere_mesh, 80)])
def test_points_drawn_from_cells_are_uniform_in_them(make, cells):
    solution = solve(
        Attention(*[np.eye(2 if make is circle_mesh else 3)] * 3, 1.0), make(cells), until=0.0
    )
    drawn = sample_cells(np.random.default_rng(0), solution.cells, solution.masses[0], 40_000)
    d = drawn.shape[1]
    assert np.abs(drawn.mean(axis=0)).max() < 0.02
    assert drawn.T @ drawn / len(drawn) == pytest.approx(np.eye(d) / d, abs=0.02)
    # Nothing is left out between the cells, nor are points piled up.
    angle = np.arctan2(drawn[:, 1], drawn[:, 0])
    counts, _ = np.histogram(angle, 60, (-np.pi, np.pi))
    assert counts.min() > 0.75 * counts.mean()


@pytest.mark.parallel([1, 2])
def test_ranks_agree(tmp_path_factory):
    comm = MPI.COMM_WORLD
    solution = solve(HEAD, circle_mesh(60, comm=comm), DENSITY, until=1.0)
    cloud = simulate_tokens(initial(0, 60), HEAD.with_beta(2.5), 1.0, comm=comm)
    shared = compare_tokens(solution, cloud, samples=6, comm=comm)
    alone = compare_tokens(solution, cloud, samples=6, comm=MPI.COMM_SELF)
    assert shared.score == pytest.approx(alone.score, abs=1e-9)
    assert shared.cause.name == alone.cause.name
    assert [one.value for one in shared.w1] == [one.value for one in alone.w1]


def test_common_times():
    ours, theirs = common_times(np.array([0, 0.1, 0.3, 2]), np.array([0.1 + 1e-16, 2, 0.30000001]))
    assert ours.tolist() == [1, 3]
    assert theirs.tolist() == [0, 1]
    with pytest.raises(
        InputError, match=r"was saved at 1, 2, the tokens at 1\.5; set time\.save_at"
    ):
        common_times(np.array([1.0, 2.0]), np.array([1.5]))


def test_refused(solution, band):
    with pytest.raises(InputError, match="the tokens have 3 coordinates, the density lives in dim"):
        compare_tokens(solution, TokenCloud(np.zeros(1), np.eye(3)))
    with pytest.raises(InputError, match="the layer step must be a number > 0, got 0"):
        compare_tokens(solution, run(), layer_step=0.0)
    with pytest.raises(InputError, match="band is one for other times"):
        compare_tokens(solution, TokenCloud(np.zeros(1), initial(0)), band=band)


CASE = """
[attention]
query = [[1.0, 0.4], [-0.3, 0.8]]
key   = [[0.9, -0.2], [0.8, 1.1]]
value = [[1.5, 1.0], [-0.6, 1.0]]
beta  = 1.5
[mesh]
kind  = "circle"
cells = 100
[initial]
kind = "expression"
density = "1 + 0.4*x + 0.6*x*y"
[time]
until = 2.0
save_every = 1.0
[output]
fields = "none"
"""


def test_commands(main, write_case, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("meanfield_pde.judging.comparison.SAMPLES", {2: 10, 3: 4})
    case, out, file = write_case(CASE), tmp_path / "out", tmp_path / "tokens.npz"
    assert main("run", case, "--quiet", "--output", out) == (0, "")
    code, err = main("tokens", case, "--count", 50, "--seed", 3, "--output", file)
    assert (code, err) == (0, f"{file}: 50 tokens at 3 times\n")
    cloud = read_tokens(file)
    assert cloud.times.tolist() == [0, 1, 2]
    assert cloud.beta == 1.5
    np.testing.assert_array_equal(cloud.tokens[0], sample_tokens(DENSITY, 50, 3, 2))
    plain = TokenCloud(cloud.times, cloud.tokens)
    write_tokens(tmp_path / "tokens.csv", plain)
    code, err = main("compare", out, tmp_path / "tokens.csv")
    assert (code, err) == (0, f"figure in {out / 'figures' / 'tokens.png'}\n")
    assert (out / "figures" / "tokens.png").stat().st_size > 10_000
    code, err = main("tokens", case, "--count", 50, "--until", 1, "--step", 0.5, "--output", file)
    assert code == 0
    assert read_tokens(file).times.tolist() == [0, 1]
    code, err = main("compare", out, tmp_path / "missing.npz")
    assert (code, err) == (2, f"meanfield-pde: {tmp_path / 'missing.npz'}: no such token file\n")
    code, err = main("compare", tmp_path, file)
    assert code == 2
    code, err = main("tokens", case, "--count", 0)
    assert code == 2
    assert "the number of tokens must be a whole number >= 1, got 0" in err


def test_json_of_compare(command, write_case, tmp_path):
    case = write_case(CASE)
    assert command("run", case, "--quiet", "--output", tmp_path / "out").returncode == 0
    done = command("tokens", case, "--count", 40, "--output", tmp_path / "t.npz", ranks=2)
    assert done.returncode == 0, done.stderr
    done = command("compare", tmp_path / "out", tmp_path / "t.npz", "--json", ranks=2)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["tokens"] == 40
    assert summary["reproduced"] is True
    assert summary["verdict"].startswith("agrees within sampling error (z = ")
