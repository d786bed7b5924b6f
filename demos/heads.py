# %% [markdown]
# # Two heads that pull in different directions
#
# Two heads that pull in different directions, and where the tokens gather.
#
#     python demos/heads.py [--short]        (also under mpiexec)
#
# Each head alone would gather the tokens at ± its own axis, half of them at either end. Together,
# with no theorem to tell, they gather at the attracting fixed points of the sum of their
# velocities at zero temperature. A search finds these, and the share of the circle that each
# attracts. At a low temperature the mass of a uniform density is seen to divide in these
# shares. The figure is in results/demos/.

# %%
import argparse
from pathlib import Path

from mpi4py import MPI

import numpy as np
from matplotlib.figure import Figure

from meanfield_pde import Attention, Heads, Solution, circle_mesh, solve
from meanfield_pde.figures.density import save
from meanfield_pde.theory.fixed_points import FixedPoint, fixed_points

NEAR = 0.3  # radians
BETA = 200.0


def two_heads() -> Heads:
    """Each makes one axis attract, strongly for tokens near it and weakly for the others."""
    one = np.eye(2)
    first = Attention(np.diag([0.3, 1.0]), one, np.diag([1.0, 0.0]), BETA)
    second = Attention(np.diag([1.0, 0.3]), one, np.diag([0.0, 0.7]), BETA)
    return Heads([first, second])


def mass_near(solution: Solution, index: int, point: np.ndarray) -> float:
    """The mass within `NEAR` of a point."""
    inside = solution.points @ point > np.cos(NEAR)
    return float(solution.density_at(index)[inside] @ solution.volumes[inside])


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Two heads that pull in different directions.")
    parser.add_argument("--short", action="store_true", help="a coarse mesh")
    short = parser.parse_args(arguments).short

    heads = two_heads()
    attracting = [one for one in fixed_points(heads).points if one.attracts]
    mesh = circle_mesh(200 if short else 800)
    solution = solve(heads, mesh, until=8.0, save_every=0.25)
    last = len(solution.times) - 1
    numbers: dict[str, float] = {"attracting points": len(attracting)}
    for i, one in enumerate(attracting):
        numbers[f"point {i}: angle"] = float(np.degrees(np.arctan2(one.point[1], one.point[0])))
        numbers[f"point {i}: share predicted"] = one.share
        numbers[f"point {i}: mass near it"] = mass_near(solution, last, one.point)
    if MPI.COMM_WORLD.rank == 0:
        for name, number in numbers.items():
            print(f"{name:28} {number:.4f}")
        draw(solution, attracting)
    return numbers


def draw(solution: Solution, attracting: list[FixedPoint]) -> None:
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    angle = np.degrees(np.arctan2(solution.points[:, 1], solution.points[:, 0]))
    order = np.argsort(angle)
    for time in (0.0, 0.5, 1.0, 2.0):
        index = int(np.searchsorted(solution.times, time))
        left.semilogy(angle[order], solution.density_at(index)[order], label=f"t = {time:g}")
    for one in attracting:
        place = np.degrees(np.arctan2(one.point[1], one.point[0]))
        left.axvline(place, color="k", lw=0.8, ls=":")
    left.set_ylim(1e-3, None)
    left.set_xlabel("angle on the circle (degrees)")
    left.set_ylabel("density (mass per radian)")
    left.legend()
    for i, one in enumerate(attracting):
        found = [mass_near(solution, k, one.point) for k in range(len(solution.times))]
        (line,) = right.plot(solution.times, found, label=f"mass near point {i}")
        right.axhline(one.share, color=line.get_color(), ls="--", lw=1)
    right.set_xlabel("time t")
    right.set_ylabel("mass (dashed: share attracted)")
    right.set_ylim(0, 1)
    right.legend()
    Path("results/demos").mkdir(parents=True, exist_ok=True)
    save(figure, Path("results/demos/heads.png"))


if __name__ == "__main__":
    main()
