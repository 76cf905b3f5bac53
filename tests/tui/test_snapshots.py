"""Every screen as text, at three sizes. ``SNAPSHOTS=write`` writes them anew: read the difference before it is committed."""

from pathlib import Path

import pytest

from tests.tui.chatting import Chatting, chatting
from tests.tui.pilot import run, same_as_stored, until

SIZES = [(120, 40), (80, 24), (50, 15)]
ANSWER = "# Title\n\nSome **bold** text, vector<int> and `code [x]`:\n\n- one\n- two\n\n```python\nx = [1, 2]\n```\n\nDone."
THOUGHT = "<think>\nlet me see\n</think>\n\nYes."


async def welcome(chat: Chatting) -> None:
    pass


async def conversation(chat: Chatting) -> None:
    chat.engine.script += [ANSWER, THOUGHT]
    await chat.say("Why is [the] sky blue?\nTwo lines.")
    await chat.say("sure?")


async def streaming(chat: Chatting) -> None:
    chat.engine.script.append("Look: \n```python\nx = 1\ny = 2\n```\n and more to come")
    chat.engine.gate.close()
    await chat.say("show me", wait=False)
    chat.engine.gate.let(3)
    await until(chat.pilot, lambda: len(chat.talk.said[-1].pieces) == 3)
    await chat.drawn()
    chat.app.live.draw_panel()


async def origin(chat: Chatting) -> None:
    await chat.say("hello")
    await chat.pilot.press("f3")


async def round_detail(chat: Chatting) -> None:
    await chat.say("hello")
    await chat.pilot.press("f7", "left", "left")
    await chat.settled()


async def drawer(chat: Chatting) -> None:
    await chat.say("hello")
    await chat.pilot.press("f2")


async def models(chat: Chatting) -> None:
    await chat.pilot.press("f4")
    await until(chat.pilot, lambda: "other/model" in chat.shown)


async def sessions(chat: Chatting) -> None:
    await chat.pilot.press("ctrl+o")


async def parameters(chat: Chatting) -> None:
    await chat.pilot.press("f5")


async def help_(chat: Chatting) -> None:
    await chat.pilot.press("f1")


async def compare(chat: Chatting) -> None:
    await chat.say("hello")
    await chat.say("/compare")
    await until(chat.pilot, lambda: "identical" in chat.shown)


async def speaking(chat: Chatting) -> None:
    chat.talk.aloud._clock = lambda: 0.0
    chat.engine.script.append("**One** thing is said. Another thing is not yet heard.")
    await chat.say("hello")
    chat.voices.pieces.close()
    await chat.pilot.press("tab", "s")
    chat.voices.pieces.let(3)
    await until(chat.pilot, lambda: chat.voices.pieces.reached == 4)


async def speculation_off(chat: Chatting) -> None:
    await chat.say("/draft none")
    await until(chat.pilot, lambda: chat.talk.ready is not None and chat.talk.ready.drafter == "none")
    await chat.say("hello")


SCREENS = {
    "welcome": welcome,
    "conversation": conversation,
    "streaming": streaming,
    "origin": origin,
    "round": round_detail,
    "drawer": drawer,
    "models": models,
    "sessions": sessions,
    "parameters": parameters,
    "help": help_,
    "compare": compare,
    "off": speculation_off,
    "speaking": speaking,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SCREENS)
def test_screens(name: str, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")

    async def test() -> None:
        async with chatting(tmp_path, size) as chat:
            await SCREENS[name](chat)
            await chat.drawn()
            chat.app.clear_notifications()
            await chat.drawn()
            same_as_stored(chat.app, name)

    run(test())


def test_names_of_keys_are_in_the_help(tmp_path: Path) -> None:
    """Every binding that can be given another key has a name and a description."""

    async def test() -> None:
        async with chatting(tmp_path) as chat:
            for name, binding in chat.app.names.items():
                assert name and binding.description

    run(test())
