"""What an audit says: a table for the terminal, JSON, and rows for CSV files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from meanfield_pde.audit.heads import LARGEST_PROVED, HeadAudit
from meanfield_pde.audit.layers import UNEXPLAINED, LifetimeEnd, TokenAudit
from meanfield_pde.audit.weights import Encoder
from meanfield_pde.support.columns import in_columns
from meanfield_pde.support.plain import plain

LIMITS = (
    "Each head is taken alone, without the perceptron, the other heads of its layer and what they "
    "make of it together; only the steps of measured tokens are held against all heads of a layer. "
    "The equation is that of an encoder whose tokens all attend to each other, and says nothing of "
    "masks, decoders or positions."
)
_NAMES = (
    ("layer", "layer"),
    ("head", "head"),
    ("beta", "beta"),
    ("effective_beta", "beta|B^Te|"),
    ("value", "l1"),
    ("gap", "gap"),
    ("rate", "c"),
    ("escape_rate", "c'"),
    ("log_beta_time", "concentr."),
    ("lifetime", "lifetime"),
    ("token_lifetime", "N tokens"),
    ("angle_to_terminal", "angle"),
    ("stable_rank", "rank V"),
)
_LAYER_NAMES = (
    ("layer", "layer"),
    ("head", "head"),
    ("distance", "distance"),
    ("effective_rank", "eff. rank"),
    ("mean_cosine", "cosine"),
    ("change", "W1 to next"),
    ("rate", "rate"),
    ("predicted_rate", "predicted"),
    ("unexplained", "unexpl."),
    ("p_value", "p"),
    ("baseline_p", "p(baseline)"),
)


def head_row(head: HeadAudit, count: int) -> dict[str, Any]:
    """A head in numbers and text, without its eigenvectors."""
    return {
        "layer": head.layer,
        "head": head.head,
        "beta": head.beta,
        "effective_beta": head.effective_beta,
        "kind": head.kind,
        "kernel": head.kernel,
        "value": head.value,
        "dimension": head.dimension,
        "gap": head.gap,
        "rate": head.rate,
        "escape_rate": head.escape_rate,
        "unsettled_rate": head.unsettled_rate,
        "tail_rate": head.tail_rate,
        "log_beta_time": head.log_beta_time,
        "within_a_layer": head.within_a_layer,
        "lifetime": head.lifetime,
        "lifetime_per_beta": head.lifetime_per_beta,
        "token_lifetime": head.token_lifetime(count),
        "terminal_kind": head.terminal_kind,
        "terminal_reason": head.terminal_reason,
        "angle_to_terminal": head.angle_to_terminal,
        "stable_rank": head.stable_rank,
        "limit": head.limit,
        "reason": head.reason,
        "note": head.note,
    }


def layer_rows(audit: TokenAudit) -> list[dict[str, Any]]:
    """The layers, each interval as three columns."""
    rows = []
    for layer in audit.layers:
        row = asdict(layer)
        for name in ("change", "rate"):
            value, low, high = row[name] or (None, None, None)
            row |= {name: value, f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    return rows


def notes(encoder: Encoder, heads: Sequence[HeadAudit]) -> list[str]:
    """How the numbers are to be read."""
    found = [encoder.beta_from, *encoder.notes]
    if encoder.head_dimension < encoder.dimension:
        found.append(
            f"with d_head = {encoder.head_dimension} < d = {encoder.dimension} B is singular: "
            "a token in its kernel has equal scores and attends to all alike, whatever beta; "
            "the zeros of the kernel are counted in the gap (one is listed)"
        )
    if encoder.dimension > LARGEST_PROVED or encoder.head_dimension < encoder.dimension:
        found.append(
            "that mass concentrates on E at a rate c is a theorem where B is invertible, c itself "
            "is that of the flow linearised at E; c', the lifetimes and log(N)/r are read off the "
            "linear flow, and were measured on the circle and the sphere only; a lifetime near 0 "
            "says that what holds the state is lost in a time that does not grow with beta"
        )
    if any(not head.limit for head in heads):
        found.append("heads without a limit have no rates; 'reason' says why")
    return found


def summary(
    encoder: Encoder, heads: Sequence[HeadAudit], count: int, tokens: TokenAudit | None = None
) -> dict[str, Any]:
    """All of it as plain JSON values."""
    found: dict[str, Any] = {
        "encoder": {
            "family": encoder.family,
            "layers": encoder.layers,
            "heads": encoder.heads,
            "dimension": encoder.dimension,
            "head_dimension": encoder.head_dimension,
        },
        "count": count,
        "heads": [
            {"eigenvalues": plain(head.eigenvalues)} | plain(head_row(head, count))
            for head in heads
        ],
        "notes": notes(encoder, heads),
        "limits": LIMITS,
    }
    if tokens is not None:
        found["tokens"] = plain(
            {
                "count": tokens.count,
                "tolerance": tokens.tolerance,
                "level": tokens.level,
                "paired": tokens.paired,
                "flagged": [one.layer for one in tokens.layers if one.flagged],
                "drifted": [one.layer for one in tokens.layers if one.drifted],
                "stop_depth": tokens.stop_depth,
                "lifetime_depth": tokens.lifetime.depth,
                "lifetime_heads": [list(place) for place in tokens.lifetime.heads],
                "token_lifetime_depth": tokens.token_lifetime.depth,
                "token_lifetime_heads": [list(place) for place in tokens.token_lifetime.heads],
                "layers": layer_rows(tokens),
                "notes": list(tokens.notes),
            }
        )
    return found


def table(
    encoder: Encoder,
    heads: Sequence[HeadAudit],
    count: int,
    tokens: TokenAudit | None = None,
    further: Sequence[str] = (),
) -> str:
    """All of it as text, with further notes; the last line says what tokens come to."""
    lines = [
        f"{encoder.family}: {encoder.layers} layers x {encoder.heads} heads, d = "
        f"{encoder.dimension}, d_head = {encoder.head_dimension}; times in layers, N = {count}",
        "",
    ]
    rows = [head_row(head, count) for head in heads]
    cells = [[title for _, title in _NAMES] + ["leading eigenvalue"]]
    for row in rows:
        last = row["kind"] if row["limit"] else f"no limit: {row['kind']}"
        cells.append([_number(row[name]) for name, _ in _NAMES] + [last])
    lines += in_columns(cells, right=range(len(cells[0])))
    if tokens is not None:
        lines += ["", *_token_lines(tokens)]
    lines += ["", *(f"- {note}" for note in (*notes(encoder, heads), LIMITS, *further))]
    if tokens is not None:
        lines += ["", _conclusion(tokens)]
    return "\n".join(lines)


def _token_lines(audit: TokenAudit) -> list[str]:
    cells = [[title for _, title in _LAYER_NAMES] + ["95 %", ""]]
    for row in layer_rows(audit):
        interval = (
            "" if row["rate_low"] is None else f"{row['rate_low']:.3g}..{row['rate_high']:.3g}"
        )
        mark = ", ".join(
            text
            for text, is_so in (("deviates", row["flagged"]), ("drift", row["drifted"]))
            if is_so
        )
        cells.append([_number(row[name]) for name, _ in _LAYER_NAMES] + [interval, mark])
    lines = [f"{audit.count} tokens", *in_columns(cells, right=range(len(cells[0])))]
    if flagged := [str(one.layer) for one in audit.layers if one.flagged]:
        lines.append(
            f"deviates: layer {', '.join(flagged)}; the heads leave more than {UNEXPLAINED:.0%} of "
            f"the step into each unexplained, and p <= {audit.level:g} for noise (corrected for "
            "the layers)"
        )
    if drifted := [str(one.layer) for one in audit.layers if one.drifted]:
        lines.append(
            f"drift: layer {', '.join(drifted)}; p <= {audit.level:g} against the baseline"
        )
    notes = list(audit.notes)
    if audit.paired is not None:
        how = "the same inputs, swapped in pairs" if audit.paired else "different inputs"
        notes.append(f"tested against the baseline as {how}")
    return lines + [f"- {note}" for note in notes]


def _conclusion(audit: TokenAudit) -> str:
    """One line: what was found nowhere, where the clouds stop, and the lifetime predicted."""
    nowhere = [] if any(one.flagged for one in audit.layers) else ["no layer deviates"]
    if audit.paired is not None and not any(one.drifted for one in audit.layers):
        nowhere.append("none drifts from the baseline" if nowhere else "no layer drifts")
    stop = f"from layer {audit.stop_depth} on nothing changes by more than"
    if audit.stop_depth is None:
        stop = "up to the last layer tokens change by more than"
    parts = [*([", ".join(nowhere)] if nowhere else []), f"{stop} {audit.tolerance:g} rad"]
    if audit.lifetime.depth is None:
        return "; ".join([*parts, "no lifetime is predicted, as no head has a limit"])
    parts.append(
        "predicted lifetime, over the longest-lived head with a limit of each layer until then: "
        f"{_ends(audit.lifetime)} for the density, {_ends(audit.token_lifetime)} for "
        f"{audit.count} tokens"
    )
    return "; ".join(parts)


def _ends(found: LifetimeEnd) -> str:
    """Where a lifetime ends, and over which heads it was taken."""
    if found.depth is None:
        return "none"
    where = "not within the layers"
    if math.isfinite(found.depth):
        where = f"{_number(found.depth)} layers"
    return f"{where} ({', '.join(f'layer {layer} head {head}' for layer, head in found.heads)})"


def _number(value: float | int | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) or math.isinf(value) else f"{value:.3g}"
