"""Check the site of the documentation: its links and anchors, its search, and what it must hold.

    python -m tests.site_links FOLDER        (that of `sphinx-build -c demos/site demos FOLDER`)

Prints a line for each fault, and exits with 1 if there is one. Where Chromium is installed, it also
searches the site in it, without a network, and looks whether mathematics are typeset.
"""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import meanfield_pde

PYTHON = "reference/python.html"
# Titles that the search has to know.
TITLES = {"Architecture", "Glossary"}


class _Page(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the attributes that name something or lead somewhere."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif value and (name, tag) == ("href", "a"):
                self.links.add(value)
            elif value and (name, tag) in (("href", "link"), ("src", "script"), ("src", "img")):
                self.loaded.add(value.partition("?")[0])


def public_names() -> set[str]:
    """Anchors that the page on Python has to have: exports, and members of classes."""
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
    """What is wrong with a site: links that lead nowhere, and what is not there or not found."""
    pages = {
        path.resolve(): _Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")
    }
    python = pages.get((folder / PYTHON).resolve())
    if python is None:
        return [f"{folder}: there is no {PYTHON}"]
    entries = {f"meanfield_pde.{name}" for name in wanted}
    found = [f"{PYTHON}: has no entry {name}" for name in sorted(entries - python.anchors)]
    for path, page in pages.items():
        where = path.relative_to(folder.resolve())
        for link in sorted(page.links | page.loaded):
            if link.startswith("data:"):
                continue
            if link.startswith("https://"):
                if link in page.loaded:
                    found.append(f"{where}: loads {link} from the network")
                continue
            place, anchor = urldefrag(unquote(link))
            target = (path.parent / place).resolve() if place else path
            there = target in pages and (not anchor or anchor in pages[target].anchors)
            if not there and not (target.is_file() and not anchor):
                found.append(f"{where}: the link {link} leads nowhere")
    index = (folder / "searchindex.js").read_text(encoding="utf-8")
    titles = json.loads(index.removeprefix("Search.setIndex(").rstrip(")\n"))["alltitles"]
    return found + [f"search: knows no title {one}" for one in sorted(TITLES - set(titles))]


# What the browser has to show, and on which page: a result of the search, and typeset mathematics.
SHOWN = {
    "search.html?q=plateau": 'href="explanation/glossary.html',
    "explanation/method.html": "<mjx-container",
}


def faults_in_browser(folder: Path, browser: str) -> list[str]:
    """What a browser without a network does not show of a site."""
    found = []
    for page, wanted in SHOWN.items():
        line = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--proxy-server=127.0.0.1:9",
        ]
        line += ["--virtual-time-budget=20000", "--dump-dom", f"{folder.resolve().as_uri()}/{page}"]
        shown = subprocess.run(
            line, capture_output=True, text=True, check=False, timeout=120
        ).stdout
        if wanted not in shown:
            found.append(f"{page}: the browser does not show {wanted}")
    return found


if __name__ == "__main__":
    site, browser = Path(sys.argv[1]), shutil.which("chromium")
    wrong = faults(site, public_names())
    wrong += faults_in_browser(site, browser) if browser else []
    print("\n".join(wrong) or "no fault")
    sys.exit(bool(wrong))
