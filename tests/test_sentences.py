"""Sentences of the pages are short: words outside code, tables, mathematics and headings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LONGEST = 35
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "demos").rglob("*.md") if "results" not in path.parts),
    *sorted((ROOT / ".github").rglob("*.md")),
    *sorted((ROOT / "demos").glob("*.py")),
]


def prose(path: Path) -> str:
    """The text of a page; of a script, its cells of Markdown."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        cells = re.findall(r"^# %% \[markdown\]\n((?:#.*\n)*)", text, re.MULTILINE)
        text = re.sub(r"^# ?", "", "\n\n".join(cells), flags=re.MULTILINE)
    return text


def sentences(text: str) -> list[str]:
    """Sentences, which end at . ! ? : or ; and with a paragraph or an entry of a list."""
    text = re.sub(r"\A---\n.*?^---\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(```|\$\$).*?^\1$", "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    # Code stands behind an empty line; what continues an entry of a list does not.
    text = re.sub(r"\n\n(?: {4}.*\n+)+", "\n\n", text)
    text = re.sub(r"^(?:\||#).*$", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`|\$[^$]*\$", "x", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    found = []
    for paragraph in re.split(r"\n\s*\n|^\s*(?:[-*:]|\d+\.) ", text, flags=re.MULTILINE):
        found += re.split(r"(?<=[.!?:;])[)*_\"]*\s+", paragraph)
    return [" ".join(one.split()) for one in found]


def words(sentence: str) -> int:
    return len(re.findall(r"[^\W_][\w'.,^-]*", sentence))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_sentence_is_longer_than_a_reader_can_follow(page: Path) -> None:
    long = [one for one in sentences(prose(page)) if words(one) > LONGEST]
    assert not long, "\n".join(f"{words(one)}: {one}" for one in long)


def test_long_sentences_are_found() -> None:
    thirty = "word " * 30
    for text, expected in (
        (f"{thirty}and six more words are here.", 36),
        (f"{thirty}; {thirty}.", 30),
        (f"{thirty}\n\n{thirty}", 30),
        (f"- {thirty}\n- {thirty}", 30),
        (f"{thirty}\n    {thirty}", 60),
        (f"| {thirty} | {thirty} |", 0),
        (f"```python\n{thirty}\n```\n\n    {thirty}\n", 0),
        (f"`{thirty}` and $x$", 3),
    ):
        assert max(map(words, sentences(text))) == expected, text
