"""The figure of a comparison: the cloud over the density, and its distance against time."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from meanfield_pde.figures import mollweide
from meanfield_pde.figures.density import angles, save, title
from meanfield_pde.figures.failures import drawing
from meanfield_pde.results.folder import Result
from meanfield_pde.results.names import FIGURES
from meanfield_pde.verification.report import TokenComparison

TOKENS = "tokens.png"
SHOWN = 3  # times at which the cloud is drawn: one row of panels
BINS = 48  # of the histogram on the circle: 7.5 degrees each (chosen, not tuned)
DECADES = 4  # of the density on the sphere (chosen, not tuned)
_TOKEN, _DENSITY, _BAND = "#D55E00", "#0072B2", "0.85"  # of Okabe and Ito, but for the grey


@drawing
def draw_comparison(result: Result, comparison: TokenComparison, directory: Path) -> Path:
    """Draw figures/tokens.png in a folder and return its path."""
    times = comparison.times
    shown = np.unique(np.linspace(0, len(times) - 1, min(SHOWN, len(times))).round().astype(int))
    figure = Figure(figsize=(4 * max(2, len(shown)), 6.6), layout="constrained")
    count = len(comparison.cloud.tokens[0])
    heading = title(result, f"{count} tokens and their density")
    text = comparison.verdict.replace("p = ", "p\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    verdict = textwrap.fill(text, width=34 * max(2, len(shown)))
    figure.suptitle(f"{heading}\n{verdict}", fontsize="medium")
    grid = figure.add_gridspec(2, len(shown), height_ratios=(1, 1.1))
    draw = _draw_circle if result.dimension == 2 else _draw_sphere
    for column, k in enumerate(shown):
        panel = figure.add_subplot(grid[0, column])
        ours = int(np.abs(result.times - times[k]).argmin())
        theirs = int(np.abs(comparison.cloud.times - times[k]).argmin())
        draw(panel, result, ours, comparison, theirs)
        panel.set_title(f"t = {times[k]:g}", fontsize="medium")
    _draw_distances(figure.add_subplot(grid[1, :]), comparison)
    return save(figure, directory / FIGURES / TOKENS)


def _draw_circle(
    axes: Axes, result: Result, ours: int, comparison: TokenComparison, theirs: int
) -> None:
    angle, order = angles(result, ours)
    axes.semilogy(angle, result.density_at(ours)[order], color=_DENSITY, label="density")
    x = comparison.cloud.tokens[theirs]
    position = np.arctan2(x[:, 1], x[:, 0])
    weights = comparison.cloud.masses
    edges = np.linspace(-math.pi, math.pi, BINS + 1)
    height, _ = np.histogram(position, edges, weights=weights, density=True)
    axes.stairs(height, np.degrees(edges), color=_TOKEN, label="tokens")
    lightest = 1 / len(x) / (2 * math.pi / BINS)
    axes.set_ylim(lightest / 10, max(height.max(), result.density_at(ours).max()) * 2)
    axes.set_xlim(-180, 180)
    axes.set_xticks(range(-180, 181, 90))
    axes.set_xlabel("angle (degrees)")
    axes.set_ylabel("mass per radian")
    axes.legend(fontsize="small")


def _draw_sphere(
    axes: Axes, result: Result, ours: int, comparison: TokenComparison, theirs: int
) -> None:
    density = result.density_at(ours)
    largest = float(density.max())
    norm = LogNorm(largest * 10.0**-DECADES, largest * (1 + 1e-12))
    picture = np.maximum(mollweide.paint(result.cells_at(ours), density), largest * 10.0**-DECADES)
    axes.imshow(picture, origin="lower", extent=mollweide.EXTENT, norm=norm, cmap="cividis")
    mollweide.draw_outline(axes)
    x, y = mollweide.project(comparison.cloud.tokens[theirs])
    axes.plot(x, y, ".", color="w", ms=3.5, mew=0)
    axes.plot(x, y, ".", color=_TOKEN, ms=2.5, mew=0)
    axes.set_axis_off()


def _draw_distances(axes: Axes, comparison: TokenComparison) -> None:
    times, band = comparison.times, comparison.band
    axes.fill_between(
        band.times,
        band.quantile(0.025),
        band.quantile(0.975),
        color=_BAND,
        lw=0,
        label="95% of samples of as many tokens, $W_1$",
    )
    axes.plot(band.times, band.expected, color="0.5", lw=1, label="their mean")
    for p, results, style in ((1, comparison.w1, "o-"), (2, comparison.w2, "s:")):
        values = [max(one.value, 1e-16) for one in results]
        axes.semilogy(times, values, style, color=_TOKEN, ms=4, label=f"tokens to density, $W_{p}$")
    found = comparison.diagnosis
    if found is not None:
        far = np.maximum(found.distances[1:], 1e-16)
        label = "tokens to the reference code, token by token"
        axes.semilogy(found.times[1:], far, "^-", color="k", ms=4, lw=0.9, label=label)
    if comparison.since is not None and not comparison.agrees:
        label = f"deviates, first at t = {comparison.since:g}"
        axes.axvline(comparison.since, color="k", ls="--", lw=0.9, label=label)
    axes.set_xlabel("time t")
    axes.set_ylabel("distance (radians)")
    axes.legend(fontsize="small")
