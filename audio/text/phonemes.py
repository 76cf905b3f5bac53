"""English words as phonemes (IPA), offline: a lexicon, parts of speech for words with two readings, and a model for words that are in no lexicon.

Data and models are those of ``gruut_lang_en`` (MIT); here they are read directly, without gruut's own text processing. Knows words and punctuation,
no digits and no sound.

>>> "".join(Phonemizer().symbols("We use it."))
'wi jˈuz ˈɪt.'
"""

import base64
import re
import sqlite3
import string
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlxspec.errors import AudioError
from mlxspec.extras import need

CONSONANTS = ("b", "d", "d͡ʒ", "f", "h", "j", "k", "l", "m", "n", "p", "s", "t", "t͡ʃ", "v", "w", "z", "ð", "ŋ", "ɡ", "ɹ", "ʃ", "ʒ", "θ")
VOWELS = ("aɪ", "aʊ", "eɪ", "i", "oʊ", "u", "æ", "ɑ", "ɔ", "ɔɪ", "ɚ", "ɛ", "ɪ", "ʊ", "ʌ")
PAUSES = (",", ".", "?", "!", ";", ":")
SYMBOLS = (" ", *PAUSES, *CONSONANTS, "ə", *(stress + vowel for vowel in VOWELS for stress in ("", "ˈ", "ˌ")))
"""Every symbol there is; a voice is trained on these and nothing else."""

LETTERS = {
    "a": "ˈeɪ", "b": "b ˈi", "c": "s ˈi", "d": "d ˈi", "e": "ˈi", "f": "ˈɛ f", "g": "d͡ʒ ˈi",
    "h": "ˈeɪ t͡ʃ", "i": "ˈaɪ", "j": "d͡ʒ ˈeɪ", "k": "k ˈeɪ", "l": "ˈɛ l", "m": "ˈɛ m", "n": "ˈɛ n",
    "o": "ˈoʊ", "p": "p ˈi", "q": "k j ˈu", "r": "ˈɑ ɹ", "s": "ˈɛ s", "t": "t ˈi", "u": "j ˈu",
    "v": "v ˈi", "w": "d ˈʌ b ə l j ˌu", "x": "ˈɛ k s", "y": "w ˈaɪ", "z": "z ˈi",
}  # fmt: skip
OWN = {"miz": "m ˈɪ z", "tilde": "t ˈɪ l d ə", "gigabyte": "ɡ ˈɪ ɡ ə b ˌaɪ t", "gigabytes": "ɡ ˈɪ ɡ ə b ˌaɪ t s"}
WEAK = (  # words that are said without a stress, but at the end of a phrase
    "a am an and are as at be by can could for from had has have he her his if in is it its my of or she than that the their there these they this "
    "those through to was we were what when will with would you your"
)
LIGHT = (  # and words that keep a lighter one
    "any been being between but him how into me might not on onto our over shall should so some them though under up upon us where which while who "
    "whose why within without"
)
STRESS = {**dict.fromkeys(WEAK.split(), ""), **dict.fromkeys(LIGHT.split(), "ˌ")}
NEAR = {"VBN": "VBD", "VBP": "VB", "VBZ": "VB", "VBG": "VB", "NNS": "NN", "NNP": "NN", "NNPS": "NN", "JJR": "JJ", "JJS": "JJ"}
SPELLED = {"US", "UK", "EU", "UN", "IT", "AI", "PM", "AM", "OK"}  # capitals that are also words
TOKEN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*'?|[,.?!;:]")


class Phonemizer:
    """Opened once, then some microseconds a word."""

    def __init__(self) -> None:
        gruut_lang_en, pycrfsuite = (need(name, "speech", "The text front end") for name in ("gruut_lang_en", "pycrfsuite"))
        folder = Path(gruut_lang_en.__file__).parent
        self._lexicon = sqlite3.connect(f"file:{folder / 'lexicon.db'}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        self._guesser, self._tagger = pycrfsuite.Tagger(), pycrfsuite.Tagger()
        try:
            self._guesser.open(str(folder / "g2p" / "model.crf"))
            self._tagger.open(str(folder / "pos" / "model.crf"))
            self._lexicon.execute("select 1 from word_phonemes limit 1")
        except (OSError, ValueError, sqlite3.Error) as error:
            raise AudioError(f"The files of gruut_lang_en in {folder} cannot be read ({error}): install it again.") from error
        self._known: dict[str, dict[str, str]] = {}

    def symbols(self, text: str) -> tuple[str, ...]:
        """Phonemes of words that are words already (``spoken``), a blank between them, pauses after them. What is no word has no symbols."""
        tokens = TOKEN.findall(text)
        readings = [self._readings(token.lower()) if token not in PAUSES else {} for token in tokens]
        tags = self._tags(tokens) if any(len(found) > 1 for found in readings) else [""] * len(tokens)
        shouted = sum(token.isupper() and len(token) > 1 for token in tokens) > 2 * sum(token.islower() for token in tokens)
        result: list[str] = []
        for place, token in enumerate(tokens):
            if token in PAUSES:
                if result and result[-1] not in PAUSES:
                    result.append(token)
                continue
            letter = _is_letter(tokens, place)
            said = self._word(token, readings[place], tags[place], letter, shouted)
            spelled = letter or (token.isupper() and len(token) > 1)
            if not spelled and place + 1 < len(tokens) and tokens[place + 1] not in PAUSES:
                said = _lighter(token.lower(), said)
            if said:
                result += ([" "] if result else []) + said
        return tuple(result)

    def _word(self, word: str, readings: dict[str, str], tag: str, letter: bool, shouted: bool) -> list[str]:
        lower = word.lower()
        if letter or (word in SPELLED and not shouted):
            return self._spelled(lower)
        if not readings and word.isupper() and 1 < len(word) <= 5 and not shouted:
            return self._spelled(lower)
        if readings:
            for role in (f"gruut:{tag}", f"gruut:{NEAR.get(tag, '')}", ""):
                if role in readings:
                    return readings[role].split()
            return next(iter(readings.values())).split()
        stem, _, ending = lower.partition("'")
        if ending in ("s", "") and stem != lower and stem:
            base = self._word(stem, self._readings(stem), tag, False, shouted)
            return base + _possessive(base[-1]) if ending and base else base
        return self._guessed(lower)

    def _spelled(self, letters: str) -> list[str]:
        """Letter by letter, as words of their own."""
        said: list[str] = []
        for char in _plain(letters):
            if char in LETTERS:
                said += ([" "] if said else []) + LETTERS[char].split()
        return said

    def _readings(self, word: str) -> dict[str, str]:
        """Pronunciations by part of speech; of one part the first."""
        if word not in self._known:
            if len(self._known) > 20_000:
                self._known.clear()
            found: dict[str, str] = {}
            for form in dict.fromkeys((word, _plain(word))):
                rows = self._lexicon.execute("select role, phonemes from word_phonemes where word = ? order by pron_order", (form,)).fetchall()
                for role, phonemes in rows:
                    found.setdefault(role, phonemes)
                if found:
                    break
            self._known[word] = found or ({"": OWN[word]} if word in OWN else {})
        return self._known[word]

    def _guessed(self, word: str) -> list[str]:
        """What the model makes of a word in no lexicon; nothing where it has no letters of ours."""
        letters = "".join(char for char in _plain(word) if char in LETTERS or char == "'")
        if not letters.strip("'"):
            return []
        phonemes: list[str] = []
        for code in self._guesser.tag(_spelling(letters)):
            phonemes += [p for p in _decoded(code).split("|") if p in SYMBOLS]
        return phonemes or self._spelled(letters)

    def _tags(self, words: Sequence[str]) -> list[str]:
        """Parts of speech of a sentence."""
        tags: list[str] = self._tagger.tag([_context(words, place) for place in range(len(words))])
        return tags


def _lighter(word: str, said: list[str]) -> list[str]:
    """A word as it is said on the way to the next one."""
    return [symbol.replace("ˈ", STRESS.get(word, "ˈ")) for symbol in said]


def _is_letter(tokens: Sequence[str], place: int) -> bool:
    """Whether a token is the name of a letter: a capital alone, but for I and for an A that no other capital stands beside."""
    token = tokens[place]
    if len(token) != 1 or not token.isupper() or not token.isalpha():
        return len(token) == 1 and token.isalpha() and token not in "aAI"
    beside = [tokens[i] for i in (place - 1, place + 1) if 0 <= i < len(tokens)]
    among = any(len(other) == 1 and other.isupper() for other in beside)
    return token not in "AI" or among or (token == "A" and beside[-1:] == ["."])


def _possessive(last: str) -> list[str]:
    if last in ("s", "z", "ʃ", "ʒ", "t͡ʃ", "d͡ʒ"):
        return ["ɪ", "z"]
    return ["s"] if last in ("p", "t", "k", "f", "θ") else ["z"]


def _plain(word: str) -> str:
    """Letters without their accents."""
    return "".join(char for char in unicodedata.normalize("NFD", word) if not unicodedata.combining(char))


# ---- What the models were trained to read: the names are theirs --------------------------------------------------------------------------


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode("ascii")


def _decoded(code: str) -> str:
    return base64.b64decode(code.encode("ascii")).decode()


def _spelling(word: str) -> list[dict[str, Any]]:
    """Each letter with the three before and after it."""
    rows: list[dict[str, Any]] = []
    for i, char in enumerate(word):
        row: dict[str, Any] = {"bias": 1.0, "grapheme": _coded(char)}
        row |= {f"grapheme-{j}": _coded(word[i - j]) for j in (1, 2, 3) if i >= j}
        row |= {f"grapheme+{j}": _coded(word[i + j]) for j in (1, 2, 3) if i + j < len(word)}
        if i == 0:
            row["begin"] = True
        if i == len(word) - 1:
            row["end"] = True
        rows.append(row)
    return rows


def _context(words: Sequence[str], place: int) -> dict[str, Any]:
    """A word with the two before and after it."""
    row: dict[str, Any] = {}
    for step in (0, -1, -2, 1, 2):
        if 0 <= place + step < len(words):
            word, prefix = words[place + step], f"{step:+d}:" if step else ""
            row |= {f"{prefix}bias": 1.0, f"{prefix}word": _coded(word), f"{prefix}len(word)": len(word)}
            row |= {f"{prefix}word.ispunctuation": word in string.punctuation, f"{prefix}word.isdigit()": word.isdigit()}
            row |= {f"{prefix}word[:{i}]": word[:i] for i in (2, 3)} | {f"{prefix}word[-{i}:]": word[-i:] for i in (2, 3)}
    if place == 0:
        row["BOS"] = True
    if place == len(words) - 1:
        row["EOS"] = True
    return row
