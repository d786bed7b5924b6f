"""Problems that several tests share: case files, attentions, densities, and weighted points.

The case of the metastable phase: the drift A = V B^T is diagonal with dominant eigenvector (1, 0),
and that of V is at 0.5 radians, so that clusters stand at 0 for a time that grows with beta.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from meanfield_pde import (
    Attention,
    Component,
    ProjectionLimit,
    VonMises,
    circle_mesh,
    sphere_mesh,
)
from meanfield_pde.case.file import attention_of, parse
from meanfield_pde.history.history import History
from meanfield_pde.history.store import MemoryStore
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.surface import circle_surface, sphere_surface
from meanfield_pde.wasserstein.measure import Measure

# By the dimension d of the space around.
MESHES = {2: circle_mesh, 3: sphere_mesh}
SURFACES = {2: circle_surface, 3: sphere_surface}

CIRCLE = """
[attention]
query = [[1.0, 0.0], [0.0, 1.0]]
key   = [[1.0, 0.0], [0.0, 1.0]]
value = [[1.0, 0.2], [0.0, 0.3]]
beta  = 40.0
[mesh]
kind = "circle"
cells = 200
[initial]
kind = "expression"
density = "1 + 0.5*x + 0.3*x*y"
[time]
until = 5.0
save_every = 0.5
"""
SPHERE = """
[attention]
query = [[1.0, 0.3, 0.0], [-0.2, 0.9, 0.1], [0.0, 0.2, 0.8]]
key   = [[1.0, 0.0, 0.2], [0.1, 1.0, 0.0], [0.0, -0.3, 1.0]]
value = [[1.0, 0.4, 0.0], [-0.1, 0.5, 0.3], [0.2, 0.0, 0.3]]
beta  = 40.0
[mesh]
kind = "sphere"
cells = 320
[initial]
kind = "expression"
density = "1 + 0.5*x*y + 0.4*z - 0.3*x"
[time]
until = 5.0
save_at = [1.0]
"""

OFTEN = "[output]\ncheckpoint_every = 5\n"


def rotation(angle: float, d: int = 2) -> np.ndarray:
    """Rotation in the plane of the first two axes."""
    matrix = np.eye(d)
    matrix[:2, :2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    return matrix


VALUE = rotation(0.5) @ np.diag([1.0, 0.3]) @ rotation(0.5).T
KEY_QUERY = np.linalg.solve(VALUE, np.diag([1.0, 0.2]))
KEY_QUERY /= np.linalg.norm(KEY_QUERY, 2)
MIXTURE = VonMises((Component(0.7, 3.0, (0.6, 0.8)), Component(0.3, 1.5, (-0.8, 0.6))))


def metastable(beta: float) -> Attention:
    """The attention of the metastable phase."""
    return Attention(KEY_QUERY, np.eye(2), VALUE, beta)


def limit_at(beta: float) -> ProjectionLimit:
    """Its limit."""
    return ProjectionLimit(metastable(beta))


def stopping(beta: float) -> Attention:
    """An attention whose clusters stop several times on their way, by the theory of `stages`."""
    value = rotation(-0.37) @ np.diag([1.0, 0.5]) @ rotation(0.37)
    vectors = np.array([[1.0, -0.24], [0.0, 0.97]])
    drift = vectors @ np.diag([1.0, 0.33]) @ np.linalg.inv(vectors)
    key_query = np.linalg.solve(value, drift)
    return Attention(key_query / np.linalg.norm(key_query, 2), np.eye(2), value, beta)


def fibonacci_sphere(count: int) -> np.ndarray:
    """Nearly uniform points on the sphere."""
    k = np.arange(count) + 0.5
    z = 1 - 2 * k / count
    longitude = np.pi * (1 + 5**0.5) * k
    radius = np.sqrt(1 - z * z)
    return np.column_stack([radius * np.cos(longitude), radius * np.sin(longitude), z])


def sphere_densities(count: int) -> tuple[Measure, Measure]:
    """A mixture of two von Mises-Fisher densities and a single one, on rotated points."""
    x = fibonacci_sphere(count)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    y = x @ turn
    first = 0.7 * np.exp(3 * (x @ [0.98, 0, 0.2] - 1)) + 0.3 * np.exp(5 * (x @ [-0.7, 0.7, 0] - 1))
    second = np.exp(4 * (y @ [0, 0.98, 0.2] - 1))
    return Measure(x, first), Measure(y, second)


WeightedPoints = tuple[np.ndarray, np.ndarray]  # points, log masses


def on_sphere(rng: np.random.Generator, count: int, d: int) -> np.ndarray:
    points = rng.normal(size=(count, d))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def equal_masses(rng: np.random.Generator, count: int, d: int) -> WeightedPoints:
    return on_sphere(rng, count, d), np.full(count, -np.log(count))


def masses_over_300_decades(rng: np.random.Generator, count: int, d: int) -> WeightedPoints:
    return on_sphere(rng, count, d), np.log(10.0) * rng.uniform(-300, 0, count)


def clusters(rng: np.random.Generator, count: int, d: int) -> WeightedPoints:
    centres = on_sphere(rng, 4, d)[rng.integers(4, size=count)]
    points = centres + 10.0 ** rng.uniform(-12, -2, (count, 1)) * rng.normal(size=(count, d))
    return points / np.linalg.norm(points, axis=1, keepdims=True), rng.normal(size=count)


def repeated_points(rng: np.random.Generator, count: int, d: int) -> WeightedPoints:
    points = on_sphere(rng, 3, d)[rng.integers(3, size=count)]
    return points, np.log(rng.uniform(size=count))


def half_of_the_sphere_empty(rng: np.random.Generator, count: int, d: int) -> WeightedPoints:
    # Blocks are compact, so that many of them have no mass at all.
    points = on_sphere(rng, count, d)
    log_masses = np.where(points[:, 0] > 0, rng.normal(size=count), -np.inf)
    log_masses[rng.integers(count)] = -700.0
    return points, log_masses


def all_mass_in_one_point(rng: np.random.Generator, count: int, d: int) -> WeightedPoints:
    log_masses = np.full(count, -np.inf)
    log_masses[rng.integers(count)] = -690.0
    return on_sphere(rng, count, d), log_masses


def inside_the_ball(rng: np.random.Generator, count: int, d: int) -> WeightedPoints:
    return on_sphere(rng, count, d) * rng.uniform(size=(count, 1)), rng.normal(size=count)


MEASURES: list[Callable[[np.random.Generator, int, int], WeightedPoints]] = [
    equal_masses,
    masses_over_300_decades,
    clusters,
    repeated_points,
    half_of_the_sphere_empty,
    all_mass_in_one_point,
    inside_the_ball,
]


def made_up(text: str, cells: Cells, times: np.ndarray, masses: np.ndarray) -> History:
    """A history of given densities, with the attention of a case text and no columns."""
    store = MemoryStore()
    for at, one in zip(times, masses, strict=True):
        store.append(float(at), {"masses": one})
    return History(attention_of(parse(text)["attention"], Path()), cells, store, {})


def run_and_kill(case: Path, out: Path) -> float:
    """Start a run, kill it when its first checkpoint appears, and return that one's time."""
    line = ["meanfield-pde", "run", str(case), "--output", str(out), "--quiet"]
    process = subprocess.Popen(line, env=os.environ | {"MEANFIELD_PDE_THREADS": "1"})
    limit = time.monotonic() + 60
    while not (out / "checkpoint.h5").exists() and time.monotonic() < limit:
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -9, "the run was over before it could be killed"
    with h5py.File(out / "checkpoint.h5") as file:
        return float(file["state"].attrs["time"])
