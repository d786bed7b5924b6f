"""Cases to begin with, which come with the package: the same texts as `demos/*.toml`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import choice

_FOLDER = files("meanfield_pde.case") / "starters"


def starter_names() -> list[str]:
    """The names of the cases."""
    return sorted(entry.name.removesuffix(".toml") for entry in _FOLDER.iterdir())


def write_starter(name: str, folder: Path) -> Path:
    """Write a case into a folder, as NAME.toml; a file of that name is not replaced."""
    choice(name, "NAME", starter_names())
    path = folder / f"{name}.toml"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    except FileExistsError:
        raise InputError(f"{path}: is there already; move it away, or edit it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    return path
