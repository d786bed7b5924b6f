"""Demos, which are in the percent format, as notebooks."""

from __future__ import annotations

import jupytext
from nbformat import NotebookNode


def read(text: str) -> NotebookNode:
    """A notebook whose code is Python's, which those that are not executed do not say."""
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "python3"}
    return notebook
