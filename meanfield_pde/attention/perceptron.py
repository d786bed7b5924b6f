"""A perceptron: the drift that acts on each token by itself, between attentions.

    g(x) = W_out a(W_in x + b_in) + b_out,     v(x) = P_x g(x)

with the activation a taken entry by entry: relu, gelu (u Phi(u), Phi the normal distribution
function) or tanh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtr

from meanfield_pde.attention.term import Sources, TermBeside, generators_of
from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import (
    choice,
    magnitudes,
    matrix_rows,
    number_list,
    numbers,
    points_of,
    real,
)

# The activation, and its Lipschitz constant: that of u Phi(u) is Phi + u phi at u = sqrt 2.
ACTIVATIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "relu": (lambda u: np.maximum(u, 0.0), 1.0),
    "gelu": (lambda u: u * ndtr(u), 1.1289041),
    "tanh": (np.tanh, 1.0),
}
_AXES = {"weights_in": 2, "bias_in": 1, "weights_out": 2, "bias_out": 1}


@dataclass(frozen=True, eq=False)
class Perceptron(TermBeside):
    """The perceptron of a layer.

    Attributes:
        weights_in: W_in, k x d.
        bias_in: b_in, k numbers; zero if left out.
        weights_out: W_out, d x k.
        bias_out: b_out, d numbers; zero if left out.
        activation: "relu", "gelu" or "tanh".
    """

    section: ClassVar[str] = "perceptron"
    keys: ClassVar[tuple[str, ...]] = (*_AXES, "activation")
    noun: ClassVar[str] = "a perceptron"

    weights_in: Any
    weights_out: Any
    bias_in: Any = None
    bias_out: Any = None
    activation: str = "relu"

    def __post_init__(self) -> None:
        choice(self.activation, "perceptron.activation", ACTIVATIONS)
        for name in ("weights_in", "weights_out"):
            object.__setattr__(self, name, _array(getattr(self, name), name))
        width, d = self.weights_in.shape
        if self.weights_out.shape != (d, width):
            rows, columns = self.weights_out.shape
            raise InputError(
                f"perceptron.weights_out must be d x k where weights_in is k x d, here {d} x "
                f"{width}, got {rows} x {columns}"
            )
        for name, length in (("bias_in", width), ("bias_out", d)):
            given = getattr(self, name)
            bias = np.zeros(length) if given is None else _array(given, name)
            if bias.shape != (length,):
                raise InputError(f"perceptron.{name} must be {length} numbers, got {len(bias)}")
            object.__setattr__(self, name, bias)

    @property
    def dimension(self) -> int:
        """Dimension d of the space; tokens live on the sphere S^(d-1)."""
        return int(self.weights_in.shape[1])

    @property
    def speed_bound(self) -> float:
        """A bound on |g|, and on how fast it changes, over the unit ball."""
        slope = ACTIVATIONS[self.activation][1] * float(np.linalg.norm(self.weights_out, 2))
        length = np.linalg.norm(self.weights_in, 2) + np.linalg.norm(self.bias_in)
        return float(slope * length + np.linalg.norm(self.bias_out))

    def push(
        self, x: np.ndarray, sources: Sources | None = None, *, tolerance: float = 1e-12
    ) -> np.ndarray:
        """Return g at each row of x, N x d."""
        x = points_of(x, self.dimension, "x", clouds=True)
        activation = ACTIVATIONS[self.activation][0]
        return activation(x @ self.weights_in.T + self.bias_in) @ self.weights_out.T + self.bias_out

    def commutators(self, generators: np.ndarray) -> list[np.ndarray]:
        """Rotations that change neither what goes in nor what comes out commute with it."""
        generators = generators_of(generators, self.dimension)
        out = np.column_stack([self.weights_out, self.bias_out])
        matrices = [
            matrix / max(float(np.abs(matrix).max()), 1e-300) for matrix in (self.weights_in, out)
        ]
        return [matrices[0] @ generators, generators @ matrices[1]]

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Perceptron:
        """The perceptron of a section [perceptron]."""
        for key in ("weights_in", "weights_out"):
            if key not in table:
                raise InputError(f"perceptron.{key} is missing")
            matrix_rows(table[key], f"perceptron.{key}")
        for key in ("bias_in", "bias_out"):
            for i, entry in enumerate(number_list(table.get(key, []), f"perceptron.{key}")):
                real(entry, f"perceptron.{key}[{i}]", "a finite number")
        return cls(**table)

    def table(self) -> dict[str, Any]:
        """The section [perceptron]."""
        arrays = {name: getattr(self, name).tolist() for name in _AXES}
        return arrays | {"activation": self.activation}


def _array(given: Any, name: str) -> np.ndarray:
    array = numbers(given, f"perceptron.{name}")
    if array.ndim != _AXES[name] or not array.size or not np.isfinite(array).all():
        shape = "a matrix" if _AXES[name] == 2 else "a list"
        raise InputError(f"perceptron.{name} must be {shape} of finite numbers")
    magnitudes(array, f"perceptron.{name}")
    array.setflags(write=False)
    return array
