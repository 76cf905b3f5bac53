"""A codec whose sound is known: each code is a tone in a smooth window that reaches into the next frame; the last one is cut short."""

import numpy as np


class SineCodec:
    """``codes`` tones, one or more slots: their tones are added."""

    def __init__(self, codes: int = 32, slots: int = 1, sample_rate: int = 8000, hop: int = 80) -> None:
        self.sample_rate, self.hop, self.codes, self.look_ahead = sample_rate, hop, (codes,) * slots, 0
        time = np.arange(2 * hop) / sample_rate
        window = np.sin(np.pi * np.arange(2 * hop) / (2 * hop)) ** 2
        self.tones = np.stack([0.5 / slots * window * np.sin(2 * np.pi * (200 + 50 * code) * time) for code in range(codes)]).astype(np.float32)

    def encode(self, sound: np.ndarray) -> np.ndarray:
        """The tone that fits each frame best."""
        count = -(-len(sound) // self.hop)
        padded = np.concatenate([sound, np.zeros((count + 1) * self.hop - len(sound), np.float32)])
        pieces = np.stack([padded[i * self.hop : (i + 2) * self.hop] for i in range(count)]) if count else np.zeros((0, 2 * self.hop))
        return np.argmax(pieces @ self.tones.T, axis=1)[:, None].astype(np.int32)

    def decode(self, frames: np.ndarray) -> np.ndarray:
        stream = self.stream()
        return np.concatenate([stream.push(frames), stream.flush()])

    def stream(self) -> "SineStream":
        return SineStream(self)

    def codebook(self, slot: int) -> np.ndarray:
        return self.tones


class SineStream:
    def __init__(self, codec: SineCodec) -> None:
        self.codec = codec
        self.tail = np.zeros(codec.hop, np.float32)

    def push(self, frames: np.ndarray) -> np.ndarray:
        hop = self.codec.hop
        sound = np.concatenate([self.tail, np.zeros(len(frames) * hop, np.float32)])
        for i, frame in enumerate(frames):
            for code in frame:
                sound[i * hop : (i + 2) * hop] += self.codec.tones[code]
        self.tail = sound[len(frames) * hop :]
        return sound[: len(frames) * hop]

    def flush(self) -> np.ndarray:
        return np.zeros(0, np.float32)
