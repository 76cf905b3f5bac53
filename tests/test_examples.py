"""The examples do what they say."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxspec
from tests.tiny import VOCAB, MarkovModel, tiny_engine

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def pairs() -> Any:
    return runpy.run_path(str(EXAMPLES / "own_drafter.py"))["Pairs"]


def test_own_drafter_offers_what_followed_before(pairs: Any) -> None:
    drafter = pairs()
    drafter.begin([1, 2, 3, 4, 1], None, 0)
    assert drafter.propose(2, 2, None) == mlxspec.Proposal.chain([3, 4])
    drafter.accept((0,), 9, None)
    assert drafter.propose(9, 4, None) == mlxspec.Proposal()
    drafter.accept((), 1, None)
    assert drafter.seen == [1, 2, 3, 4, 1, 2, 3, 9]
    assert drafter.propose(1, 0, None) == mlxspec.Proposal()


def test_own_drafter_changes_the_speed_and_not_the_text(pairs: Any) -> None:
    """A model that goes in circles of nine tokens, which pairs foresee after the first."""
    table = np.zeros((VOCAB, VOCAB))
    table[np.arange(VOCAB), (np.arange(VOCAB) + 1) % 9] = 9
    model, prompt = MarkovModel(table), [5, 6, 7]
    plain = tiny_engine("none", model).generate(prompt, temperature=0.5, seed=3, max_tokens=60)
    drafted = tiny_engine(pairs(), model).generate(prompt, temperature=0.5, seed=3, max_tokens=60)
    assert drafted.tokens == plain.tokens
    assert drafted.drafter == "pairs"
    assert drafted.stats["accepted"] > 20
    assert drafted.stats["rounds"] < plain.stats["rounds"] / 2
