"""The app as a whole, with a fake engine: every key and command, one by one, and what a person does in a day."""

from pathlib import Path

import pytest
from textual.widgets import Input

from mlxspec.errors import MlxspecError
from mlxspec.tui.screens.help import HelpScreen
from mlxspec.tui.screens.options import OptionsScreen
from mlxspec.tui.screens.picker import Picker
from mlxspec.tui.widgets.turns import ReplyTurn, UserTurn
from tests.tui.chatting import chatting
from tests.tui.pilot import run, until


def test_a_conversation_of_two_turns_is_shown_and_saved(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, said=["First **reply** here", "Second one"]) as chat:
            await chat.say("hello [world]")
            await chat.say("and again")
            shown = chat.shown
            assert "hello [world]" in shown and "First reply here" in shown and "Second one" in shown
            assert "41.5 tok/s" in shown and "SPEC ON" in shown and "speculation ON · lookup" in shown
            assert [one.text for one in chat.talk.said] == ["hello [world]", "First **reply** here", "and again", "Second one"]
            saved, fault = chat.store.read(chat.talk.session_id or "")
            assert fault is None and [turn.text for turn in saved.turns] == [one.text for one in chat.talk.said]

    run(test())


def test_typing_works_while_the_model_loads_and_the_message_waits(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, load=False) as chat:
            chat.loader.gate.close()
            chat.talk.load("fake", "auto")
            await until(chat.pilot, lambda: chat.talk.loading is not None)
            await chat.drawn()
            assert "Model fake from nowhere." in chat.shown
            await chat.pilot.press(*"hi", "enter")
            await chat.drawn()
            assert "waiting" in chat.shown or "fake from nowhere" in chat.shown
            assert [one.text for one in chat.talk.said] == ["hi", ""]
            chat.loader.gate.open()
            await until(chat.pilot, lambda: chat.talk.said[-1].finish == "stop")
            await chat.settled()

    run(test())


def test_escape_keeps_the_text_and_c_goes_on_from_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            chat.engine.gate.close()
            await chat.say("tell me", wait=False)
            chat.engine.gate.let(3)
            await until(chat.pilot, lambda: len(chat.talk.said[-1].text) > 3)
            await chat.pilot.press("escape")
            await chat.settled()
            begun = chat.talk.said[-1]
            assert begun.finish == "interrupted" and begun.text
            assert "stopped (c goes on)" in chat.shown
            chat.engine.gate.open()
            await chat.pilot.press("tab", "c")
            await chat.settled()
            whole = chat.talk.said[-1]
            assert whole.finish == "stop" and whole.text.startswith(begun.text) and len(whole.text) > len(begun.text)
            assert len(chat.talk.said) == 2 and "stopped" not in chat.shown
            turn = chat.app.screen_of_chat.conversation.last_reply
            assert turn is not None and turn.source == whole.text

    run(test())


def test_the_line_below_a_stopped_reply_is_gone_while_it_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            chat.engine.gate.close()
            await chat.say("tell me", wait=False)
            chat.engine.gate.let(3)
            await until(chat.pilot, lambda: len(chat.talk.said[-1].pieces) == 3)
            await chat.pilot.press("escape")
            await chat.settled()
            assert "stopped" in chat.shown and "tok/s ·" in chat.shown
            await chat.pilot.press("tab", "c")
            chat.engine.gate.let(2)
            await until(chat.pilot, lambda: len(chat.talk.said[-1].pieces) == 5)
            await chat.drawn()
            turn = chat.app.screen_of_chat.conversation.last_reply
            assert chat.talk.answering and turn is not None and turn.below == "" and "stopped" not in chat.shown
            await chat.pilot.press("escape")
            await chat.settled()
            assert "stopped" in chat.shown

    run(test())


def test_ctrl_c_stops_first_and_quits_only_when_asked_twice(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            chat.engine.gate.close()
            await chat.say("tell me", wait=False)
            chat.engine.gate.let(2)
            await until(chat.pilot, lambda: bool(chat.talk.said[-1].text))
            await chat.pilot.press("ctrl+c")
            await chat.settled()
            assert chat.talk.said[-1].finish == "interrupted" and chat.app.return_code is None
            assert chat.app.screen_of_chat.prompt.has_focus
            await chat.pilot.press("ctrl+c")
            assert chat.app.return_code is None
            await chat.pilot.press("ctrl+c")
            assert chat.app.return_code == 0

    run(test())


def test_a_reply_is_spoken_by_a_key_and_esc_silences(tmp_path: Path) -> None:
    """Also while the voice loads. The panel of speech gives its place back; an s that is typed is an s."""

    async def test() -> None:
        async with chatting(tmp_path, said=["One thing. Another thing."]) as chat:
            await chat.say("yes", wait=True)
            assert chat.talk.said[0].text == "yes" and chat.talk.aloud.hearing is None
            chat.voices.pieces.close()
            await chat.pilot.press("up", "s")
            await until(chat.pilot, lambda: chat.voices.pieces.reached == 1)
            chat.voices.pieces.let(1)
            await until(chat.pilot, lambda: chat.voices.pieces.reached == 2)
            await chat.drawn()
            for line in (
                "speaking · anna",
                "rule: coupled (exact)",
                "first sound after 0.25 s",
                "0.40 s for a second",
                "accepted 30/40",
                "One thing.",
            ):
                assert line in chat.shown
            assert "speaking …   esc stops" in chat.shown and "Another thing.\n" not in chat.shown.partition("buffer")[2]
            assert chat.app.screen_of_chat.prompt.has_focus and "tokens/round" not in chat.shown
            await chat.pilot.press("escape")
            await chat.settled()
            assert chat.talk.aloud.hearing is None and "tokens/round" in chat.shown and "rule:" not in chat.shown
            await chat.pilot.press(*"ss")
            assert chat.app.screen_of_chat.prompt.text == "ss"
            chat.voices.gate.close()
            await chat.say("/speak bert", wait=False)
            await chat.drawn()
            assert "Loading the voice bert." in chat.shown or "Voice from nowhere." in chat.shown
            await chat.pilot.press("ctrl+c")
            chat.voices.gate.open()
            await chat.settled()
            assert chat.voices.made[-1].said == [] and chat.app.return_code is None

    run(test())


def test_what_cannot_be_spoken_is_said(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, keys={"turn_speak": "v"}) as chat:
            await chat.say("/speak")
            assert "There is nothing to speak: send a message first." in chat.toasts
            chat.engine.gate.close()
            await chat.say("hello", wait=False)
            await chat.drawn()
            await chat.pilot.press("tab", "v")
            assert "A reply is coming: stop it first" in chat.toasts
            chat.engine.gate.open()
            await chat.settled()
            chat.voices.failure = MlxspecError("Playing needs sounddevice, which is not installed: pip install 'mlxspec[play]'.")
            await chat.pilot.press("tab", "v")
            await chat.settled()
            chat.app.clear_notifications()
            await chat.drawn()
            assert "Playing needs sounddevice" in chat.shown and chat.talk.aloud.hearing is None

    run(test())


def test_regenerate_edit_and_delete_by_keys(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, said=["one", "two", "three", "four"]) as chat:
            await chat.say("first")
            await chat.say("second")
            await chat.pilot.press("up", "r")
            await chat.settled()
            assert [one.text for one in chat.talk.said] == ["first", "one", "second", "three"]
            await chat.pilot.press("tab", "up", "e")
            assert chat.app.screen_of_chat.prompt.text == "second" and "editing message 3" in (await drawn(chat))
            await chat.pilot.press(*"!!", "enter")
            await chat.settled()
            assert [one.text for one in chat.talk.said] == ["first", "one", "second!!", "four"]
            await chat.pilot.press("tab", "up", "d", "enter")
            await chat.settled()
            assert len(chat.talk.said) == 4
            await chat.pilot.press("tab", "up", "d", "down", "enter")
            await chat.settled()
            assert [one.text for one in chat.talk.said] == ["first", "one"]
            assert [type(turn) for turn in chat.app.screen_of_chat.conversation.turns] == [UserTurn, ReplyTurn]

    async def drawn(chat: object) -> str:
        await chat.drawn()  # type: ignore[attr-defined]
        return str(chat.shown)  # type: ignore[attr-defined]

    run(test())


def test_writing_while_a_message_is_selected_goes_to_the_prompt(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, said=["one"]) as chat:
            await chat.say("first")
            await chat.pilot.press("tab", *"Which dce?")
            assert chat.app.screen_of_chat.prompt.text == "Which dce?" and len(chat.talk.said) == 2

    run(test())


def test_giving_up_an_edit(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, said=["one"]) as chat:
            await chat.say("first")
            await chat.pilot.press("tab", "e", "escape")
            assert chat.app.live.editing is None and chat.app.screen_of_chat.prompt.text == ""
            assert len(chat.talk.said) == 2

    run(test())


@pytest.mark.parametrize("key", ["ctrl+q", "ctrl+d"])
def test_keys_that_quit(tmp_path: Path, key: str) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            await chat.pilot.press(key)
            assert chat.app.return_code == 0

    run(test())


def test_quit_cannot_be_lost(tmp_path: Path) -> None:
    """Whatever the table of keys says, ctrl+q quits; what is odd in it is said."""

    async def test() -> None:
        keys = {"quit": "f9", "stop": "ctrl+q", "sned": "x", "send": "ctrl+s"}
        async with chatting(tmp_path, keys=keys) as chat:
            await chat.drawn()
            assert "'sned' is unknown: did you mean send?" in chat.shown and "ctrl+q always quits" in chat.shown
            await chat.pilot.press("a", "enter")
            assert chat.app.screen_of_chat.prompt.text == "a\n" and chat.talk.said == []
            await chat.pilot.press("ctrl+s")
            assert len(chat.talk.said) == 2
            await chat.pilot.press("ctrl+q")
            assert chat.app.return_code == 0

    run(test())


def test_quit_by_a_key_of_ones_own(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, keys={"quit": "f9"}) as chat:
            await chat.pilot.press("f9")
            assert chat.app.return_code == 0

    run(test())


def test_a_new_chat_and_an_old_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, said=["one", "two"]) as chat:
            await chat.say("first")
            await chat.pilot.press("ctrl+n")
            await chat.drawn()
            assert chat.talk.said == [] and "Three things to try" in chat.shown
            await chat.say("second")
            await chat.pilot.press("ctrl+o")
            picker = chat.app.screen
            assert isinstance(picker, Picker)
            await chat.pilot.press(*"first", "enter")
            await chat.settled()
            assert [one.text for one in chat.talk.said] == ["first", "one"] and "first" in chat.shown

    run(test())


def test_sessions_are_deleted_and_exported_from_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def test() -> None:
        async with chatting(tmp_path, said=["one", "two"]) as chat:
            await chat.say("first")
            await chat.pilot.press("ctrl+n")
            await chat.say("second")
            await chat.pilot.press("ctrl+o", *"first", "ctrl+e")
            await chat.drawn()
            (written,) = tmp_path.glob("*.md")
            assert "first" in written.read_text("utf-8")
            await chat.pilot.press("ctrl+o", *"first", "ctrl+d", "enter")
            assert len(chat.store.summaries()) == 2
            await chat.pilot.press("ctrl+o", *"first", "ctrl+d", "down", "enter")
            assert len(chat.store.summaries()) == 1

    run(test())


def test_models_and_drafters_with_what_does_not_fit(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            await chat.pilot.press("f4")
            await until(chat.pilot, lambda: "other/model" in chat.shown)
            assert "✗ bad" in chat.shown and "no weights [x]" in chat.shown and "2 of 2 drafters fit" in chat.shown
            await chat.pilot.press(*"other/model", "enter")
            await until(chat.pilot, lambda: chat.talk.ready is not None and chat.talk.ready.model == "other/model")
            await chat.settled()
            assert "other/model" in chat.shown
            await chat.say("/draft")
            await until(chat.pilot, lambda: "plain decoding" in chat.shown)
            await chat.pilot.press(*"plain", "down", "enter")
            await until(chat.pilot, lambda: chat.talk.ready is not None and chat.talk.ready.drafter == "none")
            await chat.settled()
            assert "speculation OFF" in chat.shown and "--drafter none" in chat.shown

    run(test())


def test_a_model_that_cannot_be_loaded_leaves_the_chat_usable(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, said=["still here"]) as chat:
            await chat.say("/model broken")
            assert "There is no model at broken" in chat.shown
            chat.engine.script.append("still here")
            await chat.say("hello")
            assert "still here" in chat.shown

    run(test())


def test_parameters_by_form_and_by_command(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            await chat.pilot.press("f5")
            assert isinstance(chat.app.screen, OptionsScreen)
            field = chat.app.screen.query_one("#temperature", Input)
            field.focus()
            await chat.pilot.press(*"0.3", "enter", "escape")
            assert chat.talk.settings["temperature"] == 0.3
            await chat.say("/set top_p 0.8")
            assert chat.talk.settings["top_p"] == 0.8
            await chat.say("/set temperature [hot]")
            assert "[hot]" in chat.shown and chat.talk.settings["temperature"] == 0.3
            assert chat.app.screen_of_chat.prompt.text == "/set temperature [hot]"

    run(test())


def test_help_and_its_keys(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            await chat.pilot.press("f1")
            assert (isinstance(chat.app.screen, HelpScreen) and "/compare" in chat.shown) or "send" in chat.shown
            await chat.pilot.press("escape")
            await chat.say("/help")
            assert isinstance(chat.app.screen, HelpScreen)
            await chat.pilot.press("q")
            await chat.say("/help model")
            assert "choose a model" in chat.shown

    run(test())


def test_views_of_a_reply(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, said=["Some **bold** text that goes on for a while so that rounds come"]) as chat:
            await chat.say("hello")
            assert "Some bold text" in chat.shown
            await chat.pilot.press("f6")
            await chat.drawn()
            assert "Some **bold** text" in chat.shown
            await chat.pilot.press("f6")
            await chat.drawn()
            assert "Some bold text" in chat.shown
            await chat.pilot.press("f3")
            await chat.drawn()
            assert "~wrong~" in chat.shown.replace("~ wrong", "~wrong")

    run(test())


def test_the_panel_and_the_tree_of_a_round(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            await chat.say("hello")
            await chat.pilot.press("f7")
            await chat.drawn()
            assert "▲" in chat.shown and "wrong" in chat.shown
            await chat.settled()
            assert "p .50 q .05" in chat.shown, "the model was asked when the round was looked at"
            await chat.pilot.press("escape")
            await chat.drawn()
            assert "▲" not in chat.shown
            await chat.pilot.press("tab", "left", "left")
            await chat.drawn()
            assert "▲" in chat.shown
            await chat.pilot.press("escape", "f2")
            await chat.drawn()
            assert "speculation ON" not in chat.shown
            await chat.pilot.press("f2")
            await chat.drawn()
            assert "speculation ON" in chat.shown

    run(test())


def test_on_a_narrow_terminal_the_panel_is_a_drawer(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, (80, 24)) as chat:
            assert "speculation ON" not in chat.shown
            await chat.pilot.press("f2")
            await chat.drawn()
            assert "speculation ON" in chat.shown
            await chat.pilot.press("escape")
            await chat.drawn()
            assert "speculation ON" not in chat.shown
            await chat.pilot.resize_terminal(20, 5)
            assert "too small" in chat.shown
            await chat.pilot.resize_terminal(120, 40)
            await chat.drawn()
            assert "speculation ON" in chat.shown

    run(test())


def test_comparing_plain_and_speculative(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            await chat.say("hello")
            await chat.say("/compare")
            await until(chat.pilot, lambda: "identical: yes" in chat.shown)
            assert "2.08× plain on this prompt" in chat.shown
            await chat.pilot.press("escape")
            await chat.say("/compare", wait=False)
            chat.engine.gate.close()
            await chat.pilot.press("escape")
            chat.engine.gate.open()
            await chat.settled()
            assert len(chat.talk.said) == 2

    run(test())


def test_speculation_off_says_why(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            await chat.say("/spec off")
            assert "speculation OFF" in chat.shown and "/spec on" in chat.shown
            await chat.say("hello")
            assert chat.engine.asked[-1]["draft_tokens"] == 0

    run(test())


def test_a_reply_that_fails_is_said_and_what_was_typed_comes_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            chat.engine.fails_after = 0
            chat.engine.target.context_length = 3
            await chat.say("a prompt that is much too long for this")
            assert chat.app.screen_of_chat.prompt.text == "a prompt that is much too long for this"
            assert "reads at most 3" in chat.shown and chat.talk.said == []

    run(test())


def test_a_failure_in_mid_reply_keeps_the_text(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            chat.engine.fails_after = 2
            await chat.say("hello")
            assert chat.talk.said[-1].text and "[metal::malloc] too much" in chat.shown

    run(test())


def test_unknown_commands_stay_in_the_prompt(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            await chat.say("/modle x")
            assert "did you mean /model?" in chat.shown and chat.app.screen_of_chat.prompt.text == "/modle x"
            chat.app.screen_of_chat.prompt.take()
            await chat.say("/usr/bin is a folder")
            assert chat.talk.said[0].text == "/usr/bin is a folder"

    run(test())


def test_the_palette_holds_every_command(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path) as chat:
            titles = [command.title for command in chat.app.get_system_commands(chat.app.screen)]
            assert {"/model", "/compare", "/exit", "panel", "origin", "Theme"} <= set(titles)
            await chat.pilot.press("ctrl+p")
            await chat.pilot.pause()
            await chat.pilot.press("escape")
            for command in chat.app.get_system_commands(chat.app.screen):
                if command.title == "/search":
                    command.callback()
            assert chat.app.screen_of_chat.prompt.text == "/search "

    run(test())


def test_the_first_screen_says_what_to_try_and_what_the_panel_is_for(tmp_path: Path) -> None:
    """Each of the three things works as it is said."""

    async def test() -> None:
        async with chatting(tmp_path) as chat:
            assert chat.shown.count("F3") == 1 and "/compare" in chat.shown and "A drafter guesses" in chat.shown
            await chat.pilot.press(*"Why?", "enter")
            await chat.settled()
            assert len(chat.talk.said) == 2 and "A drafter guesses" not in chat.shown and "tok/s" in chat.shown
            await chat.pilot.press("f3")
            await chat.drawn()
            assert "~" in chat.shown
            await chat.say("/compare")
            await until(chat.pilot, lambda: "identical: yes" in chat.shown)

    run(test())


@pytest.mark.parametrize("size", [(30, 8), (50, 15), (80, 24)])
def test_the_welcome_fits_or_can_be_scrolled(size: tuple[int, int], tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, size) as chat:
            await chat.drawn()
            welcome = chat.app.screen_of_chat.query_one("#welcome")
            assert welcome.size.height >= welcome.get_content_height(welcome.size, welcome.size, welcome.size.width)

    run(test())
