"""Push-forward measures against closed forms and independent integrals; clipping of cells."""

import math

import numpy as np
import pytest
from scipy import integrate
from scipy.special import exprel, i0e

from meanfield_pde.attention.head import Attention
from meanfield_pde.errors import InputError
from meanfield_pde.initial.formula import ExpressionDensity
from meanfield_pde.initial.uniform import Uniform
from meanfield_pde.initial.von_mises import Component, VonMises
from meanfield_pde.mesh.clipping import split
from meanfield_pde.mesh.geometry import cell_volume, geodesic_distance, normalised
from meanfield_pde.mesh.surface import circle_surface, sphere_surface
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.push_forward import push_forward, push_forward_atoms
from meanfield_pde.wasserstein.measure import Measure


def limit_of(drift: np.ndarray) -> ProjectionLimit:
    d = len(drift)
    return ProjectionLimit(Attention(np.eye(d), np.eye(d), drift, math.inf))


def random_limit(block: list[float], seed: int) -> ProjectionLimit:
    """The limit of a non-symmetric A with these eigenvalues."""
    rng = np.random.default_rng(seed)
    d = len(block)
    while True:
        basis = rng.normal(size=(d, d))
        if np.linalg.cond(basis) < 20:
            return limit_of(basis @ np.diag(block) @ np.linalg.inv(basis))


def circle(cells: int) -> np.ndarray:
    surface = circle_surface(cells)
    return surface.points[surface.cells]


@pytest.fixture(scope="module")
def sphere() -> np.ndarray:
    surface = sphere_surface(320)
    return surface.points[surface.cells]


def half_circle_mass(k: float, offset: float) -> float:
    """Mass of a von Mises density on the half circle that is this angle off its mean."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(offset - np.pi / 2, offset + np.pi / 2, 2000)
    half = np.diff(edges)[:, None] / 2
    angle = edges[:-1, None] + half * (1 + nodes)
    density = np.exp(-2 * k * np.sin(angle / 2) ** 2) / (2 * math.pi * i0e(k))
    return float((half * weights * density).sum())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("concentration", [0.0, 0.3, 3.0, 100.0, 1e4])
def test_two_atoms_on_the_circle(concentration: float, seed: int) -> None:
    limit = random_limit([1, 0.2], seed)
    angle = np.random.default_rng(seed + 100).uniform(-np.pi, np.pi, size=2)
    parts = [
        Component(weight, k, (math.cos(a), math.sin(a)))
        for weight, k, a in zip([0.7, 0.3], [concentration, 2.0], angle, strict=True)
    ]
    initial = VonMises(tuple(parts))
    measure = push_forward(
        limit, circle(137), initial.density, length_scale=initial.length_scale(2)
    )
    # <l, x> > 0 is the half circle about the direction of l. (The distribution function of scipy
    # is only a normal approximation for k > 50.)
    middle = math.atan2(*limit.left[0, ::-1])
    exact = sum(
        part.weight * half_circle_mass(part.concentration, middle - a)
        for part, a in zip(parts, angle, strict=True)
    )
    np.testing.assert_allclose(measure.masses, [exact, 1 - exact], atol=1e-12)
    np.testing.assert_allclose(measure.points, [limit.basis[:, 0], -limit.basis[:, 0]])
    assert measure.masses.sum() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("seed", range(4))
def test_masses_of_cells_are_divided_by_length(seed: int) -> None:
    """For the uniform density, and for a density that is a step from cell to cell."""
    limit = random_limit([0.5, -1], seed)
    cells = circle(61)
    uniform = push_forward(limit, cells, np.full(61, 1 / 61))
    np.testing.assert_allclose(uniform.masses, 0.5, atol=1e-14)
    masses = np.random.default_rng(seed).uniform(size=61)
    measure = push_forward(limit, cells, masses)
    assert measure.masses.sum() == pytest.approx(masses.sum(), rel=1e-14)  # not scaled
    fine = np.repeat(np.arange(61), 1000)
    angle = 2 * np.pi * (np.arange(61_000) + 0.5) / 61_000
    above = limit.coordinates(np.column_stack([np.cos(angle), np.sin(angle)]))[:, 0] > 0
    assert measure.masses[0] == pytest.approx((masses[fine] / 1000) @ above, abs=2e-3)


def test_expression_on_the_circle() -> None:
    limit = random_limit([1, 0.4], 3)
    initial = ExpressionDensity("1 + 0.5*x + 0.3*x*y")
    measure = push_forward(limit, circle(100), initial.density, length_scale=0.3)
    middle = math.atan2(*limit.left[0, ::-1])
    # The mean of x over a half circle is 2 / pi times the cosine; that of x y is zero.
    assert measure.masses[0] == pytest.approx(0.5 + 0.5 * math.cos(middle) / math.pi, abs=1e-13)


def half_space_mass(k: float, cosine: float) -> float:
    """Mass of a von Mises-Fisher density on the side <n, x> > 0, with cosine = <n, mean>."""
    sine = math.sqrt(1 - cosine**2)

    def at_height(angle: float) -> float:
        w = k * math.cos(angle) * sine
        return i0e(w) * math.exp(w + k * math.sin(angle) * cosine - k) * math.cos(angle)

    peak = min(max(math.asin(cosine), 0.0), 1.5)
    mass, _ = integrate.quad(at_height, 0, math.pi / 2, points=[peak], limit=500, epsabs=1e-14)
    return mass / (2 * exprel(-2 * k))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("concentration", [0.0, 2.0, 30.0, 300.0])
def test_two_atoms_on_the_sphere(sphere: np.ndarray, concentration: float, seed: int) -> None:
    limit = random_limit([1, 0.3, -0.2], seed)
    normal = normalised(limit.left[0])
    # A mean close to the separatrix, so that it divides the density.
    mean = normalised(np.cross(normal, [1, 2, 3]) + 0.1 * normal)
    initial = VonMises((Component(1, concentration, tuple(mean)),))
    measure = push_forward(limit, sphere, initial.density, length_scale=initial.length_scale(3))
    exact = half_space_mass(concentration, float(normal @ mean))
    np.testing.assert_allclose(measure.masses, [exact, 1 - exact], atol=1e-11)
    assert measure.masses.sum() == pytest.approx(1, abs=1e-13)


def circle_density(limit: ProjectionLimit, angle: np.ndarray) -> np.ndarray:
    """Density of the image of the uniform one: sqrt(det G) / (2 pi <w, G w>), G = (L L^T)^-1."""
    form = np.linalg.inv(limit.left @ limit.left.T)
    w = np.stack([np.cos(angle), np.sin(angle)])
    return math.sqrt(np.linalg.det(form)) / (2 * math.pi * np.einsum("i...,ij,j...", w, form, w))


@pytest.mark.parametrize("as_masses", [pytest.param(False, marks=pytest.mark.slow), True])
def test_great_circle_uniform(sphere: np.ndarray, as_masses: bool) -> None:
    volume = cell_volume(sphere)
    content = volume / volume.sum() if as_masses else Uniform().density
    even = push_forward(limit_of(np.diag([1, 1, -0.5])), sphere, content, bins=30)
    np.testing.assert_allclose(even.masses, 1 / 30, rtol=1e-12)
    np.testing.assert_allclose(even.spread, (2 * math.pi / 30) ** 2 / 12, rtol=1e-4)
    np.testing.assert_allclose(even.points[:, 2], 0, atol=1e-15)

    limit, bins = random_limit([1, 1, 0.2], 1), 180
    measure = push_forward(limit, sphere, content, bins=bins)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    width = 2 * math.pi / bins
    from_centre = width / 2 * nodes
    angle = width * (np.arange(bins)[:, None] + 0.5) + from_centre
    density = width / 2 * weights * circle_density(limit, angle)
    exact = density.sum(axis=1)
    np.testing.assert_allclose(measure.masses, exact, rtol=1e-10)
    assert measure.masses.sum() == pytest.approx(1, abs=1e-13)
    mean = (density * from_centre).sum(axis=1) / exact
    square = (density * from_centre**2).sum(axis=1) / exact
    centre = width * (np.arange(bins) + 0.5) + mean
    points = np.column_stack([np.cos(centre), np.sin(centre)]) @ limit.basis.T
    np.testing.assert_allclose(measure.points, points, atol=1e-7)
    np.testing.assert_allclose(measure.spread, square - mean**2, rtol=1e-4)


def test_great_circle_von_mises(sphere: np.ndarray) -> None:
    """Against the integral over y = cos t b(phi) + sin t k, dA = |det(y, y_phi, y_t)| / |y|^3."""
    limit = random_limit([0.3, 0.3, -1], 4)
    initial = VonMises((Component(1, 6.0, (1, -2, 0.5)), Component(0.5, 0, (1, 0, 0))))
    measure = push_forward(
        limit, sphere, initial.density, length_scale=initial.length_scale(3), bins=36
    )
    kernel = np.linalg.svd(limit.left)[2][-1]
    nodes, weights = np.polynomial.legendre.leggauss(60)
    t, phi = np.meshgrid(nodes * math.pi / 2, (nodes + 1) * math.pi / 36, indexing="ij")
    scale = np.multiply.outer(weights * math.pi / 2, weights * math.pi / 36)
    for i in range(36):
        angle = phi + 2 * math.pi / 36 * i
        along = np.stack([np.cos(angle), np.sin(angle)], axis=-1) @ limit.basis.T
        turned = np.stack([-np.sin(angle), np.cos(angle)], axis=-1) @ limit.basis.T
        cosine, sine = np.cos(t)[..., None], np.sin(t)[..., None]
        y = cosine * along + sine * kernel
        frame = np.stack([y, cosine * turned, cosine * kernel - sine * along], axis=-1)
        length = np.linalg.norm(y, axis=-1)
        density = initial.density((y / length[..., None]).reshape(-1, 3)).reshape(t.shape)
        exact = (scale * density * np.abs(np.linalg.det(frame)) / length**3).sum()
        assert measure.masses[i] == pytest.approx(exact, abs=1e-11)


def test_empty_bins_and_few_bins(sphere: np.ndarray) -> None:
    limit = limit_of(np.diag([1, 1, 0]))
    masses = np.zeros(len(sphere))
    masses[7] = 2.0
    measure = push_forward(limit, sphere, masses, bins=180)
    assert measure.masses.sum() == pytest.approx(2, rel=1e-14)
    assert (measure.masses > 0).sum() < 10
    np.testing.assert_allclose(np.linalg.norm(measure.points, axis=1), 1)
    two = push_forward(limit, sphere, Uniform().density, bins=2)
    np.testing.assert_allclose(two.masses, 0.5, atol=1e-14)
    for bins in (0, 7):
        with pytest.raises(InputError, match=f"even number from 2 to 1000000, got {bins}"):
            push_forward(limit, sphere, masses, bins=bins)


@pytest.mark.parametrize("d", [2, 3])
def test_identity(d: int) -> None:
    surface = circle_surface(50) if d == 2 else sphere_surface(500)
    cells = surface.points[surface.cells]
    measure = push_forward(limit_of(np.eye(d)), cells, Uniform().density)
    volume = cell_volume(cells)
    np.testing.assert_allclose(measure.masses, volume / volume.sum(), rtol=1e-7)
    if d == 2:
        np.testing.assert_allclose(measure.spread, volume**2 / 12, rtol=1e-10)
    distance = geodesic_distance(cells, measure.points[:, None])
    assert (measure.spread < distance.max(axis=1) ** 2).all()


def test_atoms() -> None:
    limit = limit_of(np.diag([1.0, 0.5, 0.2]))
    points = normalised(np.array([[1, 1, 1], [-1, 2, 0.5], [0, 1, 1], [0.5, 0, -2]]))
    measure = push_forward_atoms(limit, Measure(points, np.array([1.0, 2, 4, 8])))
    np.testing.assert_allclose(measure.masses, [1 + 2 + 8, 2 + 2])
    np.testing.assert_allclose(measure.points, [[1, 0, 0], [-1, 0, 0]], atol=1e-15)
    plane = limit_of(np.diag([1.0, 1.0, 0.2]))
    image = push_forward_atoms(plane, Measure(points, np.ones(4)))
    np.testing.assert_allclose(image.points[0], [math.sqrt(0.5), math.sqrt(0.5), 0])
    with pytest.raises(InputError, match=r"point 0, .* on the separatrix"):
        push_forward_atoms(plane, Measure(np.array([[0.0, 0, 1]]), np.ones(1)))
    with pytest.raises(InputError, match="2 coordinates"):
        push_forward_atoms(plane, Measure(np.eye(2), np.ones(2)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.ones(9), "one number for each of the 10 cells"),
        (-np.ones(10), ">= 0"),
        (np.zeros(10), "not all zero"),
        (np.full(10, np.nan), "finite"),
        (lambda x: np.zeros(len(x)), "positive, finite mass, got 0"),
    ],
)
def test_bad_content(content: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        push_forward(limit_of(np.diag([1.0, 0])), circle(10), content)


def test_bad_cells_and_no_limit() -> None:
    with pytest.raises(InputError, match=r"dimension 3 .* got \(10, 2, 2\)"):
        push_forward(limit_of(np.diag([1.0, 0, 0])), circle(10), np.ones(10))
    rotation = limit_of(np.array([[0.0, -1], [1, 0]]))
    with pytest.raises(InputError, match=r"no limit measure.*complex pair"):
        push_forward(rotation, circle(10), np.ones(10))
    with pytest.raises(InputError, match=r"no limit measure.*complex pair"):
        push_forward_atoms(rotation, Measure(np.eye(2), np.ones(2)))


@pytest.mark.parametrize("d", [2, 3])
def test_pieces_fill_their_cells(d: int) -> None:
    surface = circle_surface(7) if d == 2 else sphere_surface(80)
    cells = surface.points[surface.cells]
    rng = np.random.default_rng(0)
    for normal in [*rng.normal(size=(50, d)), *np.eye(d), surface.points[3] - surface.points[5]]:
        pieces, parent, side = split(cells, normal)
        filled = np.bincount(parent, cell_volume(pieces), len(cells))
        np.testing.assert_allclose(filled, cell_volume(cells), rtol=1e-13)
        heights = side[:, None] * (pieces @ normal)
        assert heights.min() > -1e-14
        above = cell_volume(pieces)[side > 0].sum()
        assert above == pytest.approx({2: math.pi, 3: 2 * math.pi}[d], abs=1e-12)


def test_a_cut_through_a_vertex_halves_an_octant() -> None:
    pieces, parent, side = split(np.eye(3)[None], np.array([0.0, 1.0, -1.0]))
    assert parent.tolist() == [0] * len(pieces)
    for one in (1, -1):
        assert cell_volume(pieces[side == one]).sum() == pytest.approx(math.pi / 4, rel=1e-14)


def test_rotated_meshes_with_vertices_on_the_separatrix() -> None:
    """Vertices on the plane to rounding make no slivers, and no mass is lost."""
    for cells in (4, 8, 360):
        for angle in np.linspace(0, 2 * np.pi, 9):
            c, s = math.cos(angle), math.sin(angle)
            turn = np.array([[c, -s], [s, c]])
            limit = limit_of(turn @ np.diag([1, 0.2]) @ turn.T)
            measure = push_forward(limit, circle(cells) @ turn.T, Uniform().density)
            np.testing.assert_allclose(measure.masses, 0.5, atol=1e-13)
