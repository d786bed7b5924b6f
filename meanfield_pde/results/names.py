"""Names in a result folder."""

CASE, HISTORY, DENSITY, JOURNAL = "case.toml", "history.csv", "density.h5", "density.journal"
CHECKPOINT, SUMMARY, FIELDS, FIGURES = "checkpoint.h5", "summary.json", "fields", "figures"
ALL = (CASE, HISTORY, DENSITY, JOURNAL, CHECKPOINT, SUMMARY, FIELDS, FIGURES)
