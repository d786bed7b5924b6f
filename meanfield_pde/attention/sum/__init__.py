"""The attention sum: softmax means over a weighted point set, with a bound on the error.

For scores w_i and sources y_j with masses M_j,

    Z_i = sum_j M_j exp(<w_i, y_j>),     m_i = (1 / Z_i) sum_j M_j exp(<w_i, y_j>) y_j.

This is nearly all of the run time, and there are three ways to compute it, all within a tolerance
that is a bound for every target (rounding apart), times the largest |y_j|; for log Z likewise.

Tiles (`tiles`) add up the terms. Sources are the leaves of a tree (`tree`), targets are grouped in
tiles. For a group k of sources of log mass l in a box with centre c and half axes a_1, a_2, a_3,

    log sum_{j in k} M_j exp(<w, y_j>)  <=  <w, c> + sum_i |<w, a_i>| + l,

and by Jensen's inequality the same sum is at least exp(<w, mean of the group> + l). A group whose
upper bound is below the best lower bound by log(tolerance / (2 x leaves)), for all targets of the
tile, is skipped with all below it: together the groups skipped hold less than tolerance / 2 of Z_i,
and m_i, which lies in the convex hull of the y_j, is in error by less than the tolerance. Only log
masses enter: masses of 1e-300 are as exact as any.

The expansion (`low_rank`, with its loops in `harmonics`) is for short scores, where nothing can be
skipped. A mean is accepted if its Z is large enough for the bound on the error to hold; the others
are left to tiles.

Series (`series`, with its loops in `series_loops` and `series_terms`) are for kernels that hold
thousands of sources: blocks of targets and groups of sources meet through moments, with a bound
relative to every Z. Where fewer nodes would do (`series_nodes`), these stand for the sources of a
group. `cost_model` chooses among the three, `summation` puts it all together, and `shared` deals
the work out to ranks.
"""

from meanfield_pde.attention.sum.sources import Sources, Targets
from meanfield_pde.attention.sum.summation import AttentionSum, log_partition, softmax, softmax_mean

__all__ = ["AttentionSum", "Sources", "Targets", "log_partition", "softmax", "softmax_mean"]
