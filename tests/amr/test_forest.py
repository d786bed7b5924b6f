"""Cells split and merged: always a mesh, the same whoever asks, and no mass lost or made."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from meanfield_pde.amr.forest import Forest
from meanfield_pde.amr.remap import Remap
from meanfield_pde.errors import InputError
from meanfield_pde.mesh.checks import check_surface
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.geometry import cell_mean, cell_volume, normalised, quadrature
from meanfield_pde.mesh.surface import Surface, build_mesh, circle_surface, sphere_surface

BASES = {
    "circle": circle_surface(7),
    "graded circle": circle_surface(30, grade=4.0, axis=np.array([1.0, 2.0])),
    "icosahedron": sphere_surface(20),
    "graded sphere": sphere_surface(80, grade=3.0, axis=np.array([1.0, 2.0, 0.3])),
}


def grown(base: Surface, seed: int, rounds: int = 6) -> Forest:
    """A forest split here and there, by chance."""
    generator = np.random.default_rng(seed)
    forest = Forest.of(base)
    for _ in range(rounds):
        forest = forest.refined(generator.random(forest.count) < 0.15)
    return forest


@pytest.mark.parametrize("name", BASES)
def test_leaves_are_a_mesh(name: str) -> None:
    """Closed, without hanging vertices, covering the sphere once; after splits and merges."""
    forest = grown(BASES[name], 1)
    generator = np.random.default_rng(2)
    for _ in range(4):
        check_surface(forest.surface, name)
        assert (np.diff(forest.keys) > 0).all()
        across = forest.neighbours[forest.neighbours]
        assert (across == np.arange(forest.count)[:, None, None]).any(axis=2).all()
        forest = forest.coarsened(generator.random(forest.count) < 0.9)


@pytest.mark.parametrize("name", BASES)
def test_merging_undoes_splitting(name: str) -> None:
    """Down to the cells of the base, corner by corner."""
    base = Forest.of(BASES[name])
    forest = grown(BASES[name], 3)
    while forest.count > base.count:
        fewer = forest.coarsened(np.ones(forest.count, dtype=bool))
        assert fewer.count < forest.count
        forest = fewer
    np.testing.assert_array_equal(forest.corners, base.corners)


@pytest.mark.parametrize("name", BASES)
def test_named_by_keys_and_levels(name: str) -> None:
    """Which is all that a checkpoint keeps: the same corners and vertices, bit for bit."""
    forest = grown(BASES[name], 4)
    again = Forest.of(BASES[name]).with_leaves(forest.keys, forest.levels)
    np.testing.assert_array_equal(again.corners, forest.corners)
    np.testing.assert_array_equal(again.surface.points, forest.surface.points)
    np.testing.assert_array_equal(again.surface.cells, forest.surface.cells)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("damage", ["keys", "levels", "one less"])
def test_leaves_that_are_none_are_refused(damage: str) -> None:
    """As a damaged checkpoint may name them; they were looked for without end."""
    forest = grown(BASES["circle"], 4)
    keys, levels = forest.keys.copy(), forest.levels.copy()
    if damage == "keys":
        keys[3] += 1
    elif damage == "levels":
        levels[:] = 60
    else:
        keys, levels = np.delete(keys, 3), np.delete(levels, 3)
    with pytest.raises(InputError, match="not those of an adaptive mesh"):
        Forest.of(BASES["circle"]).with_leaves(keys, levels)


def test_angles_stay_bounded() -> None:
    """Forty rounds of splitting towards one point: no triangle gets flatter than a few classes."""
    forest = Forest.of(sphere_surface(20))
    target = normalised(np.array([0.3, 0.5, 0.8]))
    for _ in range(40):
        nearest = (normalised(cell_mean(forest.corners)) @ target).argmax()
        forest = forest.refined(np.arange(forest.count) == nearest)
    edges = forest.corners - np.roll(forest.corners, 1, axis=1)
    longest = np.linalg.norm(edges, axis=2).max(axis=1)
    assert longest.min() < 1e-5
    assert (cell_volume(forest.corners) / longest**2).min() > 0.1


def test_no_leaf_below_the_deepest_level() -> None:
    """Splitting goes on without effect there."""
    forest = Forest.of(circle_surface(3))
    for _ in range(60):
        forest = forest.refined(np.arange(forest.count) == 0)
    assert forest.levels.max() == 40
    assert forest.count < 200


@pytest.mark.parametrize("name", BASES)
def test_mass_after_a_thousand_changes(name: str) -> None:
    """Positive, and the same to 1e-13; for masses of 1e-500 too."""
    generator = np.random.default_rng(5)
    forest = Forest.of(BASES[name])
    masses = generator.random(forest.count)
    masses /= masses.sum()
    mantissa, exponent = np.frexp(masses)
    wide = (mantissa, exponent - 1700.0)
    changes = 0
    for change in range(1000):
        some = generator.random(forest.count)
        new = forest.refined(some < 0.05) if change % 2 else forest.coarsened(some < 0.97)
        transfer = Remap(forest, new, generator.normal(size=forest.count))
        masses = transfer.doubles(masses)
        wide = transfer.extended(*wide)
        changes += new.count != forest.count
        forest = new
    assert changes > 250
    assert (masses > 0).all()
    assert abs(masses.sum() - 1) < 1e-13
    np.testing.assert_allclose(np.ldexp(wide[0], (wide[1] + 1700).astype(int)), masses, rtol=1e-12)


@pytest.mark.parametrize("d", [2, 3])
def test_shares_are_of_third_order_in_the_logarithm(d: int) -> None:
    """A density exp(g): the error of log rho in the pieces falls with the cube of the width."""
    surface = {2: circle_surface, 3: sphere_surface}[d]

    def logarithm(x: np.ndarray) -> np.ndarray:
        return 40 * np.sin(x[:, 0] + 0.3) * x[:, 1]

    def log_masses(corners: np.ndarray) -> np.ndarray:
        points, weights = quadrature(corners)
        logs = logarithm(points.reshape(-1, d)).reshape(weights.shape)
        return logsumexp(logs, b=weights, axis=1)

    errors = []
    for cells in (400 ** (d - 1) // 20 ** (d - 2), 800 ** (d - 1) // 20 ** (d - 2)):
        old = Forest.of(surface(cells))
        new = old.refined(normalised(cell_mean(old.corners))[:, 0] > 0.1)
        log_mass = log_masses(old.corners)
        exponent = np.floor((log_mass - 800) / np.log(2))
        wide = (np.exp(log_mass - 800 - exponent * np.log(2)), exponent)
        remap = Remap(old, new, log_mass - np.log(cell_volume(old.corners)))
        mantissa, power = remap.extended(*wide)
        found = np.log(mantissa) + power * np.log(2) + 800
        errors.append(np.abs(found - log_masses(new.corners)).max())
    assert errors[1] < 0.15 * errors[0]


def test_any_base_from_a_file() -> None:
    """The triangles of a file may be listed in any order and turned either way."""
    surface = sphere_surface(80)
    generator = np.random.default_rng(6)
    cells = generator.permutation(surface.cells, axis=0)
    turned = np.array([generator.permutation(cell) for cell in cells])
    forest = grown(Surface(surface.points, turned), 7)
    check_surface(forest.surface, "turned")


def test_facet_means_are_taken_over_bit_for_bit() -> None:
    """Where a mesh did not change they are the same; elsewhere they are computed anew."""
    forest = Forest.of(sphere_surface(320))
    volumes = FiniteVolumes(build_mesh(forest.surface))
    for angle in (0.0, 0.4, 0.8):
        place = np.array([np.cos(angle), np.sin(angle), 0.2])
        middle = normalised(forest.corners.mean(axis=1))
        finer = forest.refined(np.linalg.norm(middle - place, axis=1) < 0.3)
        forest = finer.coarsened(finer.levels > 1)
        after = FiniteVolumes(build_mesh(forest.surface), volumes)
        anew = FiniteVolumes(build_mesh(forest.surface))
        _, rows, _ = volumes.facet_means.kept(after)
        assert 0.3 < len(rows) / len(after.facet_vertices) < 0.95
        for name in ("data", "indices", "indptr"):
            found, expected = (getattr(each.facet_means.matrix, name) for each in (after, anew))
            np.testing.assert_array_equal(found, expected)
        volumes = after


@pytest.mark.parametrize("surface", [circle_surface(7), sphere_surface(80)])
def test_the_leaf_that_holds_a_point(surface: Surface) -> None:
    """All coordinates of a point in its leaf are positive; a middle lies in its own leaf."""
    generator, forest = np.random.default_rng(3), Forest.of(surface)
    for _ in range(12):
        forest = forest.refined(generator.random(forest.count) < 0.2)
    points = normalised(generator.normal(size=(500, forest.dimension)))
    held = forest.holding(points)
    coordinates = np.einsum("pd,pdj->pj", points, np.linalg.inv(forest.corners[held]))
    assert coordinates.min() > -1e-12
    middles = normalised(forest.corners.mean(axis=1))
    np.testing.assert_array_equal(forest.holding(middles), np.arange(forest.count))
