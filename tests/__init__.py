"""Tests of meanfield_pde."""
