"""A mesh that follows the mass: cells are split and merged between the steps of an evolution.

Every few steps the estimates of `mesh_error` are taken. The mesh changes only when one of them is
about to be broken, and then as far as leaves it some time: cells are split until the estimate of
W_1 is below half of `resolution`, and those are merged whose parents would add next to nothing to
it. Which cells these are is decided on rank 0, from numbers that all ranks have. Clusters narrower
than the kernel are taken from the cells, and given back when they are stretched (see `gathering`).
"""

from __future__ import annotations

import logging

from mpi4py import MPI

import numpy as np

from meanfield_pde.attention.heads import Layer
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.history.store import Arrays
from meanfield_pde.initial.given import InitialLike
from meanfield_pde.initial.masses import cell_masses
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.forest import Forest
from meanfield_pde.mesh.surface import Surface, build_mesh
from meanfield_pde.mesh.transfer import Transfer
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.evolution import Evolution
from meanfield_pde.solver.gathering import fine_for, gather, in_leaves, left_open, sifted
from meanfield_pde.solver.mesh_error import NARROWER, SPOT, Leaves, MeshError
from meanfield_pde.solver.spots import NONE, Spots
from meanfield_pde.support.checks import real

LOG = logging.getLogger("meanfield_pde")

MOST_CELLS = 200_000
CHECK_EVERY = 4  # steps, if they are short and hold no velocities: in units of 1 / |V|,
_SHORT = 0.02
# Of `resolution`: where cells are split, where that stops, and what merged cells may add up to.
_SPLIT_ABOVE, _SPLIT_TO, _MERGE_TO = 0.8, 0.4, 0.1
# Of the bounds on what a spot leaves open.
_SPLIT_PART, _MERGE_PART = 0.6, 0.4
_SPARE = 1.2  # of the largest width, so that merged cells are not split again
# Cells beside those that have to be split which are split with them, so that what moves there finds
# room for some steps. On the sphere, where these are many, that costs more than it saves.
_ROOM = {2: 16, 3: 0}
_FIRST_ROUNDS = 60  # in which the mesh is fitted to the initial density


def check_resolution(resolution: float, dimension: int | None) -> float:
    """A resolution that can be had with `MOST_CELLS` cells, of width sqrt(resolution); or raise."""
    resolution = real(
        resolution, "mesh.resolution", "a number of radians > 0 and < 1", lambda r: 0 < r < 1
    )
    cost = {2: 2 * np.pi / np.sqrt(resolution), 3: 4 * np.pi / resolution, None: 0.0}[dimension]
    if cost > MOST_CELLS:
        finest = {2: (2 * np.pi / MOST_CELLS) ** 2, 3: 4 * np.pi / MOST_CELLS}[dimension or 2]
        raise InputError(
            f"mesh.resolution = {resolution:g} takes about {cost:.1e} cells even where the density "
            f"is smooth, more than the {MOST_CELLS} that are allowed; give {1.05 * finest:.1e} or "
            "more"
        )
    return resolution


class MassFollower:
    """The mesh of one evolution, and when it changes.

    Attributes:
        forest: the present mesh.
        leaves: the same as cells.
        resolution: what W_1 of the mesh is kept below, in radians.
        changes: how often the mesh was changed.
    """

    def __init__(self, base: Surface, resolution: float, comm: MPI.Comm) -> None:
        self.resolution = resolution
        self.changes = 0
        self._base = base
        self._comm = comm
        self._take(Forest.of(base))

    @classmethod
    def on(cls, volumes: FiniteVolumes, resolution: float) -> MassFollower:
        """A follower whose coarsest mesh is that of the finite volumes."""
        cells = volumes.gather(volumes.cell_vertices[: volumes.owned])
        return cls(Surface(volumes.vertices, cells), resolution, volumes.comm)

    def begin(self, equation: Equation, initial: InitialLike) -> tuple[Equation, np.ndarray]:
        """Fit the mesh to an initial density: the equation on it, and the masses of own cells."""
        layer = equation.first_layer
        equation = equation.sloped(self._volumes())
        masses = cell_masses(initial, equation.volumes)
        for _ in range(_FIRST_ROUNDS):
            flux = equation.right_hand_side(layer).flux(masses)
            with np.errstate(divide="ignore"):
                error = self._estimate(equation.volumes, np.log(masses), flux, layer)
            split, _ = self._marks(error)
            old = self.forest
            if not split.any():
                break
            self._take(self._grown(old.refined(split)))
            every = equation.volumes.gather(masses)
            equation = equation.on(self._volumes())
            # Masses are integrals over the new cells, unless they are all that is known.
            if isinstance(initial, np.ndarray):
                initial = Transfer(old, self.forest, error.slopes).masses(every)
            masses = cell_masses(initial, equation.volumes)
        return equation, masses

    def follow(self, evolution: Evolution) -> None:
        """Change the mesh of the evolution if it has to be, after some of its steps. Collective."""
        short = evolution.last_dt * evolution.terms.speed < _SHORT
        if short and not evolution.held and evolution.step % CHECK_EVERY:
            return
        error, kept, gone = self._after_gathering(evolution)
        split, merge = self._marks(error)
        heavy = [spot for spot in gone if spot.mass > SPOT]
        if not (split.any() or heavy):
            if gone:
                arrays = evolution.changed(
                    evolution.state.gather(), 1.0, in_leaves(self.forest, gone)
                )
                evolution.go_on(arrays, kept)
            return
        old = self.forest
        refined = old.refined(self._with_room(split))
        for spot in heavy:
            refined = fine_for(refined, spot, self.resolution / NARROWER)
        first = Transfer(old, self._grown(refined), error.slopes)
        arrays = evolution.carried(first)
        if gone:
            arrays = evolution.changed(arrays, 1.0, in_leaves(refined, gone))
            evolution.spots = kept
        merge = merge[first.origin] & (refined.levels == old.levels[first.origin])
        new = refined.coarsened(merge)
        if new is not refined:
            arrays = evolution.carried(Transfer(refined, new, np.zeros(0)), arrays)
        self._take(new)
        equation = evolution.equation
        evolution.move(equation.on(self._volumes(equation.volumes)), arrays)
        self.changes += 1

    def _after_gathering(self, evolution: Evolution) -> tuple[MeshError, Spots, Spots]:
        """The estimates once spots are gathered, those that stay, and those to be given back."""
        error = self.estimate(evolution)
        if gather(evolution, self.leaves):
            error = self.estimate(evolution)
        return error, *sifted(evolution)

    def shown(self, spots: Spots) -> np.ndarray:
        """The mass of spots in each cell."""
        return in_leaves(self.forest, spots)

    def estimate(self, evolution: Evolution) -> MeshError:
        """What the mesh leaves open in the present state. Collective."""
        return self._estimate(
            evolution.equation.volumes,
            evolution.log_masses,
            evolution.present_flux(),
            evolution.terms.layer,
            evolution.spots,
        )

    def row(self, evolution: Evolution) -> dict[str, float]:
        """Columns of the history: number of cells, least width, estimate of W_1. Collective."""
        return {
            "cells": float(self.forest.count),
            "least_width": float(self.leaves.width.min()),
            "mesh_error": self.estimate(evolution).total,
            "spot_mass": float(sum(spot.mass for spot in evolution.spots)),
        }

    def record(self) -> dict[str, np.ndarray]:
        """What `regrown` takes: the mesh, for a checkpoint."""
        forest = self.forest
        changes = np.array([self.changes])
        return {"leaf_keys": forest.keys, "leaf_levels": forest.levels, "leaf_changes": changes}

    def regrown(self, record: Arrays) -> FiniteVolumes:
        """The mesh that a checkpoint names. Collective."""
        self._take(Forest.grown(self._base, record["leaf_keys"], record["leaf_levels"]))
        self.changes = int(record["leaf_changes"][0])
        return self._volumes()

    def _take(self, forest: Forest) -> None:
        self.forest = forest
        self.leaves = Leaves(forest)

    def _with_room(self, split: np.ndarray) -> np.ndarray:
        """The cells to be split, and those beside them that are as wide or wider."""
        levels, beside = self.forest.levels, self.forest.neighbours
        for _ in range(_ROOM[self.forest.dimension]):
            split = split | (split[beside] & (levels[beside] >= levels[:, None])).any(axis=1)
        return split

    def _volumes(self, before: FiniteVolumes | None = None) -> FiniteVolumes:
        return FiniteVolumes(build_mesh(self.forest.surface, self._comm), before)

    def _grown(self, forest: Forest) -> Forest:
        if forest.count > MOST_CELLS:
            raise SolverError(
                f"mesh.resolution = {self.resolution:g} takes {forest.count} cells, more than the "
                f"{MOST_CELLS} that are allowed; ask for less, or for a smaller beta"
            )
        return forest

    def _estimate(
        self,
        volumes: FiniteVolumes,
        log_masses: np.ndarray,
        flux: np.ndarray,
        layer: Layer,
        spots: Spots = NONE,
    ) -> MeshError:
        found = volumes.gather(np.column_stack([log_masses, volumes.speed(flux)]))
        return MeshError(
            self.leaves, found[:, 0], found[:, 1], layer, left_open(self.leaves, spots)
        )

    def _marks(self, error: MeshError) -> tuple[np.ndarray, np.ndarray]:
        """Which leaves are to be split, and which may be merged; none unless one has to be split.

        The same on all ranks. Thresholds are rounded to powers of sqrt(2), so that they do not
        hang on the last digits of the masses.
        """
        resolution, levels = self.resolution, self.forest.levels
        nothing = np.zeros(self.forest.count, dtype=bool)
        marks = (nothing, nothing)
        if self._comm.rank == 0 and (
            error.total > _SPLIT_ABOVE * resolution
            or error.unresolved(resolution).any()
            or error.blurred().any()
        ):
            split = error.unresolved(resolution, _SPLIT_PART) | error.blurred()
            if error.total > _SPLIT_ABOVE * resolution:
                split |= error.misplaced > _threshold(error.misplaced, _SPLIT_TO * resolution)
            parents = error.parents()
            merge = parents <= _threshold(parents, _MERGE_TO * resolution)
            wider = 2.0 ** (1 / (self.forest.dimension - 1))
            merge &= ~split & (levels > 0)
            merge &= ~error.unresolved(resolution, _MERGE_PART, wider)
            merge &= ~error.blurred(_SPARE * wider)
            marks = (split, merge)
        return self._comm.bcast(marks)


def _threshold(values: np.ndarray, budget: float) -> float:
    """A bound such that the values up to it add up to less than the budget, nearly."""
    ordered = np.sort(values)
    last = min(int(np.searchsorted(np.cumsum(ordered), budget)), len(ordered) - 1)
    return float(2.0 ** (np.floor(2 * np.log2(max(ordered[last], 1e-300))) / 2))
