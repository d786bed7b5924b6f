"""The sphere as a file to be turned: its data, that it needs no network, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from plotly import graph_objects

from meanfield_pde import Attention, ProjectionLimit, sphere_mesh
from meanfield_pde.experiments import redraw
from meanfield_pde.figures import interactive
from meanfield_pde.figures.density import DECADES
from meanfield_pde.history.history import History
from meanfield_pde.history.store import MemoryStore
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from tests.conftest import Main, Write
from tests.problems import CIRCLE, SPHERE

pytestmark = pytest.mark.painted


def sphere_history(moving: bool) -> History:
    """Three times with densities of their own; on cells of their own, if the mesh moves."""
    rng = np.random.default_rng(4)
    store = MemoryStore()
    for time, cells in enumerate((80, 320, 80) if moving else (80, 80, 80)):
        mesh = Cells.of(FiniteVolumes(sphere_mesh(cells)))
        masses = mesh.volumes * np.exp(12 * rng.random() * mesh.points[:, 0])
        store.append(float(time), {"masses": masses} | (mesh.arrays() if moving else {}))
    attention = Attention(np.eye(3), np.eye(3), np.diag([1.0, 0.5, 0.2]), 40.0)
    return History(attention, mesh, store, {})


@pytest.mark.parametrize("moving", [False, True])
def test_each_time_is_a_surface_and_a_step(moving: bool) -> None:
    """The triangles are the cells, their colours the densities; a step shows one time alone."""
    history = sphere_history(moving)
    assert history.store.moves == moving
    projection = ProjectionLimit(history.attention)
    figure = interactive.sphere_figure(graph_objects, history, projection)
    surfaces = [one for one in figure.data if isinstance(one, graph_objects.Mesh3d)]
    (slider,) = figure.layout.sliders
    assert [step.label for step in slider.steps] == ["0", "1", "2"]
    for index, (surface, step) in enumerate(zip(surfaces, slider.steps, strict=True)):
        corners = np.array([surface.x, surface.y, surface.z]).T
        found = corners[np.array([surface.i, surface.j, surface.k]).T]
        np.testing.assert_allclose(found, history.cells_at(index).vertices, atol=1e-6)
        floor = 10.0 ** (surface.cmax - DECADES)
        shown = np.maximum(history.density_at(index), floor)
        np.testing.assert_allclose(10.0 ** np.asarray(surface.intensity), shown, rtol=1e-4)
        visible, which = step.args
        assert list(visible["visible"]) == [one == index for one in range(3)]
        assert list(which) == [0, 1, 2]
        assert surface.visible == (index == 2)
        assert surface.cmin < surface.cmax == surfaces[0].cmax
    (mark,) = figure.data[3:]
    assert mark.name == "± dominant eigenvector of A = VBᵀ and of V"
    assert np.abs(mark.x) == pytest.approx(1.06)


def test_the_file_needs_no_network(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redraw, "draw_run", lambda *arguments: [])
    out = tmp_path / "out"
    assert main("run", write_case(SPHERE), "--until", 0, "--quiet", "--output", out)[0] == 0
    code, err = main("plot", out, "--interactive")
    assert code == 0
    assert err.endswith(f"{out / 'figures/density.html'}\n")
    text = (out / "figures/density.html").read_text(encoding="utf-8")
    assert "<script src=" not in text  # the library stands in the file
    assert "<link" not in text
    assert len(text) > 1e6
    assert "Plotly.newPlot" in text


def test_what_is_refused(
    main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is drawn: the circle, and the sphere where plotly is not installed."""
    for case, fragment in (
        (CIRCLE, "the interactive view is one of the sphere"),
        (SPHERE, "pip install 'meanfield_pde[interactive]' (--interactive)"),
    ):
        out = tmp_path / f"of {len(case)}"
        written = write_case(case)
        assert main("run", written, "--until", 0, "--quiet", "--output", out)[0] == 0
        monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
        code, err = main("plot", out, "--interactive")
        assert code == 2
        assert fragment in err
        assert not (out / "figures/density.png").exists()
