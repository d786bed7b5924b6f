# %% [markdown]
# # The concentration theorem, measured
#
# The concentration theorem over a range of temperatures.
#
#     python demos/temperature_sweep.py [--short]        (also under mpiexec)
#
# The same as `meanfield-pde sweep demos/circle.toml --beta ...`: the time of least distance to
# the limit grows like log beta, and the least distance falls at least like
# sqrt(log(beta + 1)/beta). The bound of the theorem holds at every point with constants that are
# fitted. Tables and
# figures are in results/demos/sweep/; a sweep that was stopped goes on where it was.

# %%
import argparse
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

from meanfield_pde import read_case, sweep
from meanfield_pde.solver.settings import TimeCase

CASE = Path(__file__).with_name("circle.toml")


# %%
def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="The concentration theorem, measured")
    parser.add_argument("--short", action="store_true", help="a coarse mesh, and three beta")
    short = parser.parse_known_args(arguments)[0].short

    case = read_case(CASE)
    name = "sweep-short" if short else "sweep"
    if short:
        case = replace(case, mesh=replace(case.mesh, cells=160), adapt=None)
    case = replace(case, time=TimeCase(7.5 if short else 14.0, save_every=0.25))
    betas = (20, 40, 80) if short else (10, 20, 40, 80, 160, 320, 640, 1280)
    summary = sweep(case, betas, directory=Path("results/demos") / name, quiet=True)

    found = summary["w1"]
    numbers = {
        "t* = a + b log beta, b": found["least_time_fit_a_plus_b_log_beta"]["slope"],
        "R^2": found["least_time_fit_a_plus_b_log_beta"]["r_squared"],
        "power of sqrt(log(beta + 1)/beta)": found["least_distance_power_of_scale"]["slope"],
        "bound holds at (share of points)": found["envelope"]["holds_at"]
        / found["envelope"]["points"],
    }
    if MPI.COMM_WORLD.rank == 0:
        for what, number in numbers.items():
            print(f"{what:36} {number:.4f}")
    return numbers


# %%
if __name__ == "__main__":
    main()
