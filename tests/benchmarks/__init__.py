"""Benchmarks: each module prints a table; `python -m tests.benchmarks` runs them all."""

import os

# Before numpy is imported: comparisons are between single threads.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
