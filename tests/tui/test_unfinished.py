"""A reply in pieces: nothing is lost, fences wait until they close, thinking is told apart, however the pieces are cut."""

import random

import pytest

from mlxspec.tui.chat.unfinished import UnfinishedReply

TEXTS = [
    "Plain prose, vector<int> and 5*3*2.\n\nA second paragraph.",
    "Look:\n```python\nx = [1]\n```\nDone.",
    "````md\n```\ninner\n```\n````\nafter",
    "~~~\ncode ``` still\n~~~\n",
    "- item\n  ```c\n  int x;\n  ```\n- next",
    "> ```\n> quoted\n> ```\n",
    "```never closed\nline\nline",
    "``inline`` and ```three``` in a line\n",
    "`",
    "",
    "\n\n\n",
]


def fed(text: str, cuts: random.Random | None = None, step: int = 1) -> UnfinishedReply:
    flow = UnfinishedReply()
    at = 0
    while at < len(text):
        width = cuts.randint(1, 9) if cuts else step
        flow.feed(text[at : at + width])
        at += width
    return flow


@pytest.mark.parametrize("text", TEXTS)
def test_nothing_is_lost_and_pieces_equal_the_whole(text: str) -> None:
    whole = fed(text, step=len(text) + 1)
    assert whole.settled + whole.fence == text
    assert whole.thinking == ""
    for seed in range(5):
        flow = fed(text, random.Random(seed))
        assert (flow.settled, flow.fence, flow.source) == (whole.settled, whole.fence, text)


def test_settled_only_grows_and_an_open_fence_is_not_in_it() -> None:
    text = "Look:\n```py\nx = 1\n\ny = 2\n```\nDone.\n"
    flow, before = UnfinishedReply(), ""
    for char in text:
        flow.feed(char)
        assert flow.settled.startswith(before)
        assert flow.settled.count("```") in (0, 2)
        before = flow.settled
    assert before == text


def test_a_fence_is_closed_by_its_own_mark_alone() -> None:
    flow = fed("````\n```\n~~~~\n")
    assert flow.settled == ""
    flow.feed("````\n")
    assert flow.fence == ""


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_thinking_is_kept_apart_and_kept(step: int) -> None:
    flow = fed("<think>\nHm, <b>.\n</think>\n\nYes.", step=step)
    assert flow.thinking.strip() == "Hm, <b>."
    assert flow.answer == "Yes."
    assert not flow.thinks


def test_thinking_that_goes_on() -> None:
    flow = fed("<think>half a thou")
    assert flow.thinks and flow.thinking == "half a thou" and flow.answer == ""


def test_thinking_that_the_template_opened_is_found_at_its_end() -> None:
    flow = fed("so, the answer\nis 4.</think>\n\n4")
    assert flow.thinking.strip() == "so, the answer\nis 4."
    assert flow.answer == "4"
    assert flow.restarts == 1


def test_a_tag_within_code_or_later_is_text() -> None:
    text = "Write\n```\n<think>\n</think>\n```\nand <think> too"
    flow = fed(text)
    assert flow.thinking == "" and flow.answer == text
