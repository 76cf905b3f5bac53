"""Characters as they are seen: steps through a text, and backspace in the prompt."""

import pytest

from mlxspec.display import clean
from mlxspec.tui.widgets.graphemes import after, before
from mlxspec.tui.widgets.prompt import Prompt
from tests.tui.pilot import run, staged

SEEN = [
    ["a", "b"],
    ["x", "👩‍👩‍👧‍👦", "y"],
    ["e\u0301", "q\u0323\u0307", " "],
    ["🇫🇷", "🇯🇵", "🇧🇷", "x"],
    ["👍🏽", "👍"],
    ["❤️", "1\ufe0f\u20e3", "✈"],
    ["🙂‍↔️", "🏳️‍🌈", "🐈‍⬛"],
    ["🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", "."],
    ["\u1112\u1161\u11ab", "글", "가\u11a8"],
    ["नि", "மு", "กำ"],
    ["日", "本"],
]


@pytest.mark.parametrize("characters", SEEN)
def test_steps_are_characters_as_seen(characters: list[str]) -> None:
    text, ends = "".join(characters), [0]
    for character in characters:
        ends.append(ends[-1] + len(character))
    forward, backward = [0], [len(text)]
    while forward[-1] < len(text):
        forward.append(after(text, forward[-1]))
    while backward[-1]:
        backward.append(before(text, backward[-1]))
    assert forward == ends and backward[::-1] == ends


def test_an_empty_text_has_no_step() -> None:
    assert before("", 0) == 0 and after("", 0) == 0


@pytest.mark.parametrize("characters", SEEN)
def test_each_backspace_takes_one_of_them(characters: list[str]) -> None:
    async def test() -> None:
        prompt = Prompt(clean)
        async with staged(prompt) as (_, pilot):
            prompt.put("first\n" + "".join(characters))
            for left in range(len(characters) - 1, -1, -1):
                await pilot.press("backspace")
                assert prompt.text == "first\n" + "".join(characters[:left])
            await pilot.press("backspace")
            assert prompt.text == "first", "then the line end goes"

    run(test())


def test_moving_and_deleting_forward_step_over_them_too() -> None:
    async def test() -> None:
        prompt = Prompt(clean)
        async with staged(prompt) as (_, pilot):
            prompt.put("a👩‍👩‍👧b")
            await pilot.press("left", "left")
            assert prompt.cursor_location == (0, 1)
            await pilot.press("right", "left", "ctrl+d")
            assert prompt.text == "ab"

    run(test())
