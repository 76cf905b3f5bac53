"""Turns and the conversation: what is streamed ends as what is whole, foreign text does no harm, views and folds, the tail is followed."""

import random

import pytest
from textual.content import Content
from textual.widgets import Markdown, Static

from mlxspec.tui.widgets.plain_text import LINES, OpenFence
from mlxspec.tui.widgets.transcript import SHOWN, Earlier, Shown, Transcript
from mlxspec.tui.widgets.turns import NoteTurn, ReplyTurn, UserTurn
from tests.tui.pilot import run, screen_text, staged, until

HARD = [
    "Use `vector<int>`, vector<int>, <think> and <b>bold</b>; 5*3*2.",
    "A [link][1] and [open ( [bracket\n\n[1]: https://example.org\n",
    "```python\nx = [1, 2]\n\nprint(x)\n```\n\nAfter.",
    "````md\n```\ninner\n```\n````\n",
    "| a | b |\n|---|---|\n| 1 | [x] |\n",
    "1. one\n   - two\n     ```\n     code\n     ```\n2. three",
    "Title\n=====\n\ntext 👩‍👩‍👧 日本語 é\r\nline",
    "```never closed\nline [1\n",
    "```nosuchlanguage!{}\n[x]\n```",
    "$$\\frac{a}{b}$$ [/bold] [red]x[/red] \\[",
]


async def picture(turn: ReplyTurn, app_text: str) -> list[str]:
    return [line.rstrip() for line in app_text.splitlines() if line.strip()]


@pytest.mark.parametrize("text", HARD)
def test_streamed_in_pieces_it_ends_as_the_whole(text: str) -> None:
    async def test() -> None:
        whole = ReplyTurn(0, text)
        async with staged(whole, (80, 40)) as (app, pilot):
            await until(pilot, lambda: not text.strip() or len(whole.markdown.children) > 0)
            await pilot.pause()
            wanted = screen_text(app)
        cuts = random.Random(1)
        turn = ReplyTurn(0)
        async with staged(turn, (80, 40)) as (app, pilot):
            at = 0
            while at < len(text):
                width = cuts.randint(1, 7)
                turn.feed(text[at : at + width])
                await turn.draw()
                at += width
            await turn.finish("")
            await pilot.pause()
            assert screen_text(app) == wanted
            assert turn.source == text

    run(test())


def test_text_in_angle_brackets_stays_visible() -> None:
    async def test() -> None:
        turn = ReplyTurn(0, "a vector<int> and <think> later")
        async with staged(turn) as (app, pilot):
            await pilot.pause()
            assert "vector<int>" in screen_text(app) and "<think> later" in screen_text(app)

    run(test())


def test_an_open_fence_is_plain_text_until_it_closes() -> None:
    async def test() -> None:
        turn = ReplyTurn(0)
        async with staged(turn) as (_, pilot):
            for line in ["Look:\n", "```py\n", "x = [1]\n"]:
                turn.feed(line)
                await turn.draw()
            assert turn.query_one(OpenFence).display
            assert "```" not in turn.markdown.source
            turn.feed("```\n")
            await turn.draw()
            await pilot.pause()
            assert not turn.query_one(OpenFence).display
            assert "x = [1]" in turn.markdown.source

    run(test())


def test_a_long_open_fence_draws_only_its_end_again() -> None:
    async def test() -> None:
        turn = ReplyTurn(0)
        async with staged(turn) as (_, pilot):
            text = "```\n" + "".join(f"line {number}\n" for number in range(3 * LINES))
            for line in text.splitlines(keepends=True):
                turn.feed(line)
                await turn.draw()
            await pilot.pause()
            parts = [str(part.render()) for part in turn.query_one(OpenFence).query(Static)]
            assert len(parts) == 4
            assert "\n".join(parts) == text

    run(test())


def test_control_sequences_never_reach_the_screen() -> None:
    evil = "\x1b]52;c;aGk=\x07\x1b[2J\x1b]0;title\x07ok\x9b31m\x08\x00 [bold]"

    async def test() -> None:
        conversation = Transcript()
        async with staged(conversation) as (app, pilot):
            await conversation.match([Shown(1, "user", evil), Shown(2, "assistant", evil, evil, evil)])
            await conversation.note(evil)
            reply = conversation.last_reply
            assert reply is not None
            for char in evil:
                reply.feed(char)
                await reply.draw()
            await reply.finish(evil)
            for view in ("raw", "origin", "markdown"):
                conversation.view = view
                await pilot.pause()
                shown = screen_text(app)
                assert "ok" in shown and "[bold]" in shown
                assert not any(ord(char) < 32 and char != "\n" for char in shown)
                assert "]52" not in shown and "title" not in shown

    run(test())


def test_thinking_is_folded_and_unfolds() -> None:
    async def test() -> None:
        turn = ReplyTurn(0, "<think>\nfirst <b>\nsecond\n</think>\n\nYes.")
        async with staged(turn) as (app, pilot):
            await pilot.pause()
            assert "thought (3 words)" in screen_text(app) and "second" not in screen_text(app)
            turn.unfold()
            await pilot.pause()
            assert "first <b>" in screen_text(app) and "second" in screen_text(app)
            await turn.show("raw")
            await pilot.pause()
            assert "<think>" in screen_text(app)

    run(test())


def test_views_change_in_mid_stream() -> None:
    async def test() -> None:
        turn = ReplyTurn(0)
        async with staged(turn) as (app, pilot):
            turn.feed("**bold** and\n```\nopen")
            await turn.draw()
            await turn.show("raw")
            turn.feed(" fence")
            await turn.draw()
            await pilot.pause()
            assert "**bold** and" in screen_text(app) and "open fence" in screen_text(app)
            await turn.show("markdown")
            turn.feed("\n```\n")
            await turn.draw()
            await turn.finish("3 tokens")
            await pilot.pause()
            shown = screen_text(app)
            assert "bold and" in shown and "**" not in shown and "open fence" in shown and "3 tokens" in shown
            turn.origin = Content("by origin")
            await turn.show("origin")
            await pilot.pause()
            assert "by origin" in screen_text(app)

    run(test())


def test_the_tail_is_followed_until_the_user_scrolls() -> None:
    async def test() -> None:
        conversation = Transcript()
        async with staged(conversation, (60, 12)) as (_, pilot):
            turn = ReplyTurn(0)
            await conversation.mount(turn)
            for number in range(40):
                turn.feed(f"line {number}\n\n")
                await turn.draw()
            await pilot.pause()
            assert not conversation.behind
            conversation.action_page_up()
            await until(pilot, lambda: conversation.behind)
            place = conversation.scroll_y
            for number in range(10):
                turn.feed(f"more {number}\n\n")
                await turn.draw()
            await pilot.pause()
            assert conversation.scroll_y == place
            conversation.follow()
            await until(pilot, lambda: not conversation.behind)

    run(test())


def test_resizing_while_text_comes_keeps_all_of_it() -> None:
    async def test() -> None:
        conversation = Transcript()
        async with staged(conversation, (100, 30)) as (app, pilot):
            turn = ReplyTurn(0)
            await conversation.mount(turn)
            text = "Some *words* in a paragraph.\n\n```\ncode line\n```\n\n"
            for number, size in enumerate([(100, 30), (40, 10), (3, 1), (200, 50), (60, 15), (80, 24)]):
                turn.feed(text.replace("Some", f"Some{number}"))
                await turn.draw()
                await pilot.resize_terminal(*size)
            await turn.finish("")
            await pilot.pause()
            assert turn.source.count("code line") == 6
            assert screen_text(app).count("Some5") == 1

    run(test())


def test_of_a_long_conversation_the_end_is_drawn() -> None:
    async def test() -> None:
        conversation = Transcript()
        async with staged(conversation) as (_, pilot):
            messages = [Shown(object(), "user" if number % 2 == 0 else "assistant", f"message {number}") for number in range(SHOWN + 40)]
            await conversation.match(messages)
            await pilot.pause()
            assert len(conversation.turns) == SHOWN and conversation.turns[-1].number == SHOWN + 39
            assert len(conversation.query(Earlier)) == 1
            await conversation.match(messages, whole=True)
            assert len(conversation.turns) == SHOWN + 40 and not conversation.query(Earlier)

    run(test())


def test_turns_that_stay_are_not_made_anew() -> None:
    async def test() -> None:
        conversation = Transcript()
        async with staged(conversation) as (_, pilot):
            messages = [Shown(object(), "user" if number % 2 == 0 else "assistant", f"message {number}") for number in range(4)]
            await conversation.note("before")
            await conversation.match(messages[:2])
            await conversation.note("between")
            before = conversation.turns
            await conversation.match(messages)
            assert conversation.turns[:2] == before and len(conversation.query(NoteTurn)) == 2
            await conversation.match([messages[0], Shown(object(), "assistant", "another")])
            assert [turn.source for turn in conversation.turns] == ["message 0", "another"]
            assert conversation.turns[0] is before[0]
            await conversation.match([])
            assert conversation.turns == [] and conversation.query_one("#welcome").display
            await pilot.pause()

    run(test())


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("y", "copy"),
        ("b", "copy_code"),
        ("e", "edit"),
        ("r", "regenerate"),
        ("c", "continue"),
        ("d", "delete"),
        ("enter", "unfold"),
        ("escape", "prompt"),
        ("tab", "prompt"),
        ("up", "above"),
        ("j", "below"),
        ("left", "round_before"),
        ("right", "round_after"),
    ],
)
def test_keys_of_a_turn(key: str, what: str) -> None:
    async def test() -> None:
        turn = UserTurn(0, "hello")
        async with staged(turn) as (app, pilot):
            turn.focus()
            await pilot.press(key)
            assert [(heard.turn, heard.what) for heard in app.of(UserTurn.Wanted)] == [(turn, what)]

    run(test())


def test_links_are_not_opened_by_themselves() -> None:
    assert ReplyTurn(0).compose() is not None
    for widget in ReplyTurn(0, "[x](file:///etc/passwd)").compose():
        if isinstance(widget, Markdown):
            assert widget._open_links is False


VERSE = "The fog comes\non **little** cat feet.\n\n- 12 High Street\n  Leeds\n\n> one\n> two\n"


@pytest.mark.parametrize("pieces", [1, 3, len(VERSE)])
def test_line_breaks_of_a_reply_are_kept(pieces: int) -> None:
    """In a paragraph, an item and a quotation; while the reply comes and when it has come."""

    async def test() -> None:
        turn = ReplyTurn(0, streaming=True)
        async with staged(turn, (60, 20)) as (app, pilot):
            for at in range(0, len(VERSE), len(VERSE) // pieces):
                turn.feed(VERSE[at : at + len(VERSE) // pieces])
                await turn.draw()
            await pilot.pause()
            for ended in (False, True):
                lines = [line.strip(" •▌▎▏│") for line in screen_text(app).splitlines()]
                for line in ("The fog comes", "on little cat feet.", "12 High Street", "Leeds", "one", "two"):
                    assert line in lines, (ended, lines)
                await turn.finish("")
                await pilot.pause()

    run(test())
