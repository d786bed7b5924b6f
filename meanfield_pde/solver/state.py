"""The state of an evolution: the density on a mesh at a time, and the clocks. Data only.

A state is what a checkpoint holds: `record` gathers it, on every rank the same and in an order that
does not hang on their number, and `restored` makes it from that again. A step makes a new state of
the same grid; a regrid one of another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from meanfield_pde.amr import patch_arrays
from meanfield_pde.amr.extraction import deposit
from meanfield_pde.amr.forest import Forest
from meanfield_pde.amr.indicators import Leaves
from meanfield_pde.amr.patches import NONE, Patches
from meanfield_pde.amr.regrid import Regrid
from meanfield_pde.amr.settings import AdaptSettings
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.surface import build_mesh
from meanfield_pde.solver.masses import Masses, of_arrays
from meanfield_pde.support.ranks import total, totals

Arrays = Mapping[str, np.ndarray]
# Prefixes of the names of the arrays in a record that are not masses of cells.
LEAF, PATCH = "leaf_", "patch_"


@dataclass(frozen=True)
class Clocks:
    """Where a run stands, and what its next step begins with; all of it is in checkpoints.

    Attributes:
        time: of the state.
        step: number of steps taken.
        rejected: number of steps that were too long, and tried again with half the length.
        limited: number of steps of noise that had to be limited.
        regrids: how often the mesh was changed.
        last_dt: length of the last step.
        length: how long the next step may be by the error of the last; 0 if there is none yet.
        split_limit: longest time for which transport may act without noise, as last estimated.
        noise_step: length of a first step of noise, from which the next is chosen.
        change: total variation per unit of time in the last step; infinite where it is not known.
        most_change: the largest of these so far.
        steady: whether the run was ended here because the state is steady.
    """

    time: float = 0.0
    step: int = 0
    rejected: int = 0
    limited: int = 0
    regrids: int = 0
    last_dt: float = 0.0
    length: float = 0.0
    split_limit: float = math.inf
    noise_step: float = math.inf
    change: float = math.inf
    most_change: float = 0.0
    steady: bool = False

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Clocks:
        """The clocks of a record; those that it lacks stand at their beginning."""
        now = asdict(cls())
        return cls(**{name: type(now[name])(found[name]) for name in now if name in found})


@dataclass(frozen=True, eq=False)
class Grid:
    """A mesh: its finite volumes on this rank, and its leaves if it is adaptive.

    Attributes:
        volumes: the cells of this rank.
        leaves: the forest that they are the leaves of, the same on every rank; or None.
    """

    volumes: FiniteVolumes
    leaves: Leaves | None = None

    @classmethod
    def adaptive(cls, volumes: FiniteVolumes) -> Grid:
        """The adaptive grid whose coarsest mesh is that of the finite volumes. Collective."""
        forest = Forest.of(volumes.surface())
        return cls(FiniteVolumes(build_mesh(forest.surface, volumes.comm)), Leaves(forest))

    @property
    def forest(self) -> Forest:
        """The forest of an adaptive mesh."""
        assert self.leaves is not None
        return self.leaves.forest

    def on(self, forest: Forest) -> Grid:
        """The grid of another forest; what is the same of this one is used again. Collective."""
        mesh = build_mesh(forest.surface, self.volumes.comm)
        return Grid(FiniteVolumes(mesh, self.volumes), Leaves(forest))


@dataclass(frozen=True, eq=False)
class State:
    """The density at a time.

    Attributes:
        grid: the mesh.
        masses: of this rank's own cells.
        patches: mass beside that of the cells, the same on all ranks.
        clocks: where the run stands.
    """

    grid: Grid
    masses: Masses
    patches: Patches = NONE
    clocks: Clocks = Clocks()

    @property
    def volumes(self) -> FiniteVolumes:
        """The finite volumes of the mesh."""
        return self.grid.volumes

    @property
    def patch_mass(self) -> float:
        """The mass in patches."""
        return float(sum(patch.mass for patch in self.patches))

    def gathered(self) -> Masses:
        """The masses of all cells in input order, on every rank. Collective."""
        return self.masses.each(self.volumes.gather)

    def deposited(self, settings: AdaptSettings) -> np.ndarray:
        """The masses of all cells with those of the patches in them, as doubles. Collective."""
        masses = self.gathered().doubles
        if not self.patches:
            return masses
        return masses + deposit(self.grid.forest, self.patches, settings.patches)

    def second_moments(self) -> np.ndarray:
        """∫ x x^T dmu over the cells, by their centres, and the patches, by theirs. Collective."""
        here = self.volumes
        centre = here.centre[: here.owned]
        own = totals(here.comm, np.einsum("c,ci,cj->ij", self.masses.doubles, centre, centre))
        beside = (patch.mass * np.outer(patch.centre, patch.centre) for patch in self.patches)
        return np.asarray(own + sum(beside))

    def variation_from(self, other: State, width: float) -> float:
        """Total variation between two states on one mesh, of which one came from the other.

        Patches, which keep their mass, count by how far they are from where they were, as a part of
        the width. Collective.

        Args:
            other: the other state, with the same patches.
            width: that of the attention kernel.
        """
        own = float(np.abs(self.masses.doubles - other.masses.doubles).sum())
        beside = (
            one.mass * float(np.linalg.norm(one.centre - before.centre)) / width
            for one, before in zip(self.patches, other.patches, strict=True)
        )
        return total(self.volumes.comm, own) + sum(beside)

    def regridded(self, change: Regrid) -> State:
        """The state on the next mesh. Collective."""
        masses = change.apply(self.gathered())
        if change.forest is self.grid.forest:
            grid, clocks = self.grid, self.clocks
        else:
            grid = self.grid.on(change.forest)
            clocks = replace(self.clocks, regrids=self.clocks.regrids + 1)
        return State(grid, masses.each(grid.volumes.scatter), change.patches, clocks)

    def record(self) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """What a checkpoint holds: arrays of cells, mesh and patches; clocks. Collective."""
        leaves: dict[str, np.ndarray] = {}
        if self.grid.leaves is not None:
            forest = self.grid.forest
            leaves = {"leaf_keys": forest.keys, "leaf_levels": forest.levels}
        arrays = self.gathered().arrays | leaves | patch_arrays.record(self.patches)
        return arrays, asdict(self.clocks)

    def restored(self, arrays: Arrays, clocks: Clocks) -> State:
        """The state that `record` gave, on this mesh or one of its roots. Collective."""
        grid = self.grid
        if grid.leaves is not None:
            forest = grid.forest.with_leaves(arrays["leaf_keys"], arrays["leaf_levels"])
            grid = grid.on(forest)
        masses = {name: a for name, a in arrays.items() if not name.startswith((LEAF, PATCH))}
        found = of_arrays(masses).each(grid.volumes.scatter)
        return State(grid, found, patch_arrays.recorded(arrays), clocks)
