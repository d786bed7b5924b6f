"""Arrays from `.npz` files that somebody else wrote: nothing in them is unpickled or trusted.

The messages do not name the file; the callers do, who know what it was to hold.
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

from meanfield_pde.errors import InputError

# What numpy, zipfile, zlib and, for the header of an array, tokenize raise on a damaged file.
UNREADABLE = (
    OSError,
    ValueError,
    RuntimeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
)


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of an `.npz` file, unpickling nothing; the caller's message names the file."""
    if not Path(path).is_file():
        raise InputError("no such file")
    if not zipfile.is_zipfile(path):
        raise InputError("not an .npz file")
    try:
        with np.load(path, allow_pickle=False) as data:
            return {name: np.asarray(data[name]) for name in data.files}
    except UNREADABLE as error:
        # The text of an OSError ends with the name of the file; its strerror does not.
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InputError(f"not a readable .npz file ({reason})") from None
