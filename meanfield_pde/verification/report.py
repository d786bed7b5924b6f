"""A comparison of tokens with a density as a table, and as plain numbers for JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from meanfield_pde.verification.verdict import TokenComparison


def table(comparison: TokenComparison) -> str:
    """The verdict in one line; below it a row for each time compared, and the notes."""
    band = comparison.band
    common = comparison.common
    some = "" if common == len(comparison.times) else f" of {common}"
    lines = [
        comparison.verdict,
        f"{len(comparison.cloud.tokens[0])} tokens at {len(comparison.times)}{some} common times, "
        f"{band.samples} samples of as many",
        f"{'t':>8}  {'W1':>10}  {'expected':>10}  {'95% below':>10}  {'W2':>10}  "
        f"{'reference':>10}  mean of the tokens (deviations)",
    ]
    most = band.quantile(0.95)
    for k, time in enumerate(comparison.times):
        mean = [
            f"{value:.4f} ({z:.1f})"
            for value, z in zip(comparison.moments[k], comparison.moment_scores[k], strict=True)
        ]
        distance = _reference(comparison, k)
        lines.append(
            f"{time:8.4g}  {comparison.w1[k].value:10.4g}  {band.expected[k]:10.4g}  "
            f"{most[k]:10.4g}  {comparison.w2[k].value:10.4g}  "
            f"{'' if distance is None else f'{distance:.2g}':>10}  {', '.join(mean)}"
        )
    return "\n".join([*lines, *(f"note: {note}" for note in comparison.notes)])


def summary(comparison: TokenComparison) -> dict[str, Any]:
    """What JSON can hold: the verdict, what it rests on, and the numbers at each time."""
    cause, diagnosis = comparison.cause, comparison.diagnosis
    return {
        "verdict": comparison.verdict,
        "agrees": comparison.agrees,
        "p_value": comparison.p_value,
        "level": comparison.level,
        "samples": comparison.band.samples,
        "within_sampling_error": comparison.within_sampling_error,
        "since": comparison.since,
        "tokens": len(comparison.cloud.tokens[0]),
        "trajectories": None if diagnosis is None else diagnosis.right,
        "reference_distance": comparison.reference_distance,
        "step": diagnosis.step if diagnosis is not None and diagnosis.step > 0 else None,
        "cause": None if cause is None else cause.name,
        "fitted": [] if cause is None else list(cause.fitted),
        "power": dict(comparison.seen),
        "too_few": comparison.too_few,
        "notes": list(comparison.notes),
        "times": [_row(comparison, k) for k in range(len(comparison.times))],
    }


def _reference(comparison: TokenComparison, k: int) -> float | None:
    """Mean distance from the reference code at a time, if it was followed to there."""
    found = comparison.diagnosis
    if found is None:
        return None
    at = np.flatnonzero(np.isclose(found.times, comparison.times[k], rtol=1e-9, atol=1e-9))
    return float(found.distances[at[0]]) if len(at) else None


def _row(comparison: TokenComparison, k: int) -> dict[str, float | None]:
    row: dict[str, float | None] = {"time": float(comparison.times[k])}
    for p, results in ((1, comparison.w1), (2, comparison.w2)):
        row[f"w{p}"] = results[k].value
        row |= {f"w{p}_low": results[k].low, f"w{p}_high": results[k].high}
    row["expected_w1"] = float(comparison.band.expected[k])
    row["reference_distance"] = _reference(comparison, k)
    for i, name in enumerate("xyz"[: comparison.moments.shape[1]]):
        row[f"mean_{name}"] = float(comparison.moments[k, i])
        row[f"mean_{name}_density"] = float(comparison.expected_moments[k, i])
        row[f"mean_{name}_z"] = float(comparison.moment_scores[k, i])
    return row
