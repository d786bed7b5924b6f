"""Tables of text, for what commands print."""

from __future__ import annotations

from collections.abc import Sequence


def in_columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Return rows as lines of aligned columns; columns without any text are left out.

    Args:
        rows: of the same number of cells; the first may be a heading.
        right: columns that are aligned at their right ends, as numbers are.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    kept = [i for i, column in enumerate(columns) if any(column[1:])]
    return [
        "  ".join(
            row[i].rjust(widths[i]) if i in right else row[i].ljust(widths[i]) for i in kept
        ).rstrip()
        for row in rows
    ]
