"""Tests of meanfield_pde, and benchmarks."""

import os

# Before numpy is imported, and in all processes that are started: matrices are small, and threads
# that wait for each other take the cores from workers and ranks. On two loaded cores the tests of
# tests/audit/test_layers.py took 8.4 s of a core with two threads, and take 1.0 s with one.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
