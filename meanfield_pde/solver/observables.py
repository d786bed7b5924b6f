"""Observables: the columns of a history, each one record, and those that a user adds.

A record has the name of the column, the function of a `Snapshot` that gives its value, its unit,
and how it is drawn. Rows of the history, their order, `figures/history.png` and the table in
demos/reference/columns.md all come from the list that `columns` returns: a new one is one more.

A user's own is a function f of points, or a formula: its column is the integral of f against the
density, as those of the moments, with reconstructed cells and patches where they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.initial.expression import Expression
from meanfield_pde.initial.pointwise import probes
from meanfield_pde.mesh.geometry import AXES
from meanfield_pde.solver.diagnostics import PointFunction, Snapshot, moment_pairs
from meanfield_pde.solver.settings import COMPARED, ORDERS, CompareCase, Compared
from meanfield_pde.support.checks import shown
from meanfield_pde.support.old_names import COLUMNS as OLD_NAMES

# What a user may add: all names of a history have to fit into the 64 KB of an attribute in HDF5.
MOST_OWN, LONGEST_NAME = 100, 40

OwnObservables = Mapping[str, Callable[[np.ndarray], np.ndarray] | str]


@dataclass(frozen=True)
class Kind:
    """Of which kind a run is, which decides what columns it has.

    Attributes:
        noise: whether there is any.
        adaptive: whether its mesh is.
        compare: what it is compared with.
    """

    noise: bool = False
    adaptive: bool = False
    compare: CompareCase | None = None


def _always(kind: Kind) -> bool:
    return True


@dataclass(frozen=True)
class Observable:
    """A column of the history.

    Attributes:
        name: of the column.
        value: of it, for a snapshot of the state. Evaluated on every rank: it may be collective.
        meaning: what it is, in a line of demos/reference/columns.md.
        unit: of its values; empty for a number.
        panel: title of the panel in which it is drawn, with others; by default one of its own.
        logarithmic: whether it is of interest where it is small. Others are drawn logarithmically
            where they are positive and span decades.
        family: what demos/reference/columns.md calls those that are alike; by default its name.
        when: whether a run of a kind has it.
        required: whether a history without it is refused: those that version 0.1.0 wrote.
    """

    name: str
    value: Callable[[Snapshot], float]
    meaning: str = ""
    unit: str = ""
    panel: str = ""
    logarithmic: bool = False
    family: str = ""
    when: Callable[[Kind], bool] = _always
    required: bool = False

    @property
    def title(self) -> str:
        """Of its panel."""
        return self.panel or self.name


def columns(dimension: int, cost: str = CompareCase.cost) -> tuple[Observable, ...]:
    """Return all columns that a history of this dimension may have, in their order.

    Those of version 0.1.0 come first, in the order that users know; a new one is last.

    Args:
        dimension: d.
        cost: of the distances.
    """
    per_volume = {2: "1/rad", 3: "1/sr"}[dimension]
    length = {"geodesic": "rad", "chordal": "chord length"}[cost]
    return (
        Observable("time", lambda s: s.time, "t of the saved density", required=True),
        Observable("step", lambda s: s.step, "number of steps taken", required=True),
        Observable("mass", lambda s: s.masses.sum(), "∫ dµ", required=True),
        Observable(
            "min_density",
            lambda s: s.density.min(),
            "smallest density, as it is saved: constant in each cell",
            unit=per_volume,
            required=True,
        ),
        Observable(
            "max_density",
            lambda s: s.density.max(),
            "largest density, as it is saved",
            unit=per_volume,
            required=True,
        ),
        *_moments(dimension),
        Observable(
            "free_energy",
            lambda s: s.free_energy,
            "strength of the noise times ∫ log(density) dµ, less the energy; without the "
            "denominator, where V = QᵀK is symmetric, it never increases",
            when=lambda kind: kind.noise,
        ),
        Observable(
            "energy",
            lambda s: np.exp(s.log_energy),
            "∬ exp(β ⟨Qx, Ky⟩) dµ dµ / 2β, of several heads their sum; nan at β = 0 and ∞",
            required=True,
        ),
        Observable(
            "lyapunov",
            lambda s: s.lyapunov,
            "∫ dist(x, E)² dµ, E the dominant eigenspace of A = V QᵀK; nan if there is none",
            unit="rad²",
            required=True,
        ),
        *_distances(length),
        Observable(
            "log_energy", lambda s: s.log_energy, "logarithm of the energy, which overflows"
        ),
        Observable(
            "unresolved_mass",
            lambda s: s.unresolved,
            "mass in cells beside one whose density is less than 1/e² of theirs: clusters narrower "
            "than the cells",
        ),
        Observable(
            "cells",
            lambda s: s.indicators.leaves.forest.count,
            "number of cells, with `[adapt]`",
            when=lambda kind: kind.adaptive,
        ),
        Observable(
            "min_cell_width",
            lambda s: s.indicators.leaves.width.min(),
            "width of the narrowest cell, with `[adapt]`; on the sphere the root of its area",
            unit="rad",
            when=lambda kind: kind.adaptive,
        ),
        Observable(
            "w1_error_estimate",
            lambda s: s.indicators.total,
            "estimate of what the mesh adds to W₁, with `[adapt]`",
            unit="rad",
            logarithmic=True,
            when=lambda kind: kind.adaptive,
        ),
        Observable(
            "patch_mass",
            lambda s: sum(patch.mass for patch in s.patches),
            "mass in Lagrangian patches, with `[adapt]`",
            when=lambda kind: kind.adaptive,
        ),
        Observable(
            "mean_norm",
            lambda s: np.linalg.norm(s.mean),
            "length of ∫ x dµ, the order parameter",
            panel="first moments",
        ),
    )


def columns_of(dimension: int, kind: Kind) -> tuple[Observable, ...]:
    """Return the columns that a run of a kind has."""
    return tuple(one for one in columns(dimension) if one.when(kind))


def row_of(observables: Iterable[Observable], snapshot: Snapshot) -> dict[str, float]:
    """Return the values of observables for a snapshot, by name. Collective."""
    with np.errstate(over="ignore"):
        return {one.name: float(one.value(snapshot)) for one in observables}


def column_named(name: str, dimension: int, cost: str = CompareCase.cost) -> Observable:
    """Return the record of a column that was read; of a user's own nothing but its name is known.

    Its value is not a number: there is no function any more.
    """
    known = {one.name: one for one in columns(dimension, cost)}
    return known.get(name) or Observable(name, lambda _: math.nan)


def own_observables(given: OwnObservables, dimension: int) -> tuple[Observable, ...]:
    """Return the records of a user's observables; InputError unless names and functions will do.

    Args:
        given: functions of points (N x d -> N), or formulas in x, y, z, by name.
        dimension: d.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"observables must be functions or formulas by name, got {shown(given)}")
    if len(given) > MOST_OWN:
        raise InputError(f"there may be {MOST_OWN} observables at most, got {len(given)}")
    return tuple(_own(name, one, dimension) for name, one in given.items())


def _own(name: str, given: Callable[[np.ndarray], np.ndarray] | str, dimension: int) -> Observable:
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII)):
        raise InputError(
            f"observables: a name must be letters, digits and _, and begin with a letter, got "
            f"{shown(name)}"
        )
    if len(name) > LONGEST_NAME:
        raise InputError(f"observables: a name may have {LONGEST_NAME} characters, got {name!r}")
    taken = {one.name for d in (2, 3) for one in columns(d)}
    if name in taken or name in OLD_NAMES:
        raise InputError(f"observables.{name}: the history has a column of that name; take another")
    if isinstance(given, str):
        try:
            given = Expression(given, tuple(AXES[:dimension]))
        except InputError as error:
            raise InputError(f"observables.{name}: {error}") from None
    elif not callable(given):
        raise InputError(
            f"observables.{name} must be a formula in quotes, or in Python a function of points, "
            f"got {shown(given)}"
        )
    function = PointFunction(f"observables.{name}", given)
    function(probes(dimension))
    return Observable(name, lambda s: s.integral(function))


def _moments(dimension: int) -> list[Observable]:
    """The columns of the first and second moments."""
    axes = AXES[:dimension]
    cells = ", of the density as it is reconstructed in each cell"
    return [
        Observable(
            f"mean_{axis}",
            partial(_moment, "mean", i),
            f"∫ xᵢ dµ{cells}",
            panel="first moments",
            family="mean_*",
            required=True,
        )
        for i, axis in enumerate(axes)
    ] + [
        Observable(
            f"second_{axes[i]}{axes[j]}",
            partial(_moment, "second", k),
            "∫ xᵢ xⱼ dµ, likewise",
            panel="second moments",
            family="second_*",
            required=True,
        )
        for k, (i, j) in enumerate(moment_pairs(dimension))
    ]


def _moment(name: str, index: int, snapshot: Snapshot) -> float:
    return float(getattr(snapshot, name)[index])


def _distances(length: str) -> list[Observable]:
    """The columns of `Distances`, by order and what is compared, in radians or chord length."""

    def one(
        name: str, compared: Compared, meaning: str, family: str, p: int | None = None
    ) -> Observable:
        def has(kind: Kind) -> bool:
            asked = kind.compare
            return asked is not None and compared.asked_for(asked) and p in (None, *asked.p)

        panel = "width of the cells" if p is None else f"$W_{p}$"
        return Observable(
            name, lambda s: s.distances[name], meaning, length, panel, True, family, has
        )

    found = []
    for p in ORDERS:
        for compared in COMPARED:
            name = compared.column(p)
            meaning = f"W_p between atoms at the centres of cells, {compared.label}"
            found.append(one(name, compared, meaning, compared.column("*"), p))
            if compared.interval:
                meaning = "certified interval of it between the densities, however coarse cells are"
                family = ", ".join(compared.bounds("*"))
                found += [one(end, compared, meaning, family, p) for end in compared.bounds(p)]
    for compared in COMPARED:
        meaning = "how far putting each cell's mass at its centre may change that distance"
        found.append(one(compared.quantisation, compared, meaning, "quantisation_*"))
    return found
