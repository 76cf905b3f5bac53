"""The line mode: with scripted lines, and in a real pseudo-terminal."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxspec.cli.terminal import Terminal
from mlxspec.sessions.store import Store
from mlxspec.tui.chat.prompt_history import History
from mlxspec.tui.chat.reports import Offer, Offers
from mlxspec.tui.plain import Plain
from tests import ROOT
from tests.tui.fake_chat import PATIENCE, WORDS, FakeChatEngine
from tests.tui.test_conversation import Desk


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class Lines:
    """A chat in lines, fed by a script: text, or an exception to raise, or something to do before the next line."""

    def __init__(self, store: Store | None, **more: Any) -> None:
        self.desk = Desk(store)
        self.out, self.err = Screen(), Screen()
        self.history = History(None)
        self.asked: list[str] = []
        self.script: list[Any] = []
        self.terminal = Terminal(self.out, self.err, {"TERM": "xterm", "LANG": "en_US.UTF-8"})
        self.plain = Plain(self.desk.talk, self.terminal, {}, self.history, self.read, **more)

    def read(self, prompt: str) -> str:
        self.asked.append(prompt)
        while self.script and callable(self.script[0]):
            self.script.pop(0)()
        if not self.script:
            raise EOFError
        line = self.script.pop(0)
        if isinstance(line, BaseException):
            raise line
        return str(line)

    def run(self, *script: Any) -> str:
        """Run to the end of a script; what stood on stdout."""
        self.script = list(script)
        assert self.plain.run() == 0
        return self.out.getvalue()

    @property
    def engine(self) -> FakeChatEngine:
        return self.desk.engine


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Lines]:
    lines = Lines(Store(tmp_path / "sessions"))
    yield lines
    lines.engine.gate.open()
    lines.desk.talk.leave()
    assert lines.desk.talk.worker.quit(PATIENCE)


def test_replies_to_stdout_and_numbers_to_stderr(lines: Lines) -> None:
    out = lines.run("hello", "more", "/exit")
    replies = [one.text for one in lines.desk.talk.said if one.role == "assistant"]
    assert out == "".join(f"{reply}\n" for reply in replies)
    numbers = [line for line in lines.err.getvalue().splitlines() if "tok/s" in line]
    assert len(numbers) == 2
    assert "41.5 tok/s" in numbers[0] and "seed 1" in numbers[0]
    assert lines.history.prompts() == ["hello", "more"]


def test_without_stats(tmp_path: Path) -> None:
    lines = Lines(None, stats=False)
    lines.run("hello")
    assert "tok/s" not in lines.err.getvalue()
    lines.desk.talk.leave()


def test_ctrl_d_leaves_and_ctrl_c_at_the_prompt_does_not(lines: Lines) -> None:
    lines.run(KeyboardInterrupt(), "hello", EOFError())
    assert len(lines.desk.talk.said) == 2
    assert "Ctrl-D or /exit leaves." in lines.err.getvalue()


def test_a_reply_is_spoken_and_ctrl_c_silences(lines: Lines) -> None:
    """The second time the signal comes from the engine's thread, at the first piece of sound; the prompt then comes back at once."""
    voices, arrive = lines.desk.voices, lines.desk.voices.pieces.arrive

    def interrupting(cancel: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert cancel.wait(PATIENCE)
        arrive(cancel)

    def interrupt() -> None:
        voices.pieces.arrive = interrupting  # type: ignore[method-assign]

    lines.engine.script = ["One thing. Another."]
    lines.run("/speak", "hello", "/speak", interrupt, "/speak bert --mirror", "/speak nobody")
    told = lines.err.getvalue()
    assert "There is nothing to speak: send a message first." in told and "There is no voice nobody" in told
    (numbers,) = (line for line in told.splitlines() if "speaking" in line)
    assert numbers.startswith("speaking · anna · rule: coupled (exact) · first sound after 0.25 s") and "accepted 120/160" in numbers
    assert [voice.said for voice in voices.made] == [["One thing. Another."]] * 2 and lines.desk.talk.aloud.hearing is None


def test_three_quotes_hold_several_lines(lines: Lines) -> None:
    lines.run('"""one', "", "  two", 'three"""', '"""all in one"""', '"""', "x", '"""')
    assert [one.text for one in lines.desk.talk.said if one.role == "user"] == ["one\n\n  two\nthree", "all in one", "x"]
    assert lines.asked[:5] == [">>> ", "... ", "... ", "... ", ">>> "]


def test_ctrl_c_stops_the_reply_and_keeps_it(lines: Lines) -> None:
    """The signal comes from the engine's thread, in the fourth round; then the chat goes on."""
    arrive, before = lines.engine.gate.arrive, signal.getsignal(signal.SIGINT)
    rounds = []

    def interrupting(cancel: Any) -> None:
        rounds.append(cancel)
        if len(rounds) == 4:
            os.kill(os.getpid(), signal.SIGINT)
            assert cancel.wait(PATIENCE)
        arrive(cancel)

    lines.engine.gate.arrive = interrupting  # type: ignore[method-assign]
    out = lines.run("hello", "/continue", "/stats")
    part = out.splitlines()[0]
    assert part
    assert lines.desk.talk.said[1].text.startswith(part) and lines.desk.talk.said[1].finish == "stop"
    assert lines.err.getvalue().count("interrupted") == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_gives_the_prompt_back_while_a_model_loads(lines: Lines) -> None:
    hang = lines.desk.loader.gate
    hang.close()

    def pressed() -> None:
        hang.wait_for(1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=pressed)
    lines.run(lambda: thread.start(), "/model other", "/context")
    thread.join(PATIENCE)
    assert "Context: " in lines.out.getvalue()
    hang.open()


def test_errors_are_one_line_and_the_chat_goes_on(lines: Lines) -> None:
    lines.run("/modle x", "/k many", "/undo", "/model broken", "hello")
    told = lines.err.getvalue()
    for words in ("did you mean /model?", "'many'", "nothing to take back", "no model at broken"):
        assert words in told
    assert lines.desk.talk.said[-1].text


def test_a_reply_that_cannot_be_had_is_said(lines: Lines) -> None:
    lines.run(lambda: setattr(lines.engine, "fails_after", 0), "hello")
    assert "RuntimeError" in lines.err.getvalue()
    assert "was not sent" in lines.err.getvalue()
    assert lines.desk.talk.said == []


def test_nothing_foreign_drives_the_terminal(lines: Lines) -> None:
    lines.engine.script = ["\x1b]52;c;c2VjcmV0\x07 safe \x1b[2J text", "more \x1b"]
    lines.desk.loader.broken.add("\x1b[2Jbroken")
    lines.run("hello \x1b[2J", "x", "/system \x1b[2J", "/save \x1b[2Ja", "/set stop \x1b[2J", "/set", "/xy\x1b[2Jz", "/model \x1b[2Jbroken")
    assert "safe  text" in lines.out.getvalue()
    assert "\x1b" not in lines.out.getvalue() + lines.err.getvalue()


def test_compare_in_lines(lines: Lines) -> None:
    out = lines.run("hello", "/compare")
    reply = lines.desk.talk.said[-1].text
    assert "--- plain\n" in out and "--- speculative\n" in out
    assert out.count(reply) >= 1
    last = lines.err.getvalue().splitlines()[-1]
    assert last == "2.08× plain decoding · identical: yes"


def test_lists_of_models_drafters_and_sessions(lines: Lines) -> None:
    offers = Offers((Offer("fake\x1b[2J", "built-in", True, "1 MB", True),), (Offer("small:x", "small", False, "5 of its 9 tokens differ"),))
    lines.desk.talk.worker._list_offers = lambda engine, folders: offers
    out = lines.run("/load", "/model", "hello", "/load")
    assert out.startswith("There are no saved conversations.\n")
    assert "* fake  1 MB\n" in out
    assert "  small:x  does not fit: 5 of its 9 tokens differ\n" in out
    assert f"{lines.desk.talk.session_id}    2 messages  hello" in out


def test_edit_in_an_editor(lines: Lines, tmp_path: Path) -> None:
    script = tmp_path / "editor.py"
    script.write_text("import sys, pathlib\npath = pathlib.Path(sys.argv[1])\npath.write_text(path.read_text() + ' there')\n")
    lines.plain.environ = {"EDITOR": f"{sys.executable} {script}"}
    lines.run("hello", "/edit")
    assert lines.desk.here[0] == ("user", "hello there")
    assert len(lines.desk.here) == 2


def test_copy_goes_to_the_terminal(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    lines.run("hello", "/copy")
    assert "\x1b]52;c;" in lines.out.getvalue()
    assert "OSC 52" in lines.out.getvalue()


# ---- In a pseudo-terminal ----------------------------------------------------------------------------------------------------------------


class Session:
    """``mlxspec chat`` with a fake engine, in a terminal of its own."""

    def __init__(self, home: Path, *argv: str, **environ: str) -> None:
        self.master, slave = pty.openpty()
        command = [sys.executable, "-m", "tests.tui.fake_chat", "chat", *argv]
        base = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "MLXSPEC_", "FAKE_"))}
        places = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "STATE", "CACHE")}
        env = {**base, **places, "TERM": "dumb", "LANG": "en_US.UTF-8", **environ}
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True)
        os.close(slave)
        self.seen = ""

    def until(self, pattern: str) -> str:
        """Read until something stands there that did not before."""
        end = time.monotonic() + 60
        start = len(self.seen)
        while not re.search(pattern, self.seen[start:]):
            ready, _, _ = select.select([self.master], [], [], 1.0)
            assert time.monotonic() < end, self.seen
            if ready:
                try:
                    self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
                except OSError:  # the other side is closed
                    break
        assert re.search(pattern, self.seen[start:]), self.seen
        return self.seen[start:]

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self) -> int:
        code = self.process.wait(60)
        os.close(self.master)
        return code


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def begin(*argv: str, **environ: str) -> Session:
        sessions.append(Session(tmp_path, *argv, **environ))
        return sessions[-1]

    yield begin
    for session in sessions:
        if session.process.poll() is None:
            session.process.kill()
            session.process.wait(10)


def test_a_dumb_terminal_gets_lines(start: Callable[..., Session], tmp_path: Path) -> None:
    session = start()
    shown = session.until(">>> $")
    assert "line mode" in shown and "fake" not in shown.splitlines()[0]
    session.type("hello\r")
    reply = session.until("tok/s.*\n.*>>> $")
    assert any(word in reply for word in WORDS[0].split())
    assert "\x1b" not in reply
    session.type("\x04")
    session.until("Saved: mlxspec chat -c ")
    assert session.end() == 0
    again = start("-c", "--plain")
    again.until(">>> $")
    again.type("/context\r")
    again.until("in 2 messages")
    again.type("/exit\r")
    assert again.end() == 0


def test_ctrl_c_in_a_terminal_stops_the_reply_only(start: Callable[..., Session]) -> None:
    session = start("--plain", FAKE_HANG="60", FAKE_LENGTH="400")
    session.until(">>> $")
    session.type("hello\r")
    session.until("the")
    session.process.send_signal(signal.SIGINT)
    session.until("interrupted.*\n.*>>> $")
    session.type("/undo\r")
    session.until("Taken back: hello")
    session.type("/exit\r")
    assert session.end() == 0


def test_kill_9_in_mid_reply_and_the_next_start_offers_it(start: Callable[..., Session], tmp_path: Path) -> None:
    session = start("--plain", "tell", "me", FAKE_HANG="60", FAKE_LENGTH="400")
    shown = session.until("(the|fox|dog)(.|\n)* ")
    time_saved(tmp_path, "tell me")
    session.process.kill()
    assert session.end() == -signal.SIGKILL
    again = start("--plain")
    offer = again.until(r"was cut off: tell me \(2 messages\)\. /load (\S+) goes on")
    found = re.search(r"/load (\S+) ", offer)
    assert found is not None and shown
    again.until(">>> $")
    again.type(f"/load {found[1]}\r")
    again.until("Going on with tell me")
    again.type("/exit\r")
    assert again.end() == 0
    assert "cut off" not in start("--plain").until(">>> $")


def time_saved(home: Path, title: str) -> None:
    """Wait until the reply's first text is on the disk."""
    store = Store(home / "data" / "mlxspec" / "sessions")
    end = time.monotonic() + 30
    while time.monotonic() < end:
        rows = store.summaries()
        if rows and len(turns := store.read(rows[0].id)[0].turns) == 2 and turns[1].text:
            assert rows[0].title == title
            return
    raise AssertionError("nothing was saved")


def test_no_save_leaves_nothing_on_the_disk(start: Callable[..., Session], tmp_path: Path) -> None:
    session = start("--plain", "--no-save", "hello")
    session.until("tok/s(.|\n)*>>> $")
    session.type("\x04")
    assert session.end() == 0
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "state").exists()


def test_a_reply_that_repeats_itself_is_said_once_with_the_key(lines: Lines) -> None:
    lines.engine.script += ["round and round it goes, " * 60, "An answer."]
    lines.run("sing", "more")
    assert lines.err.getvalue().count("The reply repeats itself: Ctrl-C stops it.") == 1
    assert lines.err.getvalue().count("repeats itself (") == 1, "and the figures of that reply alone are marked"
