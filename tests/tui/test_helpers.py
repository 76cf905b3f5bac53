"""Prompt history, clipboard, sleep and the external editor."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlxspec.errors import MlxspecError, UsageError
from mlxspec.tui.chat.clipboard import OSC52, copy
from mlxspec.tui.chat.editor import command, edit
from mlxspec.tui.chat.keep_awake import Awake
from mlxspec.tui.chat.prompt_history import KEPT, LONG, History

# ---- History -----------------------------------------------------------------------------------------------------------------------------


def test_prompts_are_there_in_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "state" / "prompts.jsonl"
    history = History(path)
    for text in ("one", "two\nlines\x1b[2J", "two\nlines\x1b[2J", "  ", "three"):
        history.add(text)
    assert History(path).prompts() == history.prompts() == ["one", "two\nlines\x1b[2J", "three"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"\x1b" not in path.read_bytes()


def test_damaged_lines_are_left_out_and_long_files_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'\xff\xfe\n{"a": 1}\n"good"\n"torn')
    assert History(path).prompts() == ["good"]
    path.write_text("".join(json.dumps(f"prompt {number}") + "\n" for number in range(5 * KEPT)))
    assert len(History(path).prompts()) == KEPT
    assert len(path.read_text().splitlines()) == KEPT
    assert [file.name for file in tmp_path.iterdir()] == ["prompts.jsonl"]


def test_pasted_prompts_are_not_kept_on_the_disk(tmp_path: Path) -> None:
    history = History(tmp_path / "prompts.jsonl")
    history.add("x" * (LONG + 1))
    assert len(history.prompts()) == 1
    assert History(tmp_path / "prompts.jsonl").prompts() == []


def test_a_history_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    history = History(tmp_path / "state" / "prompts.jsonl")
    history.add("hello")
    assert history.prompts() == ["hello"]
    assert history.failure is not None and "\n" not in history.failure


# ---- Clipboard ---------------------------------------------------------------------------------------------------------------------------


class Runs:
    """Stands in for subprocess.run."""

    def __init__(self, fail: bool = False) -> None:
        self.calls: list[tuple[list[str], bytes]] = []
        self.fail = fail

    def __call__(self, words: list[str], *, input: bytes, **rest: Any) -> Any:
        self.calls.append((words, input))
        if self.fail:
            raise subprocess.CalledProcessError(1, words)


@pytest.fixture
def mac(tmp_path: Path) -> dict[str, str]:
    """The environment of a Mac with a pbcopy."""
    tool = tmp_path / "pbcopy"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return {"PATH": str(tmp_path)}


TEXT = "żółć\n```\ncode\n```\n[b]\x1b"


def carried(written: list[str]) -> str:
    (found,) = re.findall(r"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07", "".join(written))
    return base64.b64decode(found).decode()


def test_a_local_mac_uses_pbcopy(mac: dict[str, str]) -> None:
    runs, written = Runs(), list[str]()
    assert copy(TEXT, written.append, mac, "darwin", runs) == "pbcopy"
    assert runs.calls == [(["pbcopy"], TEXT.encode())]
    assert written == []


@pytest.mark.parametrize(
    ("platform", "more", "fail"),
    [("darwin", {"SSH_CONNECTION": "1 2 3 4"}, False), ("linux", {}, False), ("darwin", {}, True), ("darwin", {"PATH": ""}, False)],
)
def test_elsewhere_the_terminal_does_it(mac: dict[str, str], platform: str, more: dict[str, str], fail: bool) -> None:
    runs, written = Runs(fail), list[str]()
    assert copy(TEXT, written.append, {**mac, **more}, platform, runs) == OSC52
    assert len(runs.calls) == fail
    assert carried(written) == TEXT


def test_screen_hands_it_through_in_pieces() -> None:
    written: list[str] = []
    copy("x" * 1000, written.append, {"STY": "1.pts"}, "linux")
    assert all(len(part) <= 250 for part in written[0].split("\x1b\\"))
    assert carried([written[0].replace("\x1bP", "").replace("\x1b\\", "")]) == "x" * 1000


def test_too_much_for_a_terminal_is_refused() -> None:
    with pytest.raises(MlxspecError, match="/export"):
        copy("x" * 2_000_000, lambda text: None, {}, "linux")


# ---- Awake -------------------------------------------------------------------------------------------------------------------------------


class Process:
    def __init__(self, words: list[str], **streams: Any) -> None:
        self.words, self.ended = words, False

    def terminate(self) -> None:
        self.ended = True

    def wait(self, timeout: float) -> None:
        assert self.ended


def test_a_mac_is_kept_awake_once_and_let_go() -> None:
    made: list[Process] = []
    awake = Awake("darwin", lambda words, **streams: made.append(Process(words)) or made[-1])  # type: ignore[func-returns-value]
    awake.off()
    awake.on()
    awake.on()
    assert [process.words for process in made] == [["caffeinate", "-i", "-w", str(os.getpid())]]
    awake.off()
    assert made[0].ended
    awake.on()
    assert len(made) == 2


def test_other_machines_and_macs_without_caffeinate_are_left_alone() -> None:
    def missing(words: list[str], **streams: Any) -> Any:
        raise FileNotFoundError(words[0])

    for awake in (Awake("linux", missing), Awake("darwin", missing)):
        awake.on()
        awake.on()
        awake.off()


# ---- Editor ------------------------------------------------------------------------------------------------------------------------------


def writing(tmp_path: Path, code: str) -> dict[str, str]:
    """An editor that runs Python on the file."""
    script = tmp_path / "my editor.py"
    script.write_text(f"import sys, pathlib\npath = pathlib.Path(sys.argv[-1])\n{code}\n")
    return {"EDITOR": f"{sys.executable} '{script}'", "PATH": os.environ["PATH"]}


def test_the_text_as_the_user_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    environ = writing(tmp_path, "assert path.stat().st_mode & 0o777 == 0o600\npath.write_text(path.read_text() + ' there ż\\n\\n', 'utf-8')")
    assert edit("hello", environ) == "hello there ż"
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("code", "words"), [("sys.exit(3)", "ended with 3"), ("path.write_bytes(b'\\xff')", "cannot be read"), ("path.unlink()", "cannot be read")]
)
def test_an_editor_that_fails_changes_nothing(tmp_path: Path, code: str, words: str) -> None:
    with pytest.raises(MlxspecError, match=words):
        edit("hello", writing(tmp_path, code))


def test_which_editor_it_is(tmp_path: Path) -> None:
    assert command({"VISUAL": "code -w", "EDITOR": "ed"}) == ["code", "-w"]
    assert command({"VISUAL": " ", "EDITOR": "ed"}) == ["ed"]
    with pytest.raises(UsageError, match="EDITOR"):
        command({"PATH": str(tmp_path)})
    with pytest.raises(UsageError, match="no command"):
        command({"EDITOR": "vi 'x"})
    with pytest.raises(MlxspecError, match="cannot be started"):
        edit("x", {"EDITOR": str(tmp_path / "none")})


# ---- Forms -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [(), ("END",), ("\n",), (r"\n",), ("a\tb", "c\\")])
def test_a_form_reads_the_stop_strings_it_shows(stop: tuple[str, ...]) -> None:
    from mlxspec.tui.screens.options import read, written

    assert not stop or read("stop", written(stop)) == stop
    assert read("stop", r"\n\n") == ("\n\n",)
