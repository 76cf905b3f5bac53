"""Slash commands: one table, every command of it tried, and nonsense answered with the nearest sense."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxspec.errors import MlxspecError, UsageError
from mlxspec.sessions.store import Store
from mlxspec.settings.options import names
from mlxspec.tui.chat.actions import ELSEWHERE, SETTABLE, Actions
from mlxspec.tui.chat.commands import COMMANDS, complete, find, help_lines, parse, plain_text, run
from mlxspec.tui.chat.markdown import code_blocks
from tests.tui.fake_chat import PATIENCE
from tests.tui.test_conversation import Desk

# ---- The parser --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "rest"),
    [
        ("/k 4", "k", "4"),
        ("/K   auto ", "k", "auto"),
        ("/regen", "regen", ""),
        ("/system Be brief.\nAnd kind.", "system", "Be brief.\nAnd kind."),
        ("/?", "?", ""),
    ],
)
def test_what_is_a_command(text: str, name: str, rest: str) -> None:
    call = parse(text)
    assert call is not None
    assert (call.name, call.text) == (name, rest)


@pytest.mark.parametrize("text", ["hello", "/usr/bin/env is what?", "/", "//k 4", " /k 4", "/etc/passwd", "5/3", "/k4.5"])
def test_what_is_a_message(text: str) -> None:
    assert parse(text) is None


def test_two_slashes_send_one() -> None:
    assert plain_text("//regen is a word") == "/regen is a word"
    assert plain_text("/usr/bin") == "/usr/bin"


@pytest.mark.parametrize(
    ("word", "name"), [("regenerate", "regen"), ("quit", "exit"), ("bye", "exit"), ("exp", "export"), ("/K", "k"), ("new", "clear")]
)
def test_other_names(word: str, name: str) -> None:
    assert find(word).name == name


@pytest.mark.parametrize(("word", "hint"), [("modle", "/model"), ("reggen", "/regen"), ("xyzzy", "/help"), ("co", "/"), ("c", "/")])
def test_unknown_commands_name_the_nearest(word: str, hint: str) -> None:
    with pytest.raises(UsageError, match="is unknown") as error:
        find(word)
    assert hint in str(error.value)


def test_the_table_is_sound() -> None:
    words = [word for command in COMMANDS for word in (command.name, *command.aliases)]
    assert len(set(words)) == len(words)
    promised = "model draft k spec system set stats context regen undo continue clear save load export copy compare speak help exit edit"
    assert set(promised.split()) <= set(words)
    assert len(help_lines()) == len(COMMANDS)
    assert all(line.isascii() for line in help_lines())
    assert complete("/co") == ["/context", "/compare", "/continue", "/copy"]
    assert complete("hello") == []


# ---- What they do ------------------------------------------------------------------------------------------------------------------------


class Face:
    """Writes down what it is asked to do."""

    dot = " | "

    def __init__(self) -> None:
        self.said: list[str] = []
        self.done: list[tuple[str, str]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def pick(self, what: str) -> None:
        self.done.append(("pick", what))

    def compose(self, text: str) -> None:
        self.done.append(("compose", text))

    def copy(self, text: str) -> str:
        self.done.append(("copy", text))
        return "hand"

    def leave(self) -> None:
        self.done.append(("leave", ""))


class Room:
    """A desk with a face, and commands to give."""

    def __init__(self, store: Store) -> None:
        self.desk = Desk(store)
        self.face = Face()
        self.actions = Actions(self.desk.talk, self.face)

    def do(self, text: str) -> str:
        """Run a command, wait for what it starts; what was said."""
        self.face.said.clear()
        assert run(text, self.actions)
        self.desk.settled()
        return "\n".join(self.face.said)


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    monkeypatch.chdir(tmp_path)
    room = Room(Store(tmp_path / "sessions"))
    yield room
    room.desk.talk.leave()
    assert room.desk.talk.worker.quit(PATIENCE)


def test_a_message_is_no_command(room: Room) -> None:
    assert not run("hello", room.actions)


@pytest.mark.parametrize(("text", "what"), [("/model", "model"), ("/draft", "drafter"), ("/load", "session"), ("/sessions", "session")])
def test_without_a_name_there_is_a_choice(room: Room, text: str, what: str) -> None:
    room.do(text)
    assert room.face.done == [("pick", what)]


def test_model_and_drafter(room: Room) -> None:
    desk = room.desk
    room.do("/model other -y")
    desk.until(lambda: desk.talk.ready is not None and desk.talk.ready.model == "other")
    assert desk.loader.asked[-1] == ("other", "auto", {"yes": True})
    room.do("/draft none")
    desk.until(lambda: desk.talk.ready is not None and desk.talk.ready.drafter == "none")
    room.do("/model /a folder/with blanks")
    desk.until(lambda: desk.talk.ready is not None and desk.talk.ready.model == "/a folder/with blanks")
    assert desk.loader.asked[-1] == ("/a folder/with blanks", "none", {"yes": False})
    with pytest.raises(UsageError, match="one name"):
        room.do("/model two names")


def test_draft_tokens_and_speculation(room: Room) -> None:
    talk = room.desk.talk
    assert "4" in room.do("/k 4")
    assert talk.settings["draft_tokens"] == 4
    room.do("/k auto")
    assert talk.settings["draft_tokens"] is None
    for text in ("/k", "/k many", "/k -1", "/spec maybe"):
        with pytest.raises(UsageError):
            room.do(text)
    assert "off" in room.do("/spec off")
    assert not talk.speculating
    assert "off (/spec off)" in room.do("/spec")
    assert room.do("/spec on") == "Speculation: on."
    room.do("/draft none")
    room.desk.until(lambda: talk.ready is not None and talk.ready.drafter == "none")
    assert "--drafter none" in room.do("/spec")


def test_set_shows_takes_and_gives_back(room: Room) -> None:
    lines = room.do("/set").splitlines()
    assert len(lines) == len(SETTABLE)
    assert "temperature = 0.5" in lines and "top_p = 1.0 (default)" in lines
    assert room.do("/set temp 0") == "temperature = 0.0"
    assert room.do("/set --top-k=20") == "top_k = 20"
    assert room.do("/set stop END") == "stop = 'END'"
    assert room.do("/set logit-bias 3=-1") == "logit_bias = 3=-1"
    assert room.desk.talk.settings == {"temperature": 0.0, "top_k": 20, "stop": ("END",), "logit_bias": {3: -1.0}}
    assert room.do("/set stop default") == "stop = none (default)"
    for text, words in (
        ("/set temperature hot", "hot"),
        ("/set temperature -1", "-1"),
        ("/set temprature 1", "did you mean temperature"),
        ("/set xyzzy", "the names are"),
        ("/set system_prompt x", "/system"),
        ("/set draft-tokens 3", "/k"),
        ("/set top_p 0", "top-p 0"),
    ):
        before = dict(room.desk.talk.settings)
        with pytest.raises(MlxspecError, match=words):
            room.do(text)
        assert room.desk.talk.settings == before
    assert set(SETTABLE) | set(ELSEWHERE) == set(names("reply"))
    room.desk.say("hello")
    assert room.desk.asked == {"temperature": 0.0, "top_k": 20, "logit_bias": {3: -1.0}}


def test_system(room: Room) -> None:
    assert room.do("/system") == "System prompt: be kind."
    room.do("/system Talk\nlike a \x1b[31mpirate")
    room.desk.say("hello")
    assert room.desk.prompt.startswith("[system] Talk\nlike a \x1b[31mpirate ;")
    assert "\x1b" not in room.do("/system")
    assert room.do("/system -") == "System prompt: none."
    assert room.desk.talk.system is None


def test_stats_and_context(room: Room) -> None:
    assert "no reply yet" in room.do("/stats")
    room.desk.say("hello")
    lines = room.do("/stats").splitlines()
    assert "41.5 tok/s" in lines[0] and "accepted " in lines[0]
    assert "2.08× plain decoding as measured on this machine (20.0 tok/s" in lines[2]
    assert lines[3] == "speculation on"
    assert "of 4096 (0 %) tokens in 2 messages" in room.do("/context")


def test_regen_continue_edit_undo_clear(room: Room) -> None:
    desk = room.desk
    desk.say("hello")
    room.do("/regen")
    assert len(desk.talk.said) == 2
    room.do("/continue")
    assert len(desk.talk.said) == 2
    room.do("/edit good day")
    assert desk.here[0] == ("user", "good day")
    room.do("/edit")
    assert room.face.done == [("compose", "good day")]
    assert "good day" in room.do("/undo")
    assert desk.here == []
    with pytest.raises(UsageError, match="no message to edit"):
        room.do("/edit x")
    desk.say("hello")
    room.do("/clear")
    assert desk.here == [] and desk.talk.session_id is None
    with pytest.raises(UsageError, match="takes nothing"):
        room.do("/clear all")


def test_save_load_search(room: Room) -> None:
    assert "with the first message" in room.do("/save")
    room.desk.say("tell me of lighthouses")
    name = room.desk.talk.session_id
    assert name is not None
    assert room.do("/save My \x1b[2Jsession") == f"Saved as {name}: My session."
    room.do("/new")
    assert name in room.do("/search LIGHTHOUSES")
    assert "Nothing" in room.do("/search nowhere")
    assert "My session" in room.do(f"/load {name}")
    assert room.desk.talk.session_id == name
    for text in ("/load none", "/search", "/load ../../etc/passwd"):
        with pytest.raises(UsageError):
            room.do(text)


def test_export(room: Room, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to export"):
        room.do("/export a.md")
    reply = room.desk.say("hello")
    room.do("/export a.md")
    text = (tmp_path / "a.md").read_text()
    assert "## You\n\nhello\n" in text and f"## fake\n\n{reply}\n" in text
    room.do("/export a.json")
    room.do("/export")
    assert (tmp_path / f"mlxspec-{room.desk.talk.session_id}.md").read_text() == text
    for name, words in (("a.md", "there already"), ("a.txt", "ends in"), ("none/a.md", "cannot be written")):
        with pytest.raises(MlxspecError, match=words):
            room.do(f"/export {name}")


def test_copy_gives_the_source(room: Room) -> None:
    with pytest.raises(UsageError, match="nothing to copy"):
        room.do("/copy")
    desk = room.desk
    desk.engine.script = ["See:\n```py\nx = vector<int>\n```\nand\n~~~\n5*3*2\n~~~"]
    reply = desk.say("hello")
    assert "by hand" in room.do("/copy")
    room.do("/copy code")
    room.do("/copy all")
    assert [text for what, text in room.face.done[:2]] == [reply, "5*3*2\n"]
    assert "hello" in room.face.done[2][1]
    desk.say("no code")
    with pytest.raises(UsageError, match="no code block"):
        room.do("/copy code")
    with pytest.raises(UsageError, match="/copy 'x'"):
        room.do("/copy x")


def test_compare_baseline_help_exit(room: Room) -> None:
    with pytest.raises(UsageError, match="no message"):
        room.do("/compare")
    room.desk.say("hello")
    room.do("/compare")
    room.do("/baseline")
    assert len(room.do("/help").splitlines()) == len(COMMANDS)
    assert "also /regenerate" in room.do("/help /regen")
    with pytest.raises(UsageError):
        room.do("/help xyzzy")
    room.do("/exit")
    assert room.face.done == [("leave", "")]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a\n```py\nx=1\n```\nb", ["x=1\n"]),
        ("```\nopen\n", ["open\n"]),
        ("````\n```\n````\n", ["```\n"]),
        ("~~~\na\n~~~\n\n```\nb\n```", ["a\n", "b\n"]),
        ("inline ``` is none", []),
        ("a\n```py\nx = 1\n```\nb\n~~~\ny\n~~~\n```open\nz", ["x = 1\n", "y\n", "z"]),
    ],
)
def test_code_blocks(text: str, wanted: list[str]) -> None:
    assert code_blocks(text) == wanted


def test_every_command_is_run_here(room: Room) -> None:
    """Each entry of the table is a method that the actions have."""

    class Listed:
        def __init__(self) -> None:
            self.called: list[str] = []

        def __getattr__(self, name: str) -> Any:
            assert callable(getattr(room.actions, name))
            return lambda *values: self.called.append(name)

    needs = {"k": "4", "spec": "on", "search": "x"}
    for command in COMMANDS:
        listed: Any = Listed()
        command.run(listed, needs.get(command.name, ""))
        assert len(listed.called) == 1, command.name
