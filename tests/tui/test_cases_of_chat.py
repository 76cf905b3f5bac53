"""What people complained of in other chats, each as a test of this one (the screen's part), and input that is bad."""

from pathlib import Path

import pytest
from textual import events

from mlxspec.sessions.store import Store
from mlxspec.tui.chat.captions import arrived
from mlxspec.tui.chat.reports import Ready
from mlxspec.tui.screens.picker import Picker
from mlxspec.tui.widgets.turns import NoteTurn
from tests.tui.chatting import chatting
from tests.tui.pilot import run, until

EVIL = "\x1b]52;c;aGk=\x07\x1b[2J\x1b]0;owned\x07[/red] [link=x] \x9b31m\x00end"


def no_control(text: str) -> bool:
    return not any((ord(char) < 32 and char != "\n") or 0x7F <= ord(char) < 0xA0 for char in text)


def test_a_paste_of_many_lines_is_counted_and_too_much_is_said(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            chat.app.post_message(events.Paste("some words of a line\n" * 2499 + "end"))
            await until(chat.pilot, lambda: bool(chat.app.screen_of_chat.prompt.text))
            await chat.settled()
            assert "pasted 2500 lines" in chat.toasts
            await until(chat.pilot, lambda: "the model reads at most 4096" in chat.toasts)
            assert chat.talk.said == []

    run(test())


def test_a_reply_of_one_long_open_fence_is_all_there(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            lines = "\n".join(f"line [{number}" for number in range(500))
            chat.engine.script.append(f"```py\n{lines}")
            await chat.say("code please")
            assert "line [499" in chat.shown
            turn = chat.app.screen_of_chat.conversation.last_reply
            assert turn is not None and turn.source.count("line [") == 500 and turn.markdown.source.count("line [") == 500

    run(test())


def test_control_sequences_in_text_title_model_and_errors(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, load=False) as chat:
            chat.loader.broken.add(EVIL)
            chat.talk.load(f"name{EVIL}x", "auto")
            await until(chat.pilot, lambda: chat.talk.ready is not None)
            await chat.settled()
            chat.engine.script += [EVIL, EVIL]
            await chat.say("hello")
            chat.talk.rename(EVIL)
            chat.talk.load(EVIL)
            await chat.settled()
            for key in ("f6", "f3", "f3", "ctrl+o", "escape", "f4", "escape", "f5", "escape", "f7", "escape"):
                await chat.pilot.press(key)
                await chat.drawn()
                assert no_control(chat.shown), key
                assert "owned" not in chat.shown and "]52;" not in chat.shown, key
            assert "[/red] [link=x]" in chat.shown and "end" in chat.shown

    run(test())


def test_pasted_and_typed_control_characters(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            chat.app.post_message(events.Paste(EVIL))
            await until(chat.pilot, lambda: bool(chat.app.screen_of_chat.prompt.text))
            assert no_control(chat.app.screen_of_chat.prompt.text)
            await chat.pilot.press("enter")
            await chat.settled()
            assert no_control(chat.shown) and "[/red]" in chat.shown

    run(test())


@pytest.mark.parametrize("text", ["[", "[/]", "[red", "[/bold]", "[@click=app.quit]x[/]", "\\[", "[[[["])
def test_brackets_are_text_everywhere(tmp_path: Path, text: str) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            chat.engine.script += [text]
            await chat.say(text)
            chat.app.toast(text)
            chat.app.tell(text)
            chat.talk.rename(text)
            await chat.say(f"/model {text}")
            await chat.say(f"/set {text}")
            await chat.pilot.press("ctrl+o")
            await chat.drawn()
            assert text.strip() in chat.shown and chat.app.return_code is None

    run(test())


def test_the_context_is_shown_and_what_is_dropped_is_said(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            chat.engine.target.context_length = 120
            for number in range(6):
                await chat.say(f"message {number} with quite some words in it so that it fills up")
            assert "the oldest 4 turns are no longer seen" in chat.shown
            assert "/120" in chat.shown

    run(test())


def test_after_a_switch_of_models_memory_is_told_and_the_old_text_stays(tmp_path: Path) -> None:
    ready = Ready("big", "lookup", "on", None, 4096, {}, 2.5, int(4e9), int(1e8), int(9e9))
    assert arrived(ready) == "big with lookup, in 2.5 s; memory: 4.0 GB before, 0.1 GB once the old model was gone, 9.0 GB now"

    async def test() -> None:
        async with chatting(tmp_path, said=["an old reply"]) as chat:
            await chat.say("hello")
            await chat.say("/model other")
            await until(chat.pilot, lambda: chat.talk.ready is not None and chat.talk.ready.model == "other")
            await chat.settled()
            assert "other with lookup" in chat.toasts and "an old reply" in chat.shown
            await chat.say("and now")
            assert len(chat.talk.said) == 4

    run(test())


def test_resizing_at_any_moment(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            chat.engine.script.append("a word and\n```\nsome code\n```\n and then some more words to come")
            chat.engine.gate.close()
            await chat.say("hello", wait=False)
            for size in [(120, 40), (60, 15), (30, 8), (5, 2), (1, 1), (200, 60), (99, 24), (80, 24)]:
                chat.engine.gate.let(1)
                await chat.pilot.resize_terminal(*size)
                await chat.drawn()
            chat.engine.gate.open()
            await chat.settled()
            assert chat.shown.count("some code") == 1 and "more words to come" in chat.shown

    run(test())


def test_what_cannot_be_saved_is_said_and_the_chat_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    async def test() -> None:
        async with chatting(tmp_path, said=["one", "two"], store=Store(tmp_path / "file" / "sessions")) as chat:
            await chat.say("hello")
            await chat.say("again")
            assert "one" in chat.shown and "two" in chat.shown and "The session is not saved" in chat.shown

    run(test())


def test_a_damaged_session_is_kept_aside_and_said(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, said=["one"]) as chat:
            await chat.say("hello")
            await chat.pilot.press("ctrl+n")
            (path,) = (tmp_path / "sessions").glob("*.jsonl")
            data = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(data[:2]) + b"\x00\x01{broken\n" + b"".join(data[2:]))
            await chat.pilot.press("ctrl+o", "enter")
            await chat.settled()
            assert "kept aside" in chat.shown and list((tmp_path / "sessions").glob("*.damaged*"))

    run(test())


def test_a_prompt_over_the_context_comes_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            chat.engine.target.context_length = 50
            text = "word " * 80
            await chat.say(text)
            assert "reads at most 50" in chat.shown and chat.app.screen_of_chat.prompt.text == text

    run(test())


def test_an_editor_that_fails_leaves_the_prompt_as_it_was(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, environ={"EDITOR": "/no/such/editor"}) as chat:
            await chat.pilot.press(*"some text")
            await chat.pilot.press("ctrl+g")
            await chat.drawn()
            assert chat.app.screen_of_chat.prompt.text == "some text" and chat.toasts

    run(test())


def test_earlier_prompts_are_found(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, said=["one", "two", "three"]) as chat:
            for text in ("the first [thing]", "a second", "something third"):
                await chat.say(text)
            await chat.pilot.press("ctrl+r", *"first", "enter")
            assert chat.app.screen_of_chat.prompt.text == "the first [thing]"
            chat.app.screen_of_chat.prompt.take()
            await chat.pilot.press("ctrl+up")
            assert chat.app.screen_of_chat.prompt.text == "something third"

    run(test())


def test_copying_takes_the_source(tmp_path: Path) -> None:
    async def test() -> None:
        source = "Some **bold** vector<int>\n```py\nx = 1\n```\n"
        async with chatting(tmp_path) as chat:
            chat.engine.script.append(source)
            await chat.say("hello")
            copied: list[str] = []

            def keep(text: str) -> str:
                copied.append(text)
                return "a test"

            chat.app.copy_text = keep  # type: ignore[method-assign]
            await chat.pilot.press("ctrl+y", "tab", "y", "b")
            await chat.drawn()
            assert copied == [chat.talk.said[-1].text] * 2 + ["x = 1\n"]
            assert "by a test" in chat.toasts

    run(test())


def test_a_prompt_that_cannot_be_sent_is_said_once_and_one_key_clears_it(tmp_path: Path) -> None:
    """However often it is sent, changed or not; what comes after it is no part of it; undo brings it back."""

    async def test() -> None:
        async with chatting(tmp_path, said=["An answer"]) as chat:
            prompt, text = chat.app.screen_of_chat.prompt, "word " * 4000
            chat.engine.target.context_length = 50
            chat.app.post_message(events.Paste(text))
            await until(chat.pilot, lambda: prompt.text == text)
            for more in ("", "", "x", " y"):
                await chat.pilot.press(*more, "enter")
                await chat.settled()
                notes = list(chat.app.screen_of_chat.conversation.query(NoteTurn))
                assert len(notes) == 1 and "at most 50" in str(notes[0].render())
            pasted = prompt.text
            assert pasted == text + "x y" and chat.talk.said == []
            await chat.pilot.press("ctrl+c")
            assert prompt.text == "" and chat.app.return_code is None
            await chat.pilot.press("ctrl+z")
            assert prompt.text == pasted
            await chat.pilot.press("ctrl+c")
            await chat.say("short")
            assert [one.text for one in chat.talk.said] == ["short", "An answer"]
            await chat.pilot.press("ctrl+c", "ctrl+c")
            assert chat.app.return_code == 0

    run(test())


def test_ctrl_c_gives_up_an_edit(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, said=["one"]) as chat:
            await chat.say("first")
            await chat.pilot.press("tab", "e", "ctrl+c")
            assert chat.app.live.editing is None and chat.app.screen_of_chat.prompt.text == ""
            assert [one.text for one in chat.talk.said] == ["first", "one"] and chat.app.return_code is None

    run(test())


def test_what_is_refused_again_is_said_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            for _ in range(3):
                chat.app.screen_of_chat.prompt.take()
                await chat.say("/modle x")
            assert chat.toasts.count("did you mean /model?") == 1

    run(test())


def test_a_chat_in_which_nothing_was_said_is_not_in_the_list(tmp_path: Path) -> None:
    """Nor is the one that is open cut off."""

    async def test() -> None:
        async with chatting(tmp_path, said=["one"]) as chat:
            await chat.say("kept")
            await chat.pilot.press("ctrl+o")
            await chat.drawn()
            assert "kept" in chat.shown and "cut off" not in chat.shown
            await chat.pilot.press("escape", "ctrl+n")
            chat.engine.target.context_length = 3
            await chat.say("much too long for this")
            await chat.pilot.press("ctrl+o")
            await chat.drawn()
            picker = chat.app.screen
            assert isinstance(picker, Picker) and [item.title for item in picker._items] == ["kept"]

    run(test())
