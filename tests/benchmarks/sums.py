"""Attention sums per unit of time, and the error in time that they leave.

    python -m tests.benchmarks.sums [--quick] [--adaptive] [--surface circle|sphere] [--beta B ...]
        [--cells N ...] [--shorter F ...] [--scheme NAME] [--save FOLDER] [--before FILE]

The matrices and initial densities of `demos/circle.toml` and `demos/sphere.toml` on uniform meshes,
to about the end of the first concentration. 'Shorter' is by how many times steps are shorter than
those that the solver takes by itself. Errors are against a reference whose steps are 25, 8 or 4
times shorter ('reference'): L1 of the density, the mean of |log rho - log rho'| over the cells, and
the largest of the differences of first and second moments. 'Seconds' are processor time of steps,
with the share that sums have of it; diagnostics and what is compiled are not counted. With
`--adaptive` meshes are adaptive, and errors are those of the masses that the cells of the given
mesh hold; the mesh is looked at after steps, so that its own part of the error changes with them.

With `--save` references are kept as `.npy` and read again, also by another version, if that differs
in time alone; the numbers are added to `sums.jsonl`. `--before` takes such a file of another
version, and 'times' is how many times as many sums that one takes at the same error, in L1 and in
log rho: on a line between its rows (log-log), which goes on below its smallest error, and its
fewest where its largest error is smaller.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde import Attention, read_case, solve
from meanfield_pde.attention.sum.shared import SharedSum
from meanfield_pde.solver.schemes import SCHEMES
from meanfield_pde.solver.settings import STEP_TOLERANCE
from meanfield_pde.solver.simulation import Observer, Simulation
from meanfield_pde.solver.solution import Solution
from meanfield_pde.solver.step_control import StepSettings
from tests.benchmarks.attention import CHUNK
from tests.benchmarks.tables import Table, options, present
from tests.problems import MESHES

DEMOS = Path(__file__).parents[2] / "demos"
SURFACES = {"circle": 2, "sphere": 3}
# A step is shortened by these factors, and by one of these for a reference: 25 where that takes a
# minute or two, since errors of second order are then 1/625 of themselves.
FACTORS = (0.5, 1.0, 2.0, 4.0)
FINE, AFFORDABLE = 25.0, 8.0


@dataclass(frozen=True)
class Problem:
    """A demo at some beta, to a time, on a mesh."""

    surface: str
    cells: int
    beta: float
    until: float
    fine: float = FINE
    factors: Sequence[float] = FACTORS
    adapt: float | None = None

    @property
    def name(self) -> str:
        """Of the file of its reference."""
        adaptive = f"-adapt{self.adapt:g}" if self.adapt else ""
        return f"{self.surface}-{self.cells}-beta{self.beta:g}-t{self.until:g}{adaptive}"


def problems() -> list[Problem]:
    """All cases, those that take long last."""
    long = {1.0: 2.0, 10.0: 2.0, 100.0: 6.0, 300.0: 4.0, 1000.0: 2.0}
    short = long | {100.0: 3.0, 300.0: 2.0}
    # Of the last cells: to which time, and with how much shorter steps a reference is affordable.
    large = {1.0: (2.0, 8.0), 10.0: (2.0, 8.0), 100.0: (0.5, 4.0), 300.0: (0.25, 4.0)}
    large |= {1000.0: (0.25, 4.0)}
    sizes = [("circle", 400), ("circle", 1600), ("sphere", 1280), ("sphere", 5120)]
    found = [Problem(*size, beta, until) for size in sizes for beta, until in long.items()]
    for beta, until in short.items():
        fine, factors = (FINE, FACTORS) if beta <= 10 else (AFFORDABLE, (1.0, 2.0))
        found.append(Problem("sphere", 20_480, beta, until, fine, factors))
    for beta, (until, fine) in large.items():
        found.append(Problem("sphere", 81_920, beta, until, fine, (1.0, 2.0)))
    return found


def adaptive_problems() -> list[Problem]:
    """The same for adaptive meshes, with the tolerance of the page on them."""
    times = {10.0: 2.0, 100.0: 3.0, 300.0: 2.0, 1000.0: 2.0}
    sizes = [("circle", 200, 1e-3, times), ("sphere", 320, 1e-2, dict(list(times.items())[:3]))]
    return [
        Problem(surface, cells, beta, until, AFFORDABLE, FACTORS[:3], adapt)
        for surface, cells, adapt, known in sizes
        for beta, until in known.items()
    ]


def shorter(factor: float, scheme: str, dimension: int) -> dict[str, Any]:
    """What `solve` takes for steps that many times as short, those of transport never longer."""
    if factor == 1:
        return {}
    usual = StepSettings()
    steps = StepSettings(
        courant=SCHEMES[scheme].share(dimension) / max(1.0, factor),
        growth=usual.growth / factor,
        crossed=usual.crossed / factor,
    )
    return {"steps": steps, "step_tolerance": STEP_TOLERANCE / factor**2}


class Counter(Observer):
    """Counts the attention sums of steps, not those of diagnostics, and the time of both.

    Attributes:
        sums: from the first saved time to the last step.
        seconds: processor time, of the steps and of their sums.
    """

    def __init__(self) -> None:
        self.sums, self.seconds = 0, (0.0, 0.0)
        self._made, self._spent = 0, 0.0
        self._begin: tuple[int, float, float] | None = None

    @contextmanager
    def counting(self) -> Iterator[Counter]:
        """Count what is summed meanwhile."""
        inner = SharedSum.__call__

        def counted(*arguments: Any, **named: Any) -> np.ndarray:
            begun = time.process_time()
            found = inner(*arguments, **named)
            self._spent += time.process_time() - begun
            self._made += 1
            return found

        SharedSum.__call__ = counted  # type: ignore[method-assign]  # put back below
        try:
            yield self
        finally:
            SharedSum.__call__ = inner  # type: ignore[method-assign]  # what it was

    def saved(self, simulation: Simulation) -> None:
        """The row of time 0 is not one of a step."""
        self._begin = self._begin or (self._made, time.process_time(), self._spent)

    def stepped(self, simulation: Simulation) -> None:
        """What has been summed up to here."""
        if self._begin is not None:
            made, begun, spent = self._begin
            self.sums = self._made - made
            self.seconds = time.process_time() - begun, self._spent - spent


@dataclass(frozen=True)
class Row:
    """What a run took, and how far it is from the reference."""

    problem: str
    shorter: float
    steps: int
    sums: int
    l1: float
    log_error: float
    moments: float
    seconds: float
    share: float
    scheme: str = "muscl"
    reference: float = field(default=FINE)


def run(problem: Problem, factor: float, scheme: str) -> tuple[Solution, Counter]:
    """The solution with steps that many times as short, with its sums counted."""
    case = read_case(DEMOS / f"{problem.surface}.toml")
    assert isinstance(case.attention, Attention)
    with Counter().counting() as counter:
        solution = solve(
            case.attention.with_beta(problem.beta),
            MESHES[SURFACES[problem.surface]](problem.cells),
            case.initial,
            until=problem.until,
            scheme=scheme,
            threads=1,
            adapt=problem.adapt,
            observers=[counter],
            **shorter(factor, scheme, SURFACES[problem.surface]),
        )
    return solution, counter


def in_given(points: np.ndarray, masses: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """The masses of points in geodesic cells, by the corners of these, cells x d x d."""
    inverse, place = np.linalg.inv(corners), np.empty(len(points), dtype=int)
    for start in range(0, len(points), CHUNK):
        part = slice(start, start + CHUNK)
        # x = sum_i coordinate_i corner_i, with all of them >= 0 in the cell that holds x.
        place[part] = np.einsum("pd,cdi->pci", points[part], inverse).min(2).argmax(1)
    return np.bincount(place, masses, len(corners))


def given_density(solution: Solution) -> np.ndarray:
    """The last density in the cells of the mesh given, of which the last cells are parts."""
    masses = solution.store.read(-1)
    if solution.store.moves:
        masses = in_given(solution.cells_at(-1).points, masses, solution.vertices)
    return np.asarray(masses / solution.volumes)


def differences(solution: Solution, density: np.ndarray) -> tuple[float, float, float]:
    """L1 of the density at the end, mean error of its logarithm, and largest one of a moment."""
    found = given_density(solution)
    logs = float(np.abs(np.log(found) - np.log(density)).mean())
    change = (found - density) * solution.volumes
    first = solution.points.T @ change
    second = (solution.points * change[:, None]).T @ solution.points
    return float(np.abs(change).sum()), logs, float(max(np.abs(first).max(), np.abs(second).max()))


def sums_at(error: float, rows: Sequence[dict[str, Any]], of: str = "l1") -> float:
    """The sums that some rows take at an error."""
    known = sorted((math.log(row[of]), math.log(row["sums"])) for row in rows)
    places, logs = (np.array(one) for one in zip(*known, strict=True))
    at = math.log(error)
    if at < places[0] and len(known) > 1:
        slope = (logs[1] - logs[0]) / (places[1] - places[0])
        return float(np.exp(logs[0] + slope * (at - places[0])))
    return float(np.exp(np.interp(at, places, logs)))


def reference(problem: Problem, scheme: str, folder: Path | None) -> np.ndarray:
    """The density of short steps, read from the folder if it is there."""
    path = folder and folder / f"{problem.name}-{scheme}.npy"
    if path and path.exists():
        return np.asarray(np.load(path))
    density = given_density(run(problem, problem.fine, scheme)[0])
    if path:
        np.save(path, density)
    return density


def measure(
    problem: Problem, scheme: str, folder: Path | None, factors: Sequence[float]
) -> Iterator[Row]:
    """The rows of a problem."""
    density = reference(problem, scheme, folder)
    for factor in factors:
        solution, counter = run(problem, factor, scheme)
        seconds, of_sums = counter.seconds
        yield Row(
            problem.name,
            factor,
            solution.steps,
            counter.sums,
            *differences(solution, density),
            seconds,
            of_sums / max(seconds, 1e-9),
            scheme,
            problem.fine,
        )


OPTIONS = options("sums", __doc__)
OPTIONS.add_argument("--adaptive", action="store_true", help="adaptive meshes instead")
OPTIONS.add_argument("--surface", choices=SURFACES)
OPTIONS.add_argument("--beta", type=float, nargs="+")
OPTIONS.add_argument("--cells", type=int, nargs="+")
OPTIONS.add_argument("--shorter", type=float, nargs="+", help="factors of steps, all meshes")
OPTIONS.add_argument("--scheme", choices=SCHEMES, default="muscl")
OPTIONS.add_argument("--save", type=Path, help="folder of references and of sums.jsonl")
OPTIONS.add_argument("--before", type=Path, help="sums.jsonl of another version")


def main() -> None:
    """Print the table."""
    asked = OPTIONS.parse_args()
    before: list[dict[str, Any]] = []
    if asked.before:
        before = [json.loads(line) for line in asked.before.read_text().splitlines()]
    if asked.save:
        asked.save.mkdir(parents=True, exist_ok=True)
    columns = ["surface", "cells", "beta", "t", "shorter", "reference", "steps", "sums"]
    columns += ["sums / t", "L1", "log rho", "moments", "seconds", "share", "times L1", "times log"]
    table = Table("Attention sums and errors in time, one thread", columns)
    for surface in SURFACES:
        run(Problem(surface, 20, 10.0, 0.1), 1.0, asked.scheme)  # compiles
    for problem in adaptive_problems() if asked.adaptive else problems():
        if (
            asked.surface not in (None, problem.surface)
            or problem.beta not in (asked.beta or [problem.beta])
            or problem.cells not in (asked.cells or [problem.cells])
            or (asked.quick and (problem.cells > 1280 or problem.beta > 100))
        ):
            continue
        old = [one for one in before if one["problem"] == problem.name]
        for row in measure(problem, asked.scheme, asked.save, asked.shorter or problem.factors):
            if asked.save:
                with (asked.save / "sums.jsonl").open("a") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
            times = ["-", "-"]
            if old:
                errors = {"l1": row.l1, "log_error": row.log_error}
                equal = [sums_at(error, old, of) for of, error in errors.items()]
                times = [f"{one / row.sums:.2f}" for one in equal]
            table.row(
                problem.surface,
                problem.cells,
                f"{problem.beta:g}",
                f"{problem.until:g}",
                f"{row.shorter:g}",
                f"{row.reference:g}",
                row.steps,
                row.sums,
                f"{row.sums / problem.until:.1f}",
                f"{row.l1:.1e}",
                f"{row.log_error:.1e}",
                f"{row.moments:.1e}",
                f"{row.seconds:.2f}",
                f"{row.share:.0%}",
                *times,
            )


if __name__ == "__main__":
    present(main, OPTIONS)
