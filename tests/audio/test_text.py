"""The text front end: what is written becomes words, words become phonemes, and a long text becomes segments that say each sentence once."""

import re
import sys

import pytest

from mlxspec.audio.codes.layout import Layout
from mlxspec.audio.text.front_end import MOST, FrontEnd, sentences
from mlxspec.audio.text.numbers import cardinal, decimal, ordinal, year
from mlxspec.audio.text.phonemes import SYMBOLS, Phonemizer
from mlxspec.audio.text.written_out import spoken
from mlxspec.errors import AudioError, MlxspecError

FRONT = FrontEnd()

# ---- Words -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("He paid $3.50 on 5/6/2021.", "He paid three dollars and fifty cents on May sixth, twenty twenty one."),
        ("$1.2 million, £0.99 and €1", "one point two million dollars, ninety nine pence and one euro"),
        ("Meet me at 3:45 p.m. or 9:05 or 12:00", "Meet me at three forty five P M or nine oh five or twelve o'clock"),
        ("at 10am", "at ten A M"),
        ("1,234 items, 1,000,000 and 42", "one thousand two hundred thirty four items, one million and forty two"),
        ("3.14 and .5 and -5 and 007", "three point one four and zero point five and minus five and zero zero seven"),
        ("the value 3.14x", "the value three point one four times"),
        ("the 21st, 2nd and 103rd", "the twenty first, second and one hundred third"),
        ("in 1905, 2000, 2008 and 2021", "in nineteen oh five, two thousand, two thousand eight and twenty twenty one"),
        ("the 1990s and '80s", "the nineteen nineties and eighties"),
        ("1/2 cup, 2 3/4 miles, 7/50", "one half cup, two and three quarters miles, seven over fifty"),
        ("2024-12-01 and 3rd of June 1999", "December first, twenty twenty four and the third of June, nineteen ninety nine"),
        ("5-10 times, 555-123-4567", "five to ten times, five five five, one two three, four five six seven"),
        ("version 1.2.3", "version one point two point three"),
        ("50km/h, 3 kg, 10GB, 1 m, 5 ft. tall", "fifty kilometers per hour, three kilograms, ten gigabytes, one meter, five feet tall"),
        ("-3°C and 5%", "minus three degrees Celsius and five percent"),
        ("2+2=4 & C++", "two plus two equals four and C plus plus"),
        ("Dr. Smith vs. Mrs. Jones, e.g. at No. 5", "doctor Smith versus missus Jones, for example at number five"),
        ("St. John lives on Main St.", "Saint John lives on Main Street"),
        ("the U.S. Army", "the U S Army"),
        ("See https://example.com/a-b?c=1.", "See example dot com slash a dash b question mark c equals one."),
        ("mail a.b@c.org, or go to www.test.org!", "mail a dot b at c dot org, or go to www dot test dot org!"),
        ("Wait... what? (Yes) -- no?!", "Wait, what? Yes, no?"),
        ("“don’t” said ‘she’", "don't said 'she'"),
        ("and/or w/o", "and or without"),
        (
            "12345678901234567890123",
            "one two three four five six seven eight nine zero one two three four five six seven eight nine zero one two three",
        ),
        ("tabs\tand\x00nothing\u200b", "tabs and nothing"),
    ],
)
def test_what_is_written_is_said_in_words(written: str, said: str) -> None:
    assert spoken(written) == said
    assert not re.search(r"\d", spoken(written))


def test_numbers_in_words() -> None:
    assert [cardinal(n) for n in (0, 13, 20, 100, 1_000_001)] == ["zero", "thirteen", "twenty", "one hundred", "one million one"]
    assert [ordinal(n) for n in (1, 12, 20, 21, 100)] == ["first", "twelfth", "twentieth", "twenty-first", "one hundredth"]
    assert [year(n) for n in (1066, 1900, 2010)] == ["one thousand sixty-six", "nineteen hundred", "twenty ten"]
    assert decimal("-1,234.50") == "minus one thousand two hundred thirty-four point five zero"


# ---- Phonemes ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("Hello", "hɛlˈoʊ."),
        ("I read the book. I will read it.", "ˈaɪ ɹˈɛd ðə bˈʊk. ˈaɪ wɪl ɹˈid ˈɪt."),
        ("We use it. The use of it.", "wi jˈuz ˈɪt. ðə jˈus əv ˈɪt."),
        ("naïve café", "nˌaɪˈiv kæfˈeɪ."),
        ("the cat's dog's boss's", "ðə kˈæts dˈɔɡz bˈɔsɪz."),
        ("USB for us in the US", "jˈu ˈɛs bˈi fɔɹ ˌʌs ɪn ðə jˈu ˈɛs."),
        ("A dog. A B C. Vitamin A.", "ə dˈɔɡ. ˈeɪ bˈi sˈi. vˈaɪtəmən ˈeɪ."),
        ("STOP THAT NOW!", "stˈɑp ðˈæt nˈaʊ!"),
        ("blorptastic", "blˈɔɹptˈæstɪk."),
    ],
)
def test_words_become_phonemes(text: str, phonemes: str) -> None:
    said = "".join(FRONT.symbols(text))
    assert said.replace("fɚ", "fɔɹ") == phonemes.replace("fɚ", "fɔɹ")


def test_every_symbol_is_one_the_voice_knows() -> None:
    words = "Zhuzh thyme, judge church; rhythm: yacht? Æon! Björk 3.14 naïveté xylophone McDonald's o'clock 'tis rock'n'roll"
    symbols = FRONT.symbols(words)
    assert set(symbols) <= set(SYMBOLS) and len(set(SYMBOLS)) == len(SYMBOLS)
    assert symbols[0] != " " and "  " not in "".join(symbols)


def test_text_that_looks_like_control_tokens_is_read_out_or_dropped() -> None:
    """With the layout of a voice: none of its ids but text symbols and the start can come of it."""
    layout = Layout.of(SYMBOLS, 64)
    for text in ("<|s_12|> hello <|end|>", "[STOP][TEXT] go", "<start>", "custom_token_5 <custom_token_5>", "</s>"):
        ids = layout.prompt(FRONT.symbols(text))
        assert set(ids[:-1]) <= set(layout.symbols.values()) and ids[-1] == layout.start


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gruut_lang_en", None)
    with pytest.raises(MlxspecError, match=r"gruut_lang_en, which is not installed: pip install 'mlxspec\[speech\]'"):
        Phonemizer()
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(MlxspecError, match=r"sentencex.*mlxspec\[speech\]"):
        sentences("One. Two.")


# ---- Segments ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "whole",
    [
        "It costs 3.14 dollars in all.",
        "Dr. Smith met Mr. Jones at noon.",
        "Use fruit, e.g. apples, i.e. something sweet.",
        "Go to https://example.com/a.b?c=d.e and read on.",
        "He waited... and waited… and left.",
        "The U.S. Army is at No. 5 Main St. in town.",
        'She said "No way!" and left.',
    ],
)
def test_sentences_are_not_broken_inside(whole: str) -> None:
    assert sentences(f"{whole} This is the next one.") == [whole, "This is the next one."]


def test_a_long_text_is_said_once_and_in_order() -> None:
    """2,000 characters with numbers, abbreviations, addresses and quotes; segments of a length that can be said."""
    parts = [f"Dr. No{chr(97 + i)} paid $3.{i:02d}, i.e. not {i} euros, at https://ex{i}.com/a.b; “why?” he asked again." for i in range(24)]
    text = " ".join(parts)
    assert len(text) > 2000
    segments = FRONT.segments(text)
    said = " ".join(segment.text for segment in segments)
    assert said.split() == text.split()
    assert max(len(segment.symbols) for segment in segments) <= MOST
    assert all(segment.symbols[-1] in ".?!" for segment in segments)


def test_a_sentence_without_end_is_parted_at_the_best_place() -> None:
    clause = "the quick brown fox jumps over the lazy dog"
    segments = FRONT.segments(", and ".join([clause] * 8))
    assert len(segments) > 1 and all(segment.text.endswith((",", "dog")) for segment in segments)
    words = FRONT.segments("word " * 200)
    assert sum(segment.text.count("word") for segment in words) == 200


def test_very_short_sentences_are_said_together() -> None:
    assert [segment.text for segment in FRONT.segments("1. Apples are red. No. Yes.")] == ["1. Apples are red. No. Yes."]
    assert [segment.text for segment in FRONT.segments("Go!")] == ["Go!"]


@pytest.mark.parametrize(
    ("text", "words"), [("", "is empty"), (" \n\t", "is empty"), ("...", "can be said"), ("日本語", "can be said"), ("😀", "can be said")]
)
def test_what_cannot_be_said_is_an_error(text: str, words: str) -> None:
    with pytest.raises(AudioError, match=words):
        FRONT.segments(text)
