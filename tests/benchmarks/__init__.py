"""Benchmarks: each module prints a table; `python -m tests.benchmarks` runs them all."""
