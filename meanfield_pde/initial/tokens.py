"""Tokens as an initial density: atoms, deposited in the cells of the mesh."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.initial.base import InitialDensity
from meanfield_pde.support.arguments import check_fields, typed
from meanfield_pde.support.checks import input_path, numbers, to_sphere
from meanfield_pde.tokens.cloud import read_tokens
from meanfield_pde.wasserstein.measure import Measure

if TYPE_CHECKING:
    from meanfield_pde.mesh.finite_volume import FiniteVolumes


# Masses that differ by less, relative to their mean, are one: those in files may be rounded.
_ONE_MASS = 1e-9


@dataclass(frozen=True, eq=False)
class Tokens(InitialDensity):
    """Tokens on the sphere, atoms to be deposited in the cells of the mesh.

    Attributes:
        points: N x d positions; those off the sphere by up to 1e-6 are put back on it.
        masses: N weights >= 0, or None if all tokens weigh the same.
        path: the file the tokens were read from, if any; a case file can only name a file.
    """

    points: np.ndarray
    masses: np.ndarray | None = None
    path: Path | None = None

    kind = "tokens"
    keys = ("path",)

    def __post_init__(self) -> None:
        check_fields(self)
        points = np.atleast_2d(numbers(self.points, "points"))
        measure = Measure(points, np.ones(len(points)) if self.masses is None else self.masses)
        points, _ = to_sphere(measure.points, lambda i: f"token {i[0]}")
        object.__setattr__(self, "points", points)
        if self.masses is not None:
            object.__setattr__(self, "masses", measure.masses)

    @classmethod
    @typed
    def read(cls, path: str | Path) -> Tokens:
        """Read the tokens of an `.npz` or `.csv` file, at the first of its times."""
        cloud = read_tokens(path)
        return cls(cloud.tokens[0], cloud.masses, Path(path))

    @classmethod
    def required(cls) -> tuple[str, ...]:
        """The file: only in Python are there tokens without one."""
        return cls.keys

    @classmethod
    def from_table(cls, table: dict[str, Any], folder: Path) -> Tokens:
        """The tokens of the file that the table names."""
        return cls.read(input_path(table["path"], "initial.path", folder))

    def to_table(self) -> dict[str, Any]:
        """The file, by its absolute path."""
        if self.path is None:
            raise InputError(
                "a case file names tokens by their file: write them with write_tokens, "
                "and read them back with Tokens.read"
            )
        there = Tokens.read(self.path)
        if not _same(self.points, there.points) or not _same(self.masses, there.masses):
            raise InputError(
                f"{self.path}: the tokens in it are not those of the initial density, which a case "
                "file could not name then; read them with Tokens.read"
            )
        return {"kind": self.kind, "path": self.path.resolve().as_posix()}

    def check(self, dimension: int) -> None:
        """Refuse tokens that do not live in this dimension."""
        if self.points.shape[1] != dimension:
            source = f" in {self.path}" if self.path else ""
            raise InputError(
                f"initial tokens must have {dimension} coordinates, the dimension of "
                f"attention.value, got {self.points.shape[1]}{source}"
            )

    def measure(self) -> Measure:
        """The tokens as a probability measure."""
        masses = np.ones(len(self.points)) if self.masses is None else self.masses
        return Measure(self.points, masses / masses.sum())

    def exact(self, dimension: int) -> Measure:
        """The atoms."""
        return self.measure()

    def sample(self, generator: np.random.Generator, count: int, dimension: int) -> np.ndarray:
        """Tokens drawn with replacement; as many of one mass as are given are taken as they are."""
        measure = self.measure()
        if count == len(measure.points) and np.ptp(measure.masses) <= _ONE_MASS / count:
            return measure.points.copy()
        return measure.points[generator.choice(len(measure.points), count, p=measure.masses)]

    def cell_masses(self, volumes: FiniteVolumes) -> np.ndarray:
        """Give each token's mass to the cell that contains it. Collective.

        A token lies in the cell in which its smallest barycentric coordinate is largest; of cells
        that tie, because it is on their common facet, in the first in input order.
        """
        from meanfield_pde.mesh.location import cells_at  # scipy.spatial: see `_lazy`

        measure = self.measure()
        order = np.argsort(volumes.input_cells[: volumes.owned])
        cell, inside = cells_at(measure.points, volumes.cell_points[order])
        number = np.append(volumes.input_cells[order], volumes.global_cells)[cell]
        most = np.empty_like(inside)
        volumes.comm.Allreduce(inside, most, MPI.MAX)
        claim = np.where(inside == most, number, volumes.global_cells)
        owner = np.empty_like(claim)
        volumes.comm.Allreduce(claim, owner, MPI.MIN)
        masses = np.bincount(owner, measure.masses, volumes.global_cells)
        return volumes.scatter(masses)


def _same(array: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Whether both are the same numbers, or neither is there."""
    if array is None or other is None:
        return array is other
    return np.array_equal(array, other)
