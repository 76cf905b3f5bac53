"""The drafters by themselves: what they propose, and that their state after any verdicts is what a fresh one's would be."""

import copy
import doctest
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache

from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context, Sampler
from mlxspec.drafters import lookup as lookup_module
from mlxspec.drafters import small as small_module
from mlxspec.drafters.lookup import LookupDrafter
from mlxspec.drafters.small import SmallDrafter
from mlxspec.errors import DrafterError
from tests.tiny import VOCAB, MarkovModel, tiny_model


def context_of(history: Sequence[int], vocab: int = VOCAB, seed: int = 0, temperature: float = 0.0, top_k: int = 0, **shape: Any) -> Context:
    """The context of a round; the last of ``history`` is pending."""
    return Sampler(vocab, seed=seed, temperature=temperature, top_k=top_k).at(history, **shape)


def random_path(rng: random.Random, proposal: Proposal) -> tuple[int, ...]:
    """Some rows from the root down, none or all of a branch included."""
    row, path = -1, []
    while children := [i for i, parent in enumerate(proposal.parents) if parent == row]:
        if rng.random() < 0.3:
            break
        row = rng.choice(children) if rng.random() < 0.4 else children[0]
        path.append(row)
    return tuple(path)


# Lookup


def looked_up(history: Sequence[int], limit: int = 10, drafter: LookupDrafter | None = None, **shape: Any) -> Proposal:
    drafter = drafter or LookupDrafter()
    drafter.begin(history[:-1], {}, 0)
    return drafter.propose(history[-1], limit, context_of(history, **shape))


class Bold(LookupDrafter):
    """Takes every row it may."""

    worth = 0.0


def test_the_examples_in_the_docstrings() -> None:
    for module in (lookup_module, small_module):
        result = doctest.testmod(module)
        assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize(
    ("history", "tokens"),
    [
        ([1, 2, 3, 4, 2, 3], (4, 2, 3)),  # what followed 2 3
        ([1, 2, 3, 4], ()),  # nothing was seen before
        ([5], ()),
        ([7, 8, 1, 7, 8], (1, 7, 8)),
        ([4, 4, 4, 4], (4, 4, 4)),  # a run: its first 4 is followed by all the others
        ([1, 2, 3, 9, 0, 2, 3, 8, 1, 2, 3], (9, 0, 2, 3, 8, 1, 2, 3)),  # 1 2 3 is a longer match than 2 3, though older
    ],
)
def test_lookup_offers_what_followed_the_longest_match(history: list[int], tokens: tuple[int, ...]) -> None:
    proposal = looked_up(history, drafter=Bold(), width=1)
    assert proposal.tokens == tokens and proposal.is_chain
    cautious = looked_up(history).tokens
    assert cautious[:1] == tokens[:1]


def test_of_equal_matches_the_latest_comes_first() -> None:
    proposal = looked_up([2, 3, 8, 0, 2, 3, 9, 1, 2, 3])
    assert [token for token, parent in zip(proposal.tokens, proposal.parents, strict=True) if parent == -1] == [9, 8]  # and both are offered


def test_continuations_that_differ_later_share_their_beginning() -> None:
    proposal = looked_up([1, 2, 3, 5, 6, 0, 1, 2, 3, 5, 7, 4, 1, 2, 3], drafter=Bold(), limit=2)
    assert (proposal.tokens, proposal.parents) == ((5, 7, 6), (-1, 0, 0))


@pytest.mark.parametrize("seed", range(25))
def test_lookup_keeps_its_budgets_and_never_repeats_a_child(seed: int) -> None:
    rng = random.Random(seed)
    history = [rng.randrange(4) for _ in range(rng.randrange(1, 80))]
    for limit, rows, width in ((0, 12, 2), (1, 12, 3), (3, 5, 2), (10, 12, 2), (10, 3, 1), (10, 40, 4)):
        for drafter in (LookupDrafter(), Bold()):
            proposal = looked_up(history, limit, drafter, rows=rows, width=width)
            proposal.check(4, limit)
            assert len(proposal) <= rows
            assert max(Counter(proposal.parents).values(), default=0) <= width
            assert width > 1 or proposal.is_chain


@pytest.mark.parametrize("seed", range(10))
def test_lookup_after_any_verdicts_is_what_a_fresh_one_would_be(seed: int) -> None:
    rng = random.Random(seed)
    history = [rng.randrange(5) for _ in range(20)]
    drafter = Bold()
    drafter.begin(history[:-1], {}, 0)
    for _ in range(25):
        limit = rng.choice([0, 1, 4, 10])
        fresh = Bold()
        fresh.experience = copy.deepcopy(drafter.experience)
        fresh.begin(history[:-1], {}, 0)
        expected = fresh.propose(history[-1], limit, context_of(history))
        proposal = drafter.propose(history[-1], limit, context_of(history))
        assert proposal == expected
        assert drafter.tokens == history and drafter.ends == fresh.ends
        path, token = random_path(rng, proposal), rng.randrange(5)
        drafter.accept(path, token, {})
        history += [*(proposal.tokens[row] for row in path), token]


def test_lookup_looks_further_where_copying_pays_and_stops_where_it_does_not() -> None:
    def rows_offered(right: bool) -> list[int]:
        drafter = LookupDrafter()
        for rate in drafter.experience.values():
            rate.value = 0.5
        history = [*range(20)] * 2
        drafter.begin(history[:-1], {}, 0)
        offered = []
        for _ in range(40):
            proposal = drafter.propose(history[-1], 10, context_of(history, width=1))
            offered.append(len(proposal))
            path = range(len(proposal)) if right else ()
            drafter.accept(path, (history[-1] + len(path) + 1) % 20, {})
            history += [(history[-1] + step) % 20 for step in range(1, len(path) + 2)]
        return offered

    good, bad = rows_offered(True), rows_offered(False)
    assert good[0] == bad[0] == 3  # 0.5, 0.25 and 0.125 are worth a row, 0.06 is not
    assert good[-1] == 10 and bad[-1] == 0


# The small model


class Counting(MarkovModel):
    """Counts the tokens it reads."""

    read = 0

    def __init__(self, table: np.ndarray, seen: Callable[[mx.array], None] = lambda _: None) -> None:
        super().__init__(table)
        self.seen = seen

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        self.read += inputs.size
        self.seen(inputs)
        return super().__call__(inputs, cache)


def table(seed: int = 0, vocab: int = VOCAB) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (vocab, vocab))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("coupled", [True, False])
def test_the_draft_cache_equals_a_recomputed_one(width: int, coupled: bool) -> None:
    model = tiny_model(seed=3)
    rng = random.Random(width)
    history = [rng.randrange(VOCAB) for _ in range(10)]
    drafter = SmallDrafter(model)
    drafter.begin(history[:-1], {}, 0)
    for step in range(14):
        limit = rng.choice([0, 1, 2, 5])
        context = context_of(history, seed=step, temperature=1.0, width=width, coupled=coupled)
        fresh = SmallDrafter(model)
        fresh.begin(history[:-1], {}, 0)
        for mine, theirs in zip(drafter.cache, fresh.cache, strict=True):
            assert mine.offset + len(drafter.unread) == theirs.offset == len(history) - 1
            for a, b in ((mine.keys, theirs.keys), (mine.values, theirs.values)):
                assert mx.allclose(a[..., : mine.offset, :], b[..., : mine.offset, :], atol=1e-4)
        proposal = drafter.propose(history[-1], limit, context)
        assert (proposal.tokens, proposal.parents) == (lambda p: (p.tokens, p.parents))(fresh.propose(history[-1], limit, context))
        proposal.check(VOCAB, limit)
        path, token = random_path(rng, proposal), rng.randrange(VOCAB)
        drafter.accept(path, token, {})
        history += [*(proposal.tokens[row] for row in path), token]


def test_the_small_model_reads_each_token_once() -> None:
    model = Counting(table())
    rng = random.Random(0)
    history = [rng.randrange(VOCAB) for _ in range(40)]
    drafter = SmallDrafter(model)
    drafter.begin(history[:-1], {}, 0)
    assert model.read == 39
    dropped = 0
    for _ in range(30):
        before, unread = model.read, len(drafter.unread) + 1  # with the pending one
        proposal = drafter.propose(history[-1], 5, context_of(history))
        assert unread <= 2 and model.read - before == unread + 4
        path = tuple(range(rng.randrange(6)))
        drafter.accept(path, 7, {})
        dropped += 4 - min(len(path), 4)
        history += [*(proposal.tokens[row] for row in path), 7]
        assert model.read - dropped == drafter.cache[0].offset >= len(history) - 2


@pytest.mark.parametrize("rest", [3, 40])
def test_after_a_rest_it_catches_up_and_asks_for_one_row_of_logits(rest: int) -> None:
    """What was said meanwhile is read once, in one go; where that is long, the logits of its rows are never asked for."""
    shapes: list[int] = []
    model = Counting(table(), seen=lambda inputs: shapes.append(inputs.size))
    drafter, fresh = SmallDrafter(model), SmallDrafter(MarkovModel(table()))
    history = [1, 2, 3]
    drafter.begin(history[:-1], {}, 0)
    for token in range(rest):
        drafter.propose(history[-1], 0, context_of(history))
        drafter.accept((), token % VOCAB, {})
        history.append(token % VOCAB)
    fresh.begin(history[:-1], {}, 0)
    shapes.clear()
    assert drafter.propose(history[-1], 3, context_of(history)) == fresh.propose(history[-1], 3, context_of(history))
    assert shapes == ([rest + 1, 1, 1] if rest < 8 else [rest, 1, 1, 1])
    assert drafter.cache[0].offset == fresh.cache[0].offset == len(history) + 2


def test_under_ratio_it_hands_over_the_distribution_it_drew_from() -> None:
    """χ² of 1,200 first draws; a right one exceeds 6 standard deviations once in 10^6."""
    vocab, setting = 12, {"temperature": 1.3, "top_k": 5}
    logits = table(1, vocab)
    drafter = SmallDrafter(MarkovModel(logits))
    history = [3, 1, 4]
    counts: Counter[int] = Counter()
    for seed in range(1200):
        drafter.begin(history[:-1], {}, 0)
        context = context_of(history, vocab, seed=seed, coupled=False, **setting)
        proposal = drafter.propose(4, 1 if seed else 3, context)
        assert proposal.probs is not None and proposal.is_chain
        counts[proposal.tokens[0]] += 1
        if seed == 0:
            for row, (token, q) in enumerate(zip(proposal.tokens, proposal.probs, strict=True)):
                before = [4, *proposal.tokens][row]
                assert mx.allclose(q, context.probs(mx.array(logits[before], mx.float32)), atol=1e-6)
                assert q[token].item() > 0
    law = np.array(context_of(history, vocab, **setting).probs(mx.array(logits[4], mx.float32)))
    assert set(counts) <= set(np.flatnonzero(law).tolist())
    chi = sum((counts[i] - 1200 * p) ** 2 / (1200 * p) for i, p in enumerate(law) if p > 0)
    assert chi < 4 + 6 * 8**0.5 + 8


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_with_width_the_runners_up_hang_beside_the_chain(temperature: float) -> None:
    logits, history = table(2), [9, 8, 7]
    drafter = SmallDrafter(MarkovModel(logits))
    drafter.begin(history[:-1], {}, 0)
    context = context_of(history, seed=4, temperature=temperature, width=3)
    proposal = drafter.propose(7, 4, context)
    last, tokens = 7, []
    for depth in range(4):  # the target's own noise on the drafter's logits
        best = np.argsort(-np.array(context.perturbed(mx.array(logits[last], mx.float32), range(depth))))[:3].tolist()
        tokens.append(best)
        last = best[0]
    assert proposal.tokens == (*(best[0] for best in tokens), *(t for best in tokens for t in best[1:]))
    assert proposal.parents == (-1, 0, 1, 2, -1, -1, 0, 0, 1, 1, 2, 2)
    assert proposal.probs is None
    assert len(drafter.propose(5, 4, context_of([*history, 5], width=3, rows=6))) == 6
    assert len(drafter.propose(5, 9, context_of([*history, 5], width=3, rows=2))) == 2
    drafter.begin(history[:-1], {}, 0)
    assert drafter.propose(7, 4, context_of(history, width=3, coupled=False)).is_chain
    drafter.propose(7, 2, context_of([*history, 7], width=10**6, rows=5)).check(VOCAB, 2)  # a width beyond the tokens there are


@pytest.mark.parametrize("theirs", [20, 40])
def test_a_small_model_may_be_narrower_or_wider_than_the_tokens(theirs: int) -> None:
    drafter = SmallDrafter(MarkovModel(np.zeros((theirs, theirs))))
    history = [1, 2]
    seen: set[int] = set()
    for seed in range(40):
        for coupled in (True, False):
            drafter.begin(history[:-1], {}, 0)
            proposal = drafter.propose(2, 3, context_of(history, 30, seed=seed, temperature=1.0, coupled=coupled))
            proposal.check(30, 3)
            seen |= set(proposal.tokens)
            assert all(q.shape == (30,) and abs(q.sum().item() - 1) < 1e-5 for q in proposal.probs or ())
    assert max(seen) in range(min(theirs, 30) - 3, min(theirs, 30))


@pytest.mark.parametrize("family", ["mamba", "falcon_h1", "gemma3_text"])
def test_any_kind_of_cache_goes_back_to_what_was_kept(family: str) -> None:
    model = tiny_model(family, seed=3)
    rng = random.Random(5)
    history = [rng.randrange(VOCAB) for _ in range(10)]
    drafter = SmallDrafter(model)
    drafter.begin(history[:-1], {}, 0)
    for step, limit in enumerate((3, 0, 70, 5, 1, 4)):  # 70: deeper than anyone would
        fresh = SmallDrafter(model)
        fresh.begin(history[:-1], {}, 0)
        context = context_of(history, seed=step, temperature=1.0, width=2)
        proposal = drafter.propose(history[-1], limit, context)
        assert proposal.tokens == fresh.propose(history[-1], limit, context).tokens
        path, token = random_path(rng, proposal), rng.randrange(VOCAB)
        drafter.accept(path, token, {})
        history += [*(proposal.tokens[row] for row in path), token]


class Fixed(KVCache):  # type: ignore[misc]
    """A cache that cannot drop anything."""

    def is_trimmable(self) -> bool:
        return False


def test_a_small_model_that_cannot_rewind_is_refused_when_it_is_loaded() -> None:
    model = MarkovModel(table())
    model.make_cache = lambda: [Fixed()]  # type: ignore[method-assign]
    with pytest.raises(DrafterError, match="stiff cannot draft: its Fixed"):
        SmallDrafter(model, "stiff")
