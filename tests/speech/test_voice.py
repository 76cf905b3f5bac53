"""Speech as a whole: the same seed gives the same samples however it is drawn and cut up, and whatever goes wrong is said, never papered over."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxspec.audio.sound import playback
from mlxspec.audio.sound.joins import PAUSE
from mlxspec.audio.text.front_end import FrontEnd
from mlxspec.core.events import Audio, Sentence, Spoken
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import mix
from mlxspec.drafters.small import SmallDrafter
from mlxspec.errors import AudioError, DrafterError, MlxspecError, ModelError, UsageError
from mlxspec.speech.voice import load_voice
from tests.core.test_law import false_alarm
from tests.sine_codec import SineCodec, SineStream
from tests.tiny import MarkovModel
from tests.tiny_voice import CODES, FILES, LAYOUT, going, markov_voice, naming, save_voice, table

BY_SOUND = replace(FILES, groups=replace(FILES.groups, source="codebook", measure="cosine"))
TEXT = "The first sentence is here. And this is the second one. A third one ends it."


class Guesses:
    """A user's drafter: three children, one grandchild."""

    depth = 2

    def propose(self, token: int, limit: int, context: Any) -> Proposal:
        first = LAYOUT.slots[0].first
        rows = 4 if limit > 1 else 3 * min(limit, 1)
        return Proposal((first + 3, first + 11, first + 20, first + 5)[:rows], (-1, -1, -1, 0)[:rows])


def drafters() -> dict[str, Any]:
    return {
        "lookup": "lookup",
        "small": SmallDrafter(MarkovModel(table(seed=1))),
        "itself": SmallDrafter(MarkovModel(table())),
        "own": Guesses(),
    }


def chunks(events: Sequence[Any]) -> np.ndarray:
    return np.concatenate([event.samples for event in events if isinstance(event, Audio)])


@pytest.mark.parametrize("name", drafters())
def test_the_same_seed_gives_the_same_samples_with_every_drafter(name: str) -> None:
    plain = markov_voice().speak(TEXT, seed=7)
    other = markov_voice(drafter=drafters()[name])
    for options in ({}, {"draft_tokens": 3}, {"early": True}):
        speech = other.speak(TEXT, seed=7, **options)
        assert np.array_equal(speech.samples, plain.samples) and speech.spoken.exact
    assert not np.array_equal(other.speak(TEXT, seed=8).samples, plain.samples)
    if name == "itself":
        stats = other.speak(TEXT, seed=7, draft_tokens=3).spoken.stats
        assert stats["accepted"] > 0.9 * stats["drafted"] and stats["tokens_per_round"] > 2


def test_streamed_is_whole_sentence_by_sentence() -> None:
    voice = markov_voice()
    events = list(voice.stream(TEXT, seed=3))
    whole = voice.speak(TEXT, seed=3)
    assert np.array_equal(chunks(events), whole.samples)
    said = [event for event in events if isinstance(event, Sentence)]
    assert [event.index for event in said] == [0, 1, 2] and " ".join(event.text for event in said) == TEXT
    done = events[-1]
    assert isinstance(done, Spoken) and done.samples == len(whole.samples) and done.duration == whole.duration
    assert done.stats["time_to_first_audio"] < done.stats["wall_seconds"]
    paces = [event.pace for event in events if isinstance(event, Audio)]
    assert {pace.time_to_first_audio for pace in paces} == {done.stats["time_to_first_audio"]} and paces[-1].seconds_per_audio_second > 0


def test_the_pace_of_speech_is_that_of_its_work() -> None:
    """A listener that takes its time makes it no slower; what was drafted and accepted is counted as it goes."""
    voice = markov_voice(drafter="lookup")
    events = voice.stream(TEXT, seed=3, draft_tokens=2)
    paces = []
    for event in events:
        if isinstance(event, Audio):
            paces.append(event.pace)
        elif isinstance(event, Spoken):
            done = event
    assert (paces[-1].drafted, paces[-1].accepted) == (done.stats["drafted"], done.stats["accepted"]) and done.stats["drafted"] > 0
    assert [pace.drafted for pace in paces] == sorted(pace.drafted for pace in paces)
    seconds = done.stats["seconds"]
    work = seconds["prefill"] + seconds["draft"] + seconds["verify"] + seconds["other"]
    tokens = done.stats["emitted"] + done.stats["tries"]
    assert paces[-1].seconds_per_audio_second == pytest.approx(work * voice.tokens_per_second / tokens)


def test_the_first_sound_comes_before_the_sentence_is_done() -> None:
    """``early``: sound while its own segment is still being drawn; otherwise when it has ended."""
    counted: list[int] = []

    class Counting(SmallDrafter):
        def propose(self, token: int, limit: int, context: Any) -> Proposal:
            counted.append(1)
            time.sleep(0.002)
            return super().propose(token, 0, context)

    rounds = {}
    for early in (True, False):
        voice = markov_voice(table(ends=0.01), drafter=Counting(MarkovModel(table())))
        counted.clear()
        stream = voice.stream("One sentence that is long enough to be cut.", seed=5, early=early)
        next(event for event in stream if isinstance(event, Audio))
        rounds[early] = len(counted)
        stream.close()
    assert rounds[True] < rounds[False]


def test_frames_in_are_frames_out() -> None:
    """The samples are the codec's own decode of the tokens, frame for frame, with the pauses between; edges fade over 5 ms."""
    codec = SineCodec(CODES)
    pushed: list[np.ndarray] = []

    class Listening(SineStream):
        def push(self, frames: np.ndarray) -> np.ndarray:
            pushed.append(frames)
            return super().push(frames)

    codec.stream = lambda: Listening(codec)  # type: ignore[method-assign]
    speech = markov_voice(codec=codec).speak("Only a single sentence.", seed=2)
    frames = np.concatenate(pushed)
    plain = SineCodec(CODES).decode(frames)
    edge = round(0.005 * codec.sample_rate)
    assert len(speech.samples) == len(frames) * codec.hop
    assert np.allclose(speech.samples[edge:-edge], plain[edge:-edge], atol=1e-6)
    three = markov_voice().speak(TEXT, seed=2).spoken
    assert (three.samples - 2 * round(PAUSE * codec.sample_rate)) % codec.hop == 0


def test_only_codes_and_the_end_are_ever_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model would rather say text; drafters and target are barred from it alike."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    voice = markov_voice(drafter=drafters()["small"], files=BY_SOUND)
    for accept in ("coupled", "ratio", "mirror", "pcg"):
        assert voice.speak(TEXT, seed=4, accept=accept, draft_tokens=2).spoken.samples > 0


@pytest.mark.parametrize("accept", ["coupled", "ratio"])
def test_the_speech_targets_law(accept: str) -> None:
    """The first two codes of 300 segments against the chain of four codes they are drawn from; false alarm 1 in 100,000."""
    logits, other = table(spread=1.5), table(spread=1.5, seed=3)
    for rows in (logits, other):
        rows[:, LAYOUT.token(0, 4) : LAYOUT.token(0, CODES)] = -80
        rows[:, LAYOUT.end] = -80
        rows[LAYOUT.token(0, 0) : LAYOUT.token(0, 4), LAYOUT.end] = 1.5
    heard: list[np.ndarray] = []
    codec = SineCodec(CODES)

    class Listening(SineStream):
        def push(self, frames: np.ndarray) -> np.ndarray:
            heard.append(frames)
            return super().push(frames)

    codec.stream = lambda: Listening(codec)  # type: ignore[method-assign]
    voice = markov_voice(logits, drafter=SmallDrafter(MarkovModel(other)), codec=codec)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(300):
        heard.clear()
        voice.speak("Go on!", seed=seed, accept=accept, draft_tokens=2)
        counts[tuple(np.concatenate(heard)[:2, 0].tolist())] += 1

    def law(row: int) -> np.ndarray:
        p = np.exp([*logits[row, LAYOUT.token(0, 0) : LAYOUT.token(0, 4)], logits[row, LAYOUT.end]])
        return np.asarray(p / p.sum())

    first = law(LAYOUT.start)
    expected: dict[tuple[int, ...], float] = {}
    for a in range(4):
        second = law(LAYOUT.token(0, a))
        expected |= {(a, b): float(first[a] * second[b]) for b in range(4)} | {(a,): float(first[a] * second[4])}
    assert false_alarm(counts, expected) > 1e-5


# ---- Approximate rules -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["mirror", "pcg"])
def test_approximate_speech_says_so(accept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    voice = markov_voice(drafter=drafters()["small"], files=BY_SOUND)
    speech = voice.speak(TEXT, seed=4, accept=accept, draft_tokens=2, group_size=4)
    mirror = speech.spoken.stats["mirror"]
    assert not speech.spoken.exact and speech.spoken.accept == accept
    assert mirror["mean_group_size"] > 1 and mirror["accepted_alike"] > 0
    assert 0 < mirror["within_group_distance"] <= 1 and 0 < mirror["distance_bound"] <= 1
    again = voice.speak(TEXT, seed=4, accept=accept, draft_tokens=2, group_size=4)
    assert np.array_equal(speech.samples, again.samples)
    tight = voice.speak(TEXT, seed=4, accept=accept, draft_tokens=2, group_size=4, capped=0.0).spoken.stats["mirror"]
    assert tight["distance_bound"] == 0
    exact = voice.speak(TEXT, seed=4, draft_tokens=2).spoken
    assert exact.stats["mirror"] is None and exact.exact
    assert speech.spoken.stats["acceptance"] > exact.stats["acceptance"] or accept == "pcg"


def test_mirror_at_temperature_zero_is_refused_with_a_reason() -> None:
    with pytest.raises(UsageError, match="--temperature 0 draws nothing"):
        markov_voice().stream("Hello there.", accept="mirror", temperature=0)


# ---- What goes wrong ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("codes", [(3,), (3, 9), (1, 2, 3, 4, 5, 6, 7)])
def test_going_round_in_circles_is_noticed_and_cut(codes: tuple[int, ...], early: bool) -> None:
    """With any period; one more try, then an honest end well before the budget."""
    spoken = markov_voice(going(*codes)).speak("This is a sentence.", seed=1, early=early).spoken
    assert len(spoken.faults) == 1 and "went round in circles" in spoken.faults[0] and "sentence 1 of 1" in spoken.faults[0]
    assert spoken.stats["tries"] == 2
    assert 0 < spoken.duration < 1.0


@pytest.mark.parametrize("early", [True, False])
def test_speech_without_end_is_cut_at_a_budget_from_its_length(early: bool) -> None:
    voice = markov_voice(table(ends=0, seed=2))
    short = voice.speak("Go on now.", seed=1, early=early).spoken
    long = voice.speak("Go on now, and then go on with this for a good while, until it is all done.", seed=1, early=early).spoken
    for spoken in (short, long):
        assert len(spoken.faults) == 1 and "never came to its end" in spoken.faults[0]
        assert spoken.stats["tries"] == (1 if early else 2)  # what was heard cannot be taken back
    assert short.samples < long.samples


def test_a_second_try_can_save_a_sentence() -> None:
    """Half of all starts end up in a circle. Every segment is whole all the same, or its fault is said."""
    logits = table(ends=0.1, seed=4)
    trap = LAYOUT.token(0, 7)
    logits[trap] = -40
    logits[trap, trap] = 0
    logits[LAYOUT.start, trap] = 4
    outcomes = Counter[tuple[int, bool]]()
    for seed in range(16):
        spoken = markov_voice(logits).speak("This is a sentence.", seed=seed).spoken
        outcomes[(spoken.stats["tries"], bool(spoken.faults))] += 1
        assert not spoken.faults or spoken.stats["tries"] == 2
    assert outcomes[(2, False)] > 1 and outcomes[(1, False)] > 1


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("wrong", ["skipped", "repeated", "ended", "unheard"])
def test_a_wrong_name_stands_for_the_symbol_that_is_due(wrong: str, early: bool) -> None:
    """However the model loses its place, every symbol is said once, in order: the same sound as of the model that keeps it."""
    symbols = FrontEnd().symbols("This is a sentence.")
    layout, logits = naming(symbols)
    text, place = layout.text(symbols), 8
    files = replace(FILES, layout=layout, tokens_per_symbol=2.0)
    right = markov_voice(logits, files=files).speak("This is a sentence.", seed=1, early=early)
    assert right.spoken.samples >= len(symbols) * SineCodec(CODES).hop
    code = layout.token(0, place)  # after it comes the name of the symbol after the next
    following = {"skipped": text[place + 3], "repeated": text[place], "ended": layout.end, "unheard": layout.symbols["ʒ"] + 20}[wrong]
    logits[code], logits[code, following] = -30.0, 0
    voice = markov_voice(logits, files=files)
    spoken = voice.speak("This is a sentence.", seed=1, early=early)
    assert np.array_equal(spoken.samples, right.samples)
    assert not spoken.spoken.faults and spoken.spoken.stats["tries"] == 1
    assert voice.tokens_per_second == 2 * voice.sample_rate / voice.codec.hop


@pytest.mark.parametrize("name", ["lookup", "small", "own"])
def test_names_are_put_right_alike_with_every_drafter(name: str) -> None:
    """A model of random codes that names now one symbol and now another."""
    rng = np.random.default_rng(3)
    symbols = FrontEnd().symbols("This is a sentence.")
    layout, _ = naming(symbols)
    logits = np.full((layout.vocab_size, layout.vocab_size), -30.0)
    codes = list(layout.slots[0].ids)
    logits[:, codes] = rng.normal(0, 1, (layout.vocab_size, CODES))
    logits[:, layout.text(symbols)] = 0.5
    files = replace(FILES, layout=layout, tokens_per_symbol=3.0)
    made = {"lookup": "lookup", "small": SmallDrafter(MarkovModel(logits)), "own": Guesses()}[name]
    voices = [markov_voice(logits, files=files, drafter=drafter) for drafter in ("none", made)]
    for seed in range(6):
        plain, drafted = (voice.speak("This is a sentence.", seed=seed, draft_tokens=None if i == 0 else 3) for i, voice in enumerate(voices))
        assert np.array_equal(plain.samples, drafted.samples) and plain.spoken.faults == drafted.spoken.faults


def test_saying_nothing_is_an_error() -> None:
    logits = table()
    logits[LAYOUT.start] = -80
    logits[LAYOUT.start, LAYOUT.end] = 0
    with pytest.raises(ModelError, match=r"said nothing at all .*came out empty"):
        markov_voice(logits).speak("Hello there.")


def test_silence_is_a_fault() -> None:
    codec = SineCodec(CODES)
    codec.tones *= 0
    spoken = markov_voice(codec=codec).speak("Hello there, you.", seed=0).spoken
    assert "came out silent" in spoken.faults[0]


def test_a_codec_that_fails_says_so_at_once() -> None:
    class Broken(SineStream):
        def push(self, frames: np.ndarray) -> np.ndarray:
            raise OSError("the codec broke")

    codec = SineCodec(CODES)
    codec.stream = lambda: Broken(codec)  # type: ignore[method-assign]
    voice = markov_voice(codec=codec)
    with pytest.raises(OSError, match="the codec broke"):
        voice.speak(TEXT)
    codec.stream = lambda: SineStream(codec)  # type: ignore[method-assign]
    assert voice.speak(TEXT).spoken.samples  # and the voice can go on


@pytest.mark.parametrize("text", ["", "  \n", "...", "日本語"])
def test_text_that_cannot_be_said_is_refused_at_once(text: str) -> None:
    with pytest.raises(UsageError, match=r"empty|can be said"):
        markov_voice().stream(text)


def test_options_that_make_no_sense_are_refused_at_once() -> None:
    voice = markov_voice()
    for options, words in (
        ({"tempo": 2}, "Unknown option tempo"),
        ({"temperature": -1}, "--temperature"),
        ({"accept": "mirrored"}, "--accept"),
        ({"capped": 2.0}, "--capped"),
        ({"accept": "mirror", "group_size": 0.5}, "mean group size"),
        ({"accept": "mirror", "group_source": "air"}, "--source air"),
        ({"require_spec": True}, "--require-spec"),
    ):
        with pytest.raises((UsageError, DrafterError), match=words):
            voice.stream("Hello there.", **options)


def test_a_codec_or_model_of_another_voice_is_refused() -> None:
    with pytest.raises(ModelError, match="belong to different voices"):
        markov_voice(codec=SineCodec(CODES - 1))
    with pytest.raises(ModelError, match="speaks 20 tokens and its layout names"):
        markov_voice(np.zeros((20, 20)))


# ---- Ending early ------------------------------------------------------------------------------------------------------------------------


def test_cancelling_ends_within_a_round_with_what_there_is() -> None:
    cancel = threading.Event()
    voice = markov_voice(table(ends=0.001))
    events: list[Any] = []
    for event in voice.stream(TEXT, seed=3, cancel=cancel):
        events.append(event)
        if isinstance(event, Audio):
            cancel.set()
    calm = threading.Event()
    assert list(voice.stream("Hello there, you.", seed=3, cancel=calm)) and not calm.is_set()
    done = events[-1]
    assert isinstance(done, Spoken) and done.interrupted and 0 < done.samples < 20 * 80 * 70
    assert sum(isinstance(event, Sentence) for event in events) < 3


def test_closing_the_stream_ends_its_work_and_frees_the_voice() -> None:
    voice = markov_voice(table(ends=0.001))
    voice.speak("Warm up.", seed=1)
    before = threading.active_count()
    for _ in range(3):
        stream = voice.stream(TEXT * 5, seed=3)
        next(stream)
        with pytest.raises(MlxspecError, match="speaking already"):
            next(voice.stream(TEXT))
        stream.close()
        assert threading.active_count() == before
    assert markov_voice().speak(TEXT, seed=1).spoken.samples


def test_memory_is_flat_over_fifty_segments() -> None:
    """What MLX holds at the start of a segment, from the tenth to the last: within 5 %."""
    voice = markov_voice()
    held = []
    for event in voice.stream("This is one sentence of many. " * 50, seed=1):
        if isinstance(event, Sentence):
            held.append(mx.get_active_memory())
    assert len(held) == 50
    assert max(held[10:]) <= 1.05 * max(held[:10]) + 100_000


class Player:
    """Remembers what it is given; the second one does not open."""

    def __init__(self) -> None:
        self.cancel = threading.Event()
        self.parts, self.calls, self.underruns, self.ahead = list[np.ndarray](), list[str](), 0, 0.0

    def write(self, samples: np.ndarray) -> None:
        if not self.cancel.is_set():
            self.parts.append(samples)
            self.ahead += 0.5

    def finish(self) -> None:
        self.calls.append("cancelled" if self.cancel.is_set() else "finished")

    def stop(self) -> None:
        self.calls.append("stopped")


def test_playing_is_streaming_to_a_player(monkeypatch: pytest.MonkeyPatch) -> None:
    players = [Player(), Player(), Player()]
    left = iter(players)

    def opened(rate: int, cancel: threading.Event) -> Player:
        player = next(left)
        player.cancel = cancel
        return player

    monkeypatch.setattr(playback, "open_player", opened)
    voice, cancel, told = markov_voice(), threading.Event(), list[tuple[Any, float]]()
    spoken = voice.play(TEXT, seed=7, on=lambda *event: told.append(event))
    assert np.array_equal(np.concatenate(players[0].parts), markov_voice().speak(TEXT, seed=7).samples)
    assert players[0].calls == ["finished"] and told[-1][0] is spoken and isinstance(told[0][0], Sentence)
    assert [ahead for _, ahead in told] == sorted(ahead for _, ahead in told) and told[-1][1] == 0.5 * len(players[0].parts)
    assert voice.play(TEXT * 9, seed=7, cancel=cancel, on=lambda event, ahead: cancel.set()).interrupted
    assert players[1].calls == ["cancelled"] and not players[1].parts

    def wrong(event: Any, ahead: float) -> None:
        raise ValueError("a listener's own fault")

    with pytest.raises(ValueError, match="own fault"):
        voice.play(TEXT, on=wrong)
    assert players[2].calls == ["stopped"] and voice.speak(TEXT, seed=7).spoken.samples  # and the voice is free again

    def none(rate: int, cancel: threading.Event) -> Player:
        raise AudioError("No sound device can play (none): write a file.")

    monkeypatch.setattr(playback, "open_player", none)
    with pytest.raises(MlxspecError, match="No sound device"):
        voice.play(TEXT)


# ---- From a folder -----------------------------------------------------------------------------------------------------------------------


def test_a_voice_from_a_folder_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the network off: a tiny llama and a tiny codec, through everything a trained voice goes through, drafters and groups included."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = save_voice(tmp_path / "voice")
    voice = load_voice(str(folder), drafter="none")
    speech = voice.speak("Hello there, this is a test.", seed=5)
    assert speech.sample_rate == 16000 and len(speech.samples) % 32 == 0 and np.abs(speech.samples).max() > 0
    with_lookup = load_voice(str(folder), drafter="lookup").speak("Hello there, this is a test.", seed=5, draft_tokens=2)
    assert np.array_equal(speech.samples, with_lookup.samples)
    for source in ("head", "input", "codebook"):
        mirror = voice.speak("Hello there.", seed=5, accept="mirror", group_source=source).spoken.stats["mirror"]
        assert mirror["mean_group_size"] > 1
    speech.save(tmp_path / "out.wav")
    assert (tmp_path / "out.wav").stat().st_size == 44 + 2 * len(speech.samples)


def test_a_voice_without_its_codec_is_refused(tmp_path: Path) -> None:
    folder = save_voice(tmp_path / "voice")
    (folder / "codec" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no codec in"):
        load_voice(str(folder))


def test_segments_have_seeds_of_their_own() -> None:
    assert len({mix(7, index) for index in range(100)} | {mix(8, index) for index in range(100)}) == 200
    same = markov_voice().speak("This is said. This is said. This is said.", seed=3).samples
    third = len(same) // 3
    assert not np.array_equal(same[:third], same[third : 2 * third])
