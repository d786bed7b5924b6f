"""What a run has found: all of it for summary.json, and a few lines for whoever watches."""

from __future__ import annotations

from typing import Any

import numpy as np

from meanfield_pde.solver.settings import COMPARED, ORDERS, Compared
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.solver.solution import Solution
from meanfield_pde.solver.steadiness import Steadiness
from meanfield_pde.support.columns import in_columns
from meanfield_pde.support.versions import versions
from meanfield_pde.theory.phases import Phases, interval_of
from meanfield_pde.wasserstein.measure import Measure

# From this share of the mass on it is said that it is in clusters narrower than the cells: what is
# less moves neither means nor the axis by as much.
WORTH_SAYING = 0.1


def summarise(
    simulation: Simulation, solution: Solution, phases: Phases, limit: Measure | None = None
) -> dict[str, Any]:
    """Steps, time, conservation, what was concluded, and versions.

    Args:
        simulation: that has ended.
        solution: of it.
        phases: of it.
        limit: the limit measure, if there is one.
    """
    history = solution.history
    last = solution.measure()
    axis, share = principal_axis(last.points, last.masses)
    summary = {
        "time": simulation.evolution.time,
        "steps": solution.steps,
        "rejected_steps": solution.rejected,
        "wall_time_seconds": solution.wall_time,
        "seconds": simulation.seconds,
        "cells": simulation.evolution.state.volumes.global_cells,
        "ranks": simulation.comm.size,
        "threads_per_rank": simulation.threads,
        "log_masses": simulation.log_masses,
        "mass_drift": float(np.abs(history["mass"] - history["mass"][0]).max()),
        "min_density": float(history["min_density"].min()),
        "max_density": float(history["max_density"].max()),
        "final_principal_axis": axis,
        "final_share_along_axis": share,
        "limit": simulation.projection.describe(limit),
        "phases": phases.describe(),
        "steadiness": None if solution.steadiness is None else solution.steadiness.describe(),
        "versions": versions(),
    }
    if (adapt := simulation.evolution.adapt) is not None:
        summary["mesh"] = {
            "tolerance": adapt.tolerance,
            "changes": simulation.evolution.state.clocks.regrids,
            "most_cells": int(history["cells"].max()),
            "min_cell_width": float(history["min_cell_width"].min()),
            "largest_w1_error_estimate": float(history["w1_error_estimate"].max()),
        }
    elif "unresolved_mass" in history:  # not in runs that an earlier version began
        narrow = history["unresolved_mass"]
        from_here = np.flatnonzero(narrow > WORTH_SAYING)
        if len(from_here):
            summary["unresolved"] = {
                "from": solution.times[from_here[0]],
                "largest_share": float(narrow.max()),
            }
    if simulation.equation.noise:
        summary["noise"] = {
            "strength": simulation.equation.noise,
            "limited_steps": simulation.evolution.state.clocks.limited,
        }
    if simulation.distances is not None:
        summary["least_distances"] = {
            one.column(p): _least(solution, one, p)
            for p in simulation.distances.settings.p
            for one in COMPARED
            if one.column(p) in history
        }
        summary["distances_not_closed"] = simulation.distances.open
    return summary


def _least(solution: Solution, compared: Compared, p: int) -> dict[str, float]:
    """The least distance of a history, when it was reached, and its interval if it has one."""
    history = solution.history
    i = int(np.argmin(history[compared.column(p)]))
    found = {"value": history[compared.column(p)][i], "time": solution.times[i]}
    bounds = zip(("low", "high"), compared.bounds(p), strict=True)
    return found | {key: history[name][i] for key, name in bounds if name in history}


def principal_axis(points: np.ndarray, masses: np.ndarray) -> tuple[np.ndarray, float]:
    """Eigenvector of ∫ x x^T dmu for its largest eigenvalue, and that eigenvalue (of sum 1)."""
    values, vectors = np.linalg.eigh((points * (masses / masses.sum())[:, None]).T @ points)
    axis = vectors[:, -1]
    return axis * np.sign(axis[np.abs(axis).argmax()]), float(values[-1])


def findings(summary: dict[str, Any], phases: Phases) -> list[str]:
    """What a run has found, as the lines of a table, and how sure it all is.

    Phases, distances, lifetime and steadiness, each beside what is predicted in the limit of large
    beta; and the mass that is not resolved.

    Args:
        summary: of the run, as in summary.json.
        phases: of the run.
    """
    rows = [("", "found", "between", "predicted")]
    limit, least = summary["limit"], summary.get("least_distances", {})
    gathered, lifetime = (limit.get(name) for name in ("log_beta_time", "lifetime"))
    expected = {
        "concentration": _number(gathered, "until "),
        "metastable": _number(lifetime, "until "),
    }
    for phase in phases:
        rows.append((phase.name, phase.when, "", expected.get(phase.name, "")))
    for stage in phases.stages:
        until = "" if stage.expected_end is None else f", until {stage.expected_end:.4g}"
        when = interval_of(stage.begin, stage.end)
        rows.append((stage.name, when, "", f"at {stage.expected:.3g}{until}"))
    if phases.lifetime is not None:
        name = "lifetime of the metastable state"
        if not phases.metastable.reached:
            name = "E is left, no metastable phase seen"
        rows.append((name, f"{phases.lifetime:.4g}", "", _number(lifetime)))
    for p in ORDERS:
        for compared in COMPARED:
            one = least.get(compared.column(p))
            if one and one["time"] > 0 and compared.least:  # one that has been reached
                name = f"least W{p} {compared.least}"
                between = f"{one['low']:.4g} to {one['high']:.4g}" if "low" in one else "atoms"
                rows.append((name, f"{one['value']:.4g} at t = {one['time']:g}", between, ""))
    lines = in_columns(rows)
    reasons: dict[str | None, list[str]] = {}
    for phase in phases:
        if not phase.reached:
            reasons.setdefault(phase.reason, []).append(phase.name)
    lines += [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    if (steadiness := summary.get("steadiness")) is not None:
        lines.append(str(Steadiness(**steadiness)))
    narrow = summary.get("unresolved")
    if narrow is not None:
        lines.append(
            f"from t = {narrow['from']:g} on up to {100 * narrow['largest_share']:.0f} % of the "
            "mass is in clusters narrower than the cells, and when these move or merge is decided "
            "by the cells; an adaptive mesh follows them: [adapt] tolerance = 1e-3"
        )
    known = "one mesh only"
    if (mesh := summary.get("mesh")) is not None:
        known = (
            f"the mesh adds up to {mesh['largest_w1_error_estimate']:.2g} to W1, as it estimates"
        )
    return [*lines, f"all these numbers: {known}; `converge` gives an interval"]


def _number(value: object, before: str = "") -> str:
    """A number as text; nothing where there is none, or one without end (a text in JSON)."""
    return f"{before}{value:.4g}" if isinstance(value, float) else ""
