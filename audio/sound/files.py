"""Sound to files and pipes, as it comes: WAV and FLAC (16 bits), Ogg Vorbis, raw samples. Knows no speech and no sound card.

A file appears under its name once it is whole; where nothing was written because something failed, none is left behind.
"""

import math
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from mlxspec.errors import AudioError
from mlxspec.extras import need

FORMATS = {".wav": ("WAV", "PCM_16"), ".flac": ("FLAC", "PCM_16"), ".ogg": ("OGG", "VORBIS")}
REACH = 24  # samples of the slower rate that resampling looks at, each way
UNKNOWN = 0x7FFFFFFF  # bytes to come, where a header cannot be gone back to


def check_path(path: str | Path, force: bool) -> Path:
    """The path of a file to write, before any work is done for it."""
    path = Path(os.path.expanduser(path))
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        said = f"{path.name} would be {suffix or 'of no known format'}"
        remedy = f"then convert it, as with ffmpeg -i {path.stem}.wav {path.name}" if suffix else "by its suffix"
        raise AudioError(f"{said}, and what can be written is .wav, .flac and .ogg: give one of these, {remedy}.")
    if path.is_dir():
        raise AudioError(f"{path} is a folder: give the name of a file.")
    if path.exists() and not force:
        raise AudioError(f"{path} exists: give another name, or --force to write over it.")
    folder = path.parent
    if not folder.is_dir():
        raise AudioError(f"There is no folder {folder} to write {path.name} in: make it, or give another.")
    if not os.access(folder, os.W_OK):
        raise AudioError(f"{folder} cannot be written: give another place.")
    return path


class SoundFile:
    """A file that is written in parts."""

    def __init__(self, path: str | Path, sample_rate: int) -> None:
        self.path = check_path(path, force=True)
        self.sample_rate = sample_rate
        self.samples = 0
        self._draft = self.path.with_name(f".{os.getpid()}.{self.path.name}")
        self._file: Any = None

    def __enter__(self) -> "SoundFile":
        soundfile = need("soundfile", "speech", "Writing a sound file")
        container, kind = FORMATS[self.path.suffix.lower()]
        try:
            self._file = soundfile.SoundFile(self._draft, "w", self.sample_rate, 1, kind, format=container)
        except (OSError, RuntimeError) as error:
            raise AudioError(f"{self.path} cannot be written ({_reason(error)}): give another place.") from error
        return self

    def write(self, samples: np.ndarray) -> None:
        try:
            self._file.write(clipped(samples))
        except (OSError, RuntimeError) as error:
            raise AudioError(f"{self.path} cannot be written ({_reason(error)}): make room, or give another place.") from error
        self.samples += len(samples)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._file.close()
            if kind is None or self.samples:
                os.replace(self._draft, self.path)
        except (OSError, RuntimeError) as fault:
            raise AudioError(f"{self.path} cannot be written ({_reason(fault)}): make room, or give another place.") from fault
        finally:
            self._draft.unlink(missing_ok=True)


class SoundPipe:
    """16-bit samples to a stream that only goes forward: with a WAV header that leaves the length open, or raw."""

    def __init__(self, out: BinaryIO, sample_rate: int, raw: bool) -> None:
        self._out = out
        self.samples = 0
        if not raw:
            out.write(wav_header(sample_rate))

    def write(self, samples: np.ndarray) -> None:
        self._out.write((clipped(samples) * 32767).round().astype("<i2").tobytes())
        self._out.flush()
        self.samples += len(samples)


def wav_header(sample_rate: int) -> bytes:
    """RIFF header of one channel of 16-bit samples, as many as may come."""
    head = struct.pack("<4sI4s", b"RIFF", UNKNOWN, b"WAVE")
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return head + form + struct.pack("<4sI", b"data", UNKNOWN - 36)


def read_sound(path: str | Path, sample_rate: int) -> np.ndarray:
    """A sound file as one channel at a sample rate; other rates are resampled by a windowed sinc."""
    soundfile = need("soundfile", "speech", "Reading a sound file")
    try:
        sound, rate = soundfile.read(str(path), dtype="float32", always_2d=True)
    except (OSError, RuntimeError) as error:
        raise AudioError(f"{path} cannot be read as sound ({_reason(error)}): give a .wav, .flac or .ogg file.") from error
    return resampled(sound.mean(axis=1), rate, sample_rate)


def resampled(sound: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Sound at another sample rate: a windowed sinc below the lower of the two Nyquist frequencies, one filter for each place between samples."""
    if rate == wanted or not len(sound):
        return np.asarray(sound, np.float32)
    common = math.gcd(rate, wanted)
    step, phases = rate // common, wanted // common
    cutoff = 0.97 * min(1.0, wanted / rate)
    span = math.ceil(REACH / cutoff)
    out = np.empty(round(len(sound) * wanted / rate), np.float32)
    padded = np.pad(np.asarray(sound, np.float32), (span, span + step + 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * span)
    for phase in range(phases):  # the outputs phase, phase + phases, ... lie at the same place between samples
        whole, part = divmod(phase * step, phases)
        distance = part / phases - np.arange(-span + 1, span + 1)
        weights = cutoff * np.sinc(cutoff * distance) * (0.5 + 0.5 * np.cos(np.pi * np.clip(distance / span, -1, 1)))
        count = len(out[phase::phases])
        out[phase::phases] = windows[whole + 1 :: step][:count] @ weights.astype(np.float32)
    return out


def clipped(samples: np.ndarray) -> np.ndarray:
    return np.clip(np.nan_to_num(np.asarray(samples, np.float32)), -1, 1)


def _reason(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error).splitlines()[0] if str(error) else type(error).__name__).rstrip(".")
