"""What speech is made of: repetitions are seen, joins do not click, stages hold each other up, files are whole, players starve honestly."""

import io
import os
import sys
import threading
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from mlxspec.audio.sound import playback
from mlxspec.audio.sound.files import SoundFile, SoundPipe, check_path, read_sound, resampled
from mlxspec.audio.sound.joins import Joins
from mlxspec.errors import AudioError, MlxspecError, ModelError, UsageError
from mlxspec.speech.pipeline import pipeline
from mlxspec.speech.utterance import PERIOD, Repeats
from mlxspec.speech.voice_folder import VOICE, as_words, find_voice, names
from tests.tiny_voice import FILES, LAYOUT, save_voice

# ---- Repetitions -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("period", range(1, PERIOD + 1))
def test_a_repetition_is_seen_at_any_period_and_where_it_began(period: int) -> None:
    watch = Repeats(certain=60)
    lead = [100, 101, 102, 103]
    for token in lead:
        watch.see(token)
    seen = 0
    while not watch.stuck:
        watch.see(seen % period)
        seen += 1
    assert max(60, 2 * period) <= seen <= max(60, 2 * period) + period
    assert len(watch.tokens) - watch.repeated == len(lead) + period  # one round of it stays


def test_random_speech_and_short_pauses_are_no_repetition() -> None:
    rng = np.random.default_rng(0)
    watch = Repeats(certain=60)
    for _ in range(50):
        for token in [*rng.integers(0, 40, 30).tolist(), *[7] * 25]:
            watch.see(token)
            assert not watch.stuck
    watch.see(3)
    assert watch.repeated == 0  # the pause is over: nothing is held back any more


# ---- Joins -------------------------------------------------------------------------------------------------------------------------------


def test_segments_keep_their_length_and_do_not_click() -> None:
    rate, rng = 16000, np.random.default_rng(1)
    joins, parts, total = Joins(rate), [], 0
    for length in (4000, 1, 90, 2500):
        sound = 0.5 + 0.1 * rng.random(length).astype(np.float32)  # as hard an edge as can be
        parts.append(joins.begin())
        for start in range(0, length, 777):
            parts.append(joins.push(sound[start : start + 777]))
        parts.append(joins.end())
        total += length
        assert joins.loudest > 0.3 or length < 90
    whole = np.concatenate(parts)
    assert len(whole) == total + 3 * round(0.15 * rate) and whole.dtype == np.float32
    assert np.abs(np.diff(whole)).max() < 0.12  # the sound's own steps, none of the half that an edge would be
    assert whole[0] == whole[-1] == 0


def test_chunks_do_not_show_in_joins() -> None:
    sound = np.random.default_rng(2).normal(0, 0.1, 1000).astype(np.float32)
    results = []
    for size in (1, 7, 1000):
        joins = Joins(16000)
        parts = [joins.begin(), *(joins.push(sound[i : i + size]) for i in range(0, 1000, size)), joins.end()]
        results.append(np.concatenate(parts))
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[1], results[2])


# ---- Stages ------------------------------------------------------------------------------------------------------------------------------


def test_stages_run_side_by_side_and_hold_each_other_up() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for i in range(200):
            made.append(i)
            yield i

    threads: set[str] = set()

    def double(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            threads.add(threading.current_thread().name)
            yield 2 * item

    line = pipeline(source, [double], threading.Event(), room=4)
    assert [next(line), next(line)] == [0, 2]
    time.sleep(0.2)
    assert len(made) < 16  # two queues of four, and what is in hand
    assert list(line) == [2 * i for i in range(2, 200)]
    assert threading.current_thread().name not in threads


def test_an_error_of_any_stage_comes_out_and_nothing_is_left_running() -> None:
    def fails(items: Iterator[int]) -> Iterator[int]:
        yield next(items)
        raise ValueError("in the middle")

    list(pipeline(lambda: iter(range(3)), [lambda items: items], threading.Event()))
    before = threading.active_count()
    line = pipeline(lambda: iter(range(10**9)), [fails], threading.Event())
    assert next(line) == 0
    with pytest.raises(ValueError, match="in the middle"):
        list(line)
    cancel = threading.Event()
    line = pipeline(lambda: iter(range(10**9)), [lambda items: items], cancel)
    next(line)
    line.close()
    assert cancel.is_set() and threading.active_count() == before  # workers wait for more, none is added


def test_a_stage_is_closed_in_its_own_thread() -> None:
    where: list[threading.Thread] = []

    def source() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            where.append(threading.current_thread())

    line = pipeline(source, [lambda items: items], threading.Event())
    next(line)
    line.close()
    assert len(where) == 1 and where[0] is not threading.current_thread()


# ---- Files -------------------------------------------------------------------------------------------------------------------------------

TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(4000) / 16000)).astype(np.float32)


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".ogg", ".WAV"])
def test_files_hold_what_was_written_at_the_codecs_rate(suffix: str, tmp_path: Path) -> None:
    for rate in (16000, 24000):
        path = tmp_path / f"{rate}{suffix}"
        with SoundFile(path, rate) as file:
            for start in range(0, 4000, 333):
                file.write(TONE[start : start + 333])
        sound, found = soundfile.read(path, dtype="float32")
        assert found == rate and (len(sound) == 4000 or suffix == ".ogg")
        if suffix != ".ogg":
            assert np.abs(sound - TONE).max() < 1e-4
    assert sorted(os.listdir(tmp_path)) == sorted([f"16000{suffix}", f"24000{suffix}"])


def test_loud_and_broken_samples_are_clipped(tmp_path: Path) -> None:
    with SoundFile(tmp_path / "x.wav", 16000) as file:
        file.write(np.array([3, -3, np.nan, np.inf], np.float32))
    sound, _ = soundfile.read(tmp_path / "x.wav")
    assert sound.max() <= 1 and sound.min() >= -1 and sound[2] == 0


def test_a_failure_leaves_no_file_and_an_interruption_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    with pytest.raises(RuntimeError), SoundFile(path, 16000):
        raise RuntimeError
    assert os.listdir(tmp_path) == []
    path.write_text("the old one")
    with pytest.raises(RuntimeError), SoundFile(path, 16000):
        raise RuntimeError
    assert path.read_text() == "the old one"
    with pytest.raises(KeyboardInterrupt), SoundFile(path, 16000) as file:
        file.write(TONE)
        raise KeyboardInterrupt
    with wave.open(str(path)) as whole:
        assert whole.getnframes() == 4000


@pytest.mark.parametrize(
    ("name", "words"),
    [("x.mp3", "ffmpeg -i x.wav x.mp3"), ("x", "by its suffix"), ("folder.wav", "is a folder"), ("there.wav", "--force"), ("no/x.wav", "no folder")],
)
def test_places_that_cannot_be_written_are_refused_beforehand(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "there.wav").write_text("")
    with pytest.raises(AudioError, match=words):
        check_path(tmp_path / name, force=False)
    assert check_path(tmp_path / "there.wav", force=True) == tmp_path / "there.wav"


def test_a_pipe_gets_a_header_and_samples_or_samples_alone() -> None:
    out, raw = io.BytesIO(), io.BytesIO()
    for pipe in (SoundPipe(out, 16000, raw=False), SoundPipe(raw, 16000, raw=True)):
        pipe.write(TONE[:2000])
        pipe.write(TONE[2000:])
    assert len(raw.getvalue()) == 8000 and out.getvalue()[44:] == raw.getvalue()
    assert out.getvalue()[:4] == b"RIFF" and int.from_bytes(out.getvalue()[24:28], "little") == 16000
    assert np.abs(np.frombuffer(raw.getvalue(), "<i2") / 32767 - TONE).max() < 1e-4


def test_reading_resamples() -> None:
    """A tone keeps its pitch and its height; what is above the new range is gone."""
    time_ = np.arange(24000) / 24000
    low = resampled(np.sin(2 * np.pi * 1000 * time_), 24000, 16000)
    high = resampled(np.sin(2 * np.pi * 10500 * time_), 24000, 16000)
    assert len(low) == 16000
    assert np.abs(low[200:-200] - np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000)[200:-200]).max() < 0.01
    assert np.abs(high[200:-200]).max() < 0.02
    for rate, length in ((44100, 4411), (8000, 801), (22050, 1), (48000, 7)):
        assert len(resampled(np.ones(length, np.float32), rate, 16000)) == round(length * 16000 / rate)
    assert np.abs(resampled(np.ones(44100, np.float32), 44100, 16000)[100:-100] - 1).max() < 0.01
    with pytest.raises(AudioError, match="cannot be read as sound"):
        read_sound("/nowhere.wav", 16000)


# ---- Playing -----------------------------------------------------------------------------------------------------------------------------


class Card:
    """A sound card that is asked by hand."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.calls = fails, list[str]()

    def OutputStream(self, **settings: Any) -> Any:
        if self.fails:
            raise ValueError("Error querying device -1")
        self.ask = settings["callback"]
        return SimpleNamespace(**{name: lambda name=name: self.calls.append(name) for name in ("start", "stop", "close", "abort")})

    def take(self, count: int) -> np.ndarray:
        out = np.full((count, 1), 9, np.float32)
        self.ask(out, count, None, None)
        return out[:, 0]


def test_a_player_gives_what_was_written_and_counts_when_it_starves() -> None:
    card = Card()
    player = playback.CardPlayer(100, threading.Event(), card)
    assert np.array_equal(card.take(5), np.zeros(5)) and player.underruns == 0  # nothing has begun
    player.write(np.arange(8, dtype=np.float32) / 10)
    assert player.ahead == 0.08
    assert np.allclose(card.take(5), [0, 0.1, 0.2, 0.3, 0.4])
    assert np.allclose(card.take(5), [0.5, 0.6, 0.7, 0, 0]) and player.underruns == 1 and player.ahead == 0
    card.take(5)
    assert player.underruns == 1
    player.write(np.ones(4, np.float32))
    ending = threading.Thread(target=player.finish)
    ending.start()
    time.sleep(0.05)
    assert np.allclose(card.take(9), [1, 1, 1, 1, 0, 0, 0, 0, 0]) and player.underruns == 1
    ending.join(2)
    assert not ending.is_alive() and card.calls == ["start", "stop", "close"]


def test_a_writer_that_is_far_ahead_waits_and_stopping_is_at_once() -> None:
    card = Card()
    player = playback.CardPlayer(10, threading.Event(), card)
    player.write(np.ones(60, np.float32))
    writer = threading.Thread(target=player.write, args=(np.ones(5, np.float32),))
    writer.start()
    time.sleep(0.05)
    assert writer.is_alive()
    player.stop()
    writer.join(2)
    assert not writer.is_alive() and not card.take(3).any() and card.calls[-2:] == ["abort", "close"]


def test_a_card_that_stalls_holds_nobody_who_gives_up() -> None:
    card, cancel = Card(), threading.Event()
    player = playback.CardPlayer(10, cancel, card)
    player.write(np.ones(60, np.float32))
    writer = threading.Thread(target=player.write, args=(np.ones(5, np.float32),), daemon=True)
    writer.start()
    cancel.set()
    writer.join(2)
    assert not writer.is_alive()
    player.finish()
    assert not card.take(3).any() and card.calls[-2:] == ["abort", "close"]


def test_silence_is_at_once_while_the_end_is_awaited() -> None:
    card, cancel = Card(), threading.Event()
    player = playback.CardPlayer(10, cancel, card)
    player.write(np.ones(40, np.float32))
    ending = threading.Thread(target=player.finish)
    ending.start()
    time.sleep(0.1)
    assert ending.is_alive()
    cancel.set()
    ending.join(1)
    assert not ending.is_alive() and not card.take(3).any() and card.calls[-2:] == ["abort", "close"]


def test_without_a_card_or_its_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AudioError, match=r"No sound device can play .*-o out\.wav"):
        playback.CardPlayer(16000, threading.Event(), Card(fails=True))
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(MlxspecError, match=r"pip install 'mlxspec\[play\]'"):
        playback.open_player(16000, threading.Event())


# ---- Voices on disk ----------------------------------------------------------------------------------------------------------------------


def test_voices_are_found_by_name_and_by_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    mine = save_voice(tmp_path / "mlxspec" / "voices" / "zed")
    assert "zed" in names()
    assert find_voice("zed").folder == mine == find_voice(str(mine)).folder
    assert find_voice("zed").layout == LAYOUT and find_voice("zed").tokens_per_symbol == 1.0
    with pytest.raises(UsageError, match=r"no voice zedd \(meant zed\?\).*zed"):
        find_voice("zedd")
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="has no audio alphabet"):
        find_voice(str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 99}, "is of format 99"),
        ({"front_end": "klingon"}, "front end 'klingon'"),
        ({"layout": {}}, "layout cannot be read"),
        ({"tokens_per_symbol": 0}, "cannot be read"),
        ({"groups": {"source": "air"}}, "cannot be read"),
        ({"groups": {"colour": 1}}, "cannot be read"),
    ],
)
def test_a_voice_that_cannot_be_read_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        find_voice(str(save_voice(tmp_path / "voice", **changes)))
    (tmp_path / "voice" / VOICE).write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        find_voice(str(tmp_path / "voice"))


def test_stock_mlx_lm_loads_a_voices_model(tmp_path: Path) -> None:
    from mlx_lm import load

    loaded: Any = load(str(save_voice(tmp_path / "voice")))
    model, tokenizer = loaded[0], loaded[1]
    assert type(model).__module__ == "mlx_lm.models.llama"
    assert tokenizer.eos_token_ids == {LAYOUT.end} and len(tokenizer.get_vocab()) == LAYOUT.vocab_size
    symbols = ("h", "ə", "l", "ˈoʊ", " ", ",", ".")
    assert list(tokenizer.encode(as_words(LAYOUT, symbols), add_special_tokens=False)) == LAYOUT.prompt(symbols)
    assert tokenizer.convert_ids_to_tokens(LAYOUT.token(0, 5)) == "<|s_0_5|>" and FILES.layout == LAYOUT
