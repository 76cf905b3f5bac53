"""Replies said aloud: what of a reply is said, which sentence is heard, and the engine's thread with a fake voice. Gates in place of time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxspec.cli.chat import load_voice
from mlxspec.core.events import Done, Notice, Pace
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.tui.chat.captions import buffer, speech, status
from mlxspec.tui.chat.commands import run
from mlxspec.tui.chat.markdown import speakable
from mlxspec.tui.chat.reading_aloud import Hearing
from mlxspec.tui.chat.reports import Begun, Ended, Failed, Speech
from tests.tui.fake_chat import PATIENCE
from tests.tui.test_commands import Room, room  # noqa: F401 - a fixture
from tests.tui.test_worker import HELLO, Bench, bench  # noqa: F401 - a fixture

TEXT = "One thing. Another thing."

# ---- What is said, and what is heard -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("Hello there.", "Hello there."),
        ("<think>\nhm\n</think>\n\nYes, **very** `much`.", "Yes, very much."),
        ("<think>\nstill thinking", ""),
        ("a\nb  \nc", "a b\nc"),
        ("See:\n\n```py\nx = 1\n```", "See:"),
        ("```py\nx = 1\n", ""),
        ("1. one\n2. [two](http://a.b)\n\n| a | b |\n|---|---|\n| c | d |", "one\n\ntwo\n\na\n\nb\n\nc\n\nd"),
        ("vector<int> is *it*", "vector<int> is it"),
        (" \n", ""),
    ],
)
def test_marks_code_and_thinking_are_not_said(source: str, said: str) -> None:
    assert speakable(source) == said


def test_a_sentence_is_heard_when_the_sound_before_it_has_been() -> None:
    """Three sentences are drawn at once, of two seconds each; the clock then goes on."""
    times = [0.0]
    hearing = Hearing(lambda: times[0])
    assert hearing.sentence == "" and hearing.buffer == 0
    for number in (1, 2, 3):
        hearing.take(Speech("", "anna", False, f"sentence {number}", number, 3, 2.0 * number - 2))
        hearing.take(Speech("", "anna", False, f"sentence {number}", number, 3, 2.0 * number))
    heard = []
    for times[0] in (0.0, 1.9, 2.0, 3.9, 4.0, 5.0, 9.0):
        heard.append((hearing.sentence[-1], hearing.buffer))
    assert [sentence for sentence, _ in heard] == ["1", "1", "2", "2", "3", "3", "3"]
    assert [ahead for _, ahead in heard] == pytest.approx([6, 4.1, 4, 2.1, 2, 1, 0])


def test_the_lines_of_speech() -> None:
    assert speech(Speech("Loading the voice.")) == ["Loading the voice."]
    lines = speech(Speech("", "anna", True, "One.", 1, 2, 0.5, Pace(0.251, 0.4, 40, 30)))
    assert lines[:2] == ["speaking · anna", "rule: mirror (approximate)"]
    assert lines[2:] == ["first sound after 0.25 s", "0.40 s for a second of sound", "accepted 30/40 drafted rows", "drawn: sentence 1 of 2"]
    assert "rule: coupled (exact)" in speech(Speech("", "anna"))
    assert "nothing was drafted" in speech(Speech("", "anna", pace=Pace(0.2, 0.4, 0, 0)))
    assert buffer(0) == "buffer              0.0 s" and buffer(9).startswith("buffer ████████████ 9.0")


# ---- The thread --------------------------------------------------------------------------------------------------------------------------


def test_speech_in_the_thread_of_the_engine(bench: Bench) -> None:  # noqa: F811
    events = bench.ended(bench.worker.speak(TEXT, "anna", mirror=True))
    (voice,) = bench.voices.made
    assert voice.said == [TEXT] and voice.threads == {"mlxspec-engine"} and voice.asked == [{"accept": "mirror"}]
    assert [type(event) for event in events] == [Begun, *[Speech] * 9, Ended]
    said = [event for event in events if isinstance(event, Speech)]
    assert [event.about for event in said[:3]] == ["Loading the voice anna.", "Voice from nowhere.", ""]
    assert [event.number for event in said[2:]] == [1, 1, 1, 2, 2, 2, 2] and said[-1].sentence == "Another thing."
    assert [event.ahead for event in said[2:]] == [0, 1, 2, 2, 3, 4, 4] and said[2].pace is None
    assert said[-1].pace == Pace(0.25, 0.4, 160, 120) and said[-1].mirror and said[-1].count == 2
    bench.ended(bench.worker.speak(TEXT, "anna"))
    assert len(bench.voices.made) == 1 and voice.asked[-1] == {"accept": "coupled"}, "the voice stays"
    bench.ended(bench.worker.speak(TEXT))
    assert len(bench.voices.made) == 2
    bench.ended(bench.worker.load("fake"))
    bench.ended(bench.worker.speak(TEXT))
    assert len(bench.voices.made) == 3, "a load lets all go that takes memory"


def test_cancelling_silences(bench: Bench) -> None:  # noqa: F811
    bench.voices.pieces.close()
    job = bench.worker.speak(TEXT)
    bench.voices.pieces.let(1)
    bench.voices.pieces.wait_for(2)
    bench.worker.cancel()
    events = bench.ended(job)
    assert events[-1] == Ended("speech", cancelled=True) and max(event.ahead for event in events if isinstance(event, Speech)) == 1
    bench.voices.gate.close()
    job = bench.worker.speak(TEXT, "other")
    bench.voices.gate.wait_for(1)
    bench.worker.cancel()
    bench.voices.gate.open()
    assert bench.ended(job)[-1] == Ended("speech", cancelled=True) and bench.voices.made[-1].said == [], "a voice that comes too late is silent"


def test_what_is_said_next_ends_what_is_said(bench: Bench) -> None:  # noqa: F811
    """Another speech takes the place of the one before, of those that wait the last; a reply does not wait for one either."""
    bench.ended(bench.worker.load("fake"))
    bench.voices.pieces.close()
    first = bench.worker.speak("First.")
    bench.voices.pieces.wait_for(1)
    second, third = bench.worker.speak("Second."), bench.worker.speak("Third.")
    assert bench.ended(first)[-1].cancelled and bench.ended(second) == [Ended("speech", cancelled=True)]
    bench.voices.pieces.wait_for(3)  # both pieces of the first one came to the gate
    assert any(isinstance(event, Done) for event in bench.ended(bench.worker.reply(HELLO)))
    assert bench.ended(third)[-1].cancelled and bench.voices.made[-1].said == ["First.", "Third."]


def test_what_is_wrong_with_a_voice_is_said(bench: Bench) -> None:  # noqa: F811
    failed = [event.text for event in bench.ended(bench.worker.speak(TEXT, "nobody")) if isinstance(event, Failed)]
    assert failed == ["There is no voice nobody: give one of the voices (anna), or a voice's folder."]
    bench.ended(bench.worker.speak(TEXT))
    bench.voices.made[-1].faults = ("'Another thing.' (sentence 2 of 2) came out silent",)
    assert Notice("'Another thing.' (sentence 2 of 2) came out silent") in bench.ended(bench.worker.speak(TEXT))
    bench.voices.made[-1].failure = MlxspecError("No sound device can play (none): write a file (mlxspec speak -o out.wav).")
    assert any(isinstance(event, Failed) and "mlxspec speak -o" in event.text for event in bench.ended(bench.worker.speak(TEXT)))


def test_where_there_is_no_voice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mlxspec.speech import voice_folder

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(voice_folder, "shipped", lambda: [])
    with pytest.raises(UsageError, match=r"There is no voice yet: put one in .*voices, or give its folder \(/speak FOLDER\)"):
        load_voice(None, print)
    with pytest.raises(UsageError, match="There is no voice anna"):
        load_voice("anna", print)


# ---- The conversation --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def spoken(room: Room) -> Iterator[Room]:  # noqa: F811
    """A room where a first reply was given."""
    room.desk.engine.script = ["**One** thing. Another thing.", "Good.", "Fine.", "```\ncode\n```", "Well."]
    with pytest.raises(UsageError, match="nothing to speak: send a message"):
        room.do("/speak")
    room.desk.say("hello")
    yield room
    room.desk.voices.open()


def silent(room: Room) -> None:  # noqa: F811
    room.desk.until(lambda: room.desk.talk.aloud.hearing is None)


def test_the_last_reply_is_spoken_or_another_message(spoken: Room) -> None:
    desk = spoken.desk
    spoken.do("/speak")
    assert desk.talk.aloud.hearing is not None and desk.talk.stoppable
    silent(spoken)
    desk.talk.speak(0)
    silent(spoken)
    assert desk.voices.made[0].said == [TEXT, "hello"] and not desk.talk.stoppable
    assert desk.sleep.nights[-2:] == ["on", "off"]


def test_voices_by_command(spoken: Room) -> None:
    """The last voice that spoke speaks again; one that is not there is forgotten."""
    desk = spoken.desk
    spoken.do("/say bert --mirror")
    silent(spoken)
    spoken.do("/speak nobody")
    silent(spoken)
    assert desk.told == ["There is no voice nobody: give one of the voices (anna), or a voice's folder."]
    spoken.do("/speak")
    silent(spoken)
    assert [voice.files.name for voice in desk.voices.made] == ["bert", "bert"]
    assert [voice.asked for voice in desk.voices.made] == [[{"accept": "mirror"}], [{"accept": "coupled"}]]
    with pytest.raises(UsageError, match="--mirror for one speech"):
        spoken.do("/speak on --mirror")


def test_nothing_is_spoken_while_a_reply_comes(spoken: Room) -> None:
    desk = spoken.desk
    desk.engine.gate.close()
    desk.talk.send("more")
    with pytest.raises(UsageError, match="A reply is coming"):
        run("/speak", spoken.actions)
    desk.engine.gate.open()
    desk.settled()


def test_a_message_ends_the_speech(spoken: Room) -> None:
    desk = spoken.desk
    desk.voices.pieces.close()
    spoken.do("/speak")
    desk.voices.pieces.wait_for(1)
    assert desk.say("more") == "Good." and desk.talk.aloud.hearing is None


def test_every_reply_is_spoken(spoken: Room) -> None:
    """But not one that was stopped, nor one with nothing to say; what fails is not tried again with each reply."""
    desk = spoken.desk
    assert spoken.do("/speak on") == "Every reply is spoken."
    for text in ("a", "b", "c"):
        desk.say(text)
        silent(spoken)
    assert desk.voices.made[0].said == ["Good.", "Fine."]
    desk.voices.made[0].failure = MlxspecError("No sound device can play.")
    desk.say("d")
    silent(spoken)
    assert desk.told[-2:] == ["No sound device can play.", "Replies are not spoken any more: /speak on begins again."] and not desk.talk.aloud.always
    assert spoken.do("/speak off") == "Replies are not spoken."


def test_a_stopped_reply_is_not_spoken(spoken: Room) -> None:
    desk = spoken.desk
    spoken.do("/speak on")
    desk.engine.gate.close()
    desk.engine.script = ["a b c d e f g h"]
    desk.talk.send("more")
    desk.engine.gate.let(2)
    desk.until(lambda: bool(desk.talk.said[-1].text))
    desk.talk.stop()
    desk.settled()
    assert desk.talk.said[-1].finish == "interrupted" and desk.voices.made == []


def test_the_status_says_how_to_stop(spoken: Room) -> None:
    talk: Any = spoken.desk.talk
    spoken.desk.voices.gate.close()
    spoken.do("/speak")
    spoken.desk.until(lambda: bool(talk.aloud.hearing.newest.about))
    from mlxspec.tui.chat.tally import Tally

    assert status(talk, Tally(), False, None, False).endswith("   esc stops")
    spoken.desk.voices.gate.open()
    silent(spoken)
    assert status(talk, Tally(), False, None, False) == "ready"
    assert talk.worker.quit(PATIENCE)
