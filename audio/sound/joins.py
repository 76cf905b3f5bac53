"""Segments of sound one after another: a soft edge at each end, a pause between. Knows samples only.

>>> joins = Joins(1000, pause=0.002, edge=0.001)
>>> [len(part) for part in (joins.begin(), joins.push(np.ones(5, np.float32)), joins.end(), joins.begin())]
[0, 4, 1, 2]
"""

import numpy as np

PAUSE, EDGE = 0.15, 0.005  # seconds


class Joins:
    """What is pushed comes out in order, the last samples of a segment only when it ends, so that they can fade. ``loudest`` is of the segment."""

    def __init__(self, sample_rate: int, pause: float = PAUSE, edge: float = EDGE) -> None:
        self._pause, self._edge = round(pause * sample_rate), max(round(edge * sample_rate), 1)
        self._segments = 0
        self._held = np.zeros(0, np.float32)
        self._out = 0  # samples of this segment that are out
        self.loudest = 0.0

    def begin(self) -> np.ndarray:
        """A segment begins: the pause before it, but for the first."""
        self._segments += 1
        self._out, self.loudest = 0, 0.0
        return np.zeros(self._pause if self._segments > 1 else 0, np.float32)

    def push(self, sound: np.ndarray) -> np.ndarray:
        sound = np.concatenate([self._held, sound])
        keep = min(self._edge, len(sound))
        ready, self._held = sound[: len(sound) - keep], sound[len(sound) - keep :]
        return self._faded_in(ready)

    def end(self) -> np.ndarray:
        rest, self._held = self._faded_in(self._held), np.zeros(0, np.float32)
        return rest * np.linspace(1, 0, len(rest), dtype=np.float32)

    def _faded_in(self, sound: np.ndarray) -> np.ndarray:
        places = np.arange(self._out, self._out + len(sound), dtype=np.float32)
        self._out += len(sound)
        if len(sound):
            self.loudest = max(self.loudest, float(np.abs(sound).max()))
        return np.asarray(sound * np.minimum(places / self._edge, 1), np.float32)
