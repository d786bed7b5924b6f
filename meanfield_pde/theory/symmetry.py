"""Which rotations commute with the equation, and whether it has a free energy.

    velocity of the turned density at R x  =  R velocity of the density at x,      R = exp(t Omega)

holds for all t if Omega, a skew matrix, commutes with V and with B = Q^T K of every head, and does
not reach the perceptron: W_in Omega = 0, Omega W_out = 0, Omega b_out = 0. A state of such an
equation, turned, is one again, and a perturbation that only turns it (a Goldstone mode) neither
grows nor decays.

Without the denominator and with V = B = B^T the equation with noise is the gradient flow of

    free energy = sigma ∫ rho log rho - (1 / 2 beta) ∬ exp(beta <x, B y>) dmu dmu.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.attention.heads import Layer

# Matrices that are equal but for the rounding of a case file's decimals, of which there may be ten,
# relative to the largest.
_EQUAL = 1e-9


def rotation_generators(d: int) -> np.ndarray:
    """Generators of the rotations in the planes of two axes, d (d - 1) / 2 skew matrices."""
    pairs = np.transpose(np.triu_indices(d, 1))
    generators = np.zeros((len(pairs), d, d))
    for generator, (i, j) in zip(generators, pairs, strict=True):
        generator[i, j], generator[j, i] = -1.0, 1.0
    return generators


def commuting_rotations(layer: Layer) -> np.ndarray:
    """Generators Omega (k, d, d) of the rotations that commute with a layer; k = 0 for none."""
    generators = rotation_generators(layer.dimension)
    conditions = []  # each a matrix for each generator, linear in it, that has to vanish
    for head in layer.heads:
        if np.any(head.value):
            conditions.append(_commutators(generators, head.value))
            if head.beta > 0:  # at beta = 0 scores do not matter
                conditions.append(_commutators(generators, head.B))
    for term in layer.beside:
        conditions += term.commutators(generators)
    if not conditions:
        return generators
    rows = np.concatenate([one.reshape(len(generators), -1).T for one in conditions])
    _, singular, right = np.linalg.svd(rows)
    singular = np.append(singular, np.zeros(len(generators) - len(singular)))
    return np.asarray(np.tensordot(right[singular <= _EQUAL], generators, axes=1))


def without_free_energy(layer: Layer) -> str:
    """Why a layer with noise is not the gradient flow of a free energy; "" if it is."""
    if layer.beside:
        return f"{layer.beside[0].noun} acts beside the attention"
    for head in layer.heads:
        if head.beta == 0:
            return "the energy is not defined at attention.beta = 0"
        if head.normalise:
            return "the softmax has its denominator (attention.normalise = true)"
        size = _EQUAL * float(np.abs(head.B).max())
        if np.abs(head.B - head.B.T).max() > size:
            return "query^T key is not symmetric"
        if np.abs(head.value - head.B).max() > size:
            return "value is not query^T key"
    return ""


def _commutators(generators: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    scaled = _scaled(matrix)
    return np.asarray(generators @ scaled - scaled @ generators)


def _scaled(matrix: np.ndarray) -> np.ndarray:
    """The matrix over its largest entry."""
    return matrix / max(float(np.abs(matrix).max()), 1e-300)
