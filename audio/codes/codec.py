"""What a codec is: sound to frames of codes and back, whole or in parts. Knows no speech model and no files of sound.

Sound is float32 between -1 and 1, one channel; frames are (n, slots) whole numbers. A frame is ``hop`` samples, exactly: n frames make n hop samples.
"""

from pathlib import Path
from typing import Protocol

import mlx.core as mx
import numpy as np

from mlxspec.errors import AudioError
from mlxspec.models import codec as network


class CodecStream(Protocol):
    """A decode in parts. All that ``push`` and ``flush`` give, in order, is the whole decode of all that was pushed."""

    def push(self, frames: np.ndarray) -> np.ndarray:
        """The sound that no later frame can change."""

    def flush(self) -> np.ndarray:
        """The rest; nothing may be pushed after it."""


class Codec(Protocol):
    """``codes`` says how many codes each slot has; ``look_ahead`` how many frames a stream holds back at most."""

    sample_rate: int
    hop: int
    codes: tuple[int, ...]
    look_ahead: int

    def encode(self, sound: np.ndarray) -> np.ndarray: ...

    def decode(self, frames: np.ndarray) -> np.ndarray: ...

    def stream(self) -> CodecStream: ...

    def codebook(self, slot: int) -> np.ndarray:
        """The vector of each code of a slot, (codes, size)."""


class NeuralCodec:
    """The small codec of our own: one code a frame. The same input gives the same output, bit for bit, whatever was drawn or decoded before."""

    def __init__(self, net: network.Codec) -> None:
        self.network = net
        self.sample_rate, self.hop = net.args.sample_rate, net.args.hop
        self.codes: tuple[int, ...] = (net.args.codes,)
        self.look_ahead = net.args.look_ahead

    @classmethod
    def load(cls, folder: str | Path) -> "NeuralCodec":
        return cls(network.load(folder))

    def encode(self, sound: np.ndarray) -> np.ndarray:
        sound = np.asarray(sound, np.float32)
        if sound.ndim != 1:
            raise AudioError(f"Sound of shape {sound.shape} was given to the codec: give one channel of samples.")
        return np.array(self.network.encode(mx.array(sound))).reshape(-1, 1) if len(sound) else np.zeros((0, 1), np.int32)

    def decode(self, frames: np.ndarray) -> np.ndarray:
        codes = self._codes(frames)
        return np.array(self.network.decode(codes)) if codes.size else np.zeros(0, np.float32)

    def stream(self) -> "NeuralStream":
        return NeuralStream(self)

    def codebook(self, slot: int) -> np.ndarray:
        return np.array(self.network.codebook)

    def _codes(self, frames: np.ndarray) -> mx.array:
        frames = np.asarray(frames)
        if frames.ndim != 2 or frames.shape[1] != 1 or (frames.size and not 0 <= frames.min() <= frames.max() < self.codes[0]):
            raise AudioError(f"Frames of shape {frames.shape} were given to a codec of one code a frame, from 0 to {self.codes[0] - 1}.")
        return mx.array(frames[:, 0].astype(np.int32))


class NeuralStream:
    """Twin of ``NeuralCodec.decode``."""

    def __init__(self, codec: NeuralCodec) -> None:
        self._codec = codec
        self._stream = network.DecoderStream(codec.network)

    def push(self, frames: np.ndarray) -> np.ndarray:
        return np.array(self._stream.push(self._codec._codes(frames)))

    def flush(self) -> np.ndarray:
        return np.array(self._stream.flush())
