"""Measured tokens: drifts are flagged where they are planted, and clean ones are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meanfield_pde.attention.head import Attention
from meanfield_pde.audit.heads import HeadAudit, audit_heads
from meanfield_pde.audit.layers import TokenAudit, audit_layers
from meanfield_pde.audit.measured import measured, read_layers
from meanfield_pde.audit.permutations import two_sample
from meanfield_pde.audit.weights import Encoder, HeadWeights
from meanfield_pde.errors import InputError
from meanfield_pde.tokens.code import simulate_tokens

D, COUNT, LAYERS, PLANTED = 16, 80, 9, 4


def attention(generator: np.random.Generator) -> Attention:
    query, key = (np.eye(D) + 0.15 * generator.standard_normal((D, D)) for _ in range(2))
    value = 0.3 * np.eye(D) + 0.025 * generator.standard_normal((D, D))
    value[0, 0] += 0.5
    return Attention(query, key, value, 4.0)


def start(generator: np.random.Generator) -> np.ndarray:
    x = generator.standard_normal((COUNT, D))
    x[:, 0] += 1
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def run(x: np.ndarray, head: Attention, steps: int, step: float | None) -> np.ndarray:
    return simulate_tokens(
        x, head, float(steps), save_at=range(steps + 1), step=step, tolerance=1e-5
    ).tokens


def encoder_of(head: Attention) -> tuple[Encoder, list[HeadAudit]]:
    weights = HeadWeights(head.query, head.key, head.value, None, head.beta)
    encoder = Encoder(Path("w.npz"), "npz", 1, 1, D, D, "beta given", read=lambda _: [weights])
    return encoder, list(audit_heads(encoder))


def trial(seed: int, *, rotated: bool) -> tuple[TokenAudit, TokenAudit]:
    """A clean run, and one with a drift; each with the clean run of another sample as baseline.

    The drift: from layer PLANTED on, V is another one, or all later clouds are rotated.
    """
    generator = np.random.default_rng(seed)
    head = attention(generator)
    step = 1.0 if seed % 2 else None
    clean, baseline = (run(start(generator), head, LAYERS - 1, step) for _ in range(2))
    turn = np.linalg.qr(np.eye(D) + 0.3 * generator.standard_normal((D, D)))[0]
    if rotated:
        drift = clean.copy()
        drift[PLANTED:] = drift[PLANTED:] @ turn
    else:
        other = Attention(head.query, head.key, head.value @ turn, head.beta)
        tail = run(clean[PLANTED - 1], other, LAYERS - PLANTED, step)
        drift = np.concatenate([clean[: PLANTED - 1], tail])
    given = encoder_of(head)
    reference = measured(baseline)
    return (
        audit_layers(*given, measured(clean), baseline=reference),
        audit_layers(*given, measured(3 * drift), baseline=reference),
    )


def check(seed: int) -> None:
    clean, drift = trial(seed, rotated=seed % 4 < 2)
    assert not any(layer.flagged or layer.drifted for layer in clean.layers)
    assert next(layer.layer for layer in drift.layers if layer.flagged) == PLANTED
    assert next(layer.layer for layer in drift.layers if layer.drifted) == PLANTED


@pytest.mark.parametrize("seed", [0, 3])
def test_a_drift_is_flagged_where_it_is_planted(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 24))
def test_a_drift_is_flagged_in_20_of_20_seeds_and_no_clean_run_is(seed: int) -> None:
    check(seed)


def test_the_planted_stop_depth_and_the_rate() -> None:
    """Tokens that contract to a line at the rate c, and stand still from layer 6 on."""
    head = Attention(np.eye(D), np.eye(D), np.diag([0.5, *[0.1] * (D - 1)]), 4.0)
    encoder, heads = encoder_of(head)
    x = start(np.random.default_rng(0))
    x[:, 0] = 1 + np.abs(x[:, 0])
    x[:, 1:] *= 0.5
    clouds = []
    for layer in range(9):
        y = x.copy()
        y[:, 1:] *= np.exp(-0.4 * min(layer, 6))
        clouds.append(y)
    found = audit_layers(encoder, heads, measured(np.array(clouds)))
    assert found.stop_depth == 6
    assert found.layers[6].change == pytest.approx((0, 0, 0), abs=1e-6)
    rate = found.layers[5].rate
    assert rate is not None
    assert rate[1] <= rate[0] <= rate[2]
    assert rate[0] == pytest.approx(0.4, rel=0.05)
    assert found.layers[5].predicted_rate == pytest.approx(0.4, rel=1e-9)
    line = np.abs(clouds[0][:, 0] / np.linalg.norm(clouds[0], axis=1))
    assert found.layers[0].distance == pytest.approx(np.arccos(line).mean(), abs=1e-9)


def test_a_lifetime_is_taken_over_the_longest_lived_heads_of_the_layers_that_use_it_up() -> None:
    """Of 4, 2 and 1 layers: three quarters are gone after two, and a quarter of the third."""
    head = Attention(np.eye(D), np.eye(D), np.diag([0.5, *[0.1] * (D - 1)]), 4.0)
    weights = HeadWeights(head.query, head.key, head.value, None, head.beta)
    encoder = Encoder(Path("w.npz"), "npz", 4, 2, D, D, "beta given", read=lambda _: [weights] * 2)
    lives = ((4.0, 3.0), (0.5, 2.0), (1.0, None), (9.0, 9.0))
    heads = [
        replace(
            one,
            limit=(life := lives[one.layer][one.head]) is not None,
            lifetime_per_beta=None if life is None else life / one.beta,
        )
        for one in audit_heads(encoder)
    ]
    clouds = run(start(np.random.default_rng(0)), head, 4, None)
    found = audit_layers(encoder, heads, measured(clouds))
    assert found.lifetime.depth == pytest.approx(2.25)
    cut = audit_layers(encoder, heads, measured(clouds[:4]))
    said = "the tokens that leave the last layer are not given; its step is not judged"
    assert [said in one.notes for one in (found, cut)] == [len(clouds) == 4, True]
    assert found.lifetime.heads == ((0, 0), (1, 1), (2, 0))


@pytest.mark.slow
def test_the_permutation_test_keeps_its_level() -> None:
    """Of 60 pairs of clouds of one law, p is below 0.2 in about a fifth; sequences count as one."""
    generator = np.random.default_rng(0)
    below = 0
    for _ in range(60):
        # Ten sequences of five equal tokens each: 50 tokens, but only ten draws.
        clouds = np.repeat(generator.standard_normal((2, 2, 10, 3)), 5, axis=2)
        units = np.repeat(np.arange(10), 5)
        p = two_sample(list(clouds[0]), list(clouds[1]), (units, units), paired=False)
        below += int(p.min() <= 0.2)
    assert 3 <= below <= 22  # binomial of 60 and 0.2, to 1e-3 on either side


def test_the_same_inputs_are_compared_pair_by_pair() -> None:
    generator = np.random.default_rng(2)
    head = attention(generator)
    given = encoder_of(head)
    clean = run(start(generator), head, 4, 0.5)
    same = audit_layers(*given, measured(clean), baseline=measured(clean))
    assert same.paired
    assert all(layer.baseline_p == 1 for layer in same.layers)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"cloud": np.ones((2, 3, 4))}, "'tokens' is missing"),
        ({"tokens": np.ones((3, 4))}, "layers x N x d"),
        ({"tokens": np.zeros((2, 3, 4))}, "no direction"),
        ({"tokens": np.full((2, 3, 4), np.nan)}, "no direction"),
        ({"tokens": np.ones((2, 3, 4)), "sequence": np.zeros(2, int)}, "sequence must be 3"),
    ],
)
def test_wrong_layers(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(InputError, match=message):
        read_layers(tmp_path / "t.npz")


def test_layers_that_are_equal_do_not_count_among_those_that_are_not() -> None:
    """Their rounding errors are no scores: the p-value is that of the one layer that differs."""
    generator = np.random.default_rng(0)
    units = np.unique(np.sort(generator.integers(0, 40, 469)), return_inverse=True)[1]
    clouds = [1 + generator.standard_normal((469, 96)) for _ in range(4)]
    moved = clouds[0] + 0.05 * generator.standard_normal((469, 96)) + 0.02
    pair = units, units
    (alone,) = two_sample([clouds[0]], [moved], pair, paired=True)
    equal = two_sample(clouds[1:] + clouds[:1], [*clouds[1:], moved], pair, paired=True)
    assert equal.tolist() == [1.0, 1.0, 1.0, alone]
