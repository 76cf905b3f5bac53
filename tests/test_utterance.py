"""The rule by which speech names its symbols: the chance of all names goes to the one that is due, wherever a draw stands."""

import mlx.core as mx
import numpy as np
import pytest

from mlxspec.sampling import Sampler
from mlxspec.utterance import Naming

VOCAB, END = 30, 29
NAMES = frozenset(range(12))
TEXT = [4, 7, 4, 11]
PROMPT = [*TEXT, 28]
CODE = 20


def rule() -> Naming:
    return Naming(TEXT, NAMES, END, VOCAB, len(PROMPT))


def probs(history: list[int | mx.array], ancestors: list[int | mx.array], logits: mx.array, naming: Naming) -> np.ndarray:
    return np.array(Sampler(VOCAB, temperature=1.0, rule=naming).at(history).probs(logits, ancestors))


@pytest.mark.parametrize("said", [[], [4], [4, 7, CODE, CODE], [4, 7, 21, 4, CODE, 11], [4, 7, 4, 11, CODE]])
def test_the_chance_of_all_names_and_of_the_end_goes_to_what_is_due(said: list[int]) -> None:
    """By float64 to 1e-6, for tokens that are known, for some that are still to be evaluated, and for some that are only drafted."""
    logits = mx.random.normal((VOCAB,), key=mx.random.key(len(said)))
    plain = np.exp(np.array(logits, np.float64))
    plain /= plain.sum()
    due = [*TEXT, END][sum(token in NAMES for token in said)]
    expected = np.where([token in NAMES or token == END for token in range(VOCAB)], 0, plain)
    expected[due] = plain[list(NAMES)].sum() + plain[END]
    lazy: list[int | mx.array] = [mx.array(token) + 0 for token in said]
    for known in range(len(said) + 1):
        naming = rule()
        assert np.allclose(probs([*PROMPT, *said[:known]], list(said[known:]), logits, naming), expected, atol=1e-6)
        assert np.allclose(probs([*PROMPT, *said[:known], *lazy[known:]], [], logits, naming), expected, atol=1e-6)
        assert np.allclose(probs([*PROMPT, *said[:known]], lazy[known:], logits, naming), expected, atol=1e-6)
        assert np.allclose(probs([*PROMPT, *said], [], logits, naming), expected, atol=1e-6)  # the same object later on


def test_a_second_try_counts_what_was_said_before_it() -> None:
    """Speech that goes on from tokens which were let go: they stand before it like a prompt, and their names are named."""
    logits = mx.zeros(VOCAB)
    assert probs([*PROMPT, 4, 7, CODE], [], logits, rule()).argmax() == TEXT[2]


def test_rows_that_give_names_no_chance_stay_as_they_are() -> None:
    """A drafter's row, -inf where it cannot draft: no NaN comes of it."""
    logits = mx.full((VOCAB,), -mx.inf)
    logits[CODE] = 1.0
    found = probs([*PROMPT, 4], [], logits, rule())
    assert found[CODE] == 1 and found.sum() == 1
