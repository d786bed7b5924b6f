"""The demos in short form: each is imported and run, and its headline number asserted."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

DEMOS = Path(__file__).parents[1] / "demos"


@pytest.fixture
def numbers(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, float]:
    """What the demo named after the test prints, run in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEANFIELD_PDE_THREADS", "1")
    name = request.node.name.removeprefix("test_")
    spec = importlib.util.spec_from_file_location(name, DEMOS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    return demo.main(["--short"])


def test_concentration_circle(numbers: dict[str, float], tmp_path: Path) -> None:
    assert numbers["rate over predicted"] == pytest.approx(1, abs=0.07)
    assert numbers["mass at +e"] == pytest.approx(numbers["predicted mass at +e"], abs=0.002)
    assert numbers["least W1"] < 0.02
    assert imread(tmp_path / "results/demos/concentration_circle.png").std() > 0.05


@pytest.mark.slow
def test_concentration_sphere(numbers: dict[str, float], tmp_path: Path) -> None:
    """On 1,280 cells, about a tenth of a radian wide."""
    assert numbers["two atoms: rate over predicted"] == pytest.approx(1, abs=0.1)
    assert numbers["great circle: rate over predicted"] == pytest.approx(1, abs=0.16)
    assert imread(tmp_path / "results/demos/concentration_sphere.png").std() > 0.05


@pytest.mark.slow
def test_temperature_sweep(numbers: dict[str, float], tmp_path: Path) -> None:
    assert numbers["bound holds at (share of points)"] == 1
    assert numbers["power of sqrt(log(beta + 1)/beta)"] > 1
    assert numbers["t* = a + b log beta, b"] > 1
    assert imread(tmp_path / "results/demos/sweep-short/figures/sweep.png").std() > 0.05


@pytest.mark.slow
def test_metastable_lifetime(numbers: dict[str, float], tmp_path: Path) -> None:
    assert numbers["density: slope in beta over predicted"] == pytest.approx(1, abs=0.15)
    assert numbers["tokens: longest mean lifetime"] < 0.5 * numbers["density: longest lifetime"]
    assert imread(tmp_path / "results/demos/lifetime-short/figures/lifetime.png").std() > 0.05


def test_clusters(numbers: dict[str, float], tmp_path: Path) -> None:
    """About sqrt(2 beta) of them: 4 at beta = 8, and 10 at beta = 50."""
    for beta in (8, 50):
        assert numbers[f"beta {beta}: rate over Bessel"] == pytest.approx(1, abs=0.01)
        fastest = numbers[f"beta {beta}: fastest mode"]
        assert numbers[f"beta {beta}: clusters"] == pytest.approx(fastest, abs=1)
    assert imread(tmp_path / "results/demos/clusters.png").std() > 0.05


def test_convergence(numbers: dict[str, float], tmp_path: Path) -> None:
    assert numbers["slope of log W1"] == pytest.approx(-0.5, abs=0.06)
    assert numbers["slope at the start"] == pytest.approx(-0.5, abs=0.06)
    assert numbers["lifetime per log N"] == pytest.approx(numbers["predicted, 1/c'"], rel=0.25)
    assert imread(tmp_path / "results/demos/convergence.png").std() > 0.05


def test_audit_minilm(numbers: dict[str, float], tmp_path: Path) -> None:
    """The small random encoder: attention alone moves its tokens, and the damage is found."""
    assert numbers["heads"] == 24
    assert numbers["least share unexplained"] < 1e-20
    assert numbers["first cloud of drift"] == numbers["damaged layer"] + 1
    assert imread(tmp_path / "results/demos/audit/figures/audit.png").std() > 0.05


@pytest.fixture
def page(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undrawn: None,
) -> dict[str, float]:
    """The numbers of a page without functions, run from its top in short form.

    Figures are its own: those of a folder of results are drawn in `tests.figures`.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEANFIELD_PDE_THREADS", "1")
    monkeypatch.setenv("MEANFIELD_PDE_SHORT", "1")
    name = request.node.name.removeprefix("test_")
    return runpy.run_path(str(DEMOS / f"{name}.py"))["numbers"]


def test_first_steps(page: dict[str, float], tmp_path: Path) -> None:
    assert page["low"] <= page["W1"] <= page["high"] < page["low"] + 1e-8
    assert page["mass at +e"] == pytest.approx(0.5 + 0.5 * 4 / (4 * np.pi), abs=0.02)
    assert imread(tmp_path / "results/demos/first_steps.png").std() > 0.05


def test_own_case(page: dict[str, float]) -> None:
    assert page["saved times"] == 9
    assert page["mass drift"] < 1e-13


def test_read_results(page: dict[str, float]) -> None:
    assert page.pop("mass on the grid") == pytest.approx(1, abs=1e-4)
    assert page == {"columns agree": 0.0, "densities agree": 0.0, "fields": 1.0}


def test_particle_code(page: dict[str, float]) -> None:
    assert page == {"right agrees": 1.0, "wrong agrees": 0.0}


def test_parameter_study(page: dict[str, float]) -> None:
    assert list(page) == ["0.10", "0.40", "0.70"]
    assert all(ratio == pytest.approx(0.95, abs=0.07) for ratio in page.values())


def test_fenics(page: dict[str, float]) -> None:
    assert page["mass of the field"] == pytest.approx(page["mass of the density"], rel=1e-10)
    assert page["second moment of the field"] > 1 / 3


def test_every_page_is_written_in_cells_and_begins_with_its_title() -> None:
    """In the percent format: text in comments, as cells of Markdown, code in cells of its own."""
    for path in sorted(DEMOS.glob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0] == "# %% [markdown]", path.name
        assert lines[1].startswith("# # "), path.name
        assert "# %%" in lines, path.name


def test_noise(numbers: dict[str, float], tmp_path: Path) -> None:
    """The order of noisy oscillators against its equation."""
    assert numbers["largest deviation"] < 1e-3
    assert imread(tmp_path / "results/demos/noise.png").std() > 0.05


def test_heads(numbers: dict[str, float], tmp_path: Path) -> None:
    """Four attracting points by symmetry in pairs, and the mass that comes to each."""
    assert numbers["attracting points"] == 4
    for i in range(4):
        share = numbers[f"point {i}: share predicted"]
        assert numbers[f"point {i}: mass near it"] == pytest.approx(share, abs=0.03)
    assert numbers["point 0: share predicted"] > 1.5 * numbers["point 3: share predicted"]
    assert imread(tmp_path / "results/demos/heads.png").std() > 0.05


@pytest.mark.slow
def test_perceptron(numbers: dict[str, float], tmp_path: Path) -> None:
    assert numbers["way gone (degrees)"] > 50
    assert numbers["largest difference (degrees)"] < 4
    assert imread(tmp_path / "results/demos/perceptron.png").std() > 0.05
