"""Stationary states of the equation with noise, stable or not, by Newton's method.

    F(M) = transport(M) + sigma A M = 0,      sum_c M_c = 1

with the same fluxes as the evolution, so that its stationary states are these (but for the error of
its splitting). Newton's equations are solved by GMRES, with the derivative along w M taken from
differences of log masses, which stay positive; it is preconditioned by the matrix of a linear
equation, noise and upwind transport by the present fluxes, so that what remains is compact: the
dependence of the fluxes on the density.

`follow` takes a state from one strength to the next and says whether it is stable; `at_order` finds
the state with a given order parameter r = |∫ x dmu|, and the strength that it belongs to, which
also finds branches that no evolution comes to.

All ranks compute the same: masses are those of all cells, in the mesh's input order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import LinearOperator, eigs, gmres, splu

from meanfield_pde.errors import SolverError
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.laplace_beltrami import LaplaceBeltrami

_DIFFERENCE = 1e-5  # of log masses, central
_NEWTON_STEPS = 40
_LARGEST_CHANGE = 1.0  # of a log mass, in one step of Newton
# |F| in total variation, relative to sigma: what the tolerance of the attention sum allows.
_ZERO = 1e-9
# States that can be turned leave rounding errors undamped: what is taken when it falls no more.
_GOOD, _STALLED = 1e-5, 4
_LINEAR = 1e-6  # relative residual of GMRES
_KRYLOV = 60


@dataclass(frozen=True, eq=False)
class StationaryState:
    """A stationary state.

    Attributes:
        masses: of all cells.
        strength: sigma.
        order: r = |∫ x dmu|.
        residual: sum of |F|.
    """

    masses: np.ndarray
    strength: float
    order: float
    residual: float


class Stationary:
    """The stationary problem of an equation, for any strength of its noise."""

    def __init__(self, equation: Equation) -> None:
        self.equation = equation
        self.volumes = volumes = equation.volumes
        self._terms = equation.right_hand_side(equation.first_layer)
        own = slice(0, volumes.owned)
        self.volume = volumes.gather(volumes.volume[own])
        self.uniform = self.volume / self.volume.sum()
        self._mean = volumes.gather(volumes.cell_mean[own])
        self._laplacian = self._gathered(*LaplaceBeltrami(volumes).triplets())
        self._count = len(self.volume)

    def order(self, masses: np.ndarray) -> float:
        """R = |∫ x dmu|."""
        return float(np.linalg.norm(masses @ self._mean))

    def rate(self, masses: np.ndarray, strength: float) -> np.ndarray:
        """F(M) for the masses of all cells. Collective."""
        volumes = self.volumes
        own = volumes.scatter(masses)
        change = np.empty_like(own)
        self._terms.transport.rate_of_change(own, self._terms.flux(own), change)
        return volumes.gather(change) + strength * (self._laplacian @ masses)

    def newton(self, masses: np.ndarray, strength: float) -> StationaryState:
        """The stationary state near these masses; SolverError if there is none. Collective."""
        return self._newton(masses, strength, None)

    def at_order(self, masses: np.ndarray, strength: float, order: float) -> StationaryState:
        """The state with this order parameter near these masses and strength. Collective."""
        return self._newton(masses, strength, order)

    def growth(self, masses: np.ndarray, strength: float) -> tuple[float, np.ndarray]:
        """Rate of the fastest perturbation of a stationary state, and its shape. Collective.

        It is that of (1 - h P)^-1 J, with P the preconditioner and J the derivative of F: it has
        the same zeros and the same sign as that of J, and its large rates are bounded by 1 / h.
        """
        preconditioner = self._linear_part(masses, strength)
        step = 1.0 / max(strength, self._terms.speed)
        implicit = splu(scipy.sparse.identity(self._count, format="csc") - step * preconditioner)
        derivative = self._derivative(masses, strength)
        operator = LinearOperator(
            (self._count,) * 2,
            matvec=lambda change: implicit.solve(derivative(change)),
            dtype=float,
        )
        begin = masses * (self._mean @ np.arange(1.0, self._mean.shape[1] + 1))
        values, vectors = eigs(operator, k=4, which="LR", v0=begin - begin.sum() * masses, tol=1e-6)
        # The masses themselves are no perturbation: their sum is fixed.
        sums = np.abs(vectors.sum(axis=0)) / np.abs(vectors).sum(axis=0)
        allowed = np.flatnonzero(sums < 1e-3)
        if not len(allowed):
            raise SolverError("no perturbation of the stationary state was found")
        fastest = allowed[values[allowed].real.argmax()]
        return float(values[fastest].real), vectors[:, fastest].real

    def _newton(self, masses: np.ndarray, strength: float, order: float | None) -> StationaryState:
        masses = masses / masses.sum()
        best: StationaryState | None = None
        stalled = 0
        for _ in range(_NEWTON_STEPS):
            rate = self.rate(masses, strength)
            residual = float(np.abs(rate).sum())
            missing = 0.0 if order is None else order - self.order(masses)
            unit = max(strength, 1e-3)
            stalled = 0 if best is None or residual < best.residual / 2 else stalled + 1
            if abs(missing) < 1e-6 and (best is None or residual < best.residual):
                best = StationaryState(masses, strength, self.order(masses), residual)
            if residual <= _ZERO * unit and abs(missing) < 1e-9:
                return StationaryState(masses, strength, self.order(masses), residual)
            if stalled >= _STALLED and best is not None and best.residual <= _GOOD * unit:
                return best
            try:
                change, stronger = self._newton_step(masses, strength, rate, missing, order)
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
        masses: np.ndarray,
        strength: float,
        rate: np.ndarray,
        missing: float,
        order: float | None,
    ) -> tuple[np.ndarray, float]:
        """Changes of the masses and, if the order is given, of the strength."""
        # The sum of the masses, which F does not see, is held by a term of rank one.
        inverse = splu(self._linear_part(masses, strength) - self._anchor())
        derivative = self._derivative(masses, strength)
        n = self._count
        stronger = self._laplacian @ masses
        mean = masses @ self._mean
        direction = self._mean @ (mean / max(float(np.linalg.norm(mean)), 1e-300))

        def full(vector: np.ndarray) -> np.ndarray:
            change = vector[:n]
            image = derivative(change) - change.sum() * self.uniform
            if order is None:
                return image
            return np.append(image + vector[n] * stronger, direction @ change)

        def conditioned(vector: np.ndarray) -> np.ndarray:
            first = inverse.solve(vector[:n])
            return first if order is None else np.append(first, vector[n])

        size = n if order is None else n + 1
        right = -rate if order is None else np.append(-rate, missing)
        # Preconditioned from the right: x = P^-1 y.
        operator = LinearOperator((size,) * 2, matvec=lambda y: full(conditioned(y)), dtype=float)
        solution, _ = gmres(operator, right, rtol=_LINEAR, restart=_KRYLOV, maxiter=3)
        solution = conditioned(solution)
        return solution[:n], 0.0 if order is None else float(solution[n])

    def _derivative(
        self, masses: np.ndarray, strength: float
    ) -> Callable[[np.ndarray], np.ndarray]:
        """The product of the derivative of F with a change of the masses."""

        def product(change: np.ndarray) -> np.ndarray:
            relative = np.asarray(change, dtype=float).ravel() / masses
            size = float(np.abs(relative).max())
            if size == 0:
                return np.zeros_like(masses)
            move = _DIFFERENCE / size * relative
            ahead = self.rate(masses * (1 + move), strength)
            behind = self.rate(masses * (1 - move), strength)
            return (ahead - behind) * (size / (2 * _DIFFERENCE))

        return product

    def _linear_part(self, masses: np.ndarray, strength: float) -> scipy.sparse.csc_matrix:
        """Noise, and upwind transport by the fluxes of these masses, as a matrix."""
        volumes = self.volumes
        flux = self._terms.flux(volumes.scatter(masses))
        cell = np.repeat(np.arange(volumes.owned), volumes.dimension)
        leaving, target = volumes.outflow(flux).ravel(), volumes.neighbours.ravel()
        upwind = self._gathered(
            np.concatenate([cell, target]),
            np.concatenate([cell, cell]),
            np.concatenate([-leaving, leaving]),
        )
        return (strength * self._laplacian + upwind).tocsc()

    def _anchor(self) -> scipy.sparse.csc_matrix:
        """A small sink in one cell, which makes the linear part regular."""
        cell = int(self.volume.argmax())
        return scipy.sparse.csc_matrix(([1.0], ([cell], [cell])), shape=(self._count,) * 2)

    def _gathered(
        self, rows: np.ndarray, columns: np.ndarray, values: np.ndarray
    ) -> scipy.sparse.csc_matrix:
        """The matrix of all ranks' entries, given by local numbers of cells. Collective."""
        numbers, comm = self.volumes.input_cells, self.volumes.comm
        parts = comm.allgather((numbers[rows], numbers[columns], values))
        i, j, entries = (np.concatenate(part) for part in zip(*parts, strict=True))
        count = self.volumes.global_cells
        return scipy.sparse.coo_matrix((entries, (i, j)), (count, count)).tocsc()


def top_of_branch(states: list[StationaryState]) -> tuple[float, float]:
    """The largest strength on a branch of states, by a parabola in r^2 through its top, and the r.

    That of an end of the branch if it is there.
    """
    strengths = np.array([one.strength for one in states])
    squares = np.array([one.order**2 for one in states])
    top = int(strengths.argmax())
    if top in (0, len(states) - 1):
        return float(strengths[top]), math.sqrt(squares[top])
    near = slice(top - 1, top + 2)
    a, b, c = np.polyfit(squares[near], strengths[near], 2)
    return float(c - b * b / (4 * a)), math.sqrt(-b / (2 * a))
