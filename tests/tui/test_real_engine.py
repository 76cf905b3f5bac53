"""The thread around a real engine, with a tiny model: what the fake promises, it keeps."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mlxspec.audio.sound import playback
from mlxspec.core.events import Done, Text
from mlxspec.sessions.store import Store
from mlxspec.tui.chat.baseline import Cache
from mlxspec.tui.chat.conversation import Conversation
from mlxspec.tui.chat.origin import spans
from mlxspec.tui.chat.reports import Baseline, Compared, Counted, Ended, Failed, Happening, Speech
from mlxspec.tui.chat.worker import Worker
from tests.tiny import tiny_engine
from tests.tiny_voice import markov_voice

PATIENCE = 60.0
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }};{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


class Silence:
    """A player that hears all at once."""

    underruns, ahead, samples = 0, 0.0, 0

    def write(self, samples: Any) -> None:
        self.samples += len(samples)

    def finish(self) -> None:
        pass

    def stop(self) -> None:
        pass


def load(model: str, drafter: str, options: Mapping[str, Any], say: Any) -> Any:
    engine = tiny_engine("lookup" if drafter == "auto" else drafter)
    engine.tokenizer.chat_template = TEMPLATE
    return engine


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(load, load_voice=lambda name, say: markov_voice(drafter="lookup"), measured=Cache(tmp_path / "measured")).start()
    worker.load("tiny")
    yield worker
    assert worker.quit(PATIENCE)


def events(worker: Worker, job: int) -> list[Happening]:
    found: list[Happening] = []
    while not any(isinstance(event, Ended) for event in found):
        assert worker.wait(PATIENCE)
        found += [report.event for report in worker.drain() if report.job == job]
    return found


def one(found: list[Happening], kind: type) -> Any:
    (event,) = (event for event in found if isinstance(event, kind))
    return event


HELLO = [{"role": "user", "content": "hello hello hello"}]


def test_a_conversation_is_what_the_chat_itself_says(worker: Worker) -> None:
    """Three turns by the thread, each with the whole list of messages, against mlxspec's own Chat over another engine."""
    chat = load("tiny", "none", {}, None).chat(system="be kind", temperature=0, max_tokens=12)
    messages: list[dict[str, str]] = []
    for turn, text in enumerate(("hello", "go on", "and then?")):
        messages.append({"role": "user", "content": text})
        done: Done = one(events(worker, worker.reply(messages, system="be kind", temperature=0.0, max_tokens=12)), Done)
        assert done.tokens == chat.send(text).tokens
        messages.append({"role": "assistant", "content": done.text})
        new = done.stats["prompt_tokens"] - done.stats["reused_tokens"]
        assert not turn or new <= len("[user];[assistant]") + len(text) + 2, "only what is new is read"
    more: Done = one(events(worker, worker.reply(messages, system="be kind", proceed=True, temperature=0.0, max_tokens=8)), Done)
    *_, expected = chat.proceed(max_tokens=8)
    assert more.tokens == expected.tokens


def test_measuring_and_comparing_leave_the_caches_of_the_conversation(worker: Worker) -> None:
    first: Done = one(events(worker, worker.reply(HELLO, temperature=0.0, max_tokens=12)), Done)
    assert one(events(worker, worker.baseline()), Baseline).tokens_per_second > 0
    again: Done = one(events(worker, worker.reply(HELLO, temperature=0.0, max_tokens=12)), Done)
    assert again.tokens == first.tokens
    assert again.stats["reused_tokens"] == again.stats["prompt_tokens"] - 1, "measuring had caches of its own"
    found: Compared = one(events(worker, worker.compare(HELLO, temperature=0.8, max_tokens=24, seed=3)), Compared)
    assert found.identical is True
    assert found.speculative.stats["drafted"] > 0 == found.plain.stats["drafted"]
    assert one(events(worker, worker.count("hello")), Counted) == Counted(5, 512)


def test_a_voice_speaks_between_two_replies(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches of the conversation stay as they are, and all of the speech is heard."""
    player = Silence()
    monkeypatch.setattr(playback, "open_player", lambda rate, cancel: player)
    first: Done = one(events(worker, worker.reply(HELLO, temperature=0.0, max_tokens=12)), Done)
    found = [event for event in events(worker, worker.speak("This is said aloud. And this is said after it.")) if isinstance(event, Speech)]
    assert {event.sentence for event in found if event.sentence} == {"This is said aloud.", "And this is said after it."} and player.samples > 0
    assert found[-1].voice == "tiny" and found[-1].pace is not None and found[-1].pace.seconds_per_audio_second > 0
    again: Done = one(events(worker, worker.reply(HELLO, temperature=0.0, max_tokens=12)), Done)
    assert again.tokens == first.tokens and again.stats["reused_tokens"] == again.stats["prompt_tokens"] - 1


def test_what_the_model_thought_of_a_round(worker: Worker) -> None:
    """Looked at afterwards, in caches of its own; of a reply that was gone on with, too."""
    told: list[str] = []
    talk = Conversation(worker, None, {"temperature": 0.0, "max_tokens": 24, "draft_tokens": 2})
    talk.tell = told.append

    def until(so: Callable[[], bool]) -> None:
        while not so():
            assert worker.wait(PATIENCE)
            talk.feed()

    talk.send("la la la la la")
    until(lambda: not talk.answering)
    talk.proceed()
    until(lambda: not talk.answering)
    said = talk.said[-1]
    assert len(said.runs) == 2
    rounds = [piece.step for piece in said.pieces if piece.step is not None and piece.step.proposal is not None]
    drafted = [number for number, step in enumerate(rounds) if step.proposal]
    for number in (drafted[0], drafted[-1]):
        talk.look(said, number)
        until(lambda: talk.working is None and not worker.busy)
    assert set(said.chances) == {drafted[0], drafted[-1]} and said.round(drafted[-1])[0] == said.runs[-1][0] and not told
    for number, rows in said.chances.items():
        proposal = rounds[number].proposal
        assert proposal is not None and len(rows) == len(proposal)
        assert all(0 <= chance <= (rows[parent] if parent >= 0 else 1) for chance, parent in zip(rows, proposal.parents, strict=True))
    talk.regenerate()
    until(lambda: not talk.answering)
    assert talk.done is not None and talk.done.stats["reused_tokens"] == talk.done.stats["prompt_tokens"] - 1


def test_required_speculation_that_is_off_fails_with_the_reason(worker: Worker) -> None:
    events(worker, worker.switch_drafter("none"))
    failed: Failed = one(events(worker, worker.reply(HELLO, require_spec=True)), Failed)
    assert "--drafter none" in failed.text


@pytest.mark.parametrize("accept", ["coupled", "ratio"])
def test_no_array_leaves_the_thread_and_the_origins_add_up(worker: Worker, accept: str) -> None:
    found = events(worker, worker.reply(HELLO, temperature=1.0, seed=5, max_tokens=40, accept=accept))
    pieces = [event for event in found if isinstance(event, Text)]
    done: Done = one(found, Done)
    assert "".join(span.text for span in spans(pieces, worker.spelling) if span.origin != "rejected") == done.text
    assert all(piece.step is None or piece.step.proposal is None or piece.step.proposal.probs is None for piece in pieces)


def test_a_talk_stopped_saved_and_resumed(tmp_path: Path) -> None:
    store = Store(tmp_path / "sessions")
    talk = Conversation(Worker(load, release=lambda: 0), store, {"temperature": 0.0, "max_tokens": 200})
    talk.load("tiny")
    talk.send("hello")
    while not talk.said[-1].text:
        talk.feed()
        talk.worker.wait(PATIENCE)
    talk.stop()
    while talk.answering:
        assert talk.worker.wait(PATIENCE)
        talk.feed()
    part = talk.said[-1].text
    assert talk.leave() or not talk.worker.busy
    other = Conversation(Worker(load, release=lambda: 0), store, {})
    other.load("tiny")
    other.resume(store.summaries()[0].id)
    assert other.said[-1].text == part
    other.proceed()
    while other.answering:
        other.feed()
        other.worker.wait(0.1)
    assert other.said[-1].text.startswith(part) and len(other.said[-1].text) > len(part)
    other.leave()
