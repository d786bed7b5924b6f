"""A run: what is computed once, and what its folder holds on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from meanfield_pde import ProjectionLimit, read_case, read_result, run_case
from meanfield_pde.experiments import run
from meanfield_pde.mesh.facet_means import FacetMeans
from tests.conftest import Write
from tests.problems import CIRCLE

COMPARE = "[compare]\nlimit = true\nzero_temperature = true\np = [1, 2]\n"


@pytest.mark.usefixtures("unrendered")
def test_predictions_and_geometry_are_computed_once(
    write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"projection": 0, "phases": 0, "facets": 0}

    def counted(name: str, owner: object, attribute: str) -> None:
        original = getattr(owner, attribute)

        def count(*arguments: object) -> object:
            counts[name] += 1
            return original(*arguments)

        monkeypatch.setattr(owner, attribute, count)

    counted("projection", ProjectionLimit, "__post_init__")
    counted("phases", run, "phases_of_run")
    counted("facets", FacetMeans, "of")
    case = read_case(write_case(CIRCLE + COMPARE), until=2.0, output=tmp_path / "out")
    solution = run_case(case, quiet=True)
    assert counts == {"projection": 1, "phases": 1, "facets": 1}
    assert solution.history["w1_limit"][-1] < solution.history["w1_limit"][0]


@pytest.mark.usefixtures("undrawn")
def test_the_solution_of_a_run_reads_its_folder(write_case: Write, tmp_path: Path) -> None:
    case = read_case(write_case(CIRCLE), until=1.0, output=tmp_path / "out")
    solution, result = run_case(case, quiet=True), read_result(tmp_path / "out")
    assert (solution.masses == result.masses).all()
    assert (solution.measure().masses == result.store.read(2)).all()
    assert result.case.attention.beta == case.attention.beta
    assert solution.steadiness is not None
    assert run_case(case, quiet=True).steadiness == solution.steadiness  # finished, and read
