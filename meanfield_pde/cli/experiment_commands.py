"""The commands of the experiments, and their options on the command line.

Each imports what it works with itself: see `_lazy`.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from meanfield_pde.cli.arguments import (
    Command,
    add_allow_long,
    folder,
    number,
    path,
    variation,
)
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.support.checks import whole
from meanfield_pde.support.plain import json_text
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.signals import signals_noted

if TYPE_CHECKING:
    from meanfield_pde.case.case import Case

LOG = logging.getLogger("meanfield_pde")


def add_experiments(command: Command) -> None:
    """Add the commands to the parser that `command` adds to."""
    refining = command("converge", converge, "an interval for each number, from finer meshes")
    refining.add_argument("case", type=path, metavar="CASE.toml")
    refining.add_argument(
        "--levels", type=int, default=3, metavar="N", help="meshes, 3 or more, default 3"
    )
    _add_output(refining, "converge")

    timing = command("lifetime", lifetime, "metastable lifetimes, of the density and of tokens")
    timing.add_argument("case", type=path, metavar="CASE.toml")
    _add_beta(timing, "inverse temperatures, instead of the case's own", required=True)
    _add_output(timing, "lifetime")
    timing.add_argument(
        "--tokens", type=int, nargs="+", default=(), metavar="N", help="numbers of tokens"
    )
    timing.add_argument(
        "--seeds", type=int, default=4, metavar="K", help="samples of tokens for each, default 4"
    )
    _add_check(timing)
    timing.add_argument("--until", type=number, metavar="T", help="when to give up a measurement")

    changing = command("transition", transition, "stationary states against the strength of noise")
    changing.add_argument("case", type=path, metavar="CASE.toml")
    changing.add_argument(
        "--strength", type=number, nargs="+", required=True, metavar="S", help="of the noise"
    )
    _add_check(changing)
    _add_output(changing, "transition")

    sweeping = command(
        "sweep", sweep, "a case over ranges of its keys, or the theorem over a range of beta"
    )
    sweeping.add_argument("case", type=path, metavar="CASE.toml")
    over = sweeping.add_mutually_exclusive_group(required=True)
    _add_beta(over, "the theorem, measured at these inverse temperatures", required=False)
    over.add_argument(
        "--vary",
        type=variation,
        action="append",
        metavar="KEY=VALUES",
        help="a table of what runs conclude at every combination: attention.beta=1:10:10 (start, "
        "stop, count), attention.beta=1:1000:4:log, noise.strength=0.1,0.2,0.4; once for each key",
    )
    sweeping.add_argument(
        "--show", metavar="NAME", help="with --vary: the column drawn, default end.mean_norm"
    )
    _add_output(sweeping, "sweep, with --vary points,")
    _add_check(sweeping)
    sweeping.add_argument(
        "--at-once",
        type=int,
        metavar="K",
        help="runs that share the ranks, default 1; with --vary as many as there are ranks",
    )


def converge(options: argparse.Namespace) -> None:
    """Run a case on finer and finer meshes, and print an interval for each number."""
    from meanfield_pde.experiments.converge import TABLE, intervals_table
    from meanfield_pde.experiments.converge import converge as run_levels

    case, directory = _case_and_folder(options, "converge")
    levels = whole(options.levels, "--levels", 3)
    with signals_noted():
        summary = run_levels(
            case,
            levels=levels,
            directory=directory,
            quiet=options.quiet,
            allow_long=options.allow_long,
            comm=MPI.COMM_WORLD,
        )
    _print_json(options, summary)
    if not options.json and MPI.COMM_WORLD.rank == 0:
        print(intervals_table(summary["numbers"]), flush=True)
    if missing := summary["not_reached"]:
        LOG.info("%s: reached on none of these meshes", " and ".join(missing))
    LOG.info("%s, summary.json and figures/converge.png in %s", TABLE, directory)


def sweep(options: argparse.Namespace) -> None:
    """Run a case over a range of beta, and analyse the distances to the limit, or over any keys."""
    from meanfield_pde.experiments import vary
    from meanfield_pde.experiments.folder import check_betas
    from meanfield_pde.experiments.sweep import TABLE, run_sweep

    comm = MPI.COMM_WORLD
    case, directory = _case_and_folder(options, "points" if options.vary else "sweep")
    betas = check_betas(options.beta, fewest=2, name="--beta") if options.beta else None
    varied = dict(options.vary) if options.vary else None
    if varied is not None and len(varied) < len(options.vary):
        raise InputError("--vary: each key once, with all its values")
    with signals_noted():
        summary = run_sweep(
            case,
            betas,
            directory=directory,
            vary=varied,
            show=options.show,
            at_once=None if options.at_once is None else whole(options.at_once, "--at-once", 1),
            check=options.check,
            quiet=options.quiet,
            allow_long=options.allow_long,
            comm=comm,
        )
    _print_json(options, summary)
    for missing in summary.get("missing", []):
        values = ", ".join(f"{key} = {missing[key]}" for key in varied or {})
        LOG.warning("%s failed: %s", values, missing["reason"])
    LOG.info("%s, summary.json and figures in %s", vary.TABLE if varied else TABLE, directory)


def transition(options: argparse.Namespace) -> None:
    """Follow the stationary states of a case through strengths of noise."""
    from meanfield_pde.experiments.folder import check_betas
    from meanfield_pde.experiments.transition import run_transition
    from meanfield_pde.theory.richardson import in_words

    comm = MPI.COMM_WORLD
    case, directory = _case_and_folder(options, "transition")
    strengths = check_betas(options.strength, fewest=2, name="--strength")
    summary = run_transition(
        case,
        strengths,
        directory=directory,
        check=options.check,
        allow_long=options.allow_long,
        comm=comm,
    )
    _print_json(options, summary)
    if summary["threshold"] is not None:
        LOG.info("the uniform density is stable from %.6g on", summary["threshold"])
    if summary["transition"] is not None:
        how = "jumps" if summary["transition"] == "jumps" else "is continuous"
        LOG.info("the transition %s", how)
    if summary["ordered_up_to"] is not None:
        LOG.info("ordered states exist up to %.6g", summary["ordered_up_to"])
    if summary["crossing"] is not None:
        LOG.info(
            "free energies cross at %.7g: below it the ordered state, of order %.4f, has the lower",
            summary["crossing"],
            summary["order_at_crossing"],
        )
    for name, one in summary.get("numbers", {}).items():
        LOG.info("%s: %s", name, in_words(**one))
    for name, reason in summary["reasons"].items():
        LOG.info("%s: %s", name, reason)
    if not summary["states"]:
        raise SolverError(f"{directory}: no state was found; {summary['missing'][0]['reason']}")
    LOG.info("transition.csv, summary.json and figures/transition.png in %s", directory)


def lifetime(options: argparse.Namespace) -> None:
    """Measure the lifetimes of a case."""
    from meanfield_pde.experiments.folder import check_betas, check_counts
    from meanfield_pde.experiments.lifetimes import TABLE, measure_lifetimes
    from meanfield_pde.theory.richardson import in_words

    comm = MPI.COMM_WORLD
    case, directory = _case_and_folder(options, "lifetime")
    betas = check_betas(options.beta, name="--beta")
    counts = check_counts(options.tokens, name="--tokens")
    with signals_noted():
        summary = measure_lifetimes(
            case,
            betas,
            counts,
            seeds=whole(options.seeds, "--seeds", 1),
            directory=directory,
            until=options.until,
            check=options.check,
            allow_long=options.allow_long,
            comm=comm,
        )
    _print_json(options, summary)
    for name, laws in (("density, slope in beta", "density"), ("tokens, slope in log N", "tokens")):
        found = summary.get(laws, {}).get("slope_over_predicted")
        if found is not None:
            LOG.info("%s: %.3f of the predicted one", name, found)
    for row in summary["density"]["intervals"]:
        names = ("lifetime_low", "lifetime_high", "lifetime_converging")
        low, high, converging = (row[name] for name in names)
        value = dict(summary["density"]["lifetimes"])[row["beta"]]
        words = in_words(value, low, high, converging)
        LOG.info("beta = %g: the lifetime is %s", row["beta"], words)
    law = summary["density"]["law"]
    if law is not None and law["slope_over_predicted"] is not None:
        LOG.info(
            "density, the same with the next term, %.4g sqrt(beta) - %.4g log(beta) or less on a "
            "mesh: %.3f of the predicted one",
            law["predicted"]["root"],
            -law["predicted"]["logarithm"],
            law["slope_over_predicted"],
        )
    LOG.info("%s, summary.json and figures/lifetime.png in %s", TABLE, directory)


def _case_and_folder(options: argparse.Namespace, name: str) -> tuple[Case, Path]:
    from meanfield_pde.case.file import read_case

    meshless = name == "lifetime"  # of tokens
    case = on_root(MPI.COMM_WORLD, lambda: read_case(options.case, meshless=meshless))
    return case, options.output or case.output.directory / name


def _print_json(options: argparse.Namespace, summary: dict[str, Any]) -> None:
    if options.json and MPI.COMM_WORLD.rank == 0:
        print(json_text(summary))


def _add_beta(parser: argparse._ActionsContainer, what: str, *, required: bool) -> None:
    parser.add_argument("--beta", type=number, nargs="+", required=required, metavar="B", help=what)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="two finer meshes, too: an interval for each number"
    )


def _add_output(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--output", type=folder, metavar="DIR", help=f"default {what} in the result folder"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no messages")
    add_allow_long(parser)
    parser.add_argument("--json", action="store_true", help="print the summary")
