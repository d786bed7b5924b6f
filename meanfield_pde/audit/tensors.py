"""The tensors of a `.safetensors` file, by name, each read when it is asked for.

Eight bytes give the length of a header in JSON, which says where in the rest of the file each
tensor stands. The package `safetensors` checks and reads it.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np

from meanfield_pde.errors import InputError

# The header of a large model has a few hundred kilobytes; the format allows no more than this.
LARGEST_HEADER = 100_000_000


class Tensors:
    """The tensors of a file, by name; every fault of the file is an InputError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._module = importlib.import_module("safetensors")

    def shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of each tensor; the data are not read."""
        try:
            with self._module.safe_open(str(self._path), framework="np") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                return {n: (tuple(s.get_shape()), str(s.get_dtype())) for n, s in slices.items()}
        except (self._module.SafetensorError, OSError, ValueError, TypeError) as error:
            raise self._unreadable(error) from None

    def read(self, name: str) -> np.ndarray:
        """A tensor in double precision."""
        try:
            with self._module.safe_open(str(self._path), framework="np") as file:
                return np.asarray(file.get_tensor(name)).astype(float)
        except (self._module.SafetensorError, OSError, ValueError, TypeError) as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> InputError:
        reason = " ".join(str(error).split())[:200]
        return InputError(f"{self._path}: not a readable .safetensors file ({reason})")


def check_header(path: Path) -> None:
    """Refuse a header that does not fit in the file, before anybody makes room for it."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            first = file.read(1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if size < 10 or length > min(size - 8, LARGEST_HEADER) or first != b"{":
        raise InputError(
            f"{path}: not a readable .safetensors file (damaged, cut off, or of another format: "
            f"its header would have {length} bytes, the file has {size})"
        )
