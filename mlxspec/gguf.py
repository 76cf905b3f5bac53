"""GGUF files: header, weights and tokenizer of Llama models with byte-level BPE. Knows no hub and no cache.

``read_header`` looks before MLX does: it refuses by name what we do not read, and a truncated file, which MLX would map into memory.
MLX then gives each quantised tensor in its own affine form (groups of 32), which is kept packed or dequantised by the caller.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxspec.errors import ModelError

# ggml's numbers of tensor types; of those we read, the bytes in a block and the elements in a block
READ = {0: ("F32", 4, 1), 1: ("F16", 2, 1), 2: ("Q4_0", 18, 32), 3: ("Q4_1", 20, 32), 8: ("Q8_0", 34, 32)}
NOT_READ = {6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS"}
NOT_READ |= {18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64"}
NOT_READ |= {28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"}
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
REMEDY = "give a GGUF file in F16, Q8_0, Q4_0 or Q4_1, or an MLX folder"

# names in the file -> names in mlx-lm's llama, with (inputs, outputs) in terms of the sizes
LAYER = {
    "attn_q": ("self_attn.q_proj", ("hidden", "queries")),
    "attn_k": ("self_attn.k_proj", ("hidden", "keys")),
    "attn_v": ("self_attn.v_proj", ("hidden", "keys")),
    "attn_output": ("self_attn.o_proj", ("queries", "hidden")),
    "ffn_gate": ("mlp.gate_proj", ("hidden", "ffn")),
    "ffn_up": ("mlp.up_proj", ("hidden", "ffn")),
    "ffn_down": ("mlp.down_proj", ("ffn", "hidden")),
    "attn_norm": ("input_layernorm", ("hidden",)),
    "ffn_norm": ("post_attention_layernorm", ("hidden",)),
}
OUTER = {
    "token_embd": ("model.embed_tokens", ("hidden", "vocab")),
    "output_norm": ("model.norm", ("hidden",)),
    "output": ("lm_head", ("hidden", "vocab")),
}

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {"llama-bpe": f"{CONTRACTIONS}|{WORDS % '{1,3}'}", "qwen2": f"{CONTRACTIONS}|{WORDS % ''}"}
PRE_TOKENIZERS = ("gpt-2", "smollm", *SPLITS)
# control tokens that end a turn or a text in the families we read; a file names only one of them as its end
END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
CONTROL, USER_DEFINED = 3, 4


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as the header tells of it. ``shape`` is in ggml's order: inputs first."""

    kind: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Header:
    """All that stands before the weights."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the architecture's own keys, such as ``block_count``."""
        return self.metadata.get(f"llama.{key}", default)


def read_header(path: Path) -> Header:
    """Read and check the header; raise ModelError for anything that we or MLX could not load."""
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) < 24:
                raise ModelError(f"{path.name} is no GGUF file (too short): fetch it again.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(data, path.name).header()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): check its path and permissions.") from error


class _Reader:
    """A cursor over the header that never looks past the end of the file."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self.data, self.name, self.at = data, name, 0

    def broken(self, what: str) -> ModelError:
        return ModelError(f"{self.name} is damaged ({what}): fetch it again.")

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise self.broken("the file ends within its header")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        try:
            return self.take(self.number("<Q")).decode()
        except UnicodeDecodeError as error:
            raise self.broken("a text in its header is not UTF-8") from error

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind != ARRAY:
            raise self.broken(f"unknown value type {kind} in its header")
        inner, count = self.number("<I"), self.number("<Q")
        if inner == STRING:
            if count > len(self.data) // 8:
                raise self.broken(f"a list of {count} texts in its header")
            return [self.string() for _ in range(count)]
        if inner not in SCALARS:
            raise self.broken(f"a list of value type {inner} in its header")
        form = SCALARS[inner]
        return [value for (value,) in struct.iter_unpack(form, self.take(count * struct.calcsize(form)))]

    def header(self) -> Header:
        if (magic := self.take(4)) != b"GGUF":
            raise ModelError(f"{self.name} is no GGUF file (it starts with {magic!r}): fetch it again, or give another file.")
        version = self.number("<I")
        if version not in (2, 3):
            kind = "big-endian" if version in (2 << 24, 3 << 24) else f"version {version}"
            raise ModelError(f"{self.name} is a {kind} GGUF file: give a little-endian one of version 2 or 3.")
        tensors, values = self.number("<Q"), self.number("<Q")
        if tensors * 24 + values * 13 > len(self.data):
            raise self.broken(f"{tensors} tensors and {values} values announced in {len(self.data)} bytes")
        metadata: dict[str, Any] = {}
        for _ in range(values):
            key = self.string()
            metadata[key] = self.value(self.number("<I"))
        check_kind(metadata, self.name)
        found = dict(self.tensor() for _ in range(tensors))
        if len(found) != tensors:
            raise self.broken("two tensors of one name")
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            raise self.broken(f"alignment {alignment}")
        start = -(-self.at // alignment) * alignment
        for name, tensor in found.items():
            if tensor.offset % alignment:
                raise self.broken(f"tensor {name} is not aligned")
            if start + tensor.offset + tensor.size > len(self.data):
                raise self.broken(f"the file ends within tensor {name}")
        return Header(metadata, found)

    def tensor(self) -> tuple[str, Tensor]:
        name, dims = self.string(), self.number("<I")
        if not 1 <= dims <= 4:
            raise self.broken(f"tensor {name} has {dims} dimensions")
        shape = tuple(self.number("<Q") for _ in range(dims))
        kind, offset = self.number("<I"), self.number("<Q")
        if kind not in READ:
            raise ModelError(f"{self.name}: tensor {name} is of type {NOT_READ.get(kind, kind)}, which we do not read: {REMEDY}.")
        label, block_bytes, block = READ[kind]
        size = block_bytes
        for length in shape:
            size *= length
        if size == 0 or shape[0] % block:
            raise self.broken(f"tensor {name} has the shape {shape}")
        return name, Tensor(label, shape, offset, size // block)


def check_kind(metadata: dict[str, Any], name: str) -> None:
    """Refuse by name an architecture, a tokenizer or a rope scaling we do not read."""
    architecture, tokenizer = metadata.get("general.architecture"), metadata.get("tokenizer.ggml.model")
    if architecture != "llama":
        raise ModelError(f"{name} is of the architecture {architecture}, of GGUF files we read llama: give the model as an MLX folder or hub id.")
    if tokenizer != "gpt2":
        raise ModelError(f"{name} has a tokenizer of the kind {tokenizer}, of GGUF files we read gpt2 (byte-level BPE): give an MLX folder or hub id.")
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    if pre not in PRE_TOKENIZERS:
        raise ModelError(f"{name} splits text by {pre}, we know {', '.join(PRE_TOKENIZERS)}: give the model as an MLX folder or hub id.")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelError(f"{name} scales its positions by {scaling}, which we do not read in GGUF files: give the model as an MLX folder or hub id.")


def load(path: Path) -> tuple[Any, Any, dict[str, Any]]:
    """The model with its weights as they stand in the file (not yet evaluated), its tokenizer, and its config in mlx-lm's words."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models import llama

    header = read_header(path)
    config = config_of(header, path.name)
    arrays: dict[str, mx.array] = mx.load(str(path))  # type: ignore[assignment]
    model = llama.Model(llama.ModelArgs.from_dict(config))
    weights, bits = [], {}
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name in header.tensors:
        base = name.removesuffix(".weight")
        target = mlx_name(base)
        for part in ("weight", "scales", "biases"):
            if (array := arrays.get(f"{base}.{part}")) is None:
                continue
            if (count := heads.get(base.rsplit(".", 1)[-1])) is not None:  # llama.cpp interleaves the halves of each head: undo it, row by row
                array = array.reshape(count, array.shape[0] // count // 2, 2, -1).swapaxes(1, 2).reshape(array.shape)
            weights.append((f"{target}.{part}", array))
            if part == "scales":
                bits[target] = arrays[f"{base}.weight"].shape[1] // array.shape[1]  # 32 values of `bits` bits are `bits` words
    nn.quantize(model, class_predicate=lambda at, _: {"group_size": 32, "bits": bits[at]} if at in bits else False)
    model.load_weights(weights)
    return model, tokenizer_of(header, path.name), config


def mlx_name(base: str) -> str:
    """
    >>> mlx_name("blk.3.attn_q")
    'model.layers.3.self_attn.q_proj'
    """
    if base.startswith("blk."):
        _, layer, part = base.split(".")
        return f"model.layers.{layer}.{LAYER[part][0]}"
    return OUTER[base][0]


def config_of(header: Header, name: str) -> dict[str, Any]:
    """The config in the words of config.json."""
    hidden, heads = header.get("embedding_length"), header.get("attention.head_count")
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": header.get("block_count"),
        "intermediate_size": header.get("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.get("attention.head_count_kv", heads),
        "head_dim": header.get("attention.key_length", hidden // heads),
        "rms_norm_eps": header.get("attention.layer_norm_rms_epsilon"),
        "vocab_size": header.tensors["token_embd.weight"].shape[1],
        "rope_theta": header.get("rope.freq_base", 10000.0),
        "max_position_embeddings": header.get("context_length"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "eos_token_id": header.metadata.get("tokenizer.ggml.eos_token_id"),
    }


def tokenizer_of(header: Header, name: str) -> Any:
    """mlx-lm's tokenizer, built from the tokens, merges and chat template in the header."""
    from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    data = {key.removeprefix("tokenizer.ggml."): value for key, value in header.metadata.items() if key.startswith("tokenizer.")}
    tokens: list[str] = data["tokens"]
    kinds = data.get("token_type") or [1] * len(tokens)
    pre = data.get("pre", "gpt-2")
    merges = [tuple(merge.split(" ", 1)) for merge in data["merges"]]
    inner = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges, ignore_merges=pre == "llama-bpe"))
    if pre in SPLITS:
        split: list[Any] = [pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    else:
        split = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
        split.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    inner.pre_tokenizer = pre_tokenizers.Sequence(split)
    inner.decoder = decoders.ByteLevel()
    special = [(i, tokens[i], kind) for i, kind in enumerate(kinds) if kind in (CONTROL, USER_DEFINED)]
    inner.add_tokens([AddedToken(token, special=kind == CONTROL, normalized=False) for _, token, kind in special])
    named = {role: data.get(f"{key}_token_id") for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))}
    bos = named["bos"]
    if bos is not None and data.get("add_bos_token", pre == "llama-bpe"):
        inner.post_processor = processors.TemplateProcessing(single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        clean_up_tokenization_spaces=False,
        model_max_length=header.get("context_length"),
        **{f"{role}_token": tokens[i] for role, i in named.items() if i is not None},
    )
    fast.chat_template = header.metadata.get("tokenizer.chat_template")
    ends = {i for i, token, kind in special if kind == CONTROL and token in END_TOKENS}
    ends |= {data[key] for key in ("eos_token_id", "eot_token_id", "eom_token_id") if key in data}
    return TokenizerWrapper(fast, BPEStreamingDetokenizer, eos_token_ids=ends)
