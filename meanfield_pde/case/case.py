"""A case: everything that a user says about one problem, checked, with every default filled in.

The dataclasses mirror the sections of a case file, key by key; `case_file` reads them and
`case_text` writes them. A message begins with the key it is about, as in "mesh.cells must be ...".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from meanfield_pde.attention.layers import AttentionLike, pieces
from meanfield_pde.errors import InputError
from meanfield_pde.initial.base import InitialDensity
from meanfield_pde.initial.uniform import Uniform
from meanfield_pde.support.checks import choice, number_list, real, to_path, whole

MESH_KINDS = ("circle", "sphere", "file")
SCHEMES = ("muscl", "upwind")
# solver.log_masses, and what it is for `Simulation`: None lets it decide.
LOG_MASSES = {"auto": None, "on": True, "off": False}
FIELDS = ("pvd", "xdmf", "none")
COSTS = ("geodesic", "chordal")
DIMENSIONS = {"circle": 2, "sphere": 3}
DEFAULT_CELLS = {"circle": 800, "sphere": 5120}
MOST_CELLS = 2**31 - 1  # cells are numbered by 32-bit integers
# A polygon needs three cells; twenty is the icosahedron.
FEWEST_CELLS = {"circle": 3, "sphere": 20}
# A misplaced digit in save_every should be an error, not a full disk.
MOST_SAVED_TIMES = 100_000


@dataclass(frozen=True)
class MeshCase:
    """[mesh]: the circle, the sphere, or a mesh from a file.

    Attributes:
        kind: "circle", "sphere" or "file".
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
        grade = real(self.grade, "mesh.grade", "a number >= 1", lambda g: g >= 1)
        object.__setattr__(self, "grade", grade)
        if self.kind == "file":
            if self.path is None:
                raise InputError("mesh.path is missing: kind 'file' needs the path of a mesh")
            object.__setattr__(self, "path", to_path(self.path, "mesh.path"))
            if self.cells is not None or self.grade != 1:
                raise InputError("mesh.cells and mesh.grade do not apply to kind 'file'")
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
        """Dimension d of the space around the mesh; None for a file, which has to be read."""
        return DIMENSIONS.get(self.kind)


@dataclass(frozen=True)
class SolverCase:
    """[solver]: the finite volume scheme, and the numbers it works with.

    Attributes:
        scheme: "muscl" or "upwind".
        tolerance: of the attention sum, relative.
        log_masses: "on" to follow tails below the range of doubles, "off" not to, "auto" where
            the metastable state is predicted to outlive that range.
    """

    scheme: str = "muscl"
    tolerance: float = 1e-10
    log_masses: str = "auto"

    def __post_init__(self) -> None:
        choice(self.scheme, "solver.scheme", SCHEMES)
        # Below 1e-14 is out of reach of double precision.
        tolerance = real(
            self.tolerance,
            "solver.tolerance",
            "a number from 1e-14 to 1e-2",
            lambda t: 1e-14 <= t <= 1e-2,
        )
        object.__setattr__(self, "tolerance", tolerance)
        choice(self.log_masses, "solver.log_masses", LOG_MASSES)


@dataclass(frozen=True)
class TimeCase:
    """[time]: how far to go, and the times to save, listed or evenly spaced.

    The start and the end are always saved, whether or not they are listed.
    """

    until: float
    save_at: tuple[float, ...] = ()
    save_every: float | None = None

    def __post_init__(self) -> None:
        until = real(self.until, "time.until", "a number >= 0", lambda t: t >= 0)
        object.__setattr__(self, "until", until)
        given = number_list(self.save_at, "time.save_at")
        times = tuple(real(t, f"time.save_at[{i}]", "a number") for i, t in enumerate(given))
        object.__setattr__(self, "save_at", times)
        for i, t in enumerate(times):
            if not 0 <= t <= until:
                raise InputError(
                    f"time.save_at[{i}] must be between 0 and time.until = {until}, got {t}"
                )
            if i and t <= times[i - 1]:
                raise InputError(f"time.save_at must increase, got {t} after {times[i - 1]}")
        if self.save_every is None:
            return
        if times:
            raise InputError("time.save_at and time.save_every exclude each other; give one")
        step = real(self.save_every, "time.save_every", "a number > 0", lambda s: s > 0)
        object.__setattr__(self, "save_every", step)
        if until / step > MOST_SAVED_TIMES:
            raise InputError(
                f"time.save_every must leave at most {MOST_SAVED_TIMES} saved times, "
                f"got {step} for until = {until}"
            )

    @property
    def save_times(self) -> tuple[float, ...]:
        """The saved times in order: 0, those asked for, and `until`."""
        inside = self.save_at
        if self.save_every is not None:
            # A last multiple that is until but for rounding is until.
            count = math.ceil(self.until / self.save_every * (1 - 1e-12))
            inside = tuple(k * self.save_every for k in range(1, count))
        return tuple(sorted({0.0, *inside, self.until}))

    def with_until(self, until: float) -> TimeCase:
        """The same with another end; listed times beyond it are left out."""
        until = real(until, "time.until", "a number >= 0", lambda t: t >= 0)
        return replace(self, until=until, save_at=tuple(t for t in self.save_at if t <= until))


@dataclass(frozen=True)
class CompareCase:
    """[compare]: what each saved density is compared with, and how.

    Attributes:
        limit: compare with the push-forward of the initial density under the projection map.
        zero_temperature: compare with the same problem at beta = inf, solved alongside.
        p: the orders of the Wasserstein distances.
        cost: "geodesic" or "chordal".
        time_limit: seconds for one distance, after which the interval reached is taken.
    """

    limit: bool = False
    zero_temperature: bool = False
    p: tuple[int, ...] = (1,)
    cost: str = "geodesic"
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        for name in ("limit", "zero_temperature"):
            if not isinstance(value := getattr(self, name), bool):
                raise InputError(f"compare.{name} must be true or false, got {value!r}")
        if not (self.limit or self.zero_temperature):
            raise InputError("[compare] needs limit = true or zero_temperature = true")
        orders = tuple(whole(p, "compare.p", 1) for p in number_list(self.p, "compare.p"))
        if orders not in ((1,), (2,), (1, 2)):
            raise InputError(f"compare.p must be [1], [2] or [1, 2], got {list(orders)}")
        object.__setattr__(self, "p", orders)
        choice(self.cost, "compare.cost", COSTS)
        limit = real(self.time_limit, "compare.time_limit", "a number > 0", lambda s: s > 0)
        object.__setattr__(self, "time_limit", limit)


@dataclass(frozen=True)
class OutputCase:
    """[output]: where results go and in which form.

    Attributes:
        directory: the result folder; if relative, then to the current directory.
        fields: "pvd", "xdmf" or "none".
        checkpoint_every: steps between checkpoints; 0 for none.
    """

    directory: Path = Path("results")
    fields: str = "pvd"
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", to_path(self.directory, "output.directory"))
        choice(self.fields, "output.fields", FIELDS)
        every = whole(self.checkpoint_every, "output.checkpoint_every", 0)
        object.__setattr__(self, "checkpoint_every", every)


# Compared by `case_text.differing_keys`: the matrices of an Attention have no truth value for ==.
@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One problem: attention, mesh, initial density, and how to solve and save it.

    `source` is the case file it came from, if any.
    """

    attention: AttentionLike
    mesh: MeshCase
    time: TimeCase
    initial: InitialDensity = field(default_factory=Uniform)
    solver: SolverCase = field(default_factory=SolverCase)
    compare: CompareCase | None = None
    output: OutputCase = field(default_factory=OutputCase)
    source: Path | None = None

    def __post_init__(self) -> None:
        d = check_dimension(self.attention)
        if self.mesh.dimension not in (None, d):
            raise InputError(
                f"mesh.kind '{self.mesh.kind}' needs a {self.mesh.dimension} x "
                f"{self.mesh.dimension} attention.value, got {d} x {d}"
            )
        self.initial.check(d)
        pieces(self.attention, 0.0, self.time.until)  # refuses layers that end before
        if self.compare is not None and self.compare.zero_temperature:
            try:
                self.attention.with_beta(math.inf)
            except InputError as error:
                raise InputError(f"compare.zero_temperature: {error}") from None

    @property
    def dimension(self) -> int:
        """Dimension d: 2 on the circle, 3 on the sphere."""
        return self.attention.dimension


def check_dimension(attention: AttentionLike) -> int:
    """The dimension of the attention; InputError unless tokens live on the circle or sphere."""
    d = attention.dimension
    if d not in DIMENSIONS.values():
        raise InputError(
            f"attention.value must be 2 x 2 (tokens on the circle) or 3 x 3 (on the sphere), "
            f"got {d} x {d}"
        )
    return d
