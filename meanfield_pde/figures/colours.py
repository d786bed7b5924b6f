"""How curves of one quantity at several times or beta look: distinguished in colour and in grey."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps

# From black on, ever lighter, through violet, red and orange: the order is seen in grey, too. What
# is lighter than 0.82 is pale on white.
_COLOURS, _LIGHTEST = "inferno", 0.82
_DASHES = ("-", (0, (7, 1.5)))  # in turn: neighbours among many differ in grey


def distinct(count: int) -> list[dict[str, Any]]:
    """Return colour and line style of as many curves, in their order."""
    shades = np.linspace(0, _LIGHTEST, count)
    return [
        {"color": colormaps[_COLOURS](shade), "ls": _DASHES[i % 2]}
        for i, shade in enumerate(shades)
    ]
