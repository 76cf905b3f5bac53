"""The conversation: what the user does to it, what the engine does, and that the session on the disk says the same."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxspec.errors import UsageError
from mlxspec.sessions.store import Store
from mlxspec.tui.chat.baseline import Cache
from mlxspec.tui.chat.conversation import Conversation
from mlxspec.tui.chat.reports import Compared, Counted, Report
from mlxspec.tui.chat.worker import Worker
from tests.tui.fake_chat import PATIENCE, FakeChatEngine, Loader
from tests.tui.fake_voice import Voices


class Sleep:
    def __init__(self) -> None:
        self.nights: list[str] = []

    def on(self) -> None:
        self.nights.append("on")

    def off(self) -> None:
        self.nights.append("off")


class Desk:
    """A talk with a fake engine, and what it told."""

    def __init__(self, store: Store | None, **engine: Any) -> None:
        self.loader = Loader(**engine)
        self.store = store
        self.sleep = Sleep()
        self.told: list[str] = []
        self.back: list[str] = []
        self.reports: list[Report] = []
        self.voices = Voices()
        self.talk = Conversation(Worker(self.loader, load_voice=self.voices, release=lambda: 0), store, {"temperature": 0.5}, "be kind", self.sleep)
        self.talk.tell, self.talk.give_back = self.told.append, self.back.append
        self.talk.worker.start()
        self.talk.load("fake")
        self.until(lambda: self.talk.baseline is not None)

    @property
    def engine(self) -> FakeChatEngine:
        return self.loader.engines[-1]

    @property
    def asked(self) -> dict[str, Any]:
        """Options of the last reply, the measuring of plain decoding left out."""
        return next(options for options in reversed(self.engine.asked) if options.get("max_tokens") != 48)

    @property
    def prompt(self) -> str:
        return next(prompt for prompt in reversed(self.engine.prompts) if prompt.startswith("["))

    def until(self, so: Callable[[], bool]) -> None:
        while not so():
            assert self.talk.worker.wait(PATIENCE)
            self.reports += self.talk.feed()

    def settled(self) -> None:
        self.until(lambda: not self.talk.answering)

    def say(self, text: str) -> str:
        self.talk.send(text)
        self.settled()
        return self.talk.said[-1].text

    @property
    def saved(self) -> list[tuple[str, str]]:
        """What the session's file says."""
        assert self.store is not None and self.talk.session_id is not None
        session, fault = self.store.read(self.talk.session_id)
        assert fault is None
        return [(turn.role, turn.text) for turn in session.turns]

    @property
    def here(self) -> list[tuple[str, str]]:
        return [(one.role, one.text) for one in self.talk.said]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "sessions")


@pytest.fixture
def desk(store: Store) -> Iterator[Desk]:
    desk = Desk(store)
    yield desk
    for engine in desk.loader.engines:
        engine.gate.open()
    desk.loader.gate.open()
    desk.talk.leave()
    assert desk.talk.worker.quit(PATIENCE)


def test_turns_are_saved_as_they_go(desk: Desk) -> None:
    one = desk.say("hello")
    two = desk.say("more")
    assert desk.here == desk.saved == [("user", "hello"), ("assistant", one), ("user", "more"), ("assistant", two)]
    assert desk.talk.said[1].finish == "stop"
    assert desk.talk.said[1].about["stats"]["rounds"] > 0
    assert desk.talk.context is not None and desk.talk.context.used > 0
    assert desk.asked == {"temperature": 0.5}
    desk.talk.leave()
    assert desk.store is not None and not desk.store.summaries()[0].cut_off


def test_a_stopped_reply_keeps_its_text_and_goes_on(desk: Desk) -> None:
    desk.engine.gate.close()
    desk.talk.send("hello")
    desk.engine.gate.let(3)
    desk.engine.gate.wait_for(4)
    assert desk.talk.stop()
    desk.settled()
    part = desk.talk.said[-1]
    assert part.text and part.finish == "interrupted" and part.stopped
    assert desk.saved[-1] == ("assistant", part.text)
    desk.engine.gate.open()
    desk.talk.proceed()
    desk.settled()
    whole = desk.talk.said[-1]
    assert whole.text.startswith(part.text) and len(whole.text) > len(part.text)
    assert whole.finish == "stop"
    assert desk.here == desk.saved
    assert len(desk.talk.said) == 2
    assert "".join(piece.text for piece in whole.pieces) == whole.text
    assert not desk.talk.stop()


@pytest.mark.parametrize("queued", [True, False])
def test_stopped_before_the_first_word_the_message_comes_back(desk: Desk, queued: bool) -> None:
    if queued:
        desk.loader.gate.close()
        desk.talk.load("other")
    desk.engine.gate.close()
    desk.talk.send("hello")
    if not queued:
        desk.engine.gate.wait_for(1)
    desk.talk.stop()
    desk.settled()
    assert desk.here == desk.saved == []
    assert desk.back == ["hello"]
    desk.loader.gate.open()


def test_regenerate_edit_undo(desk: Desk) -> None:
    desk.talk.change({"temperature": 0.5, "seed": 4})
    first = desk.say("hello")
    desk.say("more")
    desk.talk.regenerate()
    desk.settled()
    assert [role for role, _ in desk.here] == ["user", "assistant"] * 2
    assert desk.asked == {"temperature": 0.5, "seed": None}, "regenerating takes a fresh seed"
    desk.talk.edit(0, "good day")
    desk.settled()
    assert desk.here[0] == ("user", "good day") and len(desk.here) == 2
    assert desk.talk.said[1].text != first
    assert desk.saved == desk.here
    assert desk.talk.undo() == "good day"
    assert desk.here == desk.saved == []
    with pytest.raises(UsageError, match="nothing to take back"):
        desk.talk.undo()
    with pytest.raises(UsageError, match="no message"):
        desk.talk.regenerate()
    with pytest.raises(UsageError, match="no reply"):
        desk.talk.proceed()


def test_a_reply_in_the_middle_is_regenerated_from_there(desk: Desk) -> None:
    desk.say("one")
    desk.say("two")
    desk.talk.regenerate(1)
    desk.settled()
    assert [text for role, text in desk.here if role == "user"] == ["one"]
    assert desk.saved == desk.here


def test_what_fails_leaves_all_as_it_was(desk: Desk) -> None:
    desk.say("hello")
    before = desk.here
    desk.engine.fails_after = 0
    desk.talk.send("this one fails")
    desk.settled()
    assert desk.here == desk.saved == before
    assert desk.back == ["this one fails"]
    assert any("RuntimeError" in line for line in desk.told)
    desk.talk.regenerate()
    desk.settled()
    assert desk.here == desk.saved == before, "the old reply is still there"
    desk.engine.fails_after = 3
    desk.talk.send("this one breaks off")
    desk.settled()
    assert desk.talk.said[-1].text and desk.talk.said[-1].finish == "interrupted"
    assert desk.here == desk.saved


def test_a_message_that_is_too_long_comes_back_with_the_reason(store: Store) -> None:
    desk = Desk(store, context=40)
    desk.talk.send("word " * 100)
    desk.settled()
    assert desk.back == ["word " * 100]
    assert any("at most 40" in line for line in desk.told)
    assert desk.talk.said == []
    desk.talk.leave()
    assert store.summaries() == [], "nothing was said, so nothing is kept"


def test_one_thing_at_a_time(desk: Desk) -> None:
    desk.engine.gate.close()
    desk.talk.send("hello")
    for action in (
        lambda: desk.talk.send("x"),
        desk.talk.regenerate,
        desk.talk.proceed,
        desk.talk.undo,
        desk.talk.clear,
        desk.talk.compare,
        lambda: desk.talk.edit(0, "x"),
        lambda: desk.talk.resume("x"),
    ):
        with pytest.raises(UsageError, match="stop it first"):
            action()
    with pytest.raises(UsageError, match="empty"):
        desk.engine.gate.open()
        desk.settled()
        desk.talk.send(" \n")


def test_a_switch_of_models_keeps_the_conversation(desk: Desk) -> None:
    desk.engine.gate.close()
    desk.talk.send("hello")
    desk.engine.gate.let(3)
    desk.engine.gate.wait_for(4)
    desk.talk.load("other", "lookup")
    desk.until(lambda: desk.talk.ready is not None and desk.talk.ready.model == "other")
    part = desk.talk.said[-1].text
    assert part and not desk.talk.answering
    desk.talk.proceed()
    desk.settled()
    assert desk.prompt == f"[system] be kind ;[user] hello ;[assistant]{part}"
    assert desk.here == desk.saved
    assert desk.store is not None and desk.talk.session_id is not None
    session = desk.store.read(desk.talk.session_id)[0]
    assert (session.model, session.drafter) == ("other", "lookup")


def test_a_model_of_this_folder_is_saved_by_its_whole_path(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    desk.talk.load("owner/name", "small:owner/name")
    assert desk.say("hello")
    path = str(tmp_path / "owner" / "name")
    assert desk.talk.session_id is not None
    session = desk.store.read(desk.talk.session_id)[0]
    assert (session.model, session.drafter) == (path, f"small:{path}")
    desk.talk.switch_drafter("small:./owner/name")
    desk.until(lambda: desk.store.read(desk.talk.session_id)[0].drafter == f"small:{path}")
    assert desk.loader.asked[-1][:2] == (path, f"small:{path}")


def test_a_model_that_fails_to_load_leaves_the_chat_usable(store: Store) -> None:
    desk = Desk(store)
    desk.talk.load("broken")
    desk.until(lambda: any("no model at broken" in line for line in desk.told))
    assert desk.say("hello")
    assert desk.talk.wish is not None and desk.talk.wish[0] == "fake"
    desk.talk.leave()


def test_the_bar_of_a_load_follows_the_time_it_took_before(store: Store, tmp_path: Path) -> None:
    times = [100.0]
    loader = Loader()
    worker = Worker(loader, release=lambda: 0, measured=Cache(tmp_path / "measured"), clock=lambda: times[0])
    talk = Conversation(worker, store, {}, clock=lambda: times[0])
    worker.start()
    for _ in range(2):
        loader.gate.close()
        talk.load("fake")
        loader.gate.wait_for(1)
        talk.feed()
        first = talk.loading
        times[0] += 4
        talk.feed()
        later = talk.loading
        loader.gate.open()
        while talk.loading is not None or talk.ready is None or worker.busy:
            assert worker.wait(PATIENCE)
            talk.feed()
    assert first is not None and later is not None
    assert (first.share, later.share) == (0.0, 0.99)
    talk.leave()


def test_what_the_engine_says_with_a_reply_is_a_notice(desk: Desk) -> None:
    """It measures the cost of a round then; the model is loaded all the same."""
    desk.engine.remark = "Measuring \x1b[2Jrounds."
    desk.say("hello")
    assert "Measuring rounds." in desk.told
    assert desk.talk.loading is None


def test_what_speculation_is_set_to(desk: Desk) -> None:
    desk.talk.speculating = False
    desk.say("hello")
    assert desk.asked["draft_tokens"] == 0
    assert desk.talk.speculation is not None and desk.talk.speculation.state == "off"
    desk.talk.speculating = True
    desk.say("hello")
    assert "draft_tokens" not in desk.asked


def test_the_machine_is_kept_awake_while_it_answers_only(desk: Desk) -> None:
    desk.until(lambda: desk.talk.working is None)
    assert "on" not in desk.sleep.nights
    desk.say("hello")
    assert desk.sleep.nights.count("on") == 1
    assert desk.sleep.nights[-1] == "off"


def test_compare_leaves_the_conversation_alone(desk: Desk) -> None:
    desk.say("hello")
    before = desk.here
    desk.talk.compare()
    desk.until(lambda: any(isinstance(report.event, Compared) for report in desk.reports))
    assert desk.here == desk.saved == before
    assert desk.prompt == "[system] be kind ;[user] hello ;[assistant]"


def test_a_large_paste_is_counted_sent_and_saved_whole(desk: Desk, tmp_path: Path) -> None:
    """2,500 lines, 200 kB. Over the context its tokens are known beforehand, and it comes back to the prompt."""
    text = "\n".join(f"line {number} of a long \t paste, ż🙂 [b] \x1b[2J {'x' * 40}" for number in range(2500))
    assert len(text.encode()) > 200_000
    job = desk.talk.worker.count(text)
    desk.talk.send(text)
    desk.settled()
    (counted,) = (report.event for report in desk.reports if report.job == job and isinstance(report.event, Counted))
    assert counted.limit is not None and counted.tokens > counted.limit
    assert desk.back == [text] and desk.here == desk.saved == []
    roomy = Desk(Store(tmp_path / "others"), context=None)
    started = time.perf_counter()
    roomy.talk.send(text)
    assert time.perf_counter() - started < 1, "the screen is not held up"
    roomy.settled()
    assert roomy.saved[0] == ("user", text)
    roomy.talk.leave()


# ---- Sessions ----------------------------------------------------------------------------------------------------------------------------


def test_save_quit_resume_and_go_on(desk: Desk, store: Store) -> None:
    desk.engine.gate.close()
    desk.talk.send("hello")
    desk.engine.gate.let(3)
    desk.engine.gate.wait_for(4)
    desk.talk.leave()
    part = desk.talk.said[-1].text
    name = store.summaries()[0].id
    other = Desk(store)
    session = other.talk.resume(name)
    assert [turn.text for turn in session.turns] == ["hello", part]
    assert (other.talk.system, other.talk.settings) == ("be kind", {"temperature": 0.5})
    other.talk.proceed()
    other.settled()
    assert other.talk.said[-1].text.startswith(part)
    assert other.here == other.saved
    other.talk.clear()
    assert other.talk.said == [] and other.talk.session_id is None
    other.say("another one")
    assert len(store.summaries()) == 2
    other.talk.leave()


def test_a_session_that_cannot_be_opened_leaves_the_one_that_is(desk: Desk, store: Store) -> None:
    desk.say("hello")
    mine = desk.talk.session_id
    elsewhere = store.create()
    elsewhere.user("in another process")
    for word, reason in ((elsewhere.id, "open in another"), ("none", "no session"), (mine or "", "already")):
        with pytest.raises(UsageError, match=reason):
            desk.talk.resume(word)
    assert desk.talk.session_id == mine and desk.here == desk.saved
    elsewhere.close()


def test_parameters_of_a_session_that_make_no_sense_are_said(desk: Desk, store: Store) -> None:
    log = store.create(settings={"temperature": -3})
    log.user("hello")
    log.close()
    desk.talk.resume(log.id)
    assert any("parameters are not used" in line and "-3" in line for line in desk.told)
    assert desk.talk.settings == {"temperature": 0.5}


def test_a_damaged_session_is_said_and_goes_on(desk: Desk, store: Store) -> None:
    log = store.create()
    log.user("hello")
    log.close()
    path = store.folder / f"{log.id}.jsonl"
    path.write_bytes(path.read_bytes() + b"rubbish\n")
    desk.talk.resume(log.id)
    assert any("kept aside" in line for line in desk.told)
    assert [one.text for one in desk.talk.said] == ["hello"]


def test_nothing_is_saved_where_nothing_shall_be(tmp_path: Path) -> None:
    desk = Desk(None)
    desk.say("hello")
    desk.talk.undo()
    desk.talk.rename("x")
    with pytest.raises(UsageError, match="--no-save"):
        desk.talk.resume("x")
    desk.talk.leave()
    assert desk.talk.session_id is None


def test_what_cannot_be_saved_is_told_once_and_kept(desk: Desk, store: Store) -> None:
    store.folder.parent.mkdir(exist_ok=True)
    store.folder.write_text("in the way")
    one = desk.say("hello")
    assert len([line for line in desk.told if "not saved" in line]) == 1
    store.folder.unlink()
    assert desk.say("more")
    assert desk.talk.leave() or True
    session = store.read(store.summaries()[0].id)[0]
    assert [turn.text for turn in session.turns][:2] == ["hello", one]
