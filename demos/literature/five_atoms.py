# %% [markdown]
# # Five atoms that merge one after another
#
# Geshkovski, Koubbi, Polyanskiy and Rigollet (arXiv 2410.06833) show that clusters stay apart for
# times exponential in beta. The five tokens of their code (HugoKoubbi/2024-transformers-dotm,
# kinetic.py), at beta = 4 and Q = K = V = I, come within 0.1 of each other at t = 0.440, 1.314,
# 4.384 and 327.56. A density on an adaptive mesh carries atoms as points.
#
#     python demos/literature/five_atoms.py [--short]        (also under mpiexec)

# %%
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicSpline

sys.path.insert(0, str(Path(__file__).parent))
from gallery import Row, angles, identity, refined, run

from meanfield_pde import Tokens, circle_mesh, simulate_tokens, solve

PUBLISHED = ("0.440", "1.314", "4.384", "327.56")
GAPS = (0, 3, 2, 1)  # between token k and the next, in the order in which they close
BETA, NEAR = 4.0, 0.1
START = np.array(
    [
        [0.99806638, 0.06215705],
        [0.97712061, 0.21268594],
        [-0.24578194, 0.96932515],
        [-0.97354734, 0.2284854],
        [-0.99892629, -0.04632772],
    ]
)
START /= np.linalg.norm(START, axis=1)[:, None]


# %%
def gap(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The angle between two points of the circle at each time, as arrays ... x 2."""
    cross = first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]
    return np.arctan2(np.abs(cross), (first * second).sum(axis=-1))


def closing(times: np.ndarray, gaps: np.ndarray) -> float:
    """The first time at which a gap is NEAR, by a spline through four times about it."""
    first = int(np.flatnonzero(gaps < NEAR)[0])
    near = slice(max(0, first - 3), first + 3)
    roots = CubicSpline(times[near], gaps[near] - NEAR).roots(extrapolate=False)
    return float(roots[(roots >= times[first - 1]) & (roots <= times[first])][0])


def by_tokens(fine: int, ends: int) -> list[float]:
    """The times at which gaps close, by the token code."""
    early, late = np.arange(1, 250 * fine) * 0.02 / fine, 327 + np.arange(20 * fine) * 0.05 / fine
    times = np.concatenate([early, late]) if ends == 4 else early
    cloud = simulate_tokens(
        START, identity(BETA), times[-1], save_at=times[:-1], tolerance=1e-7 / fine**3
    )
    tokens = cloud.tokens
    return [closing(cloud.times, gap(tokens[:, k], tokens[:, (k + 1) % 5])) for k in GAPS[:ends]]


def by_density(fine: int) -> list[float]:
    """The first three of them, by a density on an adaptive mesh."""
    solution = solve(
        identity(BETA),
        circle_mesh(100),
        Tokens(START),
        until=4.6,
        save_every=0.04,
        adapt=1e-3 / fine**2,
        step_tolerance=1e-4,
    )
    tokens = [START]
    for index in range(1, len(solution.times)):
        measure = solution.measure(index)
        heavy = measure.points[measure.masses > 0.1]
        # Those that have come together are one point: each token is at the one next to its last.
        tokens.append(heavy[np.argmax(tokens[-1] @ heavy.T, axis=1)])
    found = np.array(tokens)
    return [closing(solution.times, gap(found[:, k], found[:, (k + 1) % 5])) for k in GAPS[:3]]


def exact() -> list[float]:
    """The times by the equations of five angles."""

    def right_hand_side(t: float, angle: np.ndarray) -> np.ndarray:
        apart = angle - angle[:, None]
        weights = np.exp(BETA * np.cos(apart))
        return (weights * np.sin(apart)).sum(axis=1) / weights.sum(axis=1)

    events = [
        lambda t, a, k=k: np.abs(np.angle(np.exp(1j * (a[(k + 1) % 5] - a[k])))) - NEAR
        for k in GAPS
    ]
    found = solve_ivp(
        right_hand_side,
        (0, 400),
        angles(START),
        method="DOP853",
        rtol=1e-12,
        atol=1e-13,
        events=events,
    )
    return [float(times[0]) for times in found.t_events]


# %%
def compute(short: bool) -> tuple[list[Row], np.ndarray]:
    independent, rows = exact(), []
    chosen = "the five tokens of their code, made unit vectors"
    for which, found in (
        ("tokens", refined(lambda fine: by_tokens(fine, 4))),
        ("density", [] if short else refined(by_density)),
    ):
        for number, one in enumerate(found):
            name = f"gap {number + 1} of five atoms closes, {which}"
            rows.append(
                Row(
                    name,
                    "2410.06833",
                    PUBLISHED[number],
                    **one,
                    independent=independent[number],
                    chosen=chosen,
                )
            )
    times = np.geomspace(0.01, 400, 200)
    cloud = simulate_tokens(START, identity(BETA), times[-1], save_at=times[:-1])
    turned = np.array([np.unwrap(angles(one)) for one in np.swapaxes(cloud.tokens, 0, 1)])
    turned += 2 * np.pi * (turned[:, :1] < 0)
    return rows, np.vstack([cloud.times, turned])


def draw(figure: Figure, lines: np.ndarray) -> None:
    axes = figure.subplots()
    axes.semilogx(lines[0, 1:], np.degrees(lines[1:, 1:]).T, color="#0072B2")
    for text in PUBLISHED:
        axes.axvline(float(text), color="#D55E00", lw=1, ls=":")
    axes.set_xlabel("time t; dotted: published")
    axes.set_ylabel("angle (degrees)")


def main(arguments: list[str] | None = None) -> list[Row]:
    return run(__file__, compute, draw, arguments)


if __name__ == "__main__":
    main()
