"""Running numbers of a reply against counts by hand, and the drawings of shares."""

import pytest

from mlxspec.core.events import Step
from mlxspec.core.proposal import Proposal
from mlxspec.tui.chat.tally import Depth, Tally, bar, cell

SECONDS = {"draft": 0.01, "verify": 0.03, "other": 0.01}


def rounds() -> list[Step]:
    chain = Proposal.chain((1, 2, 3))
    tree = Proposal((4, 5, 6), (-1, -1, 1))
    return [
        Step((9,)),
        Step((1, 2, 8), chain, (0, 1), SECONDS),
        Step((7,), chain, (), SECONDS),
        Step((5, 6, 7), tree, (1, 2), SECONDS),
        Step((7,), Proposal(), (), SECONDS),
    ]


def test_counts() -> None:
    tally = Tally()
    for step in rounds():
        tally.add(step)
    assert (tally.tokens, tally.rounds, tally.drafted, tally.accepted, tally.emitted) == (9, 4, 9, 4, 8)
    assert tally.tokens_per_round == 2.0
    assert tally.depths == [Depth(3, 3, 2), Depth(3, 2, 2), Depth(2, 1, 0)]
    assert tally.whole_seconds == pytest.approx(0.2)
    assert tally.tokens_per_second == pytest.approx(40)
    assert tally.recent(1) == pytest.approx(20)


def test_before_the_first_round_there_are_no_rates() -> None:
    tally = Tally()
    tally.add(Step((9,)))
    assert tally.tokens_per_second is None and tally.tokens_per_round is None and tally.recent() is None


def test_old_rounds_are_let_go_and_still_counted() -> None:
    tally = Tally(kept=2)
    for step in rounds():
        tally.add(step)
    assert len(tally.steps) == 2 and tally.dropped == 2 and tally.rounds == 4


def test_drawings() -> None:
    assert bar(0.5, 4) == "██  "
    assert bar(1.5, 3) == "███" and bar(-1, 3) == "   "
    assert bar(0.13, 4) == "▌   "
    assert cell(0, 4) == "▁" and cell(4, 4) == "█" and cell(9, 4) == "█"
