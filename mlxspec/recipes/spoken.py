"""A corpus as a speech model learns it: symbols and codes of each line, and when each symbol is said. In one small file, enough to train on.

An hour of speech is 180,000 codes, some 300 kB; as Opus it is 20 MB and takes an hour or two of a core to make.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mlxspec.audio.codes.codec import NeuralCodec
from mlxspec.audio.text.front_end import FrontEnd
from mlxspec.audio.text.phonemes import SYMBOLS
from mlxspec.errors import AudioError, UsageError
from mlxspec.paths import replacing
from mlxspec.recipes.corpus import MOST, for_kokoro
from mlxspec.recipes.sounds import HELD_OUT, Sounds

LISTS = ("symbols", "codes", "ends")
TAKES = 4  # to a frame


@dataclass(frozen=True, slots=True)
class Spoken:
    """A line of the corpus: its number, its symbols (places in SYMBOLS), its codes; both are empty where it is not said in one go.

    ``ends``: for each symbol the frame at which it ends; empty where nobody was asked yet, one 0 where it cannot be told. ``key`` names the text,
    ``samples`` the length of the sound it was read from. ``take`` k was read from k quarters of a frame on: half a
    frame later two codes in three are others, so that a sound is many sentences to learn from.
    """

    line: int
    symbols: list[int]
    codes: list[int]
    key: str = ""
    samples: int = 0
    ends: list[int] = field(default_factory=list)
    take: int = 0

    @property
    def timed(self) -> bool:
        return len(self.ends) == len(self.symbols)


class Clock(Protocol):
    """Tells when symbols are said (``timing.Timer``)."""

    def heard(self, text: str) -> tuple[list[str], list[str]]: ...

    def ends(self, spelled: Sequence[str], frames: int, rate: float, cut: float = 0.0) -> list[int]: ...


def read_corpus(
    texts: Path,
    sounds: Sounds | None,
    codec: NeuralCodec,
    kept: Path,
    about: Mapping[str, Any],
    say: Callable[[str], None],
    clock: Clock | None = None,
    espeak: range = range(0),
    takes: int = 1,
) -> list[Spoken]:
    """All lines that are in ``kept`` or have a sound, by line. What is not in ``kept`` yet, or has changed, is read and put there.

    ``about`` names the alphabet; a file of another one is a UsageError. ``clock`` times what has no timing; ``espeak`` are lines
    that were said as it has them. A sound is read in so many ``takes``.
    """
    try:
        lines = texts.read_text("utf-8").split("\n")
    except OSError as error:
        raise UsageError(f"{texts} cannot be read ({error.strerror}): give the file of sentences, one a line.") from error
    about = {**about, "symbols": list(SYMBOLS)}
    known = {(one.line, one.take): one for one in load(kept, about)} if kept.is_file() else {}
    places = {int(line): i for i, line in enumerate(sounds.lines)} if sounds is not None else {}
    sizes = np.diff(sounds.bounds) if sounds is not None else np.zeros(0, int)
    front = FrontEnd(MOST)
    wanted = known.keys() | {(line, take) for line in places for take in range(takes)}
    fresh = 0
    for line, take in sorted(wanted):
        said = lines[line] if line < len(lines) else ""
        key = hashlib.sha256(f"{line} {said}".encode()).hexdigest()[:16]
        one, place, cut = known.pop((line, take), None), places.get(line), take * codec.hop // TAKES
        found = one if one is not None and one.key == key and (place is None or one.samples == sizes[place]) else None
        if found is None and sounds is not None and place is not None:
            symbols, codes = _read(said, sounds.sound(place)[cut:], codec, front)
            found = Spoken(line, symbols, codes, key, int(sizes[place]), take=take)
        if found is not None and clock is not None and found.symbols and not found.ends:
            named = [SYMBOLS[i] for i in found.symbols]
            labels, spelled = clock.heard(said) if line in espeak else (named, [for_kokoro([symbol]) for symbol in named])
            ends = clock.ends(spelled, len(found.codes), codec.sample_rate / codec.hop, cut / codec.sample_rate) or [0]
            found = replace(found, symbols=[SYMBOLS.index(label) for label in labels], ends=ends)
        if found is not None:
            known[line, take] = found
        if found is not one:
            fresh += 1
            if fresh % 500 == 0:
                say(f"{fresh} lines read, of at most {len(wanted)}")
                save(kept, about, list(known.values()))
    if fresh:
        save(kept, about, list(known.values()))
    return sorted((one for one in known.values() if one.symbols), key=lambda one: (one.line, one.take))


def unspoken(texts: Path, corpus: Sequence[Spoken], count: int) -> list[list[str]]:
    """Symbols of up to ``count`` lines that are not in the corpus, from all over the file: what a drafter is to hear the model say. Those of the
    corpus where it has all lines.
    """
    lines, known, front, found = texts.read_text("utf-8").split("\n"), {one.line for one in corpus}, FrontEnd(MOST), list[list[str]]()
    fresh = [line for i, line in enumerate(lines) if i not in known and i not in HELD_OUT and line.strip()]
    for line in fresh[:: max(1, len(fresh) // count)][:count]:
        with suppress(AudioError):
            segments = front.segments(line)
            if len(segments) == 1:
                found.append(list(segments[0].symbols))
    return found or [[SYMBOLS[i] for i in one.symbols] for one in corpus if not one.take][:count]


def _read(said: str, sound: np.ndarray, codec: NeuralCodec, front: FrontEnd) -> tuple[list[int], list[int]]:
    """Symbols and codes, none where the text is not said in one go."""
    try:
        segments = front.segments(said)
    except AudioError:
        segments = []
    if len(segments) != 1:
        return [], []
    return [SYMBOLS.index(symbol) for symbol in segments[0].symbols], codec.encode(sound)[:, 0].tolist()


def save(path: Path, about: Mapping[str, Any], corpus: list[Spoken]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    corpus = sorted(corpus, key=lambda one: (one.line, one.take))
    arrays: dict[str, Any] = {"about": json.dumps(dict(about), sort_keys=True), "keys": [one.key for one in corpus]}
    arrays |= {
        name: np.array([getattr(one, field) for one in corpus]) for name, field in (("lines", "line"), ("samples", "samples"), ("takes", "take"))
    }
    for name in LISTS:
        found = [np.array(getattr(one, name), np.uint16) for one in corpus]
        if name == "ends":
            found = [np.diff(part, prepend=np.uint16(0)) for part in found]
        arrays |= {name: np.concatenate([*found, np.zeros(0, np.uint16)]), f"{name}_sizes": np.array([len(one) for one in found], np.int32)}
    with replacing(path) as draft, draft.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load(path: Path, about: Mapping[str, Any]) -> list[Spoken]:
    """Raises UsageError where the file is damaged or of another alphabet."""
    try:
        with np.load(path) as arrays:
            told = json.loads(str(arrays["about"]))
            lists = [[part.tolist() for part in np.split(arrays[name], np.cumsum(arrays[f"{name}_sizes"])[:-1])] for name in LISTS]
            lists[-1] = [np.cumsum(part, dtype=int).tolist() for part in lists[-1]]
            takes = arrays["takes"].tolist() if "takes" in arrays else [0] * len(arrays["lines"])
            rows = zip(arrays["lines"].tolist(), *lists, arrays["keys"].tolist(), arrays["samples"].tolist(), takes, strict=True)
            corpus = [Spoken(line, symbols, codes, key, samples, ends, take) for line, symbols, codes, ends, key, samples, take in rows]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} cannot be read ({error!s:.80}): remove it, and it is made again from the sounds.") from error
    if told != json.loads(json.dumps(dict(about))):
        raise UsageError(f"{path} holds the codes of another codec or front end: give another --spoken.")
    return corpus
