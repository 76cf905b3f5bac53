"""Faults that others' users reported, each with a small input of our own. Those that belong to one part are tested with it; what is left is here."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxspec.audio.text.front_end import FrontEnd
from mlxspec.cli.main import main
from mlxspec.core.events import Sentence
from mlxspec.drafters.small import SmallDrafter
from mlxspec.models.codec import DecoderStream
from mlxspec.speech.voice import load_voice
from tests import ROOT
from tests.tiny import MarkovModel
from tests.tiny_voice import LAYOUT, markov_voice, save_voice, table

HELLO = "Hello there, this is a test."


def test_at_temperature_zero_drafts_change_nothing() -> None:
    """Greedy speech with a drafter is greedy speech without, token by token."""
    logits = table(ends=0, seed=5)
    chain = [LAYOUT.token(0, code) for code in np.random.default_rng(0).permutation(32)]
    for a, b in zip([LAYOUT.start, *chain], [*chain, LAYOUT.end], strict=True):  # each code once, then the end
        logits[a, b] = 20
    plain = markov_voice(logits).speak(HELLO, temperature=0)
    drafted = markov_voice(logits, drafter=SmallDrafter(MarkovModel(logits))).speak(HELLO, temperature=0, draft_tokens=4)
    assert np.array_equal(plain.samples, drafted.samples) and not drafted.spoken.faults
    stats = drafted.spoken.stats
    assert stats["accepted"] > 20 and stats["acceptance"] > 0.85  # what was drafted beyond the end does not count


def test_a_long_text_is_not_capped() -> None:
    """Thirty sentences: as many segments, each with its own sound, whatever one segment may take."""
    spoken = markov_voice().speak("This is a sentence that is said. " * 30, seed=1).spoken
    one = markov_voice().speak("This is a sentence that is said.", seed=1).spoken
    assert spoken.stats["sentences"] == 30 and not spoken.faults
    assert spoken.duration > 8 * one.duration


def test_one_word_is_said() -> None:
    for word in ("Hi", "Yes.", "7", "A"):
        assert markov_voice().speak(word, seed=2).spoken.samples > 0


def test_quotes_of_any_kind_are_no_words() -> None:
    front = FrontEnd()
    plain = front.segments("It is called no. He said yes.")[0].symbols
    for text in ("It is called “no”. He said 'yes'.", "It is called 'no'. He said „yes“.", 'It is called "no". He said «yes».'):
        assert "".join(front.segments(text)[0].symbols) == "".join(plain)
    assert front.segments("Don’t go.")[0].symbols == front.segments("Don't go.")[0].symbols


def test_a_penalty_is_the_same_for_drafter_and_target() -> None:
    """A window of 64 tokens over what was said and drafted: with the same seed the same speech, drafted or not."""
    options: dict[str, Any] = {"seed": 3, "repetition_penalty": 1.3, "repetition_context_size": 64, "temperature": 0.6, "top_p": 0.8}
    plain = markov_voice().speak(HELLO, **options)
    drafted = markov_voice(drafter=SmallDrafter(MarkovModel(table()))).speak(HELLO, draft_tokens=4, **options)
    assert np.array_equal(plain.samples, drafted.samples)
    assert drafted.spoken.stats["acceptance"] > 0.95  # the drafter is the target: only the penalty could part them


def test_a_failure_in_the_middle_leaves_no_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = save_voice(tmp_path / "my.voice-v1.0")  # dots in the name
    monkeypatch.chdir(tmp_path)

    def broken(self: DecoderStream, codes: Any) -> Any:
        raise RuntimeError("the codec broke")

    with monkeypatch.context() as patch:
        patch.setattr(DecoderStream, "push", broken)
        assert main(["speak", HELLO, "-v", str(folder), "-o", "x.wav", "--drafter", "none"]) == 1
    assert "the codec broke" in capsys.readouterr().err and not list(tmp_path.glob("*.wav"))
    assert main(["speak", HELLO, "-v", str(folder), "-o", "x.wav", "--drafter", "none"]) in (0, 3)


def test_a_local_voice_opens_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = save_voice(tmp_path / "voice")

    def refused(*args: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refused)
    assert load_voice(str(folder), drafter="none").speak(HELLO, seed=1).spoken.samples


def test_importing_opens_no_socket_and_needs_no_sound_card() -> None:
    without = "import socket, sys; socket.socket.connect = None; sys.modules['sounddevice'] = None"
    check = f"{without}; import mlxspec.speech.voice, mlxspec.audio.sound.playback; print('fine')"
    answer = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == "fine", answer.stderr


def test_a_second_speech_starts_from_nothing() -> None:
    """Interrupted in the middle, the next one with the same seed is what it would have been."""
    voice = markov_voice(drafter=SmallDrafter(MarkovModel(table(seed=1))))
    expected = markov_voice().speak(HELLO, seed=6).samples
    stream = voice.stream("Something else that goes on. " * 4, seed=9)
    next(event for event in stream if isinstance(event, Sentence))
    stream.close()
    assert np.array_equal(voice.speak(HELLO, seed=6, draft_tokens=3).samples, expected)
