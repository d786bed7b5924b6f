"""The figure of a transition: the order, and the free energy, against the strength of the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.figures.bars import draw_bars, ends_of
from meanfield_pde.figures.density import save
from meanfield_pde.figures.failures import drawing
from meanfield_pde.results.names import FIGURES
from meanfield_pde.results.tables import Row

_WAYS = {"up": ("^", "#D55E00", "strength rising"), "down": ("v", "#0072B2", "strength falling")}
_LINES = {"stable": "-", "metastable": "-.", "unstable": "--"}


@drawing
def draw_transition(
    directory: Path,
    attention: AttentionLike,
    rows: Sequence[Row],
    branch: Sequence[Row],
    uniform: Row,
    summary: dict[str, Any],
) -> Path:
    """Draw figures/transition.png: filled symbols are stable, light ones metastable.

    The free energy is drawn where there is one.

    Args:
        directory: the folder of the experiment.
        attention: of the case.
        rows: of the states on the ways up and down.
        branch: of the ordered states.
        uniform: of the uniform density, at strength one.
        summary: what was concluded.
    """
    decides = "free energy" in summary["stability_by"]
    figure = Figure(figsize=(10.5 if decides else 6.4, 5.4), layout="constrained")
    place = "circle" if attention.dimension == 2 else "sphere"
    beta = "" if math.isnan(attention.beta) else f", β = {attention.beta:g}"
    figure.suptitle(f"Stationary states on the {place}{beta}")
    axes = figure.subplots(1, 2 if decides else 1, squeeze=False)[0]
    if branch and summary["threshold"]:  # it begins where the uniform density loses its stability
        branch = [_uniform_at(summary["threshold"], uniform), *branch]
    names = ("order", "free_energy")
    for one, name in zip(axes, names, strict=False):
        _draw_branch(one, branch, name)
        _draw_ways(one, rows, name)
        one.set_xlabel("strength of the noise")
    _draw_strengths(axes[0], summary)
    _draw_crossing(axes, names, branch, summary)
    axes[0].set_ylabel("order parameter r = |∫ x dµ|")
    axes[0].set_ylim(bottom=-0.02)
    if decides:
        axes[1].set_ylabel("free energy")
        _draw_uniform(axes[1], uniform)
    entries = [one.get_legend_handles_labels() for one in axes]
    labels = {label: line for pair in entries for line, label in zip(*pair, strict=True)}
    figure.legend(labels.values(), labels, loc="outside lower center", ncols=3 if decides else 2)
    return save(figure, directory / FIGURES / "transition.png")


def _draw_uniform(axes: Axes, uniform: Row) -> None:
    """The free energy of the uniform density, which is linear in the strength."""
    ends = axes.get_xlim()
    height = axes.get_ylim()
    energies = [_uniform_at(strength, uniform)["free_energy"] for strength in ends]
    axes.plot(ends, energies, color="k", lw=0.8, label="uniform density")
    axes.set(xlim=ends, ylim=height)


def _uniform_at(strength: float, uniform: Row) -> Row:
    """The row of the uniform density at another strength."""
    entropy = (uniform["free_energy"] + uniform["energy"]) / uniform["strength"]
    free_energy = strength * entropy - uniform["energy"]
    return uniform | {"strength": strength, "free_energy": free_energy}


def _draw_strengths(axes: Axes, summary: dict[str, Any]) -> None:
    threshold, last = summary["threshold"], summary["ordered_up_to"]
    if threshold:
        label = f"uniform stable from {threshold:.5g}"
        axes.axvline(threshold, color="k", lw=0.8, ls=":", label=label)
    if last and last > threshold * (1 + 1e-6):
        axes.axvline(last, color="k", lw=0.8, ls=(0, (6, 2)), label=f"ordered up to {last:.5g}")


def _draw_crossing(
    panels: Sequence[Axes], names: Sequence[str], branch: Sequence[Row], summary: dict[str, Any]
) -> None:
    """The ordered state whose free energy is that of the uniform density, if it is known."""
    if summary["crossing"] is None:
        return
    label = f"free energies cross at {summary['crossing']:.5g}"
    for axes, name in zip(panels, names, strict=False):
        (value,) = (row[name] for row in branch if row["order"] == summary["order_at_crossing"])
        axes.plot([summary["crossing"]], [value], "D", color="k", ms=5, label=label)


def _draw_branch(axes: Axes, branch: Sequence[Row], name: str) -> None:
    """Lines between the states, of the kind of the one with more order."""
    labelled = set()
    for kind, pairs in groupby(pairwise(branch), key=lambda pair: pair[1]["stability"]):
        states = list(pairs)
        ends = [states[0][0], *(pair[1] for pair in states)]
        label = None if kind in labelled else f"ordered states, {kind}"
        labelled.add(kind)
        x, y = ([row[column] for row in ends] for column in ("strength", name))
        axes.plot(x, y, _LINES[kind], color="0.4", label=label)


def _draw_ways(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """A symbol for each state: filled if it is stable, light if metastable, empty if unstable."""
    for way, (marker, colour, label) in _WAYS.items():
        found = [row for row in rows if row["way"] == way]
        for kind, alpha in (("stable", 1.0), ("metastable", 0.35), ("unstable", 0.0)):
            states = [row for row in found if row["stability"] == kind]
            if states:
                x, y = ([row[column] for row in states] for column in ("strength", name))
                inside = (colour, alpha)
                axes.plot(x, y, marker, color=colour, mfc=inside, label=f"{label}, {kind}")
                draw_bars(axes, x, y, *ends_of(states, name), colour)
