"""Every drafter under every rule and sampler setting gives the law of plain sampling; three known wrong rules do not.

The target is a Markov chain over 4 tokens, so the law of the emitted strings is known exactly. A G-test compares counts with it.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from mlxspec.core.accept import POLICIES, Policy
from mlxspec.core.decode import Limits, decode
from mlxspec.core.drafter import Drafter, NoDrafter
from mlxspec.core.events import Step
from mlxspec.core.proposal import Proposal, Verdict
from mlxspec.core.sampling import Context, Sampler
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import Target
from mlxspec.drafters.lookup import LookupDrafter
from mlxspec.drafters.small import SmallDrafter
from tests.tiny import MarkovModel

TOKENS = 4
LENGTH = 4
PROMPT = [0, 1, 2, 0, 1, 3, 0, 1]
TARGET = np.random.default_rng(1).normal(0, 1.2, (TOKENS, TOKENS))
DRAFT = TARGET + np.random.default_rng(2).normal(0, 0.9, (TOKENS, TOKENS))
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "top-p": {"temperature": 0.8, "top_p": 0.8},
    "top-k": {"temperature": 1.3, "top_k": 3},
    "min-p": {"temperature": 1.1, "min_p": 0.15},
    "penalty": {"temperature": 0.9, "repetition_penalty": 1.7, "repetition_context_size": 3},
    "bias": {"temperature": 1.0, "logit_bias": {1: -1.0, 3: 0.7}},
    "all": {
        "temperature": 0.9,
        "top_p": 0.95,
        "min_p": 0.05,
        "top_k": 3,
        "repetition_penalty": 1.4,
        "repetition_context_size": 4,
        "logit_bias": {0: 0.3},
    },
}


class OwnTree(Drafter):
    """A user's drafter: two children, and one grandchild below each."""

    name = "own"
    depth = 2

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        rows = 2 * min(limit, 2)
        return Proposal(((token + 1) % 4, (token + 3) % 4, token, 2)[:rows], (-1, -1, 0, 1)[:rows])


class WideSmall(SmallDrafter):
    width = 2
    depth = 2


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": NoDrafter,
    "lookup": LookupDrafter,
    "small": lambda: SmallDrafter(MarkovModel(DRAFT)),
    "small-tree": lambda: WideSmall(MarkovModel(DRAFT)),
    "own": OwnTree,
}


def strings(
    drafter: Drafter, policy: Policy, coupled: bool, runs: int, length: int = LENGTH, table: np.ndarray = TARGET, **setting: Any
) -> Counter[tuple[int, ...]]:
    sequence = TokenSequence(Target(MarkovModel(table)))
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(runs):
        sampler = Sampler(TOKENS, seed=seed, **setting)
        steps = decode(sequence, drafter, policy, sampler, PROMPT, Limits(max_tokens=length, coupled=coupled))
        counts[tuple(t for step in steps if isinstance(step, Step) for t in step.tokens)] += 1
    return counts


def exact_law(length: int = LENGTH, table: np.ndarray = TARGET, **setting: Any) -> dict[tuple[int, ...], float]:
    """Probability of each string, from the table by mlx-lm's warps written out in its order."""

    def step(history: Sequence[int]) -> np.ndarray:
        x = table[history[-1]].copy()
        for token, bias in setting.get("logit_bias", {}).items():
            x[token] += bias
        penalty = setting.get("repetition_penalty", 1.0)
        for token in set(history[-setting.get("repetition_context_size", 20) :]):
            x[token] = x[token] * penalty if x[token] < 0 else x[token] / penalty
        row = mx.array(x - np.log(np.exp(x).sum()), mx.float32)[None]
        if "top_p" in setting:
            row = apply_top_p(row, setting["top_p"])
        if "min_p" in setting:
            row = apply_min_p(row, setting["min_p"])
        if "top_k" in setting:
            row = apply_top_k(row, setting["top_k"])
        return np.array(mx.softmax(row[0] / setting["temperature"]), dtype=float)

    law = {}
    for string in itertools.product(range(TOKENS), repeat=length):
        history, p = list(PROMPT), 1.0
        for token in string:
            p *= step(history)[token] if p > 0 else 0.0
            history.append(token)
        if p > 0:
            law[string] = p
    return law


def false_alarm(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """Odds of counts at least as far from the law by chance: a G-test, cells expected less than 5 times merged; 0 for an impossible string."""
    if any(string not in law for string in counts):
        return 0.0
    runs = counts.total()
    cells: list[tuple[float, int]] = []
    rest = [0.0, 0]
    for string, p in law.items():
        if p * runs >= 5:
            cells.append((p * runs, counts[string]))
        else:
            rest = [rest[0] + p * runs, int(rest[1] + counts[string])]
    if rest[0] > 0:
        cells.append((rest[0], int(rest[1])))
    g = 2 * sum(seen * math.log(seen / expected) for expected, seen in cells if seen)
    freedom = len(cells) - 1
    z = ((g / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))  # Wilson and Hilferty
    return 0.5 * math.erfc(z / math.sqrt(2))


CASES = [(d, a) for d in DRAFTERS for a in POLICIES if (d, a) != ("small-tree", "ratio")]  # that one drafts a chain, as small does


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("drafter", "accept"), CASES)
def test_law(drafter: str, accept: str, setting: str) -> None:
    """300 strings a case; a false alarm has odds under 1 in 100,000 a case, under 1 in 1,000 for the whole table. Seeds are fixed."""
    counts = strings(DRAFTERS[drafter](), POLICIES[accept], accept == "coupled", 300, **SETTINGS[setting])
    assert false_alarm(counts, exact_law(**SETTINGS[setting])) > 1e-5


@pytest.mark.parametrize("setting", SETTINGS)
def test_coupled_strings_do_not_depend_on_the_drafter(setting: str) -> None:
    """Seed by seed, token by token, at any draft length."""
    plain = strings(NoDrafter(), POLICIES["coupled"], True, 40, 12, **SETTINGS[setting])
    for make in DRAFTERS.values():
        drafter = make()
        assert strings(drafter, POLICIES["coupled"], True, 40, 12, **SETTINGS[setting]) == plain


def wrong_cut(proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
    """Negative control: a drafted token is dropped because of its own q, then the rest judged by the ratio rule."""
    probs = proposal.probs or []
    kept = next((i for i, token in enumerate(proposal.tokens) if probs[i][token].item() < 0.5), len(proposal))
    cut = Proposal.chain(proposal.tokens[:kept], list(probs[:kept]))
    return POLICIES["ratio"](cut, logits, context)


def wrong_sharing(proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
    """Negative control: the residual is drawn with the very noise the draft was drawn with."""

    class Sharing(Context):
        def sample(self, probs: mx.array, depth: int, purpose: str) -> mx.array:
            return super().sample(probs, depth, "draft")

    shared = Sharing(context.sampler, context.history, coupled=False)
    return POLICIES["ratio"](proposal, logits, shared)


def wrong_longest_beam(proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
    """Negative control, Apple's rule for beams: each beam tossed by itself with p/q, the longest wins, the residual of p over q after it."""
    rng = np.random.default_rng(context.sampler.seed * 97 + context.position)
    q = np.array(mx.softmax(mx.array(DRAFT[context.history[-1]], mx.float32)))
    p = np.array(context.probs(logits[0]))
    beams = [row for row, parent in enumerate(proposal.parents) if parent < 0]
    accepted = [row for row in beams if rng.random() < p[proposal.tokens[row]] / q[proposal.tokens[row]]]
    if accepted:
        row = accepted[0]
        after = np.array(context.probs(logits[row + 1], [proposal.tokens[row]]))
        return Verdict((row,), int(rng.choice(TOKENS, p=after / after.sum())))
    rest = np.maximum(p - q, 0)
    rest = rest / rest.sum() if rest.sum() > 0 else p / p.sum()
    return Verdict((), int(rng.choice(TOKENS, p=rest)))


class Beams(OwnTree):
    """The two likeliest first tokens, as a beam search would offer them."""

    depth = 1

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        best = np.argsort(-DRAFT[token])[:2]
        return Proposal((int(best[0]), int(best[1])), (-1, -1)) if limit else Proposal()


@pytest.mark.parametrize(("policy", "drafter"), [(wrong_cut, DRAFTERS["small"]), (wrong_longest_beam, Beams)], ids=["cut", "longest beam"])
def test_wrong_rules_fail(policy: Policy, drafter: Callable[[], Drafter]) -> None:
    """The same test on the same number of strings tells each wrong rule from the law."""
    counts = strings(drafter(), policy, False, 300, **SETTINGS["plain"])
    assert false_alarm(counts, exact_law(**SETTINGS["plain"])) < 1e-5


def test_shared_noise_fails() -> None:
    """This bias is small (total variation 0.08 a token at most), so the tables are chosen to show it, on 1,500 strings of 3.

    The right rule passes on the same.

    Odds of a false alarm: 1 in 100,000.
    """
    p = np.log([[0.506, 0.003, 0.487, 0.004]] * TOKENS)
    q = np.log([[0.003, 0.002, 0.219, 0.776]] * TOKENS)
    law = exact_law(3, p, temperature=1.0)
    odds = []
    for policy in (wrong_sharing, POLICIES["ratio"]):
        drafter = SmallDrafter(MarkovModel(q))
        odds.append(false_alarm(strings(drafter, policy, False, 1500, 3, p, temperature=1.0), law))
    assert odds[0] < 1e-5 < odds[1]


def test_a_target_drafting_for_itself_is_always_accepted() -> None:
    """p = q: under both rules every draft is accepted; matching independent draws, as mlx-lm's loop does, would accept only the sum of squares."""
    for accept, policy in POLICIES.items():
        sequence = TokenSequence(Target(MarkovModel(TARGET)))
        drafted = accepted = 0
        for seed in range(25):
            drafter = SmallDrafter(MarkovModel(TARGET))
            steps = decode(
                sequence, drafter, policy, Sampler(TOKENS, temperature=0.8, seed=seed), PROMPT, Limits(max_tokens=20, coupled=accept == "coupled")
            )
            for step in steps:
                if isinstance(step, Step) and step.proposal is not None:
                    drafted += len(step.proposal)
                    accepted += len(step.path)
        assert drafted > 300 and accepted == drafted
