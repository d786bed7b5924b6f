"""What each command does, in a few lines of the Python API.

Each imports what it works with itself, so that no command waits for the others': see `_lazy`.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

from mpi4py import MPI

import numpy as np

from meanfield_pde.case.starter import write_starter
from meanfield_pde.cli.arguments import check_no_input, figures_elsewhere
from meanfield_pde.errors import InputError
from meanfield_pde.figures.failures import drawn_if_possible
from meanfield_pde.results.names import FIGURES
from meanfield_pde.support.checks import check_no_device
from meanfield_pde.support.files import check_output, check_writable, make_folder, replace_text
from meanfield_pde.support.memory import check_fits
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.signals import signals_noted
from meanfield_pde.support.threads import available_cores, set_threads

LOG = logging.getLogger("meanfield_pde")

# Exit code of `compare` if the tokens deviate, where it keeps its samples, and its numbers.
DEVIATES = 3
COMPARISON = "comparison.json"
BAND = "tokens-band.npz"


def run(options: argparse.Namespace) -> None:
    """Solve a case and write its result folder."""
    from meanfield_pde.case.file import read_case

    comm = MPI.COMM_WORLD
    case = on_root(
        comm, lambda: read_case(options.case, until=options.until, output=options.output)
    )
    if options.resume and options.overwrite:
        raise InputError("--resume and --overwrite exclude each other; give one")
    if options.resume and options.dry_run:
        raise InputError("--dry-run says what a whole run takes, so --resume has no meaning there")
    from meanfield_pde.experiments import run as runs  # now that nothing is wrong with the case

    if options.dry_run:
        found = runs.forecast_run(
            case, comm=comm, overwrite=options.overwrite, allow_long=options.allow_long
        )
        if found is None:
            _print(
                f"{case.output.directory}: holds the finished results of this case; they would be "
                "left as they are, and nothing computed (--overwrite: what a new run takes)"
            )
        else:
            _print("\n".join(found.lines(case, comm.size)))
        return
    with signals_noted():
        solution = runs.run_case(
            case,
            comm=comm,
            overwrite=options.overwrite,
            resume=options.resume,
            quiet=options.quiet,
            allow_long=options.allow_long,
            figures=not options.no_figures,
        )
    directory = case.output.directory
    LOG.info(
        "done: t = %g after %d steps in %.1f s; results in %s%s",
        solution.times[-1],
        solution.steps,
        solution.wall_time,
        directory,
        "" if options.no_figures else f", figures in {directory / FIGURES}",
    )


def demo(options: argparse.Namespace) -> None:
    """Write a case to begin with into the current folder."""
    path = on_root(MPI.COMM_WORLD, write_starter, options.name, Path())
    LOG.info("%s: run it with meanfield-pde run %s", path, path)


def limit(options: argparse.Namespace) -> None:
    """Print spectrum, projection, rates and predicted times of a case."""
    from meanfield_pde.attention.heads import is_one_head
    from meanfield_pde.case.file import parse, read_case
    from meanfield_pde.mesh.surface import circle_surface, sphere_surface
    from meanfield_pde.theory.fixed_points import fixed_points
    from meanfield_pde.theory.projection_limit import ProjectionLimit
    from meanfield_pde.theory.push_forward import limit_of

    def describe() -> str:
        case = read_case(options.case, unused=("solver", "compare"), meshless=True)
        layers = case.attention.layers
        left: list[str] = []
        if case.noise.strength:
            compare = parse(options.case.read_text(encoding="utf-8-sig")).get("compare", {})
            left = [f"noise.strength = {case.noise.strength:g}"]
            left += [f"compare.{key} = true" for key, value in compare.items() if value is True]
            verb = "is" if len(left) == 1 else "are"
            what = f"{' and '.join(left)} {verb} left aside"
            LOG.info("%s: what follows is the flow without noise", what)
        if not is_one_head(layers[0]) and len(layers) == 1:
            points = fixed_points(layers[0])
            found, text = points.describe(), points.report()
        else:
            limit = ProjectionLimit(case.attention)
            measure = None
            if limit.dimension == 1 and case.dimension <= 3:  # cells beyond are not known
                surface = circle_surface(64) if case.dimension == 2 else sphere_surface(320)
                try:
                    measure = limit_of(limit, case.initial, surface.points[surface.cells])
                except InputError as error:
                    raise InputError(f"{options.case}: {error}") from None
            found, text = limit.describe(measure), limit.report(measure)
        return json.dumps(found | {"left_aside": left}, indent=2) if options.json else text

    def write(text: str) -> None:
        check_output(options.output)
        replace_text(options.output, text + "\n")

    text = on_root(MPI.COMM_WORLD, describe)
    if options.output is None:
        _print(text)
        return
    on_root(MPI.COMM_WORLD, write, text)
    LOG.info("written to %s", options.output)


def distance(options: argparse.Namespace) -> None:
    """Print the Wasserstein distance of two measures, with its certified interval."""
    from meanfield_pde.results.measures import read_measure
    from meanfield_pde.wasserstein.distance import wasserstein

    def compute() -> str:
        first, second = read_measure(options.first), read_measure(options.second)
        if first.dimension != second.dimension:
            raise InputError(
                f"{options.first} is of dimension {first.dimension}, {options.second} of "
                f"{second.dimension}; a distance needs two measures on the same sphere"
            )
        found = wasserstein(
            first,
            second,
            options.p,
            options.cost,
            method=options.method,
            time_limit=options.time_limit,
        )
        if options.json:
            numbers = {f"w{options.p}": found.value, "cost": options.cost}
            names = ("low", "high", "discretisation", "resolved", "status", "method")
            numbers |= {name: getattr(found, name) for name in names}
            return json.dumps(numbers | {"densities": found.continuous}, indent=2)
        certified = "between atoms     " if found.discretisation > 0 else "certified interval"
        lines = [
            f"W{options.p} = {found.value:.12g}",
            f"{certified}  [{found.low:.12g}, {found.high:.12g}]",
            f"status              {found.status} ({found.method})",
        ]
        if found.discretisation > 0:
            low, high = found.continuous
            resolved = "" if found.resolved else "; not resolved by the cells, prefer W1"
            lines.append(f"between densities   [{low:.6g}, {high:.6g}]{resolved}")
        return "\n".join(lines)

    _print(on_root(MPI.COMM_WORLD, compute))


def mesh(options: argparse.Namespace) -> None:
    """Write a mesh."""
    from meanfield_pde.mesh.files import write_surface
    from meanfield_pde.mesh.surface import circle_surface, sphere_surface

    if (options.grade is None) != (options.grade_to is None):
        raise InputError("--grade and --grade-to go together: how much, and toward which axis")
    make = circle_surface if options.kind == "circle" else sphere_surface
    grade = 1.0 if options.grade is None else options.grade
    axis = None if options.grade_to is None else np.array(options.grade_to)

    def write() -> int:
        check_no_device(options.output.with_suffix(".h5"))  # which goes with it
        try:
            surface = make(options.cells, grade=grade, axis=axis)
        except InputError as error:
            raise InputError(f"--cells, --grade-to, --grade: {error}") from None
        write_surface(options.output, surface)
        return len(surface.cells)

    LOG.info("%s: %d cells", options.output, on_root(MPI.COMM_WORLD, write))


def tokens(options: argparse.Namespace) -> None:
    """Simulate tokens drawn from the initial density of a case, and write them."""
    from meanfield_pde.case.file import read_case
    from meanfield_pde.initial.sampling import sample_tokens
    from meanfield_pde.tokens.cloud import write_tokens
    from meanfield_pde.tokens.code import simulate_tokens

    comm = MPI.COMM_WORLD
    case = on_root(comm, lambda: read_case(options.case, until=options.until, meshless=True))
    path = options.output or case.output.directory / "tokens.npz"
    if path.suffix.lower() != ".npz":  # the weights are written, too, which a .csv cannot hold
        raise InputError(f"--output must end in .npz, got {path}")

    def check() -> None:
        check_no_input(path, options, "the file of the tokens")
        make_folder(path.parent)
        check_output(path)

    on_root(comm, check)  # the default, too, before what may take hours
    # The positions at all times, and those that one integration works with.
    numbers = options.count * case.dimension * (len(case.time.save_times) + 40)
    check_fits(8.0 * numbers, f"--count {options.count}", "take fewer tokens")
    start = on_root(
        comm, lambda: sample_tokens(case.initial, options.count, options.seed, case.dimension)
    )
    cloud = simulate_tokens(
        start,
        case.attention,
        case.time.until,
        step=options.step,
        noise=case.noise.strength,
        seed=options.seed,
        save_at=case.time.save_times,
        comm=comm,
    )

    on_root(comm, write_tokens, path, cloud)
    LOG.info("%s: %d tokens at %d times", path, options.count, len(cloud.times))


def compare(options: argparse.Namespace) -> None:
    """Compare the tokens of a particle code with the density of a result."""
    from meanfield_pde.results.folder import read_result
    from meanfield_pde.tokens.cloud import read_tokens
    from meanfield_pde.verification import report as token_report
    from meanfield_pde.verification.comparison import compare_tokens

    comm = MPI.COMM_WORLD
    result = on_root(comm, lambda: read_result(options.result))
    cloud = on_root(comm, lambda: read_tokens(options.tokens))
    folder = options.output or options.result
    with figures_elsewhere():  # said before the tokens are verified, which takes a while
        on_root(comm, check_writable, folder / FIGURES)
    try:
        found = compare_tokens(
            result,
            cloud,
            layer_step=options.layer_step,
            level=options.level,
            band_file=folder / BAND,
            progress=True,
            comm=comm,
        )
    except InputError as error:
        raise InputError(f"{options.tokens}: {error}") from None

    def draw() -> Path | None:
        from meanfield_pde.figures.tokens import draw_comparison  # matplotlib

        return drawn_if_possible(draw_comparison, result, found, folder)

    figure = on_root(comm, draw)
    json_text = json.dumps(token_report.summary(found), indent=2)
    if comm.rank == 0:
        print(json_text if options.json else token_report.table(found), flush=True)
    if figure is not None:
        LOG.info("figure in %s", figure)
    if options.output is not None:
        on_root(comm, replace_text, folder / COMPARISON, json_text + "\n")
        LOG.info("numbers in %s", folder / COMPARISON)
    if not found.agrees:
        raise SystemExit(DEVIATES)


def info(options: argparse.Namespace) -> None:
    """Print versions, cores and threads."""
    from meanfield_pde.support.versions import versions

    comm = MPI.COMM_WORLD
    threads = set_threads(comm)
    if comm.rank == 0:
        for name, number in versions().items():
            print(f"{name:14} {number}")
        print(f"{'cores':14} {available_cores()}")
        print(f"{'ranks':14} {comm.size}")
        print(f"{'threads/rank':14} {threads}")
        print(f"{'MPI':14} {MPI.Get_library_version().splitlines()[0]}")


def _print(text: str) -> None:
    if MPI.COMM_WORLD.rank == 0:
        print(text)
