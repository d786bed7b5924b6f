"""Check the reference of the Python interface: its links, and that nothing public is missing.

    python -m tests.reference_links FOLDER        (that of `pdoc --output-directory FOLDER`)

Prints a line for each fault, and exits with 1 if there is one.
"""

from __future__ import annotations

import inspect
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import meanfield_pde

FRONT = "meanfield_pde.html"


class _Page(HTMLParser):
    """The anchors of a page, and where its links lead; what scripts hold is no link."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the attributes that name something or lead somewhere."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif value and (name, tag) in (("href", "a"), ("href", "link"), ("src", "script")):
                self.links.add(value)


def public_names() -> set[str]:
    """Anchors that the page of the package has to have: exports, and members of classes."""
    found = set()
    for name in meanfield_pde.__all__:
        one = getattr(meanfield_pde, name)
        if inspect.ismodule(one):
            continue
        found.add(name)
        if inspect.isclass(one) and not issubclass(one, Exception):
            own = {
                member
                for kind in one.__mro__
                if kind.__module__.startswith("meanfield_pde")
                for member, value in vars(kind).items()
                if callable(value) or isinstance(value, property | classmethod | staticmethod)
            }
            found |= {f"{name}.{member}" for member in own if not member.startswith("_")}
    return found


def faults(folder: Path, wanted: set[str]) -> list[str]:
    """What is wrong with the pages in a folder: links that lead nowhere, and names not there."""
    pages = {
        path.resolve(): _Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")
    }
    front = pages.get((folder / FRONT).resolve())
    if front is None:
        return [f"{folder}: there is no {FRONT}"]
    found = [f"{FRONT}: has no entry {name}" for name in sorted(wanted - front.anchors)]
    for path, page in pages.items():
        for link in sorted(page.links):
            if link.startswith(("https://", "data:")):
                continue
            place, anchor = urldefrag(unquote(link))
            target = (path.parent / place).resolve() if place else path
            there = target in pages and (not anchor or anchor in pages[target].anchors)
            if not there and not (target.is_file() and not anchor):
                found.append(f"{path.name}: the link {link} leads nowhere")
    return found


if __name__ == "__main__":
    wrong = faults(Path(sys.argv[1]), public_names())
    print("\n".join(wrong) or "no fault")
    sys.exit(bool(wrong))
