"""The text front end: from anything a user may write to the segments a voice says, each once and in order. Knows no model and no sound.

Sentences are found in the text as it was written, since "Dr. Smith", "3.14" and addresses lose what tells them apart once they are words.
"""

import re
import threading
from dataclasses import dataclass

from mlxspec.audio.text.phonemes import PAUSES, Phonemizer
from mlxspec.audio.text.written_out import plain, spoken
from mlxspec.errors import AudioError
from mlxspec.extras import need

MOST = 90  # symbols of a segment, some six seconds: a voice says best what is as long as what it learned from
FEWEST = 12  # letters below which a sentence is said with the one after it


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of text said in one go: what was written, and its symbols."""

    text: str
    symbols: tuple[str, ...]


class FrontEnd:
    """English. Opened once; safe to use from several threads, one at a time."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._phonemizer = Phonemizer()
        self._lock = threading.Lock()

    def segments(self, text: str) -> list[Segment]:
        """All that can be said of a text. Raises AudioError where that is nothing."""
        if not text.strip():
            raise AudioError("The text is empty: give some words to say.")
        with self._lock:
            found = [segment for sentence in merged(sentences(text)) for segment in self._cut(sentence)]
        if not found:
            raise AudioError(f"Nothing in {text.strip()!r:.60} can be said: give words in Latin letters, or numbers.")
        return found

    def symbols(self, sentence: str) -> tuple[str, ...]:
        """A sentence's symbols, with a pause at its end; none where nothing of it can be said."""
        symbols = self._phonemizer.symbols(spoken(sentence))
        if not symbols:
            return ()
        if symbols[-1] in (",", ";", ":"):
            symbols = symbols[:-1]
        return symbols if symbols[-1] in PAUSES else (*symbols, ".")

    def _cut(self, sentence: str) -> list[Segment]:
        """The sentence whole, or in pieces that are short enough, cut at the best place there is."""
        symbols = self.symbols(sentence)
        if not symbols:
            return []
        if len(symbols) <= self.most:
            return [Segment(sentence, symbols)]
        place = best_cut(sentence)
        if place is None:
            return [Segment(sentence, symbols)]
        return self._cut(sentence[:place].strip()) + self._cut(sentence[place:].strip())


def sentences(text: str) -> list[str]:
    """The sentences as they were written, line breaks inside them folded. An empty line ends one."""
    sentencex = need("sentencex", "speech", "The text front end")
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*•]\s)", text.replace("\r\n", "\n").replace("\x00", " ")):
        folded = " ".join(paragraph.split())
        if folded:
            found += [sentence.strip() for sentence in sentencex.segment("en", folded) if sentence.strip()]
    return found


def merged(pieces: list[str]) -> list[str]:
    """Very short sentences joined to the one after them (the last to the one before): a voice says a lone word badly."""
    result: list[str] = []
    carried = ""
    for piece in pieces:
        carried = f"{carried} {piece}".strip()
        if sum(char.isalnum() for char in plain(carried)) >= FEWEST:
            result.append(carried)
            carried = ""
    if carried:
        result = [*result[:-1], f"{result[-1]} {carried}"] if result else [carried]
    return result


def best_cut(sentence: str) -> int | None:
    """Where to part a sentence that is too long: the best mark nearest its middle. None where it has no place to part."""
    middle = len(sentence) / 2
    for pattern in (r"[.?!;:]\s+", r",\s+|\s[-–—]\s", r"\s+(?=(?:and|but|or|because|which|that|while|when|so)\s)", r"\s+"):
        places = [found.end() for found in re.finditer(pattern, sentence)]
        places = [place for place in places if 0.2 * len(sentence) < place < 0.8 * len(sentence)]
        if places:
            return min(places, key=lambda place: abs(place - middle))
    return None
