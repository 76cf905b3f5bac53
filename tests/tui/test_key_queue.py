"""Keys in their turn, on a machine that is slow to deal with them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from textual import events

from mlxspec.tui.widgets.prompt import Prompt
from mlxspec.tui.widgets.turns import Turn
from tests.tui.chatting import chatting
from tests.tui.pilot import run, until


def burst(app: Any, keys: str) -> None:
    """All the keys at once, as a terminal gives them that was not read for a while."""
    names = {"\t": "tab", "\r": "enter", " ": "space"}
    for key in keys:
        app.post_message(events.Key(names.get(key, key), key))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt and the messages take their time for a key."""
    for widget, delay in ((Prompt, 0.02), (Turn, 0.03)):
        deal = widget.on_event

        async def late(self: Any, event: Any, deal: Any = deal, delay: float = delay) -> None:
            if isinstance(event, events.Key):
                await asyncio.sleep(delay)
            await deal(self, event)

        monkeypatch.setattr(widget, "on_event", late)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("first", ["", "\t"])
def test_a_burst_is_one_text_wherever_the_focus_was_on_its_way_to(tmp_path: Path, first: str) -> None:
    async def test() -> None:
        async with chatting(tmp_path, said=["one", "two"]) as chat:
            await chat.say("first")
            burst(chat.app, first + "this deed ends\r")
            await until(chat.pilot, lambda: len(chat.talk.said) == 4)
            assert [turn.text for turn in chat.talk.said[::2]] == ["first", "this deed ends"]
            await chat.settled()

    run(test())


@pytest.mark.usefixtures("slow")
def test_what_is_typed_after_enter_is_not_sent_and_not_lost(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, said=["one"]) as chat:
            burst(chat.app, "hello\rthere")
            await until(chat.pilot, lambda: chat.app.screen_of_chat.prompt.text == "there")
            assert chat.talk.said[0].text == "hello"
            await chat.settled()

    run(test())


def test_a_widget_that_hangs_does_not_take_the_keyboard_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            dealt, go = Prompt._on_key, asyncio.Event()

            async def hang(self: Prompt, event: events.Key) -> None:
                await (go.wait() if event.key == "x" else dealt(self, event))

            monkeypatch.setattr(Prompt, "_on_key", hang)
            try:
                burst(chat.app, "x")
                await asyncio.sleep(1.1)
                chat.app.post_message(events.Key("ctrl+q", None))
                for _ in range(40):
                    await asyncio.sleep(0.05)
                    if chat.app.return_code is not None:
                        break
                assert chat.app.return_code == 0
            finally:
                go.set()

    run(test())
