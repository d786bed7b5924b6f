"""The lines of a long run: the time to go, without that of the first step, which compiles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from meanfield_pde.results import progress


def test_the_time_to_go_leaves_out_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, said = 0.0, []
    monkeypatch.setattr(progress.LOG, "info", lambda text, *parts: said.append(text % parts))
    monkeypatch.setattr(progress.clock, "monotonic", lambda: now)
    evolution = SimpleNamespace(time=0.0, step=0, last_dt=0.5, mass=1.0)
    simulation: Any = SimpleNamespace(evolution=evolution, until=10.0)
    lines = progress.ProgressLines()
    lines.started(simulation)
    for seconds, time in ((30.0, 0.5), (35.0, 1.0), (45.0, 2.0)):
        now, evolution.time = seconds, time
        lines.stepped(simulation)
    assert len(said) == 2  # at most one in ten seconds
    assert said[0].endswith("30 s")
    assert said[1].endswith("45 s, about 80 s to go")
