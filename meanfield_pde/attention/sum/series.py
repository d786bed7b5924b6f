"""The sum for kernels much wider than a cell: short series between blocks and groups.

Targets are taken in blocks, sources in groups, both about as wide as the kernel. With w_0 the
centre of a block, y_0 that of a group,

    exp(<w, y>) = exp(<w_0, y>) exp(<w - w_0, y_0>) exp(s),    s = <w - w_0, y - y_0>.

The first two factors are positive and kept as they are, with the sources and with the targets. The
last has a small exponent, |s| <= rho, and a polynomial P of degree p stands for it, |exp(s) - P(s)|
<= e_p (`exponential`): a sum of products of powers of w - w_0 and y - y_0, so that a group enters
the sums of a block through its moments, sum_j M_j exp(<w_0, y_j>) (y_j - y_0)^k.

*The bound.* Let q_j = M_j exp(<w_0, y_j>) exp(<w - w_0, y_0>) and Q = sum_j q_j over a group. Its
part of Z(w) is sum_j q_j exp(s_j) >= exp(-rho) Q, and its part of the error at most e_p Q. If e_p
<= t exp(-rho) for every group, then the error of Z(w) is at most t times Z(w): for every target,
however small the sum, as all terms are positive and none is compared with more than itself. A group
that holds little of Z(w) may do with less: log Z is convex, with the softmax mean m for its
gradient, so that Z(w) >= Z(w_0) exp(<w - w_0, m(w_0)>), also for the part of Z that a subset of the
sources makes; and where that shows Q <= u Z(w) for all w of the block, e_p <= t / (n u) for n
groups leaves an error of at most t once more. Where even exp(rho) is within that, nothing is added
up at all. The sum of M y exp(<w, y>) is sum_j q_j (y_0 + y_j - y_0) exp(s_j); the second part takes
the derivative P' for exp, whose error, times the radius of the group, is counted with e_p. An error
of a t Z in both sums moves the mean by at most 2 a t.

*Nodes.* Where the kernel holds so many sources that fewer nodes can stand for those of a group, as
wide as the kernel or a few times that, they do (`series_nodes`): signed masses, made once for all
blocks, with an error of their own. Q is then the sum of the |q_j|. The signed sum at w_0 is that of
the sources but for the error of the nodes, and half of it takes the place of Q in exp(-rho) Q; that
error enters this only times t. What a node is for does not matter to the moments, but they can be
taken in one direction at a time.

The points of a group lie near a surface: s is split along the axes of the group into a tangential
part and a small normal part, each power of which has its own, lower degree. Only ratios of masses
enter, so that masses of 1e-300, and log masses below all doubles, are as exact as any.
"""

from __future__ import annotations

import math
from functools import cache
from math import comb

import numpy as np

from meanfield_pde.attention.sum.exponential import HIGHEST, Exponentials
from meanfield_pde.attention.sum.series_groups import NodeGroups, SourceGroups
from meanfield_pde.attention.sum.series_loops import AT_NODES, SOURCE, block_sums
from meanfield_pde.attention.sum.series_nodes import nodes_needed
from meanfield_pde.attention.sum.sources import MANY, Share, Sources, Targets, alone
from meanfield_pde.attention.sum.tree import LEAF, TILE, boxes
from meanfield_pde.support.threads import allowed_threads, in_parts

# Targets of a block and sources of a group: the fewest with which rho exceeds this, as measured.
SIZES = (128, 256, 512, 1024)
_SPAN = 0.5
# Nodes: cells so many widths of the kernel wide, but no more than this; blocks are the largest with
# which rho is at most so much times the fourth root of their targets; as measured.
_WIDTH, _WIDEST = 3.0, 0.4
_SPAN_OF_NODES = 9.2
_FEWER = 0.9  # than so many nodes for a source
_SPARE = 5.0  # the logarithm of what blocks and several groups add to the error of the nodes
_GATHER = 80.0  # nanoseconds of a source that goes to nodes


class Series:
    """Blocks of targets and groups of sources, laid out once; only the masses change.

    Attributes:
        size: targets of a block.
        tiles: tiles of a block.
        blocks: number of blocks.
    """

    def __init__(
        self, sources: Sources, targets: Targets, tolerance: float, *, nodes: bool
    ) -> None:
        self._sources, self._targets, self._tolerance = sources, targets, tolerance
        self._groups: SourceGroups | NodeGroups = self._nodes() if nodes else self._of_sources()
        self.tiles = self.size // TILE
        self.blocks = len(self._block_boxes)
        self._polynomials = _polynomials()

    def _of_sources(self) -> SourceGroups:
        """Blocks and groups of the same size."""
        scores = np.ascontiguousarray(self._targets.scores.T)
        points = np.ascontiguousarray(self._sources.points.T)
        for size in SIZES:
            self.size, self._block_boxes, around = size, boxes(scores, size), boxes(points, size)
            if np.median(_widths(around)) * np.median(_widths(self._block_boxes)) > _SPAN:
                break
        return SourceGroups(self._sources, self.size, around)

    def _nodes(self) -> NodeGroups:
        """Cells as wide as the kernel, and blocks for them."""
        width = _width(self._targets)
        scores = np.ascontiguousarray(self._targets.scores.T)
        for size in SIZES[::-1]:
            self.size, self._block_boxes = size, boxes(scores, size)
            span = np.median(_widths(self._block_boxes)) * width / math.sqrt(2)
            if span <= _SPAN_OF_NODES * size**-0.25:
                break
        longest = float(self._targets.lengths.max())
        return NodeGroups(self._sources, width, longest, _wanted(self._tolerance))

    def load(self, share: Share = alone) -> None:
        """Take in the masses that the sources have."""
        self._groups.load(share)

    def least_cost(self, visits: float) -> float:
        """Nanoseconds for all blocks at least, if a tile visits so many leaves.

        Every block weighs all sources that its tiles visit, whatever else it does.
        """
        weighed = self.blocks * visits * LEAF * SOURCE
        if not isinstance(self._groups, NodeGroups):
            return weighed
        count = self._sources.count
        return weighed * self._groups.expected / count + count * _GATHER

    def costs(self, blocks: np.ndarray) -> np.ndarray:
        """Nanoseconds for each of the blocks listed, a column; -1 if left to tiles."""
        return self._run(blocks, allowed_threads(), compute=False)[1][:, None]

    def sums(self, tiles: np.ndarray, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Rows m_x, m_y, m_z, log Z for the targets of tiles, and which tiles could be done.

        The tiles are those of whole blocks, one block after the other.
        """
        out, cost = self._run(tiles[:: self.tiles] // self.tiles, threads, compute=True)
        done = np.repeat(cost >= 0, self.tiles)[: len(tiles)]
        return np.ascontiguousarray(out[:, : len(tiles) * TILE]), done

    def _run(
        self, blocks: np.ndarray, threads: int, *, compute: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        out = np.empty((4, len(blocks) * self.size if compute else 0))
        cost = np.empty(len(blocks))
        groups = self._groups.arrays()

        def do(part: tuple[int, int]) -> None:
            block_sums(
                part, self._targets.scores, blocks, self._block_boxes, self.size, groups,
                self._tolerance, self._polynomials, compute, (out, cost),
            )  # fmt: skip

        in_parts(do, len(blocks), threads)
        return out, cost


def _widths(box: np.ndarray) -> np.ndarray:
    """Lengths of the half diagonals of boxes."""
    return np.linalg.norm(box[:, 3:], axis=1)


@cache
def _polynomials() -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """The table of polynomials, and the coefficients of a^i b^k in those of a + b.

    The latter are rho x degree x i x k.
    """
    table = Exponentials.tabulate()
    size = HIGHEST + 1
    expanded = np.zeros((len(table.reach), size, size, size))
    for i in range(size):
        for k in range(size - i):
            expanded[:, :, i, k] = table.coefficients[:, :, i + k] * comb(i + k, i)
    return (table.reach, table.error, table.slope_error), expanded


def _width(targets: Targets) -> float:
    """The width of the cells."""
    return min(_WIDEST, _WIDTH / math.sqrt(max(1.0, float(targets.lengths.max()))))


def _wanted(tolerance: float) -> float:
    """Minus the logarithm of the error that the nodes are to have."""
    return _SPARE - math.log(AT_NODES * tolerance)


def ways(sources: Sources, targets: Targets, tolerance: float) -> list[Series]:
    """By nodes if they are fewer than the sources, and by the sources; none for too few points."""
    if min(sources.count, targets.count) < MANY:
        return []
    found = [Series(sources, targets, tolerance, nodes=False)]
    width = _width(targets)
    longest = float(targets.lengths.max())
    nodes = nodes_needed(width / 2, longest, _wanted(tolerance)) ** 2
    if sources.on_sphere and nodes * 4 * math.pi / width**2 < _FEWER * sources.count:
        found.insert(0, Series(sources, targets, tolerance, nodes=True))
    return found
