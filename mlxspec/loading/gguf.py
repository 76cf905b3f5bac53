"""GGUF files: header, weights and tokenizer of Llama models with byte-level BPE. Knows no hub and no cache.

``read_header`` looks before MLX does: it refuses by name what we do not read, and a truncated file, which MLX would map into memory.
MLX then gives each quantised tensor in its own affine form (groups of 32), which is kept packed or dequantised by the caller.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from mlxspec.errors import ModelError
from mlxspec.loading.ends import end_tokens

# ggml's numbers of tensor types: those we read with the bytes and the elements of a block, and the names of the others
READ = {0: ("F32", 4, 1), 1: ("F16", 2, 1), 2: ("Q4_0", 18, 32), 3: ("Q4_1", 20, 32), 8: ("Q8_0", 34, 32)}
NOT_READ = dict(zip((6, 7, 9, 10, 11, 12, 13, 14, 15), ("Q5_0", "Q5_1", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"), strict=True))
NOT_READ |= {16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M"}
NOT_READ |= {24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"}
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
OTHER_TYPE = "give a GGUF file in F16, Q8_0, Q4_0 or Q4_1, or the model as an MLX folder or hub id"
OTHER_FORM = "give the model as an MLX folder or hub id"

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

# keys that change what the network computes, with the values at which they do not
PLAIN = {"rope.scaling.type": ("none",), "rope.scaling.factor": (0, 1), "rope.scaling.attn_factor": (0, 1), "rope.scale_linear": (0, 1)}
PLAIN |= {"expert_count": (0,), "attention.sliding_window": (0,), "attention.scale": (0,), "attention.clamp_kqv": (0,), "attention.causal": (True,)}
PLAIN |= {
    "attention.max_alibi_bias": (0,),
    "use_parallel_residual": (False,),
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
}

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {"llama-bpe": f"{CONTRACTIONS}|{WORDS % '{1,3}'}", "qwen2": f"{CONTRACTIONS}|{WORDS % ''}"}
PRE_TOKENIZERS = ("gpt-2", "smollm", *SPLITS)  # as llama.cpp names them; a file that names none has GPT-2's
CONTROL, USER_DEFINED = 3, 4  # token types
ROLE_KEYS = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}


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
            raise ModelError(f"{self.name} is no GGUF file (it starts with {magic!r}): give a .gguf file, or the folder of an MLX model.")
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
            raise ModelError(f"{self.name}: tensor {name} is of type {NOT_READ.get(kind, kind)}, which we do not read: {OTHER_TYPE}.")
        label, block_bytes, block = READ[kind]
        size = block_bytes
        for length in shape:
            size *= length
        if size == 0 or shape[0] % block:
            raise self.broken(f"tensor {name} has the shape {shape}")
        return name, Tensor(label, shape, offset, size // block)


def check_kind(metadata: dict[str, Any], name: str) -> None:
    """Refuse by name an architecture, a tokenizer or a computation we do not read."""
    architecture, tokenizer = metadata.get("general.architecture"), metadata.get("tokenizer.ggml.model")
    if architecture != "llama":
        raise ModelError(f"{name} has the architecture {architecture}, of GGUF files we read llama: {OTHER_FORM}.")
    if tokenizer != "gpt2":
        raise ModelError(f"{name} has a tokenizer of the kind {tokenizer}, of GGUF files we read gpt2 (byte-level BPE): {OTHER_FORM}.")
    if (pre := metadata.get("tokenizer.ggml.pre", "gpt-2")) not in PRE_TOKENIZERS:
        raise ModelError(f"{name} splits text the way {pre} does, of GGUF files we read {', '.join(PRE_TOKENIZERS)}: {OTHER_FORM}.")
    if (parts := metadata.get("split.count", 0)) not in (0, 1):
        raise ModelError(f"{name} is one of {parts} parts: merge them with llama-gguf-split --merge, or {OTHER_FORM}.")
    for key, plain in PLAIN.items():
        if (value := metadata.get(f"llama.{key}", plain[0])) not in plain:
            raise ModelError(f"{name} sets llama.{key} to {value}, which we do not read in GGUF files: {OTHER_FORM}.")


def load(path: Path) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """The model as it stands in the file (not yet evaluated), its tokenizer, its config in mlx-lm's words, and its sampling defaults."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models import llama
    from mlx_lm.models.rope_utils import Llama3RoPE

    header = read_header(path)
    config = config_of(header, path.name)
    names = weight_names(header, config, path.name)
    tokenizer = tokenizer_of(header, path.name)
    try:
        arrays: dict[str, mx.array] = mx.load(str(path), format="gguf")  # type: ignore[assignment]
    except RuntimeError as error:
        raise ModelError(f"{path.name} cannot be read ({error}): fetch it again.") from error
    model = llama.Model(llama.ModelArgs.from_dict(config))
    weights, bits = [], {}
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for base, target in names.items():
        for part in ("weight", "scales", "biases"):
            if (array := arrays.get(f"{base}.{part}")) is None:
                continue
            if (count := heads.get(base.rpartition(".")[2])) is not None:  # llama.cpp interleaves the halves of each head: undo it, row by row
                array = array.reshape(count, array.shape[0] // count // 2, 2, -1).swapaxes(1, 2).reshape(array.shape)
            weights.append((f"{target}.{part}", array))
            if part == "scales":
                bits[target] = arrays[f"{base}.weight"].shape[1] // array.shape[1]  # 32 values of n bits are n words
    nn.quantize(model, class_predicate=lambda at, _: {"group_size": 32, "bits": bits[at]} if at in bits else False)
    model.load_weights(weights)
    if (factors := arrays.get("rope_freqs.weight")) is not None:  # Llama 3: each wavelength has a factor of its own
        dims = config["head_dim"]
        for layer in model.layers:
            layer.self_attn.rope = Llama3RoPE(dims, scaling_config={"factor": 1.0})
            layer.self_attn.rope._freqs = config["rope_theta"] ** (mx.arange(0, dims, 2) / dims) * factors.astype(mx.float32)
    sampling = {"temperature": "temp", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "repetition_penalty": "penalty_repeat"}
    found = {ours: header.metadata.get(f"general.sampling.{theirs}") for ours, theirs in sampling.items()}
    return model, tokenizer, config, {key: round(value, 6) if isinstance(value, float) else value for key, value in found.items()}


def config_of(header: Header, name: str) -> dict[str, Any]:
    """The config in the words of config.json."""

    def count(key: str, default: int | None = None) -> int:
        value = header.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
            raise ModelError(f"{name} has {value} as llama.{key}: fetch it again, or {OTHER_FORM}.")
        return value

    hidden, heads = count("embedding_length"), count("attention.head_count")
    kv_heads, head_dim = count("attention.head_count_kv", heads), count("attention.key_length", hidden // heads)
    if (
        heads % kv_heads
        or count("attention.value_length", head_dim) != head_dim
        or count("rope.dimension_count", head_dim) != head_dim
        or head_dim % 2
    ):
        raise ModelError(f"{name} has {heads} heads, {kv_heads} for keys, and rows of unequal width, which we do not read: {OTHER_FORM}.")
    epsilon, base = header.get("attention.layer_norm_rms_epsilon"), header.get("rope.freq_base", 10000.0)
    if not (isinstance(epsilon, float) and 0 < epsilon < 1 and isinstance(base, float) and 1 < base < 1e12):
        raise ModelError(f"{name} has the norm epsilon {epsilon} and the rope base {base}: fetch it again.")
    embedding = header.tensors.get("token_embd.weight")
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": count("block_count"),
        "intermediate_size": count("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": epsilon,
        "vocab_size": embedding.shape[-1] if embedding else 0,
        "rope_theta": base,
        "max_position_embeddings": count("context_length"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "torch_dtype": "float32" if embedding and embedding.kind == "F32" else "float16",
    }


def weight_names(header: Header, config: dict[str, Any], name: str) -> dict[str, str]:
    """Each tensor's name in the file and in mlx-lm's model, after a look at all shapes."""
    heads, kv_heads, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    sizes = {"hidden": config["hidden_size"], "ffn": config["intermediate_size"], "vocab": config["vocab_size"]}
    sizes |= {"queries": heads * width, "keys": kv_heads * width}
    layers = config["num_hidden_layers"]
    if layers > len(header.tensors):
        raise ModelError(f"{name} is damaged ({layers} layers announced, {len(header.tensors)} tensors there): fetch it again.")
    wanted = {base: entry for base, entry in OUTER.items() if base != "output" or not config["tie_word_embeddings"]}
    wanted |= {f"blk.{i}.{base}": (f"model.layers.{i}.{at}", shape) for i in range(layers) for base, (at, shape) in LAYER.items()}
    for base, (_, shape) in wanted.items():
        right = tuple(sizes[size] for size in shape)
        if (tensor := header.tensors.get(f"{base}.weight")) is None:
            raise ModelError(f"{name} is damaged (no tensor {base}.weight): fetch it again.")
        if tensor.shape != right or (len(right) == 1 and tensor.kind not in ("F32", "F16")):
            raise ModelError(f"{name} is damaged (tensor {base}.weight has the shape {tensor.shape} in {tensor.kind}, not {right}): fetch it again.")
    factors = header.tensors.get("rope_freqs.weight")
    if factors and (factors.kind, factors.shape) != ("F32", (width // 2,)):
        raise ModelError(f"{name} is damaged (tensor rope_freqs.weight has the shape {factors.shape}): fetch it again.")
    for tensor_name in header.tensors:
        if tensor_name.removesuffix(".weight") not in wanted and tensor_name != "rope_freqs.weight":
            raise ModelError(f"{name} has a tensor {tensor_name}, which we do not know in a Llama model: {OTHER_FORM}.")
    return {base: at for base, (at, _) in wanted.items()}


def tokenizer_of(header: Header, name: str) -> Any:
    """mlx-lm's tokenizer, built from the tokens, merges and chat template in the header."""
    from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    data = {key.removeprefix("tokenizer.ggml."): value for key, value in header.metadata.items()}
    check_tokens(data, header, name)
    tokens: list[str] = data["tokens"]
    kinds: list[int] = data.get("token_type") or [1] * len(tokens)
    pre = data.get("pre", "gpt-2")
    ids = {role: data[key] for role in ("bos", "eos", "unk", "pad") if (key := ROLE_KEYS[role]) in data}
    ends = [data[key] for key in ("eos_token_id", "eot_token_id", "eom_token_id") if key in data]
    if wrong := [i for i in [*ids.values(), *ends] if not isinstance(i, int) or not 0 <= i < len(tokens)]:
        raise ModelError(f"{name} is damaged (special token {wrong[0]} of {len(tokens)}): fetch it again.")
    vocab = {token: i for i, token in enumerate(tokens)}
    try:
        inner = Tokenizer(models.BPE(vocab, [tuple(merge.split(" ", 1)) for merge in data["merges"]], ignore_merges=pre == "llama-bpe"))
    except Exception as error:  # the library raises Exception itself where a merge names no token
        raise ModelError(f"{name} is damaged (its merges: {error}): fetch it again.") from error
    if pre == "qwen2":
        inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = pre_tokenizer(pre)
    inner.decoder = decoders.ByteLevel()
    special = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind in (CONTROL, USER_DEFINED)]
    inner.add_tokens([AddedToken(token, special=kind == CONTROL, normalized=False) for token, kind in special])
    if "bos" in ids and data.get("add_bos_token", pre == "llama-bpe"):
        bos = tokens[ids["bos"]]
        inner.post_processor = processors.TemplateProcessing(single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, ids["bos"])])
    named: dict[str, Any] = {f"{role}_token": tokens[i] for role, i in ids.items()}
    context = header.get("context_length")
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False, model_max_length=context, **named)
    template = header.metadata.get("tokenizer.chat_template")
    fast.chat_template = template if isinstance(template, str) and template.strip() else None
    return TokenizerWrapper(fast, BPEStreamingDetokenizer, eos_token_ids=end_tokens(fast, ends))  # a file names only some of them


def pre_tokenizer(pre: str) -> Any:
    """How text is cut into words before the merges, byte for byte as llama.cpp does it under this name."""
    from tokenizers import Regex, pre_tokenizers

    if pre in SPLITS:
        cut = pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated")
        return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    digits = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    return pre_tokenizers.Sequence([*digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


def check_tokens(data: dict[str, Any], header: Header, name: str) -> None:
    """Refuse a vocabulary that does not hang together, before the tokenizer library sees it."""

    def texts(value: Any) -> TypeGuard[list[str]]:
        return isinstance(value, list) and bool(value) and all(isinstance(text, str) and text for text in value)

    tokens, merges, kinds = data.get("tokens"), data.get("merges"), data.get("token_type")
    if not texts(tokens) or not texts(merges) or (kinds is not None and (not isinstance(kinds, list) or len(kinds) != len(tokens))):
        raise ModelError(f"{name} is damaged (its tokens, merges or token types): fetch it again.")
    if len(set(tokens)) != len(tokens):
        raise ModelError(f"{name} is damaged ({len(tokens) - len(set(tokens))} tokens stand in it twice): fetch it again.")
    if wrong := next((merge for merge in merges if " " not in merge[1:-1]), None):
        raise ModelError(f"{name} is damaged (merge {wrong!r}): fetch it again.")
    if len(tokens) > (rows := header.tensors["token_embd.weight"].shape[-1]):
        raise ModelError(f"{name} is damaged ({len(tokens)} tokens, {rows} rows of embeddings): fetch it again.")
