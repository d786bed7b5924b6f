"""Colours of curves that differ, for the colour blind and in grey too."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps

# Okabe and Ito's palette for the colour blind, so ordered that neighbours differ most.
PALETTE = ("#000000", "#E69F00", "#0072B2", "#CC79A7", "#009E73", "#D55E00", "#56B4E9", "#F0E442")


def distinct(count: int) -> list[str | tuple[float, ...]]:
    """Return colours of as many curves; of more than the palette has, a sequence from light on."""
    if count <= len(PALETTE):
        return list(PALETTE[:count])
    return [colormaps["cividis"](shade) for shade in np.linspace(0.92, 0.0, count)]
