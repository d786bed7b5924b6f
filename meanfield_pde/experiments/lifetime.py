"""Metastable lifetimes: from the density, which feels the tail, and from N tokens, which have none.

The lifetime is when the principal axis of the tokens leaves E, the dominant eigenspace of
A = V B^T, on its way to F, that of V: the time at which

    f = angle(U, E) / (angle(U, E) + angle(U, F)),   U the eigenspace of ∫ x x^T dmu of dimension
                                                     dim E with the largest eigenvalues,

comes to half of its value at the first plateau, from below, for good (see `phases`, and `stages`
for where it rests). As an integral of the density against a smooth function it does not depend on
the mesh but by the error of the density, and it has a meaning for tokens, too. Two laws are
predicted:

    density     slope (|B^T e| - |<B^T e, e>|) / r in beta: the tail of the density at the place
                that clusters attend to has to die out, and it decays like exp(-r t), r = c' on the
                circle (or less, if another token loses sight of it earlier: `saddles.Tail`);
                beyond it sqrt(beta) and log beta, see `stages`
    N tokens    slope 1/r in log N, whatever beta: N tokens have no tail below 1/N.
"""

from __future__ import annotations

import json
import math
import time as clock
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass

from mpi4py import MPI

import numpy as np
from dolfinx import mesh as dolfinx_mesh
from scipy.interpolate import PchipInterpolator
from scipy.linalg import subspace_angles

from meanfield_pde.amr.settings import AdaptSettings
from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.layers import AttentionLike, single
from meanfield_pde.errors import InputError
from meanfield_pde.experiments.cost import check_steps
from meanfield_pde.initial.given import InitialLike, as_initial
from meanfield_pde.initial.sampling import sample_tokens
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.results.moments import WITHIN
from meanfield_pde.solver.controller import Controller
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.step_control import StepSettings
from meanfield_pde.support.checks import real
from meanfield_pde.support.old_names import accept_old_keywords
from meanfield_pde.support.ranks import largest
from meanfield_pde.support.signals import stop_if_noted
from meanfield_pde.support.threads import set_threads
from meanfield_pde.theory.phases import HALF, find_phases
from meanfield_pde.theory.progress import Progress, for_good
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.tokens.code import simulate_tokens

# Moments are taken this often in a time 1/c', in which the tail falls by 1/e: two that are
# neighbours differ by a tenth of it.
PER_DECAY = 10
# The progress at which the axis counts as being at F: a definition; a cluster of finite width is
# never quite there.
NEAR = 0.95
# Error of a token's position per step, far below the scatter from sample to sample.
TOKEN_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Lifetime:
    """One measurement.

    Attributes:
        kind: "density" or "tokens".
        beta: inverse temperature.
        count: number of cells, or of tokens.
        seed: of the sample of tokens; None for the density.
        lifetime: when the axis left E; None if it had not at `until`.
        half: when the axis had gone half of the way to F; None if it had not.
        stages: the plateaus of the way, as in summary.json, as JSON.
        until: how far the measurement went.
        angle: of the principal axis to the dominant eigenspace of V, at `until`, in radians.
        min_cell_width: of cells, or patches beside them, at the times of the moments; None for
            tokens.
        most_cells: of the mesh at these times; None for tokens.
        log_masses: whether the density was followed below the range of doubles.
        wall_time: seconds.
    """

    kind: str
    beta: float
    count: int
    seed: int | None
    lifetime: float | None
    half: float | None
    stages: str
    until: float
    angle: float
    min_cell_width: float | None
    most_cells: int | None
    log_masses: bool
    wall_time: float


@accept_old_keywords
def density_lifetime(
    attention: Attention,
    mesh: dolfinx_mesh.Mesh,
    initial: InitialLike,
    *,
    until: float | None = None,
    settings: SolverCase | None = None,
    adapt: float | AdaptSettings | None = None,
    noise: float = 0.0,
    threads: int | None = None,
    steps: StepSettings | None = None,
    allow_long: bool = False,
) -> Lifetime:
    """The lifetime of the density's metastable state. Collective.

    Args:
        attention: at the inverse temperature in question.
        mesh: of the circle or the sphere.
        initial: the initial density.
        until: when to give up; by default three times the prediction and 20/c. The density is
            followed until its axis is all but at the terminal eigenspace, or for as long again as
            the metastable state lived.
        settings: scheme, tolerance and log masses.
        adapt: tolerance of an adaptive mesh, see `solve`; `count` is that of its coarsest.
        noise: its strength; the predictions are those without.
        threads: of each rank.
        steps: what steps are allowed to do.
        allow_long: do not refuse more than 1e9 steps.
    """
    begun = clock.perf_counter()
    progress = switching_progress(attention)
    until = given_up(progress.projection, until)
    set_threads(mesh.comm, threads)
    volumes = FiniteVolumes(mesh)
    equation = Equation(attention, volumes, settings or SolverCase(), noise)
    mesh_settings = AdaptSettings.of(adapt, attention.dimension)
    initial = as_initial(initial)
    evolution = Controller.start(equation, initial, steps=steps, adapt=mesh_settings)
    path = _Path(evolution)
    with closing(evolution):
        check_steps([evolution], until, "until", allow_long=allow_long)
        found = _followed(path.moments, progress, until, mesh.comm, WITHIN * PER_DECAY)
    return Lifetime(
        "density",
        attention.beta,
        volumes.global_cells,
        None,
        **asdict(found),
        min_cell_width=path.least,
        most_cells=path.cells,
        log_masses=evolution.extended,
        wall_time=clock.perf_counter() - begun,
    )


class _Path:
    """Second moments along an evolution, which are kept after each step, and interpolated.

    Attributes:
        least: least width of a cell, or of a patch beside them, so far.
        cells: most cells of the mesh so far.
    """

    def __init__(self, evolution: Controller) -> None:
        """Collective."""
        self._evolution = evolution
        self._times, self._found = list[float](), list[np.ndarray]()
        self.least, self.cells = math.inf, 0
        self._add(evolution)

    def moments(self, times: np.ndarray) -> np.ndarray:
        """Second moments at increasing times, followed until then. Collective."""
        self._evolution.advance(float(times[-1]), self._stepped)
        if len(self._times) == 1:
            return np.repeat(self._found[0][None], len(times), axis=0)
        return np.asarray(PchipInterpolator(self._times, self._found)(times))

    def _stepped(self, evolution: Controller) -> None:
        stop_if_noted(evolution.state.volumes.comm)
        self._add(evolution)

    def _add(self, evolution: Controller) -> None:
        here, patches = evolution.state.volumes, evolution.state.patches
        smallest = -largest(here.comm, -float(here.volume[: here.owned].min(initial=math.inf)))
        cells = smallest ** (1 / (here.dimension - 1))
        narrow = (float(patch.widths[-1]) for patch in patches)
        self.least = min([self.least, cells, *narrow])
        self.cells = max(self.cells, here.global_cells)
        self._times.append(evolution.time)
        self._found.append(evolution.state.second_moments() / evolution.mass)


def token_lifetime(
    attention: Attention,
    initial: InitialLike,
    count: int,
    seed: int,
    *,
    until: float | None = None,
    noise: float = 0.0,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> Lifetime:
    """The lifetime of the metastable state of N tokens drawn from the initial density. Collective.

    Args:
        attention: at the inverse temperature in question.
        initial: the density to draw from.
        count: N.
        seed: of the sample.
        until: when to give up; by default three times log(N)/c', and 20/c.
        noise: its strength, with random numbers of the same seed.
        comm: the ranks that share the work.
    """
    begun = clock.perf_counter()
    progress = switching_progress(attention)
    until = given_up(progress.projection, until, count)
    x = sample_tokens(initial, count, seed, attention.dimension)
    now = 0.0

    def moments(times: np.ndarray) -> np.ndarray:
        nonlocal x, now
        stop_if_noted(comm)
        end = float(times[-1])
        cloud = simulate_tokens(
            x,
            attention,
            end,
            start=now,
            save_at=times,
            tolerance=TOKEN_TOLERANCE,
            noise=noise,
            seed=seed,
            comm=comm,
        )
        x, now = cloud.tokens[-1], end
        saved = cloud.tokens[np.searchsorted(cloud.times, times)]
        return np.einsum("tni,tnj->tij", saved, saved) / count

    found = _followed(moments, progress, until, comm)
    return Lifetime(
        "tokens",
        attention.beta,
        count,
        seed,
        **asdict(found),
        min_cell_width=None,
        most_cells=None,
        log_masses=False,
        wall_time=clock.perf_counter() - begun,
    )


def given_up(limit: ProjectionLimit, until: float | None, count: int | None = None) -> float:
    """When to give up: as the user says, or well beyond what is predicted (for N tokens)."""
    if until is not None:
        return real(until, "until", "a finite number > 0", lambda time: time > 0)
    expected = limit.lifetime if count is None else math.log(count) / limit.tail_rate
    return 3 * expected + 20 / limit.contraction_rate


def switching_progress(attention: AttentionLike) -> Progress:
    """The progress from E to F; InputError if the metastable state is predicted not to end."""
    attention = single(attention, "a lifetime")
    limit = ProjectionLimit(attention)
    if not limit.exists:
        raise InputError(f"there is no metastable state to time: {limit.reason}")
    progress = Progress(limit)
    reason = progress.no_switch
    if attention.zero_temperature:
        reason = "at zero temperature it is stable; give a finite beta"
    elif reason is None and math.isinf(limit.lifetime_per_beta):
        reason = "the clusters attend to themselves (B^T e along e)"
    if reason is not None:
        raise InputError(f"there is no metastable state that ends: {reason}")
    return progress


@dataclass(frozen=True)
class _Followed:
    """What is read off moments; as in `Lifetime`."""

    lifetime: float | None
    half: float | None
    stages: str
    until: float
    angle: float


def _followed(
    moments: Callable[[np.ndarray], np.ndarray],
    progress: Progress,
    until: float,
    comm: MPI.Comm,
    per_decay: int = PER_DECAY,
) -> _Followed:
    """What `moments` shows; it gives those at increasing times, and goes on from call to call."""
    limit = progress.projection
    step = 1 / (per_decay * limit.escape_rate)
    count = max(1, math.ceil(until / step))
    times, found = np.zeros(0), np.zeros((0, *np.shape(limit.first.value)))
    fraction = np.zeros(0)
    while len(times) <= count and not _settled(times, fraction, progress):
        part = np.arange(len(times), min(len(times) + 2 * per_decay, count + 1)) / count * until
        # Sums over ranks may differ in their last digits; all follow the numbers of the first.
        here = comm.bcast(moments(part))
        times, found = np.concatenate([times, part]), np.concatenate([found, here])
        fraction = np.concatenate([fraction, progress.fraction(here)])
    axis = np.linalg.eigh(found[-1])[1][:, -limit.dimension :]
    assert limit.terminal.basis is not None  # or there would be no lifetime to measure
    phases = find_phases(times, found, limit)
    return _Followed(
        progress.leaves(times, fraction),
        for_good(times, fraction, HALF),
        json.dumps([stage.describe() for stage in phases.stages]),
        float(times[-1]),
        float(subspace_angles(axis, limit.terminal.basis).max()),
    )


def _settled(times: np.ndarray, fraction: np.ndarray, progress: Progress) -> bool:
    """Whether the axis has come to F, or has had the time for it.

    That is as long again as the metastable state lived, and until the last plateau is predicted to
    end.
    """
    left = progress.leaves(times, fraction) if len(times) else None
    if left is None:
        return False
    predicted = [until for _, until in progress.stops if until is not None]
    stopped = max(predicted, default=0.0) * progress.projection.attention.beta
    return bool(fraction[-1] > NEAR or times[-1] > max(2 * left, stopped) + 10)
