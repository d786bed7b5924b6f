"""Stationary states of the equation with noise, stable or not, by Newton's method.

    F(M) = transport(M) + sigma A M = 0,      sum_c M_c = 1

with the same fluxes as the evolution, so that its stationary states are these (but for the error of
its splitting). Newton's equations are solved by GMRES, preconditioned by the matrix of a linear
equation (see `linearised`).

Where rotations commute with the equation, a state and all that it can be turned into are one. Then
F(M) = 0 is asked for but for a part that only turns it (see `turning`), steps do not turn it, and

    J - sum_k omega_k T_k,      on changes that neither turn the state nor add mass,

J the derivative of F, decides on its stability. `newton` finds the state near given masses,
`at_order` that with a given order parameter r = |∫ x dmu| and the strength that it belongs to,
which also finds branches that no evolution comes to, and `growth` their fastest perturbations.

All ranks compute the same: masses are those of all cells, in the mesh's input order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import ArpackError, LinearOperator, eigs, gmres, splu

from meanfield_pde.errors import SolverError
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.linearised import LinearisedEquation
from meanfield_pde.solver.turning import Turning, Turns
from meanfield_pde.theory.symmetry import commuting_rotations, without_free_energy

_NEWTON_STEPS = 40  # a bound on the cost (chosen, not tuned)
_LARGEST_CHANGE = 1.0  # of a log mass, in one step of Newton: beyond, it is not linear
# |F| in total variation, relative to sigma: what the tolerance of the attention sum allows.
_ZERO = 1e-9
# Rounding errors of the attention sum may keep |F| above that: what is taken when it has not halved
# in `_STALLED` steps.
_GOOD, _STALLED = 1e-5, 4
_LOST = 12  # steps without one that halves |F|, after which none will be found
_LINEAR = 1e-6  # relative residual of GMRES: a step of Newton's method gains six digits at most
_KRYLOV = 60  # vectors that GMRES keeps: a bound on memory, 60 times the masses
_MODES = 4  # perturbations of which the fastest is taken, where rates may be complex: two pairs
_OSCILLATES = 1e-4  # imaginary part of a rate, relative: above the rounding of equal real ones


# Rates in units of the strength that are none: they are known to some 1e-7.
_NO_GROWTH = 1e-6


def is_stable(growth: float, strength: float) -> bool:
    """Whether the fastest perturbation does not grow."""
    return bool(growth <= _NO_GROWTH * strength)


@dataclass(frozen=True, eq=False)
class StationaryState:
    """A stationary state.

    Attributes:
        masses: of all cells.
        strength: sigma.
        order: r = |∫ x dmu|.
        residual: sum of |F|, without the part that only turns the state.
        turning: the rate |omega| of that part, in radians per unit of time. An error of the mesh
            where the equation has a free energy.
    """

    masses: np.ndarray
    strength: float
    order: float
    residual: float
    turning: float = 0.0


@dataclass(frozen=True, eq=False)
class Growth:
    """The fastest perturbation of a stationary state, but for those that only turn it.

    Attributes:
        rate: how fast it grows, < 0 if it decays; that of `Stationary.growth`.
        shape: change of the masses.
        oscillates: whether it oscillates as it does.
    """

    rate: float
    shape: np.ndarray = field(repr=False)
    oscillates: bool


class Stationary(LinearisedEquation):
    """The stationary problem of an equation, for any strength of its noise."""

    def __init__(self, equation: Equation) -> None:
        super().__init__(equation)
        self._count = len(self.volume)
        generators = commuting_rotations(equation.first_layer)
        # A gradient flow has real rates, in the order in which they are found.
        self._modes = _MODES if without_free_energy(equation.first_layer) else 1
        self._turning = Turning(self.volumes, generators, self.gathered)

    def order(self, masses: np.ndarray) -> float:
        """The order parameter r = |∫ x dmu|."""
        return float(np.linalg.norm(masses @ self.mean))

    def newton(self, masses: np.ndarray, strength: float) -> StationaryState:
        """The stationary state near these masses; SolverError if there is none. Collective."""
        return self._newton(masses, strength, None)

    def at_order(self, masses: np.ndarray, strength: float, order: float) -> StationaryState:
        """The state with this order parameter near these masses and strength. Collective."""
        return self._newton(masses, strength, order)

    def growth(self, masses: np.ndarray, strength: float) -> Growth:
        """The fastest perturbation of a stationary state that does not only turn it. Collective.

        Its rate is that of (1 - h P)^-1 J, with P the preconditioner and J the derivative of F: a
        real one has the same zeros and the same sign as that of J, and large rates are bounded by
        1 / h. For one that oscillates, whose sign P may change, it is <v, J v> / <v, v> in the
        metric 1 / M, v the perturbation.
        """
        turns = self._turning.turns(masses)
        turned = self._turning.at(turns.rates @ (turns.weights.T @ self.rate(masses, strength)))
        preconditioner = self.linear_part(masses, strength)
        step = 1.0 / max(strength, self.speed)
        implicit = splu(scipy.sparse.identity(self._count, format="csc") - step * preconditioner)
        derivative = self.derivative(masses, strength)
        # What turns the state or adds mass is taken away along `left_out`, so that the problem is
        # that of J on the rest, and is given the rate -1 / h.
        seen = np.column_stack([turns.weights, np.ones(self._count)])
        left_out = np.column_stack([implicit.solve(turns.changes), self.uniform])
        inverse = np.linalg.inv(seen.T @ left_out)

        def others(change: np.ndarray) -> np.ndarray:
            return np.asarray(left_out @ (inverse @ (seen.T @ change)))

        def image(change: np.ndarray) -> np.ndarray:
            change = np.asarray(change, dtype=float).ravel()
            beside = others(change)
            change = change - beside
            changed = implicit.solve(derivative(change) - turned * change)
            return np.asarray(changed - others(changed) - beside / step)

        # Every perturbation has to have a share in the first vector, or it is not found.
        begin = masses * (
            self.mean @ np.arange(1.0, self.mean.shape[1] + 1)
            + 0.1 * np.random.default_rng(0).standard_normal(self._count)
        )
        operator = LinearOperator((self._count,) * 2, matvec=image, dtype=float)
        try:
            values, vectors = eigs(
                operator, k=self._modes, which="LR", v0=begin - others(begin), tol=1e-6
            )
        except ArpackError as error:
            raise SolverError(
                f"no perturbation of the stationary state was found ({error})"
            ) from error

        def quotient(vector: np.ndarray) -> float:
            parts = (vector.real, vector.imag)
            images = (derivative(part) - turned * part for part in parts)
            product = sum(
                part @ (image / masses) for part, image in zip(parts, images, strict=True)
            )
            return float(product / (np.abs(vector) ** 2 / masses).sum())

        found = []
        for value, vector in zip(values, vectors.T, strict=True):
            oscillates = abs(value.imag) > _OSCILLATES * max(strength, abs(value))
            rate = quotient(vector) if oscillates else float(value.real)
            found.append(Growth(rate, vector.real, bool(oscillates)))
        return max(found, key=lambda one: one.rate)

    def _newton(self, masses: np.ndarray, strength: float, order: float | None) -> StationaryState:
        masses = masses / masses.sum()
        best: StationaryState | None = None
        stalled = 0
        for _ in range(_NEWTON_STEPS):
            rate = self.rate(masses, strength)
            turns = self._turning.turns(masses)
            part = turns.weights.T @ rate
            omega, rate = turns.rates @ part, rate - turns.changes @ part
            residual = float(np.abs(rate).sum())
            missing = 0.0 if order is None else order - self.order(masses)
            unit = max(strength, 1e-3)
            stalled = 0 if best is None or residual < best.residual / 2 else stalled + 1
            turning = float(np.linalg.norm(omega))
            here = StationaryState(masses, strength, self.order(masses), residual, turning)
            if abs(missing) < 1e-6 and (best is None or residual < best.residual):
                best = here
            if residual <= _ZERO * unit and abs(missing) < 1e-9:
                return here
            if stalled >= _STALLED and best is not None and best.residual <= _GOOD * unit:
                return best
            if stalled >= _LOST:
                break
            try:
                change, stronger = self._newton_step(here, rate, turns, omega, order)
            except RuntimeError:
                break  # SuperLU was given a singular matrix: there are some far from any state
            relative = change / masses
            scale = min(1.0, _LARGEST_CHANGE / max(np.abs(relative).max(), 1e-300))
            masses = masses * np.exp(scale * relative)
            masses /= masses.sum()
            strength += scale * stronger
            if not (np.isfinite(masses).all() and strength > 0):
                break
        raise SolverError(
            f"no stationary state was found near noise.strength = {strength:.6g} "
            f"(residual {residual:.1e})"
        )

    def _newton_step(
        self,
        here: StationaryState,
        rate: np.ndarray,
        turns: Turns,
        omega: np.ndarray,
        order: float | None,
    ) -> tuple[np.ndarray, float]:
        """Changes of the masses and, if the order is given, of the strength."""
        masses, strength = here.masses, here.strength
        # The sum of the masses, which F does not see, is held by a term of rank one.
        inverse = splu(self.linear_part(masses, strength) - self.anchor())
        derivative = self.derivative(masses, strength)
        turned = self._turning.at(omega)
        n = self._count
        # Beside the masses, what else is unknown and what it does to F, with a condition for each.
        does, conditions, wanted = -turns.changes, turns.weights, np.zeros(turns.changes.shape[1])
        if order is not None:
            mean = masses @ self.mean
            direction = self.mean @ (mean / max(float(np.linalg.norm(mean)), 1e-300))
            does = np.column_stack([does, self.laplacian @ masses])
            conditions = np.column_stack([conditions, direction])
            wanted = np.append(wanted, order - here.order)

        def full(vector: np.ndarray) -> np.ndarray:
            change = vector[:n]
            image = derivative(change) - turned * change - change.sum() * self.uniform
            return np.append(image + does @ vector[n:], conditions.T @ change)

        def conditioned(vector: np.ndarray) -> np.ndarray:
            return np.append(inverse.solve(vector[:n]), vector[n:])

        # Preconditioned from the right: x = P^-1 y.
        size = n + len(wanted)
        operator = LinearOperator((size,) * 2, matvec=lambda y: full(conditioned(y)), dtype=float)
        right = np.append(-rate, wanted)
        solution, _ = gmres(operator, right, rtol=_LINEAR, restart=_KRYLOV, maxiter=3)
        solution = conditioned(solution)
        return solution[:n], 0.0 if order is None else float(solution[-1])
