"""What the histories of a sweep say about the theorem: rows, fits and the envelope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meanfield_pde.attention.layers import single
from meanfield_pde.results.folder import Result
from meanfield_pde.results.tables import Row
from meanfield_pde.solver.settings import ORDERS
from meanfield_pde.theory.envelope import fit_envelope, temperature_scale
from meanfield_pde.theory.fits import fit_or_none
from meanfield_pde.theory.laplace_principle import laplace_error
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.richardson import interval

# The early decay is fitted where W has fallen to this fraction of its start, and is still this many
# times its least value, which finite temperature decides (chosen, not tuned).
EARLY, LATE = 0.7, 3.0
# Saved times at which the Laplace principle is checked: the fraction of the time of the theorem's
# concentration, log_beta_time at the largest beta: before, during and after it (chosen, not tuned).
LAPLACE_AT = (0.0, 0.5, 1.0)


def rows_of_run(run: Result, limit: ProjectionLimit) -> list[Row]:
    """One row for each p: time and size of the least distance, the early rate, and predictions."""
    rows = []
    for p in orders(run):
        distance = run.history[f"w{p}_limit"]
        time, least = least_distance(run.times, distance)
        resolved = run.history["quantisation_limit"][int(np.argmin(distance))]
        rows.append(
            {
                "beta": run.attention.beta,
                "p": p,
                "least_time": time,
                "least_distance": least,
                "at_end": time is None,
                "cell_width": float(resolved),
                "early_rate": early_rate(run.times, distance),
                "predicted_rate": limit.decay_rate(p),
                "temperature_scale": float(temperature_scale(run.attention.beta)),
            }
        )
    return rows


def with_intervals(
    levels: Sequence[Sequence[Result]], limit: ProjectionLimit, finer: float
) -> list[Row]:
    """The rows of the finest of several levels, with intervals of time and size.

    Args:
        levels: the runs of each, from the coarsest on, in the same order.
        limit: of the case.
        finer: how many times finer each is than the one before.
    """
    each = [[row for run in runs for row in rows_of_run(run, limit)] for runs in levels]
    between = [
        between_saved_times(run.times, run.history[f"w{p}_limit"])
        for run in levels[-1]
        for p in orders(run)
    ]
    found = []
    for *rows, (apart, below) in zip(*each, between, strict=True):
        row = rows[-1]
        for name, spread in (("least_time", apart), ("least_distance", below)):
            row |= interval([one[name] for one in rows], finer, spread).columns(name)
        found.append(row)
    return found


def orders(run: Result) -> list[int]:
    """The p for which the history has distances."""
    return [p for p in ORDERS if f"w{p}_limit" in run.history]


def least_distance(times: np.ndarray, distance: np.ndarray) -> tuple[float | None, float]:
    """Time and value of the least distance, from a parabola through the three lowest points.

    The time is None if the distance is least at the end: the run was too short to see it.
    """
    i = int(np.argmin(distance))
    if i == len(times) - 1:
        return None, float(distance[i])
    if i == 0:
        return float(times[0]), float(distance[0])
    t, w = times[i - 1 : i + 2] - times[i], distance[i - 1 : i + 2]
    curvature, slope, value = np.polyfit(t, w, 2)
    if not curvature > 0:
        return float(times[i]), float(distance[i])
    vertex = float(np.clip(-slope / (2 * curvature), t[0], t[2]))
    return float(times[i] + vertex), float(value + slope * vertex / 2)


def between_saved_times(times: np.ndarray, distance: np.ndarray) -> tuple[float, float]:
    """How far `least_distance` may be off, as it knows saved times only: time and value.

    The least is between the neighbours of the lowest; the value is off by what the parabola takes
    from that of the lowest.
    """
    i = int(np.argmin(distance))
    near = times[max(0, i - 1) : i + 2]
    return float(np.ptp(near)) / 2, float(distance[i]) - least_distance(times, distance)[1]


def early_rate(times: np.ndarray, distance: np.ndarray) -> float | None:
    """Slope of -log W between its start and its least value; None with fewer than 3 points."""
    least = int(np.argmin(distance))
    inside = (distance < EARLY * distance[0]) & (distance > LATE * distance[least])
    inside[least:] = False
    if inside.sum() < 3:
        return None
    fit = fit_or_none(times[inside], -np.log(distance[inside]))
    return None if fit is None else fit.slope


def summarise_sweep(
    runs: Sequence[Result], rows: Sequence[Row], limit: ProjectionLimit
) -> dict[str, Any]:
    """The fits for each p, and the Laplace principle."""
    summary: dict[str, Any] = {"betas": [run.attention.beta for run in runs]}
    for p in orders(runs[0]):
        own = [row for row in rows if row["p"] == p]
        seen = [row for row in own if row["least_time"] is not None]
        beta = np.array([row["beta"] for row in seen])
        time = np.array([row["least_time"] for row in seen], dtype=float)
        least = np.array([row["least_distance"] for row in seen])
        scale = temperature_scale(beta)
        in_log_beta = fit_or_none(np.log(beta), time)
        power = fit_or_none(np.log(scale), np.log(least))
        coldest = max(own, key=lambda row: row["beta"])
        times, betas, distances = envelope_points(runs, p)
        found = fit_envelope(times, betas, distances, limit.decay_rate(p))
        summary[f"w{p}"] = {
            "least_time_fit_a_plus_b_log_beta": None
            if in_log_beta is None
            else in_log_beta.describe(),
            "least_distance_power_of_scale": None if power is None else power.describe(),
            "least_at_end_of_run": [row["beta"] for row in own if row["least_time"] is None],
            "early_rate_at_largest_beta": coldest["early_rate"],
            "predicted_rate": limit.decay_rate(p),
            "envelope": found.describe()
            | {
                "points": len(times),
                "holds_at": int((found(times, betas) >= distances).sum()),
            },
        }
    summary["laplace"] = laplace_rows(runs, limit)
    return summary


def envelope_points(runs: Sequence[Result], p: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All measured (t, beta, W_p), with W_p the upper end of its interval for densities."""
    times = np.concatenate([run.times for run in runs])
    betas = np.concatenate([np.full(len(run.times), run.attention.beta) for run in runs])
    return times, betas, np.concatenate([run.history[f"w{p}_limit_high"] for run in runs])


def laplace_rows(runs: Sequence[Result], limit: ProjectionLimit) -> list[Row]:
    """Error of the Laplace principle for each beta, at fixed times that all runs have saved."""
    coldest = limit.attention.with_beta(max(run.attention.beta for run in runs))
    reference = ProjectionLimit(coldest).log_beta_time
    common = sorted(set.intersection(*(set(run.times.tolist()) for run in runs)))
    chosen = sorted({min(common, key=lambda t: abs(t - part * reference)) for part in LAPLACE_AT})
    rows = []
    for time in chosen:
        for run in runs:
            i = int(np.argmin(np.abs(run.times - time)))
            cells, masses = run.cells_at(i), run.store.read(i)
            error = laplace_error(
                single(run.attention, "a sweep"), cells.points, masses, cells.volumes
            )
            beta = run.attention.beta
            rows.append({"time": time, "beta": beta, "largest": error.largest, "mean": error.mean})
    return rows
