"""Particle codes, right and wrong, against the density: what `compare` says of them.

The codes are plain numpy and scipy, written from the equation.
"""

from __future__ import annotations

import json
from dataclasses import replace

from mpi4py import MPI

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from meanfield_pde import Attention, InputError, Uniform, circle_mesh, solve, sphere_mesh
from meanfield_pde.initial.sampling import sample_tokens
from meanfield_pde.tokens.cloud import TokenCloud, read_tokens, write_tokens
from meanfield_pde.tokens.code import simulate_tokens
from meanfield_pde.verification import codes
from meanfield_pde.verification import report as token_report
from meanfield_pde.verification.comparison import common_times, compare_tokens
from meanfield_pde.verification.samples import densities_at, sample_cells, sampling_band
from meanfield_pde.verification.statistic import features

DENSITY = "1 + 0.4*x + 0.6*x*y"
HEAD = Attention(
    query=np.array([[1.0, 0.4], [-0.3, 0.8]]),
    key=np.array([[0.9, -0.2], [0.8, 1.1]]),
    value=np.array([[1.5, 1.0], [-0.6, 1.0]]),
    beta=1.5,
)
TIMES = np.array([0.0, 0.5, 1.0, 2.0])
COUNT = 100
STEP = 0.05


def velocity(x, value=HEAD.value, beta=HEAD.beta, mask=None, dtype=float):
    scores = beta * (x @ HEAD.query.T) @ (x @ HEAD.key.T).T
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weight = np.exp(scores - scores.max(axis=1, keepdims=True)).astype(dtype)
    push = (weight @ x.astype(dtype) / weight.sum(axis=1, keepdims=True)) @ value.T
    return push - (push * x).sum(axis=1, keepdims=True) * x


def euler(x, rate=velocity, clock=1.0, dtype=float):
    x, saved = x.astype(dtype), [x]
    for length in np.diff(TIMES):
        for _ in range(round(length / STEP)):
            x = x + dtype(clock * STEP) * rate(x).astype(dtype)
            x = x / np.linalg.norm(x, axis=1, keepdims=True)
        saved.append(x.astype(float) / np.linalg.norm(x.astype(float), axis=1, keepdims=True))
    return TokenCloud(TIMES, np.array(saved))


def adaptive(x, rate=velocity, rtol=1e-8):
    def flat(_, y):
        return rate(y.reshape(x.shape)).ravel()

    found = solve_ivp(flat, (0, TIMES[-1]), x.ravel(), t_eval=TIMES, rtol=rtol, atol=1e-10)
    paths = found.y.T.reshape(-1, *x.shape)
    return TokenCloud(TIMES, paths / np.linalg.norm(paths, axis=2, keepdims=True))


def initial(seed=0, count=COUNT):
    return sample_tokens(DENSITY, count, seed, 2)


@pytest.fixture(scope="module")
def solution():
    return solve(HEAD, circle_mesh(200), DENSITY, until=TIMES[-1], save_at=TIMES[1:-1])


@pytest.fixture(scope="module")
def band(solution):
    return sampling_band(solution, np.arange(4), COUNT, samples=199, comm=MPI.COMM_SELF)


RIGHT = {
    "euler": (lambda: euler(initial()), "Euler steps of 0.05 explain"),
    "single precision": (lambda: euler(initial(), dtype=np.float32), "Euler steps of 0.05 explain"),
    "solve_ivp": (lambda: adaptive(initial()), "trajectories are those of the reference code"),
    "layers": (
        lambda: simulate_tokens(initial(), HEAD, 2.0, step=STEP, residual=True, save_at=TIMES[1:3]),
        "layers x + h V m of h = 0.05 explain",
    ),
}


@pytest.fixture(scope="module")
def sign_compared(solution, band):
    """What is found of the code with a wrong sign in V."""
    return compare_tokens(solution, FAULTS["sign"][0](initial()), band=band)


@pytest.mark.parametrize("name", RIGHT)
def test_right_codes_agree(solution, band, name):
    make, how = RIGHT[name]
    found = compare_tokens(solution, make(), band=band)
    assert found.agrees, found.verdict
    assert how in found.verdict
    assert found.cause is None


SIGN = HEAD.value * [[1, -1], [1, 1]]
CAUSAL = np.tril(np.ones((COUNT, COUNT), dtype=bool))
OTHERS = ~np.eye(COUNT, dtype=bool)
FAULTS = {
    "sign": (lambda x: euler(x, lambda y: velocity(y, SIGN)), "value[0][1] is -1 ± 1e-09, the"),
    "twice the step": (
        lambda x: euler(x, clock=2.0),
        "time runs 2 ± 1e-09 times as fast as the file says, or V is too large by that factor",
    ),
    "beta": (
        lambda x: adaptive(x, lambda y: velocity(y, beta=1.5**0.5)),
        "beta (or the scale of query^T key) is 1.225",
    ),
    "causal": (lambda x: euler(x, lambda y: velocity(y, mask=CAUSAL)), "a causal mask"),
    "no self": (
        lambda x: adaptive(x, lambda y: velocity(y, mask=OTHERS)),
        "tokens that do not attend to themselves",
    ),
    "frozen": (
        lambda x: euler(x, lambda y: velocity(y) * (np.arange(COUNT) % 3 > 0)[:, None]),
        "34 of 100 tokens do not move",
    ),
}


QUICK = ("sign", "causal")


@pytest.mark.parametrize(
    "fault",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS],
)
def test_planted_faults_are_named(solution, band, sign_compared, fault):
    make, name = FAULTS[fault]
    if fault == "sign":
        found = sign_compared
    else:
        found = compare_tokens(solution, make(initial()), band=band)
    assert not found.agrees
    assert found.verdict.startswith("deviates: ")
    assert found.cause.name.startswith(name), found.verdict


def turned_from(time):
    """The right code up to a time, and V transposed from there on."""
    before = euler(initial())
    k = int(np.searchsorted(TIMES, time))
    after = euler(before.tokens[k], lambda x: velocity(x, HEAD.value.T))
    late = [after.tokens[list(TIMES).index(one - time)] for one in TIMES[k + 1 :]]
    return TokenCloud(TIMES, np.array([*before.tokens[: k + 1], *late]))


def test_a_deviation_begins_where_trajectories_first_miss(solution, band, sign_compared):
    """Not where the density is missed, which is later, nor where honest steps show."""
    assert token_report.summary(sign_compared)["since"] == 0.5
    found = compare_tokens(solution, turned_from(1.0), band=band)
    assert token_report.summary(found)["since"] == 2.0
    assert found.cause is None
    assert "from the reference code, missed from t = 2 on (p = " in found.verdict


def test_steps_that_are_too_long_deviate_from_where_they_move_tokens_that_far(solution, band):
    cloud = simulate_tokens(initial(), HEAD, 2.0, step=0.5, save_at=TIMES[1:3])
    found = compare_tokens(solution, cloud, band=band)
    assert found.verdict.startswith("deviates: Euler steps of 0.5 that are too long")
    k = list(TIMES).index(found.since)
    limit = 0.5 * band.expected.mean()
    assert found.diagnosis.distances[k - 1] <= limit < found.diagnosis.distances[k]


def test_fitted_numbers(sign_compared):
    (entry,) = sign_compared.cause.fitted
    assert entry["name"] == "value[0][1]"
    assert entry["value"] == pytest.approx(-1.0, abs=1e-8)
    assert entry["case"] == 1.0


def test_an_unknown_fault_is_given_no_name(solution, band):
    def rate(x):
        return velocity(x) + 0.1 * np.column_stack([-x[:, 1], x[:, 0]]) * x[:, :1] ** 3

    found = compare_tokens(solution, euler(initial(), rate), band=band)
    assert not found.agrees
    assert found.cause is None
    assert found.verdict.startswith("deviates, cause unknown: ")


@pytest.mark.slow
def test_half_precision_is_no_rounding_in_single(solution, band):
    found = compare_tokens(
        solution, euler(initial(), lambda y: velocity(y, dtype=np.float16)), band=band
    )
    assert not found.agrees
    assert found.cause is None


def test_other_initial_tokens_are_distinguished_from_a_wrong_code(solution):
    found = compare_tokens(solution, euler(sample_tokens(Uniform(), 150, 0, 2)), samples=120)
    assert found.verdict.startswith("deviates: the initial tokens are no sample")
    assert found.p_value < 0.01


@pytest.mark.slow
def test_without_numbers_and_at_one_time(solution, band):
    cloud = adaptive(initial())
    generator = np.random.default_rng(0)
    shuffled = replace(cloud, tokens=np.array([generator.permutation(x) for x in cloud.tokens]))
    found = compare_tokens(solution, shuffled, band=band)
    assert found.diagnosis is None
    assert found.agrees
    assert "no trajectories to decide" in found.verdict
    assert 0 <= dict(found.seen)["V too large by 20%"] <= 1
    assert not found.too_few
    late = TokenCloud(TIMES[-1:], euler(initial(), clock=1.5).tokens[-1:])
    wrong = compare_tokens(solution, late, samples=199)
    assert not wrong.agrees
    assert wrong.verdict.startswith("deviates from the density")


def test_too_few_tokens_do_not_agree_in_silence(solution):
    """20 that never moved, at one time."""
    frozen = TokenCloud(TIMES[-1:], initial(count=20)[None])
    found = compare_tokens(solution, frozen, samples=199)
    assert found.agrees
    assert found.too_few
    assert found.verdict.startswith("too few tokens to tell: agrees within sampling error")
    assert max(dict(found.seen).values()) < 0.5
    assert token_report.summary(found)["too_few"] is True


def p_values(seeds):
    """p-values of right codes at all times together, against samples of other seeds."""
    solution = solve(HEAD, circle_mesh(200), DENSITY, until=2.0, save_at=TIMES[1:-1])
    band = sampling_band(solution, np.arange(4), COUNT, samples=399, comm=MPI.COMM_SELF)
    quantiles = densities_at(solution, np.arange(4))
    clouds = [adaptive(initial(seed), rtol=1e-5) for seed in seeds]
    return np.array([band.p_value(features(one.tokens, None, quantiles)) for one in clouds])


@pytest.mark.slow
def test_p_values_of_right_codes_are_uniform():
    """24 comparisons: circle and sphere, three beta, Euler's steps of 0.02."""
    found = []
    for d, make in ((2, circle_mesh(200)), (3, sphere_mesh(1280))):
        matrices = np.eye(d) + 0.4 * np.random.default_rng(d).normal(size=(3, d, d))
        for number, beta in enumerate((0.5, 5.0, 50.0)):
            head = Attention(*matrices, beta)
            solved = solve(head, make, DENSITY, until=2.0, save_at=[1.0])
            band = sampling_band(solved, np.arange(3), COUNT, samples=399, comm=MPI.COMM_SELF)
            quantiles = densities_at(solved, np.arange(3))
            for seed in range(4):
                x = sample_tokens(DENSITY, COUNT, 100 * (3 * d + number) + seed, d)
                cloud = simulate_tokens(x, head, 2.0, step=0.02, save_at=[1.0])
                found.append(band.p_value(features(cloud.tokens, None, quantiles)))
    # Largest distance from the uniform law, beyond which 1% of 24 are (Kolmogorov).
    assert np.abs(np.sort(found) - (np.arange(24) + 0.5) / 24).max() < 0.33
    assert (np.array(found) < 0.01).sum() <= 2


@pytest.mark.slow
def test_p_values_of_200_right_codes():
    found = p_values(range(200))
    assert 0.01 <= (found < 0.05).mean() <= 0.10
    assert 0.4 <= found.mean() <= 0.6


def test_the_band_is_kept(solution, tmp_path):
    file, cloud = tmp_path / "tokens-band.npz", adaptive(initial(count=20))
    first = compare_tokens(solution, cloud, samples=99, level=0.05, band_file=file)
    written = file.stat().st_mtime_ns
    again = compare_tokens(solution, cloud, samples=99, level=0.05, band_file=file)
    assert file.stat().st_mtime_ns == written
    assert again.p_value == first.p_value
    compare_tokens(solution, cloud, samples=100, level=0.05, band_file=file)
    assert file.stat().st_mtime_ns > written


@pytest.mark.slow
def test_zero_temperature(solution):
    head = HEAD.with_beta(np.inf)
    cold = solve(head, circle_mesh(100), DENSITY, until=1.0, save_at=[0.5])
    cloud = simulate_tokens(initial(), head, 1.0, step=0.01, save_at=[0.5])
    assert compare_tokens(cold, cloud, samples=99, level=0.02).agrees
    wrong = simulate_tokens(initial(), replace(head, value=HEAD.value.T), 1.0, step=0.01)
    found = compare_tokens(cold, wrong, samples=99, level=0.02)
    assert not found.agrees


@pytest.mark.parallel([2])
def test_ranks_agree(tmp_path_factory):
    comm = MPI.COMM_WORLD
    solution = solve(HEAD, circle_mesh(60, comm=comm), DENSITY, until=1.0)
    cloud = simulate_tokens(initial(0, 30), HEAD.with_beta(2.5), 1.0, save_at=[0.2], comm=comm)
    shared = compare_tokens(solution, cloud, samples=100, comm=comm)
    alone = compare_tokens(solution, cloud, samples=100, comm=MPI.COMM_SELF)
    assert shared.p_value == alone.p_value
    assert shared.cause.name == alone.cause.name
    assert [one.value for one in shared.w1] == [one.value for one in alone.w1]


@pytest.mark.parametrize(("make", "cells"), [(circle_mesh, 12), (sphere_mesh, 80)])
def test_points_drawn_from_cells_are_uniform_in_them(make, cells):
    solution = solve(
        Attention(*[np.eye(2 if make is circle_mesh else 3)] * 3, 1.0), make(cells), until=0.0
    )
    drawn = sample_cells(
        np.random.default_rng(0), solution.cells_at(0), solution.measure(0).masses, 40_000
    )
    d = drawn.shape[1]
    assert np.abs(drawn.mean(axis=0)).max() < 0.02
    assert drawn.T @ drawn / len(drawn) == pytest.approx(np.eye(d) / d, abs=0.02)
    # Nothing is left out between the cells, nor are points piled up.
    angle = np.arctan2(drawn[:, 1], drawn[:, 0])
    counts, _ = np.histogram(angle, 60, (-np.pi, np.pi))
    assert counts.min() > 0.75 * counts.mean()


def test_common_times():
    ours, theirs = common_times(np.array([0, 0.1, 0.3, 2]), np.array([0.1 + 1e-16, 2, 0.30000001]))
    assert ours.tolist() == [1, 3]
    assert theirs.tolist() == [0, 1]
    with pytest.raises(
        InputError, match=r"was saved at 1, 2, the tokens at 1\.5; set time\.save_at"
    ):
        common_times(np.array([1.0, 2.0]), np.array([1.5]))


def test_refused(solution, band, monkeypatch):
    monkeypatch.setattr(codes, "MOST_EVALUATIONS", 500)  # 20,000 take a second
    with pytest.raises(InputError, match="the tokens have 3 coordinates, the density lives in dim"):
        compare_tokens(solution, TokenCloud(np.zeros(1), np.eye(3)))
    with pytest.raises(InputError, match="the layer step must be a number > 0, got 0"):
        compare_tokens(solution, adaptive(initial()), layer_step=0.0)
    for step, message in ((1e10, r"too far apart: .* the layer step 1e\+10"), (1e308, r"1e\+308")):
        with pytest.raises(InputError, match=message):
            compare_tokens(solution, adaptive(initial(count=20)), layer_step=step)
    with pytest.raises(InputError, match=r"the level must be from 0\.0001 to 0\.5, got 2"):
        compare_tokens(solution, adaptive(initial()), level=2)
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


@pytest.mark.painted
def test_commands(main, write_case, tmp_path, drawn):
    case, out, file = write_case(CASE), tmp_path / "out", tmp_path / "tokens.npz"
    assert main("run", case, "--quiet", "--output", out) == (0, "")
    code, _ = main("tokens", case, "--count", 30, "--seed", 3, "--output", file)
    assert code == 0
    cloud = read_tokens(file)
    write_tokens(tmp_path / "tokens.csv", TokenCloud(cloud.times, cloud.tokens))
    code, err = main("compare", out, tmp_path / "tokens.csv", "--level", 0.001)
    assert (code, err) == (0, f"figure in {out / 'figures' / 'tokens.png'}\n")
    assert (out / "figures" / "tokens.png").stat().st_size > 10_000
    assert (out / "tokens-band.npz").is_file()
    wrong = simulate_tokens(cloud.tokens[0], HEAD.with_beta(3.0), 2.0, save_at=[1.0])
    write_tokens(tmp_path / "wrong.npz", TokenCloud(wrong.times, wrong.tokens))
    elsewhere = tmp_path / "elsewhere"
    assert main("compare", out, tmp_path / "wrong.npz", "--output", elsewhere)[0] == 3
    assert json.loads((elsewhere / "comparison.json").read_text())["agrees"] is False
    assert (elsewhere / "figures" / "tokens.png").is_file()
    lines = {line.get_label(): line.get_xdata() for line in drawn[-1].axes[-1].lines}
    first_miss = lines["tokens to the reference code, token by token"][0]
    assert lines[f"deviates, first at t = {first_miss:g}"][0] == first_miss
    code, err = main("compare", out, tmp_path / "missing.npz")
    assert (code, err) == (2, f"meanfield-pde: {tmp_path / 'missing.npz'}: no such token file\n")
    assert main("compare", tmp_path, file)[0] == 2


@pytest.mark.slow
def test_json_of_compare(command, write_case, tmp_path):
    case = write_case(CASE)
    assert command("run", case, "--quiet", "--output", tmp_path / "out").returncode == 0
    done = command("tokens", case, "--count", 40, "--output", tmp_path / "t.npz", ranks=2)
    assert done.returncode == 0, done.stderr
    done = command("compare", tmp_path / "out", tmp_path / "t.npz", "--json", ranks=2)
    summary = json.loads(done.stdout)
    assert done.returncode == (0 if summary["agrees"] else 3), done.stderr
    assert summary["tokens"] == 40
    assert summary["trajectories"] is True
    assert {"p_value", "cause", "fitted", "level"} <= summary.keys()
    assert {"w1", "w1_low", "w2_high", "expected_w1", "reference_distance"} <= summary["times"][
        1
    ].keys()


def test_the_verdict_comes_first(solution, band):
    found = compare_tokens(solution, adaptive(initial()), band=band)
    table = token_report.table(found)
    assert table.startswith(found.verdict)
    assert f"\np = {found.p_value:.2g}: that part of the samples is as far" in table
    assert "moments at t = 0; below 0.01 tokens deviate" in table
    np.testing.assert_allclose(found.moments, found.cloud.tokens.mean(axis=1), atol=1e-12)
    assert np.abs(found.moment_scores).max() < 4
    for one in (*found.w1, *found.w2):
        assert one.low <= one.value <= one.high


@pytest.mark.slow
def test_weighted_tokens_on_the_sphere():
    query, key = np.eye(3) + 0.3 * np.random.default_rng(0).normal(size=(2, 3, 3))
    head = Attention(query, key, np.diag([1.5, 0.5, -0.2]), 3.0)
    density = "1 + 0.5*z + 0.3*x"
    solution = solve(head, sphere_mesh(320), density, until=1.0)
    x = sample_tokens(density, 120, 1, 3)
    masses = 1 + np.random.default_rng(2).random(120)
    right = simulate_tokens(x, head, 1.0, masses=masses)
    found = compare_tokens(solution, right, samples=100)
    assert found.agrees, found.verdict
    forgotten = replace(simulate_tokens(x, head, 1.0), masses=masses)
    wrong = compare_tokens(solution, forgotten, band=found.band)
    assert wrong.cause.name == "weights of the tokens that are left out"
