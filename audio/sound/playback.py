"""Sound to the loudspeaker, as it comes. Knows samples and the sound card; nothing is imported before it is asked to play.

Sound starts with the first samples. What is written waits in a buffer of some seconds, and a writer that is ahead of it waits too, until an event
says that nobody listens any more.
"""

import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mlxspec.audio.sound.files import SoundFile, clipped
from mlxspec.errors import AudioError, MlxspecError
from mlxspec.extras import need

AHEAD = 5.0  # seconds of sound that may wait
LOOK = 0.05  # seconds between looks at whether to end


class Player(Protocol):
    """``underruns`` counts the times that sound ran out before the end."""

    underruns: int

    @property
    def ahead(self) -> float:
        """Seconds of sound that wait to be heard."""

    def write(self, samples: np.ndarray) -> None: ...

    def finish(self) -> None:
        """Wait until all has been heard, or nobody listens."""

    def stop(self) -> None:
        """Silence at once."""


def open_player(sample_rate: int, cancel: threading.Event) -> Player:
    """The sound card, on macOS else afplay; ``cancel`` is silence and ends all waiting.

    Raises MlxspecError that names the remedy where nothing can play.
    """
    try:
        return CardPlayer(sample_rate, cancel)
    except MlxspecError:
        if sys.platform == "darwin" and shutil.which("afplay"):
            return AfplayPlayer(sample_rate, cancel)
        raise


class CardPlayer:
    """Through PortAudio. Its thread asks for samples; there they are, or there is silence and an underrun is counted."""

    def __init__(self, sample_rate: int, cancel: threading.Event, device: Any = None) -> None:
        sounddevice = device or _sounddevice()
        self._cancel = cancel
        self._buffer: deque[np.ndarray] = deque()
        self._waiting = 0  # samples in the buffer
        self._sample_rate = sample_rate
        self._most = round(AHEAD * sample_rate)
        self._changed = threading.Condition()
        self._ended = self._starved = False
        self.underruns = 0
        try:
            self._stream = sounddevice.OutputStream(samplerate=sample_rate, channels=1, dtype="float32", callback=self._asked)
            self._stream.start()
        except Exception as error:  # PortAudioError, and what drivers raise
            raise AudioError(f"No sound device can play ({str(error).splitlines()[0]:.80}): write a file (mlxspec speak -o out.wav).") from error

    @property
    def ahead(self) -> float:
        return self._waiting / self._sample_rate

    def write(self, samples: np.ndarray) -> None:
        with self._changed:
            while self._waiting >= self._most and not (self._ended or self._cancel.is_set()):
                self._changed.wait(LOOK)  # a card that stalls tells nobody
            if not self._ended:
                self._buffer.append(clipped(samples))
                self._waiting += len(samples)

    def finish(self) -> None:
        with self._changed:
            self._ended = True
            while self._waiting and not self._cancel.is_set():
                self._changed.wait(LOOK)
        if self._cancel.is_set():
            self.stop()
            return
        self._stream.stop()  # plays what the card has been given
        self._stream.close()

    def stop(self) -> None:
        with self._changed:
            self._ended = True
            self._buffer.clear()
            self._waiting = 0
            self._changed.notify_all()
        self._stream.abort()
        self._stream.close()

    def _asked(self, out: np.ndarray, count: int, time: Any, status: Any) -> None:
        with self._changed:
            filled = 0
            while filled < count and self._buffer:
                part = self._buffer.popleft()
                taken = part[: count - filled]
                out[filled : filled + len(taken), 0] = taken
                filled += len(taken)
                if len(taken) < len(part):
                    self._buffer.appendleft(part[len(taken) :])
            out[filled:] = 0
            starving = filled < count and not self._ended and (filled > 0 or self._starved)
            self.underruns += starving and not self._starved
            self._starved = starving
            self._waiting -= filled
            self._changed.notify_all()


class AfplayPlayer:
    """macOS without PortAudio: all of it once it is there, through a file."""

    underruns = 0

    def __init__(self, sample_rate: int, cancel: threading.Event) -> None:
        self._sample_rate, self._cancel = sample_rate, cancel
        self._parts: list[np.ndarray] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def ahead(self) -> float:
        return sum(map(len, self._parts)) / self._sample_rate

    def write(self, samples: np.ndarray) -> None:
        self._parts.append(samples)

    def finish(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "speech.wav"
            with SoundFile(path, self._sample_rate) as file:
                for part in self._parts:
                    file.write(part)
            self._process = subprocess.Popen(["afplay", str(path)])
            while self._process.poll() is None and not self._cancel.wait(LOOK):
                pass
            self.stop()

    def stop(self) -> None:
        self._parts.clear()
        if self._process is not None:
            self._process.terminate()


def _sounddevice() -> Any:
    try:
        return need("sounddevice", "play", "Playing", ", or write a file (mlxspec speak -o out.wav)")
    except OSError as error:  # the package is there and the library it wraps is not
        raise AudioError(
            "Playing needs PortAudio, which is not installed: apt-get install libportaudio2, or write a file (mlxspec speak -o out.wav)."
        ) from error
