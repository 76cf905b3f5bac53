"""The codec: frames in are samples out, a stream is the whole decode for any chunking, and a folder that is not whole is refused."""

import json
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxspec.audio.codes.codec import Codec, NeuralCodec
from mlxspec.errors import AudioError
from mlxspec.models import codec as network
from mlxspec.models.codec import CodecArgs, add_up, load, mel_matrix, save
from tests.sine_codec import SineCodec

TINY = CodecArgs(hop=32, codes=40, code_size=6, mels=12, window=96, encoder_width=12, encoder_hidden=16, encoder_blocks=2, width=16, hidden=24)
SHAPES = {
    "ours": TINY,
    "causal": replace(TINY, rights=(0, 0, 0)),
    "late": replace(TINY, rights=(0, 1, 0, 3), kernel=5),
    "24k": replace(TINY, sample_rate=24000, hop=48, window=192),
}


def tiny_codec(args: CodecArgs = TINY, seed: int = 0) -> NeuralCodec:
    mx.random.seed(seed)
    net = network.Codec(args)
    return NeuralCodec(net)


CODECS: dict[str, Codec] = {**{name: tiny_codec(args) for name, args in SHAPES.items()}, "sine": SineCodec(40)}


def frames(count: int, seed: int = 0, codes: int = 40) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, codes, (count, 1)).astype(np.int32)


def streamed(codec: Codec, codes: np.ndarray, chunks: list[int]) -> np.ndarray:
    stream, parts, at = codec.stream(), [], 0
    for size in chunks:
        parts.append(stream.push(codes[at : at + size]))
        at = min(at + size, len(codes))
        assert len(np.concatenate(parts)) >= (at - codec.look_ahead) * codec.hop  # no more is held back than was said
    assert at == len(codes)
    return np.concatenate([*parts, stream.flush()])


@pytest.mark.parametrize("name", CODECS)
def test_a_stream_is_the_whole_decode_for_every_chunk_size(name: str) -> None:
    codec, codes = CODECS[name], frames(67)
    whole = codec.decode(codes)
    assert len(whole) == 67 * codec.hop
    for size in range(1, 51):
        sound = streamed(codec, codes, [size] * -(-67 // size))
        assert len(sound) == len(whole) and np.abs(sound - whole).max() < 1e-4


@pytest.mark.parametrize("name", CODECS)
def test_a_stream_is_the_whole_decode_for_any_chunks_and_any_length(name: str) -> None:
    """Random chunks, empty ones among them; lengths below the look-ahead; one frame; none."""
    rng = np.random.default_rng(1)
    codec = CODECS[name]
    for count in (0, 1, 2, 3, 7, 8, 9, 40):
        codes = frames(count, count)
        chunks: list[int] = []
        while sum(chunks) < count:
            chunks.append(int(rng.integers(0, 6)))
        whole = codec.decode(codes)
        sound = streamed(codec, codes, chunks)
        assert len(sound) == len(whole) == count * codec.hop
        assert count == 0 or np.abs(sound - whole).max() < 1e-4


def test_joins_are_no_louder_than_the_sound_itself() -> None:
    """At the joins of a stream the step from sample to sample is that of the whole decode: no click, no repeated piece."""
    codec, codes = CODECS["ours"], frames(60)
    whole = codec.decode(codes)
    stream, parts = codec.stream(), []
    for i in range(0, 60, 7):
        parts.append(stream.push(codes[i : i + 7]))
    parts.append(stream.flush())
    at = np.cumsum([len(part) for part in parts])[:-1]
    sound = np.concatenate(parts)
    steps = np.abs(np.diff(sound))[[i - 1 for i in at if 0 < i < len(sound)]]
    assert np.allclose(steps, np.abs(np.diff(whole))[[i - 1 for i in at if 0 < i < len(sound)]], atol=1e-5)


def test_the_look_ahead_is_what_the_layers_see() -> None:
    """A later code changes nothing further back than the look-ahead, and something within it."""
    assert CodecArgs().look_ahead <= 8
    codec, codes = CODECS["ours"], frames(40)
    other = codes.copy()
    other[30] = (other[30] + 1) % 40
    changed = np.flatnonzero(np.abs(codec.decode(codes) - codec.decode(other)) > 1e-7)
    assert (30 - codec.look_ahead) * codec.hop <= changed[0] < 29 * codec.hop


def test_the_same_codes_give_the_same_samples_whatever_came_before() -> None:
    codec, codes = CODECS["ours"], frames(20)
    first = codec.decode(codes)
    mx.random.seed(99)
    mx.eval(mx.random.normal((7,)))
    codec.decode(frames(33, 5))
    assert np.array_equal(first, codec.decode(codes))
    before = mx.random.state[0].tolist()
    codec.decode(codes)
    assert mx.random.state[0].tolist() == before  # and no draw of anyone else's is used up


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 640, 1001])
def test_encoding_gives_a_frame_a_hop(length: int) -> None:
    sound = np.random.default_rng(2).normal(0, 0.1, length).astype(np.float32)
    codes = CODECS["ours"].encode(sound)
    assert codes.shape == (-(-length // 32), 1) and codes.dtype == np.int32
    assert codes.size == 0 or 0 <= codes.min() <= codes.max() < 40
    assert np.array_equal(codes, CODECS["ours"].encode(sound))


def test_an_encoder_frame_looks_at_the_middle_of_its_own_hop() -> None:
    """An impulse in frame 20 is loudest there."""
    sound = np.zeros(40 * 32, np.float32)
    sound[20 * 32 + 16] = 1
    net = tiny_codec().network
    assert int(mx.argmax(net.mels(mx.array(sound)).mean(axis=-1)).item()) == 20


def test_a_codec_can_be_trained_to_say_what_it_hears() -> None:
    """The signal path as a whole: with the right spectrum in every frame the sound comes back, edges aside."""
    hop = 32
    time = np.arange(40 * hop) / 16000
    sound = np.sin(2 * np.pi * 500 * time) + 0.3 * np.cos(2 * np.pi * 2100 * time)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(4 * hop) / (4 * hop))
    padded = np.pad(sound, (3 * hop // 2, 4 * hop))
    pieces = np.stack([padded[i * hop : i * hop + 4 * hop] for i in range(40)])
    back = np.array(add_up(mx.array(pieces * window * window / 1.5, mx.float32), hop))
    assert len(back) == len(sound) and np.abs(back - sound)[2 * hop : -2 * hop].max() < 1e-4


def test_mel_bands_cover_the_spectrum() -> None:
    bands = mel_matrix(16000, 1024, 80)
    assert bands.shape == (513, 80) and (bands >= 0).all() and np.allclose(bands.sum(axis=0), 1, atol=1e-5)
    assert (np.diff(bands.argmax(axis=0)) >= 0).all()


def test_the_network_learns() -> None:
    """A few steps on one sound bring its log-mel spectrum nearer: gradients reach every part of the decoder."""
    net = tiny_codec(replace(TINY, codes=16)).network
    codes = mx.array(frames(20, 3, 16)[:, 0])
    wanted = net.mels(mx.array(np.random.default_rng(4).normal(0, 0.1, 640).astype(np.float32)))

    def loss() -> mx.array:
        return mx.abs(net.mels(net.decode(codes)) - wanted).mean()

    value, gradient = nn.value_and_grad(net, loss)()
    assert all(mx.any(g != 0).item() for g in (gradient["decoder"]["out"]["weight"], gradient["decoder"]["stack"]["layers"][-1]["depthwise"]))
    net.update({"decoder": {"out": {"bias": net.decoder.out.bias - 0.1 * gradient["decoder"]["out"]["bias"]}}})
    assert loss().item() < value.item()


# ---- Files -------------------------------------------------------------------------------------------------------------------------------


def test_a_folder_there_and_back(tmp_path: Path) -> None:
    codec = tiny_codec()
    save(tmp_path / "codec", codec.network, {"trained": {"minutes": 3}})
    again = NeuralCodec.load(tmp_path / "codec")
    assert np.array_equal(codec.decode(frames(9)), again.decode(frames(9)))
    assert json.loads((tmp_path / "codec" / "config.json").read_text())["trained"] == {"minutes": 3}
    save(tmp_path / "half", codec.network, dtype=mx.float16)
    half = NeuralCodec.load(tmp_path / "half")
    assert np.abs(codec.decode(frames(9)) - half.decode(frames(9))).max() < 0.02
    assert (tmp_path / "half" / "model.safetensors").stat().st_size < 0.6 * (tmp_path / "codec" / "model.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("none", "no config.json"),
        ("no weights", "model.safetensors"),
        ("json", "is damaged"),
        ("cut", "is damaged"),
        ("shape", "belongs to another one"),
        ("kind", "a codec is 'mlxspec_codec'"),
        ("odd", "makes no sense"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(damage: str, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "codec"
    if damage != "none":
        save(folder, tiny_codec().network)
    config = folder / "config.json"
    if damage == "no weights":
        (folder / "model.safetensors").unlink()
    elif damage == "json":
        config.write_text("{")
    elif damage == "cut":
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    elif damage in ("shape", "kind", "odd"):
        name, value = {"shape": ("width", 8), "kind": ("model_type", "llama"), "odd": ("hop", 0)}[damage]
        config.write_text(json.dumps({**json.loads(config.read_text()), name: value}))
    with pytest.raises(AudioError, match=words) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_frames_that_are_none_of_the_codecs_are_refused() -> None:
    codec = CODECS["ours"]
    for wrong in (np.zeros((3, 2), int), np.array([[40]]), np.array([[-1]]), np.zeros(3, int)):
        with pytest.raises(AudioError, match="from 0 to 39"):
            codec.decode(wrong)
    with pytest.raises(AudioError, match="one channel"):
        codec.encode(np.zeros((2, 8), np.float32))
