"""When each symbol of a line is said, by the teacher's own account: the durations it gives its phonemes before it makes a sound of them.

A voice that names the symbols it says learns from this where it is in the text. Needs the teacher as ``corpus.py`` does, and ``pip install onnx``.
A sound made from espeak-ng's phonemes is labelled with those and timed by them: its weak forms ("and", "was" without a stress) are none of our front
end's. What is not as long as the teacher says it would be has no timing.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence

import numpy as np

from mlxspec.audio.text.phonemes import PAUSES, SYMBOLS
from mlxspec.errors import UsageError
from mlxspec.recipes.corpus import EDGE, KOKORO, Kokoro

DURATIONS = "/encoder/Clip_output_0"  # where the teacher's graph has them, in units
UNIT = 0.025  # seconds
ONSET = 0.35  # seconds before the first sound that is loud enough to stay
EARLY = 0.08  # seconds by which codes stand before the teacher's times: there they tell most of the symbols (1.46 nats; without it 0.78)
AROUND = 0.86  # seconds of quiet that are cut off, both ends together
TOLERANCE = 0.2  # seconds
ESPEAK = (  # its IPA as the teacher spells it
    ("ɜːɹ", "ɜɹ"), ("ɜː", "ɜɹ"), ("ɚ", "əɹ"), ("eɪ", "A"), ("aɪ", "I"), ("aʊ", "W"), ("oʊ", "O"), ("ɔɪ", "Y"), ("tʃ", "ʧ"), ("dʒ", "ʤ"),
    ("r", "ɹ"), ("ɐ", "ə"), ("ʲ", ""), ("ː", ""),  # noqa: RUF001
)  # fmt: skip
OURS = {spelled: symbol for symbol, spelled in KOKORO.items()} | {  # what the teacher can spell as our symbols
    "ɜɹ": "ɚ", "əɹ": "ɚ", "ɜ": "ɚ", "ᵻ": "ɪ", "ɾ": "t", "ʔ": "t", "o": "ɔ", "a": "ɑ", "ɒ": "ɑ", "e": "ɛ", "g": "ɡ", "x": "h",  # noqa: RUF001
}  # fmt: skip
PIECE = re.compile("([ˈˌ]?)(ɜɹ|əɹ|[^ˈˌ])")


class Timer:
    """Opened with the first line, then a tenth of a second a line."""

    def __init__(self, espeak: bool = False) -> None:
        if espeak and shutil.which("espeak-ng") is None:
            raise UsageError("The program espeak-ng is not installed: apt-get install espeak-ng, or brew install espeak-ng.")
        self._teacher: Kokoro | None = None
        self._asked: tuple[str, np.ndarray | None] = ("", None)  # the takes of a line come one after another
        self._heard: tuple[str, tuple[list[str], list[str]]] = ("", ([], []))

    def heard(self, text: str) -> tuple[list[str], list[str]]:
        """The symbols of what espeak-ng makes of a text, and how the teacher spells each."""
        if text != self._heard[0]:
            self._heard = text, pieces(by_espeak(text))
        return self._heard[1]

    def ends(self, spelled: Sequence[str], frames: int, rate: float, cut: float = 0.0) -> list[int]:
        """For each symbol the frame at which it ends, of a line's sound of so many frames, ``rate`` a second; none where it cannot be told.

        ``spelled``: the symbols as the teacher was told them. ``cut``: seconds the sound's beginning lacks.
        """
        starts = self._starts("".join(spelled), frames / rate)
        if starts is None:
            return []
        starts = starts[np.cumsum([0, *(len(part) for part in spelled)])[:-1]]
        found = np.clip(np.round((starts - ONSET - EARLY + EDGE - cut) * rate), 0, frames).astype(int)
        return [*found[1:].tolist(), frames]

    def _starts(self, said: str, seconds: float) -> np.ndarray | None:
        """When each character starts; None where these cannot be the characters of a sound of this length."""
        teacher = self._teacher = self._teacher or Kokoro(DURATIONS)
        if said != self._asked[0]:
            self._asked = said, teacher.asked(said)
        durations = self._asked[1]
        if durations is None:
            return None
        kept = [char in teacher.ids for char in said]
        each = np.zeros(len(said))
        each[kept] = durations[1:-1]
        starts = UNIT * (durations[0] + np.cumsum([0, *each]))
        whole = UNIT * float(durations.sum())
        return starts[:-1] if abs(whole - AROUND - seconds) <= TOLERANCE else None


def by_espeak(text: str) -> str:
    """Its American English as the teacher spells it, with the pauses of the text."""
    said = ""
    for clause in re.split(r"([,.?!;:]+(?=\s|$))", text):
        if re.fullmatch(r"[,.?!;:]+", clause):
            said += clause[0]
        elif clause.strip():
            run = subprocess.run(["espeak-ng", "-q", "--ipa", "-v", "en-us", "--", clause], capture_output=True, text=True, check=True)
            said += (" " if said else "") + " ".join(run.stdout.split())
    for theirs, ours in ESPEAK:
        said = said.replace(theirs, ours)
    return re.sub("ɹ+", "ɹ", said)


def pieces(said: str) -> tuple[list[str], list[str]]:
    """A line in the teacher's spelling as our symbols, and what it spells of each. A mark that is no symbol belongs to the one before it.

    >>> pieces("ə wˈIz bˈɜɹd")
    (['ə', ' ', 'w', 'ˈaɪ', 'z', ' ', 'b', 'ˈɚ', 'd'], ['ə', ' ', 'w', 'ˈI', 'z', ' ', 'b', 'ˈɜɹ', 'd'])
    """
    symbols, spelled, held = list[str](), list[str](), ""
    for match in PIECE.finditer(said):
        stress, char = held + match[1], match[2]
        bare = OURS.get(char, char)
        bare = "ʌ" if stress and bare == "ə" else bare
        symbol = next((one for one in (stress[:1] + bare, bare) if one in SYMBOLS), None)
        if symbol is None:
            if spelled:
                spelled[-1] += match[0]
            continue
        held = stress if stress and symbol == bare and bare not in PAUSES else ""  # a consonant's stress is its vowel's
        symbols.append(symbol)
        spelled.append(match[0])
    return symbols, spelled
