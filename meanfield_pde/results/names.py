"""Names in a result folder."""

CASE, HISTORY, DENSITY, JOURNAL = "case.toml", "history.csv", "density.h5", "density.journal"
CHECKPOINT, SUMMARY, FIELDS, FIGURES = "checkpoint.h5", "summary.json", "fields", "figures"
COARSEST = "coarsest/"  # in density.h5: the mesh that one which follows the mass began as
ALL = (CASE, HISTORY, DENSITY, JOURNAL, CHECKPOINT, SUMMARY, FIELDS, FIGURES)
