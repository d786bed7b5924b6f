"""What a run has found, in a few lines for whoever watches it: read off its summary."""

from __future__ import annotations

from typing import Any

from meanfield_pde.theory.phases import Phases


def findings(summary: dict[str, Any], phases: Phases) -> list[str]:
    """Phases with their times, the least distances, and the lifetime against the prediction.

    Args:
        summary: of the run, as in summary.json.
        phases: of the run.
    """
    lines = [str(phase) for phase in phases] + [str(stage) for stage in phases.stages]
    for key, one in summary.get("least_distances", {}).items():
        if one["value"] > 0:  # both start from the same density
            lines.append(f"least {_name(key)}: {one['value']:.4g}, at t = {one['time']:g}")
    predicted = summary["limit"].get("lifetime")
    lived = phases.lifetime
    if lived is not None and isinstance(predicted, float):
        lines.append(
            f"lifetime of the metastable state: {lived:.4g} (the axis leaves), "
            f"predicted in the limit of large beta: {predicted:.4g}"
        )
    return lines


def _name(key: str) -> str:
    """`w1_zero_to_limit` as "W1 of zero temperature to the limit"."""
    order, _, what = key.partition("_")
    named = {
        "limit": "to the limit",
        "zero": "to zero temperature",
        "zero_to_limit": "of zero temperature to the limit",
    }
    return f"{order.upper()} {named.get(what, what)}"
