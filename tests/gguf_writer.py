"""Writes small GGUF files: ggml's quantisers in numpy, a byte-level vocabulary, and whole seeded Llama models. Knows nothing of our reader."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "Ġt he", "i n", "r e", "o n", "Ġ a", "Ġ Ġ", "e r", "l l", "1 2", "Ċ Ċ", "Ġ 1", "a n", "Ġa n")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SIZES = {"hidden": 64, "layers": 2, "ffn": 96, "heads": 4, "kv_heads": 2, "head_dim": 16, "context": 256}


def quantise(array: np.ndarray, kind: str) -> tuple[bytes, np.ndarray]:
    """The bytes of a tensor in ggml's form, and the values they stand for."""
    if kind in ("F32", "F16"):
        stored = array.astype(np.float32 if kind == "F32" else np.float16)
        return stored.tobytes(), stored.astype(np.float32)
    if kind not in ("Q4_0", "Q4_1", "Q8_0"):
        return bytes(array.size), array  # a kind that is to be refused: any bytes will do
    blocks = array.astype(np.float32).reshape(-1, 32)
    if kind == "Q4_1":
        low = blocks.min(1, keepdims=True).astype(np.float16)
        step = ((blocks.max(1, keepdims=True) - blocks.min(1, keepdims=True)) / 15).astype(np.float16)
        levels = np.clip(np.rint((blocks - low) / step), 0, 15).astype(np.uint8)
        heads, values = [step, low], levels * step.astype(np.float32) + low.astype(np.float32)
    elif kind == "Q4_0":
        largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
        step = (largest / -8).astype(np.float16)
        levels = np.clip(np.rint(blocks / step) + 8, 0, 15).astype(np.uint8)
        heads, values = [step], (levels - np.float32(8)) * step.astype(np.float32)
    else:
        step = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
        whole = np.clip(np.rint(blocks / step), -127, 127).astype(np.int8)
        packed = np.concatenate([step.view(np.uint8), whole.view(np.uint8)], 1)
        return packed.tobytes(), (whole * step.astype(np.float32)).reshape(array.shape)
    nibbles = levels[:, :16] | (levels[:, 16:] << 4)  # ggml packs element i with element i + 16
    return np.concatenate([*(head.view(np.uint8) for head in heads), nibbles], 1).tobytes(), values.reshape(array.shape).astype(np.float32)


def write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[np.ndarray, str]], version: int = 3) -> dict[str, np.ndarray]:
    """Write a GGUF file; give back the values its tensors stand for. ``tensors``: name -> (array, kind)."""
    infos, data, values = b"", b"", {}
    for name, (array, kind) in tensors.items():
        stored, values[name] = quantise(array, kind)
        infos += _text(name) + struct.pack("<I", array.ndim) + struct.pack(f"<{array.ndim}Q", *reversed(array.shape))
        infos += struct.pack("<IQ", KINDS[kind], len(data))
        data += stored + bytes(-len(stored) % 32)
    pairs = b"".join(_text(key) + _value(value) for key, value in metadata.items())
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)) + pairs + infos
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return values


def byte_letters() -> list[str]:
    """The letters byte-level BPE writes bytes in: printable ones as they are, the others from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(others))]


def vocabulary(pre: str | None = "smollm", merges: Iterable[str] = MERGES, **changes: Any) -> dict[str, Any]:
    """Metadata of a small byte-level tokenizer: three control tokens, 256 bytes, one token a merge. ``changes``: keys of tokenizer.ggml."""
    merges = list(merges)
    tokens = [*SPECIAL, *byte_letters(), *(merge.replace(" ", "") for merge in merges)]
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)),
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": 2,
        "add_bos_token": False,
    } | changes
    found = {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
    return {**found, "tokenizer.chat_template": TEMPLATE}


@dataclass(frozen=True, slots=True)
class Llama:
    """A small Llama before it is written: metadata, tensors under GGUF names, and its weights under mlx-lm's."""

    metadata: dict[str, Any]
    tensors: dict[str, tuple[np.ndarray, str]]
    config: dict[str, Any]

    def write(self, path: Path, version: int = 3) -> dict[str, np.ndarray]:
        """Write the file; give back what its weights stand for, under mlx-lm's names and in its order of rows."""
        values, weights = write(path, self.metadata, self.tensors, version), {}
        for name, array in values.items():
            if name == "rope_freqs.weight":
                continue
            base = name.removesuffix(".weight")
            part = base.rpartition(".")[2]
            if part in ("attn_q", "attn_k"):
                array = _interleaved(array, SIZES["heads" if part == "attn_q" else "kv_heads"], back=True)
            weights[mlx_name(base)] = array
        return weights


def llama(kind: str = "F32", *, tied: bool = True, seed: int = 0, tokenizer: Mapping[str, Any] | None = None, **changes: Any) -> Llama:
    """A seeded Llama. ``kind``: of its matrices. ``changes``: keys of llama, with "_" for "." and "__" for "_"."""
    rng, size = np.random.default_rng(seed), SIZES
    words = dict(tokenizer or vocabulary())
    vocab = len(words["tokenizer.ggml.tokens"])
    queries, keys = size["heads"] * size["head_dim"], size["kv_heads"] * size["head_dim"]

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.normal(0, 1, (rows, columns)) * 2 / columns**0.5).astype(np.float32)

    tensors: dict[str, tuple[np.ndarray, str]] = {"token_embd.weight": (matrix(vocab, size["hidden"]), kind)}
    for layer in range(size["layers"]):
        parts = {
            "attn_q": _interleaved(matrix(queries, size["hidden"]), size["heads"]),
            "attn_k": _interleaved(matrix(keys, size["hidden"]), size["kv_heads"]),
            "attn_v": matrix(keys, size["hidden"]),
            "attn_output": matrix(size["hidden"], queries),
            "ffn_gate": matrix(size["ffn"], size["hidden"]),
            "ffn_up": matrix(size["ffn"], size["hidden"]),
            "ffn_down": matrix(size["hidden"], size["ffn"]),
        }
        tensors |= {f"blk.{layer}.{name}.weight": (array, kind) for name, array in parts.items()}
        norms = {f"blk.{layer}.{name}.weight" for name in ("attn_norm", "ffn_norm")}
        tensors |= {name: (rng.uniform(0.5, 1.5, size["hidden"]).astype(np.float32), "F32") for name in sorted(norms)}
    tensors["output_norm.weight"] = (rng.uniform(0.5, 1.5, size["hidden"]).astype(np.float32), "F32")
    if not tied:
        tensors["output.weight"] = (matrix(vocab, size["hidden"]), kind)
    keys_of_llama = {
        "block_count": size["layers"],
        "context_length": size["context"],
        "embedding_length": size["hidden"],
        "feed_forward_length": size["ffn"],
        "attention.head_count": size["heads"],
        "attention.head_count_kv": size["kv_heads"],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 5000.0,
        "rope.dimension_count": size["head_dim"],
        "vocab_size": vocab,
    } | {key.replace("__", "/").replace("_", ".").replace("/", "_"): value for key, value in changes.items()}
    metadata = {"general.architecture": "llama", "general.name": "tiny"}
    metadata |= {f"llama.{key}": value for key, value in keys_of_llama.items() if value is not None} | words
    config = {
        "model_type": "llama",
        "hidden_size": size["hidden"],
        "num_hidden_layers": size["layers"],
        "intermediate_size": size["ffn"],
        "num_attention_heads": size["heads"],
        "num_key_value_heads": size["kv_heads"],
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab,
        "rope_theta": 5000.0,
        "max_position_embeddings": size["context"],
        "tie_word_embeddings": tied,
    }
    return Llama(metadata, tensors, config)


def mlx_name(base: str) -> str:
    """A tensor's name in mlx-lm's llama."""
    parts = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj"}
    parts |= {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    parts |= {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    outer = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    if base in outer:
        return f"{outer[base]}.weight"
    _, layer, part = base.split(".")
    return f"model.layers.{layer}.{parts[part]}.weight"


def _interleaved(array: np.ndarray, heads: int, back: bool = False) -> np.ndarray:
    """llama.cpp's order of the rows of q and k: within a head, first and second half alternate. ``back`` undoes it."""
    rows, columns = array.shape
    inner = (rows // heads // 2, 2) if back else (2, rows // heads // 2)
    return np.ascontiguousarray(array.reshape(heads, *inner, columns).swapaxes(1, 2).reshape(rows, columns))


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    """A value with its type. A list has the type of its first element."""
    kind, body = _scalar(value[0] if isinstance(value, list) else value)
    if not isinstance(value, list):
        return struct.pack("<I", kind) + body
    return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(_scalar(item)[1] for item in value)


def _scalar(value: Any) -> tuple[int, bytes]:
    if isinstance(value, str):
        return 8, _text(value)
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    return 5, struct.pack("<i", value)
