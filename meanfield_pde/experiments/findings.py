"""What a run has found, in a few lines for whoever watches it: read off its summary."""

from __future__ import annotations

from typing import Any

from meanfield_pde.solver.distances import COMPARED, ORDERS
from meanfield_pde.theory.phases import Phases


def findings(summary: dict[str, Any], phases: Phases) -> list[str]:
    """Phases, least distances, lifetime against prediction, and mass that cells are too wide for.

    Args:
        summary: of the run, as in summary.json.
        phases: of the run.
    """
    lines = [str(phase) for phase in phases] + [str(stage) for stage in phases.stages]
    least = summary.get("least_distances", {})
    for p in ORDERS:
        for compared in COMPARED:
            one = least.get(compared.column(p))
            if one and one["time"] > 0 and compared.least:  # one that has been reached
                name = f"least W{p} {compared.least}"
                lines.append(f"{name}: {_with_interval(one)}, at t = {one['time']:g}")
    predicted = summary["limit"].get("lifetime")
    lived = phases.lifetime
    if lived is not None and isinstance(predicted, float):
        lines.append(
            f"lifetime of the metastable state: {lived:.4g} (the axis leaves), "
            f"predicted in the limit of large beta: {predicted:.4g}"
        )
    narrow = summary.get("unresolved")
    if narrow is not None:
        lines.append(
            f"from t = {narrow['from']:g} on up to {100 * narrow['largest_share']:.0f} % of the "
            "mass is in clusters narrower than the cells, and when these move or merge is decided "
            "by the cells; an adaptive mesh follows them: [adapt] tolerance = 1e-3"
        )
    return lines


def _with_interval(one: dict[str, float]) -> str:
    """The value, and between what bounds it lies for the densities."""
    if "low" not in one:
        return f"{one['value']:.4g} (atoms at the centres of cells)"
    return f"{one['value']:.4g} (between densities {one['low']:.4g} to {one['high']:.4g})"
