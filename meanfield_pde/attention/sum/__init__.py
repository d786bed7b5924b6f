"""The attention sum: softmax means over a weighted point set, with a bound on the error.

For scores w_i and sources y_j with masses M_j,

    Z_i = sum_j M_j exp(<w_i, y_j>),     m_i = (1 / Z_i) sum_j M_j exp(<w_i, y_j>) y_j.

This is nearly all of the run time. There are three ways to compute it. For each, the tolerance is a
bound of the error of m_i, in units of the largest |y_j|, and of log Z_i, for every target (rounding
apart), and only log masses enter:

- the pruned direct sum over two trees (`direct`), of what is not provably negligible;
- for short scores, where nothing is negligible, an expansion in harmonics (`harmonics`, low rank);
- for kernels that hold thousands of sources, the cluster expansion (`cluster`), with the sources,
  or fewer proxy points that stand for them (`proxies`), in each cluster.

Which is the quickest, measured by `python -m tests.benchmarks.ways` for densities that are nearly
uniform, fall to 1e-80, or to 1e-300: harmonics at low beta, up to 1,000 times as quick as the
direct sum; the direct sum at high beta, and with few cells; the cluster expansion for densities
that are not uniform, from 20,000 cells of the circle or 300,000 of the sphere on, 2 to 30 times as
quick as these two, and with proxy points, where they are accurate enough, up to 2.6 (sphere) or 7
times (circle) as quick as with sources.

`tree` sorts sources and targets, `exponential` has what the compiled loops of all ways use, `cost`
chooses among the ways, `summation` puts them together, and `shared` divides the work among ranks.
"""

from meanfield_pde.attention.sum.summation import (
    AttentionSum,
    SumSettings,
    softmax,
)
from meanfield_pde.attention.sum.tree import Sources, Targets

__all__ = [
    "AttentionSum",
    "Sources",
    "SumSettings",
    "Targets",
    "softmax",
]
