"""Spans by origin and trees of rounds: nothing of a reply is lost, and each part is what it is said to be."""

import pytest

from mlxspec.core.events import Step, Text
from mlxspec.core.proposal import Proposal
from mlxspec.tui.chat.origin import Span, lines, rejected, round_of, spans, spans_of
from tests.tui.fake_chat import FakeChatEngine

SPELL = {1: " the", 2: " cat", 3: " sat", 4: " lay", 5: " dog", 6: "\ufffd", 7: "\ufffd"}


def texts(engine: FakeChatEngine, **options: object) -> list[Text]:
    return [event for event in engine.stream("hello", **options) if isinstance(event, Text)]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_not_rejected_is_the_reply(seed: int) -> None:
    engine = FakeChatEngine(length=40)
    pieces = texts(engine, seed=seed)
    spell = dict(enumerate(engine.tokenizer.words))
    found = spans(pieces, spell)
    assert "".join(span.text for span in found if span.origin != "rejected") == "".join(piece.text for piece in pieces)
    accepted = sum(len(piece.step.path) for piece in pieces if piece.step is not None)
    assert sum(len(span.text.split()) for span in found if span.origin == "accepted") == accepted
    assert {span.text for span in found if span.origin == "rejected"} <= {" wrong", " worse"}


def test_the_rejected_draft_stands_before_the_correction() -> None:
    step = Step((1, 2, 4), Proposal((1, 2, 3, 5), (-1, 0, 1, -1)), (0, 1))
    assert spans_of(Text(" the cat lay", step), SPELL) == [Span(" the cat", "accepted"), Span(" sat", "rejected"), Span(" lay", "own")]


def test_a_bonus_token_corrects_nothing() -> None:
    step = Step((1, 2, 4), Proposal((1, 2), (-1, 0)), (0, 1))
    assert [span.origin for span in spans_of(Text(" the cat lay", step), SPELL)] == ["accepted", "own"]
    assert rejected(step) is None


def test_plain_rounds_and_the_first_token_are_the_targets_own() -> None:
    pieces = [Text(" the", Step((1,))), Text(" cat", Step((2,), Proposal())), Text("", Step((3,))), Text("!", None)]
    assert spans(pieces, {}) == [Span(" the", "own"), Span(" cat", "own"), Span("!", "own")]


@pytest.mark.parametrize(
    ("text", "step", "wanted"),
    [
        ("", Step((6, 6), Proposal((6,), (-1,)), (0,)), []),
        ("😀", Step((6, 7), Proposal((6,), (-1,)), (0,)), [("😀", "accepted")]),
        ("😀 lay", Step((7, 4), Proposal((7,), (-1,)), (0,)), [("😀", "accepted"), (" lay", "own")]),
        (" the😀", Step((1, 7), Proposal((1,), (-1,)), (0,)), [(" the", "accepted"), ("😀", "own")]),
        (" the", Step((1,), Proposal((1, 2), (-1, 0)), ()), [(" the", "own")]),
    ],
)
def test_bytes_that_were_held_back_are_not_lost(text: str, step: Step, wanted: list[tuple[str, str]]) -> None:
    assert [(span.text, span.origin) for span in spans_of(Text(text, step), SPELL)] == wanted


def test_a_tree_says_what_became_of_each_row() -> None:
    step = Step((1, 4), Proposal((1, 5, 3, 2), (-1, -1, 0, 1), None, (0.8, 0.1, 0.5, 0.05)), (0,), {"draft": 0.1}, "small")
    tree = round_of(step, SPELL)
    assert [node.state for node in tree.nodes] == ["accepted", "rejected", "rejected", "untested"]
    assert [node.q for node in tree.nodes] == [0.8, 0.1, 0.5, 0.05]
    assert (tree.own, tree.path, tree.drafter, tree.seconds) == (" lay", (0,), "small", {"draft": 0.1})
    assert [node.text for node in tree.children(-1)] == [" the", " dog"]
    assert lines(tree) == ["+ ␣the  q .80", "  - ␣sat  q .50", "  = ␣lay", "- ␣dog  q .10", "  . ␣cat  q .05"]
    seen = round_of(step, SPELL, (0.999, 0.0, 0.25, 0.004))
    assert [line.partition("  p ")[2] for line in lines(seen) if " p " in line] == ["1.0 q .80", ".25 q .50", ".00 q .10", ".00 q .05"]


def test_a_round_without_values_or_known_tokens() -> None:
    tree = round_of(Step((1,), Proposal((99,), (-1,)), ()), {1: "\x1b[2J"})
    assert (tree.nodes[0].q, tree.nodes[0].text) == (None, "?")
    assert lines(tree) == ["- ?", "= \\x1b[2J"]
    assert round_of(Step((1,)), {1: "a"}).nodes == ()
