"""The figure of a transition: the order, and the free energy, against the strength of the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.figures.density import save
from meanfield_pde.results.names import FIGURES
from meanfield_pde.results.tables import Row
from meanfield_pde.solver.stationary import StationaryState

_WAYS = {"up": ("^", "#D55E00"), "down": ("v", "#0072B2")}


def draw_transition(
    directory: Path,
    attention: AttentionLike,
    rows: Sequence[Row],
    branch: Sequence[StationaryState],
    summary: dict[str, Any],
) -> Path:
    """Draw figures/transition.png."""
    known = not any(math.isnan(row["free_energy"]) for row in rows)
    figure = Figure(figsize=(10.5 if known else 5.6, 4.4), layout="constrained")
    place = "circle" if attention.dimension == 2 else "sphere"
    beta = "" if math.isnan(attention.beta) else f", β = {attention.beta:g}"
    figure.suptitle(f"Stationary states on the {place}{beta}")
    axes = figure.subplots(1, 2 if known else 1, squeeze=False)[0]
    _draw_order(axes[0], rows, branch, summary)
    if known:
        _draw_ways(axes[1], rows, "free_energy")
        axes[1].set_ylabel("free energy")
        axes[1].legend()
    for one in axes:
        one.set_xlabel("strength of the noise")
    return save(figure, directory / FIGURES / "transition.png")


def _draw_order(
    axes: Axes, rows: Sequence[Row], branch: Sequence[StationaryState], summary: dict[str, Any]
) -> None:
    threshold = summary["uniform_stable_from"]
    if branch:
        strength = np.array([threshold, *(one.strength for one in branch)])
        order = np.array([0.0, *(one.order for one in branch)])
        top = int(strength.argmax())
        axes.plot(strength[top:], order[top:], "-", color="0.4", label="ordered states")
        if top:
            label = "ordered states, not stable"
            axes.plot(strength[: top + 1], order[: top + 1], "--", color="0.4", label=label)
    _draw_ways(axes, rows, "order")
    if threshold:
        label = f"uniform stable from {threshold:.5g}"
        axes.axvline(threshold, color="k", lw=0.8, ls=":", label=label)
    last = summary.get("ordered_up_to")
    if last and last > threshold * (1 + 1e-6):
        axes.axvline(last, color="k", lw=0.8, ls="-.", label=f"ordered up to {last:.5g}")
    axes.set_ylabel("order parameter r = |∫ x dµ|")
    axes.set_ylim(bottom=-0.02)
    axes.legend()


def _draw_ways(axes: Axes, rows: Sequence[Row], name: str) -> None:
    for way, (marker, colour) in _WAYS.items():
        found = [row for row in rows if row["way"] == way]
        strength = [row["strength"] for row in found]
        values = [row[name] for row in found]
        label = "strength rising" if way == "up" else "strength falling"
        axes.plot(strength, values, marker, color=colour, mfc="none", label=label)
