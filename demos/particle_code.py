# %% [markdown]
# # A particle code of your own, verified
#
# For whoever has a particle code. The loop below is what a transformer does with its
# layer-normalised tokens, written as one would with torch: scores, softmax, values, a residual
# step, normalisation. Is it right? The density is the limit of many tokens, so its tokens have to
# be a sample of the density at every time.
#
# With torch, `x.detach().cpu().double().numpy()` gives the positions to save; with JAX,
# `np.asarray(x, dtype=float)`.

# %%
import os
import sys

from mpi4py import MPI

import numpy as np

from meanfield_pde import Attention, TokenCloud, circle_mesh, compare_tokens, sample_tokens, solve

SHORT = "--short" in sys.argv or "MEANFIELD_PDE_SHORT" in os.environ
FORMULA = "1 + 0.5*x + 0.3*x*y"
STEP, STEPS, EVERY = 0.01, 200, 50
attention = Attention(
    query=np.array([[1.0, 0.4], [-0.3, 0.8]]),
    key=np.eye(2),
    value=np.array([[1.0, 0.3], [-0.2, 0.4]]),
    beta=4.0,
)


# %%
def layers(x: np.ndarray, value: np.ndarray) -> TokenCloud:
    """The forward pass, layer after layer; V is an argument so that it can be got wrong."""
    times, tokens = [], []
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            times.append(step * STEP)
            tokens.append(x.copy())
        scores = attention.beta * (x @ attention.query.T) @ (x @ attention.key.T).T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        x = x + STEP * weights @ x @ value.T
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    return TokenCloud(np.array(times), np.array(tokens))


# %% [markdown]
# The density at the same times, and tokens drawn from its start.

# %%
solution = solve(
    attention,
    circle_mesh(200 if SHORT else 800),
    FORMULA,
    until=STEP * STEPS,
    save_every=STEP * EVERY,
)
start = sample_tokens(FORMULA, 60 if SHORT else 1000, seed=1, dimension=2)

# %% [markdown]
# The code as it stands, and with the transpose of V in the place of V, a mistake that no error
# message ever tells.

# %%
right = compare_tokens(solution, layers(start, attention.value))
wrong = compare_tokens(solution, layers(start, attention.value.T))
if MPI.COMM_WORLD.rank == 0:
    print("as it stands: ", right.verdict)
    print("V transposed: ", wrong.verdict)
numbers = {"right agrees": float(right.agrees), "wrong agrees": float(wrong.agrees)}
