"""GGUF files: weights against mlx-lm's own llama, the tokenizer against a plain reading of llama.cpp's rules, and every refusal."""

import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.models import llama

from mlxspec.errors import ModelError
from mlxspec.loading import gguf
from mlxspec.loading.load import sampling_defaults, set_dtype
from tests import gguf_writer as writer

IDS = mx.array([[5, 7, 9, 100, 3, 2, 1, 200, 44]])
TRICKY = (
    "Hello, world!",
    "the 12 thin hens ran on and on, 1234567890 times",
    "  two  spaces,   three, \t tab",
    "lines\n\n\nand\r\nreturns \n ",
    "naïve café — “quotes” … €",
    "日本語のテキスト、한국어, العربية, עברית",
    "emoji 🎉👩‍👩‍👧‍👦🏳️‍🌈 and flags 🇩🇪",
    "combining e\u0301 and \u200b zero width \ufeff",
    "I'll, you'RE, they'Ve; it's 'sold'",
    "def f(x):\n    return x ** 2  # x²\n",
    "numbers ½ ² ٣ Ⅷ 12",
    " lead and trail ",
    "null \x00 and \x7f controls",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


def straight(config: dict[str, Any], weights: dict[str, np.ndarray]) -> nn.Module:
    """mlx-lm's llama with the same weights, put in by hand."""
    model = llama.Model(llama.ModelArgs.from_dict(config))
    model.load_weights([(name, mx.array(array)) for name, array in weights.items()])
    return model


def furthest(a: mx.array, b: mx.array) -> float:
    return mx.abs(a.astype(mx.float32) - b.astype(mx.float32)).max().item()  # type: ignore[return-value]


# ---- Weights -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
def test_logits_equal_those_of_the_same_weights(path: Path, kind: str, tied: bool) -> None:
    made = writer.llama(kind, tied=tied)
    expected = straight(made.config, made.write(path))(IDS)
    model, _, config, _ = gguf.load(path)
    set_dtype(model, mx.float32)
    assert {key: config[key] for key in made.config} == pytest.approx(made.config)
    assert mx.array_equal(model(IDS), expected)


@pytest.mark.parametrize(("kind", "bits"), [("Q8_0", 8), ("Q4_0", 4), ("Q4_1", 4)])
def test_quantised_weights_stay_packed_until_told_otherwise(path: Path, kind: str, bits: int) -> None:
    made = writer.llama(kind, tied=False)
    expected = straight(made.config, made.write(path))(IDS)
    model, _, config, _ = gguf.load(path)
    packed = [module for _, module in model.named_modules() if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding)]
    assert len(packed) == 2 * 7 + 2
    assert {(module.group_size, module.bits, module.weight.dtype) for module in packed} == {(32, bits, mx.uint32)}
    assert config["torch_dtype"] == "float16"
    model.set_dtype(mx.float16)
    assert model(IDS).dtype == mx.float16
    assert furthest(model(IDS), expected) < 0.3  # half precision all the way; a wrong row is off by 5 and more


def test_wide_heads_and_the_older_version_of_the_format(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(writer.SIZES, "head_dim", 32)  # not hidden size / heads
    made = writer.llama("Q8_0", attention_key__length=32, attention_value__length=32, rope_dimension__count=32)
    expected = straight({**made.config, "head_dim": 32}, made.write(path, version=2))(IDS)
    model, _, _, _ = gguf.load(path)
    set_dtype(model, mx.float32)
    assert mx.array_equal(model(IDS), expected)


def test_rope_factors_are_those_of_llama_3(path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    dims, base, factors = writer.SIZES["head_dim"], 5000.0, []
    for i in range(0, dims, 2):  # as llama.cpp's converter writes them
        wavelength = 2 * np.pi * base ** (i / dims)
        smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
        factors.append(1.0 if wavelength < 64 / 4 else 8.0 if wavelength > 64 else 1 / ((1 - smooth) / 8.0 + smooth))
    assert len({round(factor, 3) for factor in factors}) > 2
    made = writer.llama()
    made.tensors["rope_freqs.weight"] = (np.array(factors, np.float32), "F32")
    weights = made.write(path)
    model, _, _, _ = gguf.load(path)
    assert furthest(model(IDS), straight({**made.config, "rope_scaling": scaling}, weights)(IDS)) < 1e-4
    assert furthest(model(IDS), straight(made.config, weights)(IDS)) > 1e-2


def test_the_name_of_a_file_does_not_matter(tmp_path: Path) -> None:
    writer.llama().write(tmp_path / "blob")
    assert gguf.load(tmp_path / "blob")[2]["model_type"] == "llama"


def test_sampling_defaults_of_the_file(path: Path) -> None:
    made = writer.llama()
    made.metadata.update({"general.sampling.temp": 0.6, "general.sampling.top_k": 20.0, "general.sampling.top_p": 3.0})
    made.metadata["general.sampling.min_p"] = "small"
    made.write(path)
    said: list[str] = []
    assert sampling_defaults(gguf.load(path)[3], said.append) == {"temperature": 0.6, "top_k": 20}
    assert [line.count("--top-p 3.0") + line.count("--min-p 'small'") for line in said] == [1, 1]
    greedy = writer.llama()
    greedy.metadata["general.sampling.temp"] = 1e-6
    greedy.write(path)
    assert sampling_defaults(gguf.load(path)[3], said.append) == {"temperature": 0.0}
    assert len(said) == 2


# ---- Tokenizer ---------------------------------------------------------------------------------------------------------------------------

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RULES = {"gpt-2": [GPT2], "smollm": [r"\p{N}|[^\p{N}]+", GPT2], "llama-bpe": [LLAMA3], "qwen2": [LLAMA3.replace("{1,3}", "")]}


def reference_ids(text: str, pre: str, tokens: list[str], merges: list[str]) -> list[int]:
    """Byte-level BPE the slow way: cut by each expression in turn, then merge the best-ranked pair until there is none."""
    regex = pytest.importorskip("regex")
    pieces = [text]
    for rule in RULES[pre]:
        pieces = [part for piece in pieces for part in regex.findall(rule, piece)]
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    ids = {token: i for i, token in enumerate(tokens)}
    letters, plain = writer.byte_letters(), [*range(33, 127), *range(161, 173), *range(174, 256)]
    letter = dict(zip([*plain, *(byte for byte in range(256) if byte not in plain)], letters, strict=True))
    found = []
    for piece in pieces:
        word = [letter[byte] for byte in piece.encode()]
        if pre == "llama-bpe" and "".join(word) in ids:
            word = ["".join(word)]
        while pairs := [(ranks[pair], i) for i, pair in enumerate(pairwise(word)) if pair in ranks]:
            _, i = min(pairs)
            word[i : i + 2] = [word[i] + word[i + 1]]
        found += [ids[token] for token in word]
    return found


@pytest.mark.parametrize("pre", [*RULES, None])
def test_tokens_are_those_of_llama_cpp(path: Path, pre: str | None) -> None:
    words = writer.vocabulary(pre)
    writer.llama(tokenizer=words).write(path)
    tokenizer = gguf.load(path)[1]
    for text in TRICKY:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if pre != "qwen2":  # which composes what it reads
            assert tokenizer.decode(ids) == text
        expected = text.replace("e\u0301", "é") if pre == "qwen2" else text
        assert ids == reference_ids(expected, pre or "gpt-2", words["tokenizer.ggml.tokens"], words["tokenizer.ggml.merges"]), text


def test_a_whole_word_in_the_vocabulary_needs_no_merges_in_llama_3(path: Path) -> None:
    merges = ["q u", "x q"]  # no way to build "xqu" from these, which prefer "qu"
    words = writer.vocabulary("llama-bpe", merges)
    words["tokenizer.ggml.tokens"].append("xqu")
    words["tokenizer.ggml.token_type"].append(1)
    writer.llama(tokenizer=words).write(path)
    assert gguf.load(path)[1].encode("xqu", add_special_tokens=False) == [len(words["tokenizer.ggml.tokens"]) - 1]


def test_special_tokens_template_and_ends(path: Path) -> None:
    words = writer.vocabulary()
    words["tokenizer.ggml.tokens"] += ["<think>", "<|eot_id|>"]
    words["tokenizer.ggml.token_type"] += [4, 1]  # user-defined; and one that looks like an end, but is an ordinary token
    writer.llama(tokenizer=words).write(path)
    tokenizer = gguf.load(path)[1]
    think = len(words["tokenizer.ggml.tokens"]) - 2
    assert tokenizer.encode("a<|im_end|><think>b") == [*tokenizer.encode("a"), 2, think, *tokenizer.encode("b")]
    assert tokenizer.decode([2, think, 0], skip_special_tokens=True) == "<think>"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id) == (1, 2, 2, 0)
    assert tokenizer.eos_token_ids == {0, 2}  # <|endoftext|> ends a text though the file names only <|im_end|>
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False)
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.model_max_length == writer.SIZES["context"]


@pytest.mark.parametrize(
    ("pre", "stated", "added"), [("smollm", True, True), ("smollm", None, False), ("llama-bpe", None, True), ("llama-bpe", False, False)]
)
def test_the_first_token_is_added_where_the_file_says_so(path: Path, pre: str, stated: bool | None, added: bool) -> None:
    writer.llama(tokenizer=writer.vocabulary(pre, add_bos_token=stated)).write(path)
    tokenizer = gguf.load(path)[1]
    assert (tokenizer.encode("on")[0] == 1) is added
    assert tokenizer.encode("on", add_special_tokens=False)[0] != 1
    assert len(tokenizer.encode("on")) == len(tokenizer.encode("on", add_special_tokens=False)) + added


def test_streamed_text_equals_the_whole(path: Path) -> None:
    writer.llama().write(path)
    tokenizer = gguf.load(path)[1]
    for text in TRICKY:
        if not text.startswith(" ") and "\x00" not in text:  # mlx-lm's detokenizer trims a first space and cannot write byte 0
            detokenizer, streamed = tokenizer.detokenizer, ""
            for token in tokenizer.encode(text):
                detokenizer.add_token(token)
                streamed += detokenizer.last_segment
            detokenizer.finalize()
            assert streamed + detokenizer.last_segment == text


def test_a_file_without_a_template(path: Path) -> None:
    words = writer.vocabulary()
    del words["tokenizer.chat_template"]
    writer.llama(tokenizer=words).write(path)
    assert not gguf.load(path)[1].has_chat_template


# ---- Refusals ----------------------------------------------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        gguf.load(path)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(path.name) and ": " in message and message.endswith(".")
    return message


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("general.architecture", "qwen2", "architecture qwen2"),
        ("general.architecture", None, "architecture None"),
        ("tokenizer.ggml.model", "llama", "tokenizer of the kind llama"),
        ("tokenizer.ggml.pre", "tekken", "tekken"),
        ("tokenizer.ggml.pre", "default", "default"),
        ("split.count", 3, "one of 3 parts"),
        ("llama.rope.scaling.type", "yarn", "rope.scaling.type to yarn"),
        ("llama.rope.scaling.factor", 4.0, "rope.scaling.factor to 4.0"),
        ("llama.expert_count", 8, "expert_count to 8"),
        ("llama.attention.sliding_window", 4096, "sliding_window to 4096"),
        ("llama.block_count", 3, "no tensor blk.2.attn_q.weight"),
        ("llama.block_count", 1, "blk.1.attn_q.weight, which we do not know"),
        ("llama.block_count", 10**9, "1000000000 layers"),
        ("llama.block_count", None, "None as llama.block_count"),
        ("llama.attention.head_count", 0, "0 as llama.attention.head_count"),
        ("llama.attention.head_count", "four", "four as llama.attention.head_count"),
        ("llama.attention.head_count", [4, 4], "[4, 4] as llama.attention.head_count"),
        ("llama.attention.head_count_kv", 3, "3 for keys"),
        ("llama.attention.key_length", 8, "unequal width"),
        ("llama.rope.dimension_count", 8, "unequal width"),
        ("llama.embedding_length", 65, "has the shape"),
        ("llama.feed_forward_length", 95, "blk.0.ffn_gate.weight has the shape"),
        ("llama.attention.layer_norm_rms_epsilon", 0.0, "norm epsilon 0.0"),
        ("llama.rope.freq_base", "fast", "rope base fast"),
        ("general.alignment", 24, "alignment 24"),
        ("tokenizer.ggml.tokens", None, "its tokens"),
        ("tokenizer.ggml.merges", ["ab"], "merge 'ab'"),
        ("tokenizer.ggml.merges", ["a zz"], "its merges"),
        ("tokenizer.ggml.token_type", [1, 1], "token types"),
        ("tokenizer.ggml.eos_token_id", 10**6, "special token 1000000"),
        ("tokenizer.ggml.bos_token_id", -1, "special token -1"),
    ],
)
def test_what_we_do_not_read_is_refused_by_name(path: Path, key: str, value: Any, words: str) -> None:
    made = writer.llama()
    made.metadata[key] = value
    if value is None:
        del made.metadata[key]
    writer.write(path, made.metadata, made.tensors)
    assert words in refusal(path)


@pytest.mark.parametrize("value", [["a", "a"], ["a"] * 10, [f"t{i}" for i in range(5000)]])
def test_a_vocabulary_that_does_not_hang_together(path: Path, value: list[str]) -> None:
    made = writer.llama()
    made.metadata["tokenizer.ggml.tokens"] = value
    made.metadata["tokenizer.ggml.token_type"] = [1] * len(value)
    writer.write(path, made.metadata, made.tensors)
    assert "damaged" in refusal(path)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "BF16"])
def test_other_tensor_types_are_refused_by_name(path: Path, kind: str) -> None:
    made = writer.llama()
    made.tensors["blk.1.ffn_down.weight"] = (np.zeros((64, 96), np.float32), kind)
    writer.write(path, made.metadata, made.tensors)
    message = refusal(path)
    assert "tensor blk.1.ffn_down.weight" in message and f"type {kind}" in message and "Q8_0" in message


def test_other_tensors_are_refused_by_name(path: Path) -> None:
    for name, array, kind, words in [
        ("blk.0.attn_q.bias", np.zeros(64, np.float32), "F32", "attn_q.bias, which we do not know"),
        ("rope_freqs.weight", np.ones(3, np.float32), "F32", "rope_freqs.weight has the shape"),
        ("output_norm.weight", np.ones(64, np.float32), "Q8_0", "output_norm.weight has the shape"),
        ("output.weight", np.ones((5, 64), np.float32), "F32", "output.weight has the shape"),
    ]:
        made = writer.llama()
        made.tensors[name] = (array, kind)
        writer.write(path, made.metadata, made.tensors)
        assert words in refusal(path)


def patched(offset: int, form: str, value: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + struct.pack(form, value) + data[offset + struct.calcsize(form) :]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: b"", "too short"),
        (lambda data: b"PK\x03\x04" + data[4:], "no GGUF file"),
        (lambda data: b"<html>\x1b[2J" + data, "no GGUF file"),
        (patched(4, "<I", 1), "version 1"),
        (patched(4, ">I", 3), "big-endian"),
        (patched(8, "<Q", 1 << 60), "announced"),
        (patched(16, "<Q", (1 << 64) - 1), "announced"),
        (patched(24, "<Q", 1 << 63), "ends within its header"),
        (patched(24 + 8 + len("general.architecture"), "<I", 77), "unknown value type 77"),
    ],
)
def test_damaged_heads(path: Path, change: Callable[[bytes], bytes], words: str) -> None:
    writer.llama().write(path)
    path.write_bytes(change(path.read_bytes()))
    assert words in refusal(path)


@pytest.mark.parametrize(
    ("at", "form", "value", "words"),
    [
        (0, "<I", 9, "9 dimensions"),
        (4, "<Q", 0, "has the shape"),
        (4, "<Q", 1 << 62, "ends within tensor"),
        (20, "<I", 99, "type 99"),
        (24, "<Q", 1 << 40, "ends within tensor"),
        (24, "<Q", 8, "not aligned"),
    ],
)
def test_damaged_tensor_infos(path: Path, at: int, form: str, value: int, words: str) -> None:
    """Offsets count from the end of the first tensor's name: dimensions (4), two lengths (8 each), type (4), offset (8)."""
    writer.llama().write(path)
    data = path.read_bytes()
    name = b"token_embd.weight"
    path.write_bytes(patched(data.index(name) + len(name) + at, form, value)(data))
    assert words in refusal(path)


def test_two_tensors_of_one_name(path: Path) -> None:
    writer.llama().write(path)
    path.write_bytes(path.read_bytes().replace(b"blk.1.attn_k.weight", b"blk.1.attn_v.weight"))
    assert "two tensors of one name" in refusal(path)


def test_a_list_that_claims_too_much(path: Path) -> None:
    writer.write(path, {"a": ["x"]}, {})
    data = path.read_bytes()
    at = 24 + 8 + 1 + 4 + 4  # head, key, type of the value, type of the elements
    path.write_bytes(patched(at, "<Q", 1 << 50)(data))
    assert "a list of" in refusal(path)


def test_a_truncated_file_is_refused_wherever_it_ends(path: Path) -> None:
    writer.llama("Q4_0").write(path)
    data = path.read_bytes()
    end = max(tensor.offset + tensor.size for tensor in gguf.read_header(path).tensors.values())
    cuts = {*range(0, 64), *range(64, len(data), 61), len(data) - (len(data) - end) % 32 - 1, len(data) - 1}
    for cut in sorted(cuts):
        path.write_bytes(data[:cut])
        refusal(path)


def test_random_damage_is_refused_or_harmless(path: Path) -> None:
    """400 files with one to three bytes changed, most of them in the header. Seeded."""
    rng = np.random.default_rng(7)
    writer.llama("Q4_1").write(path)
    data, refused = path.read_bytes(), 0
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(0, 8000 if rng.random() < 0.8 else len(data))] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            model, tokenizer, _, _ = gguf.load(path)
        except ModelError as error:
            refused += 1
            assert error.args
        else:
            mx.eval(model(IDS))
            tokenizer.encode("hello")
    assert 100 < refused < 400


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        gguf.read_header(tmp_path)


# ---- The real file -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.real
def test_smollm2_speaks_its_own_tokens() -> None:
    from mlxspec.loading.fetch import BUILT_IN, obtain

    path, _ = obtain(BUILT_IN["smollm2-135m"], offline=False, say=print)
    header = gguf.read_header(path)
    tokenizer = gguf.tokenizer_of(header, path.name)
    assert tokenizer.eos_token_ids == {0, 2}
    tokens, merges = header.metadata["tokenizer.ggml.tokens"], header.metadata["tokenizer.ggml.merges"]
    for text in TRICKY:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert ids == reference_ids(text, "smollm", tokens, merges), text
    messages = [{"role": "user", "content": "What is gravity?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert (prompt[:3], prompt[-4:]) == ([1, 9690, 198], [1, 520, 9531, 198])
