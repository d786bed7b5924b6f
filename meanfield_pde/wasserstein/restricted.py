"""The transport problem on a given set of arcs, and what a solver of it gives back.

    min sum_e c_e x_e,   sum_{e from i} x_e = a_i,   sum_{e to j} x_e = b_j,   x >= 0

There are two, with nothing in common: `network_simplex`, of our own, goes on from the basis of the
round before and is the faster; `linear_program` is scipy's HiGHS, against which it can be checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, eq=False)
class Tree:
    """A basis: the parent of each node, and the arc to it, -1 for the tie to the root."""

    parent: np.ndarray
    arc: np.ndarray


@dataclass(frozen=True, eq=False)
class Solution:
    """Flow on the arcs, potentials, the tree of the basis if known, and whether time sufficed."""

    flow: np.ndarray
    u: np.ndarray
    v: np.ndarray
    tree: Tree | None
    finished: bool


class Solver(Protocol):
    """What solves on arcs."""

    def __call__(
        self,
        rows: np.ndarray,
        columns: np.ndarray,
        cost: np.ndarray,
        a: np.ndarray,
        b: np.ndarray,
        tie: float,
        deadline: float,
        start: Tree | None,
    ) -> Solution | None:
        """An optimal flow on the arcs given, and optimal potentials; None if there is none.

        Args:
            rows: source of each arc.
            columns: target of each arc.
            cost: cost of each arc.
            a: masses of the sources.
            b: masses of the targets, of the same sum.
            tie: more than the cost of any arc, given or not.
            deadline: value of time.monotonic() at which to stop, or infinity.
            start: the tree of a solution for the same masses, with its arcs numbered as these.
        """
