"""Judging and comparing speech: errors are counted, rows are paired by sentence and seed, and a rule that does not pay is told so."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from mlxspec.bench.listener import Errors, Judge, Verdict, edits, errors
from mlxspec.bench.plot import write_frontier
from mlxspec.bench.speech import Line, Row, best_mirror, compare, summary
from mlxspec.cli.main import main
from mlxspec.drafters.small import SmallDrafter
from mlxspec.errors import MlxspecError, ModelError, UsageError
from mlxspec.speech.voice import Speech, Voice
from tests.fake_engine import isolate
from tests.tiny import MarkovModel
from tests.tiny_voice import markov_voice, save_voice, table

TEXTS = "First line of it all.\nSecond line of it all.\n\nFourth line of it all.\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(monkeypatch, tmp_path)
    (tmp_path / "texts.txt").write_text(TEXTS)
    return tmp_path


@pytest.mark.parametrize(
    ("a", "b", "count"), [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("same", "same", 0), ("ab", "ba", 2), ("flaw", "lawn", 2)]
)
def test_edits(a: str, b: str, count: int) -> None:
    assert edits(a, b) == edits(b, a) == count


def test_errors_look_through_numbers_case_and_marks() -> None:
    assert errors("He paid $5, at 3 p.m.!", "he paid five dollars at three pm") == Errors(2, 8, 0, 26)
    assert errors("One two three four.", "one two four") == Errors(1, 4, 5, 15)
    assert errors("Hello.", "") == Errors(1, 1, 5, 5)


def test_rows_are_read_from_their_names() -> None:
    assert Row.of("coupled") == Row("coupled", "coupled", "none", None)
    assert Row.of("mirror:redrafter:1.5") == Row("mirror:redrafter:1.5", "mirror", "redrafter", 1.5)
    assert Row.of("pcg:small:/a/b:3") == Row("pcg:small:/a/b:3", "pcg", "small:/a/b", 3.0)
    assert Row.of("coupled:small:/a/b") == Row("coupled:small:/a/b", "coupled", "small:/a/b", None)
    assert Row.of("codec") == Row("codec") and not Row.of("codec").spoken
    assert Row.of("swap:3:codebook") == Row("swap:3:codebook", group_size=3.0, group_source="codebook") and not Row.of("swap").spoken
    with pytest.raises(UsageError, match="where a mean group size belongs"):
        Row.of("swap:head")
    with pytest.raises(UsageError, match="begins with none of"):
        Row.of("apple:none")


def run(line: int, seed: int, words: int, **more: Any) -> dict[str, Any]:
    return {"line": line, "seed": seed, "duration": 2.0, "words": words, "of_words": 10, "letters": 0, "of_letters": 40, "overall": 3.0, **more}


def test_summaries_are_paired_by_sentence_and_seed() -> None:
    base = [run(line, seed, 1) for line in range(6) for seed in range(2)]
    worse = [run(line, seed, 2, duration=2.2, overall=2.5) for line in range(6) for seed in range(2)]
    found = summary(worse, base)
    assert found["word_error"] == 0.2 and found["letter_error"] == 0.0 and found["sentences"] == 12
    change = found["word_error_change"]
    assert change["mean"] == pytest.approx(0.1) and change["low"] == pytest.approx(0.1) == pytest.approx(change["high"])
    assert found["duration_ratio"]["mean"] == pytest.approx(1.1) and found["overall_change"]["mean"] == pytest.approx(-0.5)
    noisy = summary([run(line, 0, line % 3) for line in range(6)], base)["word_error_change"]
    assert noisy["low"] < noisy["mean"] < noisy["high"]
    assert summary([], base)["word_error"] is None


def test_what_does_not_pay_is_told() -> None:
    def row(name: str, speed: float, change: float | None = None) -> dict[str, Any]:
        return {"name": name, "tokens_per_second": speed, "word_error_change": None if change is None else {"mean": change}}

    exact = [row("coupled:none", 100), row("coupled:redrafter", 150)]
    assert "does not pay here: mirror:redrafter makes 0.93 x" in best_mirror([*exact, row("mirror:redrafter", 140, 0.01)])
    assert best_mirror([*exact, row("mirror:redrafter:6", 180, 0.015)]) == (
        "mirror:redrafter:6 makes 1.20 x the tokens a second of coupled:redrafter, the best exact row, at a word error +1.5 points."
    )
    assert best_mirror(exact) == ""


def test_rows_say_the_same_sentences_with_the_same_seeds(home: Path) -> None:
    """With a judge that hears how long a sound is; the codec's row needs the corpus's sound and is judged once a sentence."""
    soundfile.write(home / "00000.ogg", np.random.default_rng(0).normal(0, 0.1, 24000).astype(np.float32), 24000)
    judged: list[tuple[str, int]] = []

    def judge(sound: np.ndarray, rate: int, text: str) -> Verdict:
        judged.append((text, len(sound)))
        return Verdict("", Errors(len(sound) % 3, 5, 1, 20), 3.0, 3.5)

    voice = markov_voice(drafter=SmallDrafter(MarkovModel(table())))
    lines = [Line(0, "First line of it all.", home / "00000.ogg"), Line(1, "Second line of it all.", home / "00000.ogg")]
    rows = [Row.of(name) for name in ("coupled:none", "coupled:lookup", "codec", "swap:4:codebook", "swap:1:codebook")]
    judge_: Any = judge
    found = compare(voice, rows, lines, (1, 2), judge_, {"draft_tokens": 3}, lambda _: None)
    plain, lookup, codec, swap, same = found["rows"]
    assert plain["sentences"] == lookup["sentences"] == 4 and codec["sentences"] == 2
    assert swap["sentences"] == 2 and 0 < swap["share_swapped"] < 1 and swap["word_error_change"]["mean"] == 0  # as long as the codec's sound
    assert same["share_swapped"] == 0  # groups of one
    assert plain["tokens_per_round"] == 1.0 and lookup["tokens_per_round"] >= 1.0
    assert lookup["word_error_change"]["mean"] == 0 and lookup["duration_ratio"]["mean"] == 1  # coupled: the very same sound
    assert [run["duration"] for run in found["runs"]["coupled:none"]] == [run["duration"] for run in found["runs"]["coupled:lookup"]]
    with pytest.raises(UsageError, match="give --sounds"):
        compare(voice, rows, [Line(3, "No sound of it.", None)], (1,), None, {}, lambda _: None)


def test_a_voice_that_says_nothing_is_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    speak = Voice.speak

    def silent(self: Voice, text: str, **options: Any) -> Speech:
        if text.startswith("Second"):
            raise ModelError("tiny said nothing at all.")
        return speak(self, text, **options)

    monkeypatch.setattr(Voice, "speak", silent)
    lines = [Line(0, "First line of it all.", None), Line(1, "Second line of it all.", None)]
    (row,) = compare(markov_voice(), [Row.of("coupled")], lines, (1,), None, {}, lambda _: None)["rows"]
    assert row["faults"] == 1 and row["sentences"] == 2 and row["tokens_per_round"] == 1.0


def test_the_command(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_voice(home / "voice")
    argv = ["bench", "--speech", str(folder), "--texts", str(home / "texts.txt"), "--seeds", "2", "--no-judge", "--draft-tokens", "2"]
    assert main([*argv, "--rows", "coupled:none,coupled:lookup,mirror:lookup:4", "--out", str(home / "all.json")]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[0] == "row" and "mirror:lookup:4" in out and " x the tokens a second of " in out
    kept = json.loads((home / "all.json").read_text())
    assert kept["lines"] == 3 and len(kept["runs"]["mirror:lookup:4"]) == 6
    assert main([*argv, "--rows", "coupled:none", "--lines", "1:2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == 1


@pytest.mark.parametrize("name", ["frontier.png", "frontier.svg"])
def test_the_frontier_is_drawn(name: str, home: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = {
        "codec": None,
        "coupled:small:/a/long/folder/name": 2.0,
        "mirror:small:/a/long/folder/name:1.5": 2.2,
        "mirror:small:/a/long/folder/name:3": 2.5,
    }
    figures = [{"name": row, "tokens_per_round": tokens, "word_error": 0.1, "tokens_per_second": 80.0} for row, tokens in rows.items()]
    write_frontier({"rows": figures, "voice": "ada", "lines": 3, "seeds": 2}, home / name)
    text = (home / name).read_bytes()
    assert text[:4] in (b"\x89PNG", b"<?xm") and len(text) > 5000


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--speech", "x"], "give --texts"),
        (["--speech", "x", "--texts", "texts.txt", "--plot", "a.jpg"], "no format we draw"),
        (["--speech", "x", "--texts", "texts.txt", "--draft-tokens", "many"], "give a whole number from 0"),
        (["--speech", "x", "--texts", "nowhere"], "cannot be read"),
        (["--speech", "x", "--texts", "texts.txt", "--lines", "a:b"], "makes no sense"),
        (["--speech", "x", "--texts", "texts.txt", "--lines", "2:3"], "no sentence"),
        (["--speech", "x", "--texts", "texts.txt", "--rows", "air"], "begins with none"),
        (["--speech", "nobody", "--texts", "texts.txt", "--no-judge"], "no voice nobody"),
        (["--speech", "x", "word", "--texts", "texts.txt"], "takes no arguments"),
    ],
)
def test_what_makes_no_sense(argv: list[str], words: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(home)
    assert main(["bench", *argv]) == 2
    assert words in capsys.readouterr().err


def test_a_missing_judge_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(MlxspecError, match=r"pip install faster-whisper, or give --no-judge"):
        Judge()
