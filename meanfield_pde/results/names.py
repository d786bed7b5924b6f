"""Names in a result folder."""

import re

CASE, HISTORY, DENSITY, JOURNAL = "case.toml", "history.csv", "density.h5", "density.journal"
CHECKPOINT, SUMMARY, FIELDS, FIGURES = "checkpoint.h5", "summary.json", "fields", "figures"
COARSEST = "coarsest/"  # in density.h5: the mesh that one which follows the mass began as
PREVIOUS = "checkpoint.previous.h5"  # the checkpoint before
LOCK = ".meanfield_pde.lock"
ALL = (CASE, HISTORY, DENSITY, JOURNAL, CHECKPOINT, PREVIOUS, SUMMARY, FIELDS, FIGURES)
# The files of each folder that a run or `plot` and `compare` after it write; indices before what
# they list, so that none ever lists a file that has gone.
FILES = {
    "": ALL,
    FIELDS: ("density.pvd", "density.xdmf", "mesh.h5", r"density\d{6,}.vtu", r"density\d{6,}.h5"),
    FIGURES: (
        r"(density|distances|history|tokens)\.(png|pdf|svg)",
        r"density\.(gif|html)",
    ),
}


def is_ours(folder: str, name: str) -> bool:
    """Whether a run writes a file of that name in that folder of its results."""
    return any(re.fullmatch(known, name) for known in FILES[folder])
