"""What summary.json says of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from meanfield_pde.solver.following import MassFollower
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.solver.solution import Solution
from meanfield_pde.support.versions import versions
from meanfield_pde.theory.phases import Phases


def summarise(simulation: Simulation, solution: Solution, phases: Phases) -> dict[str, Any]:
    """Steps, time, conservation, what was concluded, and versions."""
    history = solution.history
    last = solution.measure()
    axis, share = principal_axis(last.points, last.masses)
    summary = {
        "time": simulation.evolution.time,
        "steps": solution.steps,
        "rejected_steps": solution.rejected,
        "wall_time_seconds": solution.wall_time,
        "seconds": simulation.seconds,
        "cells": simulation.evolution.equation.volumes.global_cells,
        "ranks": simulation.comm.size,
        "threads_per_rank": simulation.threads,
        "log_masses": simulation.log_masses,
        "mass_drift": float(np.abs(history["mass"] - history["mass"][0]).max()),
        "min_density": float(history["min_density"].min()),
        "max_density": float(history["max_density"].max()),
        "final_principal_axis": axis,
        "final_share_along_axis": share,
        "limit": simulation.projection.describe(),
        "phases": phases.describe(),
        "versions": versions(),
    }
    if isinstance(follower := simulation.evolution.follower, MassFollower):
        summary["mesh"] = {
            "resolution": follower.resolution,
            "changes": follower.changes,
            "most_cells": int(history["cells"].max()),
            "least_width": float(history["least_width"].min()),
            "largest_mesh_error": float(history["mesh_error"].max()),
        }
    if simulation.equation.noise:
        summary["noise"] = {
            "strength": simulation.equation.noise,
            "limited_steps": simulation.evolution.limited,
        }
    if simulation.distances is not None:
        names = [n for n in history if n[0] == "w" and not n.endswith(("_low", "_high"))]
        least = {name: int(np.argmin(history[name])) for name in names}
        summary["least_distances"] = {
            name: {"value": history[name][i], "time": solution.times[i]}
            for name, i in least.items()
        }
        summary["distances_not_closed"] = simulation.distances.open
    return summary


def principal_axis(points: np.ndarray, masses: np.ndarray) -> tuple[np.ndarray, float]:
    """Eigenvector of ∫ x x^T dmu for its largest eigenvalue, and that eigenvalue (of sum 1)."""
    values, vectors = np.linalg.eigh((points * (masses / masses.sum())[:, None]).T @ points)
    axis = vectors[:, -1]
    return axis * np.sign(axis[np.abs(axis).argmax()]), float(values[-1])
