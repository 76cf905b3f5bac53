"""A corpus as a speech model learns it: symbols and codes of each line. Kept in one small file, which is enough to train on without the sounds.

An hour of speech is 180,000 codes, some 300 kB; as Opus it is 20 MB and takes an hour or two of a core to make.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlxspec.audio.codec import NeuralCodec
from mlxspec.audio.errors import AudioError
from mlxspec.audio.files import replacing
from mlxspec.audio.layout import Layout
from mlxspec.audio.text import FrontEnd
from mlxspec.errors import UsageError
from mlxspec.recipes.sounds import Sounds


@dataclass(frozen=True, slots=True)
class Spoken:
    """A line of the corpus: its number, its symbols' ids, its codes' ids; both are empty where it is not said in one go.

    ``key`` names the text, ``samples`` the length of the sound it was read from.
    """

    line: int
    text: list[int]
    codes: list[int]
    key: str = ""
    samples: int = 0


def read_corpus(
    texts: Path, sounds: Sounds | None, codec: NeuralCodec, layout: Layout, kept: Path, about: Mapping[str, Any], say: Callable[[str], None]
) -> list[Spoken]:
    """All lines that are in ``kept`` or have a sound, by line. What is not in ``kept`` yet, or has changed, is read and put there.

    ``about`` names the alphabet; a file of another one is a UsageError.
    """
    try:
        lines = texts.read_text("utf-8").split("\n")
    except OSError as error:
        raise UsageError(f"{texts} cannot be read ({error.strerror}): give the file of sentences, one a line.") from error
    about = {**about, "layout": layout.to_json()}
    known = {one.line: one for one in load(kept, about)} if kept.is_file() else {}
    places = {int(line): i for i, line in enumerate(sounds.lines)} if sounds is not None else {}
    sizes = np.diff(sounds.bounds) if sounds is not None else np.zeros(0, int)
    front = FrontEnd()
    fresh = 0
    for line in sorted(known.keys() | places.keys()):
        said = lines[line] if line < len(lines) else ""
        key = hashlib.sha256(f"{line} {said}".encode()).hexdigest()[:16]
        before, place = known.pop(line, None), places.get(line)
        if before is not None and before.key == key and (place is None or before.samples == sizes[place]):
            known[line] = before
        elif sounds is not None and place is not None:
            known[line] = _read(line, said, key, sounds.sound(place), codec, layout, front)
            fresh += 1
            if fresh % 1000 == 0:
                say(f"{fresh} lines read, of at most {len(places)}")
    if fresh:
        save(kept, about, list(known.values()))
    return sorted((one for one in known.values() if one.text), key=lambda one: one.line)


def _read(line: int, said: str, key: str, sound: np.ndarray, codec: NeuralCodec, layout: Layout, front: FrontEnd) -> Spoken:
    try:
        segments = front.segments(said)
    except AudioError:
        segments = []
    if len(segments) != 1:
        return Spoken(line, [], [], key, len(sound))
    return Spoken(line, layout.prompt(segments[0].symbols)[:-1], layout.tokens(codec.encode(sound)), key, len(sound))


def save(path: Path, about: Mapping[str, Any], corpus: list[Spoken]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = {name: [np.array(getattr(one, name), np.uint16) for one in corpus] for name in ("text", "codes")}
    arrays: dict[str, Any] = {"about": json.dumps(dict(about), sort_keys=True), "keys": [one.key for one in corpus]}
    arrays |= {name: np.array([getattr(one, field) for one in corpus]) for name, field in (("lines", "line"), ("samples", "samples"))}
    for name, found in parts.items():
        arrays |= {name: np.concatenate([*found, np.zeros(0, np.uint16)]), f"{name}_sizes": np.array([len(one) for one in found], np.int32)}
    with replacing(path) as draft, draft.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load(path: Path, about: Mapping[str, Any]) -> list[Spoken]:
    """Raises UsageError where the file is damaged or of another alphabet."""
    try:
        with np.load(path) as arrays:
            told = json.loads(str(arrays["about"]))
            text, codes = (np.split(arrays[name], np.cumsum(arrays[f"{name}_sizes"])[:-1]) for name in ("text", "codes"))
            found = zip(arrays["lines"].tolist(), text, codes, arrays["keys"].tolist(), arrays["samples"].tolist(), strict=True)
            corpus = [Spoken(line, symbols.tolist(), frames.tolist(), key, samples) for line, symbols, frames, key, samples in found]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} cannot be read ({error!s:.80}): remove it, and it is made again from the sounds.") from error
    if told != json.loads(json.dumps(dict(about))):
        raise UsageError(f"{path} holds the codes of another codec or front end: give another --spoken.")
    return corpus
