"""The site of the documentation, from the pages in `demos/`.

    sphinx-build -W -j auto -c demos/site demos results/site

Tutorials are executed, and kept in results/.jupyter_cache until they change.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = HERE.parent
sys.path.insert(0, str(HERE))  # `percent`

project = "meanfield_pde"
author = "The meanfield_pde developers"
copyright = author
release = version = version("meanfield_pde")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["results", "site"]

myst_enable_extensions = ["amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3

nb_custom_formats = {".py": "percent.read"}
nb_execution_mode = "cache"
# Scripts with a function `main`, and those of the literature, whose numbers tests assert. Pages
# without one are executed.
nb_execution_excludepatterns = ["*/literature/*.py"] + [
    f"*/{path.name}"
    for path in PAGES.glob("*.py")
    if "\ndef main(" in path.read_text(encoding="utf-8")
]
nb_execution_in_temp = True  # what they write goes to no folder of the repository
nb_execution_timeout = 120
nb_execution_show_tb = True  # beside the warning, which ends the build
nb_merge_streams = True
# Short forms, whose numbers tests assert, on one thread: a build takes seconds.
os.environ |= {"MEANFIELD_PDE_SHORT": "1", "MEANFIELD_PDE_THREADS": "1"}

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
default_role = "code"
napoleon_use_ivar = True
maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"{project} {release}"
# Mathematics without a network. The package is an extension, too, but not one for two processes.
mathjax = find_spec("sphinx-mathjax-offline")
assert mathjax is not None
assert mathjax.origin is not None
html_static_path = [str(Path(mathjax.origin).parent / "static")]
mathjax_path = "mathjax/tex-chtml.js"
html_show_copyright = False
html_domain_indices = False
html_theme_options = {"navigation_with_keys": True}


def as_plain_text(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Keep what docstrings write as they mean it: |x| is a norm, and * a product, not markup."""
    for i, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [re.sub(r"([|*\\]|_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
        lines[i] = "".join(parts)


def without_types(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Words on a property, of which napoleon takes those before a colon for its type."""
    if what == "property":
        lines[:] = (inspect.getdoc(obj) or "").splitlines()
        as_plain_text(app, what, name, obj, options, lines)


def setup(app: Any) -> None:
    """Change docstrings before napoleon, which makes markup of its own, and after it."""
    app.connect("autodoc-process-docstring", as_plain_text, priority=400)
    app.connect("autodoc-process-docstring", without_types, priority=600)
