"""The cluster expansion, for kernels that hold thousands of sources: blocks against clusters.

Targets are taken in blocks, sources in clusters, both about as wide as the kernel. With w_0 the
centre of a block, y_0 that of a cluster,

    exp(<w, y>) = exp(<w_0, y>) exp(<w - w_0, y_0>) exp(s),    s = <w - w_0, y - y_0>.

The first two factors are positive and kept as they are, with the sources and with the targets. The
last has a small exponent, |s| <= rho, and a polynomial P of degree p stands for it, |exp(s) - P(s)|
<= e_p (`exponential`): a sum of products of powers of w - w_0 and y - y_0, so that a cluster enters
the sums of a block through its moments, sum_j M_j exp(<w_0, y_j>) (y_j - y_0)^k.

*The bound.* Let q_j = M_j exp(<w_0, y_j>) exp(<w - w_0, y_0>) and Q = sum_j q_j over a cluster. Its
part of Z(w) is sum_j q_j exp(s_j) >= exp(-rho) Q, and its part of the error at most e_p Q. If e_p
<= t exp(-rho) for every cluster, then the error of Z(w) is at most t times Z(w): for every target,
however small the sum, as all terms are positive and none is compared with more than itself. A
cluster that holds little of Z(w) may do with less: log Z is convex, with the softmax mean m for its
gradient, so that Z(w) >= Z(w_0) exp(<w - w_0, m(w_0)>), also for the part of Z that a subset of the
sources makes; and where that shows Q <= u Z(w) for all w of the block, e_p <= t / (n u) for n
clusters leaves an error of at most t once more. Where even exp(rho) is within that, nothing is
added up at all. The sum of M y exp(<w, y>) is sum_j q_j (y_0 + y_j - y_0) exp(s_j); the second part
takes the derivative P' for exp, whose error, times the radius of the cluster, is counted with e_p.
An error of a t Z in both sums moves the mean by at most 2 a t.

*Proxy points* (`proxies`) take the place of sources where fewer will do: signed masses, made once
for all blocks, with an error of their own. Q is then the sum of the |q_j|. The signed sum at w_0 is
that of the sources but for the error of the proxies, and half of it takes the place of Q in
exp(-rho) Q; that error enters this only times t.

The points of a cluster lie near a surface: s is split along its axes into a tangential part and a
small normal part, each power of which has its own, lower degree. Only ratios of masses enter, so
that masses of 1e-300, and log masses below all doubles, are as exact as any.

*Moments.* In the axes (n, a, b) of a cluster, n across its surface, with s = t + n_w n_j and t =
a_w a_j + b_w b_j, exp(s) = sum_l (n_w n_j)^l / l! exp(t), and a polynomial P_l stands for exp(t).
As P_l(t) = sum_ik c_ik (a_w a_j)^i (b_w b_j)^k, sources enter through

    sum_j q_j n_j^l a_j^i b_j^k,

once for all targets of the block, and targets through the value of a polynomial in a_w, b_w. The
sums of q_j y_j need no more moments: they are derivatives with respect to (n_w, a_w, b_w).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import comb
from typing import Any

import numpy as np

from meanfield_pde.attention.sum.cost import Costs
from meanfield_pde.attention.sum.exponential import (
    FAST,
    HIGHEST,
    LOG2_E,
    NO_MASS,
    Exponentials,
    power_of_two,
)
from meanfield_pde.attention.sum.proxies import (
    FITTED,
    MOST,
    ProxyClusters,
    ProxySettings,
    points_needed,
    proxy_errors,
)
from meanfield_pde.attention.sum.tree import LEAF, TILE, TOP, Share, Sources, Targets, alone, boxes
from meanfield_pde.support.kernels import kernel, part
from meanfield_pde.support.threads import allowed_threads, in_parts

# Highest power of the normal part of s, which is at most 1: what is left is 1 / 9! = 3e-6 of it
# there, 3e-15 where it is 0.1. A cluster for which that is too much is added term by term
# (`_degrees`).
POWERS = 8
# Of a polynomial, for a lower estimate of costs: degree 6, where rho = 0.5 needs 9 (1e-10).
LEAST_TERMS = 28
# Room for the coefficients of a polynomial of the highest degree in two variables.
_TERMS = (HIGHEST + 1) * (HIGHEST + 2) // 2 + 2
# Of an exponent over the lower bound of log Z: a hundred such terms are far below exp(709).
LARGEST_RISE = 600.0


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of the cluster expansion.

    Attributes:
        sizes: targets of a block, and sources of a cluster, to choose from; multiples of the 128
            sources of a node, up to the 1,024 of a top.
        span: rho intended for clusters of sources: larger ones need higher degrees, smaller ones
            more moments. With 1.0 a sum takes 1.2 to 1.7 times as long, with 0.15 up to 1.1 times
            (327,680 cells, concentrated, beta = 10 and 100).
        fewest_points: fewer sources or targets have no expansion. With 5,000 cells it is at most
            1.5 times as quick as the other ways (circle, concentrated), mostly slower.
        truncation, proxy_error, skipped: shares of the tolerance. Each of the errors of Z and of
            the sum of M y exp(<w, y>) is at most 2 x truncation (once for each part of a maximum) +
            proxy_error, which moves the mean by twice that; what is skipped holds at most `skipped`
            of Z, which does so too: 2 (2 x 0.13 + 0.1) + 2 x 0.125 = 0.97 <= 1.
        proxies: of proxy points.
    """

    sizes: tuple[int, ...] = (128, 256, 512, 1024)
    span: float = 0.5
    fewest_points: int = 8192
    truncation: float = 0.13
    proxy_error: float = 0.1
    skipped: float = 0.125
    proxies: ProxySettings = field(default_factory=ProxySettings)

    def __post_init__(self) -> None:
        if 2 * (2 * self.truncation + self.proxy_error) + 2 * self.skipped > 1:
            raise ValueError("the shares of the tolerance add up to more than all of it")


def _proxy_cells(
    targets: Targets, tolerance: float, settings: ClusterSettings
) -> tuple[float, float, float]:
    """Return the width of proxy cells, the largest |w|, and minus the logarithm of their error."""
    longest = targets.longest
    width = min(settings.proxies.widest, settings.proxies.width / math.sqrt(max(1.0, longest)))
    return width, longest, settings.proxies.spare - math.log(settings.proxy_error * tolerance)


def expansions(
    sources: Sources,
    targets: Targets,
    tolerance: float,
    settings: ClusterSettings,
    costs: Costs,
) -> list[ClusterExpansion]:
    """Return the expansions worth trying: by proxy points if these are fewer, and by sources."""
    if min(sources.count, targets.count) < settings.fewest_points:
        return []
    given = sources, targets, tolerance, settings, costs
    found = [ClusterExpansion(*given, by_proxies=False)]
    width, longest, wanted = _proxy_cells(targets, tolerance, settings)
    points = points_needed(width / 2, longest, wanted) ** 2
    expected = points * 4 * math.pi / width**2
    if sources.on_sphere and expected < settings.proxies.fewer * sources.count:
        found.insert(0, ClusterExpansion(*given, by_proxies=True))
    return found


class ClusterExpansion:
    """Blocks of targets and clusters of sources, laid out once; only the masses change.

    Attributes:
        size: targets of a block.
        tiles: tiles of a block.
        blocks: number of blocks.
    """

    def __init__(
        self,
        sources: Sources,
        targets: Targets,
        tolerance: float,
        settings: ClusterSettings,
        costs: Costs,
        *,
        by_proxies: bool,
    ) -> None:
        """Lay them out; `by_proxies` takes proxy points in place of sources (on the sphere)."""
        self._sources, self._targets, self._tolerance = sources, targets, tolerance
        self._settings, self._costs = settings, costs
        self._clusters: SourceClusters | ProxyClusters = (
            self._by_proxies() if by_proxies else self._by_sources()
        )
        self.tiles = self.size // TILE
        self.blocks = len(self._block_boxes)
        self._polynomials = _polynomials()

    def _by_sources(self) -> SourceClusters:
        """Blocks and clusters of the same size, the least for which rho is as large as intended."""
        scores, points = self._targets.scores.T, self._sources.points.T
        for size in self._settings.sizes:
            self.size, self._block_boxes, around = size, boxes(scores, size), boxes(points, size)
            rho = np.median(_radii(around)) * np.median(_radii(self._block_boxes))
            if rho > self._settings.span:
                break
        return SourceClusters(self._sources, self.size, around)

    def _by_proxies(self) -> ProxyClusters:
        """Cells a few kernels wide, and the largest blocks for which rho is small enough."""
        settings = self._settings.proxies
        width, longest, wanted = _proxy_cells(self._targets, self._tolerance, self._settings)
        scores = self._targets.scores.T
        for size in self._settings.sizes[::-1]:
            self.size, self._block_boxes = size, boxes(scores, size)
            span = np.median(_radii(self._block_boxes)) * width / math.sqrt(2)
            if span <= settings.span * size**-0.25:
                break
        return ProxyClusters(self._sources, width, longest, wanted)

    def load(self, share: Share = alone) -> None:
        """Take the masses that the sources have."""
        self._clusters.load(share)

    def least_cost(self, visits: float) -> float:
        """Return a lower estimate of the nanoseconds for all blocks.

        Args:
            visits: leaves that a tile visits, on average. For this share of the clusters a block
                weighs all sources, and takes a polynomial of at least LEAST_TERMS for its targets.
        """
        costs, count = self._costs, self._sources.count
        proxies = isinstance(self._clusters, ProxyClusters)
        share = visits / self._sources.leaves
        weighed = self.blocks * self._clusters.expected * costs.weighed_source
        pairs = self.blocks * self.size * len(self._clusters.boxes)
        values = pairs * (costs.values + LEAST_TERMS * costs.value)
        gathered = count * costs.gathered_source if proxies else 0.0
        return share * (weighed + values) + gathered

    def costs(self, blocks: np.ndarray) -> np.ndarray:
        """Return the nanoseconds of the blocks listed, a column; -1 if left to the direct sum."""
        return self._run(blocks, allowed_threads(), compute=False)[1][:, None]

    def sums(self, tiles: np.ndarray, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return rows m_x, m_y, m_z, log Z for the targets of tiles, and which tiles are done.

        The tiles are those of whole blocks, one block after the other.
        """
        out, cost = self._run(tiles[:: self.tiles] // self.tiles, threads, compute=True)
        done = np.repeat(cost >= 0, self.tiles)[: len(tiles)]
        return np.ascontiguousarray(out[:, : len(tiles) * TILE]), done

    def tiles_of(self, blocks: np.ndarray) -> np.ndarray:
        """Return the tiles of the blocks listed."""
        tiles = (blocks[:, None] * self.tiles + np.arange(self.tiles)).ravel()
        return np.asarray(tiles[tiles < self._targets.tiles])

    def _run(
        self, blocks: np.ndarray, threads: int, *, compute: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        out = np.empty((4, len(blocks) * self.size if compute else 0))
        cost = np.empty(len(blocks))
        clusters, settings = self._clusters.arrays(), self._settings
        # All shares and costs, as plain numbers.
        shares = settings.truncation, settings.proxy_error, settings.skipped
        costs = self._costs.of_clusters()
        scores, first = self._targets.of(blocks * self.tiles)
        around = self._block_boxes[blocks]

        def do(part: tuple[int, int]) -> None:
            block_sums(
                part, scores, first * TILE, around, self.size, clusters,
                (self._tolerance, shares, costs), self._polynomials, compute, (out, cost),
            )  # fmt: skip

        in_parts(do, len(blocks), threads)
        return out, cost


def _radii(box: np.ndarray) -> np.ndarray:
    """Return the lengths of the half diagonals of boxes."""
    return np.linalg.norm(box[:, 3:], axis=1)


@cache
def _polynomials() -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Return bounds of the polynomials P, and the coefficients of a^i b^k in P(a + b).

    The latter are rho x degree x i x k.
    """
    table = Exponentials.tabulate()
    size = HIGHEST + 1
    expanded = np.zeros((len(table.reach), size, size, size))
    for i in range(size):
        for k in range(size - i):
            expanded[:, :, i, k] = table.coefficients[:, :, i + k] * comb(i + k, i)
    return (table.reach, table.error, table.slope_error), expanded


class SourceClusters:
    """Clusters that are runs of sources in the tree.

    Attributes:
        boxes: around the sources of each.
        size: sources of a cluster.
        expected: number of points that blocks weigh.
    """

    def __init__(self, sources: Sources, size: int, boxes: np.ndarray) -> None:
        self._sources, self.size, self.boxes = sources, size, boxes
        self.expected = sources.count
        axes = boxes[:, 3:].reshape(-1, 3, 3)
        self._half = np.linalg.norm(axes, axis=2)
        unit = axes / self._half[:, :, None]
        self._frame = np.concatenate([boxes[:, :3], unit.reshape(-1, 9)], axis=1)
        self._starts = np.minimum(np.arange(len(unit) + 1) * size, sources.points.shape[1])

    @cached_property
    def _local(self) -> np.ndarray:
        """The sources in the axes of their clusters; not made unless their sums may be taken."""
        local = np.empty_like(self._sources.points)
        for cluster, frame in enumerate(self._frame):
            part = slice(self._starts[cluster], self._starts[cluster + 1])
            points = np.ascontiguousarray(self._sources.points[:, part].T)
            local[:, part] = frame[3:].reshape(3, 3) @ (points - frame[:3]).T
        return local

    def load(self, share: Share = alone) -> None:
        """Do nothing: the masses are those of the sources."""

    def arrays(self) -> tuple[Any, ...]:
        """Return the arrays of compiled loops: sources, starts, tree, clusters."""
        tree = self._sources.tree()
        leaves = tree[4][0]
        log_mass = np.logaddexp.reduceat(leaves, np.arange(0, len(leaves), self.size // LEAF))
        upper = (tree[2][1], tree[4][1], tree[3][2], tree[4][2])
        clusters = (self.boxes, log_mass, self._frame, self._half, np.empty((0, FITTED + 1)))
        arrays = (self._sources.points, self._sources.log_masses(), np.empty(0), self._local)
        return arrays, self._starts, upper, clusters, self.size


@kernel
def block_sums(part, scores, starts, boxes, size, sources, limits, polynomials, compute, out):
    """Write the sums of a range of the blocks that start at these targets, and their costs.

    Costs are as `_block` returns them.
    """
    table, choose = polynomials
    rows, cost = out
    for position in range(part[0], part[1]):
        first = starts[position]
        # The last of all may have fewer.
        last = min(first + size, scores.shape[1])
        place = position * size
        cost[position] = _block(
            scores[:, first:last], boxes[position], sources, limits, table, choose,
            compute, rows[:, place:],
        )  # fmt: skip


@part(fastmath=FAST - {"ninf"})
def _block(scores, block, sources, limits, table, choose, compute, out):
    """Write rows m, log Z of one block if `compute`; return its nanoseconds, -1 if left undone.

    A block is left to the direct sum if proxy points are too coarse for it, or if a term might
    exceed the lower bound of Z(w) beyond the range of doubles.
    """
    tolerance, shares, costs = limits
    truncation, proxy_share, skipped = shares
    arrays, starts, tree, clusters, size = sources
    points, local = arrays[0], arrays[3]
    box, log_mass, frame, half, nodes = clusters
    every = np.empty(log_mass.size, np.int64)
    found = every[
        : _clusters_in_reach(block, size, tree, (box, log_mass), skipped * tolerance, every)
    ]
    width = 0
    for k in found:
        width = max(width, starts[k + 1] - starts[k])
    weights, share, own = np.empty((found.size, width)), np.empty(found.size), np.empty(found.size)
    mean = np.empty(3)
    level = _weigh_all(block, arrays, starts, found, weights, share, own, mean)
    if len(nodes) > 0:
        cells = (frame, half, nodes, found)
        if not proxy_errors(block, mean, level, cells) <= proxy_share * tolerance:
            return -1.0
    targets = scores.shape[1]
    offset = np.empty((3, targets))
    for i in range(3):
        for t in range(targets):
            offset[i, t] = scores[i, t] - block[i]
    sums = np.zeros((4, targets))
    work = _workspace(targets if compute else 1, width)
    rho, degrees = np.empty(3), np.empty(POWERS + 1, np.int64)
    cost = log_mass.size * costs[0] + found.size * (costs[1] + width * costs[2])
    for k in range(found.size):
        axes, radii = frame[found[k]], half[found[k]]
        part = slice(starts[found[k]], starts[found[k] + 1])
        row = weights[k, : part.stop - part.start]
        span = _spans(block, axes, radii, rho)
        scale = share[k] - level
        # Weights of a cluster, without signs, add up to no more than their number.
        rise = scale + math.log(row.size) + _largest_rise(block, axes, mean)
        if rise + span > LARGEST_RISE:
            return -1.0
        budget = max(own[k] / 2 * math.exp(-span), math.exp(-rise) / found.size)
        budget *= truncation * tolerance
        last, line = _degrees(rho, radii, budget, table, degrees)
        if last == -1:
            continue
        p, q = 0, 0
        if len(nodes) > 0:
            p, q = int(nodes[found[k], 0]), int(nodes[found[k], 1])
        direct, by_moments = _work(row.size, p, q, targets, degrees, last, costs)
        cost += min(direct, by_moments)
        if not compute:
            continue
        if direct <= by_moments:
            add_directly(row, points[:, part], offset, mean, scale, sums)
        else:
            chosen = (degrees, last, choose[line])
            add_by_moments(
                row, local[:, part], (p, q), axes, offset, mean, scale, chosen, work, sums
            )
    if compute:
        _finish(sums, offset, mean, level, out)
    return cost


@part
def _work(filled, p, q, targets, degrees, last, costs):
    """Return the nanoseconds of a pair of a block and a cluster, term by term and by moments."""
    pair, value, values, moment, product, total = costs[3:]
    direct = pair * filled * targets
    if last == -2:
        return direct, math.inf
    terms, products = 0, 0
    for k in range(last + 1):
        terms += (degrees[k] + 1) * (degrees[k] + 2) // 2
        products += (degrees[k] + 1) * p * q
    by_target = targets * (terms * value + values)
    if p > 0:
        return direct, products * product + terms * q * total + by_target
    return direct, filled * terms * moment + by_target


@part
def _degrees(rho, half, budget, table, degrees):
    """Write degrees for powers k = 0, 1, ... of the normal part; return the last k, and the row.

    With the exponent s = t + n, |t| <= rho_1 + rho_2 and |n| <= rho_0,

        exp(t + n) = sum_k n^k / k! exp(t),

    each exp(t) has a polynomial of its own. The last k is -1 if nothing need be added up, and -2 if
    no polynomial of the table is within the budget.
    """
    reach, error, slope_error = table
    along = rho[1] + rho[2]
    if math.exp(along + rho[0]) <= budget:
        return -1, 0
    row = 0
    while row < reach.size and reach[row] < along:
        row += 1
    if row == reach.size or rho[0] > 1.0:
        return -2, 0
    radius = half[1] + half[2]
    top, factor, degree = math.exp(along), 1.0, HIGHEST
    for k in range(POWERS + 1):
        share = budget / 2 if k == 0 else budget / 2 ** min(k + 2, 5)
        if factor * (error[row, degree] + radius * slope_error[row, degree]) > share:
            return -2, 0
        while degree > 0 and (
            factor * (error[row, degree - 1] + radius * slope_error[row, degree - 1]) <= share
        ):
            degree -= 1
        degrees[k] = degree
        factor *= rho[0] / (k + 1)
        # What is left of the powers, and of their derivative, is less than twice its first term.
        if 2 * top * factor * (1 + half[0] * (k + 1) / max(rho[0], 1e-300)) <= budget / 8:
            return k, row
    return -2, 0


@part
def _spans(block, frame, half, rho):
    """Write bounds rho_i of <w - w_0, y - y_0> along a cluster's axes, and return their sum."""
    for i in range(3):
        x, y, z = frame[3 + 3 * i], frame[4 + 3 * i], frame[5 + 3 * i]
        rho[i] = 0.0
        for j in range(3, 12, 3):
            rho[i] += abs(block[j] * x + block[j + 1] * y + block[j + 2] * z)
        rho[i] *= half[i]
    return rho[0] + rho[1] + rho[2]


@part
def _largest_rise(block, centre, mean):
    """Return the largest <w - w_0, y_0 - mean> over the box of a block."""
    x, y, z = centre[0] - mean[0], centre[1] - mean[1], centre[2] - mean[2]
    total = 0.0
    for j in range(3, 12, 3):
        total += abs(block[j] * x + block[j + 1] * y + block[j + 2] * z)
    return total


@part
def _workspace(targets, sources):
    """Return arrays for `add_by_moments`, allocated once for a block."""
    return (
        np.empty((3, targets)), np.empty(targets), np.empty(targets), np.empty((4, targets)),
        np.empty(targets), np.empty(targets), np.empty((3, targets)),
        np.empty(sources), np.empty(sources), np.empty((_TERMS, sources // 4)), np.empty(_TERMS),
        np.empty((4, MOST, 32)),
    )  # fmt: skip


@part(fastmath=FAST)
def _finish(sums, offset, mean, level, out):
    """Write rows m and log Z from sums of a block, in units of exp(level + <w - w_0, m(w_0)>)."""
    for t in range(offset.shape[1]):
        along = offset[0, t] * mean[0] + offset[1, t] * mean[1] + offset[2, t] * mean[2]
        for i in range(3):
            out[i, t] = sums[i, t] / sums[3, t]
        out[3, t] = level + along + math.log(sums[3, t])


@part(fastmath=FAST)
def _clusters_in_reach(block, size, tree, clusters, allowed, found):
    """Write the clusters that cannot be skipped for a block to `found`, and return their number.

    Those skipped hold less than `allowed` of Z(w), for every w of the block. Clusters of `size`
    sources lie within the tops of the tree; of others `size` is 0.
    """
    node_mean, node_log_mass, top_box, top_log_mass = tree
    box, log_mass = clusters
    centre, low = np.empty(3), np.empty(node_log_mass.size)
    level = _centre_of_nodes(block, node_mean, node_log_mass, low, centre)
    x, y, z = centre[0], centre[1], centre[2]
    least = math.log(allowed / log_mass.size) + level
    count, inside = 0, TOP // size if size > 0 else 1
    for top in range(-(-log_mass.size // inside)):
        if size > 0 and _above(block, top_box[top], x, y, z) + top_log_mass[top] < least:
            continue
        for cluster in range(top * inside, min((top + 1) * inside, log_mass.size)):
            if _above(block, box[cluster], x, y, z) + log_mass[cluster] >= least:
                found[count] = cluster
                count += 1
    return count


@part(fastmath=FAST)
def _centre_of_nodes(block, mean, log_mass, low, centre):
    """Write a point c and return a number l with log Z(w) >= l + <w, c> for every w.

    By Jensen's inequality in every node of the tree, and by the convexity of the logarithm of a sum
    of their exp(<w, mean> + log mass), whose gradient at w_0 is c.
    """
    highest = 4 * NO_MASS
    for k in range(log_mass.size):
        low[k] = block[0] * mean[0, k] + block[1] * mean[1, k] + block[2] * mean[2, k]
        low[k] += log_mass[k]
    for k in range(log_mass.size):
        highest = max(highest, low[k])
    total = 0.0
    for i in range(3):
        centre[i] = 0.0
    for k in range(log_mass.size):
        if low[k] > highest - 40:
            part = math.exp(low[k] - highest)
            total += part
            for i in range(3):
                centre[i] += part * mean[i, k]
    for i in range(3):
        centre[i] /= total
    along = block[0] * centre[0] + block[1] * centre[1] + block[2] * centre[2]
    return highest + math.log(total) - along


@part(fastmath=FAST)
def _above(block, box, x, y, z):
    """Return a bound of <w, y'> - <w, (x, y, z)> for w in the box of a block and y' in a box."""
    a, b, c = box[0] - x, box[1] - y, box[2] - z
    high = block[0] * a + block[1] * b + block[2] * c
    for i in range(3, 12, 3):
        high += abs(block[0] * box[i] + block[1] * box[i + 1] + block[2] * box[i + 2])
        high += abs(block[i] * a + block[i + 1] * b + block[i + 2] * c)
        for j in range(3, 12, 3):
            along = block[j] * box[i] + block[j + 1] * box[i + 1] + block[j + 2] * box[i + 2]
            high += abs(along)
    return high


@part(fastmath=FAST)
def _weigh_all(block, sources, starts, found, weights, share, own, mean):
    """Write weights M exp(<w_0, y>) of all clusters found, and m(w_0); return log Z(w_0).

    Each cluster's are parts of its largest, whose logarithm is written to `share`; their sum as a
    part of that of their absolute values to `own`. If the sum over all clusters is not above zero,
    as may be where proxy points are too coarse, what is returned lies below every log Z.
    """
    total, work = np.empty(5), np.empty(weights.shape[1])
    level, z = 4 * NO_MASS, 0.0
    for i in range(3):
        mean[i] = 0.0
    for k in range(found.size):
        part = slice(starts[found[k]], starts[found[k] + 1])
        size = part.stop - part.start
        share[k] = _weigh(block, sources, part, weights[k, :size], work[:size], total)
        own[k] = total[3] / total[4] if total[4] > 0 else 1.0
        if share[k] > level:
            shrink = math.exp(level - share[k])
            z *= shrink
            for i in range(3):
                mean[i] *= shrink
            level = share[k]
        factor = math.exp(share[k] - level)
        z += factor * total[3]
        for i in range(3):
            mean[i] += factor * total[i]
    if z <= 0:
        return 8 * NO_MASS
    for i in range(3):
        mean[i] /= z
    return level + math.log(z)


@part(fastmath=FAST)
def _weigh(block, sources, part, weights, work, total):
    """Write weights M exp(<w_0, y>) as parts of the largest, whose logarithm is returned.

    To `total` go sum q y (3 numbers), sum q, and sum |q|.
    """
    x, y, z = sources[0][0, part], sources[0][1, part], sources[0][2, part]
    log_masses, signs = sources[1][part], sources[2][part]
    a, b, c = block[0], block[1], block[2]
    for j in range(x.size):
        weights[j] = a * x[j] + b * y[j] + c * z[j] + log_masses[j]
        work[j] = weights[j]
    largest = _folded(work, True)
    for j in range(x.size):
        weights[j] = power_of_two((weights[j] - largest) * LOG2_E)
        work[j] = weights[j]
    total[4] = _folded(work, False)
    for j in range(signs.size):
        weights[j] *= signs[j]
    for i in range(3):
        along = sources[0][i, part]
        for j in range(x.size):
            work[j] = weights[j] * along[j]
        total[i] = _folded(work, False)
    for j in range(x.size):
        work[j] = weights[j]
    total[3] = _folded(work, False)
    return largest


@part(fastmath=FAST)
def _folded(values, largest):
    """Return the sum or the largest of numbers, which are overwritten: in halves, in vectors."""
    count = values.size
    while count > 1:
        half = (count + 1) // 2
        upper = values[half:count]
        for j in range(upper.size):
            values[j] = max(values[j], upper[j]) if largest else values[j] + upper[j]
        count = half
    return values[0]


@part(fastmath=FAST)
def add_by_moments(weights, local, nodes, frame, offset, mean, scale, series, work, sums):
    """Add a cluster to the sums of a block by its moments; the weights are overwritten.

    Args:
        weights: q_j, as parts of the largest.
        local: coordinates (n_j, a_j, b_j) of y_j - y_0.
        nodes: p, q if the sources are a p x q grid of proxy points, or zeros.
        frame: y_0 and the axes of the cluster.
        offset: w - w_0 of the targets, 3 x targets.
        mean: m(w_0).
        scale: logarithm of the largest weight as a part of Z(w_0).
        series: degrees of the powers of n, the last of these, and coefficients of a^i b^k.
        work: arrays that are overwritten.
        sums: of the block, times exp(<w - w_0, m(w_0)>): added to.
    """
    p, q = nodes
    degrees, last, choose = series
    along, outer, power, value, inner, slope, out, row, column, parts, moment, tables = work
    count = offset.shape[1]
    for i in range(3):
        x, y, z = frame[3 + 3 * i], frame[4 + 3 * i], frame[5 + 3 * i]
        for t in range(count):
            along[i, t] = offset[0, t] * x + offset[1, t] * y + offset[2, t] * z
    normal, a, b = along[0, :count], along[1, :count], along[2, :count]
    for t in range(count):
        power[t] = 1.0
        for i in range(4):
            value[i, t] = 0.0
    for k in range(last + 1):
        degree = degrees[k]
        if p > 0:
            a_of, b_of = local[1, : p * q : q], local[2, :q]
            _moments_of_grid(weights, a_of, b_of, degree, tables, moment)
        else:
            _moments(weights, local[1], local[2], degree, row, column, parts, moment)
        _polynomial(moment, degree, choose[degree], a, b, inner, slope, out)
        if k > 0:
            for t in range(count):
                value[0, t] += power[t] * out[0, t]
                power[t] *= normal[t] / k
        for t in range(count):
            value[1, t] += power[t] * out[1, t]
            value[2, t] += power[t] * out[2, t]
            value[3, t] += power[t] * out[0, t]
        if k < last:
            for j in range(weights.size):
                weights[j] *= local[0, j]
    u, v, w = frame[0] - mean[0], frame[1] - mean[1], frame[2] - mean[2]
    for t in range(count):
        exponent = offset[0, t] * u + offset[1, t] * v + offset[2, t] * w + scale
        outer[t] = power_of_two(exponent * LOG2_E)
    # y = y_0 + its parts along the three axes of the group.
    for i in range(3):
        centre, n, e, f = frame[i], frame[3 + i], frame[6 + i], frame[9 + i]
        for t in range(count):
            part = n * value[0, t] + e * value[1, t] + f * value[2, t]
            sums[i, t] += outer[t] * (centre * value[3, t] + part)
    for t in range(count):
        sums[3, t] += outer[t] * value[3, t]


@part(fastmath=FAST)
def add_directly(weights, points, offset, mean, scale, sums):
    """Add a cluster to the sums of a block term by term; arguments as above."""
    level = scale * LOG2_E
    for j in range(weights.size):
        x, y, z, weight = points[0, j], points[1, j], points[2, j], weights[j]
        u, v, w = (x - mean[0]) * LOG2_E, (y - mean[1]) * LOG2_E, (z - mean[2]) * LOG2_E
        for t in range(offset.shape[1]):
            exponent = offset[0, t] * u + offset[1, t] * v + offset[2, t] * w + level
            term = weight * power_of_two(exponent)
            sums[0, t] += term * x
            sums[1, t] += term * y
            sums[2, t] += term * z
            sums[3, t] += term


@part(fastmath=FAST)
def _moments(weights, a, b, degree, row, column, parts, result):
    """Write sum_j q_j a_j^i b_j^k for i + k <= degree, row by row of constant i.

    Sums are folded to a quarter of their length in vectors, two powers at a time.
    """
    count = weights.size
    fold = count // 4
    for j in range(count):
        row[j] = weights[j]
    term = 0
    for i in range(degree + 1):
        for j in range(count):
            column[j] = row[j]
        powers = degree - i + 1
        for k in range(0, powers, 2):
            even, odd = parts[term], parts[term + 1]
            for j in range(fold):
                p, q, r, s = column[j], column[fold + j], column[2 * fold + j], column[3 * fold + j]
                even[j] = (p + q) + (r + s)
                p *= b[j]
                q *= b[fold + j]
                r *= b[2 * fold + j]
                s *= b[3 * fold + j]
                odd[j] = (p + q) + (r + s)
                column[j] = p * b[j]
                column[fold + j] = q * b[fold + j]
                column[2 * fold + j] = r * b[2 * fold + j]
                column[3 * fold + j] = s * b[3 * fold + j]
            term += 2 if k + 1 < powers else 1
        for j in range(count):
            row[j] *= a[j]
    for k in range(term):
        part = parts[k]
        p, q, r, s = 0.0, 0.0, 0.0, 0.0
        for j in range(0, fold, 4):
            p += part[j]
            q += part[j + 1]
            r += part[j + 2]
            s += part[j + 3]
        result[k] = (p + q) + (r + s)


@part(fastmath=FAST)
def _moments_of_grid(weights, a, b, degree, work, result):
    """Write the same for weights on a p x q grid a_i, b_k, by one direction at a time.

    Four rows at a time: one at a time takes a quarter longer for the whole sum (327,680 cells).
    """
    p, q = a.size, b.size
    width = -(-(degree + 1) // 8) * 8
    powers, across, rows, column = work[0], work[1], work[2], work[3, 0]
    _powers(a, degree, powers[:p, :width])
    for k in range(q):
        for m in range(width):
            rows[k, m] = 0.0
        for i in range(0, p - 3, 4):
            c, d = weights[i * q + k], weights[(i + 1) * q + k]
            e, f = weights[(i + 2) * q + k], weights[(i + 3) * q + k]
            for m in range(width):
                left = c * powers[i, m] + d * powers[i + 1, m]
                rows[k, m] += left + (e * powers[i + 2, m] + f * powers[i + 3, m])
        for i in range(p - p % 4, p):
            c = weights[i * q + k]
            for m in range(width):
                rows[k, m] += c * powers[i, m]
    _powers(b, degree, across[:q, :width])
    for k in range(degree + 1):
        count = degree - k + 1
        for m in range(count):
            column[m] = 0.0
        for j in range(0, q - 3, 4):
            c, d, e, f = across[j, k], across[j + 1, k], across[j + 2, k], across[j + 3, k]
            for m in range(count):
                left = c * rows[j, m] + d * rows[j + 1, m]
                column[m] += left + (e * rows[j + 2, m] + f * rows[j + 3, m])
        for j in range(q - q % 4, q):
            c = across[j, k]
            for m in range(count):
                column[m] += c * rows[j, m]
        for m in range(count):
            result[m * (degree + 1) - m * (m - 1) // 2 + k] = column[m]


@part(fastmath=FAST)
def _powers(x, degree, out):
    """Write rows 1, x_i, x_i^2, ... for each x_i, and zeros to a multiple of eight."""
    for i in range(x.size):
        power = 1.0
        for k in range(degree + 1):
            out[i, k] = power
            power *= x[i]
        for k in range(degree + 1, out.shape[1]):
            out[i, k] = 0.0


@part(fastmath=FAST)
def _polynomial(moment, degree, choose, a, b, inner, slope, out):
    """Write rows f, df/da, df/db of f = sum_(i + k <= degree) moment_ik choose_ik a^i b^k."""
    count = a.size
    value, by_a, by_b = out[0], out[1], out[2]
    for t in range(count):
        value[t] = 0.0
        by_a[t] = 0.0
        by_b[t] = 0.0
    for i in range(degree, -1, -1):
        first = i * (degree + 1) - i * (i - 1) // 2
        k = degree - i
        leading = moment[first + k] * choose[i, k]
        for t in range(count):
            inner[t] = leading
            slope[t] = 0.0
        k -= 1
        while k >= 0:
            constant = moment[first + k] * choose[i, k]
            for t in range(count):
                slope[t] = slope[t] * b[t] + inner[t]
                inner[t] = inner[t] * b[t] + constant
            k -= 1
        for t in range(count):
            x = a[t]
            by_a[t] = by_a[t] * x + value[t]
            value[t] = value[t] * x + inner[t]
            by_b[t] = by_b[t] * x + slope[t]
