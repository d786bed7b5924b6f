"""Independent solutions to test against, written from the equations and not from the package."""

from __future__ import annotations

import math

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from scipy.special import ive, spherical_in


def velocity(x, masses, query, key, value, beta):
    """P_x V m(x), m the softmax mean of the weighted points x, straight from the definition."""
    exponent = beta * (x @ query.T) @ (x @ key.T).T + np.log(masses)
    weight = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    push = (weight @ x / weight.sum(axis=1, keepdims=True)) @ value.T
    return push - (push * x).sum(axis=1, keepdims=True) * x


def characteristics(x, masses, query, key, value, beta, until, steps):
    """Points that follow the flow by the classical Runge-Kutta method: quadrature nodes of mu_t."""
    dt = until / steps

    def rate(y):
        return velocity(y, masses, query, key, value, beta)

    for _ in range(steps):
        a = rate(x)
        b = rate(x + dt / 2 * a)
        c = rate(x + dt / 2 * b)
        d = rate(x + dt * c)
        x = x + dt / 6 * (a + 2 * b + 2 * c + d)
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x


def circle_nodes(count):
    """Equally spaced nodes and weights of the trapezoidal rule, exact for smooth functions."""
    angle = 2 * np.pi * np.arange(count) / count
    return np.column_stack([np.cos(angle), np.sin(angle)]), np.full(count, 2 * np.pi / count)


def sphere_nodes(count):
    """Gauss-Legendre in z times the trapezoidal rule in longitude: count x 2 count nodes."""
    z, weight = np.polynomial.legendre.leggauss(count)
    angle = np.pi * np.arange(2 * count) / count
    radius = np.sqrt(1 - z**2)
    points = np.stack(
        [
            np.outer(radius, np.cos(angle)),
            np.outer(radius, np.sin(angle)),
            np.outer(z, np.ones_like(angle)),
        ],
        axis=-1,
    )
    return points.reshape(-1, 3), np.repeat(weight * np.pi / count, 2 * count)


def moments(x, masses):
    """First moments and the upper triangle of the second moments."""
    second = np.einsum("n,ni,nj->ij", masses, x, x)
    return np.concatenate([masses @ x, second[np.triu_indices(x.shape[1])]])


def softmax_sums(scores, points, log_masses):
    """Softmax means and log Z from the definition, in extended precision."""
    w, y, log_m = (array.astype(np.longdouble) for array in (scores, points, log_masses))
    exponent = w @ y.T + log_m
    largest = exponent.max(axis=1)
    weight = np.exp(exponent - largest[:, None])
    total = weight.sum(axis=1)
    return weight @ y / total[:, None], largest + np.log(total)


def axisymmetric_state(beta, sigma, start, nodes=120, d=3):
    """Order and free energy of a stationary state, Q = K = V = I, without the denominator.

    v is the gradient of phi(x) = (1 / beta) ∫ exp(beta <x, y>) rho(y) dy, so rho = exp(phi / sigma)
    / Z. On the circle, d = 2, by the trapezoidal rule. On the sphere, with rho = rho(cos theta),
    the integral over the longitude is one of Bessel's:

        phi(z) = (2 pi / beta) ∫ rho(w) exp(beta z w) I_0(beta sqrt((1 - z^2)(1 - w^2))) dw,

    by the rule of Gauss and Legendre in w. The kernel being positive definite, free energies
    sigma ∫ rho log rho - 1/2 ∫ phi rho fall in each step of the fixed-point iteration from
    rho = exp(start z) / Z.
    """
    if d == 2:
        points, weight = circle_nodes(nodes)
        z, kernel = points[:, 0], weight * np.exp(beta * points @ points.T) / beta
    else:
        z, weight = np.polynomial.legendre.leggauss(nodes)
        radius = np.sqrt(1 - z**2)
        across = beta * np.outer(radius, radius)
        weight = 2 * np.pi * weight
        kernel = weight * np.exp(beta * np.outer(z, z) + across) * ive(0, across) / beta
    log_rho = start * z
    for _ in range(2000):
        before = log_rho
        rho = np.exp(log_rho - log_rho.max())
        rho /= weight @ rho
        phi = kernel @ rho
        log_rho = phi / sigma
        if np.abs(log_rho - before).max() < 1e-12:
            break
    else:
        raise AssertionError("the iteration has not converged")
    return weight @ (z * rho), weight @ (rho * (sigma * np.log(rho) - phi / 2))


def free_energies_cross(beta, low, high, start, d):
    """Sigma between two others at which ordered and uniform states have one free energy."""

    def above(sigma):
        ordered, uniform = (axisymmetric_state(beta, sigma, one, d=d)[1] for one in (start, 0.0))
        return ordered - uniform

    return brentq(above, low, high, xtol=1e-9)


def repelled_density(matrix, beta, angles, degrees=6):
    """2 pi rho with ∫ exp(beta <x, D y>) dmu(y) constant in x on the circle, D diagonal.

    By cosines of even degree, whose coefficients fall geometrically, and the trapezoidal rule.
    """
    points, weight = circle_nodes(128)
    kernel = weight * np.exp(beta * points @ matrix @ points.T)
    modes = np.cos(2 * np.outer(np.arange(degrees), 2 * np.pi * np.arange(128) / 128))
    right = np.eye(degrees)[0]
    found = np.linalg.solve(modes @ kernel @ modes.T, right)
    return np.cos(2 * np.outer(angles, np.arange(degrees))) @ found / found[0]


def harmonic(degree, points):
    """cos(k theta) on the circle; on the sphere a Legendre polynomial about a general axis."""
    if points.shape[-1] == 2:
        return np.cos(degree * np.arctan2(points[..., 1], points[..., 0]))
    axis = np.array([0.48, 0.6, 0.64])
    return np.polynomial.legendre.Legendre.basis(degree)(points @ axis)


def eigenvalue(d, degree):
    """Of minus the Laplace-Beltrami operator, for harmonics of this degree."""
    return degree**2 if d == 2 else degree * (degree + 1)


def growth_rate(d, degree, beta):
    """Rate at which a harmonic grows about the uniform density for Q = K = V = I."""
    if d == 2:
        return degree**2 * ive(degree, beta) / (beta * ive(0, beta))
    return degree * (degree + 1) * spherical_in(degree, beta) / (beta * spherical_in(0, beta))


def conformal_kernel(d, along, w):
    """((1 - w^2) / |x - w e|^2)^(d-1) over the area of the sphere, for <x, e> = along."""
    return ((1 - w**2) / (1 - 2 * w * along + w**2)) ** (d - 1) / (2 * (d - 1) * math.pi)


def synchronised_means(d, start, times):
    """|∫ x dmu| of a conformal kernel for beta = 0, V = I: it stays one, w' = (1 - w^2) m(w) / 2.

    On the circle m = w (Kuramoto's model); on the sphere it is Lohe's (Lipton, Mirollo, Strogatz,
    arXiv 1907.07150).
    """
    nodes, weights = np.polynomial.legendre.leggauss(400)

    def mean(w):
        if d == 2:
            return w
        return 2 * math.pi * float(weights @ (nodes * conformal_kernel(3, nodes, w)))

    found = solve_ivp(
        lambda t, w: (1 - w**2) * mean(w[0]) / 2,
        (0, times[-1]),
        [start],
        t_eval=times,
        rtol=1e-11,
    )
    return np.array([mean(w) for w in found.y[0]])
