"""A reply by origin as text: nothing of the reply is lost, drafts that were rejected are told apart without colour, and stay on one line."""

import pytest

from mlxspec.core.events import Step, Text
from mlxspec.core.proposal import Proposal
from mlxspec.tui.chat.message import ChatMessage
from mlxspec.tui.widgets.origin_view import by_origin, tree_of, visible

SPELLING = {1: "The", 2: " cat", 3: " sat", 4: "\n", 5: " on", 6: "\x1b[2J[x]"}
FIRST = Step((1,))
KEPT = Step((2, 3), Proposal((2, 4), (-1, 0)), (0,), {"draft": 0.001, "verify": 0.03, "other": 0.0}, "lookup")
LOST = Step((5,), Proposal((6,), (-1,), None, (0.25,)), (), {"draft": 0.001, "verify": 0.03, "other": 0.0}, "lookup")


def said() -> ChatMessage:
    pieces = [Text("The", FIRST), Text(" cat sat", KEPT), Text(" on", LOST)]
    return ChatMessage("assistant", "Before. The cat sat on", "stop", {}, pieces, SPELLING)


def test_rejected_drafts_stand_between_tildes_before_what_was_said_instead() -> None:
    content = by_origin(said())
    assert content is not None
    assert content.plain == "Before. The cat~⏎~ sat~[x]~ on"
    assert any("underline" in str(span.style) for span in content.spans) and any("strike" in str(span.style) for span in content.spans)


def test_a_reply_of_an_earlier_run_has_no_origin() -> None:
    assert by_origin(ChatMessage("assistant", "text", "stop")) is None


def test_the_tree_of_a_round() -> None:
    lines = tree_of(KEPT, said(), 0).plain.splitlines()
    assert lines[0] == "round 1 · lookup · kept 1 of 2" and lines[1] == "draft 1 · verify 30 · other 0 ms"
    assert "+ ␣cat" in lines and any(line.strip() == "= ␣sat" for line in lines)
    assert any(line.startswith("- ") and line.endswith("  q .25") for line in tree_of(LOST, said(), 1).plain.splitlines())
    looked_at = said()
    looked_at.chances[1] = (0.5,)
    assert any(line.endswith("  p .50 q .25") for line in tree_of(LOST, looked_at, 1).plain.splitlines())
    assert "\x1b" not in tree_of(LOST, said(), 1).plain


@pytest.mark.parametrize(("text", "shown"), [(" a", "a"), ("\n\n", "⏎⏎"), (" ", "␣"), ("", "␣"), ("a\tb", "a⇥b")])
def test_blanks_can_be_seen(text: str, shown: str) -> None:
    assert visible(text) == shown
