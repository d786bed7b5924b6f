"""Verification of particle codes: p-values of right codes, and how often planted faults are seen.

Surface, beta 0.5, 5, 50, N = 200, 1000: right codes of many seeds at all times together, against
one band of samples for each setting; seeds, those of bands too, differ from setting to setting.
Then planted faults at beta = 5: with trajectories, and from positions at the last time alone.
`python -m tests.benchmarks.verification [--quick] [--part p-values|faults|speed]
[--tokens 200|1000] [--surface circle|sphere] [--beta B ...] [--seeds S] [--first SEED]
[--fault NAME ...]`. Euler's steps are of 0.01 at N = 200 and of 0.02 at N = 1000.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

from mpi4py import MPI

import numpy as np
from scipy.integrate import solve_ivp

from meanfield_pde import Attention, Solution, circle_mesh, solve, sphere_mesh
from meanfield_pde.initial.sampling import sample_tokens
from meanfield_pde.support.threads import set_threads
from meanfield_pde.verification.diagnosis import diagnose
from meanfield_pde.verification.samples import densities_at, sampling_band
from meanfield_pde.verification.statistic import features
from tests import oracles
from tests.benchmarks.comparing import show_speed
from tests.benchmarks.planted import CAUSES, DENSITY, INITIAL, TIMES, faulty, matrices
from tests.benchmarks.tables import Table, options, present

LEVEL = 0.01
SURFACES = {2: "circle", 3: "sphere"}
BETAS = (0.5, 5.0, 50.0)


@functools.cache
def solved(d: int, beta: float) -> Solution:
    """The density."""
    mesh = circle_mesh(400) if d == 2 else sphere_mesh(1280)
    attention = Attention(*matrices(d), beta)
    return solve(attention, mesh, DENSITY, until=TIMES[-1], save_at=TIMES[:-1])


def p_values(
    solution: Solution, beta: float, count: int, seeds: Sequence[int], samples: int
) -> np.ndarray:
    """p-values of right codes, whose tokens are drawn and moved by plain numpy and scipy."""
    d, at = solution.dimension, np.arange(len(solution.times))
    band = sampling_band(solution, at, count, samples=samples, seed=seeds[0], comm=MPI.COMM_SELF)
    quantiles, found = densities_at(solution, at), []
    masses = np.full(count, 1 / count, dtype=np.float32)
    code = (masses, *(one.astype(np.float32) for one in matrices(d)), np.float32(beta))

    def rate(_: float, y: np.ndarray) -> np.ndarray:
        x = y.reshape(count, d).astype(np.float32)
        return np.asarray(oracles.velocity(x, *code).ravel())

    for seed in seeds:
        x = sample_tokens(DENSITY, count, seed, d)
        path = solve_ivp(rate, (0, TIMES[-1]), x.ravel(), t_eval=(0, *TIMES), rtol=1e-5, atol=1e-5)
        tokens = path.y.T.reshape(-1, count, d)
        tokens /= np.linalg.norm(tokens, axis=2, keepdims=True)
        found.append(band.p_value(features(tokens, None, quantiles)))
    return np.array(found)


def show_p_values(
    surfaces: Sequence[int],
    betas: Sequence[float],
    counts: Sequence[int],
    seeds: int,
    samples: int,
) -> None:
    """Of right codes."""
    table = Table(
        f"p-values of right codes, {seeds} seeds, {samples} samples",
        ("surface", "beta", "N", "p < 0.05", "p < 0.01", "mean p"),
    )
    every: list[np.ndarray] = []
    settings = [(d, beta) for d in SURFACES for beta in BETAS]
    for count in counts:
        for number, (d, beta) in enumerate(settings):
            if d not in surfaces or beta not in betas:
                continue
            first = 20_000_000 + 10_000 * count + 1000 * number
            found = p_values(solved(d, beta), beta, count, range(first, first + seeds), samples)
            every.append(found)
            table.row(SURFACES[d], beta, count, *_below(found))
    table.row("all", "", "", *_below(np.concatenate(every)))


def _below(found: np.ndarray) -> tuple[str, str, str]:
    below = [f"{100 * (found < level).mean():.1f}%" for level in (0.05, 0.01)]
    return below[0], below[1], f"{found.mean():.3f}"


def show_faults(
    surfaces: Sequence[int],
    counts: Sequence[int],
    faults: Sequence[str],
    seeds: Sequence[int],
    samples: int,
) -> None:
    """Which planted faults are flagged: by trajectories, and from the last time alone."""
    table = Table(
        f"planted faults, beta = 5, seeds {seeds[0]} to {seeds[-1]}: flagged with trajectories, "
        f"cause right, cause wrong; flagged from the last time alone (p < {LEVEL}, {samples} "
        "samples)",
        (
            "surface",
            "N",
            "fault",
            "flagged",
            "right cause",
            "wrong cause",
            "last time alone",
            "CPU s",
        ),
    )
    for d in surfaces:
        surface, solution = SURFACES[d], solved(d, 5.0)
        at = np.arange(len(solution.times))
        quantiles = densities_at(solution, at)
        for count in counts:
            band = sampling_band(solution, at, count, samples=samples)
            for fault in faults:
                cause = CAUSES[fault]
                flagged = right = wrong = alone = 0
                began = time.process_time()
                for seed in seeds:
                    cloud = faulty(d, fault, count, seed)
                    found = diagnose(cloud, solution.attention)
                    observed = features(cloud.tokens, None, quantiles)
                    alone += band.p_value(observed, at[-1:]) < LEVEL
                    # As `compare` has it: without trajectories all times count.
                    seen = band.p_value(observed, at if found is None else at[:1]) < LEVEL
                    flagged += seen or (found is not None and not found.right)
                    name = found.cause.name if found is not None and found.cause else ""
                    if found is not None and found.right and seen:
                        name = INITIAL
                    if name:
                        fits = cause is not None and cause in name
                        right += fits
                        wrong += not fits
                each = (time.process_time() - began) / len(seeds)
                row = map(_of(len(seeds)), (flagged, right, wrong, alone))
                table.row(surface, count, fault, *row, f"{each:.1f}")


def _of(seeds: int) -> Callable[[int], str]:
    return lambda number: f"{number}/{seeds}"


OPTIONS = options("verification", __doc__ or "")
OPTIONS.add_argument("--part", choices=("p-values", "faults", "speed"))
OPTIONS.add_argument("--tokens", type=int, choices=(200, 1000))
OPTIONS.add_argument("--surface", choices=tuple(SURFACES.values()))
OPTIONS.add_argument("--beta", type=float, choices=BETAS, nargs="+", default=BETAS)
OPTIONS.add_argument("--seeds", type=int)
OPTIONS.add_argument("--first", type=int, default=0)
OPTIONS.add_argument("--fault", choices=tuple(CAUSES), nargs="+", default=list(CAUSES))


def main() -> None:
    """Print the tables, or the part of them that the command line asks for."""
    asked = OPTIONS.parse_args()
    quick = asked.quick
    set_threads(MPI.COMM_WORLD)
    counts, seeds, samples = ((200,), 40, 499) if quick else ((200, 1000), 200, 2000)
    if asked.tokens is not None:
        counts = (asked.tokens,)
    surfaces = [d for d, name in SURFACES.items() if asked.surface in (None, name)]
    if asked.part in (None, "faults"):
        show_faults(
            surfaces,
            counts,
            asked.fault,
            range(asked.first, asked.first + (asked.seeds or (3 if quick else 20))),
            499 if quick else 999,
        )
    if asked.part in (None, "p-values"):
        show_p_values(surfaces, asked.beta, counts, asked.seeds or seeds, samples)
    if asked.part in (None, "speed"):
        show_speed(counts, 320 if quick else 5120)


if __name__ == "__main__":
    present(main, OPTIONS)
