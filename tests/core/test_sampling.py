"""Processed probabilities are mlx-lm's, in float32; noise depends on its key alone; a round pays only for the rows it visits."""

import math
from collections import Counter
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import sample_utils

from mlxspec.core import sampling
from mlxspec.core.accept import coupled, ratio
from mlxspec.core.decode import Limits, decode
from mlxspec.core.drafter import NoDrafter
from mlxspec.core.events import Step
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import PURPOSES, Sampler, mix
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import Target
from mlxspec.drafters.small import SmallDrafter
from mlxspec.errors import ModelError, UsageError
from tests.tiny import MarkovModel

VOCAB = 40
HISTORY = [3, 9, 9, 27, 4, 31, 0, 12, 3, 39, 5]


def some_logits(seed: int, vocab: int = VOCAB) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(0, 3, vocab), mx.float32)


def theirs(logits: mx.array, history: list[int], setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """What mlx-lm would sample from: its processors and sampler in the order of its generate_step, the last draw caught."""
    caught: list[np.ndarray] = []

    def catch(logprobs: mx.array, temperature: float) -> mx.array:
        caught.append(np.array(mx.softmax(logprobs * (1 / temperature), axis=-1)[0]))
        return mx.argmax(logprobs, axis=-1)

    monkeypatch.setattr(sample_utils, "categorical_sampling", catch)
    x = logits[None]
    for process in sample_utils.make_logits_processors(
        setting.get("logit_bias"), setting.get("repetition_penalty"), setting.get("repetition_context_size", 20)
    ):
        x = process(mx.array(history), x)
    x = x - mx.logsumexp(x, keepdims=True)
    warps = {key: setting[key] for key in ("top_p", "top_k", "min_p") if key in setting}
    token = sample_utils.make_sampler(setting["temperature"], **warps)(x).item()
    return caught[0] if caught else np.eye(logits.size, dtype=np.float32)[token]


def settings(count: int) -> list[dict[str, Any]]:
    """Many combinations, each option there or not, seeded."""
    rng = np.random.default_rng(11)
    choices: dict[str, list[Any]] = {
        "top_p": [0.3, 0.9],
        "top_k": [1, 2, 7, VOCAB - 1],
        "min_p": [0.02, 0.5],
        "repetition_penalty": [1.3, 0.7, 2.5],
        "repetition_context_size": [1, 3, 20],
        "logit_bias": [{3: 4.0}, {0: -2.5, 39: 1.0}, {9: -math.inf}],
    }
    found = []
    for _ in range(count):
        chosen = {key: values[rng.integers(len(values))] for key, values in choices.items() if rng.random() < 0.5}
        found.append({"temperature": float(rng.choice([0.0, 0.3, 0.7, 1.0, 1.8])), **chosen})
    return found


@pytest.mark.parametrize("number", range(60))
def test_probabilities_are_mlx_lms(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = settings(60)[number]
    logits = some_logits(number)
    ours = np.array(Sampler(VOCAB, **setting).at(HISTORY).probs(logits))
    expected = theirs(logits, HISTORY, setting, monkeypatch)
    assert ((ours > 0) == (expected > 0)).all(), setting
    np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=1e-7)
    assert abs(ours.sum() - 1) < 1e-5


@pytest.mark.parametrize("setting", [{"top_p": 0.3}, {"top_k": 3}, {"min_p": 0.5}, {"top_p": 0.9, "top_k": 3}], ids=str)
def test_ties_are_cut_as_mlx_lm_cuts_them(setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    logits = mx.array([2.0, 1, 2, 1, 2, 0, 2, 1, 2, 0], mx.float32)
    ours = np.array(Sampler(10, temperature=1.0, **setting).at([1]).probs(logits))
    np.testing.assert_allclose(ours, theirs(logits, [1], {"temperature": 1.0, **setting}, monkeypatch), rtol=1e-5)
    assert (ours > 0).sum() < 10


@pytest.mark.parametrize("top_k", [VOCAB, VOCAB + 1, 10**6])
def test_top_k_of_the_whole_vocabulary_changes_nothing(top_k: int) -> None:
    logits = some_logits(1)
    plain, cut = (Sampler(VOCAB, temperature=0.9, top_k=k).at(HISTORY).probs(logits) for k in (0, top_k))
    assert mx.array_equal(plain, cut)


def test_the_nucleus_is_cut_from_probabilities_whatever_the_logits_are_shifted_by() -> None:
    logits = some_logits(2)
    low, high = (Sampler(VOCAB, temperature=1.0, top_p=0.9).at(HISTORY).probs(logits + shift) for shift in (-500.0, 500.0))
    assert ((low > 0) == (high > 0)).all()
    assert 1 < (low > 0).sum().item() < VOCAB


def test_sixteen_bit_logits_are_processed_in_float32() -> None:
    logits = some_logits(3).astype(mx.bfloat16)
    sampler = Sampler(VOCAB, temperature=0.7, top_p=0.9, repetition_penalty=1.3, logit_bias={2: 0.1234})
    scores = sampler.at(HISTORY).scores(logits)
    assert scores.dtype == mx.float32
    assert mx.array_equal(scores, sampler.at(HISTORY).scores(logits.astype(mx.float32)))
    assert not mx.array_equal(scores, scores.astype(mx.bfloat16).astype(mx.float32))  # it would lose digits


def test_temperature_zero_is_the_same_code_without_noise() -> None:
    logits = some_logits(4)
    context = Sampler(VOCAB, logit_bias={17: 50.0}, seed=5).at(HISTORY)
    assert context.sampler.noise(3, "target") == 0.0
    assert context.draw(logits).item() == 17
    assert np.array(context.probs(logits)).tolist() == np.eye(VOCAB)[17].tolist()
    tied = Sampler(4).at([0]).probs(mx.array([1.0, 2, 2, 0]))
    assert tied.tolist() == [0, 1, 0, 0]  # the first of equals, as argmax says


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_padding_ids_have_no_probability_and_are_never_drawn(temperature: float) -> None:
    logits = mx.concatenate([some_logits(5), mx.full((24,), 99.0)])
    context = Sampler(VOCAB, temperature=temperature).at(HISTORY)
    assert context.probs(logits).shape == (VOCAB,)
    assert mx.array_equal(context.probs(logits), context.probs(logits[:VOCAB]))
    assert all(Sampler(VOCAB, temperature=temperature, seed=seed).at(HISTORY).draw(logits).item() < VOCAB for seed in range(50))


@pytest.mark.parametrize("window", [0, 1, 2, 4, 20])
def test_penalties_see_the_hypothetical_prefix(window: int) -> None:
    sampler = Sampler(VOCAB, temperature=0.8, repetition_penalty=1.7, repetition_context_size=window)
    logits, ancestors = some_logits(6), [8, 20, 3]
    expected = sampler.at([*HISTORY, *ancestors]).scores(logits)
    assert mx.array_equal(sampler.at(HISTORY).scores(logits, ancestors), expected)
    assert mx.array_equal(sampler.at(HISTORY).scores(logits, [mx.array(8), 20, mx.argmax(mx.arange(4))]), expected)  # not yet evaluated
    changed = set(np.flatnonzero(np.array(expected != sampler.at([]).scores(logits))).tolist())
    assert changed == set([*HISTORY, *ancestors][-window:])  # all of it for 0, as in mlx-lm


def test_processing_leaves_the_logits_alone() -> None:
    logits = some_logits(7)
    before = np.array(logits)
    mx.eval(Sampler(VOCAB, temperature=1.0, repetition_penalty=2.0, logit_bias={1: 5.0}, top_p=0.9).at(HISTORY).scores(logits))
    assert (np.array(logits) == before).all()


def test_a_draw_has_the_law_of_the_processed_probabilities() -> None:
    """χ² over 4,000 seeds; a right sampler passes a threshold of 6 standard deviations but once in 10^6."""
    logits = some_logits(8, 12)
    setting: dict[str, Any] = {"temperature": 1.2, "top_k": 6}
    law = np.array(Sampler(12, **setting).at([1, 2]).probs(logits))
    counts = Counter(Sampler(12, seed=seed, **setting).at([1, 2]).draw(logits).item() for seed in range(4000))
    assert all(law[token] > 0 for token in counts)
    chi = sum((counts[token] - 4000 * p) ** 2 / (4000 * p) for token, p in enumerate(law) if p > 0)
    freedom = (law > 0).sum() - 1
    assert chi < freedom + 6 * math.sqrt(2 * freedom) + 8


def gap_to_gumbel(values: np.ndarray) -> float:
    """Kolmogorov's distance, times the root of the count."""
    x = np.sort(values.astype(np.float64))
    law = np.exp(-np.exp(-x))
    steps = np.arange(x.size + 1) / x.size
    return float(max((steps[1:] - law).max(), (law - steps[:-1]).max()) * math.sqrt(x.size))


def test_noise_is_gumbel() -> None:
    """Kolmogorov-Smirnov at 2.5: true Gumbel noise fails once in 130,000 seeds, for each of the two."""
    one_key = np.array(Sampler(1 << 16, temperature=1.0, seed=3).noise(17, "target"))
    assert gap_to_gumbel(one_key) < 2.5
    one_token = np.array([Sampler(8, temperature=1.0, seed=seed).noise(position, "target")[3] for seed in range(40) for position in range(100)])
    assert gap_to_gumbel(one_token) < 2.5


def test_noise_depends_on_its_key_alone() -> None:
    hot, cold = Sampler(VOCAB, temperature=2.0, seed=9), Sampler(VOCAB, temperature=0.1, top_k=2, repetition_penalty=1.5, seed=9)
    later = [cold.noise(position, purpose) for position in range(200) for purpose in PURPOSES][3 * len(PURPOSES)]  # 200 positions: past what is kept
    assert mx.array_equal(hot.noise(3, PURPOSES[0]), later)
    assert mx.array_equal(hot.noise(3, PURPOSES[0]), cold.noise(3, PURPOSES[0]))
    context, logits = hot.at(HISTORY), some_logits(1)
    shifted = context.scores(logits, [1, 2]) + hot.noise(len(HISTORY) + 2, "target")  # each ancestor is a position further
    assert mx.array_equal(context.perturbed(logits, [1, 2]), shifted)


def test_keys_share_nothing() -> None:
    """Neighbours in seed, position, purpose and salt: correlations below 5.5 standard deviations, which chance exceeds once in 10^5 suites."""
    size = 1 << 14
    keys = [(seed, position, purpose, salt) for seed in (0, 1) for position in (5, 6) for purpose in PURPOSES for salt in (0, 7)]
    vectors = np.array([np.array(Sampler(size, temperature=1.0, seed=seed).noise(*rest)) for seed, *rest in keys])
    correlations = np.corrcoef(vectors) - np.eye(len(keys))
    assert abs(correlations).max() < 5.5 / math.sqrt(size)
    samples = [Sampler(4, seed=seed).uniform(position, purpose, salt) for seed, position, purpose, salt in keys]
    assert len(set(samples)) == len(keys)


def test_hashes_of_neighbours_differ_in_half_their_bits() -> None:
    pairs = [(mix(s, p, 0, 0), mix(s + ds, p + dp, 0, 0)) for s in range(40) for p in range(40) for ds, dp in ((0, 1), (1, 0), (1, 1))]
    assert 31 < np.mean([(a ^ b).bit_count() for a, b in pairs]) < 33
    assert len({mix(s, p, k, t) for s in range(20) for p in range(20) for k in range(5) for t in range(10)}) == 20 * 20 * 5 * 10
    assert mix(1, 2) != mix(2, 1)


def test_uniform_numbers_are_uniform() -> None:
    """Mean and extremes of 10,000: outside 6 standard deviations once in 10^8."""
    found = [Sampler(4, seed=seed).uniform(position, "accept", salt) for seed in range(20) for position in range(50) for salt in range(10)]
    assert all(0 <= u < 1 for u in found)
    assert abs(np.mean(found) - 0.5) < 6 * 0.2887 / 100
    assert min(found) < 0.002 and max(found) > 0.998


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_no_draw_serves_twice_under_ratio(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    used: Counter[Any] = Counter()
    noise, uniform = Sampler.noise, Sampler.uniform

    def spy(name: str, method: Any) -> Any:
        def call(self: Sampler, position: int, purpose: str, salt: int = 0) -> Any:
            used[(name, position, purpose, salt)] += 1
            return method(self, position, purpose, salt)

        return call

    monkeypatch.setattr(Sampler, "noise", spy("noise", noise))
    monkeypatch.setattr(Sampler, "uniform", spy("uniform", uniform))
    rng = np.random.default_rng(3)
    table = rng.normal(0, 1.5, (VOCAB, VOCAB))
    drafter = SmallDrafter(MarkovModel(table + rng.normal(0, 1, table.shape)))
    sampler = Sampler(VOCAB, temperature=temperature, seed=1)
    events = list(decode(TokenSequence(Target(MarkovModel(table))), drafter, ratio, sampler, HISTORY, Limits(max_tokens=150, coupled=False)))
    paths = [len(step.path) for step in events if isinstance(step, Step) and step.proposal]
    assert 0 in paths and 4 in paths  # both kinds of round were met
    assert {key[2] for key in used} == {"target", "draft", "accept", "residual"}
    assert max(used.values()) == 1


def test_a_rounds_own_draws_differ_from_another_rounds_at_the_same_position() -> None:
    sampler = Sampler(VOCAB, temperature=1.0, seed=4)
    early, late = sampler.at(HISTORY), sampler.at([*HISTORY, 1, 2])
    flat = mx.ones(VOCAB) / VOCAB
    assert [early.uniform(depth + 2, "accept") for depth in range(9)] != [late.uniform(depth, "accept") for depth in range(9)]
    assert [early.sample(flat, depth + 2, "draft").item() for depth in range(9)] != [late.sample(flat, depth, "draft").item() for depth in range(9)]


def lazy_round(proposal: Proposal, logits: mx.array, policy: Any, monkeypatch: pytest.MonkeyPatch, **setting: Any) -> tuple[int, int, int]:
    """Accepted rows, rows that were processed, and calls of top-p."""
    rows, nuclei = [0], [0]
    biased, top_p = Sampler.biased, sample_utils.apply_top_p

    def counted_rows(self: Sampler, x: mx.array, tokens: Any) -> mx.array:
        rows[0] += x.shape[0]
        return biased(self, x, tokens)

    def counted_top_p(x: mx.array, p: float) -> mx.array:
        nuclei[0] += x.shape[0]
        return top_p(x, p)

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "biased", counted_rows)
        patch.setattr(sampling, "apply_top_p", counted_top_p)
        verdict = policy(proposal, logits, Sampler(VOCAB, seed=2, **setting).at(HISTORY))
    return len(verdict.path), rows[0], nuclei[0]


def test_a_round_processes_only_the_rows_it_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = mx.stack([some_logits(100 + row) for row in range(9)])
    setting: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9}
    sampler = Sampler(VOCAB, seed=2, **setting)
    said = [int(sampler.at([*HISTORY, *range(row)]).draw(logits[row]).item()) for row in range(9)]  # without penalties only the position counts
    for right in range(9):
        tokens = [said[row] if row < right else (said[row] + 1) % VOCAB for row in range(8)]
        assert lazy_round(Proposal.chain(tokens), logits, coupled, monkeypatch, **setting) == (min(right, 8), min(right, 8) + 1, min(right, 8) + 1)
    wrong = Proposal.chain([(said[0] + 1) % VOCAB] * 8, [mx.eye(VOCAB)[(said[0] + 1) % VOCAB]] * 8)
    never = mx.where(mx.arange(VOCAB) == wrong.tokens[0], -mx.inf, logits)
    assert lazy_round(wrong, never, ratio, monkeypatch, **setting) == (0, 1, 1)


def test_the_first_draw_of_a_round_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[int] = []
    biased = Sampler.biased

    def counted(self: Sampler, x: mx.array, tokens: Any) -> mx.array:
        draws.append(x.shape[0])
        return biased(self, x, tokens)

    monkeypatch.setattr(Sampler, "biased", counted)
    context = Sampler(VOCAB, temperature=1.0).at(HISTORY)
    logits = some_logits(9)[None]
    first = context.first(logits).item()
    assert coupled(Proposal(rest=True), logits, context).token == first
    assert draws == [1]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("policy", [coupled, ratio])
@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize(("value", "error"), [(math.nan, ModelError), (math.inf, ModelError), (-math.inf, UsageError)])
def test_a_reply_ends_with_an_error_where_the_model_gives_no_number(
    value: float, error: type[Exception], rest: bool, policy: Any, temperature: float
) -> None:
    """After three good tokens every logit is the same non-number: the reply says them, then why it ends, with and without a step started ahead."""
    table = np.full((VOCAB, VOCAB), -50.0)
    for token in range(VOCAB):
        table[token, (token + 1) % VOCAB] = 50.0
    table[8] = value

    class Drafter(NoDrafter):
        def propose(self, token: int, limit: int, context: Any) -> Proposal:
            tokens = [] if rest else [(token + step) % VOCAB for step in (1, 2)][:limit]
            sampled = [mx.eye(VOCAB)[token] for token in tokens] if policy is ratio and temperature else None
            return Proposal.chain(tokens, sampled) if tokens else Proposal(rest=rest)

    sampler = Sampler(VOCAB, temperature=temperature, repetition_penalty=1.1, seed=3)
    said: list[int] = []
    with pytest.raises(error):
        for step in decode(TokenSequence(Target(MarkovModel(table))), Drafter(), policy, sampler, [5], Limits(max_tokens=20)):
            said += step.tokens if isinstance(step, Step) else ()
    assert said == [6, 7, 8][: len(said)] and len(said) >= 1


def test_a_bias_that_leaves_no_token_is_named() -> None:
    context = Sampler(VOCAB, temperature=1.0, logit_bias=dict.fromkeys(range(VOCAB), -math.inf)).at(HISTORY)
    with pytest.raises(UsageError, match="--logit-bias"):
        coupled(Proposal(), some_logits(3)[None], context)
    kept = Sampler(VOCAB, temperature=1.0, logit_bias=dict.fromkeys(range(1, VOCAB), -math.inf)).at(HISTORY)
    assert coupled(Proposal(), some_logits(3)[None], kept).token == 0


def test_a_row_that_is_not_visited_may_hold_anything() -> None:
    logits = mx.stack([some_logits(1), mx.full((VOCAB,), math.nan)])
    for temperature in (0.0, 1.0):
        context = Sampler(VOCAB, temperature=temperature, seed=5).at(HISTORY)
        said = coupled(Proposal(), logits[:1], context).token
        assert coupled(Proposal.chain([(said + 1) % VOCAB]), logits, context).token == said
        with pytest.raises(ModelError):
            coupled(Proposal.chain([said]), logits, Sampler(VOCAB, temperature=temperature, seed=5).at(HISTORY))


@pytest.mark.parametrize("size", [0, 3])
def test_how_far_back_the_repetition_penalty_looks_is_as_in_mlx_lm(size: int) -> None:
    """0 is the whole history there, so it is here: the same option gives the same text."""
    processor = sample_utils.make_logits_processors(repetition_penalty=1.7, repetition_context_size=size)[0]
    expected = processor(mx.array(HISTORY), mx.array(some_logits(4)[None]))
    sampler = Sampler(VOCAB, repetition_penalty=1.7, repetition_context_size=size)
    assert mx.array_equal(sampler.at(HISTORY).scores(some_logits(4)), expected[0])
    touched = set(np.flatnonzero(np.array(expected[0] != some_logits(4))).tolist())
    assert touched == (set(HISTORY) if size == 0 else set(HISTORY[-size:]))
