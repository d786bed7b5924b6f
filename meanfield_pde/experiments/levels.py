"""A case on a sequence of meshes, each refined by one factor r in all that decides its error.

    uniform      r = 2: cells of half the width, x 2 on the circle and x 4 on the sphere
    adaptive     r = 3^(1/2): adapt.tolerance / 3, as it is of second order in the width of cells,
                 with the bounds of the refinement indicators, and the mesh given, r times as fine

Steps have errors of order three in their length, and are r times shorter on each level: the bound
on dt times the rate of growth is divided by r, and `solver.step_tolerance`, of second order, by
r^2. What is left to noise in a step, and to the attention sum, falls by r^3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from meanfield_pde.amr.settings import MOST_CELLS, AdaptSettings
from meanfield_pde.case.case import Case
from meanfield_pde.errors import InputError
from meanfield_pde.solver.step_control import StepSettings

# Of the attention sum and of steps: the least that a case may ask for.
_LEAST_TOLERANCE, _LEAST_STEP_TOLERANCE = 1e-14, 1e-9
UNIFORM, ADAPTIVE = 2.0, math.sqrt(3)


@dataclass(frozen=True, eq=False)
class Level:
    """A case at one level of refinement, from 0, with what its steps are allowed to do."""

    case: Case
    number: int = 0
    steps: StepSettings | None = None


def ratio(case: Case) -> float:
    """How many times finer each level is than the one before, in space and time."""
    return UNIFORM if case.adapt is None else ADAPTIVE


def level(case: Case, number: int) -> Level:
    """The case at a level; at level 0 it is what it is, on the icosphere that it stands for.

    Args:
        case: as it is given.
        number: of the level, from 0.
    """
    fine = ratio(case) ** number
    solver = replace(
        case.solver,
        tolerance=max(_LEAST_TOLERANCE, case.solver.tolerance / fine**3),
        step_tolerance=max(_LEAST_STEP_TOLERANCE, case.solver.step_tolerance / fine**2),
    )
    steps = StepSettings()
    steps = replace(
        steps,
        growth=steps.growth / fine,
        splitting=steps.splitting / fine**3,
        diffusion=steps.diffusion / fine**3,
    )
    adapt = None if case.adapt is None else _adapt(case.adapt, case.dimension, fine)
    found = replace(case, solver=solver, adapt=adapt, source=None)
    if case.mesh.cells is not None:
        cells = _cells(case.mesh.kind, case.mesh.cells, fine)
        found = replace(found, mesh=replace(case.mesh, cells=cells))
    elif number and case.adapt is None:
        raise InputError(
            "mesh.kind = 'file' has no finer meshes; give a mesh by its number of cells, or an "
            "adaptive one, [adapt] tolerance = 1e-3"
        )
    return Level(found, number, steps)


def _cells(kind: str, cells: int, fine: float) -> int:
    """The number of cells of a mesh whose cells are narrower by this factor."""
    if kind == "circle":
        return round(cells * fine)
    edges = math.ceil(math.sqrt(cells / 20) - 1e-9)  # of each side of the icosahedron, split
    return int(20 * round(edges * fine) ** 2)


def _adapt(adapt: AdaptSettings, dimension: int, fine: float) -> AdaptSettings:
    """The settings of an adaptive mesh whose cells are narrower by this factor."""
    bounds = adapt.indicators
    finer = replace(
        bounds,
        profile=bounds.profile / fine**2,
        kernels={d: width / fine for d, width in bounds.kernels.items()},
        velocity_lengths={d: one / fine for d, one in bounds.velocity_lengths.items()},
        narrower_below={d: one / fine**2 for d, one in bounds.narrower_below.items()},
    )
    return replace(
        adapt,
        tolerance=adapt.tolerance / fine**2,
        max_cells=min(MOST_CELLS, round(adapt.max_cells * fine ** (dimension - 1))),
        indicators=finer,
    )
