"""Voices whose speech has a known law: a Markov chain over codes as the model, tones as the codec. And a folder as a trained voice would have it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from mlxspec.audio.codes.layout import Layout
from mlxspec.audio.text.phonemes import SYMBOLS
from mlxspec.drafters.cost import CostCurve
from mlxspec.loading.load import Loaded
from mlxspec.models.codec import Codec, CodecArgs, save
from mlxspec.settings.options import Options
from mlxspec.speech.voice import Voice
from mlxspec.speech.voice_folder import VoiceFiles, write_voice
from tests.sine_codec import SineCodec
from tests.tiny import MarkovModel, byte_tokenizer, config_of, tiny_model

CODES = 32
LAYOUT = Layout.of(SYMBOLS, CODES)
FILES = VoiceFiles("tiny", Path("/nowhere"), LAYOUT, 1.5)


def table(ends: float = 0.04, seed: int = 0, spread: float = 1.0) -> np.ndarray:
    """Logits (vocab, vocab): codes by a random law, and the end with about this probability, but never first. Text is likely, and barred."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (LAYOUT.vocab_size, LAYOUT.vocab_size))
    logits[:, LAYOUT.end] = np.log(ends * CODES * np.exp(spread**2 / 2)) if ends else -80
    logits[LAYOUT.start, LAYOUT.end] = -80
    logits[:, 0] = 9
    return logits


def going(*codes: int) -> np.ndarray:
    """A table that goes through these codes for ever."""
    logits = np.full((LAYOUT.vocab_size, LAYOUT.vocab_size), -30.0)
    logits[LAYOUT.start, LAYOUT.token(0, codes[0])] = 0
    for code, following in zip(codes, (*codes[1:], codes[0]), strict=True):
        logits[LAYOUT.token(0, code), LAYOUT.token(0, following)] = 0
    return logits


def naming(symbols: Sequence[str]) -> tuple[Layout, np.ndarray]:
    """A layout in which symbols are named, and the table of a model that says just this: every symbol and its one code, in order."""
    layout = Layout.of(SYMBOLS, CODES, CODES)
    text = layout.text(symbols)
    chain = [layout.start, *layout.speech(text, [layout.token(0, i) for i in range(len(text))], range(1, len(text) + 1)), layout.end]
    logits = np.full((layout.vocab_size, layout.vocab_size), -30.0)
    logits[chain[:-1], chain[1:]] = 0
    return layout, logits


def markov_voice(logits: np.ndarray | None = None, drafter: Any = "none", codec: Any = None, files: VoiceFiles = FILES, **defaults: Any) -> Voice:
    model = MarkovModel(table() if logits is None else logits)
    loaded = Loaded("tiny", model, byte_tokenizer(), {}, "memory", "tiny-digest", {"temperature": 1.0, **defaults})
    return Voice(files, loaded, codec or SineCodec(CODES), drafter, Options(model="tiny"), lambda _: None, CostCurve.flat())


def tiny_llama(seed: int = 0) -> nn.Module:
    return tiny_model("llama", seed, scale=1.0, vocab_size=LAYOUT.vocab_size)


def save_voice(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A tiny voice as a folder; ``changes`` go into voice.json."""
    write_voice(folder, VoiceFiles("tiny", folder, LAYOUT, 1.0, card={"minutes": 0}))
    if changes:
        path = folder / "voice.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    weights: Any = tree_flatten(tiny_llama(seed).parameters())
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights))
    (folder / "config.json").write_text(json.dumps({**config_of("llama", vocab_size=LAYOUT.vocab_size), "eos_token_id": LAYOUT.end}))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 1.0}))
    mx.random.seed(seed)
    args = CodecArgs(hop=32, codes=CODES, code_size=6, mels=12, window=96, encoder_width=12, encoder_hidden=16, encoder_blocks=2, width=16, hidden=24)
    save(folder / "codec", Codec(args))
    return folder
