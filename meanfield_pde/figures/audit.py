"""The figure of an audit: gap, temperature and lifetime of each head, and measured layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from meanfield_pde.audit.heads import HeadAudit, concentration_line
from meanfield_pde.audit.layers import TokenAudit
from meanfield_pde.figures.density import save
from meanfield_pde.figures.failures import drawing
from meanfield_pde.results.names import FIGURES

AUDIT = "audit.png"
_BLUE, _ORANGE, _GREEN = "#0072B2", "#D55E00", "#009E73"
# Smaller numbers are drawn as this many decades below the largest (chosen, not tuned).
_DECADES = 4


@drawing
def draw_audit(
    directory: Path, heads: Sequence[HeadAudit], title: str, tokens: TokenAudit | None = None
) -> Path:
    """Draw figures/audit.png."""
    rows = 1 if tokens is None else 2
    figure = Figure(figsize=(15, 4.2 * rows), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(rows, 4, squeeze=False)
    _draw_map(grid[0, 0], heads, lambda head: head.gap if head.limit else None, "gap of A")
    _draw_map(grid[0, 1], heads, lambda head: head.effective_beta, "β |Bᵀe|")
    _draw_map(grid[0, 2], heads, lambda head: head.lifetime, "lifetime of the density (layers)")
    _draw_plane(grid[0, 3], heads)
    if tokens is not None:
        _draw_tokens(list(grid[1]), tokens)
    return save(figure, directory / FIGURES / AUDIT)


def _draw_map(
    axes: Axes,
    heads: Sequence[HeadAudit],
    quantity: Callable[[HeadAudit], float | None],
    label: str,
) -> None:
    shape = max(head.layer for head in heads) + 1, max(head.head for head in heads) + 1
    picture = np.full(shape, np.nan)
    for head in heads:
        value = quantity(head)
        picture[head.layer, head.head] = math.nan if value is None else value
    finite = picture[np.isfinite(picture) & (picture > 0)]
    top = float(finite.max(initial=1e-300)) if len(finite) else 1.0
    low = max(float(finite.min(initial=top)), top * 10.0**-_DECADES)
    shown = np.where(np.isnan(picture), np.nan, np.clip(picture, low, top))
    norm = LogNorm(low, top if top > low else low * 10)
    # Heads without a limit: hatched, since a grey of the map's own means a number.
    axes.patch.set(facecolor="w", edgecolor="0.6", hatch="////")
    image = axes.imshow(shown, origin="lower", aspect="auto", norm=norm, cmap="cividis")
    axes.figure.colorbar(image, ax=axes)
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    for axis, count in ((axes.xaxis, shape[1]), (axes.yaxis, shape[0])):
        axis.set_ticks(range(0, count, 1 + (count - 1) // 8))
    axes.set_title(f"{label}; hatched: no limit", fontsize="medium")


def _draw_plane(axes: Axes, heads: Sequence[HeadAudit]) -> None:
    known = [
        (head.effective_beta, head.rate, head.layer)
        for head in heads
        if head.effective_beta and head.rate and math.isfinite(head.effective_beta * head.rate)
    ]
    if known:
        beta, rate, layer = np.array(known).T
        points = axes.scatter(beta, rate, c=layer, cmap="viridis", s=22, edgecolors="0.3", lw=0.5)
        axes.figure.colorbar(points, ax=axes, label="layer")
        line = np.geomspace(0.5 * beta.min(), 2 * beta.max(), 100)
        bound = [concentration_line(one) for one in line]
        axes.plot(line, bound, "k--", lw=1, label="above: within a layer")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.legend(fontsize="small")
    axes.set_xlabel("effective inverse temperature β |Bᵀe|")
    axes.set_ylabel("gap / |Bᵀe| = c (per layer)")
    axes.set_title("temperature and gap of each head", fontsize="medium")


def _draw_tokens(panels: list[Axes], tokens: TokenAudit) -> None:
    layers = tokens.layers
    number = np.array([one.layer for one in layers])
    distance = np.array([np.nan if one.distance is None else one.distance for one in layers])
    change = np.array([np.nan if one.change is None else one.change[0] for one in layers])
    panels[0].plot(number, distance, "o-", color=_BLUE, ms=4)
    panels[0].set_ylabel("mean distance (radians)")
    panels[0].set_title("distance to the nearest predicted subspace", fontsize="medium")
    panels[1].semilogy(number, np.maximum(change, 1e-12), "o-", color=_BLUE, ms=4)
    panels[1].axhline(tokens.tolerance, color="k", ls="--", lw=0.9, label="tolerance")
    panels[1].set_ylabel("$W_1$ (radians)")
    panels[1].set_title("distance to the next cloud", fontsize="medium")
    panels[2].plot(number, [one.effective_rank for one in layers], "o-", color=_BLUE, ms=4)
    panels[2].set_ylabel("effective rank", color=_BLUE)
    cosine = panels[2].twinx()
    cosine.plot(number, [one.mean_cosine for one in layers], "s-", color=_ORANGE, ms=4)
    cosine.set_ylabel("mean cosine", color=_ORANGE)
    panels[2].set_title("spread", fontsize="medium")
    share = np.array([np.nan if one.unexplained is None else one.unexplained for one in layers])
    panels[3].plot(number, share, "o-", color=_BLUE, ms=4, label="unexplained by the heads")
    for name, colour, marker in (("flagged", _ORANGE, "o"), ("drifted", _GREEN, "s")):
        marked = np.array([getattr(one, name) for one in layers])
        if marked.any():
            at = np.nan_to_num(share[marked])
            label = "deviates" if name == "flagged" else "drift from the baseline"
            panels[3].plot(number[marked], at, marker, mfc="none", ms=10, color=colour, label=label)
    panels[3].set_ylim(0, 1.1 * max(float(np.nanmax(share)), 0.1))
    panels[3].set_ylabel("share of the step")
    panels[3].legend(fontsize="small")
    panels[3].set_title("steps", fontsize="medium")
    for axes in panels:
        axes.set_xlabel("layer")
