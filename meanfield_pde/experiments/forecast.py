"""What a run will take: cells, memory of a rank, steps, time, and files, by a trial in memory.

Where the mesh stays, a pilot on few cells says when steps will be taken, and what the density will
be then (`pilot`). At some of these times the trial puts that density on the cells of the case,
takes steps, and saves in memory; between them

    time = sum over steps of the seconds of a step  +  sum over saved times of those of one,

which grow and fall as the density concentrates. The memory is the most that the trial has had, with
what figures take at the end. On an adaptive mesh the cells there will be are not known: memory is
bounded by the most that are allowed, and of the time what the first steps took is said.
"""

from __future__ import annotations

import logging
import time as clock
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from meanfield_pde.case.case import Case
from meanfield_pde.errors import MeanfieldError
from meanfield_pde.experiments.cost import BYTES_REPEATED, BYTES_SHARED
from meanfield_pde.experiments.pilot import Pilot, run_pilot
from meanfield_pde.solver.masses import Masses
from meanfield_pde.solver.simulation import Observer, Simulation
from meanfield_pde.solver.state import Clocks
from meanfield_pde.support.memory import peak_memory, present_memory
from meanfield_pde.support.ranks import largest, on_root
from meanfield_pde.support.signals import stop_if_noted

LOG = logging.getLogger("meanfield_pde")

# Seconds for the pilot, and after which no further time of it is tried: far less than what is worth
# asking for, and enough for a thousand steps on its few cells, and for 1e5 cells at all times.
PILOT_SECONDS, TRIAL_SECONDS = 20.0, 60.0
# Seconds from which on `run` says what it takes, and after which it asks itself; a pilot
# then has a quarter of these.
LONG, LOOK = 600.0, 20.0
# Steps of a trial at the beginning, of which the first loads what was compiled, and later.
_FIRST_STEPS, _STEPS = 3, 2
# Parts of the steps of the pilot after which the density is tried, the last first: it is the
# narrowest, and the two ends alone are a trapezoid.
_TRIED = (1.0, 1 / 3, 2 / 3)
# Seconds to write a saved time, with a file for ParaView beside, and for each byte: files are
# flushed. 4 ms together on a local disk that is idle, and 26 on one that others use, with 400 to
# 20,480 cells; these are in the middle. 0.3 s for 60 MB.
_ROW, _FILE, _BYTE = 0.004, 0.006, 5e-9
# What figures take at the end of a run on the first rank, in bytes: matplotlib, with maps of the
# sphere, and for each cell, on the circle at each saved time. 134, 131 and 172 MB beyond what the
# steps leave with 5,120, 81,920 and 327,680 cells of the sphere, 73, 77 and 124 MB with 400, 800
# and 3,200 of the circle and 201 times.
_FIGURES, _FIGURES_CELL = {2: 6.5e7, 3: 1.28e8}, {2: 90.0, 3: 130.0}
# Bytes for each cell of a file for ParaView: points, cells and densities in base64 (71 on the
# sphere, 77 on the circle), or a number in single precision.
_FIELD_BYTES = {"pvd": 75.0, "xdmf": 4.0, "none": 0.0}
_SECONDS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))


@dataclass(frozen=True)
class Forecast:
    """What a run will take.

    Attributes:
        cells: of the mesh as it begins.
        most_cells: that there may be; more than `cells` on an adaptive mesh.
        memory: the most that a rank will have, in bytes; of an adaptive mesh a bound.
        steps: in time, those that are tried again with them; None where that is not known.
        seconds: of steps, distances and output; None where that is not known.
        step_seconds: those of a step as the run begins.
        saved_times: how many.
        bytes_written: in the result folder; of an adaptive mesh a bound.
        pilot_ended: when the pilot ran out of time, beyond which steps are as many as before; None
            if it came to the end, or there was none.
    """

    cells: int
    most_cells: int
    memory: float
    steps: float | None
    seconds: float | None
    step_seconds: float
    saved_times: int
    bytes_written: float
    pilot_ended: float | None = None

    def lines(self, case: Case, ranks: int) -> list[str]:
        """All of it for whoever asks, a quantity a line."""
        adaptive = self.most_cells > self.cells
        bound = "at most " if adaptive else "about "
        cells = f"{self.cells}"
        if adaptive:
            cells += f" as it begins, {self.most_cells} at most (adapt.max_cells)"
        if self.steps is None:
            steps = "not known: the mesh will change"
            time = f"not known; a step takes {in_words(self.step_seconds)} as it begins"
        else:
            steps = f"about {self.steps:.0f}"
            time = f"about {in_words(self.seconds or 0.0)}"
            if self.pilot_ended is not None:
                steps += f" (followed on few cells to t = {self.pilot_ended:.4g}, assumed beyond)"
        if case.time.steady is not None:
            time += "; less if the density is steady before"
        return [
            f"cells: {cells}",
            f"memory of a rank: {bound}{self.memory / 1e6:.0f} MB, on {ranks} "
            + ("rank" if ranks == 1 else "ranks"),
            f"steps: {steps}",
            f"time: {time}",
            f"would be written: {case.output.directory}, {self.saved_times} saved times, "
            f"{bound}{in_bytes(self.bytes_written)}",
        ]


def forecast(simulation: Simulation, case: Case) -> Forecast:
    """Forecast a run of a case by a trial in memory. Collective.

    Nothing is written; the simulation has then gone elsewhere, and is of no more use.

    Args:
        simulation: of the case, as it begins.
        case: the case.
    """
    evolution, comm = simulation.evolution, simulation.comm
    cells = evolution.state.volumes.global_cells
    times = np.array(case.time.save_times)
    until = float(times[-1])
    steps: float | None = 0.0
    seconds: float | None = 0.0
    pilot: Pilot | None = None
    still = evolution.rhs.fixed and not evolution.equation.noise
    if until > 0 and evolution.adapt is None and not still:
        pilot = on_root(comm, run_pilot, case, PILOT_SECONDS)
        stop_if_noted(comm)
    trial = _Trial(simulation)
    if until > 0:
        trial.steps(until, _FIRST_STEPS)
    trial.save()
    if until > 0:
        trial.again(until)
    begin = trial.step_seconds[-1] if trial.step_seconds else 0.0
    if pilot is not None:
        steps, seconds = pilot.steps(0.0, until), _by_pilot(trial, pilot, times)
    elif until > 0 and still:
        # Of one velocity all steps are alike, but for those that end at saved times.
        steps = until / evolution.longest_step() + len(times) / 2
        seconds = steps * begin + len(times) * trial.save_seconds[-1]
    elif until > 0:
        steps = seconds = None
    most = cells if case.adapt is None else max(case.adapt.max_cells, cells)
    memory = _memory(simulation, most - cells, len(times))
    written = _bytes_written(case, len(times), most)
    if seconds is not None:
        each = _ROW + (_FILE if case.output.fields != "none" else 0.0)
        seconds += trial.cold_seconds(until) + len(times) * each + written * _BYTE
        seconds = largest(comm, seconds)
    ended = None if pilot is None or pilot.finished else pilot.times[-1]
    return Forecast(cells, most, memory, steps, seconds, begin, len(times), written, ended)


class _Trial:
    """Steps and saves of a simulation, with the seconds that they take."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._begun = clock.perf_counter()
        self.step_seconds = list[float]()
        self.save_seconds = list[float]()

    @property
    def late(self) -> bool:
        """Whether it has taken long enough; on every rank the same. Collective."""
        return largest(self.simulation.comm, clock.perf_counter() - self._begun) > TRIAL_SECONDS

    def steps(self, until: float, count: int) -> None:
        """Take steps, and note how long the last of them took. Collective."""
        evolution = self.simulation.evolution
        end = evolution.step + count
        spent = list[float]()
        lap = clock.perf_counter()

        def stepped(_: object) -> bool:
            nonlocal lap
            now = clock.perf_counter()
            spent.append(now - lap)
            lap = now
            return evolution.step >= end

        tried = evolution.step + evolution.state.clocks.rejected
        evolution.advance(until, stepped)
        tried = evolution.step + evolution.state.clocks.rejected - tried
        # Of one that was tried again each attempt counts.
        self.step_seconds.append(
            min(spent[1:] or spent) if tried == len(spent) else sum(spent) / tried
        )

    def save(self) -> None:
        """Save in memory, and note how long that took. Collective."""
        begun = clock.perf_counter()
        self.simulation.save()
        self.save_seconds.append(clock.perf_counter() - begun)

    def again(self, until: float) -> None:
        """Save again if there is time: distances begin with the last ones. Collective."""
        if not self.late and self.simulation.evolution.time < until:
            self.steps(until, 1)
            self.step_seconds.pop()
            self.save()

    def enter(self, clocks: Clocks, masses: Masses, cold: Masses | None, until: float) -> None:
        """Put the simulation, and zero temperature beside it, where a pilot was. Collective."""
        evolution = self.simulation.evolution
        # So far before the end that the steps of a trial are none that end there.
        time = max(0.0, min(clocks.time, until - (_STEPS + 2) * clocks.length))
        clocks = replace(clocks, time=time)
        evolution.restore(masses.arrays, clocks)
        if self.simulation.zero is not None and cold is not None:
            self.simulation.zero.restore(cold.arrays, replace(Clocks(), time=clocks.time))

    def cold_seconds(self, until: float) -> float:
        """Seconds of the run at zero temperature beside, by a few steps of it. Collective."""
        zero = self.simulation.zero
        if zero is None or until == 0:
            return 0.0
        count, dt = 20, zero.longest_step()
        zero.advance(zero.time + dt)
        begun = clock.perf_counter()
        zero.advance(zero.time + count * dt)
        return (clock.perf_counter() - begun) / count * until / dt


class LongRun(Observer):
    """A line of a run that will take more than ten minutes, from its first steps; for rank 0 alone.

    What it finds is nothing that the run depends on: a pilot has a mesh and an equation of its own.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._begun = clock.perf_counter()
        self._first: _Passed | None = None  # after a step, in which compiled functions are loaded
        self._done = False

    def started(self, simulation: Simulation) -> None:
        """Begin to count."""
        self._begun = clock.perf_counter()
        self._done = simulation.comm.rank > 0

    def stepped(self, simulation: Simulation) -> None:
        """Say how long the run takes, once that is known and if it is long."""
        if self._done:
            return
        here = _Passed.of(simulation)
        if self._first is None:
            self._first = here
        elif clock.perf_counter() - self._begun > LOOK and here.tried > self._first.tried + 1:
            self._done = True
            with suppress(MeanfieldError):  # one that ends the run ends it on all ranks
                self._say(simulation, self._first, here)

    def _say(self, simulation: Simulation, first: _Passed, here: _Passed) -> None:
        case, evolution, until = self._case, simulation.evolution, simulation.until
        per_step = (here.steps - first.steps) / (here.tried - first.tried)
        # Where a pilot says nothing, steps are as many as until now.
        pace = (here.tried - first.tried) / max(here.time - first.time, 1e-300)
        steps = pace * (until - here.time)
        if evolution.adapt is None and not evolution.rhs.fixed:
            steps = run_pilot(case, LOOK / 4).steps(here.time, until)
        saves = len([time for time in case.time.save_times if time > here.time])
        per_save = here.saves / max(1, len(simulation.rows))
        seconds = steps * per_step + saves * per_save
        if seconds < LONG:
            return
        cells = evolution.state.volumes.global_cells
        written = _bytes_written(case, len(case.time.save_times), cells)
        LOG.info(
            "this run will take about %s more: %d cells, about %.0f steps, %.0f MB of memory on a "
            "rank, %s in %s",
            in_words(seconds),
            cells,
            steps,
            _memory_here(simulation, 0, len(case.time.save_times)) / 1e6,
            in_bytes(written),
            case.output.directory,
        )


@dataclass(frozen=True)
class _Passed:
    """Where a run stands: its time, steps that were tried, and seconds of steps and of the rest."""

    time: float
    tried: int
    steps: float
    saves: float

    @classmethod
    def of(cls, simulation: Simulation) -> _Passed:
        clocks, seconds = simulation.evolution.state.clocks, simulation.seconds
        saves = seconds["distances"] + seconds["output"]
        return cls(clocks.time, clocks.step + clocks.rejected, seconds["steps"], saves)


def _by_pilot(trial: _Trial, pilot: Pilot, times: np.ndarray) -> float:
    """Seconds of steps and saved times by trials at some of the times of a pilot. Collective."""
    simulation = trial.simulation
    numbers = sorted(pilot.states)
    until = float(times[-1])
    at, step_seconds, save_seconds = [0.0], trial.step_seconds[-1:], trial.save_seconds[-1:]
    for part in _TRIED if len(pilot.times) > _FIRST_STEPS else ():
        if trial.late:
            break
        number = min(numbers, key=lambda n: abs(n - part * len(pilot.times)))
        clocks, masses, cold = pilot.states[number]
        here = [None if one is None else pilot.on(simulation.cells, one) for one in (masses, cold)]
        assert here[0] is not None
        trial.enter(clocks, here[0], here[1], until)
        trial.steps(until, _STEPS)
        trial.save()
        trial.again(until)
        at.append(clocks.time)
        step_seconds.append(trial.step_seconds[-1])
        save_seconds.append(trial.save_seconds[-1])
    order = np.argsort(at)
    at_times, per_step, per_save = (
        np.array(one)[order] for one in (at, step_seconds, save_seconds)
    )
    ends = np.linspace(0.0, until, 1001)
    counts = [pilot.steps(a, b) for a, b in pairwise(ends)]
    middle = (ends[:-1] + ends[1:]) / 2
    total = float(np.array(counts) @ np.interp(middle, at_times, per_step))
    return total + float(np.interp(times, at_times, per_save).sum())


def _memory(simulation: Simulation, more_cells: int, saved_times: int) -> float:
    """The most that a rank will have, in bytes. Collective."""
    return largest(simulation.comm, _memory_here(simulation, more_cells, saved_times))


def _memory_here(simulation: Simulation, more_cells: int, saved_times: int) -> float:
    """The most that this rank will have, in bytes, with more cells than there are."""
    comm, cells = simulation.comm, simulation.evolution.state.volumes.global_cells
    d = simulation.volumes.dimension
    places = (cells + more_cells) * (saved_times if d == 2 else 1)
    drawn = _FIGURES[d] + _FIGURES_CELL[d] * places if comm.rank == 0 else 0.0
    more = more_cells * (BYTES_REPEATED + BYTES_SHARED / comm.size)
    return max(peak_memory() + more, present_memory() + more + drawn)


def _bytes_written(case: Case, times: int, cells: int) -> float:
    """Bytes of the result folder: densities, files for ParaView, and figures of a megabyte."""
    d = case.dimension
    each = 8.0 * (2 if case.compare is not None and case.compare.zero_temperature else 1)
    mesh = 8.0 * (d + 2 + d * d)
    moving = case.adapt is not None
    fields = _FIELD_BYTES[case.output.fields]
    if moving and case.output.fields == "xdmf":
        fields += mesh
    geometry = mesh * (times if moving else 1)
    return 1e6 + cells * (times * (each + fields) + geometry)


def in_words(seconds: float) -> str:
    """A time for messages: "12 s", "3.5 hours"."""
    for unit, name in _SECONDS:
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.2g} {name}"
    return f"{seconds:.2g} s"


def in_bytes(count: float) -> str:
    """A size for messages: "12 MB", "3.5 GB"."""
    return f"{count / 1e9:.2g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
