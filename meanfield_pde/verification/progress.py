"""How far a comparison is, on a terminal."""

from __future__ import annotations

import sys

from tqdm import tqdm


class Bar:
    """A progress bar on a terminal."""

    def __init__(self, shown: bool, total: int) -> None:
        self._bar = (
            tqdm(total=total, desc="compare", file=sys.stderr, leave=False)
            if shown and sys.stderr.isatty()
            else None
        )

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def done(self, count: int) -> None:
        """So much more is done."""
        if self._bar is not None:
            self._bar.update(count)
