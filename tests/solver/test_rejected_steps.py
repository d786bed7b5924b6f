"""Steps that are too long are taken back and repeated, and leave no trace in the result."""

from __future__ import annotations

import numpy as np
import pytest

from meanfield_pde import Attention, circle_mesh, solve
from meanfield_pde.solver.schemes import SCHEMES
from meanfield_pde.solver.step_control import StepSettings

ATTENTION = Attention(np.eye(2), np.eye(2), np.array([[1.0, 0.2], [0.0, 0.3]]), 10.0)


def run_with_steps(scheme, part, *, log_masses=False):
    """A run whose steps aim at a part of the limit beyond which they are refused."""
    return solve(
        ATTENTION,
        circle_mesh(100),
        "1 + 0.5*x + 0.3*x*y",
        until=2.0,
        scheme=scheme,
        log_masses=log_masses,
        # The limit of the scheme is what counts.
        steps=StepSettings(courant=part * SCHEMES[scheme].positive, growth=1.0),
    )


@pytest.mark.parametrize("log_masses", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_step_that_is_rejected_leaves_no_trace(scheme, log_masses):
    """At the limit steps fail where the outflow grows within them; at 3 times it, every one does.

    Both agree with steps a tenth as long to the error of their time steps, of second order.
    """
    reference = run_with_steps(scheme, 0.05, log_masses=log_masses)
    assert reference.rejected == 0
    errors = {}
    for part in (0.5, 0.999, 3.0):
        found = run_with_steps(scheme, part, log_masses=log_masses)
        assert (found.rejected > 0) == (part > 0.5)
        if part == 3.0:
            assert found.rejected >= found.steps - 2  # each but those that a saved time cuts short
        assert found.times.tolist() == reference.times.tolist()
        assert found.masses.min() >= 0
        assert np.abs(found.history["mass"] - 1).max() <= 1e-13
        errors[part] = np.abs(found.masses[-1] - reference.masses[-1]).sum()
    assert errors[0.5] > 0
    assert max(errors[0.999], errors[3.0]) < 6 * errors[0.5]
