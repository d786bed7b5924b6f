"""What an adaptive mesh is asked for, and the numbers that its decisions hang on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.support.arguments import check_settings, typed
from meanfield_pde.support.checks import real, whole

# Cells up to which an adaptive mesh may grow by default: forest, remap and indicators are arrays of
# all cells on every rank, and a regrid makes them anew.
MAX_CELLS = 200_000
MOST_CELLS = 2**31 - 1  # cells are numbered by 32-bit integers
# A ring of cells is a loop over all of them: more than these are more than a mesh of any use has.
MOST_RINGS = 1000
_PROFILE = ("profile_coarsen", "profile_refine")
MOST_HALVINGS = 12  # a patch has 4^h pieces on the sphere: 10^7 and a GB with twelve


def _by_dimension[T](circle: T, sphere: T) -> Mapping[int, T]:
    return {2: circle, 3: sphere}


def _check_most(table: Mapping[int, int], name: str, most: int) -> None:
    """InputError if an entry of a table is more than `most`."""
    if max(table.values(), default=0) > most:
        raise InputError(f"{name} must be at most {most}, got {dict(table)}")


@dataclass(frozen=True)
class IndicatorSettings:
    """Constants of the refinement indicators; symbols as in `indicators`.

    Attributes:
        flux_share: of o in the error of a flux. A reconstruction that misses o at the neighbours'
            centres misses o / 4 at the facet, half of the way (second order).
        offset_share: of w s in the distance of the mass from where it is shown: the mean position
            of a density 1 + s x / w on a cell of width w is s w / 6 off in the mean over |x|.
        cluster_mass: a cell with more mass than this belongs to a cluster, whose profile counts;
            the mass in all lighter cells of a cluster is a trace that attention does not see.
        profile: bound on o + s - 1 in clusters: half-way times at beta = 160 to 640 are within
            0.3 % of moving arcs with it (`tests.benchmarks.adaptivity --part lifetimes`).
        narrowest: width, in tolerances, below which profiles are not refined: where it is one half
            the profile is worth less than the tolerance in W_1.
        kernels: widest cell, in attention kernels |beta B|^(-1/2). On the circle 0.5 costs nothing.
            On the sphere it comes to 0.45 with a tolerance of 2e-3: half-way times of
            `demos/sphere-skew.toml` with 5,120, 2,880 and 320 cells given are 11.15, 11.30 and
            11.24 with 0.6, and 11.11, 11.15 and 11.07 with 0.45, which takes 1.3 times as long.
        velocity_lengths: widest cell, in lengths l(x) over which the velocity changes; 0.7 on the
            sphere with a tolerance of 2e-3.
        narrower_below: tolerance below which both fall with its root, as cells do where the density
            is smooth. Half-way times at beta = 100 on the sphere are 9.147 to 9.159 with 5e-3,
            and 9.153 to 9.169 with 2e-3, for 9.177 by moving triangles; it takes four times as long
            (`tests.benchmarks.adaptivity --part sphere`, which has both cases).
    """

    flux_share: float = 0.25
    offset_share: float = 1 / 6
    cluster_mass: float = 1e-3
    profile: float = 0.25
    narrowest: float = 0.5
    kernels: Mapping[int, float] = field(default_factory=lambda: _by_dimension(0.5, 0.72))
    velocity_lengths: Mapping[int, float] = field(default_factory=lambda: _by_dimension(1.0, 1.12))
    narrower_below: Mapping[int, float] = field(
        default_factory=lambda: _by_dimension(1e-4, 5.12e-3)
    )

    def __post_init__(self) -> None:
        check_settings(
            self, "adapt.indicators.", zero=["flux_share", "offset_share", "cluster_mass"]
        )


@dataclass(frozen=True)
class PatchSettings:
    """When mass is extracted into a Lagrangian patch, and when it is deposited again.

    Attributes:
        width: largest standard deviation s of a new patch, in kernels: its `lost` widths are then
            less than a kernel, over which polynomials of degree 4 give the velocity.
        retire_width: in s: a patch that is wider is deposited; above 1, so that the same cluster is
            not extracted again at once.
        taper: R in s; of a cell at the distance r the part exp(-(r / R)^4) is taken. It leaves 6 %
            of a Gaussian on the circle, smooth, which follows when it has come near.
        reach: nothing is taken from beyond reach * s,
        lost: and what has got farther away than lost * s is deposited: polynomials that velocities
            in a patch are interpolated by are not to be trusted there (clusters went astray).
        complete: of the mass within 2 R this part has to be taken; else the cluster is not alone.
        stray: a patch of which this part is lost is deposited whole.
        trace: relative mass below which nothing is extracted, far above rounding.
        peaks: number of the densest places that are tried at a time; what is left comes next time.
        max_points: tokens up to which a density starts from points: a step then takes 0.2 s on the
            circle and 0.7 s on the sphere.
        fine_cells: cells to a standard deviation where a patch is deposited.
        halvings: of the patch's cells when deposited, so that those of the mesh are filled
            smoothly.
    """

    width: float = 0.1
    retire_width: float = 1.5
    taper: float = 2.5
    reach: float = 5.0
    lost: float = 7.5
    complete: float = 0.9
    stray: float = 1e-3
    trace: float = 1e-12
    peaks: int = 8
    max_points: int = 200
    fine_cells: float = 3.0
    halvings: Mapping[int, int] = field(default_factory=lambda: _by_dimension(5, 6))

    def __post_init__(self) -> None:
        zero = ("complete", "stray", "trace", "max_points", "halvings")
        check_settings(self, "adapt.patches.", zero=zero)
        _check_most(self.halvings, "adapt.patches.halvings", MOST_HALVINGS)


@dataclass(frozen=True)
class AdaptSettings:
    """An adaptive mesh: its tolerance, its largest size, and when it is changed.

    Attributes:
        tolerance: of W_1, in radians: the mesh's own part of the error is kept below it.
        max_cells: more are refused.
        refine_above, refine_to: of the tolerance: where refinement begins, and how far it goes.
            Between them lies the time until the next regrid.
        coarsen_to: of the tolerance: what coarsened cells may add up to.
        profile_refine, profile_coarsen: the same for the profile indicator, of its bound.
        profile_mass: of the mass of a cell of a cluster: cells that gather mass are refined with
            it before they belong to one, and the mesh changes less often: 57 times for 101 with
            the whole mass (`demos/sphere.toml` at beta = 100, 2 % more cells).
        spare: of the largest width, so that coarsened cells are not refined again at once.
        buffer: rings of cells refined with those marked, so that what moves finds room for some
            steps. On the sphere, where rings are many cells, that costs more than it saves.
        check_every, short_step: at zero temperature, where steps are those of transport, indicators
            are taken at every k-th while dt |V| < short_step: looking at each step is a quarter of
            a run on the circle (`tests.benchmarks.adaptivity --part cost`).
        initial_rounds: of refinement to an initial density, each a halving: 2^-60 is below
            any cell.
        indicators, patches: the constants of these.
    """

    tolerance: float
    max_cells: int = MAX_CELLS
    refine_above: float = 0.8
    refine_to: float = 0.4
    coarsen_to: float = 0.1
    profile_refine: float = 0.6
    profile_coarsen: float = 0.4
    profile_mass: float = 0.3
    spare: float = 1.2
    buffer: Mapping[int, int] = field(default_factory=lambda: _by_dimension(16, 0))
    check_every: int = 4
    short_step: float = 0.02
    initial_rounds: int = 60
    indicators: IndicatorSettings = IndicatorSettings()
    patches: PatchSettings = PatchSettings()

    def __post_init__(self) -> None:
        tolerance = real(
            self.tolerance,
            "adapt.tolerance",
            "a number of radians > 0 and < 1",
            lambda r: 0 < r < 1,
        )
        object.__setattr__(self, "tolerance", tolerance)
        max_cells = whole(self.max_cells, "adapt.max_cells", 1)
        if max_cells > MOST_CELLS:
            raise InputError(f"adapt.max_cells must be at most {MOST_CELLS}, got {max_cells}")
        object.__setattr__(self, "max_cells", max_cells)
        zero = ("coarsen_to", "profile_coarsen", "buffer", "short_step", "initial_rounds")
        check_settings(self, "adapt.", zero=zero)
        _check_most(self.buffer, "adapt.buffer", MOST_RINGS)
        for names in (("coarsen_to", "refine_to", "refine_above"), _PROFILE):
            shares = [getattr(self, name) for name in names]
            if sorted(shares) != shares or shares[-1] > 1:
                raise InputError(f"adapt: {' <= '.join(names)} <= 1 must hold, got {shares}")

    @classmethod
    def of(cls, given: float | AdaptSettings | None, dimension: int) -> AdaptSettings | None:
        """The settings for a tolerance, or those given; checked for circle or sphere."""
        if given is None:
            return None
        settings = given if isinstance(given, AdaptSettings) else cls(given)
        return settings.checked(dimension)

    @typed
    def checked(self, dimension: int) -> AdaptSettings:
        """The same; InputError if a smooth density takes more cells than are allowed.

        Its cells are sqrt(tolerance) wide.
        """
        for settings in (self, self.indicators, self.patches):
            for one in fields(settings):
                table = getattr(settings, one.name)
                if isinstance(table, Mapping) and dimension not in table:
                    raise InputError(
                        f"adapt: {one.name} must have an entry for dimension {dimension}, got "
                        f"{dict(table)}"
                    )
        power = (dimension - 1) / 2
        length = 2 * np.pi * (dimension - 1)  # of the circle, or area of the sphere
        cost = length / self.tolerance**power
        if cost > self.max_cells:
            finest = (length / self.max_cells) ** (1 / power)
            raise InputError(
                f"adapt.tolerance = {self.tolerance:g} takes about {cost:.1e} cells even where the "
                f"density is smooth, more than adapt.max_cells = {self.max_cells}; give "
                f"{1.05 * finest:.1e} or more"
            )
        return self
