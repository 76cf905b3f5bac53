"""Prompt, panel, pickers and forms, each alone: every key, foreign text, and what they say to the app."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from textual import events
from textual.document._document import Document
from textual.document._wrapped_document import WrappedDocument
from textual.widgets import Input, OptionList, Static

from mlxspec.core.events import Done, Step, Text
from mlxspec.display import clean
from mlxspec.settings.options import Options
from mlxspec.tui.chat.reports import Baseline, Compared, Lane
from mlxspec.tui.chat.tally import Tally
from mlxspec.tui.keys import bindings_of
from mlxspec.tui.screens.compare import CompareScreen
from mlxspec.tui.screens.help import HelpScreen
from mlxspec.tui.screens.options import OptionsScreen, read, written
from mlxspec.tui.screens.picker import Choice, Item, Picker
from mlxspec.tui.widgets.panel import RoundStrip, SpeculationPanel
from mlxspec.tui.widgets.prompt import Prompt
from mlxspec.tui.widgets.turns import Turn
from tests.tui.chatting import chatting
from tests.tui.pilot import run, screen_text, staged, until
from tests.tui.test_tally import rounds

EVIL = "\x1b]52;c;aGk=\x07\x1b[2J[bold]x[/bold] [red"


# ---- The prompt --------------------------------------------------------------------------------------------------------------------------


def test_enter_sends_and_ctrl_j_makes_a_line() -> None:
    async def test() -> None:
        async with staged(Prompt(clean)) as (app, pilot):
            await pilot.press("enter", "a", "ctrl+j", "b", "shift+enter", "c", "enter")
            assert [sent.text for sent in app.of(Prompt.Sent)] == ["a\nb\nc"]

    run(test())


def test_keys_of_the_prompt() -> None:
    async def test() -> None:
        prompt = Prompt(clean)
        async with staged(prompt) as (app, pilot):
            prompt.remember(["first", "second\nline"])
            await pilot.press("ctrl+up")
            assert prompt.text == "second\nline"
            await pilot.press("ctrl+up", "ctrl+up")
            assert prompt.text == "first"
            await pilot.press("ctrl+down", "ctrl+down", "ctrl+down")
            assert prompt.text == ""
            await pilot.press("ctrl+d")
            assert len(app.of(Prompt.QuitAsked)) == 1
            await pilot.press("x", "left", "ctrl+d")
            assert prompt.text == "" and len(app.of(Prompt.QuitAsked)) == 1
            await pilot.press("up", "tab")
            assert len(app.of(Prompt.Left)) == 2

    run(test())


def test_what_was_begun_comes_back_after_looking_at_the_past() -> None:
    async def test() -> None:
        prompt = Prompt(clean)
        async with staged(prompt) as (_, pilot):
            prompt.remember(["old"])
            await pilot.press("n", "e", "w", "ctrl+up", "ctrl+down")
            assert prompt.text == "new"

    run(test())


def test_a_large_paste_is_quick_clean_and_said() -> None:
    """200 kB: a few times what laying the text out once takes on this machine, whatever that is; no line of it is sent."""

    async def test() -> None:
        import time

        prompt = Prompt(clean)
        async with staged(prompt) as (app, pilot):
            text = "a line of [text] \x1b[31m\r\n" * 10_000
            started = time.process_time()
            WrappedDocument(Document(clean(text))).wrap(80)
            once, started = time.process_time() - started, time.process_time()
            app.post_message(events.Paste(text))
            await until(pilot, lambda: bool(prompt.text))
            await pilot.pause()
            spent = time.process_time() - started
            assert prompt.text == "a line of [text] \n" * 10_000
            assert [(pasted.lines, pasted.characters) for pasted in app.of(Prompt.Pasted)] == [(10_001, 180_000)]
            assert app.of(Prompt.Sent) == []
            assert spent < 5 * once
            assert prompt.size.height <= 10

    run(test())


def test_a_paste_replaces_what_is_selected() -> None:
    async def test() -> None:
        prompt = Prompt(clean)
        async with staged(prompt) as (app, pilot):
            prompt.put("abc")
            prompt.select_all()
            app.post_message(events.Paste("xyz"))
            await until(pilot, lambda: prompt.text == "xyz")

    run(test())


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (10, 3)])
def test_a_prompt_without_room_does_not_fail(size: tuple[int, int]) -> None:
    async def test() -> None:
        async with staged(Prompt(clean), size) as (app, pilot):
            await pilot.press("a", "backspace")
            assert app.return_code in (None, 0)

    run(test())


# ---- The panel ---------------------------------------------------------------------------------------------------------------------------


def tallied() -> Tally:
    tally = Tally()
    for step in rounds():
        tally.add(step)
    return tally


def test_numbers_of_the_panel() -> None:
    async def test() -> None:
        panel = SpeculationPanel()
        async with staged(panel, (38, 40)) as (app, pilot):
            panel.say_state("on", None, "redrafter")
            panel.say_numbers(tallied(), Baseline(16.0, 90, 0.0, True))
            await pilot.pause()
            shown = screen_text(app)
            for words in ("speculation ON · redrafter", "40.0 tok/s", "2.50× plain", "measured on this machine", "2.00 tokens/round", "accepted 4/9"):
                assert words in shown, shown
            assert "▆▁▆▁" in shown and "draft 20%" in shown and "verify 60%" in shown
            assert "67%    100%" in shown
            panel.say_numbers(tallied(), None, final=12.3)
            await pilot.pause()
            assert "12.3 tok/s" in screen_text(app) and "not measured yet" in screen_text(app)

    run(test())


@pytest.mark.parametrize("state", ["off", "paused"])
def test_why_speculation_is_not_on(state: str) -> None:
    async def test() -> None:
        panel = SpeculationPanel()
        async with staged(panel, (38, 20)) as (app, pilot):
            panel.say_state(state, "the target takes no drafts [x]", "lookup")
            await pilot.pause()
            assert f"speculation {state.upper()}" in screen_text(app) and "takes no drafts [x]" in screen_text(app)

    run(test())


def test_rounds_are_selected_by_keys_and_by_mouse() -> None:
    async def test() -> None:
        panel = SpeculationPanel()
        async with staged(panel, (38, 30)) as (app, pilot):
            panel.say_numbers(tallied(), None)
            strip = panel.strip
            strip.focus()
            await pilot.press("left")
            assert strip.selected == 3
            await pilot.press("left", "left")
            assert strip.selected == 1
            await pilot.press("right", "home")
            assert strip.selected == 0
            await pilot.press("left", "end")
            assert strip.selected == 3
            await pilot.click(RoundStrip, offset=(2, 0))
            assert strip.selected == 2
            assert "  ▲" in screen_text(app)
            await pilot.press("escape")
            assert strip.selected is None and len(app.of(RoundStrip.Left)) == 1
            assert [message.round for message in app.of(RoundStrip.Selected)][-3:] == [3, 2, None]

    run(test())


def test_of_many_rounds_the_newest_are_shown() -> None:
    async def test() -> None:
        strip = RoundStrip()
        async with staged(strip, (20, 5)) as (app, pilot):
            strip.cells = "▁" * 50 + "█" * 10
            await pilot.pause()
            assert screen_text(app).splitlines()[0] == "▁" * 10 + "█" * 10
            strip.focus()
            await pilot.press("home")
            assert strip.selected == 0 and screen_text(app).splitlines()[:2] == ["▁" * 20, "▲"]

    run(test())


# ---- The picker --------------------------------------------------------------------------------------------------------------------------

ITEMS = [
    Item("", "models"),
    Item("one", "one [x]", "93 MB"),
    Item("two", clean(EVIL), "too large", enabled=False),
    Item("three", "three", "built-in"),
]


def test_choosing_by_keys() -> None:
    async def test() -> None:
        async with staged(Picker("pick [one", ITEMS)) as (app, pilot):
            await pilot.press("down", "enter")
            assert app.answer == Choice("three")

    run(test())


def test_typing_narrows_and_what_does_not_fit_cannot_be_chosen() -> None:
    async def test() -> None:
        picker = Picker("pick", ITEMS)
        async with staged(picker) as (app, pilot):
            assert "✗ [bold]x[/bold] [red  too large" in screen_text(app)
            await pilot.press(*"too")
            assert picker.highlighted is None
            await pilot.press("enter")
            assert app.screen is picker
            await pilot.press("backspace", "backspace", *"hr")
            assert picker.query_one(OptionList).option_count == 1
            await pilot.press("enter")
            assert app.answer == Choice("three")

    run(test())


def test_a_name_as_typed_and_further_actions() -> None:
    async def test() -> None:
        async with staged(Picker("pick", ITEMS, free="a hub id")) as (app, pilot):
            await pilot.press(*"me/it", "enter")
            assert app.answer == Choice("me/it")
        async with staged(Picker("pick", ITEMS, actions=[("ctrl+e", "export", "export")])) as (app, pilot):
            await pilot.press("ctrl+e")
            assert app.answer == Choice("one", "export")
        async with staged(Picker("pick", ITEMS)) as (app, pilot):
            await pilot.press("escape")
            assert app.answer is None

    run(test())


def test_a_thousand_items_and_none() -> None:
    async def test() -> None:
        many = [Item(f"{number}", f"item {number}") for number in range(1000)]
        picker = Picker("pick", many)
        async with staged(picker) as (app, pilot):
            await pilot.press(*"item 999", "enter")
            assert app.answer == Choice("999")
        async with staged(Picker("pick", [])) as (app, pilot):
            await pilot.press("enter", "down")
            assert "nothing fits" in screen_text(app)

    run(test())


# ---- Forms and help ----------------------------------------------------------------------------------------------------------------------


def refuse(chosen: Any) -> str | None:
    try:
        Options(**chosen)
    except Exception as error:
        return str(error)
    return None


def test_parameters_are_set_checked_and_unset() -> None:
    async def test() -> None:
        screen = OptionsScreen({"temperature": 0.2}, {"top_p": 0.9}, refuse)
        async with staged(screen, (100, 40)) as (app, pilot):
            field = screen.query_one("#temperature", Input)
            assert field.value == "0.2" and screen.query_one("#top_p", Input).placeholder == "0.9"
            field.focus()
            field.value = "1.5"
            await pilot.press("enter")
            field.value = "hot"
            await pilot.press("enter")
            assert "hot" in str(screen.query_one("#refused", Static).render()) and field.has_class("-refused")
            field.value = ""
            await pilot.press("down")
            await until(pilot, lambda: not field.has_class("-refused"))
            draft = screen.query_one("#draft_tokens", Input)
            draft.focus()
            draft.value = "4"
            await pilot.press("escape")
            changes = [(change.name, change.value, change.unset) for change in app.of(OptionsScreen.Changed)]
            assert changes == [("temperature", 1.5, False), ("temperature", None, True), ("draft_tokens", 4, False)], changes

    run(test())


@pytest.mark.parametrize(
    ("name", "text", "value"), [("stop", "a b", ("a b",)), ("stop", '["a", "b"]', ("a", "b")), ("top_k", "5", 5), ("seed", "7", 7)]
)
def test_values_as_typed(name: str, text: str, value: Any) -> None:
    assert read(name, text) == value
    assert read(name, written(value)) == value


def written_out(screen: HelpScreen) -> str:
    """All of the help, what cannot be seen without scrolling as well."""
    file = io.StringIO()
    Console(width=100, file=file).print(screen._text())
    return file.getvalue()


def test_help_lists_keys_and_commands() -> None:
    async def test() -> None:
        screen = HelpScreen({"here": bindings_of(Prompt)}, {"send": "ctrl+s"}, [("/model [NAME]", "another model")], [EVIL])
        async with staged(screen, (100, 60)) as (app, pilot):
            assert "ctrl+s" in screen_text(app)
            text = written_out(screen)
            assert "/model [NAME]" in text and "newline" in text and "[bold]x[/bold] [red" in text and "\x1b" not in text
            await pilot.press("f1")
            assert app.screen is not screen

    run(test())


def test_help_says_what_keys_do_before_it_names_them() -> None:
    """The name of a binding is for the config file, and stands behind all that is for reading."""

    async def test() -> None:
        screen = HelpScreen({"here": bindings_of(Prompt, Turn)}, {}, [("/model [NAME]", "another model")], [])
        async with staged(screen, (100, 40)):
            before, named, _ = written_out(screen).partition("turn_regenerate")
            assert named and "[keys]" in before and "another model" in before
            for name, binding in bindings_of(Prompt, Turn).items():
                assert binding.tooltip and binding.tooltip in before.replace("\n", " "), name
                assert name not in before.partition("[keys]")[0].split() or name in binding.tooltip or name in binding.key or name == "send"
            for word in ("round", "draft", "accepted", "p", "q"):
                assert any(line.split()[0] == word for line in before.splitlines() if line.strip()), word

    run(test())


# ---- Two replies side by side ------------------------------------------------------------------------------------------------------------


def ended(text: str, speed: float, drafter: str = "lookup") -> Done:
    return Done(text, (1, 2), "stop", "m", drafter, "coupled", True, 1, {"tokens_per_second": speed})


def test_a_comparison_ends_with_a_verdict() -> None:
    async def test() -> None:
        screen = CompareScreen("why [x]")
        async with staged(screen, (100, 20)) as (app, pilot):
            for name in ("plain", "speculative"):
                for step in rounds():
                    screen.feed(Lane(name, Text("word \x1b[2J", step)))
            screen.draw()
            await pilot.pause()
            assert "word word" in screen_text(app) and "tok/s" in screen_text(app)
            screen.finish(Compared(ended("a", 10.0), ended("a", 21.0), True))
            await pilot.pause()
            assert "2.10× plain on this prompt · identical: yes" in screen_text(app)
            await pilot.press("escape")
            assert app.of(CompareScreen.Left) == []

    run(test())


def test_a_difference_is_marked_in_both() -> None:
    async def test() -> None:
        screen = CompareScreen("why")
        async with staged(screen, (100, 20)) as (app, pilot):
            screen.feed(Lane("plain", Text("the cat", Step((1, 2)))))
            screen.feed(Lane("speculative", Text("the dog", Step((1, 3)))))
            screen.finish(Compared(ended("the cat", 10.0), ended("the dog", 9.0), False, 1, ("cat", "dog"), 0.00001, "score"))
            await pilot.pause()
            shown = screen_text(app)
            assert "the ▶cat" in shown and "the ▶dog" in shown and "first difference at token 2" in shown and "1e-05" in shown

    run(test())


def test_leaving_early_is_said() -> None:
    async def test() -> None:
        async with staged(CompareScreen("why")) as (app, pilot):
            await pilot.press("escape")
            await until(pilot, lambda: len(app.of(CompareScreen.Left)) == 1)

    run(test())


# ---- Keys at the bottom ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 50, 60, 72, 80, 200])
def test_no_key_is_cut_and_the_help_is_always_there(width: int, tmp_path: Path) -> None:
    """Also after the terminal was made narrower."""

    async def test() -> None:
        async with chatting(tmp_path, (200, 24)) as chat:
            whole = chat.shown.splitlines()[-1].split("  ")
            await chat.pilot.resize_terminal(width, 24)
            await chat.drawn()
            keys = [key.strip() for key in chat.shown.splitlines()[-1].split("  ")]
            known = [key.strip() for key in whole]
            assert keys[-1] == "f1 help" and set(keys) <= set(known)
            assert (keys == known) == (width >= 80)

    run(test())


def test_lines_of_text_have_a_width_that_can_be_read(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, (240, 40), said=["- some words that go on " * 40]) as chat:
            await chat.say("a question that goes on and on " * 20)
            chat.app.action_panel()
            for _ in range(2):
                await chat.drawn()
                lines = [line for line in chat.shown.splitlines() if "go on" in line or "goes on" in line]
                assert len(lines) > 10 and max(len(line.strip(" •")) for line in lines) <= 100
                await chat.pilot.press("f6")

    run(test())


# ---- What covers nothing -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(120, 40), (50, 15)])
def test_a_line_that_goes_away_by_itself_covers_no_text(size: tuple[int, int], tmp_path: Path) -> None:
    """The last lines stay where they are."""

    async def test() -> None:
        async with chatting(tmp_path, size, said=["The last words."]) as chat:
            await chat.say("hello")
            before = chat.shown.splitlines()
            chat.app.toast("first notice")
            chat.app.toast("second notice", error=True)
            await until(chat.pilot, lambda: "second notice" in chat.shown)
            after = chat.shown.splitlines()
            assert "first notice" in after[0] and len(after) == len(before)
            assert after[-8:] == before[-8:]
            chat.app.clear_notifications()
            await until(chat.pilot, lambda: chat.shown.splitlines() == before)

    run(test())


@pytest.mark.parametrize("key", ["f1", "f4", "f5", "ctrl+o", "ctrl+r"])
@pytest.mark.parametrize("environ", [{}, {"NO_COLOR": "1"}])
def test_a_dialog_shows_nothing_of_the_page_behind_it(key: str, environ: dict[str, str], tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, (110, 30), said=["behind " * 300], environ=environ) as chat:
            await chat.say("behind")
            await chat.pilot.press(key)
            await chat.drawn()
            beside = [line.partition(edge)[0] for line in chat.shown.splitlines() for edge in "╭│╰" if edge in line]
            assert len(beside) > 20 and not "".join(beside).strip()

    run(test())


def test_nor_does_the_palette(tmp_path: Path) -> None:
    async def test() -> None:
        async with chatting(tmp_path, (110, 30), said=["behind " * 300]) as chat:
            await chat.say("behind")
            await chat.pilot.press("ctrl+p")
            await until(chat.pilot, lambda: "/baseline" in chat.shown)
            assert "behind" not in chat.shown

    run(test())


def test_the_form_says_what_counts_where_nothing_is_set() -> None:
    """The model's own values, those of the program, and words where none is a value; also where something is set."""

    async def test() -> None:
        screen = OptionsScreen({"temperature": 0.2}, {"temperature": 0.6}, refuse)
        async with staged(screen):
            shown = "\n".join(str(line.render()) for line in screen.query(".help").results(Static))
            for line in ("default: 0.6 (the model's own)", "default: 512", "default: auto", "default: none", "default: coupled"):
                assert line in shown
            assert all(field.placeholder not in ("", "–") for field in screen.query(Input))

    run(test())
