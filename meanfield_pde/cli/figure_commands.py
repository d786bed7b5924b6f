"""The command that draws figures, and its options on the command line."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from mpi4py import MPI

from meanfield_pde.cli.arguments import (
    Command,
    add_figures_folder,
    figures_elsewhere,
    number,
    path,
)
from meanfield_pde.support.ranks import on_root

LOG = logging.getLogger("meanfield_pde")

FORMATS = ("png", "pdf", "svg")


def add_figures(command: Command) -> None:
    """Add the command to the parser that `command` adds to."""
    draw = command("plot", plot, "draw the figures of a run, a sweep or lifetimes again")
    draw.add_argument("result", type=path, metavar="DIR")
    draw.add_argument("--format", choices=FORMATS, default="png", help="of the files, default png")
    draw.add_argument(
        "--times", type=number, nargs="+", default=(), metavar="T", help="of the densities drawn"
    )
    add_figures_folder(draw)
    draw.add_argument("--animate", action="store_true", help="figures/density.gif, too")
    draw.add_argument(
        "--interactive", action="store_true", help="figures/density.html, too: the sphere to turn"
    )


def plot(options: argparse.Namespace) -> None:
    """Draw the figures of a folder."""
    comm = MPI.COMM_WORLD
    folder = options.output or options.result

    def draw() -> list[Path]:
        from meanfield_pde.experiments.redraw import draw_figures  # see `_lazy`
        from meanfield_pde.figures.animation import animate
        from meanfield_pde.figures.interactive import draw_interactive
        from meanfield_pde.results.folder import read_result

        kinds = ((options.animate, animate), (options.interactive, draw_interactive))
        # What may be refused comes first.
        moving = [one(read_result(options.result), folder) for wanted, one in kinds if wanted]
        return draw_figures(options.result, options.format, options.times, output=folder) + moving

    with figures_elsewhere():
        for drawn in on_root(comm, draw):
            LOG.info("%s", drawn)
