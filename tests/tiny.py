"""Tiny seeded models of real families, a known Markov law as a model, a byte tokenizer, and engines around them. No downloads."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.cache import KVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import _get_classes
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import Target
from mlxspec.drafters.cost import CostCurve
from mlxspec.llm.engine import Engine
from mlxspec.loading.load import Loaded
from mlxspec.settings.options import Options

VOCAB = 258
_BASE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "head_dim": 8,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "gemma3_text": {"sliding_window": 12, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8},
    "phi3": {},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 12, "head_dim": 32, "hidden_size": 64},
    "olmo2": {},
    "cohere2": {"sliding_window": 12, "sliding_window_pattern": 2},
    "granite": {
        "logits_scaling": 2.0,
        "attention_multiplier": 0.3,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_bias": False,
        "mlp_bias": False,
    },
}
RECURRENT: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 8, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "time_step_rank": 8},
    "mamba2": {
        "num_heads": 8,
        "state_size": 16,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": True,
        "time_step_limit": (0.0, 100.0),
        "time_step_rank": "auto",
        "intermediate_size": 64,
    },
    "qwen3_next": {
        "num_hidden_layers": 4,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "partial_rotary_factor": 1.0,
        "full_attention_interval": 2,
    },
    "falcon_h1": {
        "mamba_d_head": 8,
        "mamba_d_ssm": 64,
        "mamba_d_state": 16,
        "mamba_n_heads": 8,
        "lm_head_multiplier": 1.0,
        "embedding_multiplier": 1.0,
    },
    "lfm2": {
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention"],
    },
    "jamba": {
        "num_hidden_layers": 4,
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 8,
        "mamba_expand": 2,
        "num_experts": 2,
        "num_experts_per_tok": 1,
    },
    "rwkv7": {
        "norm_eps": 1e-5,
        "a_low_rank_dim": 8,
        "v_low_rank_dim": 8,
        "gate_low_rank_dim": 8,
        "decay_low_rank_dim": 8,
        "intermediate_size": 64,
    },
    "recurrent_gemma": {
        "attention_bias": False,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": 12,
        "block_types": ["recurrent", "attention"],
    },
}
SLIDING = ("gemma3_text", "gpt_oss", "cohere2")


def config_of(family: str, **changes: Any) -> dict[str, Any]:
    return {"model_type": family, **_BASE, **{**FAMILIES, **RECURRENT}[family], **changes}


def tiny_model(family: str = "llama", seed: int = 0, scale: float = 4.0, **changes: Any) -> nn.Module:
    """A seeded model with sharp enough logits that arg max is seldom a tie. Same seed, same weights."""
    config = config_of(family, **changes)
    model_class, args_class = _get_classes(config)
    mx.random.seed(seed)
    model: nn.Module = model_class(args_class.from_dict(config))
    rng = np.random.default_rng(seed)

    def seeded(x: mx.array) -> mx.array:
        return mx.array(rng.normal(0, 1, x.shape) * scale / max(x.shape) ** 0.5, mx.float32) if x.ndim > 1 else x

    model.update(tree_map(seeded, model.parameters()))
    mx.eval(model.parameters())
    return model.eval()


class MarkovModel(nn.Module):
    """A model whose next token depends on the last one only, by a table of logits: its law is known exactly."""

    def __init__(self, logits: np.ndarray) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table = mx.array(logits, mx.float32)  # (vocab, vocab)
        self.layers: list[nn.Module] = []

    def make_cache(self) -> list[KVCache]:
        return [KVCache()]

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        blank = mx.zeros((1, 1, inputs.shape[1], 8))
        cache[0].update_and_fetch(blank, blank)
        return self.table[inputs]


def byte_tokenizer(size: int = VOCAB, template: bool = True) -> TokenizerWrapper:
    """Byte-level BPE without merges: ids 0 to 255 are bytes (a smaller size drops the last ones); the last two ids are <eos> and <end>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ascii_first = sorted(alphabet, key=lambda c: (not c.isascii(), c))
    vocab = {c: i for i, c in enumerate(ascii_first[: size - 2])}
    vocab |= {"<eos>": size - 2, "<end>": size - 1}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<end>"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")
    if template:
        fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}:{% endif %}"
    return TokenizerWrapper(fast)


def tiny_engine(
    drafter: Any = "none", model: nn.Module | None = None, tokenizer: Any = None, context: int | None = 512, say: Any = None, **load: Any
) -> Engine:
    """An engine around a tiny model, as ``mlxspec.load`` would build it."""
    model = model or tiny_model()
    settings = Options(model="tiny", drafter=drafter if isinstance(drafter, str) else "auto", **load)
    loaded = Loaded("tiny", model, tokenizer or byte_tokenizer(), {}, "memory", "tiny-digest", {})
    target = Target(model, context_length=context, max_kv_size=settings.max_kv_size, kv_bits=settings.kv_bits)
    return Engine(loaded, TokenSequence(target), drafter, settings, say or (lambda _: None), CostCurve.flat())


def tiny_fused_rope() -> nn.Module:
    """A llama whose rope is a plain function, as some models have it: no module to extend."""
    model = tiny_model()
    for layer in model.layers:
        inner = layer.self_attn.rope
        del layer.self_attn["rope"]
        object.__setattr__(
            layer.self_attn, "rope", lambda x, offset=0, inner=inner: inner(x, offset=offset if isinstance(offset, int) else int(offset[0].item()))
        )
    return model


def save_folder(folder: Path, family: str = "llama", seed: int = 0, **changes: Any) -> Path:
    """A tiny model and its tokenizer as an ordinary MLX folder."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_model(family, seed, **changes)
    from mlx.utils import tree_flatten

    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    tokenizer = byte_tokenizer(changes.get("vocab_size", VOCAB))
    (folder / "config.json").write_text(json.dumps({**config_of(family, **changes), "eos_token_id": tokenizer.eos_token_id}))
    tokenizer.save_pretrained(str(folder))
    return folder
