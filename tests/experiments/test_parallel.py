"""The same results on 1, 2 and 3 ranks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mpi4py import MPI

import h5py
import numpy as np
import pytest

from meanfield_pde import InputError, read_case, read_result, run_case
from meanfield_pde.mesh.files import write_surface
from meanfield_pde.mesh.surface import Surface, sphere_surface
from meanfield_pde.support.ranks import on_root, shared_errors
from tests.conftest import Command, Main, Write
from tests.problems import CIRCLE, SPHERE

COLD = ("40.0", '"inf"')
# Masses over the whole range of doubles, and zeros beyond it.
TAILS = (
    'kind = "expression"\ndensity = "1 + 0.5*x + 0.3*x*y"',
    'kind = "von-mises"\ncomponents = [{ weight = 1.0, concentration = 500.0, mean = [0.6, 0.8] }]',
)


def shuffled_sphere(path: Path) -> Path:
    """A mesh file whose cells and vertices are in no particular order."""
    surface = sphere_surface(320)
    generator = np.random.default_rng(4)
    cells = generator.permutation(surface.cells)
    vertices = generator.permutation(len(surface.points))
    moved = np.empty_like(surface.points)
    moved[vertices] = surface.points
    write_surface(path, Surface(moved, vertices[cells]))
    return path


@pytest.mark.parallel([2])
def test_results_do_not_depend_on_ranks(main: Main, write_case: Write, tmp_path: Path) -> None:
    """Geometry bit for bit, masses at t = 5 within 1e-10 in every cell above 1e-200.

    Observed: 6e-15 at worst after 70 steps, and often equality, to the last bit; 1e-12 in tails.
    """
    comm = MPI.COMM_WORLD
    tmp_path = comm.bcast(tmp_path)
    if comm.rank == 0:
        shuffled_sphere(tmp_path / "shuffled.xdmf")
    from_file = ('kind = "sphere"\ncells = 320', 'kind = "file"\npath = "shuffled.xdmf"')
    cases = {
        "circle": write_case(CIRCLE, name="circle.toml"),
        "circle-tails": write_case(CIRCLE, TAILS, name="circle-tails.toml"),
        "circle-cold": write_case(CIRCLE, COLD, name="circle-cold.toml"),
        "sphere": write_case(SPHERE, name="sphere.toml"),
        "sphere-file": write_case(SPHERE, from_file, name="sphere-file.toml"),
        "sphere-cold": write_case(SPHERE, COLD, name="sphere-cold.toml"),
    }
    for case, path in comm.bcast(cases).items():
        code, err = main("run", path, "--quiet", "--output", tmp_path / "ranks" / case)
        assert (code, err) == (0, "")
    if comm.rank > 0:
        return
    for case, path in cases.items():
        alone = read_case(path, output=tmp_path / "alone" / case)
        run_case(alone, quiet=True, comm=MPI.COMM_SELF)
        data = []
        for folder in ("alone", "ranks"):
            with h5py.File(tmp_path / folder / case / "density.h5") as file:
                data.append({name: file[name][()] for name in file})
        one, other = data
        assert one["times"][-1] == 5.0
        for name in ("points", "volumes", "spread", "vertices", "times"):
            np.testing.assert_array_equal(other[name], one[name])
        compared = one["masses"] > 1e-200
        assert compared.all() == (case != "circle-tails")
        error = np.abs(other["masses"][compared] / one["masses"][compared] - 1)
        assert error.max() < (1e-10 if case == "circle-tails" else 1e-12), case


@pytest.mark.slow
@pytest.mark.parallel([3])
def test_results_do_not_depend_on_more_ranks(main: Main, write_case: Write, tmp_path: Path) -> None:
    test_results_do_not_depend_on_ranks(main, write_case, tmp_path)


@pytest.mark.slow
def test_more_ranks_than_cells_make_sense(
    command: Command, write_case: Write, tmp_path: Path
) -> None:
    """One of four ranks has no cell of the triangle."""
    case = write_case(CIRCLE, ("cells = 200", "cells = 3"))
    for ranks in (1, 4):
        out = tmp_path / f"out{ranks}"
        ended = command("run", case, "--until", 1, "--quiet", "--output", out, ranks=ranks)
        assert (ended.returncode, ended.stderr) == (0, "")
    one, four = (read_result(tmp_path / f"out{ranks}").masses for ranks in (1, 4))
    np.testing.assert_allclose(four, one, rtol=1e-12)


def two_ranks(error: InputError | None = None) -> Any:
    """A communicator as the first of two ranks sees it; `error` is what the other has met."""
    return SimpleNamespace(
        rank=0, bcast=lambda value, root: value, allgather=lambda value: [value, error]
    )


def test_errors_reach_every_rank() -> None:
    def fail() -> None:
        raise InputError("wrong")

    assert on_root(two_ranks(), max, 2, 3) == 3
    with pytest.raises(InputError, match="wrong"):
        on_root(two_ranks(), fail)
    with shared_errors(two_ranks()):
        pass
    with pytest.raises(InputError, match="wrong"), shared_errors(two_ranks(InputError("later"))):
        fail()
    with (
        pytest.raises(InputError, match="of another rank"),
        shared_errors(two_ranks(InputError("of another rank"))),
    ):
        pass
