"""case.toml of a folder: the case as run, and a last line with the checksum of all above it.

The line is a comment of TOML, so that the file is a case file like any other, which a copy of it,
changed, is as well. In the folder it says what the results belong to, and one that was changed
there is refused.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from meanfield_pde.case.file import parse
from meanfield_pde.errors import InputError
from meanfield_pde.results.names import CASE
from meanfield_pde.support.checks import check_file
from meanfield_pde.support.files import replace_text

_MARK = b"# sha256 of the lines above: "


def write_case(directory: Path, text: str) -> None:
    """Write case.toml, and its checksum."""
    text = text.rstrip("\n") + "\n"
    mark = _MARK + hashlib.sha256(text.encode()).hexdigest().encode()
    replace_text(directory / CASE, text + mark.decode() + "\n")


def read_case_text(directory: Path, *, checked: bool = False) -> str:
    """The text of case.toml, valid TOML, without its checksum; InputError if that is wrong.

    Args:
        directory: where it is.
        checked: whether it must have a checksum; an earlier version wrote none.
    """
    path = directory / CASE
    check_file(path, f"{path}: not a readable case, there is no such file")
    try:
        content = path.read_bytes()
        above, mark, digest = content.rpartition(_MARK)
        text = (above if mark else content).decode()
        parse(text)
    except (OSError, UnicodeDecodeError, InputError) as error:
        raise InputError(f"{path}: not a readable case ({error})") from error
    expected = hashlib.sha256(above).hexdigest().encode() + b"\n"
    if (mark or checked) and digest != expected:
        raise InputError(
            f"{path}: not a readable case (its checksum is {'wrong' if mark else 'missing'}: it "
            "was edited or damaged since the run wrote it)"
        )
    return text
