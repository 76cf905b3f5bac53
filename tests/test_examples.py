"""The examples do what they say."""

import runpy
from typing import Any

import numpy as np
import pytest

import mlxspec
from tests import ROOT
from tests.tiny import VOCAB, MarkovModel, tiny_engine

EXAMPLES = ROOT / "examples"


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


def test_settings_are_judged_on_the_half_that_did_not_choose(capsys: pytest.CaptureFixture[str]) -> None:
    """The even prompts prefer x@1, the odd ones x@3: adaptive stands against x@1 on the odd ones alone."""
    judge = runpy.run_path(str(EXAMPLES / "compare_settings.py"))["judge"]
    rates = {"none": [1.0] * 4, "auto": [9.0, 3.0, 9.0, 3.0], "x@1": [3.0, 1.5, 3.0, 1.5], "x@3": [2.0, 6.0, 2.0, 6.0]}
    judge(rates, ["chat"] * 4)
    assert capsys.readouterr().out.splitlines()[2].split() == [
        "chat",
        "2.000",
        "[2.000,",
        "2.000]",
        "of",
        "x@1",
        "0.500",
        "[0.500,",
        "0.500]",
        "of",
        "x@3",
    ]
    judge({"none": [1.0], "auto": [2.0]}, ["chat"])
    assert capsys.readouterr().out == ""
