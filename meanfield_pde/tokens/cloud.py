"""Token clouds: positions of N tokens at T times, read from and written to `.npz` and `.csv`.

.npz   times (T), tokens (T x N x d) or (N x d); optional masses (N), query, key, value, beta
.csv   a row per token and time, columns time, token, x, y[, z]; time may be left out
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.checks import check_file, numbers, shown, time_index, to_sphere
from meanfield_pde.support.files import make_folder, replace_file
from meanfield_pde.support.npz import read_arrays, unused_arrays, write_arrays
from meanfield_pde.wasserstein.measure import Measure

LOG = logging.getLogger("meanfield_pde")

WEIGHTS = ("query", "key", "value")
CSV_COLUMNS = (
    ("time", "token", "x", "y", "z"),
    ("time", "token", "x", "y"),
    ("token", "x", "y", "z"),
    ("token", "x", "y"),
)
MOST_COLUMNS = 3  # coordinates in a .csv file
LARGEST_NUMBER = 2**53  # of a token in one: whole numbers up to this are different doubles


@dataclass(frozen=True, eq=False)
class TokenCloud:
    """Positions of N tokens on the sphere S^(d-1) at T times, and optionally what moved them.

    Attributes:
        times: T strictly increasing times.
        tokens: T x N x d positions; N x d is understood as a single time.
        masses: N weights >= 0 of the tokens, or None if all are equal.
        query: Q of the attention that moved the tokens, if known.
        key: K, likewise.
        value: V, likewise.
        beta: inverse temperature, likewise.
        note: what was changed or left aside on reading; empty if nothing was.
    """

    times: np.ndarray
    tokens: np.ndarray
    masses: np.ndarray | None = None
    query: np.ndarray | None = None
    key: np.ndarray | None = None
    value: np.ndarray | None = None
    beta: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.note, str):
            raise InputError(f"note must be a text, got {shown(self.note)}")
        times = np.atleast_1d(numbers(self.times, "times"))
        tokens = numbers(self.tokens, "tokens")
        if tokens.ndim == 2:
            tokens = tokens[None]
        if tokens.ndim != 3 or 0 in tokens.shape or tokens.shape[2] < 2:
            raise InputError(
                f"tokens must have shape (T, N, d) or (N, d) with d >= 2, got {tokens.shape}"
            )
        if times.shape != tokens.shape[:1]:
            raise InputError(
                f"times must be {len(tokens)} numbers, one for each time of tokens, "
                f"got shape {times.shape}"
            )
        late = np.flatnonzero(~(np.diff(times) > 0))
        if len(late) or not np.isfinite(times).all():
            raise InputError(f"times must be finite and increasing, got {_around(times, late)}")
        tokens, off = to_sphere(tokens, lambda i: f"token {i[1]} at time {times[i[0]]:g}")
        for name, array in (("times", times), ("tokens", tokens)):
            object.__setattr__(self, name, array)
        object.__setattr__(self, "note", "; ".join(filter(None, (self.note, off))))
        if self.masses is not None:
            object.__setattr__(self, "masses", _masses(self.masses, tokens.shape[1]))
        for name in WEIGHTS:
            if getattr(self, name) is not None:
                matrix = _weights(getattr(self, name), name, tokens.shape[2])
                object.__setattr__(self, name, matrix)
        if self.beta is not None:
            beta = numbers(self.beta, "beta")
            if beta.size != 1 or not beta >= 0:
                raise InputError(f"beta must be one number >= 0, got {beta.tolist()}")
            object.__setattr__(self, "beta", beta.item())

    @property
    def dimension(self) -> int:
        """Dimension d of the space the tokens live in."""
        return int(self.tokens.shape[2])

    def measure(self, index: int = -1) -> Measure:
        """The tokens at one of the times as a discrete measure; by default the last."""
        masses = np.ones(self.tokens.shape[1]) if self.masses is None else self.masses
        return Measure(self.tokens[time_index(index, len(self.times))], masses)


@typed
def read_tokens(path: str | Path) -> TokenCloud:
    """Read a token cloud from an `.npz` or `.csv` file; nothing is ever unpickled.

    Tokens off the unit sphere by up to 1e-6 are put back on it, and the cloud's `note` says so.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], TokenCloud]] = {".npz": _read_npz, ".csv": _read_csv}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: a token file must end in .npz or .csv, got '{path.suffix}'")
    check_file(path, f"{path}: no such token file")
    try:
        cloud = reader(path)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable token file ({error})") from None
    if cloud.note:
        LOG.info("%s: %s", path, cloud.note)
    return cloud


@typed
def write_tokens(path: str | Path, cloud: TokenCloud) -> None:
    """Write a token cloud as `.npz` or, if it has nothing but times and tokens, as `.csv`."""
    path = Path(path)
    extras = {
        name: getattr(cloud, name)
        for name in ("masses", *WEIGHTS, "beta")
        if getattr(cloud, name) is not None
    }
    suffix = path.suffix.lower()
    if suffix not in (".npz", ".csv"):
        raise InputError(f"{path}: a token file must end in .npz or .csv, got '{path.suffix}'")
    if suffix == ".csv" and extras:
        raise InputError(f"{path}: a .csv file cannot hold {', '.join(extras)}; write .npz instead")

    if suffix == ".npz":
        write_arrays(path, {"times": cloud.times, "tokens": cloud.tokens} | extras)
        return
    T, N, d = cloud.tokens.shape
    if d > MOST_COLUMNS:
        raise InputError(f"{path}: a .csv file has tokens in dimension 2 or 3, got {d}; write .npz")

    def write(part: Path) -> None:
        rows = np.column_stack(
            [np.repeat(cloud.times, N), np.tile(np.arange(N), T), cloud.tokens.reshape(-1, d)]
        )
        header = ",".join(CSV_COLUMNS[0][: 2 + d])
        formats = ["%.17g", "%d"] + d * ["%.17g"]
        with part.open("w", encoding="utf-8") as file:  # numpy compresses what ends in .gz
            np.savetxt(file, rows, formats, delimiter=",", header=header, comments="")

    make_folder(path.parent)
    replace_file(path, write)


def _weights(given: Any, name: str, dimension: int) -> np.ndarray:
    """A matrix of the attention, or as many as there are layers and heads, for these tokens."""
    matrices = numbers(given, name)
    square = name == "value"
    fits = matrices.ndim >= 2 and matrices.shape[-1] == dimension
    if not fits or (square and matrices.shape[-2] != dimension):
        rows = dimension if square else "k"
        raise InputError(f"{name} must be {rows} x {dimension}, got shape {matrices.shape}")
    if not np.isfinite(matrices).all():
        raise InputError(f"{name} must have finite entries")
    return matrices


def _read_npz(path: Path) -> TokenCloud:
    arrays = read_arrays(path)
    if "tokens" not in arrays:
        raise InputError(f"the array 'tokens' is missing; found {sorted(arrays)}")
    known = ("times", "tokens", "masses", *WEIGHTS, "beta")
    if "times" not in arrays:
        if arrays["tokens"].ndim != 2:
            raise InputError(f"the array 'times' is missing; found {sorted(arrays)}")
        arrays["times"] = np.zeros(1)
    note = unused_arrays(arrays, known)
    given: dict[str, Any] = {name: arrays[name] for name in known if name in arrays}
    return TokenCloud(**given, note=note)


def _read_csv(path: Path) -> TokenCloud:
    lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    # numpy.savetxt puts '# ' before a header by default.
    columns = tuple(name.strip() for name in lines[0].lstrip("# ").split(",")) if lines else ()
    if columns not in CSV_COLUMNS:
        raise InputError(
            f"the header must be time,token,x,y or time,token,x,y,z (time may be left out), "
            f"got {','.join(columns)!r:.200}"
        )
    if len(lines) == 1:
        raise InputError("there are no tokens below the header")
    try:
        rows = np.loadtxt(lines[1:], delimiter=",", ndmin=2, comments=None)
    except ValueError:
        raise InputError(_wrong_row(lines[1:], columns)) from None
    if rows.shape[1] != len(columns):
        raise InputError(f"the header has {len(columns)} columns, the rows {rows.shape[1]}")
    if columns[0] != "time":
        rows = np.column_stack([np.zeros(len(rows)), rows])
    if not np.isfinite(rows).all():
        row = np.argwhere(~np.isfinite(rows))[0][0]
        raise InputError(f"row {row + 1} below the header has a value that is not finite")
    wrong = ~((rows[:, 1] >= 0) & (rows[:, 1] <= LARGEST_NUMBER) & (rows[:, 1] % 1 == 0))
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(
            f"row {row + 1} below the header: token must be a whole number >= 0, got "
            f"{rows[row, 1]:g}"
        )
    times, ids = np.unique(rows[:, 0]), np.unique(rows[:, 1])
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    _check_complete(rows[:, :2], times, ids)
    return TokenCloud(times, rows[:, 2:].reshape(len(times), len(ids), -1))


def _wrong_row(lines: list[str], columns: tuple[str, ...]) -> str:
    """What is wrong with the first row that cannot be read."""
    for i, line in enumerate(lines):
        cells = line.split(",")
        if len(cells) != len(columns):
            return (
                f"row {i + 1} below the header has {len(cells)} values, the header "
                f"{len(columns)} columns"
            )
        for name, cell in zip(columns, cells, strict=True):
            try:
                float(cell)
            except ValueError:
                return f"row {i + 1} below the header: {name} is {cell.strip()!r}, not a number"
    return "the rows below the header are not numbers separated by commas"


def _check_complete(rows: np.ndarray, times: np.ndarray, ids: np.ndarray) -> None:
    """Refuse a table in which a token is missing from a time, or there twice."""
    pairs, counts = np.unique(rows, axis=0, return_counts=True)
    if (counts > 1).any():
        time, token = pairs[counts.argmax()]
        raise InputError(f"token {token:g} is there {counts.max()} times at time {time:g}")
    if len(pairs) != len(times) * len(ids):
        found = dict(zip(*np.unique(pairs[:, 0], return_counts=True), strict=True))
        time = min(times, key=lambda one: found[one])
        token = np.setdiff1d(ids, pairs[pairs[:, 0] == time, 1])[0]
        raise InputError(f"token {token:g} is missing at time {time:g}")


def _masses(given: Any, count: int) -> np.ndarray:
    masses = numbers(given, "masses")
    if masses.shape != (count,):
        raise InputError(f"masses must be {count} numbers, one for each token, got {masses.shape}")
    wrong = np.flatnonzero(~((masses >= 0) & np.isfinite(masses)))
    if len(wrong):
        raise InputError(f"masses must be >= 0, got {masses[wrong[0]]:g} for token {wrong[0]}")
    if not masses.any():
        raise InputError("masses must not all be zero")
    if masses.max() > np.finfo(float).max / count:
        raise InputError("the total of the masses overflows; scale them down")
    return masses


def _around(times: np.ndarray, late: np.ndarray) -> str:
    i = int(late[0]) if len(late) else 0
    return f"{times[i : i + 2].tolist()} at index {i}"
