"""Whatever holds a measure, read as one: a result folder, tokens, or points with masses."""

from __future__ import annotations

import logging
from pathlib import Path

from meanfield_pde.errors import InputError
from meanfield_pde.results.folder import read_result
from meanfield_pde.support.checks import to_sphere
from meanfield_pde.support.npz import read_arrays
from meanfield_pde.tokens.cloud import read_tokens
from meanfield_pde.wasserstein.measure import Measure

LOG = logging.getLogger("meanfield_pde")


def read_measure(path: str | Path) -> Measure:
    """The measure in a file or folder, at the last of its times.

    A result folder gives its density; an `.npz` file with `tokens`, or a `.csv`, the tokens; an
    `.npz` with `points` and `masses` just these. Points off the sphere by up to 1e-6 are put back
    on it, and a note says so.
    """
    path = Path(path)
    if path.is_dir():
        return read_result(path).measure()
    if path.suffix.lower() == ".csv" or _holds_tokens(path):
        return read_tokens(path).measure()
    measure = Measure.read(path)
    try:
        points, note = to_sphere(measure.points, lambda i: f"point {i[0]}")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if note:
        LOG.info("%s: %s", path, note)
    return Measure(points, measure.masses, measure.spread)


def _holds_tokens(path: Path) -> bool:
    try:
        return "tokens" in read_arrays(path)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
