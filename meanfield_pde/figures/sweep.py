"""The figures of a sweep: distances against time, the laws in beta, and the Laplace principle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meanfield_pde.figures.bars import draw_rows
from meanfield_pde.figures.colours import distinct
from meanfield_pde.figures.density import cell_counts, save
from meanfield_pde.figures.failures import drawing
from meanfield_pde.results.folder import Result
from meanfield_pde.results.names import FIGURES
from meanfield_pde.results.tables import Row
from meanfield_pde.theory.envelope import Envelope, temperature_scale
from meanfield_pde.theory.projection_limit import ProjectionLimit

_BELOW = "below the width of the cells"
_ORDERS = {1: ("#0072B2", "o"), 2: ("#D55E00", "s")}


@drawing
def draw_sweep(
    directory: Path,
    runs: Sequence[Result],
    rows: Sequence[Row],
    limit: ProjectionLimit,
    summary: dict[str, Any],
    form: str = "png",
) -> list[Path]:
    """Draw figures/sweep.png, laws.png and laplace.png, or the same in another format."""
    orders = sorted({int(row["p"]) for row in rows})
    unit = "chord length" if runs[0].cost == "chordal" else "radians"
    folder = directory / FIGURES
    return [
        save(_distances(runs, orders, limit, summary, unit), folder / f"sweep.{form}"),
        save(_laws(rows, orders, summary, unit), folder / f"laws.{form}"),
        save(_laplace(summary["laplace"]), folder / f"laplace.{form}"),
    ]


def _distances(
    runs: Sequence[Result],
    orders: Sequence[int],
    limit: ProjectionLimit,
    summary: dict[str, Any],
    unit: str,
) -> Figure:
    figure = Figure(figsize=(5.6 * len(orders), 5.0), layout="constrained")
    place = "circle" if runs[0].dimension == 2 else "sphere"
    figure.suptitle(f"Distance to the limit on the {place}, {cell_counts(runs)}")
    panels = figure.subplots(1, len(orders), squeeze=False)[0]
    for axes, p in zip(panels, orders, strict=True):
        found = summary[f"w{p}"]["envelope"]
        bound = Envelope(found["C"], found["c"], found["C1"], found["C2"], 0.0)
        for look, run in zip(distinct(len(runs)), runs, strict=True):
            beta = run.attention.beta
            distance = run.history[f"w{p}_limit"]
            axes.semilogy(run.times, distance, **look, label=f"β = {beta:g}")
            axes.semilogy(run.times, bound(run.times, beta), ":", color=look["color"], lw=0.9)
        times = runs[-1].times
        start = runs[-1].history[f"w{p}_limit"][0]
        rate = limit.decay_rate(p)
        lowest = min(run.history[f"w{p}_limit"].min() for run in runs)
        axes.semilogy(
            times, start * np.exp(-rate * times), "--", color="k", lw=1, label="predicted rate"
        )
        axes.plot([], [], ":", color="0.3", label="envelope that holds at every point")
        # Where the mesh is adapted the cells of each time and run have widths of their own.
        for run in runs:
            below, label = run.history["quantisation_limit"], _BELOW if run is runs[0] else None
            axes.fill_between(run.times, 0, below, color="0.88", lw=0, zorder=0, label=label)
        narrowest = max(run.history["quantisation_limit"].min() for run in runs)
        axes.set_ylim(0.5 * min(lowest, narrowest), 2 * max(bound(times[:1], 10.0)[0], start))
        axes.set_xlim(times[0], times[-1])
        axes.set_xlabel("time t")
        axes.set_ylabel(f"$W_{p}$(density, limit)  ({unit})")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize="small")
    return figure


def _laws(rows: Sequence[Row], orders: Sequence[int], summary: dict[str, Any], unit: str) -> Figure:
    figure = Figure(figsize=(11.2, 4.4), layout="constrained")
    time_axes, size_axes = figure.subplots(1, 2)
    size_axes.set(xscale="log", yscale="log")
    for p in orders:
        colour, marker = _ORDERS[p]
        own = [row for row in rows if row["p"] == p]
        seen = [row for row in own if row["least_time"] is not None]
        beta = np.array([row["beta"] for row in seen])
        draw_rows(time_axes, beta, seen, "least_time", marker, colour, f"$W_{p}$")
        fit = summary[f"w{p}"]["least_time_fit_a_plus_b_log_beta"]
        if fit is not None:
            label = (
                f"{fit['intercept']:.2f} + {fit['slope']:.2f} log β, R² = {fit['r_squared']:.3f}"
            )
            values = fit["intercept"] + fit["slope"] * np.log(beta)
            time_axes.plot(beta, values, "-", color=colour, lw=1, label=label)
        scale = temperature_scale(beta)
        draw_rows(size_axes, scale, seen, "least_distance", marker, colour, f"$W_{p}$")
        power = summary[f"w{p}"]["least_distance_power_of_scale"]
        if power is not None:
            values = np.exp(power["intercept"]) * scale ** power["slope"]
            label = f"slope {power['slope']:.2f} in log-log"
            size_axes.loglog(scale, values, "-", color=colour, lw=1, label=label)
    _reference(size_axes, "slope 1, the theorem")
    time_axes.set_xscale("log")
    betas = sorted({row["beta"] for row in rows})
    time_axes.set_xticks(betas, [f"{beta:g}" for beta in betas], fontsize="small")
    time_axes.minorticks_off()
    time_axes.set_xlabel("inverse temperature β")
    time_axes.set_ylabel("time t* of least distance")
    time_axes.set_title("when the distance is least", fontsize="medium")
    size_axes.set_xlabel("√(log(β + 1)/β)")
    size_axes.set_ylabel(f"least distance ({unit})")
    size_axes.set_title("the least distance", fontsize="medium")
    for axes in (time_axes, size_axes):
        axes.legend(fontsize="small")
        if not any(row["least_time"] is not None for row in rows):
            note = "not reached: at the end of every run\nthe distance was still falling"
            axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", va="center")
    return figure


def _laplace(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    axes = figure.subplots()
    times = sorted({row["time"] for row in rows})
    for look, time in zip(distinct(len(times)), times, strict=True):
        own = sorted((row for row in rows if row["time"] == time), key=lambda row: row["beta"])
        scale = temperature_scale(np.array([row["beta"] for row in own]))
        for name, style in (("largest", "o-"), ("mean", "^--")):
            values = [row[name] for row in own]
            axes.loglog(
                scale, values, style, color=look["color"], ms=5, label=f"{name}, t = {time:g}"
            )
    _reference(axes, "slope 1")
    axes.set_xlabel("√(log(β + 1)/β)")
    axes.set_ylabel(r"$|m_\beta(x) - B^\mathsf{T}x/|B^\mathsf{T}x||$ over x")
    axes.set_title("Laplace principle: error of the zero-temperature mean", fontsize="medium")
    figure.legend(loc="outside right center", fontsize="small")
    return figure


def _reference(axes: Axes, label: str) -> None:
    """A line of slope one below the data."""
    lines = [line for line in axes.get_lines() if len(np.atleast_1d(line.get_xdata())) > 1]
    if not lines:
        return
    x = np.concatenate([np.asarray(line.get_xdata(), dtype=float) for line in lines])
    y = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in lines])
    x, y = x[y > 0], y[y > 0]  # the low end of an interval may be below
    ends = np.array([x.min(), x.max()])
    axes.loglog(ends, 0.7 * (y / x).min() * ends, ":", color="0.3", lw=1.2, label=label)
