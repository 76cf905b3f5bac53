"""The engine's thread, with a fake engine: order, cancelling, switching, failing, quitting. Gates in place of time."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxspec.core.events import Done, Notice, Prefill, Text
from mlxspec.core.proposal import Proposal
from mlxspec.tui.chat.baseline import Cache
from mlxspec.tui.chat.reports import (
    Baseline,
    Begun,
    Chances,
    Compared,
    Context,
    Counted,
    Ended,
    Failed,
    Lane,
    Loading,
    Offer,
    Offers,
    Ready,
    Report,
    Speculation,
)
from mlxspec.tui.chat.worker import Worker
from tests.tui.fake_chat import PATIENCE, FakeChatEngine, Loader
from tests.tui.fake_voice import Voices

HELLO = [{"role": "user", "content": "hello"}]


class Bench:
    """A worker and what it said."""

    def __init__(self, **engine: Any) -> None:
        self.loader = Loader(**engine)
        self.freed = 0
        self.voices = Voices()
        self.worker = Worker(self.loader, load_voice=self.voices, release=self.release, list_offers=offered, clock=lambda: 0.0, now=lambda: 99.0)
        self.reports: list[Report] = []

    def release(self) -> int:
        self.freed += 1
        return 1000 * (1 if self.worker._engine is not None else 0)

    def until(self, so: Callable[[Report], bool]) -> None:
        """Drain until a report that is new is so."""
        seen = len(self.reports)
        while not any(so(report) for report in self.reports[seen:]):
            assert self.worker.wait(PATIENCE), f"nothing more came after {self.reports[-3:]}"
            self.reports += self.worker.drain()

    def ended(self, job: int) -> list[Any]:
        """The events of a job, once it has ended."""
        if not any(report.job == job and isinstance(report.event, Ended) for report in self.reports):
            self.until(lambda report: report.job == job and isinstance(report.event, Ended))
        return [report.event for report in self.reports if report.job == job]

    @property
    def engine(self) -> FakeChatEngine:
        return self.loader.engines[-1]


def offered(engine: Any, folders: Any) -> Offers:
    return Offers((Offer("fake", "built-in", True, "1 MB", engine is not None),), ())


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.worker.start()
    yield bench
    bench.loader.gate.open()
    bench.voices.open()
    for engine in bench.loader.engines:
        engine.gate.open()
    assert bench.worker.quit(PATIENCE)


def texts(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


# ---- Replies -----------------------------------------------------------------------------------------------------------------------------


def test_load_and_reply_in_order(bench: Bench) -> None:
    load, reply = bench.worker.load("fake", dtype="float32"), bench.worker.reply(HELLO, system="be kind", temperature=0.0)
    assert bench.loader.asked == [] or bench.loader.asked[0] == ("fake", "auto", {"dtype": "float32"})
    kinds = [type(event) for event in bench.ended(load)]
    assert kinds == [Begun, Loading, Loading, Ready, Ended]
    events = bench.ended(reply)
    assert [type(event) for event in events if not isinstance(event, Text)] == [Begun, Speculation, Prefill, Prefill, Done, Context, Ended]
    (done,) = (event for event in events if isinstance(event, Done))
    assert texts(events) == done.text != ""
    assert bench.engine.prompts == ["[system] be kind ;[user] hello ;[assistant]"]
    assert bench.engine.threads == {"mlxspec-engine"}
    assert [report.job for report in bench.reports] == sorted(report.job for report in bench.reports)


def test_notices_of_a_load_drive_no_terminal(bench: Bench) -> None:
    events = bench.ended(bench.worker.load("fake"))
    assert [event.text for event in events if isinstance(event, Loading)] == ["Loading fake.", "Model fake from nowhere."]


def test_the_screen_never_waits(bench: Bench) -> None:
    """With a load that hangs every method answers, and what was asked is done once it does not."""
    bench.loader.gate.close()
    bench.worker.load("fake")
    bench.loader.gate.wait_for(1)
    reply = bench.worker.reply(HELLO)
    count = bench.worker.count("two words")
    assert bench.worker.busy
    assert not any(isinstance(report.event, Ready) for report in bench.worker.drain())
    bench.loader.gate.open()
    assert any(isinstance(event, Done) for event in bench.ended(reply))
    assert Counted(2, 4096) in bench.ended(count)
    assert not bench.worker.busy


def test_cancel_ends_within_a_round_and_keeps_the_text(bench: Bench) -> None:
    """Three rounds are let through; cancelling while the fourth waits gives exactly these, and going on gives the rest."""
    whole = FakeChatEngine(gate=None).chat().send("hello").text
    bench.ended(bench.worker.load("fake"))
    bench.engine.gate.close()
    reply = bench.worker.reply(HELLO)
    bench.engine.gate.let(3)
    bench.engine.gate.wait_for(4)
    bench.worker.cancel()
    events = bench.ended(reply)
    assert events[-1] == Ended("reply", cancelled=True)
    (done,) = (event for event in events if isinstance(event, Done))
    assert done.finish_reason == "interrupted"
    assert done.text == texts(events)
    assert whole.startswith(done.text) and done.text != whole
    bench.engine.gate.open()
    said = [*HELLO, {"role": "assistant", "content": done.text}]
    more = bench.ended(bench.worker.reply(said, proceed=True))
    assert bench.engine.prompts[-1] == f"[user] hello ;[assistant]{done.text}"
    assert texts(more)


def looked_at(bench: Bench) -> tuple[int, list[int], Proposal]:
    """The second round of a reply: its job, the tokens before the round, and its proposal."""
    reply = bench.worker.reply(HELLO)
    steps = [event.step for event in bench.ended(reply) if isinstance(event, Text) and event.step is not None]
    assert steps[2].proposal is not None
    return reply, [token for step in steps[:2] for token in step.tokens], steps[2].proposal


def test_a_round_is_looked_at_afterwards(bench: Bench) -> None:
    """The model is asked what it thought of a round, after all that stood before it; one that is gone cannot be."""
    bench.ended(bench.worker.load("fake"))
    reply, before, proposal = looked_at(bench)
    found = bench.ended(bench.worker.chances(reply, before, proposal))
    assert found[1] == Chances(tuple(1 / (depth + 1) for depth in proposal.depths))
    assert bench.engine.looked == [f"[user] hello ;[assistant]{bench.engine.tokenizer.decode(before)}"]
    bench.ended(bench.worker.load("fake"))
    assert [type(event) for event in bench.ended(bench.worker.chances(reply, before, proposal))] == [Begun, Ended]


def test_looking_makes_room_for_what_is_said(bench: Bench) -> None:
    """And of several rounds the last one is wanted."""
    bench.ended(bench.worker.load("fake"))
    asked = looked_at(bench)
    bench.engine.gate.close()
    first = bench.worker.chances(*asked)
    bench.engine.gate.wait_for(1)
    second, third = bench.worker.chances(*asked), bench.worker.chances(*asked)
    assert bench.ended(first)[-1] == Ended("chances", cancelled=True) and bench.ended(second) == [Ended("chances", cancelled=True)]
    bench.engine.gate.wait_for(2)
    bench.worker.reply(HELLO)
    bench.engine.gate.open()
    assert not any(isinstance(event, Chances) for event in bench.ended(third))


def test_cancel_forgets_replies_that_wait(bench: Bench) -> None:
    bench.ended(bench.worker.load("fake"))
    bench.engine.gate.close()
    first, second = bench.worker.reply(HELLO), bench.worker.reply(HELLO)
    bench.engine.gate.wait_for(1)
    bench.worker.cancel()
    assert bench.ended(second) == [Ended("reply", cancelled=True)]
    assert bench.ended(first)[-1] == Ended("reply", cancelled=True)
    assert len(bench.engine.prompts) == 1


def test_the_whole_conversation_comes_with_each_reply(bench: Bench) -> None:
    """An edit or an undo is just another list of messages."""
    bench.ended(bench.worker.load("fake"))
    one = texts(bench.ended(bench.worker.reply(HELLO)))
    said = [*HELLO, {"role": "assistant", "content": one}, {"role": "user", "content": "more"}]
    bench.ended(bench.worker.reply(said))
    bench.ended(bench.worker.reply([{"role": "user", "content": "other"}]))
    assert bench.engine.prompts[1:] == [f"[user] hello ;[assistant] {one} ;[user] more ;[assistant]", "[user] other ;[assistant]"]
    assert said[-1] == {"role": "user", "content": "more"}, "the caller's own list is left alone"


def test_a_failing_reply_is_one_line_and_the_next_one_works(bench: Bench) -> None:
    bench.ended(bench.worker.load("fake"))
    bench.engine.fails_after = 2
    events = bench.ended(bench.worker.reply(HELLO))
    assert [event for event in events if isinstance(event, Failed)] == [Failed("RuntimeError: [metal::malloc] too much second line")]
    assert texts(events)
    bench.engine.fails_after = None
    assert any(isinstance(event, Done) for event in bench.ended(bench.worker.reply(HELLO)))


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (lambda worker: worker.reply(HELLO), "No model is loaded"),
        (lambda worker: worker.switch_drafter("lookup"), "No model is loaded"),
        (lambda worker: worker.count("x"), "No model is loaded"),
        (lambda worker: worker.baseline(), "No model is loaded"),
    ],
)
def test_without_a_model(bench: Bench, job: Callable[[Worker], int], words: str) -> None:
    events = bench.ended(job(bench.worker))
    assert any(isinstance(event, Failed) and words in event.text for event in events)


def test_options_that_make_no_sense_fail_the_job_alone(bench: Bench) -> None:
    bench.ended(bench.worker.load("fake"))
    for options in ({"temperature": -1.0}, {"temprature": 1.0}):
        events = bench.ended(bench.worker.reply(HELLO, **options))
        assert any(isinstance(event, Failed) for event in events)
        assert not any(isinstance(event, Text) for event in events)


def test_a_prompt_over_the_context_fails_and_says_both_numbers() -> None:
    bench = Bench(context=30)
    bench.worker.start()
    bench.ended(bench.worker.load("fake"))
    events = bench.ended(bench.worker.reply([{"role": "user", "content": "word " * 40}]))
    (failed,) = (event.text for event in events if isinstance(event, Failed))
    assert "30" in failed and "shorten" in failed
    said: list[dict[str, str]] = []
    for turn in range(8):
        said.append({"role": "user", "content": f"turn number {turn}"})
        events = bench.ended(bench.worker.reply(said, max_tokens=4))
        said.append({"role": "assistant", "content": texts(events)})
    assert any(isinstance(report.event, Notice) and "oldest" in report.event.text for report in bench.reports)
    assert bench.worker.quit(PATIENCE)


def test_speculation_says_when_it_pauses_and_why(bench: Bench) -> None:
    bench.ended(bench.worker.load("fake"))
    assert Speculation("off", "0 draft tokens were asked for") in bench.ended(bench.worker.reply(HELLO, draft_tokens=0))
    bench.engine.gate.close()
    reply = bench.worker.reply(HELLO)
    bench.engine.gate.let(2)
    bench.until(lambda report: isinstance(report.event, Text))
    bench.engine.state = "paused", "drafting loses time"
    bench.engine.gate.open()
    states = [event for event in bench.ended(reply) if isinstance(event, Speculation)]
    assert states == [Speculation("on", None), Speculation("paused", "drafting loses time")]


# ---- Switching ---------------------------------------------------------------------------------------------------------------------------


def test_a_new_model_ends_the_reply_and_comes_before_what_waits(bench: Bench) -> None:
    bench.ended(bench.worker.load("one"))
    bench.engine.gate.close()
    running = bench.worker.reply(HELLO)
    bench.engine.gate.wait_for(1)
    waiting = bench.worker.reply([{"role": "user", "content": "for the next model"}])
    load = bench.worker.load("two")
    assert bench.ended(running)[-1] == Ended("reply", cancelled=True)
    bench.ended(load)
    done = [event for event in bench.ended(waiting) if isinstance(event, Done)]
    assert [one.model for one in done] == ["two"]


def test_the_old_model_is_let_go_before_the_new_one_is_loaded(bench: Bench) -> None:
    bench.ended(bench.worker.load("one"))
    (ready,) = (event for event in bench.ended(bench.worker.load("two")) if isinstance(event, Ready))
    assert (ready.memory_before, ready.memory_freed_to, ready.memory) == (1000, 0, 1000)


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(bench: Bench) -> None:
    bench.ended(bench.worker.load("one", "lookup"))
    events = bench.ended(bench.worker.load("broken"))
    assert [event.text for event in events if isinstance(event, Failed)] == ["There is no model at broken: give another."]
    assert [event.model for event in events if isinstance(event, Ready)] == ["one"]
    assert bench.loader.asked[-1][:2] == ("one", "lookup")
    assert any(isinstance(event, Done) for event in bench.ended(bench.worker.reply(HELLO)))


def test_only_the_last_of_several_models_counts(bench: Bench) -> None:
    bench.loader.gate.close()
    one = bench.worker.load("one")
    bench.loader.gate.wait_for(1)
    two, three = bench.worker.load("two"), bench.worker.load("three")
    bench.loader.gate.open()
    assert Ended("load", cancelled=True) in bench.ended(one)
    assert bench.ended(two) == [Ended("load", cancelled=True)]
    assert [event.model for event in bench.ended(three) if isinstance(event, Ready)] == ["three"]
    assert [report.event.model for report in bench.reports if isinstance(report.event, Ready)] == ["three"]


def test_another_drafter_keeps_the_model(bench: Bench) -> None:
    bench.ended(bench.worker.load("one"))
    (ready,) = (event for event in bench.ended(bench.worker.switch_drafter("none")) if isinstance(event, Ready))
    assert (ready.model, ready.drafter, ready.speculation, ready.reason) == ("one", "none", "off", "--drafter none")
    events = bench.ended(bench.worker.switch_drafter("small:other-tokens"))
    assert any(isinstance(event, Failed) and "same tokenizer" in event.text for event in events)
    (done,) = (event for event in bench.ended(bench.worker.reply(HELLO)) if isinstance(event, Done))
    assert done.drafter == "none"
    assert len(bench.loader.engines) == 1


# ---- Measuring and comparing -------------------------------------------------------------------------------------------------------------


def test_the_baseline_is_measured_once_and_kept(tmp_path: Path) -> None:
    loader, cache = Loader(), Cache(tmp_path / "baseline")
    found = []
    for again in (False, False, True):
        worker = Worker(loader, release=lambda: 0, measured=cache, now=lambda: 99.0).start()
        worker.load("fake")
        job = worker.baseline(again=again)
        found += [report.event for report in collect(worker, job) if isinstance(report.event, Baseline)]
        assert worker.quit(PATIENCE)
    assert [one.fresh for one in found] == [True, False, True]
    assert {(one.tokens_per_second, one.measured) for one in found} == {(20.0, 99.0)}
    assert [engine.asked for engine in loader.engines] == [
        [{"temperature": 0.0, "max_tokens": 48}],
        [],
        [{"temperature": 0.0, "max_tokens": 48}],
    ]
    assert [engine.asides for engine in loader.engines] == [1, 0, 1]
    for file in (tmp_path / "baseline").iterdir():
        file.write_text("{]")
    worker = Worker(loader, release=lambda: 0, measured=cache).start()
    worker.load("fake")
    job = worker.baseline()
    assert [report.event.fresh for report in collect(worker, job) if isinstance(report.event, Baseline)] == [True], "damaged: measured anew"
    assert worker.quit(PATIENCE)


def test_how_long_a_load_takes_is_known_the_second_time(tmp_path: Path) -> None:
    times = iter([10.0, 14.0, 20.0, 24.0])
    worker = Worker(Loader(), release=lambda: 0, measured=Cache(tmp_path), clock=lambda: next(times)).start()
    seen = []
    for _ in range(2):
        job = worker.load("fake", yes=True)
        seen.append([report.event for report in collect(worker, job)])
    assert [event.seconds for event in seen[0] if isinstance(event, Loading)] == [None, None]
    assert [event.seconds for event in seen[1] if isinstance(event, Loading)] == [4.0, 4.0]
    assert worker.quit(PATIENCE)


def collect(worker: Worker, job: int) -> list[Report]:
    found: list[Report] = []
    while not any(report.job == job and isinstance(report.event, Ended) for report in found):
        assert worker.wait(PATIENCE)
        found += worker.drain()
    return found


def test_the_baseline_gives_way_and_comes_back(bench: Bench) -> None:
    bench.ended(bench.worker.load("fake"))
    bench.engine.gate.close()
    baseline = bench.worker.baseline()
    bench.engine.gate.wait_for(1)
    reply = bench.worker.reply(HELLO)
    bench.until(lambda report: report.job == reply and isinstance(report.event, Begun))
    assert not any(isinstance(report.event, Baseline | Ended) and report.job == baseline for report in bench.reports)
    bench.engine.gate.open()
    bench.ended(reply)
    events = bench.ended(baseline)
    assert [type(event) for event in events] == [Begun, Begun, Baseline, Ended]
    assert events[-1] == Ended("baseline")


def test_compare_says_identical(bench: Bench) -> None:
    bench.ended(bench.worker.load("fake"))
    events = bench.ended(bench.worker.compare(HELLO, temperature=0.5))
    (found,) = (event for event in events if isinstance(event, Compared))
    lanes = {
        name: "".join(event.event.text for event in events if isinstance(event, Lane) and event.name == name) for name in ("plain", "speculative")
    }
    assert lanes == {"plain": found.plain.text, "speculative": found.speculative.text}
    assert (found.identical, found.verdict) == (True, "identical: yes")
    assert found.plain.seed == found.speculative.seed
    assert found.plain.stats["drafted"] == 0 < found.speculative.stats["drafted"]
    assert found.speedup == 41.5 / 20.0


def test_compare_says_where_they_differ(bench: Bench) -> None:
    bench.ended(bench.worker.load("fake"))
    bench.engine.odd_plain = True
    (found,) = (event for event in bench.ended(bench.worker.compare(HELLO, seed=3)) if isinstance(event, Compared))
    assert (found.identical, found.first_difference, found.gap, found.measure) == (False, 23, 1e-6, "score")
    assert found.texts[0] == " differently"
    assert "first difference at token 24" in found.verdict


def test_compare_needs_speculation_and_can_be_cancelled(bench: Bench) -> None:
    bench.ended(bench.worker.load("fake", "none"))
    events = bench.ended(bench.worker.compare(HELLO))
    assert any(isinstance(event, Failed) and "--drafter none" in event.text for event in events)
    bench.ended(bench.worker.switch_drafter("lookup"))
    bench.engine.gate.close()
    compare = bench.worker.compare(HELLO)
    bench.engine.gate.wait_for(1)
    bench.worker.cancel()
    assert bench.ended(compare)[-1] == Ended("compare", cancelled=True)
    assert not any(isinstance(event, Compared) for event in bench.ended(compare))


def test_offers_need_no_model(bench: Bench) -> None:
    assert offered(None, ()) in bench.ended(bench.worker.offers())


# ---- Quitting ----------------------------------------------------------------------------------------------------------------------------


def test_quitting_waits_for_no_load_that_hangs() -> None:
    bench = Bench()
    bench.loader.gate.close()
    load = bench.worker.start().load("fake")
    bench.loader.gate.wait_for(1)
    reply = bench.worker.reply(HELLO)
    assert not bench.worker.quit(0.01)
    assert bench.ended(reply) == [Ended("reply", cancelled=True)]
    late = bench.worker.reply(HELLO)
    assert bench.ended(late) == [Ended("reply", cancelled=True)]
    bench.loader.gate.open()
    assert bench.worker.quit(PATIENCE)
    assert not any(isinstance(event, Ready) for event in bench.ended(load)), "it came too late"


def test_quitting_in_mid_reply_leaves_nothing_behind() -> None:
    bench = Bench()
    bench.worker.start()
    bench.ended(bench.worker.load("fake"))
    bench.engine.gate.close()
    reply = bench.worker.reply(HELLO)
    bench.engine.gate.let(2)
    bench.engine.gate.wait_for(3)
    assert bench.worker.quit(PATIENCE)
    events = bench.ended(reply)
    assert any(isinstance(event, Done) and event.text == texts(events) for event in events)
    assert not any(thread.name == "mlxspec-engine" and thread.is_alive() for thread in threading.enumerate())
