"""Saved conversations: what is said comes back, whatever happens to the process, the disk or the file."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxspec.errors import MlxspecError, UsageError
from mlxspec.sessions.log import EVERY, RETRY, SessionLog
from mlxspec.sessions.store import Session, Store, Turn
from tests import ROOT


class Clock:
    """Time that passes when told to."""

    def __init__(self, at: float = 1_700_000_000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Store:
    return Store(tmp_path / "sessions", clock, clock)


def said(store: Store, *texts: str, close: bool = True, **about: Any) -> str:
    """A session of users' messages and replies in turn; its id."""
    log = store.create(**about)
    for number, text in enumerate(texts):
        if number % 2:
            reply(log, text)
        else:
            log.user(text)
    log.close(mark=close)
    return log.id


def reply(log: SessionLog, text: str, more: bool = False) -> None:
    log.reply(more)
    for piece in text.split(" "):
        log.text(piece + " ")
    log.end("stop", {"seed": 7})


# ---- Round trip --------------------------------------------------------------------------------------------------------------------------


def test_what_was_said_comes_back(store: Store, clock: Clock) -> None:
    log = store.create(model="smollm2-135m", drafter="auto", system="Be brief.", settings={"temperature": 0.5})
    log.user("Why is the sky blue?\n[b]\x1b]52;c;eA==\x07 \udcff")
    reply(log, "Light scatters.")
    log.user("And red?")
    log.reply()
    log.text("At dus")
    log.end("interrupted", {})
    log.reply(more=True)
    log.text("k.")
    log.end("stop", {"seed": 3})
    log.set(title="Skies", system=None)
    assert log.close()
    session, fault = store.read(log.id)
    assert fault is None
    assert session == Session(
        log.id,
        clock.at,
        "Skies",
        "smollm2-135m",
        "auto",
        None,
        {"temperature": 0.5},
        (
            Turn("user", "Why is the sky blue?\n[b]\x1b]52;c;eA==\x07 \udcff"),
            Turn("assistant", "Light scatters. ", "stop", {"seed": 7}),
            Turn("user", "And red?"),
            Turn("assistant", "At dusk.", "stop", {"seed": 3}),
        ),
    )


def test_cut_and_rewrite(store: Store) -> None:
    log = store.create()
    log.user("one")
    reply(log, "first")
    log.user("two")
    log.cut(2)
    log.user("zwei")
    assert [turn.text for turn in store.read(log.id)[0].turns] == ["one", "first ", "zwei"]
    log.rewrite(Session(log.id, 0.0, turns=(Turn("user", "eins"), Turn("assistant", "erste", "stop", {"seed": 1}))))
    assert [turn.text for turn in store.read(log.id)[0].turns] == ["eins", "erste"]
    log.close()
    assert store.summaries()[0].turns == 2
    assert store.summaries()[0].title == "eins"


def test_nothing_is_made_before_something_is_said(store: Store) -> None:
    store.create().close()
    assert not store.folder.exists()
    assert store.summaries() == []


def test_files_are_the_owners_alone(store: Store) -> None:
    name = said(store, "secret")
    assert (store.folder / f"{name}.jsonl").stat().st_mode & 0o777 == 0o600
    assert store.folder.stat().st_mode & 0o777 == 0o700


# ---- The list ----------------------------------------------------------------------------------------------------------------------------


def test_the_list_has_the_latest_first(store: Store, clock: Clock) -> None:
    names = []
    for number in range(3):
        clock.at += 60
        names.append(said(store, f"message {number}", "reply", model="m"))
        os.utime(store.folder / f"{names[-1]}.jsonl", (clock.at, clock.at))
    rows = store.summaries()
    assert [row.id for row in rows] == names[::-1]
    assert [(row.title, row.turns, row.model, row.cut_off) for row in rows] == [(f"message {n}", 2, "m", False) for n in (2, 1, 0)]


def test_titles_drive_no_terminal(store: Store) -> None:
    said(store, "\x1b[2J\x1b]0;owned\x07 hello\nthere " + "x" * 500)
    (row,) = store.summaries()
    assert row.title.startswith("hello there xxx")
    assert row.title.isprintable()
    assert len(row.title) <= 60


def test_a_thousand_sessions_are_listed_in_a_moment(store: Store) -> None:
    """0.2 s beside an empty folder's microseconds; long replies stand before the ends that are read. The best of three: others compute here too."""
    names = [f"20250101-0000{n:02d}-{n:06x}" for n in range(1000)]
    template = said(store, "What is gravity?", "It pulls. " * 400, model="m")
    data = (store.folder / f"{template}.jsonl").read_bytes()
    for name in names:
        (store.folder / f"{name}.jsonl").write_bytes(data)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        rows = store.summaries()
        times.append(time.perf_counter() - started)
    assert len(rows) == 1001
    assert min(times) < 0.2
    started = time.perf_counter()
    assert store.cut_off() is None
    assert time.perf_counter() - started < 0.2, "what a start does"


def test_ids_may_be_shortened_and_go_nowhere_else(store: Store, tmp_path: Path) -> None:
    store.folder.mkdir()
    for name in ("20250101-aa", "20250101-ab", "2026"):
        (store.folder / f"{name}.jsonl").write_text("")
    assert store.resolve("2026") == "2026"
    assert store.resolve("20250101-a" + "a") == "20250101-aa"
    with pytest.raises(UsageError, match="2 sessions begin"):
        store.resolve("2025")
    (tmp_path / "secret.jsonl").write_text("")
    for word in ("../secret", "/etc/passwd", "", "2027", "*"):
        with pytest.raises(UsageError, match="no session"):
            store.resolve(word)


def titled(store: Store, name: str, title: str) -> None:
    _, log, _ = store.open(name)
    log.set(title=title)
    log.close()


def test_search_finds_any_case_and_says_where(store: Store) -> None:
    first = said(store, "Tell me of Gravity", "It pulls things down")
    said(store, "of light")
    titled(store, first, "PULLEY")
    hits = list(store.search("pull"))
    assert [(hit.id, hit.turn, hit.role) for hit in hits] == [(first, 0, "title"), (first, 2, "assistant")]
    assert "It pulls things" in hits[1].excerpt
    assert list(store.search("nowhere")) == []
    with pytest.raises(UsageError, match="nothing to search"):
        list(store.search(" "))


def test_a_title_and_deleting(store: Store) -> None:
    name = said(store, "hello")
    titled(store, name, "A \x1b[1mname")
    assert store.summaries()[0].title == "A name"
    assert store.read(name)[0].title == "A \x1b[1mname"
    assert store.delete(name) == name
    assert store.summaries() == []


# ---- Kill -9 -----------------------------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from mlxspec.sessions.store import Store
at = [0.0]
store = Store(Path(sys.argv[1]), clock=lambda: at[0])
log = store.create(model="m")
log.user("Count.")
log.reply()
for number in range(100):
    at[0] += 0.1
    log.text(f"{number} ")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_costs_at_most_the_last_second(store: Store) -> None:
    """Ten pieces a second for ten seconds, then kill -9: at most ten of them are gone, and the next start offers the session, once."""
    process = subprocess.run([sys.executable, "-c", KILLED, str(store.folder)], cwd=ROOT, timeout=60)
    assert process.returncode == -signal.SIGKILL
    offered = store.cut_off()
    assert offered is not None
    assert offered.title == "Count."
    session, log, fault = store.open(offered.id)
    assert fault is None
    assert len(session.turns[1].text.split()) >= 90
    assert session.turns[1].finish is None
    reply(log, "done", more=True)
    log.close()
    assert store.read(offered.id)[0].turns[1].text.endswith(" done ")
    assert store.cut_off() is None


@pytest.mark.parametrize("torn", [b'{"is": "te', b"\x00" * 40, '{"is": "text", "text": "ü'.encode()[:-1]])
def test_a_line_cut_off_in_the_middle_is_dropped(store: Store, torn: bytes) -> None:
    name = said(store, "hello", "there", close=False)
    path = store.folder / f"{name}.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert store.summaries()[0].cut_off
    session, log, fault = store.open(name)
    assert fault is None
    assert [turn.text for turn in session.turns] == ["hello", "there "]
    assert path.read_bytes() == whole
    log.user("again")
    log.close()
    assert len(store.read(name)[0].turns) == 3


def test_a_session_that_is_open_is_not_offered(store: Store) -> None:
    log = store.create()
    log.user("hello")
    assert not store.summaries()[0].cut_off, "its process goes on with it"
    assert store.cut_off() is None
    assert store.latest() is None
    log.close()
    assert store.latest() is not None


# ---- Two at once -------------------------------------------------------------------------------------------------------------------------

HOLDS = """
import sys
from pathlib import Path
from mlxspec.sessions.store import Store
session, log, fault = Store(Path(sys.argv[1])).open(sys.argv[2])
print("open", flush=True)
sys.stdin.readline()
log.user("from the other one")
log.close()
"""


def test_two_processes_never_write_to_one_session(store: Store) -> None:
    name = said(store, "hello")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(store.folder), name], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "open\n"
        for attempt in (store.open, store.delete):
            with pytest.raises(UsageError, match="open in another mlxspec"):
                attempt(name)
        assert store.read(name)[0].turns[0].text == "hello"
        mine = said(store, "in a file of its own")
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.wait(60) == 0
    assert mine != name
    assert [turn.text for turn in store.read(name)[0].turns] == ["hello", "from the other one"]


# ---- Damage ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["garbage", "[]", '{"is": "text"}', '{"is": "dance"}', '{"is": "turn", "role": "user", "text": 5}', "\udcff\udcfe"])
def test_a_damaged_file_is_kept_aside_and_the_rest_goes_on(store: Store, line: str) -> None:
    name = said(store, "hello", "there", "and", "more")
    path = store.folder / f"{name}.jsonl"
    lines = path.read_bytes().split(b"\n")
    at = next(number for number, text in enumerate(lines) if b'"and"' in text)
    lines[at] = line.encode("utf-8", "surrogateescape")
    broken = b"\n".join(lines)
    path.write_bytes(broken)
    assert "is no record" in (store.read(name)[1] or "")
    session, log, fault = store.open(name)
    assert fault is not None
    assert f"line {at + 1}" in fault and "kept aside as" in fault and "2 messages before it" in fault
    assert "\n" not in fault
    assert (store.folder / f"{name}.damaged").read_bytes() == broken
    assert [turn.text for turn in session.turns] == ["hello", "there "]
    log.user("further")
    log.close()
    assert [turn.text for turn in store.read(name)[0].turns] == ["hello", "there ", "further"]
    assert store.read(name)[1] is None


@pytest.mark.parametrize("data", [b"", b"\n", b"\xff\xfe\n", b"{}\n", b'{"is": "head", "format": 1}\n', b"\x00" * 100])
def test_a_file_that_is_none_of_ours_costs_no_start(store: Store, data: bytes) -> None:
    good = said(store, "hello")
    (store.folder / "bad.jsonl").write_bytes(data)
    rows = {row.id: row for row in store.summaries()}
    assert rows[good].title == "hello"
    assert rows["bad"].damaged
    assert store.cut_off() is None
    _, log, fault = store.open("bad")
    assert fault is not None and "kept aside" in fault
    log.close()
    assert (store.folder / "bad.damaged").read_bytes() == data


def test_another_format_is_left_alone(store: Store) -> None:
    store.folder.mkdir()
    data = '{"is": "head", "format": 2, "id": "new", "created": 1}\n'
    (store.folder / "new.jsonl").write_text(data)
    with pytest.raises(MlxspecError, match="format 2"):
        store.open("new")
    assert (store.folder / "new.jsonl").read_text() == data
    assert store.summaries()[0].damaged


# ---- A full disk -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def room() -> Iterator[Any]:
    """Limits how large a file may grow: from there on writes fail, the one that hits the limit in its middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_loses_nothing(store: Store, clock: Clock, room: Any) -> None:
    log = store.create()
    log.user("hello")
    path = store.folder / f"{log.id}.jsonl"
    size = path.stat().st_size
    room(size + 50)
    log.reply()
    for _ in range(20):
        clock.at += EVERY
        log.text("a piece that does not fit ")
    assert log.failure is not None
    assert str(path) in log.failure and "/export" in log.failure and "\n" not in log.failure
    assert path.read_bytes().endswith(b"}\n"), "no half of a record stays"
    assert not log.flush()
    room(None)
    clock.at += RETRY
    log.tick()
    assert log.failure is None
    log.end("stop", {})
    assert log.close()
    assert store.read(log.id)[0].turns[1].text == "a piece that does not fit " * 20


def test_a_folder_that_cannot_be_made_is_tried_again(store: Store, clock: Clock) -> None:
    store.folder.parent.mkdir(exist_ok=True)
    store.folder.write_text("in the way")
    log = store.create()
    log.user("hello")
    assert log.failure is not None
    store.folder.unlink()
    clock.at += RETRY
    log.tick()
    assert log.failure is None
    assert store.read(log.id)[0].turns == (Turn("user", "hello"),)
    log.close()


def test_a_file_deleted_under_our_hands_is_said(store: Store, clock: Clock) -> None:
    log = store.create()
    log.user("hello")
    (store.folder / f"{log.id}.jsonl").unlink()
    log.user("still there?")
    assert log.failure is not None and "deleted" in log.failure
    assert not log.close()


def test_each_record_is_json_on_a_line_of_its_own(store: Store) -> None:
    name = said(store, "a\nb\u2028c\x85d", "e\rf")
    lines = (store.folder / f"{name}.jsonl").read_bytes().split(b"\n")
    assert lines[-1] == b""
    assert [json.loads(line)["is"] for line in lines[:-1]] == ["head", "turn", "mark", "reply", "text", "end", "mark", "mark", "closed"]


def test_a_session_from_which_all_was_taken_back_leaves_no_file(store: Store) -> None:
    log = store.create()
    log.user("hello")
    log.cut(0)
    assert log.close()
    assert store.summaries() == []


def test_a_session_in_which_nothing_was_said_is_neither_listed_nor_offered(store: Store) -> None:
    """Not while it is open, and not when its process was killed: the next start then deletes its file."""
    good = said(store, "hello", "there")
    log = store.create(title="A name")
    log.user("too long")
    log.rewrite(Session(log.id, 0.0))
    assert log.path.exists()
    assert [row.id for row in store.summaries()] == [good]
    log.close(mark=False)
    os.utime(log.path, (4e9, 4e9))
    assert [row.id for row in store.summaries()] == [good]
    found = store.latest()
    assert found is not None and found.id == good
    assert store.cut_off() is None
    assert not log.path.exists()


def test_what_was_said_after_an_empty_mark_is_listed(store: Store) -> None:
    log = store.create()
    log.user("hello")
    log.cut(0)
    log.close(mark=False)
    with log.path.open("a") as file:
        file.write('{"is": "turn", "role": "user", "text": "again"}\n')
    assert [(row.title, row.turns) for row in store.summaries()] == [("again", 1)]
