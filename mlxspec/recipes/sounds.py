"""The corpus in memory: every line's sound as 16-bit samples at the codec's rate, in one file that is mapped. Knows files, no network.

Lines 13,900 to 13,999 are held out for ever: no recipe trains on them.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlxspec.audio.sound.files import read_sound
from mlxspec.errors import AudioError, UsageError

HELD_OUT = range(13_900, 14_000)
WATCHED = 20  # one line in so many is watched in training, and not trained on


@dataclass(frozen=True, slots=True)
class Sounds:
    """``lines`` are line numbers; line ``lines[i]`` is ``samples[bounds[i] : bounds[i + 1]]``."""

    sample_rate: int
    lines: np.ndarray
    bounds: np.ndarray
    samples: np.ndarray

    def __len__(self) -> int:
        return len(self.lines)

    def sound(self, i: int) -> np.ndarray:
        return self.samples[self.bounds[i] : self.bounds[i + 1]].astype(np.float32) / 32767

    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Places to train on, and to watch."""
        watched = self.lines % WATCHED == WATCHED - 1
        return np.flatnonzero(~watched), np.flatnonzero(watched)


def open_sounds(folder: Path, cache: Path, sample_rate: int, say: Callable[[str], None]) -> Sounds:
    """The sounds of a folder of NNNNN.ogg (or .wav, .flac), gathered once into ``cache``; held-out lines are left out."""
    found = {int(path.stem): path for path in sorted(folder.glob("*.*")) if path.stem.isdigit() and path.suffix in (".ogg", ".wav", ".flac")}
    wanted = {line: path for line, path in found.items() if line not in HELD_OUT}
    if not wanted:
        raise UsageError(f"{folder} has no sound named by its line, such as 00042.ogg: make the corpus first.")
    index, data = cache / "sounds.json", cache / "sounds.i16"
    if not _whole(index, sorted(wanted), sample_rate):
        cache.mkdir(parents=True, exist_ok=True)
        bounds, draft = [0], data.with_suffix(".draft")
        with draft.open("wb") as file:
            for count, (_, path) in enumerate(sorted(wanted.items())):
                try:
                    sound = read_sound(path, sample_rate)
                except AudioError as error:
                    raise UsageError(f"{error} Remove it, and the corpus recipe makes it again.") from error
                file.write((np.clip(sound, -1, 1) * 32767).round().astype("<i2").tobytes())
                bounds.append(bounds[-1] + len(sound))
                if count % 1000 == 999:
                    say(f"{count + 1} of {len(wanted)} sounds gathered")
        os.replace(draft, data)
        index.write_text(json.dumps({"sample_rate": sample_rate, "lines": sorted(wanted), "bounds": bounds}))
    told = json.loads(index.read_text())
    return Sounds(sample_rate, np.array(told["lines"]), np.array(told["bounds"]), np.memmap(data, "<i2", "r"))


def _whole(index: Path, lines: list[int], sample_rate: int) -> bool:
    try:
        told = json.loads(index.read_text())
        size = (index.parent / "sounds.i16").stat().st_size
        return bool(told["lines"] == lines and told["sample_rate"] == sample_rate and size == 2 * told["bounds"][-1])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return False
