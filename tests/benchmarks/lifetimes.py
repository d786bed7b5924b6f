"""Lifetimes on the circle: the law with its next term, and the stages of the way.

    python -m tests.benchmarks.lifetimes [--quick]

Three cases on adaptive meshes: those of demos/circle.toml and of
demos/circle-lopsided.toml, and one that stops twice. `model` is the lifetime by `leaving`, with no
number fitted; `slope` that between a beta and the one before, over the predicted one, `slope of
rest` the same with the next term of the law taken off, which stops growing where clusters would
be narrower than cells. Clusters stop at V^k e in the limit of large beta; `V last` is V times the
place where the axis stood before, as it was measured.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable

import numpy as np

from meanfield_pde import Attention, ProjectionLimit, VonMises, circle_mesh
from meanfield_pde.experiments.lifetime import Lifetime, density_lifetime
from meanfield_pde.theory.lifetime_law import fit_law
from tests.benchmarks.adaptivity import KEY_QUERY, LOPSIDED, VALUE, lopsided
from tests.benchmarks.leaving import heavier_leaves
from tests.benchmarks.tables import Table, options, present
from tests.problems import MIXTURE, metastable, stopping

Density = Callable[[np.ndarray], np.ndarray]
CELLS, TOLERANCE = 400, 1e-4


def lopsided_case(beta: float) -> Attention:
    """The case of demos/circle-lopsided.toml."""
    return Attention(KEY_QUERY, np.eye(2), VALUE, beta)


CASES: dict[str, tuple[Callable[[float], Attention], VonMises | Density]] = {
    "demos/circle.toml": (metastable, MIXTURE),
    LOPSIDED: (lopsided_case, lopsided),
    "two stops": (stopping, MIXTURE),
}


def carried(limit: ProjectionLimit, place: float) -> float:
    """The progress at V x for an axis x at the progress `place`, by angles to V's eigenvector."""
    end = limit.terminal.basis
    assert end is not None
    way = limit.terminal_angle
    small, large = np.sort(np.linalg.eigvals(limit.first.value).real)
    return 1 - math.atan(small / large * math.tan((1 - place) * way)) / way


def law(
    name: str, found: list[tuple[Lifetime, float]], limit: ProjectionLimit, density: Density
) -> None:
    """The table of the lifetimes of a case."""
    columns = ["beta", "lifetime", "model", "half way", "slope beta", "slope", "next term"]
    table = Table(f"Lifetimes, {name}", [*columns, "slope of rest", "least width", "seconds"])
    matrices = limit.first.key_query, limit.first.value
    rows = [row for row, _ in found]
    lifetimes = np.array([row.lifetime or math.nan for row in rows])
    widths = np.array([row.min_cell_width for row in rows], dtype=float)
    fitted = fit_law(limit, np.array([row.beta for row in rows]), lifetimes, widths)
    assert fitted is not None
    linear_slopes, slopes = (
        ["-", *(f"{slope:.3f}" for slope in one)] for one in (fitted.linear_slopes, fitted.slopes)
    )
    for (row, seconds), term, linear, rest in zip(
        found,
        fitted.beyond,
        linear_slopes,
        slopes,
        strict=True,
    ):
        model = heavier_leaves(*matrices, density, row.beta, row.min_cell_width or 0.0)
        table.row(
            f"{row.beta:g}",
            f"{row.lifetime:.2f}",
            "-" if math.isnan(model) else f"{model:.2f}",
            f"{row.half:.2f}",
            f"{row.beta * fitted.terms.slope:.2f}",
            linear,
            f"{term:.2f}",
            rest,
            f"{row.min_cell_width:.1e}",
            f"{seconds:.1f}",
        )


OPTIONS = options("lifetimes", __doc__)


def main() -> None:
    """Print the tables."""
    quick = OPTIONS.parse_args().quick
    betas = (80.0, 160.0) if quick else (80.0, 160.0, 320.0, 640.0)
    cells, tolerance = (100, 1e-2) if quick else (CELLS, TOLERANCE)
    stops: list[tuple[str, float, list[dict[str, float]], ProjectionLimit]] = []
    for name, (attention, initial) in CASES.items():
        found = []
        for beta in betas:
            begun = time.process_time()
            row = density_lifetime(
                attention(beta), circle_mesh(cells), initial, adapt=tolerance, threads=1
            )
            found.append((row, time.process_time() - begun))
            stops.append((name, beta, json.loads(row.stages), ProjectionLimit(attention(beta))))
        density = initial.density if isinstance(initial, VonMises) else initial
        law(name, found, ProjectionLimit(attention(betas[0])), density)
    table = Table(
        "Stages of the way",
        ["case", "beta", "place", "V^k e", "V last", "begin", "end", "predicted end"],
    )
    for name, beta, stages, limit in stops:
        before = math.nan
        for stage in stages:
            if 0 < stage["expected"] < 1:
                numbers = [f"{stage[key]:.3f}" for key in ("place", "expected")]
                end = "-" if stage["end"] is None else f"{stage['end']:.1f}"
                table.row(
                    name,
                    f"{beta:g}",
                    *numbers,
                    f"{carried(limit, before):.3f}",
                    f"{stage['begin']:.1f}",
                    end,
                    f"{stage['expected_end']:.1f}",
                )
            before = stage["place"]


if __name__ == "__main__":
    present(main, OPTIONS)
