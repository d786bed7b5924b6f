"""The commands, and their options on the command line."""

from __future__ import annotations

from meanfield_pde.case.starter import starter_names
from meanfield_pde.cli import commands
from meanfield_pde.cli.arguments import (
    Command,
    add_allow_long,
    add_figures_folder,
    folder,
    number,
    path,
    vector,
)
from meanfield_pde.cli.audit_command import add_audit
from meanfield_pde.cli.experiment_commands import add_experiments
from meanfield_pde.cli.figure_commands import add_figures
from meanfield_pde.cli.sample_command import add_sample
from meanfield_pde.wasserstein.choices import METHODS


def add_commands(command: Command) -> None:
    """Add all commands to the parser that `command` adds to, in the order of the help."""
    _add_runs(command)
    _add_measures(command)
    _add_particles(command)
    add_audit(command)
    add_experiments(command)
    _add_meshes_and_figures(command)


def _add_runs(command: Command) -> None:
    demo = command("demo", commands.demo, "write a case to begin with into the current folder")
    names = ", ".join(starter_names())
    demo.add_argument("name", nargs="?", default="circle", metavar="NAME", help=names)

    run = command("run", commands.run, "solve a case and write its result folder")
    run.add_argument("case", type=path, metavar="CASE.toml")
    run.add_argument("--output", type=folder, metavar="DIR", help="instead of [output] directory")
    run.add_argument("--until", type=number, metavar="T", help="instead of [time] until")
    run.add_argument(
        "--resume", action="store_true", help="go on from the folder's checkpoint, if any"
    )
    run.add_argument("--overwrite", action="store_true", help="replace the results that are there")
    run.add_argument("--quiet", action="store_true", help="no progress bar, no messages")
    run.add_argument(
        "--no-figures", action="store_true", help="draw none; `plot` does, where and when you like"
    )
    run.add_argument(
        "--dry-run", action="store_true", help="say what it would take, and write nothing"
    )
    add_allow_long(run)
    run.add_argument("--log", type=path, metavar="FILE", help="add messages, with times, to a file")

    add_sample(command)

    limit = command("limit", commands.limit, "spectrum, projection, rates and predicted times")
    limit.add_argument("case", type=path, metavar="CASE.toml")
    limit.add_argument("--json", action="store_true", help="one JSON object")
    limit.add_argument("--output", type=path, metavar="FILE", help="write it there instead")


def _add_measures(command: Command) -> None:
    distance = command("wasserstein", commands.distance, "distance of two measures, certified")
    for name in ("first", "second"):
        distance.add_argument(
            name, type=path, metavar=name.upper(), help="a result folder, tokens, or a measure"
        )
    distance.add_argument("--p", type=int, choices=(1, 2), default=1, help="order, default 1")
    distance.add_argument("--cost", choices=("geodesic", "chordal"), default="geodesic")
    distance.add_argument(
        "--method",
        choices=METHODS,
        default="auto",
        help="lp: never a closed form; scipy: nor the package's own solver",
    )
    distance.add_argument(
        "--time-limit", type=number, metavar="S", help="seconds; then the interval reached"
    )
    distance.add_argument("--json", action="store_true", help="one JSON object")


def _add_particles(command: Command) -> None:
    tokens = command("tokens", commands.tokens, "simulate tokens drawn from the initial density")
    tokens.add_argument("case", type=path, metavar="CASE.toml")
    tokens.add_argument("--count", type=int, required=True, metavar="N", help="number of tokens")
    tokens.add_argument("--seed", type=int, default=0, metavar="S", help="of the draw, default 0")
    tokens.add_argument("--until", type=number, metavar="T", help="instead of [time] until")
    tokens.add_argument(
        "--step", type=number, metavar="H", help="Euler steps of H instead of Runge-Kutta"
    )
    tokens.add_argument(
        "--output", type=path, metavar="FILE", help=".npz; default tokens.npz in the result folder"
    )

    compare = command("compare", commands.compare, "compare a particle code with the density")
    compare.add_argument("result", type=path, metavar="RESULT_DIR")
    compare.add_argument("tokens", type=path, metavar="TOKENS", help=".npz or .csv")
    compare.add_argument(
        "--layer-step", type=number, metavar="H", help="times in the file count layers of length H"
    )
    compare.add_argument(
        "--level", type=number, default=0.01, metavar="P", help="tokens deviate below it, 0.01"
    )
    add_figures_folder(compare)
    compare.add_argument("--json", action="store_true", help="one JSON object")


def _add_meshes_and_figures(command: Command) -> None:
    mesh = command("mesh", commands.mesh, "write a mesh of the circle or the sphere as XDMF")
    mesh.add_argument("kind", choices=("circle", "sphere"))
    mesh.add_argument("--cells", type=int, required=True, metavar="N", help="at least this many")
    mesh.add_argument(
        "--grade-to", type=vector, metavar="X,Y[,Z]", help="axis toward which cells get smaller"
    )
    mesh.add_argument("--grade", type=number, metavar="G", help="how much: 1 is not at all")
    mesh.add_argument("--output", type=path, required=True, metavar="FILE.xdmf")

    add_figures(command)
    command("info", commands.info, "versions, cores and threads")
