"""The reference particle code against closed forms, an independent one, and itself on two ranks."""

from __future__ import annotations

import math

from mpi4py import MPI

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import ive
from scipy.stats import kstest

from meanfield_pde import Attention, InputError, SolverError, Uniform, VonMises
from meanfield_pde.attention.head import hardmax_mean
from meanfield_pde.attention.layers import Layers
from meanfield_pde.initial.formula import ExpressionDensity
from meanfield_pde.initial.pointwise import RejectionSettings, sample_by_rejection
from meanfield_pde.initial.sampling import sample_tokens
from meanfield_pde.initial.tokens import Tokens
from meanfield_pde.initial.von_mises import Component
from meanfield_pde.tokens import code
from meanfield_pde.tokens.code import simulate_tokens
from tests import oracles


def head(d, beta, seed=0, normalise=True):
    """Matrices of no symmetry at all."""
    query, key, value = np.eye(d) + 0.4 * np.random.default_rng(seed).normal(size=(3, d, d))
    return Attention(query, key, value, beta, normalise)


def plain(d, beta, normalise=True):
    return Attention(np.eye(d), np.eye(d), np.eye(d), beta, normalise)


def cloud(count, d, seed=1):
    return sample_tokens(Uniform(), count, seed, d)


@pytest.mark.parametrize("beta", [0.0, 1.0, 9.0])
@pytest.mark.parametrize("d", [2, 3, 8])
def test_two_tokens(d, beta):
    """Each gives the other the weight 1 / (1 + e^{beta (1 - y)}), and y' = 2 weight (1 - y^2)."""
    angle = 2.5
    tokens = np.zeros((2, d))
    tokens[0, 0] = 1
    tokens[1, :2] = math.cos(angle), math.sin(angle)

    def rate(_, y):
        return 2 * (1 - y**2) / (1 + np.exp(beta * (1 - y)))

    exact = solve_ivp(rate, (0, 4), [math.cos(angle)], rtol=1e-12, atol=1e-12, t_eval=[1, 2, 4])
    found = simulate_tokens(tokens, plain(d, beta), 4.0, save_at=[1, 2], tolerance=1e-10).tokens
    products = (found[1:, 0] * found[1:, 1]).sum(axis=1)
    np.testing.assert_allclose(products, exact.y[0], atol=1e-8)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(("n", "beta"), [(3, 2.0), (7, 0.5), (20, 4.0)])
def test_equiangular_tokens(n, beta, normalise):
    """N orthonormal tokens keep one inner product y, with the rate of the literature.

    y' = 2 (1 - y)((n - 1) y + 1)/(e^{beta (1 - y)} + n - 1); without the denominator of the softmax
    this is multiplied by it, over n: (e^beta + (n - 1) e^{beta y})/n.
    """

    def rate(_, y):
        speed = 2 * (1 - y) * ((n - 1) * y + 1) / (np.exp(beta * (1 - y)) + n - 1)
        return speed if normalise else speed * (math.exp(beta) + (n - 1) * np.exp(beta * y)) / n

    exact = solve_ivp(rate, (0, 2), [0.0], rtol=1e-12, atol=1e-12, t_eval=[0.5, 1, 2]).y[0]
    found = simulate_tokens(
        np.eye(n), plain(n, beta, normalise), 2.0, save_at=[0.5, 1.0], tolerance=1e-10
    )
    for x, y in zip(found.tokens[1:], exact, strict=True):
        products = (x @ x.T)[np.triu_indices(n, 1)]
        np.testing.assert_allclose(products, y, atol=1e-8)


def test_kuramoto_order_parameter():
    """Beta = 0 on the circle: theta_i' = r sin(psi - theta_i), solved by a Moebius transformation.

    Tokens on the image of equally spaced ones under z -> (z + a)/(1 + a z) stay of that form, and
    a' = r(a)(1 - a^2)/2 with r their order parameter, which for N tokens is a(1 + O(a^N)).
    """
    N, a = 64, 0.3
    z = np.exp(2j * np.pi * np.arange(N) / N)
    z = (z + a) / (1 + a * z)
    tokens = np.column_stack([z.real, z.imag])
    times = [0.5, 1.0, 2.0]
    found = simulate_tokens(tokens, plain(2, 0.0), times[-1], save_at=times, tolerance=1e-10)
    order = np.linalg.norm(found.tokens.mean(axis=1), axis=1)
    # r^2/(1 - r^2) grows like e^t.
    odds = a**2 / (1 - a**2) * np.exp([0, *times])
    np.testing.assert_allclose(order, np.sqrt(odds / (1 + odds)), rtol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("d", [2, 3, 5])
def test_trajectories_of_an_independent_implementation(d, weighted):
    attention = head(d, 6.0)
    x = cloud(40, d)
    masses = np.random.default_rng(5).random(40) if weighted else None
    weights = np.full(40, 1 / 40) if masses is None else masses
    matrices = (attention.query, attention.key, attention.value)
    expected = oracles.characteristics(x, weights, *matrices, 6.0, 2.0, 1000)
    found = simulate_tokens(x, attention, 2.0, masses=masses, tolerance=1e-10)
    np.testing.assert_allclose(found.tokens[-1], expected, atol=1e-8)


@pytest.mark.parametrize("normalise", [True, False])
def test_euler_is_the_loop_a_user_writes(normalise):
    attention = head(3, 3.0, normalise=normalise)
    x = cloud(30, 3)
    found = simulate_tokens(x, attention, 1.0, step=0.1, tolerance=1e-10, save_at=[0.5])
    residual = simulate_tokens(x, attention, 1.0, step=0.1, tolerance=1e-10, residual=True)
    layer = x
    for k in range(10):
        weight = np.exp(3.0 * (x @ attention.query.T) @ (x @ attention.key.T).T)
        mean = weight @ x / (weight.sum(axis=1, keepdims=True) if normalise else len(x))
        push = mean @ attention.value.T
        x = x + 0.1 * (push - (push * x).sum(axis=1, keepdims=True) * x)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        weight = np.exp(3.0 * (layer @ attention.query.T) @ (layer @ attention.key.T).T)
        total = weight.sum(axis=1, keepdims=True) if normalise else len(x)
        layer = layer + 0.1 * weight @ layer / total @ attention.value.T
        layer /= np.linalg.norm(layer, axis=1, keepdims=True)
        if k == 4:
            np.testing.assert_allclose(found.tokens[1], x, atol=1e-12)
    np.testing.assert_allclose(found.tokens[2], x, atol=1e-12)
    np.testing.assert_allclose(residual.tokens[1], layer, atol=1e-12)


@pytest.mark.parametrize("residual", [False, True])
def test_euler_is_of_first_order(residual):
    attention, x = head(3, 4.0), cloud(20, 3)
    exact = simulate_tokens(x, attention, 1.0, tolerance=1e-11).tokens[-1]
    steps = np.array([0.02, 0.01, 0.005])
    errors = [
        np.abs(simulate_tokens(x, attention, 1.0, step=h, residual=residual).tokens[-1] - exact)
        for h in steps
    ]
    order = np.polyfit(np.log(steps), np.log([error.max() for error in errors]), 1)[0]
    assert order == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6, 1e-8, 1e-10])
def test_the_tolerance_is_met(tolerance):
    attention, x = head(3, 8.0), cloud(30, 3)
    exact = simulate_tokens(x, attention, 1.0, tolerance=1e-13, save_at=[0.37]).tokens
    found = simulate_tokens(x, attention, 1.0, tolerance=tolerance, save_at=[0.37]).tokens
    # Errors of single steps add up, and this flow carries them on without much growth.
    assert np.abs(found - exact).max() < 5 * tolerance


def test_steps_do_not_depend_on_what_is_saved():
    attention, x = head(2, 8.0), cloud(30, 2)
    once = simulate_tokens(x, attention, 2.0)
    often = simulate_tokens(x, attention, 2.0, save_at=np.linspace(0, 2, 41))
    assert np.array_equal(once.tokens[-1], often.tokens[-1])
    assert often.times.tolist() == sorted({0.0, *np.linspace(0, 2, 41)})


def test_hardmax_takes_the_best_token_and_the_average_of_ties():
    points = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, -1.0]])
    z = np.array([[2, 1, 0], [1, 1, 0.0], [1, 1 + 1e-15, 1], [0, 0, 0]])
    equal = hardmax_mean(z, points, np.full(4, 0.25))
    np.testing.assert_allclose(
        equal, [[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3], [0.25, 0.25, 0]], atol=1e-15
    )
    weighted = hardmax_mean(z, points, np.array([0, 1.0, 3.0, 0]))
    np.testing.assert_allclose(
        weighted, [[0, 1, 0], [0, 1, 0], [0, 0.25, 0.75], [0, 0.25, 0.75]], atol=1e-15
    )


def test_hardmax_tokens_follow_their_leader():
    """All tokens attend to the first, which stays: theta' = -sin theta, tan(theta/2) ~ e^-t."""
    attention = Attention(np.diag([1, 0.01]), np.eye(2), np.eye(2), math.inf)
    angle = np.array([0.0, 0.3, -0.8, 1.3])
    tokens = np.column_stack([np.cos(angle), np.sin(angle)])
    found = simulate_tokens(tokens, attention, 2.0, save_at=[1.0]).tokens
    for time, x in zip((0, 1, 2), found, strict=True):
        exact = 2 * np.arctan(np.tan(angle / 2) * math.exp(-time))
        np.testing.assert_allclose(np.arctan2(x[:, 1], x[:, 0]), exact, atol=1e-8)
    # The closed form for densities, B^T x/|B^T x|, would hardly have moved the second token.
    assert attention.velocity(tokens)[1] @ [-math.sin(0.3), math.cos(0.3)] > -0.3


def test_hardmax_is_the_limit_of_cold_tokens():
    attention, x = head(4, math.inf), cloud(12, 4)
    zero = simulate_tokens(x, attention, 0.5, step=1e-3).tokens[-1]
    cold = simulate_tokens(x, attention.with_beta(1e4), 0.5, step=1e-3).tokens[-1]
    assert np.abs(zero - cold).max() < 0.01


def test_a_token_sent_back_and_forth_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(code, "WATCHED_STEPS", 100)  # 500 take two seconds
    attention, x = head(3, math.inf), cloud(12, 3)
    with pytest.raises(SolverError, match="give a step, or a finite beta"):
        simulate_tokens(x, attention, 0.5)
    assert np.isfinite(simulate_tokens(x, attention, 0.5, step=0.01).tokens).all()


@pytest.mark.parametrize("d", [2, 3])
def test_energy_grows_along_the_unnormalised_flow(d):
    """V = B = B^T: the gradient flow of (1/2 beta) ∬ exp(beta <x, By>) dmu dmu."""
    matrix = np.diag([1.0, -0.4, 0.2][:d])
    attention = Attention(matrix, np.eye(d), matrix, 2.0, normalise=False)
    times = np.linspace(0, 3, 31)
    found = simulate_tokens(cloud(50, d), attention, 3.0, save_at=times)
    energy = [np.exp(2.0 * x @ matrix @ x.T).mean() / 4.0 for x in found.tokens]
    assert (np.diff(energy) > 0).all()


@pytest.mark.parametrize("normalise", [True, False])
def test_tokens_grow_about_the_uniform_density_as_the_density_does(normalise):
    """Mode k of the circle, Q = K = V = I: rate k^2 I_k/beta, divided by I_0 if normalised."""
    beta, N, size = 3.0, 400, 1e-6
    angle = 2 * np.pi * np.arange(N) / N
    for k in (1, 2, 3):
        moved = angle - size * np.sin(k * angle)
        tokens = np.column_stack([np.cos(moved), np.sin(moved)])
        found = simulate_tokens(tokens, plain(2, beta, normalise), 0.5, tolerance=1e-12).tokens
        phases = np.arctan2(found[..., 1], found[..., 0])
        mode = np.abs(np.exp(1j * k * phases).mean(axis=1))
        rate = k**2 * ive(k, beta) / beta * (1 / ive(0, beta) if normalise else math.exp(beta))
        assert math.log(mode[1] / mode[0]) / 0.5 == pytest.approx(rate, rel=1e-4)


def test_layers_by_hand():
    first, second = head(3, 5.0, seed=1), head(3, 5.0, seed=2)
    x = cloud(20, 3)
    layers = Layers([first, second], 0.75)
    together = simulate_tokens(x, layers, 1.5, save_at=[0.75, 1.0])
    half = simulate_tokens(x, first, 0.75).tokens[-1]
    np.testing.assert_allclose(together.tokens[1], half, atol=1e-14)
    np.testing.assert_allclose(
        together.tokens[-1], simulate_tokens(half, second, 0.75).tokens[-1], atol=1e-8
    )
    later = simulate_tokens(together.tokens[2], layers, 1.5, start=1.0).tokens[-1]
    np.testing.assert_allclose(later, together.tokens[-1], atol=1e-8)
    # As Euler steps: a network of two layers of one step each.
    euler = simulate_tokens(x, layers, 1.5, step=0.75, residual=True).tokens[-1]
    by_hand = x
    for layer in (first, second):
        by_hand = by_hand + 0.75 * layer.mean(by_hand, by_hand, np.ones(20)) @ layer.value.T
        by_hand /= np.linalg.norm(by_hand, axis=1, keepdims=True)
    np.testing.assert_allclose(euler, by_hand, atol=1e-9)
    assert together.value.shape == (2, 3, 3)
    with pytest.raises(
        InputError, match=r"beyond the last of the 2 layers, which ends at t = 1\.5"
    ):
        simulate_tokens(x, layers, 2.0)


@pytest.mark.parallel([3])
def test_ranks_share_the_tokens():
    """One test for both, since each costs a start of mpiexec."""
    comm, x = MPI.COMM_WORLD, cloud(31, 3)
    for beta, step in ((7.0, None), (math.inf, 0.1)):
        attention = head(3, beta)
        alone = simulate_tokens(x, attention, 1.0, step=step, save_at=[0.5], comm=MPI.COMM_SELF)
        shared = simulate_tokens(x, attention, 1.0, step=step, save_at=[0.5], comm=comm).tokens
        np.testing.assert_allclose(shared, alone.tokens, atol=1e-10)
        assert all(np.array_equal(shared, other) for other in comm.allgather(shared))


@pytest.mark.parallel([2])
def test_the_tokens_are_those_of_the_first_rank():
    """What the others pass does not matter, and an error of the first is one of all."""
    comm = MPI.COMM_WORLD
    right, wrong = cloud(9, 3), 2 * cloud(9, 3)
    given = (right, wrong) if comm.rank == 0 else (wrong, right)
    found = simulate_tokens(given[0], head(3, 2.0), 0.5, comm=comm).tokens
    np.testing.assert_array_equal(found[0], right)
    with pytest.raises(InputError, match="unit sphere"):
        simulate_tokens(given[1], head(3, 2.0), 0.5, comm=comm)


MIXTURE = VonMises(
    (
        Component(3.0, 40.0, (1, 2, 2)),
        Component(1.0, 0.0, (1, 0, 0)),
        Component(0.0, 1.0, (0, 0, 1)),
    )
)


def test_sampling_is_that_of_the_density():
    x = sample_tokens("1 + 0.9*x", 4000, 3, 2)
    angle = np.abs(np.arctan2(x[:, 1], x[:, 0]))
    assert kstest(angle, lambda t: (t + 0.9 * np.sin(t)) / np.pi).pvalue > 0.01
    x = sample_tokens("1 + 0.9*z", 4000, 3, 3)
    assert kstest(x[:, 2], lambda t: (t + 1) / 2 + 0.9 * (t**2 - 1) / 4).pvalue > 0.01
    x = sample_tokens(MIXTURE, 4000, 3, 3)
    along = x @ [1 / 3, 2 / 3, 2 / 3]
    law = kstest(along, lambda t: 0.75 * np.exp(40 * (t - 1)) + 0.25 * (t + 1) / 2)
    assert law.pvalue > 0.01
    x = sample_tokens(VonMises((Component(1.0, 2.0, (0, 0, 0, 0, 5)),)), 4000, 0, 5)
    assert x[:, 4].mean() == pytest.approx(ive(2.5, 2.0) / ive(1.5, 2.0), abs=0.02)


@pytest.mark.parametrize("initial", [Uniform(), MIXTURE, "1 + 0.9*z"])
def test_the_seed_decides_the_tokens(initial):
    first, same, other = (sample_tokens(initial, 50, seed, 3) for seed in (7, 7, 8))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, rtol=1e-14)


def test_sampling_tokens_draws_them_with_their_weights():
    points = np.array([[1, 0], [0, 1], [-1, 0.0]])
    x = sample_tokens(Tokens(points, np.array([1.0, 3.0, 0.0])), 1000, 0, 2)
    assert (x[:, 1] == 1).mean() == pytest.approx(0.75, abs=0.05)
    assert not (x[:, 0] == -1).any()


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"tokens": np.ones((3, 3))}, "token 0 at time 0 is not on the unit sphere"),
        ({"tokens": np.eye(2)}, "the tokens have 2 coordinates, but attention.value is 3 x 3"),
        ({"until": -1.0}, "until must be a number from 0 on, got -1"),
        ({"until": math.inf}, "until must be a number"),
        ({"save_at": [0.5, 2.0]}, "save_at must lie between 0 and 1, got 2.0"),
        ({"step": 0.0}, "step must be a number > 0, got 0.0"),
        ({"residual": True}, "give a step"),
        ({"tolerance": 0.0}, "tolerance must be from"),
        ({"masses": [1.0, 1.0]}, "masses must be 3 numbers"),
    ],
)
def test_wrong_input(change, fragment):
    given = {"tokens": np.eye(3), "attention": plain(3, 1.0), "until": 1.0} | change
    with pytest.raises(InputError) as caught:
        simulate_tokens(**given)
    assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("initial", "count", "seed", "d", "fragment"),
    [
        (Uniform(), 0, 0, 2, "the number of tokens must be a whole number >= 1, got 0"),
        (Uniform(), 5, -1, 2, "the seed must be a whole number >= 0, got -1"),
        ("1 + x", 5, 0, 4, "give kind 'uniform', 'von-mises' or 'poisson-kernel'"),
        (MIXTURE, 5, 0, 2, "must have 2 entries"),
    ],
)
def test_sampling_refused(initial, count, seed, d, fragment):
    with pytest.raises(InputError) as caught:
        sample_tokens(initial, count, seed, d)
    assert fragment in str(caught.value)


def test_a_peak_that_rejection_would_not_find_is_refused():
    peak, few = ExpressionDensity("exp(900*(x-1))"), RejectionSettings(most_rounds=2)
    with pytest.raises(InputError, match="too concentrated to draw 100000 tokens"):
        sample_by_rejection(peak.density, np.random.default_rng(0), 100_000, 3, few)


def test_what_has_no_meaning_without_the_denominator():
    with pytest.raises(InputError, match="no meaning at zero temperature"):
        plain(2, math.inf, normalise=False)
    with pytest.raises(InputError, match=r"overflows, beta \|Q\^T K\| = 900 must be at most 700"):
        plain(2, 900.0, normalise=False)
    with pytest.raises(InputError, match="no meaning at zero temperature"):
        plain(2, 5.0, normalise=False).with_beta(math.inf)
    with pytest.raises(InputError, match=r"attention\.normalise must be true or false, got 2"):
        Attention(np.eye(2), np.eye(2), np.eye(2), 1.0, 2)


@pytest.mark.parametrize(
    ("layers", "duration", "fragment"),
    [
        ([], 1.0, "at least one layer"),
        ([plain(2, 1.0), plain(3, 1.0)], 1.0, r"same dimension, got d = \[2, 3\]"),
        ([plain(2, 1.0)], 0.0, r"attention\.layer_duration must be a number > 0, got 0"),
    ],
)
def test_layers_refused(layers, duration, fragment):
    with pytest.raises(InputError, match=fragment):
        Layers(layers, duration)
