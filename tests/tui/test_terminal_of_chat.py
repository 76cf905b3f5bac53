"""The chat in a terminal of its own: what reaches the terminal, how it is left, and that nothing is lost however it ends."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxspec.sessions.store import Store
from tests import ROOT

PATIENCE = 30.0
LEFT = b"\x1b[?1049l"  # back from the alternate screen


class InTerminal:
    """A process with a terminal of 100 by 30, and all it wrote there."""

    def __init__(self, folder: Path, reply: str, **environ: str) -> None:
        self.folder = folder
        self.written = b""
        self.end, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(inner)
        self.inner = inner
        clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM", "TERM_PROGRAM", "COLORFGBG")}
        env = {**clean, "TERM": "xterm-256color", "XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache"), **environ}
        words = [sys.executable, "-m", "tests.tui.in_terminal", str(folder), reply]
        self.process = subprocess.Popen(words, stdin=inner, stdout=inner, stderr=inner, cwd=ROOT, env=env, start_new_session=True)

    def until(self, wanted: bytes) -> None:
        """Read until something was written."""
        limit = time.monotonic() + PATIENCE
        while wanted not in self.written:
            assert time.monotonic() < limit, f"{wanted!r} never came; the last was {self.written[-300:]!r}"
            self.read()

    def read(self) -> None:
        if select.select([self.end], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):
                self.written += os.read(self.end, 65536)

    def type(self, keys: bytes) -> None:
        os.write(self.end, keys)

    def ended(self) -> int:
        limit = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < limit, "it does not end"
            self.read()
        for _ in range(5):
            self.read()
        return self.process.returncode

    def as_before(self) -> bool:
        """Whether the terminal's modes are those of the beginning."""
        now: list[Any] = termios.tcgetattr(self.inner)
        return now[:4] == self.before[:4]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.end)
        os.close(self.inner)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[InTerminal]:
    made = InTerminal(tmp_path, "Some words \\x1b]52;c;aGk=\\x07\\x1b[2J\\x1b]0;owned\\x07 and the END")
    yield made
    made.close()


def test_nothing_of_a_model_drives_the_terminal_and_it_is_left_as_it_was(terminal: InTerminal) -> None:
    terminal.until(b"END")
    terminal.type(b"\x11")  # ctrl+q
    assert terminal.ended() == 0
    assert b"\x1b]52" not in terminal.written and b"owned" not in terminal.written
    assert LEFT in terminal.written and b"\x1b[?25h" in terminal.written.rpartition(LEFT)[0][-200:] + terminal.written.rpartition(LEFT)[2]
    assert terminal.as_before()


def test_without_colour_only_the_terminals_own_are_used(tmp_path: Path) -> None:
    terminal = InTerminal(tmp_path, "Some words and the END", NO_COLOR="1")
    try:
        terminal.until(b"END")
        terminal.type(b"\x11")
        assert terminal.ended() == 0
        assert b"\x1b[38;" not in terminal.written and b"\x1b[48;" not in terminal.written
        assert b";38;" not in terminal.written and b";48;" not in terminal.written
    finally:
        terminal.close()


def test_256_colours_where_the_terminal_has_no_more(terminal: InTerminal) -> None:
    terminal.until(b"END")
    terminal.type(b"\x11")
    assert terminal.ended() == 0
    assert b"38;5;" in terminal.written or b"48;5;" in terminal.written
    assert b"38;2;" not in terminal.written and b"48;2;" not in terminal.written


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended_from_outside_it_has_saved(terminal: InTerminal, number: signal.Signals) -> None:
    terminal.until(b"END")
    terminal.process.send_signal(number)
    assert terminal.ended() == 128 + number
    assert LEFT in terminal.written and terminal.as_before()
    (summary,) = Store(terminal.folder / "sessions").summaries()
    session, fault = Store(terminal.folder / "sessions").read(summary.id)
    assert fault is None and session.turns[-1].text.endswith("and the END")


def test_killed_in_mid_reply_it_is_offered_again(tmp_path: Path) -> None:
    terminal = InTerminal(tmp_path, "Some words and the END")
    try:
        terminal.until(b"END")
        terminal.process.kill()
        terminal.process.wait()
        left = Store(tmp_path / "sessions").cut_off()
        assert left is not None and left.turns == 2
    finally:
        terminal.close()


@pytest.mark.parametrize("first", [b"", b"\t"])
def test_typed_faster_than_drawn_every_key_counts(terminal: InTerminal, first: bytes) -> None:
    """Text and enter in one burst: the message that is sent is the whole of it, even where a message was selected (tab) just before."""
    terminal.until(b"END")
    terminal.until(b"ready")
    terminal.type(first + b"one burst of text that ends with enter\r")
    terminal.until(b"dog")
    terminal.type(b"\x11")
    assert terminal.ended() == 0
    (summary,) = Store(terminal.folder / "sessions").summaries()
    session, _ = Store(terminal.folder / "sessions").read(summary.id)
    assert session.turns[2].text == "one burst of text that ends with enter"
