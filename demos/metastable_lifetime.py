# %% [markdown]
# # Metastable lifetimes
#
# How long the metastable state lives: linearly in beta for the density, like log N for N tokens.
#
#     python demos/metastable_lifetime.py [--short]        (also under mpiexec)
#
# The same as `meanfield-pde lifetime demos/circle.toml --beta ... --tokens ...`. A density has
# tails down to 1e-100 that hold the clusters where they are; N tokens have none below 1/N, and
# leave early. Table and figure are in results/demos/lifetime/.

# %%
import argparse
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

from meanfield_pde import lifetime, read_case

CASE = Path(__file__).with_name("circle.toml")


# %%
def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Metastable lifetimes")
    parser.add_argument("--short", action="store_true", help="a coarse mesh, and few tokens")
    short = parser.parse_known_args(arguments)[0].short

    case = read_case(CASE)
    if short:
        case = replace(case, mesh=replace(case.mesh, cells=160), adapt=None)
    name = "lifetime-short" if short else "lifetime"
    summary = lifetime(
        case,
        (80, 160) if short else (80, 160, 320, 640),
        (50, 400) if short else (100, 1000, 10_000),
        seeds=2 if short else 3,
        directory=Path("results/demos") / name,
    )
    numbers = {
        "density: slope in beta over predicted": summary["density"]["slope_over_predicted"],
        "tokens: slope in log N over 1/c'": summary["tokens"]["slope_over_predicted"],
        "density: longest lifetime": max(t for _, t in summary["density"]["lifetimes"]),
        "tokens: longest mean lifetime": max(one["mean"] for one in summary["tokens"]["means"]),
    }
    if MPI.COMM_WORLD.rank == 0:
        for what, number in numbers.items():
            print(f"{what:40} {number:.4f}")
    return numbers


# %%
if __name__ == "__main__":
    main()
