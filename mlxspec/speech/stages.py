"""The two stages of speech, each for a thread of its own: tokens drawn segment by segment, and frames turned to sound. Knows no voice and no player.

What passes between them, and out of them, are plain values: a segment begins, codes, a segment ends; a sentence begins, samples, what went wrong.
"""

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlxspec.audio.codes.codec import Codec, CodecStream
from mlxspec.audio.codes.layout import Layout
from mlxspec.audio.sound.joins import Joins
from mlxspec.audio.text.front_end import Segment
from mlxspec.core.events import Sentence
from mlxspec.core.sampling import mix
from mlxspec.core.stats import Stats
from mlxspec.speech.stats import LabelLog
from mlxspec.speech.utterance import Outcome, Piece, Speaking, utterance

SILENT = 1e-3  # a segment no louder than this came out silent
FAULTS = {
    "overrun": "never came to its end and was cut",
    "loop": "went round in circles and was cut",
    "empty": "came out empty",
    "silent": "came out silent",
}


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be drawn. ``expected`` is how many tokens each segment may take, about."""

    segments: Sequence[Segment]
    expected: Sequence[int]
    layout: Layout
    seed: int
    early: bool


@dataclass(frozen=True, slots=True)
class Begins:
    """A segment begins."""

    index: int


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with a segment, in words."""

    text: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """It was asked to end."""


def drawn(task: Task, speaking: Speaking, stats: list[Stats], log: LabelLog) -> Generator[Begins | np.ndarray | Outcome, None, None]:
    """The speech model's stage: of each segment that it begins, its codes as they become final, and how it ended."""
    with settled():
        for index, segment in enumerate(task.segments):
            yield Begins(index)
            prompt, text = task.layout.prompt(segment.symbols), task.layout.text(segment.symbols) if task.layout.phases else []
            with closing(utterance(speaking, prompt, text, task.expected[index], mix(task.seed, index), stats, task.early)) as pieces:
                outcome = yield from _frames(pieces, task.layout, log)
            yield outcome
            if outcome.interrupted:
                return


def sounded(
    line: Iterator[Begins | np.ndarray | Outcome], codec: Codec, task: Task
) -> Generator[Sentence | np.ndarray | Wrong | Interrupted, None, None]:
    """The codec's stage: samples, the sentences they belong to, and what is wrong with them."""
    joins = Joins(codec.sample_rate)
    stream: CodecStream = codec.stream()
    index, count = 0, len(task.segments)
    with settled():
        for item in line:
            if isinstance(item, Begins):
                index, stream = item.index, codec.stream()
                yield Sentence(task.segments[index].text, index, count)
                yield joins.begin()
            elif isinstance(item, Outcome):
                yield joins.push(stream.flush())
                yield joins.end()
                fault = item.fault or ("silent" if joins.loudest < SILENT and not item.interrupted else None)
                if fault is not None:
                    yield Wrong(f"{task.segments[index].text!r:.60} (sentence {index + 1} of {count}) {FAULTS[fault]}")
                if item.interrupted:
                    yield Interrupted()
            else:
                yield joins.push(stream.push(item))


def _frames(pieces: Generator[Piece, None, Outcome], layout: Layout, log: LabelLog) -> Generator[np.ndarray, None, Outcome]:
    """The codes of a segment's tokens as they become final, and how it ended."""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        if piece.step is not None and piece.step.note is not None:
            log.add(piece.step.note[: len(piece.step.tokens)])
        if piece.tokens:
            yield layout.frames(piece.tokens)


class Linked(threading.Event):
    """Set when it is, or when the user's own event is; ending a speech sets this one, and leaves the user's alone."""

    def __init__(self, theirs: threading.Event) -> None:
        super().__init__()
        self._theirs = theirs

    def is_set(self) -> bool:
        return super().is_set() or self._theirs.is_set()


@contextmanager
def settled() -> Iterator[None]:
    """Wait for what was started, so that nothing is under way when the voice is free again."""
    try:
        yield
    finally:
        mx.synchronize()
