"""moments.csv: second moments after steps, from which times of events are found within them.

A row has the time and ∫ x_i x_j dmu / ∫ dmu with mass at the centres of cells and patches. Saved
times may lie far apart; between rows of this file moments are interpolated (PCHIP).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

from mpi4py import MPI

import numpy as np
import scipy  # `interpolate` is imported when it is used: see `_lazy`

from meanfield_pde.errors import InputError
from meanfield_pde.mesh.geometry import AXES
from meanfield_pde.results.checked_text import read_summary
from meanfield_pde.results.names import MOMENTS, SUMMARY
from meanfield_pde.results.tables import Row, history_text, read_history
from meanfield_pde.solver.controller import Controller
from meanfield_pde.solver.diagnostics import moment_pairs
from meanfield_pde.support.files import append, remove_file
from meanfield_pde.support.ranks import on_root
from meanfield_pde.theory.phases import Phases, find_phases, phases_of_history
from meanfield_pde.theory.projection_limit import ProjectionLimit

# Rows are as far apart as the fastest token moves by this [rad], or a step if that is longer: a
# moment then changes by less than 0.02 from row to row, and a run to t = 20 has 2,000 / |V|.
_APART = 0.01
MOMENTS_CHECKSUM = "moments_sha256"  # the key of summary.json with that of moments.csv
# Times between two rows at which crossings are looked for, linear between these: the error is 1/64
# of what it would be with the rows alone.
WITHIN = 8


def between(times: np.ndarray, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times and moments with interpolated ones between them."""
    if len(times) < 2:
        return times, moments
    parts = np.arange(WITHIN) / WITHIN
    fine = np.append((times[:-1, None] + np.diff(times)[:, None] * parts).ravel(), times[-1])
    return fine, np.asarray(scipy.interpolate.PchipInterpolator(times, moments)(fine))


class MomentsFile:
    """moments.csv as a run goes on. A run whose earlier part has none, or is damaged, goes without.

    Args:
        directory: the result folder.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / MOMENTS
        self._size: int | None = None  # of the file; None before it is begun
        self._last = -math.inf
        self._lines: list[Row] = []

    def begin(self, evolution: Controller) -> None:
        """Take the rows from before a restart, or the first. Collective."""
        comm, now = evolution.state.volumes.comm, evolution.time
        known = on_root(comm, self._rows_until, now) if evolution.step else []
        if evolution.step and not known:
            on_root(comm, remove_file, self._path)  # or times of events would be read from a part
            return
        self._size, self._last = 0, known[-1]["time"] if known else -math.inf
        self._lines = known
        if not known:
            self.add(evolution)

    def stepped(self, evolution: Controller) -> None:
        """Add a row if it is time for one. Collective."""
        length = _APART / max(evolution.rhs.speed, 1e-300)
        before = evolution.time - evolution.last_dt
        if math.floor(evolution.time / length) > math.floor(before / length):
            self.add(evolution)

    def add(self, evolution: Controller) -> None:
        """Add a row, unless there is one of this time. Collective."""
        if self._size is None or evolution.time <= self._last:
            return
        moments = evolution.state.second_moments() / evolution.mass
        i, j = np.array(moment_pairs(len(moments))).T
        values = map(float, moments[i, j])
        row = dict(zip(_columns(len(moments)), (evolution.time, *values), strict=True))
        self._last = evolution.time
        self._lines.append(row)

    def flush(self, comm: MPI.Comm) -> None:
        """Put the rows on disk, before a checkpoint that lies behind them. Collective."""
        if self._size is not None and self._lines:
            self._size = on_root(comm, self._append, self._size)
            self._lines = []

    def _append(self, size: int) -> int:
        text = history_text(self._lines)
        content = (text if not size else text.partition("\n")[2]).encode()
        append(self._path, size, content)
        return size + len(content)

    def _rows_until(self, time: float) -> list[Row]:
        if not self._path.is_file():
            return []
        try:
            table = read_history(self._path)
        except InputError:
            return []
        if len(table) not in map(len, map(_columns, (2, 3))) or "time" not in table:
            return []
        rows = np.array(list(table.values())).T[table["time"] <= time]
        return [dict(zip(table, map(float, row), strict=True)) for row in rows]


def phases_of_run(
    directory: Path, history: Mapping[str, np.ndarray], limit: ProjectionLimit
) -> Phases:
    """The phases of a run, their times found between steps if its folder has moments.csv."""
    path = directory / MOMENTS
    if not path.is_file():  # a run that an earlier version began
        return phases_of_history(history, limit)
    if (directory / SUMMARY).is_file():  # not that of a run that is at its end just now
        known = read_summary(directory).get(MOMENTS_CHECKSUM)
        if known != moments_digest(directory):
            raise InputError(
                f"{path}: not what the run wrote, it was edited or damaged since; without it times "
                "of events are those of saved times"
            )
    table = read_history(path)
    d = limit.attention.dimension
    moments = np.empty((len(table["time"]), d, d))
    for name, (i, j) in zip(_columns(d)[1:], moment_pairs(d), strict=True):
        moments[:, i, j] = moments[:, j, i] = table[name]
    return find_phases(*between(table["time"], moments), limit)


def moments_digest(directory: Path) -> str | None:
    """SHA-256 of moments.csv, which summary.json keeps; None if there is no such file."""
    path = directory / MOMENTS
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _columns(dimension: int) -> list[str]:
    pairs = moment_pairs(dimension)
    return ["time", *(f"second_{AXES[i]}{AXES[j]}" for i, j in pairs)]
