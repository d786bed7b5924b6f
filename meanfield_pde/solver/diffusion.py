"""Noise: d/dt mu = sigma Laplace-Beltrami mu, implicit in time, conservative and positive.

TR-BDF2 (gamma = 2 - sqrt 2; L-stable, of second order), with A from `laplace_beltrami` and
tau = gamma h sigma / 2:

    (1 - tau A) U = (1 + tau A) M
    (1 - tau A) M' = (U - (1 - gamma)^2 M) / (gamma (2 - gamma))

The length h of the steps follows an estimate of the error. The systems are solved directly: a
Krylov method that stops by its residual ruins the tails of the density. No linear method is
positive for all steps and of second order: where a mass would become negative, the fluxes of the
step are limited toward those of backward Euler with the log form of A, an M-matrix.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

from mpi4py import MPI
from petsc4py import PETSc

import numpy as np

from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.laplace_beltrami import LaplaceBeltrami

# Bound on the error of a step in time, in total variation; the whole mass is one.
ERROR_PER_STEP = 1e-6
# Prefix of PETSc's options for the linear systems.
PREFIX = "noise_"
# Steps are quartered at most to 1e-12 of a time step: what needs more is uniform at once.
_MOST_QUARTERINGS = 20
# Times the inverse squares of cells and of what is solved for, this leaves the range of doubles.
_OVERFLOWS = 1e200
# Factorisations that are kept, of the lengths of step used last: one costs as much as a hundred
# solutions.
_KEPT = 4
# A cell keeps at least this part of what backward Euler, which is positive, leaves it (chosen).
_KEEP = 0.5
# Iterative solvers are called again on the residual until no cell changes by more than this part
# of what it holds, a thousand roundings; the number of calls bounds the cost.
_RELATIVE_STOP, _MOST_REPEATS = 1e-12, 100

_GAMMA = 2 - math.sqrt(2)  # of TR-BDF2, for which both of its systems have one matrix
# The weight w in M' = M + h sigma (w A M + w A U + gamma/2 A M').
_WEIGHT = math.sqrt(2) / 4
# The error of a step is _ERROR h^3 times the third derivative (Bank et al. 1985).
_ERROR = (-3 * _GAMMA**2 + 4 * _GAMMA - 2) / (12 * (2 - _GAMMA))


class Diffusion:
    """The noise of one strength on one mesh.

    Attributes:
        operator: A.
        strength: sigma.
        error: bound on the error of a step, in total variation.
        first: how long the first step of the last `advance` could have been.
        steps: number of steps taken.
        limited: how many of them had their fluxes limited, so that no mass became negative.
    """

    def __init__(
        self, volumes: FiniteVolumes, strength: float, error: float = ERROR_PER_STEP
    ) -> None:
        self.operator = LaplaceBeltrami(volumes)
        self.strength = strength
        self.error = error
        self.first = math.inf
        self.steps = 0
        self.limited = 0
        self._comm = volumes.comm
        self._volume = volumes.volume[: volumes.owned, None]
        self._systems: OrderedDict[float, _System] = OrderedDict()

    def advance(self, masses: np.ndarray, length: float, parts: int = 1) -> np.ndarray:
        """Masses of own cells after a time of noise alone. Collective.

        Args:
            masses: of own cells.
            length: of time.
            parts: 2 for steps that are as long as those of twice the length, with which they share
                factorisations.
        """
        if not length:
            return masses
        before = self._total(masses)
        # Steps are the length over powers of four, so that few factorisations do.
        level = math.ceil(math.log(max(1.0, 0.75 * length / parts / self.first), 4))
        done, first = 0, 0.0  # steps of the present size
        while done < parts * 4**level:
            size = length / (parts * 4**level)
            after, error, negative = self._step(masses, size)
            if error > self.error:
                more = max(1, math.ceil(math.log(error / self.error, 64)))
                done, level = done * 4**more, level + more
                if level > _MOST_QUARTERINGS:
                    raise InputError(
                        f"noise.strength = {self.strength:g} would take steps shorter than "
                        f"{size:.1e}; lower it, the density is uniform at once"
                    )
                continue
            masses = after
            done += 1
            self.steps += 1
            self.limited += negative
            # The error goes with the cube of the step: 64 times for four times the length.
            longer = 128 * error < self.error
            first = first or (4 * size if longer else size)
            if longer and level and done % 4 == 0:
                done, level = done // 4, level - 1
        self.first = first
        # What rounding in the factorisation takes from the mass, some 1e-14, is put back.
        return masses * (before / self._total(masses))

    def rate_of_change(self, masses: np.ndarray) -> np.ndarray:
        """d/dt of the masses of own cells by the noise. Collective."""
        return -self.strength * self._outflow(masses).sum(axis=1)

    def close(self) -> None:
        """Give PETSc's objects back. Collective."""
        for system in self._systems.values():
            system.close()
        self._systems.clear()

    def _step(self, masses: np.ndarray, length: float) -> tuple[np.ndarray, float, bool]:
        """Masses after one step, an estimate of its error, and whether it was limited."""
        # Lengths that differ by rounding alone have one factorisation.
        system = self._system(float(f"{_GAMMA / 2 * length * self.strength:.10g}"))
        applied = system.apply(masses)
        middle = system.solve(2 * masses - applied)
        new = system.solve((middle - (1 - _GAMMA) ** 2 * masses) / (_GAMMA * (2 - _GAMMA)))
        # h sigma A M = 2 / gamma (M - (1 - tau A) M), for the estimate of Hosea and Shampine.
        start, inside, end = (
            2 / _GAMMA * (state - image)
            for state, image in (
                (masses, applied),
                (middle, system.apply(middle)),
                (new, system.apply(new)),
            )
        )
        estimate = start / _GAMMA - inside / (_GAMMA * (1 - _GAMMA)) + end / (1 - _GAMMA)
        error = self._total(np.abs(system.solve(2 * _ERROR * estimate)))
        if not math.isfinite(error) and self.strength * length > _OVERFLOWS:
            raise InputError(
                f"noise.strength = {self.strength:g} is more than numbers hold; lower it, the "
                "density is uniform at once"
            )
        if not math.isfinite(error):
            raise SolverError(
                f"noise.strength = {self.strength:g}: the linear systems of the noise could not be "
                "solved; leave out the PETSc options -noise_ksp_type and -noise_pc_type"
            )
        negative = self._comm.allreduce(bool((new < 0).any()), MPI.LOR)
        if negative and error <= self.error:
            new = self._limited(masses, middle, new, length * self.strength)
        return new, error, negative

    def _limited(
        self, masses: np.ndarray, middle: np.ndarray, new: np.ndarray, length: float
    ) -> np.ndarray:
        """Backward Euler, and as much of the step of second order as leaves masses positive."""
        factors = self.operator.log_factors(masses)
        system = _System(self.operator, length, factors)
        low = np.maximum(system.solve(masses), 0.0)
        system.close()
        change = (
            _WEIGHT * (self._outflow(masses) + self._outflow(middle))
            + _GAMMA / 2 * self._outflow(new)
            - self.operator.outflow(factors * low[:, None] / self._volume)
        ) * length
        leaving = np.maximum(change, 0.0).sum(axis=1, keepdims=True)
        share = np.minimum(1.0, _KEEP * low[:, None] / np.maximum(leaving, np.finfo(float).tiny))
        share = np.repeat(share, change.shape[1], axis=1)
        # A flux is limited by the cell that it leaves, on whichever side of the facet.
        change *= np.where(change > 0, share, self.operator.across(share))
        return low - change.sum(axis=1)

    def _outflow(self, masses: np.ndarray) -> np.ndarray:
        return self.operator.outflow(self.operator.linear_feet(masses))

    def _system(self, tau: float) -> _System:
        if tau not in self._systems:
            if len(self._systems) == _KEPT:
                self._systems.popitem(last=False)[1].close()
            self._systems[tau] = _System(self.operator, tau)
        self._systems.move_to_end(tau)
        return self._systems[tau]

    def _total(self, values: np.ndarray) -> float:
        return float(self._comm.allreduce(float(values.sum())))


class _System:
    """(1 - tau A) x = b, factorised once."""

    def __init__(
        self, operator: LaplaceBeltrami, tau: float, factors: np.ndarray | None = None
    ) -> None:
        self._matrix = operator.matrix(tau, factors)
        self._solver = configured_solver(operator.volumes.comm)
        self._solver.setOperators(self._matrix)
        self._direct = self._solver.getType() == PETSc.KSP.Type.PREONLY
        self._comm = operator.volumes.comm
        self._x = self._matrix.createVecRight()
        self._b = self._matrix.createVecLeft()

    def apply(self, values: np.ndarray) -> np.ndarray:
        """(1 - tau A) x."""
        self._x.array[:] = values
        self._matrix.mult(self._x, self._b)
        return self._b.array.copy()

    def solve(self, right: np.ndarray) -> np.ndarray:
        """The solution, with small relative errors in every cell."""
        solution = self._solve_once(right)
        if self._direct:
            return solution
        for _ in range(_MOST_REPEATS):
            change = self._solve_once(right - self.apply(solution))
            solution = solution + change
            unsettled = bool((np.abs(change) > _RELATIVE_STOP * np.abs(solution)).any())
            if not self._comm.allreduce(unsettled, MPI.LOR):
                return solution
        raise SolverError(
            "the linear systems of the noise do not converge in every cell with these PETSc "
            "options -noise_ksp_type and -noise_pc_type; leave them out"
        )

    def close(self) -> None:
        for part in (self._solver, self._matrix, self._x, self._b):
            part.destroy()

    def _solve_once(self, right: np.ndarray) -> np.ndarray:
        self._b.array[:] = right
        self._solver.solve(self._b, self._x)
        return self._x.array.copy()


def configured_solver(comm: MPI.Comm) -> PETSc.KSP:
    """PETSc's KSP as its options choose it; by default a factorisation."""
    solver: Any = PETSc.KSP()
    solver.create(comm)
    solver.setOptionsPrefix(PREFIX)
    solver.setType(PETSc.KSP.Type.PREONLY)
    preconditioner = solver.getPC()
    # Among ranks each factorises the whole matrix: one exchange of numbers for each solve.
    preconditioner.setType(PETSc.PC.Type.LU if comm.size == 1 else PETSc.PC.Type.REDUNDANT)
    try:
        solver.setFromOptions()
    except PETSc.Error as error:
        reason = str(error).splitlines()[-1].removeprefix(f"[{comm.rank}] ")
        raise InputError(f"PETSc refuses its options: {reason}") from error
    return solver
