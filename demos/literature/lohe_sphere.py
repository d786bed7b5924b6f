# %% [markdown]
# # Oscillators on the sphere
#
# At beta = 0 and V = I all tokens attend to their mean, x' = P_x ∫ y dmu: the model of Lohe on the
# sphere, of which Lipton, Mirollo and Strogatz (arXiv 1907.07150) show that the flow is one of
# Moebius maps, so that (1 - |w|^2)^2 / (4 pi |x - w|^4) stays of this form. Then
#
#     w' = (1 - w^2) m(w) / 2,
#     m = (1 + w^2) / (2 w) - (1 - w^2)^2 log((1 + w) / (1 - w)) / (4 w^2)
#
#     python demos/literature/lohe_sphere.py [--short]        (also under mpiexec)

# %%
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.integrate import solve_ivp

sys.path.insert(0, str(Path(__file__).parent))
from gallery import Row, evolved, identity, run

from meanfield_pde import ExpressionDensity, Solution

PUBLISHED = dict(
    zip(
        (0.0, 1.0, 2.0, 3.0, 4.0, 6.0),
        ("0.264521", "0.474750", "0.734727", "0.915267", "0.980904", "0.999378"),
        strict=True,
    )
)
START = 0.2


# %%
def mean(w: np.ndarray) -> np.ndarray:
    """|∫ x dmu| of the kernel at w."""
    return (1 + w**2) / (2 * w) - (1 - w**2) ** 2 * np.log((1 + w) / (1 - w)) / (4 * w**2)


def exact(times: np.ndarray) -> np.ndarray:
    """The mean by the equation for w."""
    found = solve_ivp(
        lambda t, w: (1 - w**2) * mean(w) / 2,
        (0, times[-1]),
        [START],
        t_eval=times,
        rtol=1e-12,
        atol=1e-14,
        method="DOP853",
    )
    return mean(found.y[0])


def means(solution: Solution) -> np.ndarray:
    return solution.history["mean_norm"]


# %%
def compute(short: bool) -> tuple[list[Row], dict[float, dict[str, float]]]:
    initial = ExpressionDensity(f"1 / (x**2 + y**2 + (z - {START})**2)**2")
    times = [0.0, 1.0, 2.0] if short else list(PUBLISHED)
    cells = 80 if short else 1280
    early = [time for time in times if time <= 3]
    found = evolved(identity(0, 3), cells, initial, means, until=early[-1], save_at=early[1:-1])
    if not short:  # the cluster is narrower than those cells later
        late = {"until": times[-1], "save_at": times[1:-1], "adapt": 2e-3}
        found += evolved(identity(0, 3), cells, initial, means, **late)[len(early) :]
    independent = exact(np.array(times))
    rows = [
        Row(
            f"mean of oscillators on the sphere, t = {time:g}",
            "1907.07150",
            PUBLISHED[time],
            **one,
            independent=float(number),
            chosen="w = 0.2 at the start, evaluated by their equation",
        )
        for time, one, number in zip(times, found, independent, strict=True)
    ]
    return rows, dict(zip(times, found, strict=True))


def draw(figure: Figure, found: dict[float, dict[str, float]]) -> None:
    axes = figure.subplots()
    line = np.linspace(0, max(found), 200)
    axes.plot(line, exact(line), color="0.4", label="their equation for w")
    axes.plot(
        list(found), [one["value"] for one in found.values()], "o", color="#D55E00", label="density"
    )
    axes.set_xlabel("time t")
    axes.set_ylabel("mean |∫ x dµ|")
    axes.set_ylim(0, 1.03)
    axes.legend()


def main(arguments: list[str] | None = None) -> list[Row]:
    return run(__file__, compute, draw, arguments)


if __name__ == "__main__":
    main()
