"""The spanning tree of the network simplex against one built anew, and what it solves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from meanfield_pde.wasserstein import wasserstein
from meanfield_pde.wasserstein.network_simplex import meeting, regraft, shift, solve_on_arcs, thread
from tests.problems import sphere_densities


def path(x: int, parent: np.ndarray) -> list[int]:
    """The nodes from x to the root."""
    nodes = [x]
    while parent[nodes[-1]] >= 0:
        nodes.append(int(parent[nodes[-1]]))
    return nodes


def subtrees(parent: np.ndarray) -> list[set[int]]:
    """The nodes below each node, and itself."""
    below: list[set[int]] = [set() for _ in parent]
    for x in range(len(parent)):
        for y in path(x, parent):
            below[y].add(x)
    return below


def check_lists(
    parent: np.ndarray, size: np.ndarray, last: np.ndarray, behind: np.ndarray, before: np.ndarray
) -> None:
    """Every subtree is the run of the thread from its top to its last node."""
    order = [len(parent) - 1]
    while behind[order[-1]] != order[0]:
        order.append(int(behind[order[-1]]))
        assert len(order) <= len(parent)
    assert [before[x] for x in order] == [order[-1], *order[:-1]]
    for x, below in enumerate(subtrees(parent)):
        assert size[x] == len(below)
        start = order.index(x)
        assert set(order[start : start + size[x]]) == below
        assert order[start + size[x] - 1] == last[x]


@pytest.mark.parametrize("depth", [1, 3, 100])
@pytest.mark.parametrize("seed", range(4))
def test_regrafting_keeps_the_lists_of_the_tree(seed: int, depth: int) -> None:
    """40 random cuts in trees from broad to those that are one path."""
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(2, 30))
    root = nodes - 1
    rank = rng.permutation(root)  # the parent of the k-th is one of the few before it, or the root
    parent = np.full(nodes, root, np.int32)
    parent[root] = -1
    for k in range(1, root):
        if rng.random() < 1 - 1 / depth:
            parent[rank[k]] = rank[rng.integers(max(0, k - 3), k)]
    lists = np.empty((4, nodes), np.int32)
    thread(parent, *lists)
    check_lists(parent, *lists)
    size, last, behind, _ = lists
    arc, flow = np.arange(nodes, dtype=np.int32), rng.random(nodes)
    potential = rng.random(nodes)
    for number in range(nodes, nodes + 40):
        leaving = int(rng.integers(root))
        below = subtrees(parent)[leaving]
        # Types as in the pivots, for which these functions are compiled.
        top = np.int32(rng.choice(sorted(below)))
        host = np.int32(rng.choice(sorted(set(range(nodes)) - below)))
        stem = path(top, parent)[: path(top, parent).index(leaving) + 1]
        meet = meeting(top, host, parent, size)
        above_top = path(top, parent)
        assert meet == next(x for x in path(host, parent) if x in above_top)
        meet = np.int32(meeting(np.int32(leaving), host, parent, size))
        new_parent, new_arc, new_flow = parent.copy(), arc.copy(), flow.copy()
        new_parent[stem], new_arc[stem] = [host, *stem[:-1]], [number, *arc[stem[:-1]]]
        new_flow[stem] = [0.5, *flow[stem[:-1]]]
        regraft(top, leaving, host, number, 0.5, meet, parent, arc, flow, *lists)
        for array, new in ((parent, new_parent), (arc, new_arc), (flow, new_flow)):
            np.testing.assert_array_equal(array, new)
        check_lists(parent, *lists)

        raised = potential + 0.25 * np.isin(np.arange(nodes), list(below))
        shift(top, 0.25, potential, size, last, behind)
        assert potential - potential[root] == pytest.approx(raised - raised[root], abs=1e-14)


@pytest.mark.parametrize("seed", range(40))
def test_ties_and_empty_arcs_of_the_tree(seed: int) -> None:
    """Small whole costs and masses: most pivots move nothing, and many plans are optimal."""
    rng = np.random.default_rng(seed)
    n, m = (int(count) for count in rng.integers(2, 25, 2))
    a, b = np.ones(n), np.ones(m)
    a[rng.integers(n, size=m)] += 1.0  # repeated places count once
    b[rng.integers(m, size=n)] += 1.0
    short, excess = (a, b.sum() - a.sum()) if a.sum() < b.sum() else (b, a.sum() - b.sum())
    short[rng.integers(len(short))] += excess
    given = np.flatnonzero(rng.random(n * m) < rng.choice([0.3, 1.0]))
    rows, columns = given // m, given % m
    cost, tie = rng.integers(0, 4, len(given)).astype(float), 10.0
    solution = solve_on_arcs(rows, columns, cost, a, b, tie)
    assert solution.finished
    assert (solution.u[rows] + solution.v[columns] <= cost).all()
    # The same with ties: what the arcs cannot carry goes by a root, at 10 in and 10 out.
    incidence = np.zeros((n + m + 1, len(given) + n + m))
    incidence[rows, np.arange(len(given))] = 1.0
    incidence[n + columns, np.arange(len(given))] = 1.0
    incidence[np.arange(n + m), len(given) + np.arange(n + m)] = 1.0
    incidence[n + m, len(given) :] = np.repeat([1.0, -1.0], [n, m])
    result = optimize.linprog(
        np.append(cost, np.full(n + m, tie)), A_eq=incidence, b_eq=np.concatenate([a, b, [0.0]])
    )
    assert a @ solution.u + b @ solution.v == pytest.approx(result.fun, abs=1e-9)
    missing = a.sum() - solution.flow.sum()
    assert solution.flow @ cost + 2 * tie * missing == pytest.approx(result.fun, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("cost", ["geodesic", "chordal"])
def test_w1_of_12_000_atoms(cost: str) -> None:
    """Its gap, and its potentials against all pairs, block by block in numpy."""
    mu, nu = sphere_densities(12_000)
    result = wasserstein(mu, nu, 1, cost, rtol=1e-8)
    assert result.status == "optimal"
    assert result.gap <= 1e-8
    u, v = result.duals
    a, b = mu.masses / mu.masses.sum(), nu.masses / nu.masses.sum()
    assert a @ u + b @ v == pytest.approx(result.low, rel=1e-12)
    for start in range(0, len(u), 1_000):
        block = slice(start, start + 1_000)
        squares = 2 - 2 * (mu.points[block] @ nu.points.T)
        # Short distances from their differences: there the squares are nothing but rounding.
        near = np.argwhere(squares < 1e-3)
        distances = np.sqrt(np.maximum(squares, 0.0))
        between = mu.points[block][near[:, 0]] - nu.points[near[:, 1]]
        distances[tuple(near.T)] = np.linalg.norm(between, axis=1)
        if cost == "geodesic":
            distances = 2 * np.arcsin(np.minimum(1.0, distances / 2))
        # At antipodal points the inverse sine keeps half of the digits only.
        assert (u[block, None] + v <= distances + 1e-7).all()
        assert (u[block, None] + v <= distances + 1e-12)[squares < 3.9].all()
