"""The same results on 1, 2 and 3 ranks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from meanfield_pde import InputError
from meanfield_pde.parallel import on_root, raise_first

from .conftest import CIRCLE, SPHERE, Command, Write

# All cases in one start of the program, which is most of the time.
RUN_ALL = """
import sys
from meanfield_pde.cli import main
folder, *cases = sys.argv[1:]
for case in cases:
    try:
        main(["run", case + ".toml", "--quiet", "--output", folder + "/" + case])
    except SystemExit as ended:
        if ended.code:
            raise
"""
COLD = ("40.0", '"inf"')


def test_results_do_not_depend_on_ranks(
    command: Command, write_case: Write, tmp_path: Path
) -> None:
    """Geometry bit for bit, masses at t = 5 within 1e-10 in every cell above 1e-200.

    Observed: 6e-15 at worst after 70 steps, and often equality, to the last bit.
    """
    cases = {
        "circle": write_case(CIRCLE, name="circle.toml"),
        "circle-cold": write_case(CIRCLE, COLD, name="circle-cold.toml"),
        "sphere": write_case(SPHERE, name="sphere.toml"),
        "sphere-cold": write_case(SPHERE, COLD, name="sphere-cold.toml"),
    }
    script = tmp_path / "run_all.py"
    script.write_text(RUN_ALL, encoding="utf-8")
    for ranks in (1, 2, 3):
        ended = command(f"ranks{ranks}", *cases, ranks=ranks, script=script)
        assert (ended.returncode, ended.stderr) == (0, "")
    for case in cases:
        data = []
        for ranks in (1, 2, 3):
            with h5py.File(tmp_path / f"ranks{ranks}" / case / "density.h5") as file:
                data.append({name: file[name][()] for name in file})
        one = data[0]
        assert one["times"][-1] == 5.0
        for other in data[1:]:
            for name in ("points", "volumes", "spread", "vertices", "times"):
                np.testing.assert_array_equal(other[name], one[name])
            compared = one["masses"] > 1e-200
            error = np.abs(other["masses"] / one["masses"] - 1)[compared]
            assert error.max() < 1e-12, case


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
    raise_first(two_ranks(), None)
    with pytest.raises(InputError, match="of another rank"):
        raise_first(two_ranks(InputError("of another rank")), None)
