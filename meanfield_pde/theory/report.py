"""The description of a projection limit as plain JSON values, and as text."""

from __future__ import annotations

from typing import Any

# What `ProjectionLimit.describe` lists by name if there is a limit.
QUANTITIES = (
    "left",
    "projector",
    "contraction_rate",
    "escape_rate",
    "unsettled_rate",
    "tail_rate",
    "lifetime",
    "lifetime_per_beta",
    "log_beta_time",
)


def report(description: dict[str, Any]) -> str:
    """The description of `ProjectionLimit.describe`, a quantity a line."""
    rows = [
        ("eigenvalues of A = V B^T", _complex(description["eigenvalues"])),
        ("singular values of B", _vector(description["singular_values_of_b"])),
    ]
    if description["exists"]:
        rows += _limit_rows(description)
    else:
        rows.append(("limit measure", f"none: {description['reason']}"))
    terminal = description["terminal"]
    if terminal["exists"]:
        end = _span(terminal["basis"])
        if terminal["angle"] is not None and description["kind"] != "whole space":
            end += f", at most {_number(terminal['angle'])} rad from E"
        end += f" (eigenvalues {_complex(terminal['eigenvalues'])})"
    else:
        end = f"none: {terminal['reason']}"
    rows.append((f"terminal eigenspace, of {terminal['of']}", end))
    if description["note"]:
        rows.append(("note", description["note"]))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _limit_rows(description: dict[str, Any]) -> list[tuple[str, str]]:
    dimension, beta = description["dimension"], description["beta"]
    space, ambient = description["basis"], len(description["projector"])
    if dimension == ambient:
        return [
            ("limit measure", "the initial density itself: A is a multiple of I, nothing moves")
        ]
    if dimension == 1:
        shape = f"two atoms at ±{_vector(space[0])}"
        if description["atoms"] is not None:
            plus, minus = (_number(atom["mass"]) for atom in description["atoms"])
            shape += f", of mass {plus} at + and {minus} at -"
    elif dimension == 2 and ambient == 3:
        shape = f"a measure on the great circle {_span(space)}"
    else:
        shape = f"a measure on the sphere of {_span(space)}"
    lifetime = _number(description["lifetime"])
    if description["lifetime_per_beta"] == "inf":
        lifetime += " (B^T e is along e, or in E: clusters and tail agree)"
    else:
        lifetime += f" ({_number(description['lifetime_per_beta'])} beta, beta = {_number(beta)})"
    unlikely = description["no_metastable_phase"]
    rows = [
        ("limit measure", shape),
        ("separatrix", " and ".join(f"<{_vector(row)}, x> = 0" for row in description["left"])),
        ("projector Pi", "; ".join(_vector(row) for row in description["projector"])),
        ("spectral gap", _number(description["gap"])),
        ("contraction rate c", f"{_number(description['contraction_rate'])} per unit time"),
        ("escape rate c'", f"{_number(description['escape_rate'])} per unit time"),
        ("decay of unsettled mass", f"{_number(description['unsettled_rate'])} per unit time"),
        ("predicted decay rate of W1", f"{_number(description['decay_rate_w1'])} per unit time"),
        ("predicted decay rate of W2", f"{_number(description['decay_rate_w2'])} per unit time"),
        (
            "decay of the tail at B^T e",
            f"{_number(description['tail_rate'])} per unit time"
            if description["tail_rate"]
            else "none: clusters attend to themselves",
        ),
        (
            "concentrated after about",
            f"{_number(description['log_beta_time'])} (of order log beta)",
        ),
        ("metastable until about", lifetime),
    ]
    if unlikely:
        reason = f"no metastable phase is to be expected, because {unlikely}"
        rows.append(("metastable phase", reason))
    return rows


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _vector(values: list[float]) -> str:
    # Adding zero turns -0 into 0.
    return "(" + ", ".join(f"{round(value, 12) + 0.0:.6g}" for value in values) + ")"


def _span(vectors: list[list[float]]) -> str:
    return "span " + ", ".join(_vector(vector) for vector in vectors)


def _complex(values: list[list[float]]) -> str:
    return ", ".join(
        f"{re:.6g}" + (f" {'-' if im < 0 else '+'} {abs(im):.6g}i" if im else "")
        for re, im in values
    )
