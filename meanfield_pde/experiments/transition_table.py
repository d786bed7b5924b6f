"""Where a `transition` stands: its rows so far, and the masses of the state of the last one.

The next state is followed from there, so that one that was stopped goes on if its way is the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.results.tables import Row, read_table, write_table
from meanfield_pde.support.npz import read_arrays, write_arrays

STATE = "state.npz"

# A way, "up" or "down", and a strength of the noise.
Leg = tuple[str, float]
# The same of a state that was not found, and why.
Missing = tuple[str, float, str]


def keep(table: Path, rows: Sequence[Row], missing: Sequence[Missing], masses: np.ndarray) -> None:
    """Write the rows, and then the state that the last of them belongs to."""
    write_table(table, rows)
    without = np.array([(way, repr(s), why) for way, s, why in missing], dtype=str).reshape(-1, 3)

    write_arrays(table.with_name(STATE), {"rows": len(rows), "missing": without, "masses": masses})


def resume(
    table: Path, legs: Sequence[Leg], cells: int
) -> tuple[list[Row], list[Missing], np.ndarray | None]:
    """What need not be made again, and the masses of the last row; none if it went elsewhere.

    Args:
        table: the file of rows.
        legs: all that are wanted, in order.
        cells: number of masses.

    Returns:
        The rows, the states that were looked for and not found, the masses.
    """
    path = table.with_name(STATE)
    if not (table.is_file() and path.is_file()):
        return [], [], None
    try:
        state = read_arrays(path)
        count, masses = int(state["rows"]), state["masses"]
        missing = [(str(way), float(s), str(why)) for way, s, why in state["missing"]]
    except (InputError, KeyError, TypeError, ValueError):  # nobody's work but our own: made again
        return [], [], None
    rows = [  # what is not known stands as nothing in the table
        {name: math.nan if value is None else value for name, value in row.items()}
        for row in read_table(table)[:count]
    ]
    done = legs[: count + len(missing)]
    without = [(way, strength) for way, strength, _ in missing]
    same = [(row["way"], row["strength"]) for row in rows] == [
        leg for leg in done if leg not in without
    ]
    if len(rows) < count or not same or masses.shape != (cells,):
        return [], [], None
    return rows, missing, masses
