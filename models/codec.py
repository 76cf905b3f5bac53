"""The network of a small neural codec: sound to one code a frame and back. Knows arrays and its own files; no playback, no engine, no training.

    encoder: log-mel frames, a convolution, ConvNeXt blocks, the nearest vector of a codebook
    decoder: the codebook's vector, a convolution, ConvNeXt blocks, a spectrum a frame (log-magnitude and direction), overlapping windows added up

A decoder layer sees ``right`` frames ahead and the rest of its kernel back, so that the whole decoder's look-ahead is a sum that is fixed before it
is trained. Everything runs over any leading batch axes, frames second to last.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from mlxspec.errors import AudioError
from mlxspec.paths import replacing

MODEL_TYPE = "mlxspec_codec"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
SMALLEST = 1e-5  # of a mel band, before the logarithm


@dataclass(frozen=True, slots=True)
class CodecArgs:
    """``hop`` samples are a frame. ``rights`` has, for the decoder's first convolution and each of its blocks, the frames it sees ahead."""

    sample_rate: int = 16000
    hop: int = 320
    codes: int = 1024
    code_size: int = 16
    mels: int = 80
    window: int = 1280  # samples the encoder sees of a frame, whole hops
    encoder_width: int = 192
    encoder_hidden: int = 512
    encoder_blocks: int = 4
    encoder_kernel: int = 5
    width: int = 256
    hidden: int = 768
    kernel: int = 7
    rights: tuple[int, ...] = (2, 1, 1, 1, 1, 0, 0, 0)
    model_type: str = MODEL_TYPE

    @property
    def synthesis(self) -> int:
        """Samples of a synthesis window: four frames."""
        return 4 * self.hop

    @property
    def look_ahead(self) -> int:
        """Frames that must be known beyond the last one whose sound is final: those of the layers, and two of overlapping windows."""
        return sum(self.rights) + 2


class Block(nn.Module):
    """x + the ConvNeXt branch: a depthwise convolution over frames, a norm, two linear layers."""

    def __init__(self, width: int, hidden: int, kernel: int, right: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernel, self.left, self.right = kernel, kernel - 1 - right, right
        self.depthwise = mx.random.normal((kernel, width)) / math.sqrt(kernel)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.scale = mx.full((width,), 0.2)

    def __call__(self, x: mx.array) -> mx.array:
        """Frames that already have ``left`` and ``right`` more around them: (..., n + kernel - 1, width) -> (..., n, width)."""
        count = x.shape[-2] - self.kernel + 1
        seen = self.depthwise[0] * x[..., :count, :]
        for tap in range(1, self.kernel):  # on the CPU far faster than a grouped convolution
            seen = seen + self.depthwise[tap] * x[..., tap : tap + count, :]
        branch = self.down(nn.relu(self.up(self.norm(seen))))
        return x[..., self.left : self.left + count, :] + self.scale * branch


class First(nn.Module):
    """The convolution a stack begins with."""

    def __init__(self, size: int, width: int, kernel: int, right: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernel, self.left, self.right = kernel, kernel - 1 - right, right
        self.conv = nn.Conv1d(size, width, kernel)

    def __call__(self, x: mx.array) -> mx.array:
        flat = x.reshape(-1, *x.shape[-2:])
        y = self.conv(flat)
        return y.reshape(*x.shape[:-2], *y.shape[-2:])


class Stack(nn.Module):
    """Layers over frames, each with the zeros it needs at both ends."""

    def __init__(self, size: int, width: int, hidden: int, kernel: int, rights: tuple[int, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers: list[Any] = [First(size, width, kernel, rights[0]), *(Block(width, hidden, kernel, right) for right in rights[1:])]

    def __call__(self, x: mx.array) -> mx.array:
        for layer in self.layers:
            x = layer(mx.pad(x, [(0, 0)] * (x.ndim - 2) + [(layer.left, layer.right), (0, 0)]))
        return x


class Encoder(nn.Module):
    """Log-mel frames (..., n, mels) -> vectors (..., n, code_size)."""

    def __init__(self, args: CodecArgs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        kernel = args.encoder_kernel
        rights = ((kernel - 1) // 2,) * (1 + args.encoder_blocks)
        self.stack = Stack(args.mels, args.encoder_width, args.encoder_hidden, kernel, rights)
        self.norm = nn.LayerNorm(args.encoder_width)
        self.out = nn.Linear(args.encoder_width, args.code_size)

    def __call__(self, mels: mx.array) -> mx.array:
        return self.out(self.norm(self.stack(mels)))


class Decoder(nn.Module):
    """Vectors (..., n, code_size) -> windowed pieces of sound (..., n, 4 hops), to be added up a hop apart."""

    def __init__(self, args: CodecArgs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bins = args.synthesis // 2 + 1
        self.stack = Stack(args.code_size, args.width, args.hidden, args.kernel, args.rights)
        self.norm = nn.LayerNorm(args.width)
        self.out = nn.Linear(args.width, 3 * self.bins)
        self._window = mx.array(_hann(args.synthesis) / 1.5)  # four such windows squared add up to 1.5

    def __call__(self, vectors: mx.array) -> mx.array:
        return self.pieces(self.stack(vectors))

    def pieces(self, x: mx.array) -> mx.array:
        """What the layers leave of each frame as a windowed piece of sound."""
        loud, a, b = mx.split(self.out(self.norm(x)), 3, axis=-1)
        size = mx.exp(mx.minimum(loud, 6.0)) * mx.rsqrt(a * a + b * b + 1e-8)
        return mx.fft.irfft(size * a + 1j * (size * b), axis=-1) * self._window


class Codec(nn.Module):
    """Encoder, codebook and decoder."""

    def __init__(self, args: CodecArgs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        _check(args)
        self.args = args
        self.encoder, self.decoder = Encoder(args), Decoder(args)
        self.codebook = mx.random.normal((args.codes, args.code_size))
        self._mel = mx.array(mel_matrix(args.sample_rate, args.window, args.mels))
        self._window = mx.array(_hann(args.window))

    def mels(self, sound: mx.array) -> mx.array:
        """Samples (..., m) -> log-mel frames (..., n, mels), n = m / hop rounded up; each window's middle is its frame's."""
        hop, window = self.args.hop, self.args.window
        count, spans = -(-sound.shape[-1] // hop), window // hop
        before = (window - hop) // 2
        sound = mx.pad(sound, [(0, 0)] * (sound.ndim - 1) + [(before, (count + spans - 1) * hop - before - sound.shape[-1])])
        hops = sound.reshape(*sound.shape[:-1], count + spans - 1, hop)
        frames = mx.concatenate([hops[..., i : i + count, :] for i in range(spans)], axis=-1)
        power = mx.fft.rfft(frames * self._window, axis=-1)
        spectrum = mx.sqrt(power.real**2 + power.imag**2 + 1e-12)  # unlike abs, this has a gradient at silence
        return mx.log(mx.maximum(spectrum @ self._mel, SMALLEST))

    def nearest(self, vectors: mx.array) -> mx.array:
        """The code of each vector, (...,) int32."""
        gaps = (self.codebook * self.codebook).sum(axis=-1) - 2 * vectors @ self.codebook.T
        return mx.argmin(gaps, axis=-1).astype(mx.int32)

    def encode(self, sound: mx.array) -> mx.array:
        """Samples (..., m) -> codes (..., n)."""
        return self.nearest(self.encoder(self.mels(sound)))

    def decode(self, codes: mx.array) -> mx.array:
        """Codes (..., n) -> samples (..., n hop)."""
        return add_up(self.decoder(self.codebook[codes]), self.args.hop)


def add_up(pieces: mx.array, hop: int) -> mx.array:
    """Pieces (..., n, 4 hop) laid a hop apart and added, the hop and a half that reach out at each end cut off: (..., n hop)."""
    return _laid(pieces, hop)[..., 3 * hop // 2 : 3 * hop // 2 + pieces.shape[-2] * hop]


def _laid(pieces: mx.array, hop: int) -> mx.array:
    """All of it, with what reaches out at the ends: (..., (n + 3) hop)."""
    quarters = pieces.reshape(*pieces.shape[:-1], 4, hop)
    ends = [(0, 0)] * (pieces.ndim - 2)
    sound = sum(mx.pad(quarters[..., i, :], [*ends, (i, 3 - i), (0, 0)]) for i in range(4))
    assert isinstance(sound, mx.array)
    return sound.reshape(*pieces.shape[:-2], (pieces.shape[-2] + 3) * hop)


class DecoderStream:
    """A decode in parts: ``push`` gives the sound that is final, ``flush`` the rest; together exactly the whole decode."""

    def __init__(self, codec: Codec) -> None:
        self.codec, self.args = codec, codec.args
        self._held: list[mx.array | None] = [None] * len(codec.decoder.stack.layers)  # frames each layer has not done with
        self._sum = mx.zeros((3 * self.args.hop,))  # windows begun and not ended
        self._cut = 3 * self.args.hop // 2  # samples before the first frame

    def push(self, codes: mx.array) -> mx.array:
        """Codes (n,) -> samples."""
        return self._give(self.codec.codebook[codes]) if codes.size else mx.zeros((0,))

    def flush(self) -> mx.array:
        """The sound of the last frames."""
        if self._held[0] is None:
            return mx.zeros((0,))
        sound = self._give(None)
        return mx.concatenate([sound, self._sum[self._cut : 3 * self.args.hop // 2]])

    def _give(self, x: mx.array | None) -> mx.array:
        """Frames through the layers; None ends them, each layer then seeing zeros beyond the end."""
        ending = x is None
        for i, layer in enumerate(self.codec.decoder.stack.layers):
            held = self._held[i]
            if held is None:
                if x is None:
                    continue
                held = mx.zeros((layer.left, x.shape[-1]))
            parts = [held, *([] if x is None else [x]), *([mx.zeros((layer.right, held.shape[-1]))] if ending and layer.right else [])]
            seen = mx.concatenate(parts)
            done = seen.shape[0] - layer.kernel + 1
            x = layer(seen) if done > 0 else None
            self._held[i] = seen[max(done, 0) :]
            if x is None and not ending:
                return mx.zeros((0,))
        return self._added(self.codec.decoder.pieces(x)) if x is not None else mx.zeros((0,))

    def _added(self, pieces: mx.array) -> mx.array:
        count, hop = pieces.shape[0], self.args.hop
        sound = _laid(pieces, hop)
        sound = mx.concatenate([sound[: 3 * hop] + self._sum, sound[3 * hop :]])
        final, self._sum = sound[: count * hop], sound[count * hop :]
        cut = min(self._cut, final.size)
        self._cut -= cut
        mx.eval(final, self._sum, [held for held in self._held if held is not None])
        return final[cut:]


def mel_matrix(sample_rate: int, window: int, mels: int) -> np.ndarray:
    """Triangles even on the mel scale, (bins, mels), each of area one band: what a spectrum is multiplied with."""

    def to_mel(hertz: np.ndarray) -> np.ndarray:
        return np.asarray(2595 * np.log10(1 + hertz / 700))

    bins = np.linspace(0, sample_rate / 2, window // 2 + 1)
    corners = 700 * (10 ** (np.linspace(0, to_mel(np.array(sample_rate / 2)), mels + 2) / 2595) - 1)
    rising = (bins[:, None] - corners[None, :-2]) / np.diff(corners)[:-1]
    falling = (corners[None, 2:] - bins[:, None]) / np.diff(corners)[1:]
    triangles = np.maximum(0, np.minimum(rising, falling))
    return np.asarray(triangles / np.maximum(triangles.sum(axis=0), 1e-8), np.float32)


def _hann(size: int) -> np.ndarray:
    return np.asarray(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size), np.float32)


# ---- Files -------------------------------------------------------------------------------------------------------------------------------


def save(folder: str | Path, codec: Codec, extra_config: Mapping[str, Any] | None = None, dtype: mx.Dtype = mx.float32) -> None:
    """Write a codec's folder; each file appears whole, or the old one stays."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.astype(dtype) for name, value in _tensors(codec).items()}
    config = json.dumps({**(extra_config or {}), **asdict(codec.args)}, indent=2) + "\n"
    with replacing(folder / WEIGHTS) as draft:
        mx.save_safetensors(str(draft), weights, metadata={"format": "mlx"})
    with replacing(folder / CONFIG) as draft:
        draft.write_text(config, "utf-8")


def load(folder: str | Path) -> Codec:
    """The codec of a folder, in float32, evaluated. Raises AudioError for whatever is missing, damaged or of another shape."""
    folder = Path(folder)
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
        known = {field.name: config[field.name] for field in fields(CodecArgs) if field.name in config}
        if config.get("model_type") != MODEL_TYPE:
            raise AudioError(f"{folder} holds {config.get('model_type')!r}, and a codec is {MODEL_TYPE!r}: give a codec's folder.")
        codec = Codec(CodecArgs(**{**known, "rights": tuple(known.get("rights", CodecArgs().rights))}))
        if not (folder / WEIGHTS).is_file():
            raise AudioError(f"There is no codec in {folder} (no {WEIGHTS}): fetch or train the voice again.")
        loaded: Any = mx.load(str(folder / WEIGHTS))
        mx.eval(loaded)
    except AudioError:
        raise
    except FileNotFoundError as error:
        raise AudioError(f"There is no codec in {folder} (no {Path(error.filename or CONFIG).name}): fetch or train the voice again.") from error
    except (OSError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise AudioError(f"The codec in {folder} is damaged ({reason}): fetch or train the voice again.") from error
    expected = {name: value.shape for name, value in _tensors(codec).items()}
    found = {name: value.shape for name, value in loaded.items()}
    wrong = sorted({name for name, _ in expected.items() ^ found.items()})
    if wrong:
        raise AudioError(f"The codec in {folder} has a wrong {wrong[0]} (one of {len(wrong)}): its {CONFIG} belongs to another one.")
    weights: list[tuple[str, mx.array]] = [(name, value.astype(mx.float32)) for name, value in loaded.items()]
    codec.load_weights(weights)
    mx.eval(_tensors(codec))
    return codec


def _tensors(network: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(network.parameters()))


def _check(args: CodecArgs) -> None:
    numbers = [getattr(args, field.name) for field in fields(args) if field.name not in ("rights", "model_type")]
    if any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in (*numbers, len(args.rights))):
        raise AudioError(f"A codec with {args} makes no sense: its sizes are whole numbers from 1.")
    if args.window % args.hop or args.hop % 2 or any(not 0 <= right < args.kernel for right in args.rights):
        raise AudioError(f"A codec with hop {args.hop}, window {args.window}, rights {args.rights} makes no sense: a window is whole, even hops.")
