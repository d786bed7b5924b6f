"""Names in a result folder."""

import re
from collections.abc import Iterable

CASE, HISTORY, DENSITY, JOURNAL = "case.toml", "history.csv", "density.h5", "density.journal"
CHECKPOINT, SUMMARY, FIELDS, FIGURES = "checkpoint.h5", "summary.json", "fields", "figures"
MOMENTS = "moments.csv"  # after steps
COARSEST = "coarsest/"  # in density.h5: the mesh that an adaptive one began as
PREVIOUS = "checkpoint.previous.h5"  # the checkpoint before
LOCK = ".meanfield_pde.lock"
ALL = (CASE, HISTORY, MOMENTS, DENSITY, JOURNAL, CHECKPOINT, PREVIOUS, SUMMARY, FIELDS, FIGURES)


def files_of_run(figures: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return patterns of the files, by folder, that a run, or `plot` and `compare` after it, write.

    Indices stand before what they list, so that none ever lists a file that has gone.

    Args:
        figures: the names of those of a run.
    """
    drawn = [rf"{name}\.(png|pdf|svg)" for name in (*figures, "tokens")]
    return {
        "": ALL,
        FIELDS: (
            "density.pvd",
            "density.xdmf",
            "mesh.h5",
            r"density\d{6,}.vtu",
            r"density\d{6,}.h5",
        ),
        FIGURES: (*drawn, r"density\.(gif|html)"),
    }


def is_ours(patterns: Iterable[str], name: str) -> bool:
    """Return whether a file has a name of one of these patterns."""
    return any(re.fullmatch(known, name) for known in patterns)
