"""The field's words: no private one stands in the package, its tests, demos and README.

A word counts where no letter stands beside it, so in names, too: `a_b` holds `a` and `b`.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Cut by a bar, so that this list is not found in this file.
PRIVATE = [
    word.replace("|", "")
    for word in (
        "s|pot", "s|pots", "f|ollower", "f|ollowers", "t|old", "t|aken up", "s|o many",
        "g|iven back", "s|ifted", "t|he house", "r|ooms", "w|ide evolution", "t|ilted", "j|udging",
    )
]  # fmt: skip
PATTERN = re.compile(
    "(?<![a-z])(?:" + "|".join(word.replace(" ", r"[\s_#]+") for word in PRIVATE) + ")(?![a-z])",
    re.IGNORECASE,
)
# History, and the one module that reads what earlier versions wrote, with its tests.
EXEMPT = (
    "demos/CHANGELOG.md",
    "meanfield_pde/support/old_names.py",
    "tests/results/test_old_names.py",
)
# Names in files of earlier versions, where they are written or read: a column, and the beginning of
# arrays in a checkpoint.
OLD = re.compile(r"s[p]ot_mass|\"s[p]ot_\"")
SEARCHED = ("README.md", "meanfield_pde", "tests", "demos", "meshes")
TEXTS = {".md", ".py", ".toml", ".slurm", ".geo"}


def private_words(text: str) -> list[str]:
    """Lines that hold a private word, each with its number."""
    # Of the same length, so that places stay.
    known = OLD.sub(lambda found: "x" * len(found[0]), text)
    lines = [known.count("\n", 0, found.start()) + 1 for found in PATTERN.finditer(known)]
    return [f"{line}: {text.splitlines()[line - 1].strip()}" for line in dict.fromkeys(lines)]


def test_private_words_are_seen() -> None:
    for word in PRIVATE:
        name = word.replace(" ", "_")
        for text in (
            f"A {word}.",
            f"_{name} = 1",
            f"its {word.upper()}",
            word.replace(" ", "\n# "),
        ):
            assert private_words(f"first\n{text}"), text
        assert not private_words(f"x{name} {name}xyz")


def test_no_private_words() -> None:
    found = []
    for name in SEARCHED:
        place = ROOT / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            relative = path.relative_to(ROOT).as_posix()
            if relative.startswith(EXEMPT) or path.suffix not in TEXTS:
                continue
            assert not PATTERN.search(relative), relative
            found += [f"{relative}:{line}" for line in private_words(path.read_text("utf-8"))]
    assert not found, "\n".join(found)
