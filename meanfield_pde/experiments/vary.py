"""`meanfield-pde sweep --vary`: a case at every point of a grid of values of its keys.

Each point is a run in a folder of its own, named by its values, so that a grid that is made larger
later keeps what is there. points.csv has a row for each: the values, the time at the end, and the
numbers that runs conclude (`conclusions`), with `--check` from three meshes, with intervals.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

from meanfield_pde.case.case import Case
from meanfield_pde.case.text import MAX_CELLS_KEY
from meanfield_pde.case.varied import varied_case
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.experiments.conclusions import intervals_of, numbers_of_run
from meanfield_pde.experiments.cost import check_memory
from meanfield_pde.experiments.folder import experiment_folder, in_folder, run_all
from meanfield_pde.experiments.levels import Level, level, ratio
from meanfield_pde.figures.failures import drawn_if_possible
from meanfield_pde.results.checked_text import write_summary
from meanfield_pde.results.folder import read_result
from meanfield_pde.results.tables import Row, write_table
from meanfield_pde.support.checks import shown, whole
from meanfield_pde.support.old_names import new_case_key
from meanfield_pde.support.plain import plain
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.versions import versions
from meanfield_pde.theory.richardson import FEWEST

LOG = logging.getLogger("meanfield_pde")

TABLE = "points.csv"
# More are a slip: each point is a folder of six files.
MOST_POINTS = 10_000
# Of a folder's name; file systems allow 255 bytes, for parts of it such as a lock's, too.
_LONGEST = 120


def run_varied(
    case: Case,
    vary: Mapping[str, Sequence[Any]],
    *,
    directory: Path,
    show: str | None = None,
    at_once: int | None = None,
    check: bool = False,
    quiet: bool = False,
    allow_long: bool = False,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> dict[str, Any]:
    """Run, tabulate and draw; points that are finished are not run again. Collective.

    Every point is checked before the first is run. One that fails is left out, with its reason, and
    is tried again by the next call.

    Args:
        case: whose other keys stay as they are.
        vary: two values or more for each key, as `varied_case` takes them.
        directory: each run goes to a folder in it that is named by its values.
        show: the column that is drawn; by default `end.mean_norm`, the order r = |∫ x dmu|.
        at_once: runs that share the ranks at the same time; by default as many as there are ranks.
        check: run each point on two finer meshes, too, with intervals.
        quiet: no progress bar.
        allow_long: do not refuse runs of more than 1e9 steps.
        comm: the ranks that share the work.

    Returns:
        What summary.json says: `varied`, the values by key, `points`, the rows, and `missing`.
    """
    vary = _checked(vary)
    points = [dict(zip(vary, one, strict=True)) for one in itertools.product(*vary.values())]
    at_once = min(comm.size, len(points), whole(at_once or comm.size, "at_once", 1))
    levels = FEWEST if check else 1
    cases = [[level(varied_case(case, one), n) for n in range(levels)] for one in points]
    largest = max((own[-1].case.mesh for own in cases), key=lambda mesh: mesh.cells or 0)
    check_memory(largest, comm)  # before the first is run
    sequence = [
        [_placed(one, directory, point) for one in own]
        for own, point in zip(cases, points, strict=True)
    ]

    def conclude(failed: dict[int, str]) -> dict[str, Any]:
        found: dict[int, Row] = {}
        missing: list[dict[str, Any]] = []
        for i, (own, point) in enumerate(zip(sequence, points, strict=True)):
            reasons = [failed[i * levels + n] for n in range(levels) if i * levels + n in failed]
            if reasons:
                missing.append(point | {"reason": reasons[0]})
            else:
                found[i] = _row(own, ratio(case))
        if not found:
            raise SolverError(f"{directory}: all {len(points)} points failed; {reasons[0]}")
        names = list(dict.fromkeys(name for row in found.values() for name in row))
        nothing = dict.fromkeys(names)
        rows = [point | nothing | found.get(i, {}) for i, point in enumerate(points)]
        summary = {"varied": vary, "points": rows, "shown": show, "missing": missing}
        write_table(directory / TABLE, rows)
        write_summary(directory, summary | {"versions": versions()})
        drawn_if_possible(draw_points, directory, plain(summary))
        return summary

    free = (*(key.split("[")[0] for key in vary), "output", MAX_CELLS_KEY)
    with experiment_folder(directory, case, ignore=free, comm=comm):
        failed = run_all(
            [one for own in sequence for one in own],
            [
                _name(i, len(points), point, one)
                for i, (own, point) in enumerate(zip(sequence, points, strict=True), 1)
                for one in own
            ],
            at_once=at_once,
            keep_going=True,
            brief=True,
            quiet=quiet,
            allow_long=allow_long,
            comm=comm,
        )
        return on_root(comm, conclude, failed)


def draw_points(directory: Path, summary: dict[str, Any], form: str = "png") -> Path:
    """Draw figures/points.png of a summary, or the same in another format."""
    from meanfield_pde.figures.points import draw_table  # matplotlib: see `_lazy`

    return draw_table(directory, summary["varied"], summary["points"], summary["shown"], form)


def _checked(vary: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The values by key, as JSON has them; InputError unless they make a grid."""
    if not isinstance(vary, Mapping) or not vary:
        raise InputError(f"vary must have values by key, such as attention.beta, got {shown(vary)}")
    found = {}
    for given, values in vary.items():
        key = new_case_key(str(given))
        if key in found:
            raise InputError(f"vary: {key} is given twice, by its older name, too")
        if isinstance(values, str) or not hasattr(values, "__len__"):
            raise InputError(f"vary: {key} must have a list of values, got {shown(values)}")
        if key.split(".")[0] == "output":
            raise InputError(f"vary: {key} is the same for all points; each has its own folder")
        own = [plain(value) for value in values]
        if len(own) < 2 or any(one in own[:i] for i, one in enumerate(own)):
            raise InputError(f"vary: {key} needs 2 different values or more, each once")
        found[key] = own
    count = math.prod(map(len, found.values()))
    if count > MOST_POINTS:
        raise InputError(f"vary: {count} points are more than {MOST_POINTS}; take fewer values")
    return found


def _placed(one: Level, directory: Path, point: Mapping[str, Any]) -> Level:
    """The level of a point, with a folder named by the values, and by its number if there is one.

    A name that would be too long, or has other letters than paths like, ends in a checksum.
    """
    plainly = ",".join(f"{_dotted(key)}={value}" for key, value in point.items())
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._=,+-") else "_" for c in plainly)
    if name != plainly or len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}_{hashlib.sha256(plainly.encode()).hexdigest()[:12]}"
    if one.number:
        directory = directory / f"level-{one.number}"
    return replace(one, case=in_folder(one.case, directory / name))


def _dotted(key: str) -> str:
    """A key without brackets, which shells and patterns of file names read as something else."""
    return key.replace("[", ".").replace("]", "")


def _name(number: int, count: int, point: Mapping[str, Any], one: Level) -> str:
    """What a run is called in messages."""
    values = ", ".join(f"{key} = {value}" for key, value in point.items())
    return f"point {number} of {count}, {values}" + f", level {one.number}" * (one.number > 0)


def _row(own: Sequence[Level], finer: float) -> Row:
    """What the runs of a point have concluded, and when the finest ended."""
    directories = [one.case.output.directory for one in own]
    row: Row = {"time": float(read_result(directories[-1]).times[-1])}
    if len(own) == 1:
        return row | {name: value for name, (value, _) in numbers_of_run(directories[0]).items()}
    for name, one in intervals_of(directories, finer).items():
        row |= {name: one.value} | one.columns(name)
    return row
