"""Numbers and arrays as JSON has them; it has no word for infinity and what is not a number."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """The value in lists, numbers and strings.

    Infinity is "inf", what is not a number null, a complex number the pair [re, im].
    """
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        return [plain(one) for one in value]
    if isinstance(value, np.generic | np.ndarray):
        value = value.item()
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else ("inf" if value > 0 else "-inf")


def json_text(value: Any) -> str:
    """The value as JSON."""
    return json.dumps(plain(value), indent=2, allow_nan=False)
