"""A comparison of tokens with a density as a table, and as plain numbers for JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from meanfield_pde.judging.comparison import TokenComparison


def table(comparison: TokenComparison) -> str:
    """A row for each common time, with the notes and the verdict below."""
    band = comparison.band
    in_band = {time: i for i, time in enumerate(band.times)}
    lines = [
        f"{len(comparison.cloud.tokens[0])} tokens at {len(comparison.times)} common times",
        f"{'t':>8}  {'W1':>10}  {'expected':>10}  {'z':>6}  {'W2':>10}  mean of the tokens (z)",
    ]
    for k, time in enumerate(comparison.times):
        expected, score = "", ""
        mean = [f"{value:.4f}" for value in comparison.moments[k]]
        if (i := in_band.get(time)) is not None:
            expected, score = f"{band.expected[i]:.4g}", f"{comparison.scores[i]:.1f}"
            mean = [
                f"{one} ({z:.1f})" for one, z in zip(mean, comparison.moment_scores[i], strict=True)
            ]
        lines.append(
            f"{time:8.4g}  {comparison.w1[k].value:10.4g}  {expected:>10}  {score:>6}  "
            f"{comparison.w2[k].value:10.4g}  {', '.join(mean)}"
        )
    return "\n".join([*lines, *(f"note: {note}" for note in comparison.notes), comparison.verdict])


def summary(comparison: TokenComparison) -> dict[str, Any]:
    """What JSON can hold: the verdict, what it rests on, and the numbers at each common time."""
    cause, nearest = comparison.cause, comparison.nearest
    return {
        "verdict": comparison.verdict,
        "agrees": comparison.agrees,
        "within_sampling_error": comparison.within_sampling_error,
        "z": comparison.score,
        "since": comparison.since,
        "tokens": len(comparison.cloud.tokens[0]),
        "reference_distance": comparison.reference_distance,
        "reproduced": comparison.reproduced,
        "cause": None if cause is None else cause.name,
        "cause_distance": None if cause is None else cause.distance,
        "nearest": None if nearest is None else nearest.name,
        "nearest_distance": None if nearest is None else nearest.distance,
        "notes": list(comparison.notes),
        "times": [_row(comparison, k) for k in range(len(comparison.times))],
    }


def _row(comparison: TokenComparison, k: int) -> dict[str, float]:
    row = {"time": float(comparison.times[k])}
    for p, results in ((1, comparison.w1), (2, comparison.w2)):
        row[f"w{p}"] = results[k].value
        row |= {f"w{p}_low": results[k].low, f"w{p}_high": results[k].high}
    names = "xyz"[: comparison.moments.shape[1]]
    for i, name in enumerate(names):
        row[f"mean_{name}"] = float(comparison.moments[k, i])
        row[f"mean_{name}_density"] = float(comparison.expected_moments[k, i])
    for j in np.flatnonzero(comparison.band.times == comparison.times[k]):
        row["expected_w1"] = float(comparison.band.expected[j])
        row["z"] = float(comparison.scores[j])
        for i, name in enumerate(names):
            row[f"mean_{name}_z"] = float(comparison.moment_scores[j, i])
    return row
