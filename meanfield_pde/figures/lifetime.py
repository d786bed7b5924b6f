"""The figure of an experiment on lifetimes: both laws, and what is predicted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meanfield_pde.figures.bars import draw_rows
from meanfield_pde.figures.density import save
from meanfield_pde.figures.failures import drawing
from meanfield_pde.results.names import FIGURES
from meanfield_pde.results.tables import Row
from meanfield_pde.theory.fits import linear_fit
from meanfield_pde.theory.lifetime_law import fit_law
from meanfield_pde.theory.projection_limit import ProjectionLimit

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_MARKERS = ("o", "s", "^", "D")


@drawing
def draw_lifetimes(
    directory: Path, limit: ProjectionLimit, rows: Sequence[Row], form: str = "png"
) -> Path:
    """Draw figures/lifetime.png, or the same in another format."""
    tokens = [row for row in rows if row["kind"] == "tokens" and row["lifetime"] is not None]
    density = [row for row in rows if row["kind"] == "density" and row["lifetime"] is not None]
    d = limit.attention.dimension
    # Without a mesh there is no density.
    of_density = d <= 3 or not tokens
    panels = of_density + bool(tokens)
    figure = Figure(figsize=(5.6 * panels, 4.4), layout="constrained")
    place = {2: "circle", 3: "sphere"}.get(d, f"sphere, d = {d}")
    figure.suptitle(f"Lifetime of the metastable state on the {place}")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    if of_density:
        _draw_density(axes[0], limit, density)
    if tokens:
        _draw_tokens(axes[-1], limit, tokens)
    return save(figure, directory / FIGURES / f"lifetime.{form}")


def _draw_density(axes: Axes, limit: ProjectionLimit, rows: Sequence[Row]) -> None:
    beta = np.array([row["beta"] for row in rows])
    lifetime = np.array([row["lifetime"] for row in rows])
    draw_rows(axes, beta, rows, "lifetime", "o", _COLOURS[0], "density")
    line = np.linspace(0, 1.05 * beta.max(initial=1.0), 2)
    if len(beta) > 1:
        fit = linear_fit(beta, lifetime)
        label = f"fit, slope {fit.slope:.4f}"
        axes.plot(line, fit(line), "-", color=_COLOURS[0], lw=1, label=label)
    slope = limit.lifetime_per_beta
    axes.plot(line, slope * line, "--", color="k", lw=1, label=f"predicted, slope {slope:.4f}")
    width = np.array([row.get("min_cell_width") or np.nan for row in rows])
    law = fit_law(limit, beta, lifetime, width)
    if law is not None and law.fit is not None:
        curve = np.linspace(beta.min(), beta.max(), 200)
        label = "predicted with the next term, up to a constant"
        axes.plot(curve, law(curve), "-.", color="0.35", lw=1.2, label=label)
    _draw_stages(axes, rows)
    axes.set_xlim(0, line[-1])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("inverse temperature β")
    axes.set_ylabel("lifetime (time t)")
    axes.set_title(", ".join(["density", *_cells_of(rows)]), fontsize="medium")
    axes.legend(fontsize="small")


def _cells_of(rows: Sequence[Row]) -> list[str]:
    """How many cells the densities of some rows had, in words; nothing without rows."""
    counts = sorted({row["count"] for row in rows})
    most = max((row.get("most_cells") or row["count"] for row in rows), default=0)
    if most > max(counts, default=0):
        return [f"up to {most:.0f} cells"]
    return [f"{' or '.join(f'{count:.0f}' for count in counts)} cells"] if counts else []


def _draw_stages(axes: Axes, rows: Sequence[Row]) -> None:
    """The ends of the plateaus after the first, each place with its marker."""
    ends: dict[float, list[tuple[float, float]]] = {}
    for row in rows:
        for stage in json.loads(row.get("stages") or "[]"):
            if stage["expected"] > 0 and stage["end"] is not None:
                ends.setdefault(stage["expected"], []).append((row["beta"], stage["end"]))
    for marker, (expected, points) in zip(_MARKERS[1:], sorted(ends.items()), strict=False):
        label = f"end of the plateau expected at {expected:.2f} of the way"
        axes.plot(*zip(*points, strict=True), marker, color=_COLOURS[1], mfc="none", label=label)


def _draw_tokens(axes: Axes, limit: ProjectionLimit, rows: Sequence[Row]) -> None:
    betas = sorted({row["beta"] for row in rows})
    count = np.array([row["count"] for row in rows], dtype=float)
    lifetime = np.array([row["lifetime"] for row in rows])
    for i, beta in enumerate(betas):
        own = np.array([row["beta"] == beta for row in rows])
        shift = 1.06 ** (i - (len(betas) - 1) / 2)  # side by side, to be distinguished
        style = _MARKERS[i % len(_MARKERS)]
        colour = _COLOURS[i % len(_COLOURS)]
        axes.plot(count[own] * shift, lifetime[own], style, color=colour, ms=4, alpha=0.45)
        each = np.unique(count[own])
        mean = [lifetime[own & (count == one)].mean() for one in each]
        label = f"tokens, β = {beta:g} (large: mean)"
        axes.plot(each * shift, mean, style, color=colour, ms=8, mfc="none", mew=1.6, label=label)
    line = np.array([count.min() / 1.5, count.max() * 1.5])
    slope = 1 / limit.tail_rate
    if len(np.unique(count)) > 1:
        fit = linear_fit(np.log(count), lifetime)
        label = f"fit, slope {fit.slope:.3f} in log N"
        axes.plot(line, fit(np.log(line)), "-", color="0.4", lw=1, label=label)
    through = lifetime.mean() - slope * np.log(count).mean()
    axes.plot(
        line,
        through + slope * np.log(line),
        "--",
        color="k",
        lw=1,
        label=f"predicted slope 1/r = {slope:.3f}",
    )
    axes.set_xscale("log")
    axes.set_xlim(*line)
    counts = np.unique(count)
    if counts[-1] < 100 * counts[0]:  # too few decades for ticks at their powers
        axes.set_xticks(counts, [f"{one:,.0f}" for one in counts])
        axes.minorticks_off()
    axes.set_ylim(0, 1.12 * lifetime.max())
    axes.set_xlabel("number of tokens N")
    axes.set_ylabel("lifetime (time t)")
    axes.set_title("N tokens", fontsize="medium")
    axes.legend(fontsize="small", loc="lower right")
