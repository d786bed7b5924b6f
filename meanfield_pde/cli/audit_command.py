"""The command `audit`, and its options."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from mpi4py import MPI

import numpy as np

from meanfield_pde.audit import TOLERANCE
from meanfield_pde.cli.arguments import Command, folder, number, path
from meanfield_pde.errors import InputError
from meanfield_pde.figures.failures import drawn_if_possible
from meanfield_pde.support.files import make_folder, replace_text
from meanfield_pde.support.npz import write_arrays
from meanfield_pde.support.plain import json_text
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.threads import set_threads

if TYPE_CHECKING:
    from meanfield_pde.audit.weights import Encoder

LOG = logging.getLogger("meanfield_pde")

SUMMARY, HEADS, LAYERS, SUBSPACES = "audit.json", "heads.csv", "layers.csv", "subspaces.npz"
# Tokens for which lifetimes are given if neither the encoder nor a file says how many there are:
# the positions of a BERT.
TOKENS = 512


def add_audit(command: Command) -> None:
    """Add the command to the parser that `command` adds to."""
    parser = command("audit", audit, "a trained encoder's heads, and its tokens layer by layer")
    parser.add_argument(
        "weights", type=path, metavar="WEIGHTS", help=".npz, .safetensors, or a folder with one"
    )
    parser.add_argument(
        "--tokens", type=path, metavar="LAYERS.npz", help="measured tokens, layers x N x d"
    )
    parser.add_argument(
        "--baseline", type=path, metavar="LAYERS.npz", help="tokens to test for drift against"
    )
    parser.add_argument(
        "--tolerance",
        type=number,
        default=TOLERANCE,
        metavar="R",
        help=f"a cloud has stopped that moves by less, in radians; default {TOLERANCE:g}",
    )
    parser.add_argument("--count", type=int, metavar="N", help="tokens, for their lifetime")
    parser.add_argument(
        "--export-case", type=int, nargs=2, metavar=("L", "H"), help="head H of layer L as a case"
    )
    parser.add_argument(
        "--directions", type=int, choices=(2, 3), help="of that case: circle or sphere"
    )
    parser.add_argument(
        "--output", type=folder, default=Path("results/audit"), metavar="DIR", help="results/audit"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def audit(options: argparse.Namespace) -> None:
    """Audit an encoder on the first rank, print what was found and write it to a folder."""
    comm = MPI.COMM_WORLD
    _check(options)
    set_threads(comm)
    text = on_root(comm, _audit, options)
    if comm.rank == 0:
        print(text, flush=True)
    LOG.info("%s, %s and figures/audit.png in %s", SUMMARY, HEADS, options.output)


def _check(options: argparse.Namespace) -> None:
    if options.baseline is not None and options.tokens is None:
        raise InputError("--baseline is what --tokens are compared with; give both")
    if not 0 < options.tolerance < np.pi:
        raise InputError(f"--tolerance must be between 0 and pi, got {options.tolerance:g}")
    if options.count is not None and options.count < 2:
        raise InputError(f"--count must be at least 2, got {options.count}")
    if options.directions is not None and options.export_case is None:
        raise InputError("--directions applies to --export-case only")


def _audit(options: argparse.Namespace) -> str:
    from meanfield_pde.audit import report  # see `_lazy`
    from meanfield_pde.audit.encoders import read_encoder
    from meanfield_pde.audit.export import restrict, write_case
    from meanfield_pde.audit.heads import audit_heads
    from meanfield_pde.audit.layers import audit_layers
    from meanfield_pde.audit.measured import read_layers
    from meanfield_pde.figures.audit import draw_audit
    from meanfield_pde.results.tables import write_table

    encoder = read_encoder(options.weights)
    if options.export_case is not None:
        _check_head(encoder, options.export_case)
    measured = None if options.tokens is None else read_layers(options.tokens)
    baseline = None if options.baseline is None else read_layers(options.baseline)
    heads = list(audit_heads(encoder))
    count = options.count or encoder.positions or TOKENS
    tokens = None
    if measured is not None:
        count = options.count or measured.tokens.shape[1]
        try:
            tokens = audit_layers(
                encoder, heads, measured, baseline=baseline, tolerance=options.tolerance
            )
        except InputError as error:
            raise InputError(f"{options.tokens}: {error}") from None
    directory: Path = options.output
    make_folder(directory)
    summary = report.summary(encoder, heads, count, tokens)
    further: list[str] = []
    if options.export_case is not None:
        layer, head = options.export_case
        place = directory / f"layer-{layer}-head-{head}"
        restriction = restrict(encoder.layer(layer)[head], options.directions)
        notes = write_case(restriction, place, layers=encoder.layers, tokens=measured)
        summary["case"] = {"directory": str(place), "notes": notes}
        further = [f"case in {place}", *notes]
    replace_text(directory / SUMMARY, json_text(summary))
    write_table(directory / HEADS, [report.head_row(head, count) for head in heads])
    # The orthonormal bases of E, one array for each head that has one.
    bases = {f"layer-{h.layer}-head-{h.head}": h.basis for h in heads if h.basis is not None}
    write_arrays(directory / SUBSPACES, bases)
    if tokens is not None:
        write_table(directory / LAYERS, report.layer_rows(tokens))
    title = f"{options.weights.resolve().name}: heads"
    drawn_if_possible(draw_audit, directory, heads, title, tokens)
    if options.json:
        return json_text(summary)
    return report.table(encoder, heads, count, tokens, further)


def _check_head(encoder: Encoder, place: list[int]) -> None:
    for name, found, there in zip(
        ("layer", "head"), place, (encoder.layers, encoder.heads), strict=True
    ):
        if not 0 <= found < there:
            raise InputError(f"--export-case: {name} must be from 0 to {there - 1}, got {found}")
