"""The gallery of the literature: short forms, full forms (slow), and its page against results."""

from __future__ import annotations

import importlib
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib.image import imread

GALLERY = Path(__file__).parents[1] / "demos/literature"
SCRIPTS = sorted(path.stem for path in GALLERY.glob("*.py") if path.stem != "gallery")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Imports a module of the gallery, to be run in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEANFIELD_PDE_THREADS", "1")
    monkeypatch.syspath_prepend(str(GALLERY))
    return importlib.import_module


def assert_published(rows: list[Any]) -> None:
    """Each number agrees, or is said to be wrong where interval and independent number exclude it.

    The interval holds the independent number in any case.
    """
    assert rows
    for row in rows:
        assert row.agrees != bool(row.wrong), row
        assert math.isfinite(row.low), row
        assert row.consistent, row


@pytest.mark.parametrize("name", SCRIPTS)
def test_short_form(name: str, load: Any, tmp_path: Path) -> None:
    assert_published(load(name).main(["--short"]))
    assert imread(tmp_path / f"results/literature/{name}.png").std() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_full_form(name: str, load: Any) -> None:
    """The rows of the page, to their intervals."""
    rows = load(name).main([])
    assert_published(rows)
    recorded = load("gallery").recorded()[name]
    assert [row.result for row in rows] == [row.result for row in recorded]
    for row, before in zip(rows, recorded, strict=True):
        assert row.published == before.published
        assert before.low - row.unit <= row.value <= before.high + row.unit, row


@pytest.fixture
def gallery(load: Any) -> ModuleType:
    return load("gallery")


def test_results_have_what_was_published(gallery: ModuleType) -> None:
    rows = [row for one in gallery.recorded().values() for row in one]
    assert sorted(gallery.recorded()) == sorted(gallery.ORDER) == SCRIPTS
    assert_published(rows)
    known = [row for row in rows if row.agrees and row.published != gallery.NONE]
    assert len(known) >= 20
    assert len({row.source for row in known}) >= 8


def test_the_page_is_that_of_the_results(gallery: ModuleType) -> None:
    page = gallery.PAGE.read_text(encoding="utf-8")
    table = page.split(gallery.BEGIN)[1].split(gallery.END)[0]
    assert table.strip() == gallery.table().strip()
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page) if "://" not in link]
    assert {f"{name}.png" for name in SCRIPTS} < set(links)
    for link in links:
        assert (GALLERY / link).is_file(), link


def test_rows_that_do_not_agree_are_seen(gallery: ModuleType) -> None:
    right = gallery.Row("", "", "2.447", 2.4469, 2.4468, 2.4470, independent=2.44692)
    assert_published([right])
    for published, independent in (("2.450", 2.44692), ("2.447", 2.45), ("≥ 3", 2.44692)):
        row = gallery.Row("", "", published, 2.4469, 2.4468, 2.4470, independent=independent)
        with pytest.raises(AssertionError):
            assert_published([row])
    missing = gallery.Row("", "", "2.447", 2.4469, math.nan, math.nan)
    with pytest.raises(AssertionError):
        assert_published([missing])
    values = [2 + 0.1 / 4**number for number in range(3)]
    (found,) = gallery.refined(lambda fine: [values[fine.bit_length() - 1]])
    assert found["low"] < 2 < found["high"]
