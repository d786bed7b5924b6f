"""The figure of the distances in a history: with their intervals, and the predicted rates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meanfield_pde.figures.density import save, title
from meanfield_pde.figures.failures import drawing
from meanfield_pde.history.history import History
from meanfield_pde.results.names import FIGURES
from meanfield_pde.solver.settings import COMPARED, ORDERS
from meanfield_pde.theory.phases import Phases
from meanfield_pde.theory.projection_limit import ProjectionLimit

# Of what is compared: colours of Okabe and Ito, safe for the colour blind, and lines that differ in
# grey, too.
_STYLES = {
    "limit": ("#0072B2", "-"),
    "zero": ("#D55E00", "-."),
    "zero_to_limit": ("#009E73", "--"),
}

_PHASE_SHADES = ("#F0E442", "#56B4E9", "#E69F00", "#CC79A7")


@drawing
def draw_distances(
    directory: Path,
    history: History,
    projection: ProjectionLimit,
    phases: Phases,
    form: str = "png",
) -> Path | None:
    """Draw figures/distances.png, if the history has distances at two times or more."""
    orders = [p for p in ORDERS if any(one.column(p) in history.history for one in COMPARED)]
    if not orders or len(history.times) < 2:
        return None
    figure = Figure(figsize=(5.4 * len(orders) + 0.4, 4.8), layout="constrained")
    figure.suptitle(title(history, "Wasserstein distances"))
    panels = figure.subplots(1, len(orders), squeeze=False)[0]
    for axes, p in zip(panels, orders, strict=True):
        _draw_order(axes, history, projection, p)
        _draw_phases(axes, phases, history.times[-1])
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    return save(figure, directory / FIGURES / f"distances.{form}")


def _draw_order(axes: Axes, record: History, projection: ProjectionLimit, p: int) -> None:
    times, history = record.times, record.history
    shown = []
    for one in COMPARED:
        key, (colour, style) = one.column(p), _STYLES[one.name]
        if key not in history:
            continue
        values = np.where(history[key] > 0, history[key], np.nan)
        shown.append(values)
        axes.semilogy(times, values, style, color=colour, label=one.label)
        if all(bound in history for bound in one.bounds(p)):
            low, high = (history[bound] for bound in one.bounds(p))
            axes.fill_between(times, np.where(low > 0, low, np.nan), high, color=colour, alpha=0.3)
    bars = [history[one.quantisation] for one in COMPARED if one.quantisation in history]
    bar = np.max(bars, axis=0)
    axes.fill_between(
        times, 0, bar, color="0.85", lw=0, label="below the width of the cells", zorder=0
    )
    largest = float(np.nanmax(shown)) if np.isfinite(shown).any() else 1.0
    axes.set_ylim(bar[bar > 0].min(initial=largest) / 3, largest * 1.5)
    if projection.exists and f"w{p}_limit" in history:
        _draw_rate(axes, times, projection.decay_rate(p), history[f"w{p}_limit"][0])
        if projection.attention.beta < np.inf and projection.lifetime < times[-1]:
            axes.axvline(
                projection.lifetime,
                ls=(0, (8, 3)),
                color="k",
                lw=0.9,
                label="predicted end of the plateau",
            )
    axes.set_xlim(times[0], times[-1])
    axes.set_xlabel("time t")
    axes.set_ylabel(
        f"$W_{p}$ (radians)" if record.cost == "geodesic" else f"$W_{p}$ (chord length)"
    )


def _draw_rate(axes: Axes, times: np.ndarray, rate: float, start: float) -> None:
    if not (np.isfinite(rate) and rate > 0 and start > 0):
        return
    axes.semilogy(
        times,
        1.2 * start * np.exp(-rate * (times - times[0])),
        ":",
        color="0.35",
        label="slope of the predicted rate",
    )


def _draw_phases(axes: Axes, phases: Phases, last: float) -> None:
    """A bar above the curves for each phase that was reached, and lines where it ends."""
    width = last - axes.get_xlim()[0]
    missing = [phase.name for phase in phases if phase.begin is None]
    if missing:
        axes.text(
            1.0,
            1.075,
            f"not reached: {', '.join(missing)}",
            transform=axes.transAxes,
            ha="right",
            va="bottom",
            fontsize="x-small",
            color="0.3",
        )
    for stage in phases.stages:
        if 0 < stage.expected < 1:  # a plateau on the way, below the phase that it is part of
            end = last if stage.end is None else stage.end
            bar = axes.axvspan(
                stage.begin, end, 1.0, 1.015, color="k", lw=0, clip_on=False, zorder=3
            )
            bar.set_label("_stage")
            bar.set_gid(f"stage at {stage.place:.2f}")
    for shade, phase in zip(_PHASE_SHADES, phases, strict=True):
        if phase.begin is None:
            continue
        end = last if phase.end is None else phase.end
        # Above the axes: the height is in their fraction, the time in data.
        bar = axes.axvspan(
            phase.begin, end, 1.0, 1.06, color=shade, lw=0, clip_on=False, label="_phase"
        )
        bar.set_gid(phase.name)
        if phase.end is not None:
            axes.axvline(phase.end, color="0.6", lw=0.7, zorder=0)
        if end - phase.begin > 0.09 * width:  # else there is no room for its name
            axes.text(
                (phase.begin + end) / 2,
                1.03,
                phase.name,
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="center",
                fontsize="x-small" if end - phase.begin > 0.16 * width else 6,
                color="k",
            )
