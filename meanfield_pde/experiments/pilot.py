"""A pilot: the same problem on few cells, which says how many steps a run will take, and when.

Steps follow an estimate of their error in time, whatever the cells are (`solver.step_control`): on
400 and 3,200 cells of the circle the run of demos/circle.toml without [adapt] takes 350 and 349 of
them, on 5,120 and 20,480 cells of the sphere that of demos/sphere.toml 82 and 98.
"""

from __future__ import annotations

import math
import time as clock
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace

from mpi4py import MPI

import numpy as np
from scipy.spatial import cKDTree

from meanfield_pde.case.case import Case
from meanfield_pde.experiments.case_mesh import case_mesh
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.controller import Controller
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.masses import Masses
from meanfield_pde.solver.state import Clocks
from meanfield_pde.support.signals import noted

# Cells of the pilot by the dimension of the space: a step takes 2 and 10 ms, and clusters as narrow
# as theirs still make steps short when they move.
CELLS = {2: 200, 3: 1280}
# States that are kept, from this to twice as many: those in between are interpolated.
# 64 of 1,280 cells are 0.7 MB (chosen, not tuned).
_KEPT = 32


@dataclass
class Pilot:
    """What a pilot has found.

    Attributes:
        cells: those of its mesh.
        times: after each step.
        tried: how many steps had been tried by then, those that were too long with them.
        states: those after some of the steps, by number: clocks, masses, and those at zero
            temperature if the case compares with it.
        finished: whether it came to the end; else it ran out of time, or a signal came.
    """

    cells: Cells
    times: list[float] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    states: dict[int, tuple[Clocks, Masses, Masses | None]] = field(default_factory=dict)
    finished: bool = True

    def steps(self, begin: float, end: float) -> float:
        """How many steps are tried between two times; beyond its own end as many as before it."""
        times, tried = np.array([0.0, *self.times]), np.array([0.0, *self.tried])
        late = (len(times) - 1) // 2
        pace = (tried[-1] - tried[late]) / max(times[-1] - times[late], 1e-300)
        found = np.interp([begin, end], times, tried)
        beyond = np.maximum(np.array([begin, end]) - times[-1], 0.0)
        return float(np.diff(found + pace * beyond)[0])

    def on(self, cells: Cells, masses: Masses) -> Masses:
        """Masses on other cells, each with the density of the nearest cell here."""
        _, nearest = cKDTree(self.cells.points).query(cells.points)
        share = cells.volumes / self.cells.volumes[nearest]
        share /= masses.doubles[nearest] @ share
        return masses.each(lambda array: array[nearest]).times(share)


def run_pilot(case: Case, seconds: float) -> Pilot:
    """Follow the density of a case, whose mesh stays, on few cells. By one rank alone.

    Args:
        case: the case.
        seconds: after which the pilot ends, wherever it is.
    """
    begun = clock.perf_counter()
    wanted = CELLS[case.dimension]
    mesh = case.mesh
    if mesh.cells is None or mesh.cells > wanted:
        kind = "circle" if case.dimension == 2 else "sphere"
        mesh = replace(mesh, kind=kind, cells=wanted, path=None, grade=1.0)
    volumes = FiniteVolumes(case_mesh(mesh, case.attention, MPI.COMM_SELF))
    pilot = Pilot(Cells.of(volumes))
    equation = Equation(case.attention, volumes, case.solver, case.noise.strength)
    evolution = Controller.start(equation, case.initial)
    zero: Controller | None = None
    if case.compare is not None and case.compare.zero_temperature:
        zero = Controller.start(equation.at(case.attention.with_beta(math.inf)), case.initial)
    every = 1

    def stepped(evolution: Controller) -> bool:
        nonlocal every
        clocks = evolution.state.clocks
        pilot.times.append(clocks.time)
        pilot.tried.append(clocks.step + clocks.rejected)
        if clocks.step % every == 0:
            if zero is not None:
                zero.advance(clocks.time)
            cold = None if zero is None else zero.state.gathered()
            pilot.states[clocks.step] = clocks, evolution.state.gathered(), cold
        if len(pilot.states) > 2 * _KEPT:
            every *= 2
            pilot.states = {n: one for n, one in pilot.states.items() if n % every == 0}
        pilot.finished = clock.perf_counter() - begun < seconds and not noted()
        return not pilot.finished

    with closing(evolution), closing(zero) if zero is not None else nullcontext():
        for end in case.time.save_times[1:]:
            evolution.advance(end, stepped)
            if not pilot.finished:
                break
    return pilot
