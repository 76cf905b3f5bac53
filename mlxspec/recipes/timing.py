"""When each symbol of a line is said, by the teacher's own account: the durations it gives its phonemes before it makes a sound of them.

A voice that names the symbols it says learns from this where it is in the text. Needs the teacher as ``corpus.py`` does, and ``pip install onnx``.
A sound made from espeak-ng's phonemes is timed by those. What is not as long as the teacher says it would be has no timing.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence

import numpy as np

from mlxspec.errors import UsageError
from mlxspec.recipes.corpus import EDGE, Kokoro, for_kokoro

DURATIONS = "/encoder/Clip_output_0"  # where the teacher's graph has them, in units
UNIT = 0.025  # seconds
ONSET = 0.35  # seconds before the first sound that is loud enough to stay
EARLY = 0.08  # seconds by which codes stand before the teacher's times: there they tell most of the symbols (1.46 nats; without it 0.78)
AROUND = 0.86  # seconds of quiet that are cut off, both ends together
TOLERANCE = 0.2  # seconds
GAP = 0.7
PAUSE = " ,.?!;:"
VOWEL = "aeiouæɑɔəɚɛɜɪʊʌAIWOYɒᵻ"
ESPEAK = (  # its IPA as the teacher spells it
    ("ɜːɹ", "ɜɹ"), ("ɜː", "ɜɹ"), ("ɚ", "əɹ"), ("eɪ", "A"), ("aɪ", "I"), ("aʊ", "W"), ("oʊ", "O"), ("ɔɪ", "Y"), ("tʃ", "ʧ"), ("dʒ", "ʤ"),
    ("r", "ɹ"), ("ɐ", "ə"), ("ʲ", ""), ("ː", ""),  # noqa: RUF001
)  # fmt: skip


class Timer:
    """Opened with the first line, then a tenth of a second a line."""

    def __init__(self, espeak: bool = False) -> None:
        if espeak and shutil.which("espeak-ng") is None:
            raise UsageError("The program espeak-ng is not installed: apt-get install espeak-ng, or brew install espeak-ng.")
        self._teacher: Kokoro | None = None
        self._asked: tuple[str, np.ndarray | None] = ("", None)  # the takes of a line come one after another

    def ends(self, text: str, symbols: Sequence[str], frames: int, rate: float, espeak: bool = False, cut: float = 0.0) -> list[int]:
        """For each symbol the frame at which it ends, of a line's sound of so many frames, ``rate`` a second; none where it cannot be told.

        ``espeak``: the sound was made from espeak-ng's phonemes of the text, not from these symbols. ``cut``: seconds its beginning lacks.
        """
        starts = self._espeak(text, symbols, frames / rate) if espeak else self._told(symbols, frames / rate)
        if starts is None:
            return []
        found = np.clip(np.round((starts - ONSET - EARLY + EDGE - cut) * rate), 0, frames).astype(int)
        return [*found[1:].tolist(), frames]

    def _told(self, symbols: Sequence[str], seconds: float) -> np.ndarray | None:
        """When each symbol starts, if the teacher was told these symbols."""
        said = [for_kokoro([symbol]) for symbol in symbols]
        starts = self._starts("".join(said), seconds)
        return None if starts is None else starts[np.cumsum([0, *(len(part) for part in said)])[:-1]]

    def _espeak(self, text: str, symbols: Sequence[str], seconds: float) -> np.ndarray | None:
        """When each symbol starts, if the teacher was told what espeak-ng makes of the text."""
        said = by_espeak(text)
        starts = self._starts(said, seconds)
        if starts is None:
            return None
        ours = [for_kokoro([symbol]).lstrip("ˈˌ") for symbol in symbols]
        theirs = [place for place, char in enumerate(said) if char not in "ˈˌ"]
        found = aligned("".join(ours), "".join(said[place] for place in theirs))
        known = [(i, starts[theirs[j]]) for i, j in enumerate(found) if j is not None]
        every = np.interp(np.arange(len(found)), [i for i, _ in known], [start for _, start in known])
        return np.asarray(every[np.cumsum([0, *(len(part) for part in ours)])[:-1]])

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


def aligned(ours: str, theirs: str) -> list[int | None]:
    """For each character of one spelling its counterpart in the other, in order, by the cheapest edits; None where there is none.

    >>> aligned("ænd", "ənt"), aligned("ab", "b")
    ([0, 1, 2], [None, 0])
    """
    cost = np.zeros((len(ours) + 1, len(theirs) + 1))
    cost[:, 0], cost[0] = GAP * np.arange(len(ours) + 1), GAP * np.arange(len(theirs) + 1)
    for i, a in enumerate(ours):
        for j, b in enumerate(theirs):
            cost[i + 1, j + 1] = min(cost[i, j] + _unlike(a, b), cost[i, j + 1] + GAP, cost[i + 1, j] + GAP)
    result: list[int | None] = [None] * len(ours)
    i, j = len(ours), len(theirs)
    while i and j:
        if cost[i, j] == cost[i - 1, j - 1] + _unlike(ours[i - 1], theirs[j - 1]):
            i, j = i - 1, j - 1
            result[i] = j
        elif cost[i, j] == cost[i - 1, j] + GAP:
            i -= 1
        else:
            j -= 1
    return result


def _unlike(a: str, b: str) -> float:
    if a == b:
        return 0.0
    if (a in PAUSE) != (b in PAUSE):
        return 3.0
    return 0.3 if a in PAUSE else 0.6 if (a in VOWEL) == (b in VOWEL) else 1.3
