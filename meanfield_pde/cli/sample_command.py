"""The command that has a run at points written to a file, and its options on the command line."""

from __future__ import annotations

import argparse
import logging
import re
from pathlib import Path

from mpi4py import MPI

from meanfield_pde.cli.arguments import Command, number, path
from meanfield_pde.errors import InputError
from meanfield_pde.support.files import check_output
from meanfield_pde.support.ranks import on_root

LOG = logging.getLogger("meanfield_pde")


def add_sample(command: Command) -> None:
    """Add the command to the parser that `command` adds to."""
    taken = command("sample", sample, "the density, or more, of a run at points, as a file")
    taken.add_argument("result", type=path, metavar="RESULT_DIR")
    taken.add_argument(
        "--times", type=number, nargs="+", metavar="T", help="saved times; default the last"
    )
    taken.add_argument(
        "--grid",
        type=grid,
        default="1deg",
        metavar="1deg|FILE.npz",
        help="boxes of as many degrees, or an array `points`; default 1deg",
    )
    taken.add_argument(
        "--values",
        nargs="+",
        default=("density",),
        metavar="NAME",
        help="density (the default, with its logarithm), zero-temperature, velocity, limit",
    )
    taken.add_argument(
        "--output", type=path, required=True, metavar="FILE", help=".nc, .npz or .csv"
    )


def grid(text: str) -> str | Path:
    """A number of degrees as it is, or a path."""
    return text if re.fullmatch(r"\d+(\.\d+)?deg", text) else path(text)


def sample(options: argparse.Namespace) -> None:
    """Write a sample of a run."""
    from meanfield_pde.results.folder import read_result
    from meanfield_pde.results.labelled import check_suffix
    from meanfield_pde.results.names import ALL
    from meanfield_pde.results.sample import sample as take

    def write() -> None:
        output = check_suffix(options.output)
        check_output(output)
        if (
            output.name in ALL
            and options.result.is_dir()
            and output.parent.samefile(options.result)
        ):
            raise InputError(f"{output}: is a file of the result itself; name another")
        result = read_result(options.result)
        times = result.times[-1:] if options.times is None else options.times
        found = take(result, options.grid, times=list(times), values=options.values)
        found.write(output)
        shown = ", ".join(f"{time:g}" for time in found.coordinates["time"].values)
        LOG.info("%s: %s at t = %s", output, ", ".join(found.variables), shown)

    on_root(MPI.COMM_WORLD, write)
