"""A case: everything that a user says about one problem, checked, with every default filled in.

The dataclasses mirror the sections of a case file, key by key; `case.file` reads them and
`case.text` writes them. A message begins with the key it is about, as in "mesh.cells must be ...".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meanfield_pde.amr.settings import MOST_CELLS, AdaptSettings
from meanfield_pde.attention.layers import AttentionLike, pieces
from meanfield_pde.errors import InputError
from meanfield_pde.initial.base import InitialDensity
from meanfield_pde.initial.uniform import Uniform
from meanfield_pde.mesh.surface import MOST_GRADE
from meanfield_pde.solver.settings import (
    CompareCase,
    NoiseCase,
    SolverCase,
    TimeCase,
    check_noise,
)
from meanfield_pde.support.arguments import check_fields
from meanfield_pde.support.checks import choice, duration, is_number, real, shown, to_path, whole

# Tokens need no mesh, in any dimension.
NO_MESH = "none"
MESH_KINDS = ("circle", "sphere", "file", NO_MESH)
FIELDS = ("pvd", "xdmf", "none")
DIMENSIONS = {"circle": 2, "sphere": 3}
ADAPT_KEYS = ("tolerance", "max_cells")  # the settings of an adaptive mesh that users meet
DEFAULT_CELLS = {"circle": 800, "sphere": 5120}
# A polygon needs three cells; twenty is the icosahedron.
FEWEST_CELLS = {"circle": 3, "sphere": 20}


@dataclass(frozen=True)
class MeshCase:
    """[mesh]: the circle, the sphere, a mesh from a file, or none, for tokens alone.

    Attributes:
        kind: "circle", "sphere", "file" or "none".
        cells: number of cells of the circle; the sphere is the smallest icosphere with at least
            this many. None stands for the default, 800 and 5120; a file has its own number.
        grade: above 1, cells are refined toward the cluster axis by this factor.
        path: the mesh file, for kind "file" only.
    """

    kind: str
    cells: int | None = None
    grade: float = 1.0
    path: Path | None = None

    def __post_init__(self) -> None:
        choice(self.kind, "mesh.kind", MESH_KINDS)
        grade = real(
            self.grade,
            "mesh.grade",
            f"a number >= 1 and <= {MOST_GRADE:g}",
            lambda g: 1 <= g <= MOST_GRADE,
        )
        object.__setattr__(self, "grade", grade)
        if self.kind == "file":
            if self.path is None:
                raise InputError("mesh.path is missing: kind 'file' needs the path of a mesh")
            object.__setattr__(self, "path", to_path(self.path, "mesh.path"))
            if self.cells is not None or self.grade != 1:
                raise InputError("mesh.cells and mesh.grade do not apply to kind 'file'")
            return
        if self.kind == NO_MESH:
            if self.cells is not None or self.grade != 1 or self.path is not None:
                raise InputError("mesh.cells, mesh.grade and mesh.path do not apply to kind 'none'")
            return
        if self.path is not None:
            raise InputError(f"mesh.path applies to kind 'file' only, not to '{self.kind}'")
        cells = DEFAULT_CELLS[self.kind] if self.cells is None else self.cells
        cells = whole(cells, "mesh.cells", FEWEST_CELLS[self.kind])
        if cells > MOST_CELLS:
            raise InputError(f"mesh.cells must be at most {MOST_CELLS}, got {cells}")
        object.__setattr__(self, "cells", cells)

    @property
    def dimension(self) -> int | None:
        """Dimension d of the space around the mesh; None for a file, or for none."""
        return DIMENSIONS.get(self.kind)

    @property
    def there(self) -> bool:
        """Whether there is one."""
        return self.kind != NO_MESH


@dataclass(frozen=True)
class OutputCase:
    """[output]: where results go and in which form.

    Attributes:
        directory: the result folder; if relative, then to the current directory.
        fields: "pvd", "xdmf" or "none".
        checkpoint_every: steps between checkpoints, or a time such as "10min"; 0 for none.
    """

    directory: Path = Path("results")
    fields: str = "pvd"
    checkpoint_every: int | str = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", to_path(self.directory, "output.directory"))
        choice(self.fields, "output.fields", FIELDS)
        if isinstance(self.checkpoint_every, str):
            duration(self.checkpoint_every, "output.checkpoint_every")
        else:
            every = whole(self.checkpoint_every, "output.checkpoint_every", 0)
            object.__setattr__(self, "checkpoint_every", every)

    @property
    def checkpoint_steps(self) -> int:
        """Steps between checkpoints; 0 if they follow the clock, or there are none."""
        return 0 if isinstance(self.checkpoint_every, str) else self.checkpoint_every

    @property
    def checkpoint_seconds(self) -> float:
        """Seconds between checkpoints; infinite if they follow the steps."""
        if isinstance(self.checkpoint_every, str):
            return duration(self.checkpoint_every, "output.checkpoint_every")
        return math.inf


# Compared by `case.text.differing_keys`: the matrices of an Attention have no truth value for ==.
@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One problem: attention, mesh, initial density, and how to solve and save it.

    `observables` are formulas by the names of their columns in the history.
    `adapt` is the tolerance of an adaptive mesh and its largest size; None keeps the mesh as it is.
    `source` is the case file it came from, if any.
    """

    attention: AttentionLike
    mesh: MeshCase
    adapt: AdaptSettings | None = None
    time: TimeCase
    initial: InitialDensity = field(default_factory=Uniform)
    noise: NoiseCase = field(default_factory=NoiseCase)
    solver: SolverCase = field(default_factory=SolverCase)
    observables: Mapping[str, str] = field(default_factory=dict)
    compare: CompareCase | None = None
    output: OutputCase = field(default_factory=OutputCase)
    source: Path | None = None

    def __post_init__(self) -> None:
        given: Any = self.adapt
        if is_number(given):  # a tolerance, as `solve` takes one
            object.__setattr__(self, "adapt", AdaptSettings(given))
        check_fields(self, unchecked=["observables"])
        d = check_dimension(self.attention) if self.mesh.there else self.attention.dimension
        if self.mesh.dimension not in (None, d):
            raise InputError(
                f"mesh.kind '{self.mesh.kind}' needs a {self.mesh.dimension} x "
                f"{self.mesh.dimension} attention.value, got {d} x {d}"
            )
        if self.adapt is not None:
            if not self.mesh.there:
                raise InputError("[adapt] needs a mesh, but mesh.kind is 'none'")
            object.__setattr__(self, "adapt", AdaptSettings.of(self.adapt, d))
        self.initial.check(d)
        if self.observables != {}:
            self._check_observables(d)
        pieces(self.attention, 0.0, self.time.until)  # refuses layers that end before
        check_noise(self.noise.strength, self.solver, self.compare)
        if self.compare is not None and self.compare.zero_temperature:
            try:
                self.attention.with_beta(math.inf)
            except InputError as error:
                raise InputError(f"compare.zero_temperature: {error}") from None

    @property
    def dimension(self) -> int:
        """Dimension d: 2 on the circle, 3 on the sphere."""
        return self.attention.dimension

    def _check_observables(self, dimension: int) -> None:
        from meanfield_pde.solver.observables import own_observables  # meshes: see `_lazy`

        table = self.observables if isinstance(self.observables, Mapping) else {}
        for name, one in table.items():
            if not isinstance(one, str):  # a file could not hold a function
                raise InputError(
                    f"observables.{name} must be a formula in quotes, got {shown(one)}"
                )
        own_observables(self.observables, dimension)


def check_dimension(attention: AttentionLike) -> int:
    """The dimension of the attention; InputError unless tokens live on the circle or sphere."""
    d = attention.dimension
    if d not in DIMENSIONS.values():
        raise InputError(
            f"attention.value must be 2 x 2 (tokens on the circle) or 3 x 3 (on the sphere), "
            f"got {d} x {d}; in other dimensions there are tokens alone, by `meanfield-pde tokens` "
            "and `lifetime --tokens`"
        )
    return d
