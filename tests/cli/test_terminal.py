"""What reaches a terminal: control sequences are gone, nothing else is; streamed equals whole."""

import io
import json
import random
from typing import Any

import pytest

from mlxspec.cli.terminal import Terminal, charset
from mlxspec.display import Cleaner, clean, one_line, visible
from mlxspec.errors import MlxspecError


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


HOSTILE = {
    "\x1b[31mred\x1b[0m": "red",
    "a\x1b]52;c;c2VjcmV0\x07b": "ab",
    "a\x1b]0;title\x1b\\b": "ab",
    "\x1b[2J\x1b[Hclear": "clear",
    "\x9b31mC1 CSI\x9d0;t\x9c": "C1 CSI",
    "\x1bPq#0;2;0\x1b\\sixel": "sixel",
    "\x1bcreset": "reset",
    "\x1b(0line drawing": "line drawing",
    "bell\x07 back\x08 del\x7f nul\x00": "bell back del nul",
    "over\rwrite": "overwrite",
    "tab\tand\nnewline": "tab\tand\nnewline",
    "\x1b]never ended, all of it stays": "]never ended, all of it stays",
    "\x1b]broken\nby a line": "]broken\nby a line",
    "vector<int> 5*3*2 [a]": "vector<int> 5*3*2 [a]",
    "日本語 🎉 é": "日本語 🎉 é",
    "ends in ESC\x1b": "ends in ESC",
    "\x1b\x1b[31mtwo": "two",
}


@pytest.mark.parametrize(("text", "left"), HOSTILE.items())
def test_control_sequences_go_and_text_stays(text: str, left: str) -> None:
    assert clean(text) == left


def test_a_stream_is_cleaned_to_the_same_as_the_whole() -> None:
    """Cut at every kind of place, 2,000 times; the seed makes it the same cuts each time."""
    chance = random.Random(5)
    for _ in range(2000):
        text = "".join(
            chance.choices(["\x1b", "[", "]", "0;", "31", "m", "\x07", "\\", "\n", "P", "word ", "\x9b", "\x9c", "é", " "], k=chance.randint(1, 14))
        )
        cleaner, out, at = Cleaner(), "", 0
        while at < len(text):
            step = chance.randint(1, 4)
            out += cleaner.feed(text[at : at + step])
            at += step
        assert out + cleaner.flush() == clean(text), repr(text)


def test_a_sequence_that_never_ends_holds_back_no_more_than_its_bound() -> None:
    cleaner = Cleaner()
    out = "".join(cleaner.feed("x" * 100) for _ in range(3)) + cleaner.feed("\x1b]") + "".join(cleaner.feed("y" * 100) for _ in range(100))
    assert out == "x" * 300 + "]" + "y" * 10_000


def test_one_line_folds_line_breaks() -> None:
    assert one_line("a\r\nb\x1b[31m \n\n c") == "a b c"


@pytest.mark.parametrize(
    ("text", "shown"), [(" the", "_the"), ("\n", "\\n"), ("  ", "__"), ("\x1b[1m", "\\x1b[1m"), ("é", "é"), ("", ""), ("a b", "a b")]
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"LANG": "en_US.UTF-8"}, "utf-8"),
        ({"LANG": "de_DE.CP1252"}, "cp1252"),
        ({"LANG": "de_DE.ISO-8859-15@euro"}, "iso8859-15"),
        ({"LANG": "C"}, None),
        ({}, None),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, None),  # what Python's own coercion writes
        ({"LANG": "C.UTF-8"}, "utf-8"),
        ({"LC_CTYPE": "UTF-8"}, "utf-8"),  # macOS
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, None),
        ({"LANG": "xx.nonsense"}, None),
    ],
)
def test_charset_of_the_environment(environ: dict[str, str], name: str | None) -> None:
    assert charset(environ) == name


def test_text_is_cleaned_for_a_terminal_and_untouched_in_a_pipe() -> None:
    for stream, left in ((Screen(), "red\n"), (io.StringIO(), "\x1b[31mred\n")):
        terminal = Terminal(stream, io.StringIO(), {})
        terminal.answer("\x1b[3")
        terminal.answer("1mred")
        terminal.end_answer()
        assert stream.getvalue() == left


def test_a_reply_ends_with_one_newline_and_an_empty_one_with_none() -> None:
    for text, left in (("a", "a\n"), ("a\n", "a\n"), ("", "")):
        stream = io.StringIO()
        terminal = Terminal(stream, None, {})
        terminal.answer(text)
        terminal.end_answer()
        assert stream.getvalue() == left


@pytest.mark.parametrize(
    ("stream", "environ", "painted"),
    [
        (Screen, {}, True),
        (Screen, {"NO_COLOR": "1"}, False),
        (Screen, {"NO_COLOR": ""}, True),  # the convention: only where it is not empty
        (Screen, {"TERM": "dumb"}, False),
        (io.StringIO, {}, False),
    ],
)
def test_colours(stream: Any, environ: dict[str, str], painted: bool) -> None:
    assert ("\x1b" in Terminal(stream(), None, environ).paint("x", "32")) is painted


def test_progress_only_where_stderr_is_a_terminal_and_it_leaves_nothing() -> None:
    for err, environ, shown in ((Screen(), {}, True), (io.StringIO(), {}, False), (Screen(), {"TERM": "dumb"}, False)):
        terminal = Terminal(io.StringIO(), err, environ)
        terminal.progress("reading", 5, 10)
        terminal.answer("x")
        assert ("5/10" in err.getvalue()) is shown
        assert "\x1b" not in err.getvalue()
        assert not shown or err.getvalue().endswith(" \r")


def test_json_is_safe_and_strict() -> None:
    stream = io.StringIO()
    Terminal(stream, None, {"LANG": "en_US.UTF-8"}).json({"text": "\x1b]52\x9b é \ud800", "number": float("nan"), "list": (1, float("inf"))})
    assert not set(stream.getvalue()) & {"\x1b", "\x9b", "\ud800"}
    assert "é" in stream.getvalue()
    assert json.loads(stream.getvalue()) == {"text": "\x1b]52\x9b é \ud800", "number": None, "list": [1, None]}


def test_ascii_where_the_locale_is_c() -> None:
    assert Terminal(io.StringIO(), None, {"LANG": "C"}).dot == " | "
    assert Terminal(io.StringIO(), None, {"LANG": "en_US.UTF-8"}).dot == " · "


def test_a_stream_that_cannot_be_written_is_an_error_and_a_lost_stderr_is_none() -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    terminal = Terminal(Full(), Full(), {})
    terminal.error("lost")
    with pytest.raises(MlxspecError, match="No space left"):
        terminal.answer("x")
