"""The rule by which speech names its symbols: the chance of all names goes to the one that is due, wherever a draw stands."""

import mlx.core as mx
import numpy as np
import pytest

from mlxspec.core.sampling import Sampler
from mlxspec.speech.utterance import Naming

VOCAB, END = 30, 29
NAMES = frozenset(range(12))
TEXT = [4, 7, 4, 11]
PROMPT = [*TEXT, 28]
CODE = 20


def rule() -> Naming:
    return Naming(TEXT, NAMES, END, range(12, END - 1), len(PROMPT))


def probs(history: list[int | mx.array], ancestors: list[int | mx.array], logits: mx.array, naming: Naming) -> np.ndarray:
    return np.array(Sampler(VOCAB, temperature=1.0, rule=naming).at(history).probs(logits, ancestors))


@pytest.mark.parametrize("said", [[], [4], [4, 7, CODE, CODE], [4, 7, 21, 4, CODE, 11], [4, 7, 4, 11, CODE]])
def test_the_chance_of_all_names_and_of_the_end_goes_to_what_is_due(said: list[int]) -> None:
    """By float64 to 1e-6, for tokens that are known, for some that are still to be evaluated, and for some that are only drafted."""
    logits = mx.random.normal((VOCAB,), key=mx.random.key(len(said)))
    plain = np.exp(np.array(logits, np.float64))
    plain /= plain.sum()
    due = [*TEXT, END][sum(token in NAMES for token in said)]
    expected = np.where([token in NAMES or token >= END - 1 for token in range(VOCAB)], 0, plain)
    expected[due] = plain[list(NAMES)].sum() + plain[END]
    expected /= expected.sum()  # what is neither sound nor a name is never said
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


def test_a_drafters_columns_follow_the_same_rule() -> None:
    """Three beams that differ in how much they have named, and columns that have one token for all names and lack some codes: each beam gets the name
    that is due to it, with the chance of that column and the end's.
    """
    columns = [3, 13, 15, 16, 20, 21, END]
    logits = mx.random.normal((3, len(columns)), key=mx.random.key(5))
    said = [mx.array([20, 7, 7]), mx.array([21, 13, 4])]  # by beam; the history has named one symbol
    found, ids = rule().over(columns)([*PROMPT, 4], said, logits)
    assert ids.tolist() == [[13, 15, 16, 20, 21, due] for due in (TEXT[1], TEXT[2], TEXT[3])]
    rows = np.array(logits)
    assert np.allclose(found, np.column_stack([rows[:, 1:6], np.logaddexp(rows[:, 0], rows[:, 6])]), atol=1e-6)
