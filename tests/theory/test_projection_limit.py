"""The projection map and its rates, against the flow itself."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from scipy.special import logsumexp

from meanfield_pde.attention.head import Attention
from meanfield_pde.case.file import read_case
from meanfield_pde.errors import InputError
from meanfield_pde.mesh.geometry import geodesic_distance, normalised, tangential
from meanfield_pde.theory.projection_limit import ProjectionLimit
from tests.problems import rotation

DEMOS = Path(__file__).parents[2] / "demos"


def head(drift: np.ndarray, key_query: np.ndarray, beta: float = math.inf) -> Attention:
    """The attention head with the given A and B^T."""
    drift, key_query = np.asarray(drift, dtype=float), np.asarray(key_query, dtype=float)
    value = np.linalg.solve(key_query.T, drift.T).T
    return Attention(key_query, np.eye(len(drift)), value, beta)


def random_head(block: np.ndarray, seed: int) -> tuple[Attention, np.ndarray]:
    """A head whose A is similar to the block, not symmetric, and the basis in which it is."""
    rng = np.random.default_rng(seed)
    d = len(block)
    while True:
        basis, key_query = rng.normal(size=(2, d, d))
        if np.linalg.cond(basis) < 15 and np.linalg.cond(key_query) < 15:
            return head(basis @ block @ np.linalg.inv(basis), key_query), basis


def trajectory(attention: Attention, start: np.ndarray, until: float, **options):
    """The path x' = P_x V B^T x / |B^T x| of a point, or of several rows of points at once."""
    start = normalised(start)

    def rate(_: float, y: np.ndarray) -> np.ndarray:
        x = normalised(y.reshape(start.shape))
        push = normalised(x @ attention.key_query.T) @ attention.value.T
        return tangential(x, push).ravel()

    return solve_ivp(
        rate,
        (0, until),
        start.ravel(),
        rtol=1e-12,
        atol=1e-15,
        method="DOP853",
        **options,
    )


BLOCKS = {
    "circle": np.diag([1, 0.2]),
    "circle, negative": np.diag([-0.5, -2]),
    "sphere": np.diag([1, 0.2, -0.4]),
    "sphere, complex behind": np.array([[1, 0, 0], [0, 0.2, 1.5], [0, -0.7, 0.2]]),
    "sphere, plane": np.diag([1, 1, -0.5]),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BLOCKS)
def test_map_is_the_endpoint_of_the_flow(name: str, seed: int) -> None:
    attention, _ = random_head(BLOCKS[name], seed)
    limit = ProjectionLimit(attention)
    starts = normalised(np.random.default_rng(seed).normal(size=(4, attention.dimension)))
    path = trajectory(attention, starts, 60 / min(limit.contraction_rate, limit.escape_rate))
    ends = normalised(path.y[:, -1].reshape(starts.shape))
    np.testing.assert_allclose(ends, limit.map(starts), atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["circle", "circle, negative", "sphere"])
def test_contraction_and_escape_rates(name: str, seed: int) -> None:
    attention, basis = random_head(BLOCKS[name], seed)
    limit = ProjectionLimit(attention)
    towards = basis[:, 0] + 1e-5 * basis[:, 1]
    times = np.array([0, 3]) / limit.contraction_rate
    path = trajectory(attention, towards, times[1], t_eval=times)
    angle = limit.distance_to_eigenspace(path.y.T)
    assert np.log(angle[0] / angle[1]) / times[1] == pytest.approx(limit.contraction_rate, rel=1e-3)
    away = basis[:, 1] + 1e-7 * basis[:, 0]
    times = np.array([0, 5]) / limit.escape_rate
    path = trajectory(attention, away, times[1], t_eval=times)
    inside = np.abs(limit.coordinates(path.y.T)[:, 0])
    assert np.log(inside[1] / inside[0]) / times[1] == pytest.approx(limit.escape_rate, rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_escape_rate_from_a_rotation(seed: int) -> None:
    """Growth over whole turns of the separatrix, on which |B^T x| varies."""
    attention, basis = random_head(BLOCKS["sphere, complex behind"], seed)
    limit = ProjectionLimit(attention)
    dual = np.linalg.inv(basis)

    def crossing(_: float, x: np.ndarray) -> float:
        return float(dual[1] @ x)

    start = basis @ [1e-9, 1, 0.2]
    path = trajectory(attention, start, 14 / limit.escape_rate, events=crossing)
    times, points = path.t_events[0], path.y_events[0]
    assert len(times) > 2
    ratio = np.abs(points @ dual[0]) / np.abs(points @ dual[2])
    rate = np.log(ratio[-1] / ratio[0]) / (times[-1] - times[0])
    assert rate == pytest.approx(limit.escape_rate, rel=1e-3)


def test_contraction_rate_to_a_circle_is_the_slowest() -> None:
    attention, basis = random_head(BLOCKS["sphere, plane"], 0)
    limit = ProjectionLimit(attention)
    rates = []
    for angle in np.linspace(0, np.pi, 13):
        end = limit.basis @ [np.cos(angle), np.sin(angle)]
        path = trajectory(attention, end + 1e-5 * basis[:, 2], 5.0, t_eval=[0, 5])
        far, near = limit.distance_to_eigenspace(path.y.T)
        rates.append(np.log(far / near) / 5)
    assert limit.contraction_rate <= min(rates) * (1 + 1e-3)
    assert limit.contraction_rate == pytest.approx(min(rates), rel=0.1)


@pytest.mark.parametrize(("slow", "winner"), [([1, 2, 3], 2), ([1, 3, 2], 1)])
def test_unsettled_mass_on_the_sphere(slow: list[float], winner: int) -> None:
    """Mass left near the saddles e2 and e3, by quadrature in the logarithms of y1/y3 and y2/y3."""
    attention = head(np.diag([1, 0.2, 0.1]), np.diag(slow))
    limit = ProjectionLimit(attention)
    predicted = [0.8 / slow[1], (0.9 + 0.1) / slow[2]]
    np.testing.assert_allclose([s.unsettled_rate for s in limit.saddles], predicted)
    assert limit.unsettled_rate == pytest.approx(predicted[winner - 1])
    times = np.array([80.0, 120.0])
    step = 0.5
    first, second = np.meshgrid(np.arange(-75, 3, step), np.arange(-25, 3, step), indexing="ij")
    shape = first.shape

    def slope(_: float, u: np.ndarray) -> np.ndarray:
        squares = np.exp(2 * np.clip(u.reshape(2, -1), -60, 60))
        weights = np.vstack([squares, np.ones(squares.shape[1])])
        speed = np.sqrt(np.array(slow) ** 2 @ weights / weights.sum(axis=0))
        return np.concatenate([0.9 / speed, 0.1 / speed])

    start = np.concatenate([first.ravel(), second.ravel()])
    path = solve_ivp(slope, (0, times[1]), start, t_eval=times, rtol=1e-6, atol=1e-6)
    a, b = np.exp(first), np.exp(second)
    mass = a * b / (1 + a**2 + b**2) ** 1.5  # uniform on the sphere
    left = [mass[(u1 < np.logaddexp(0, u2))].sum() for u1, u2 in path.y.T.reshape(2, 2, *shape)]
    rate = np.log(left[0] / left[1]) / (times[1] - times[0])
    assert rate == pytest.approx(limit.unsettled_rate, rel=0.02)


def test_decay_rates() -> None:
    limit = ProjectionLimit(head(np.diag([1, 0.2]), np.diag([1, 1.6])))
    assert limit.contraction_rate == pytest.approx(0.8)
    assert limit.escape_rate == pytest.approx(0.5)
    assert limit.decay_rate() == pytest.approx(0.5)
    assert limit.decay_rate(2) == pytest.approx(0.25)
    slow = ProjectionLimit(head(np.diag([1, 0.2]), np.diag([1, 0.2])))
    assert (slow.decay_rate(1), slow.decay_rate(2)) == (pytest.approx(0.8), pytest.approx(0.8))
    plane = ProjectionLimit(head(np.diag([1, 1, 0.2]), np.eye(3)))
    assert plane.unsettled_rate == pytest.approx(1.6)  # two points hold less than a circle
    with pytest.raises(InputError, match=">= 1, got 0"):
        limit.decay_rate(0)


@pytest.mark.parametrize("slow", [0.4, 1.7, 3.0])
@pytest.mark.parametrize("k", [1, 2])
def test_decay_of_the_distance_to_the_limit(k: int, slow: float) -> None:
    """W_p for the uniform density on the circle (k = 1) and for a plane in the sphere (k = 2).

    Every token goes to the nearest point of E, at an angle a with u = log tan a and, as dim E = 1
    or B is a multiple of I on E, u' = -gap / |B^T x|: so W_p^p is the integral of a^p.
    """
    drift = np.diag([1.0] * k + [0.0])
    limit = ProjectionLimit(head(drift, np.diag([1.0] * k + [slow])))
    contraction, unsettled = 1.0, k / slow
    assert limit.contraction_rate == pytest.approx(contraction)
    start = np.arange(-40, 60, 0.02)
    # Uniform: cos(a)^(k-1) da, and da = du / (2 cosh u).
    mass = 1 / np.cosh(start) * (1 + np.exp(2 * start)) ** (-(k - 1) / 2)
    times = np.array([25.0, 30.0])

    def slope(_: float, u: np.ndarray) -> np.ndarray:
        angle = np.arctan(np.exp(u))
        return -1 / np.hypot(np.cos(angle), slow * np.sin(angle))

    path = solve_ivp(slope, (0, times[1]), start, t_eval=times, rtol=1e-9, atol=1e-9)
    for p in (1, 2):
        assert limit.decay_rate(p) == pytest.approx(min(contraction, unsettled / p))
        early, late = ((mass @ np.arctan(np.exp(u)) ** p) ** (1 / p) for u in path.y.T)
        assert np.log(early / late) / 5 == pytest.approx(limit.decay_rate(p), rel=0.05)


def test_lifetime_of_the_case_on_the_circle() -> None:
    drift, value = np.diag([1, 0.2]), rotation(0.5) @ np.diag([1, 0.3]) @ rotation(0.5).T
    key_query = np.linalg.solve(value, drift)
    key_query /= np.linalg.norm(key_query, 2)
    limit = ProjectionLimit(Attention(key_query, np.eye(2), value, 80.0))
    assert limit.lifetime == pytest.approx(9.0, abs=0.05)
    z = key_query[:, 0]
    formula = 80 * (np.linalg.norm(z) - z[0]) / limit.escape_rate
    assert limit.lifetime == pytest.approx(formula, rel=1e-12)
    hotter = ProjectionLimit(Attention(key_query, np.eye(2), value, 320.0))
    assert hotter.lifetime == pytest.approx(4 * limit.lifetime)
    assert limit.terminal_angle == pytest.approx(0.5)
    np.testing.assert_allclose(limit.terminal.basis[:, 0], rotation(0.5)[:, 0])
    assert limit.log_beta_time == pytest.approx(
        math.log(80 / math.log(81)) / (2 * limit.decay_rate(1))
    )


@pytest.mark.parametrize(
    ("seen", "competitor"),
    [((0.5, 0.8, 0.33), 1), ((0.6, 0.2, 0.77), 0), ((-0.6, 0.2, 0.77), 0)],
)
def test_lifetime_on_the_sphere(seen: tuple[float, float, float], competitor: int) -> None:
    """The slope in beta of the time when the tail at u loses, from the exact density.

    B is orthogonal, so that the uniform density at time t is known: with y_i/y_3 = exp(u_i) it has
    come from a_i = exp(u_i - (l_i - l_3) t). The tail loses to the clusters, or to the tail on the
    plane of e and e2.
    """
    growth = np.array([0.6, 0.1, 0.0])
    z = np.array(seen) / np.linalg.norm(seen)
    # B^T e3 is perpendicular to e, so that tokens at e3 are the last to lose sight of the tail.
    key_query = np.linalg.qr(np.column_stack([z, [1, 0, 0], [0, 0, 1]]))[0]
    key_query *= np.sign(key_query[:, 0] @ z)
    limit = ProjectionLimit(head(np.diag(growth), key_query, beta=1.0))
    z = np.abs(z)
    predicted = [(1 - z[0]) / 0.7, (1 - np.hypot(z[0], z[1])) / (0.7 - 0.5)]
    assert np.argmin(predicted) == competitor
    assert limit.lifetime_per_beta == pytest.approx(min(predicted))
    assert limit.tail_rate == pytest.approx(0.7)

    # Equal steps in u, fine where u is of order one and down to where no mass is left.
    u1, u2 = np.meshgrid(np.arange(-12, 30, 0.06), np.arange(-12, 30, 0.06))
    logarithms = np.stack([u1, u2, np.zeros_like(u1)])
    point = np.exp(logarithms - logsumexp(2 * logarithms, axis=0) / 2)
    score = np.tensordot(z, point, axes=1)
    near_maximum = score > np.cos(0.5 * np.arccos(np.hypot(z[0], z[1])))
    near_cluster = point[0] > 0.99

    def log_ratio(time: float, beta: float) -> float:
        a, b = u1 - growth[0] * time, u2 - growth[1] * time
        weight = a + b - 1.5 * np.logaddexp(0, np.logaddexp(2 * a, 2 * b)) + beta * (score - z[0])
        others = logsumexp(weight[~near_maximum & ~near_cluster])
        return float(logsumexp(weight[near_maximum]) - np.logaddexp(others, 0))

    betas = np.array([300.0, 600.0])
    times = [brentq(log_ratio, 0.1, 2000, args=(beta,), xtol=0.01) for beta in betas]
    slope = (times[1] - times[0]) / (betas[1] - betas[0])
    assert slope == pytest.approx(limit.lifetime_per_beta, rel=0.03)


def test_lifetime_where_the_tail_comes_from_an_equilibrium_that_loses_it_first() -> None:
    """At e2, |B^T e2| - |<B^T e2, e>| is less than the same at e: there the softmax turns first."""
    drift, value = np.diag([1, 0.2]), rotation(0.5) @ np.diag([1, 0.1]) @ rotation(0.5).T
    key_query = np.linalg.solve(value, drift)
    limit = ProjectionLimit(Attention(key_query, np.eye(2), value, 1.0))
    lost = [(np.linalg.norm(z) - abs(z[0])) / limit.escape_rate for z in key_query.T]
    assert lost[1] < 0.6 * lost[0]
    assert limit.lifetime_per_beta == pytest.approx(lost[1])
    assert limit.tail_rate == pytest.approx(limit.escape_rate)


@pytest.mark.parametrize("path", sorted(DEMOS.glob("*.toml")), ids=lambda path: path.stem)
def test_rates_are_those_of_the_formulas_on_the_page_of_theory(path: Path) -> None:
    """Of real, simple eigenvalues: c, c', r_j, and the lifetime as the least of two or three."""
    limit = ProjectionLimit(read_case(path).attention)
    key_query = limit.first.key_query
    values, vectors = np.linalg.eig(limit.first.drift)
    order = np.argsort(-values)
    values, e = values[order], vectors[:, order]
    seen = np.linalg.norm(key_query @ e, axis=0)
    rate = [(values[:j] - values[j]).sum() / seen[j] for j in range(len(values))]
    assert limit.contraction_rate == pytest.approx((values[0] - values[1]) / seen[0])
    assert limit.escape_rate == pytest.approx((values[0] - values[1]) / seen[1])
    assert limit.tail_rate == pytest.approx(rate[-1])

    def advantage(of: int, dimension: int) -> float:
        q = np.linalg.qr(e[:, :dimension])[0]
        return float(seen[of] - np.linalg.norm(q.T @ key_query @ e[:, of]))

    expected = [advantage(0, 1) / rate[-1], advantage(-1, 1) / rate[-1]]
    if len(values) == 3:
        expected.append(advantage(0, 2) / (rate[2] - rate[1]))
    assert limit.lifetime_per_beta == pytest.approx(min(expected))


def test_lifetime_without_end_and_extreme_beta() -> None:
    aligned = ProjectionLimit(head(np.diag([1, 0.2]), np.diag([1, 0.5]), beta=10.0))
    assert aligned.lifetime == math.inf
    assert "along e" in aligned.report()
    oblique = np.array([[1, 0], [0.5, 1]])
    assert ProjectionLimit(head(np.diag([1, 0.2]), oblique, beta=0.0)).lifetime == 0
    cold = ProjectionLimit(head(np.diag([1, 0.2]), oblique))
    assert cold.lifetime == cold.log_beta_time == math.inf
    negative = ProjectionLimit(head(np.diag([1, 0.2]), -oblique, beta=7.0))
    positive = ProjectionLimit(head(np.diag([1, 0.2]), oblique, beta=7.0))
    assert negative.lifetime == pytest.approx(positive.lifetime)
    # Clusters that attend to their antipodes follow -V, which is the V of the other head.
    np.testing.assert_allclose(negative.terminal.basis, positive.terminal.basis, atol=1e-12)
    assert "terminal eigenspace, of -V" in negative.report()
    assert "terminal eigenspace, of V " in positive.report()


def test_invariance_under_a_shift_of_the_drift() -> None:
    attention, _ = random_head(BLOCKS["sphere"], 5)
    shifted = head(attention.drift - 3 * np.eye(3), attention.key_query)
    one, other = ProjectionLimit(attention), ProjectionLimit(shifted)
    np.testing.assert_allclose(one.projector, other.projector, atol=1e-12)
    assert one.contraction_rate == pytest.approx(other.contraction_rate)
    assert one.escape_rate == pytest.approx(other.escape_rate)


def test_identity_stays() -> None:
    limit = ProjectionLimit(head(-2 * np.eye(3), np.diag([1, 2, 3])))
    points = normalised(np.random.default_rng(0).normal(size=(5, 3)))
    np.testing.assert_allclose(limit.map(points), points, atol=1e-15)
    np.testing.assert_allclose(limit.distance_to_eigenspace(points), 0, atol=1e-15)
    assert limit.contraction_rate == limit.decay_rate(1) == math.inf
    assert limit.dimension == 3
    assert "nothing moves" in limit.report()


DEGENERATE = {
    "complex": (head([[0, -1], [1, 0]], np.eye(2)), ["complex pair 0 ± 1i"]),
    "complex, d = 3": (
        head([[1, -2, 0], [2, 1, 0], [0, 0, 0.5]], np.eye(3)),
        ["complex pair 1 ± 2i", "0.5"],
    ),
    "defective": (head([[1, 1], [0, 1]], np.eye(2)), ["defective", "1, 1"]),
    "tie": (head([[1, -2, 0], [2, 1, 0], [0, 0, 1]], np.eye(3)), ["not strictly ahead"]),
    "singular B": (
        Attention([[1, 0], [0, 0]], np.eye(2), np.eye(2), 5.0),
        ["B = query^T key is singular", "1, 0)", "eigenvalues of V B^T: 1, 0"],
    ),
    "B of low rank": (
        Attention([[1, 2, 3]], [[0, 1, 1]], np.eye(3), 5.0),
        ["singular", "kernel", "5, 0, 0"],
    ),
    "no denominator": (
        Attention(np.eye(2), np.eye(2), np.eye(2), 5.0, normalise=False),
        ["without the denominator"],
    ),
    "B = 0": (Attention(np.zeros((2, 2)), np.eye(2), np.eye(2), 5.0), ["singular"]),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_no_limit(name: str) -> None:
    attention, fragments = DEGENERATE[name]
    limit = ProjectionLimit(attention)
    assert not limit.exists
    assert limit.dimension == 0
    for fragment in fragments:
        assert fragment in limit.reason
        assert fragment in limit.report()
    with pytest.raises(InputError, match="no limit measure"):
        limit.map(np.eye(attention.dimension))
    for quantity in ("projector", "contraction_rate", "escape_rate", "lifetime", "log_beta_time"):
        with pytest.raises(InputError, match="no limit measure"):
            getattr(limit, quantity)
    described = json.loads(json.dumps(limit.describe(), allow_nan=False))
    assert described["exists"] is False
    assert described["projector"] is None
    assert len(described["eigenvalues"]) == attention.dimension


@pytest.mark.parametrize("beta", [0.0, 12.0, math.inf])
@pytest.mark.parametrize("name", [*BLOCKS, "identity"])
def test_description_is_json(name: str, beta: float) -> None:
    block = np.eye(3) if name == "identity" else BLOCKS[name]
    limit = ProjectionLimit(random_head(block, 1)[0].with_beta(beta))
    described = json.loads(json.dumps(limit.describe(), allow_nan=False))
    assert described["exists"] is True
    assert described["dimension"] == limit.dimension
    assert described["contraction_rate"] in (limit.contraction_rate, "inf")
    np.testing.assert_allclose(described["projector"], limit.projector)
    pairs = np.array(described["eigenvalues"])
    np.testing.assert_allclose(pairs[:, 0] + 1j * pairs[:, 1], limit.eigenvalues)
    lines = limit.report().splitlines()
    assert any(line.startswith("limit measure") for line in lines)
    assert "nan" not in limit.report()


def test_separatrix_has_no_image() -> None:
    limit = ProjectionLimit(head([[1, 0.5], [0, 0.2]], np.eye(2)))
    on = np.array([limit.left[0, 1], -limit.left[0, 0]])
    with pytest.raises(InputError, match=r"point 1, .* is on the separatrix"):
        limit.map(np.array([[1, 0], on / np.linalg.norm(on)]))


def test_distance_to_eigenspace() -> None:
    for block in BLOCKS.values():
        limit = ProjectionLimit(random_head(block, 7)[0])
        points = normalised(np.random.default_rng(1).normal(size=(20, len(block))))
        nearest = normalised(points @ limit.basis @ limit.basis.T)
        expected = geodesic_distance(points, nearest)
        np.testing.assert_allclose(limit.distance_to_eigenspace(points), expected, atol=1e-12)
