"""Kinds of faults seen in public bug reports of speculative decoding, each with a small input of our own. Others stand with the part they touch."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import stream_generate

from mlxspec.core.events import Prefill
from mlxspec.drafters.small import SmallDrafter
from mlxspec.errors import MlxspecError, ModelError
from tests.tiny import tiny_engine, tiny_model

TEXT = "count from one to twenty, then count from one to twenty again, and again from one to twenty"


def shaken(head_dim: int) -> SmallDrafter:
    """A small drafter that is the target with its weights shaken, so that it is often right and often wrong."""
    model = tiny_model(head_dim=head_dim)
    rng = np.random.default_rng(3)
    model.update({"lm_head": {"weight": model.lm_head.weight + mx.array(rng.normal(0, 0.02, model.lm_head.weight.shape), mx.float32)}})
    return SmallDrafter(model)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("drafter", ["lookup", "small", "small-tree"])
def test_quantised_cache_with_every_drafter(drafter: str, bits: int) -> None:
    """Runs, and says what plain decoding with the same --kv-bits says; heads of 32 and of 64."""
    for head_dim in (32, 64):
        model = tiny_model(head_dim=head_dim)
        plain = tiny_engine("none", model, kv_bits=bits).generate(TEXT, temperature=0, max_tokens=48)
        own = drafter if drafter == "lookup" else shaken(head_dim)
        width = 2 if drafter == "small-tree" else None
        reply = tiny_engine(own, model, kv_bits=bits).generate(TEXT, temperature=0, max_tokens=48, draft_width=width)
        assert reply.tokens == plain.tokens
        assert drafter == "lookup" or reply.stats["accepted"] > 5


def test_what_no_cache_can_do_is_refused_at_load() -> None:
    with pytest.raises(ModelError, match="sliding-window"):
        tiny_engine("none", tiny_model("gemma3_text"), kv_bits=4)
    with pytest.raises(ModelError, match="no multiple of 32"):
        tiny_engine("none", tiny_model(), kv_bits=4)
    with pytest.raises(MlxspecError, match="exclude each other"):
        tiny_engine("none", kv_bits=4, max_kv_size=64)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_limited_cache_with_every_drafter(family: str) -> None:
    """Past the limit, with drafts that straddle it."""
    model = tiny_model(family)
    plain = tiny_engine("none", model, max_kv_size=24).generate(TEXT, temperature=0, max_tokens=60)
    for drafter in ("lookup", SmallDrafter(tiny_model(family), max_kv_size=24)):
        reply = tiny_engine(drafter, model, max_kv_size=24).generate(TEXT, temperature=0, max_tokens=60)
        assert reply.tokens == plain.tokens


def test_a_penalty_reaches_the_drafter_too() -> None:
    """With a repetition penalty the drafter that is the target is still accepted always: both sides see the hypothetical prefix."""
    model = tiny_model()
    for accept in ("coupled", "ratio"):
        engine = tiny_engine(SmallDrafter(tiny_model()), model)
        stats = engine.generate(TEXT, temperature=0.8, seed=1, repetition_penalty=1.3, accept=accept, max_tokens=80).stats
        assert stats["accepted"] == stats["drafted"] > 40


def test_a_long_prompt_reports_progress_with_a_drafter() -> None:
    """Events flow through a long prefill, drafter or not, so that a client hears that all is well."""
    for drafter in ("none", "lookup"):
        engine = tiny_engine(drafter)
        engine.target.chunk = 32
        seen = [e for e in engine.stream([(i * i) % 251 for i in range(200)], max_tokens=2) if isinstance(e, Prefill)]
        assert [e.done for e in seen] == [0, 32, 64, 96, 128, 160, 192, 199, 200]
        assert {e.total for e in seen} == {200}


def test_narrow_dtypes_differ_by_ties_only() -> None:
    """In bfloat16 a drafted text may leave the plain one; where it does, both tokens are within the rounding of the dtype."""
    model = tiny_model(scale=3.0)
    model.set_dtype(mx.bfloat16)
    for seed in range(4):
        prompt = [int(t) for t in np.random.default_rng(seed).integers(0, 250, 12)]
        plain_engine = tiny_engine("none", model)
        plain = plain_engine.generate(prompt, temperature=0, max_tokens=60).tokens
        own = SmallDrafter(tiny_model(scale=3.0))
        drafted = tiny_engine(own, model).generate(prompt, temperature=0, max_tokens=60).tokens
        if drafted != plain:
            at = next(i for i, (a, b) in enumerate(zip(plain, drafted, strict=False)) if a != b)
            gap, _ = plain_engine.gap([*prompt, *plain[:at]], plain[at], drafted[at], temperature=0)
            assert gap < 0.25


def test_plain_text_equals_mlx_lm() -> None:
    """Token for token, on the same weights, in float32."""
    engine = tiny_engine("none")
    prompt = engine.prompt_tokens(TEXT)
    theirs = [r.token for r in stream_generate(tiny_model(), engine.tokenizer, prompt, max_tokens=40)]
    assert list(engine.generate(prompt, temperature=0, max_tokens=40).tokens) == theirs
