"""The cheap exp of training on a CPU: the stock model's numbers, with gradients, with caches and masks."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import llama as stock_llama
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache

from mlxspec.audio.codes.layout import Layout
from mlxspec.audio.text.phonemes import SYMBOLS
from mlxspec.recipes.voice import llama
from mlxspec.training import fast_exp
from tests.tiny import tiny_model


def test_cheap_exponentials_give_the_stock_loss_and_gradients() -> None:
    mx.random.seed(5)
    network, _ = llama(Layout.of(SYMBOLS, 16), 32, 2, 2, 48)
    ids = mx.random.randint(0, 40, (3, 12))

    def loss(cheap: bool) -> Any:
        logits: Any = network(ids)
        total = fast_exp.logsumexp(20 * logits) if cheap else mx.logsumexp(20 * logits, axis=-1, keepdims=True)
        return (total - 20 * mx.take_along_axis(logits, ids[..., None], axis=-1)).mean()

    stock, wanted = nn.value_and_grad(network, lambda: loss(False))()
    with fast_exp.in_llama():
        cheap, found = nn.value_and_grad(network, lambda: loss(True))()
    assert abs(float(stock) - float(cheap)) < 1e-4 * float(stock)
    for (name, a), (_, b) in zip(tree_flatten(wanted), tree_flatten(found), strict=True):
        assert mx.abs(a - b).max().item() <= 1e-3 * mx.abs(a).max().item(), name
    assert "cheap" not in stock_llama.swiglu.__module__
    x = mx.linspace(-79, 39, 1000)
    assert mx.abs(fast_exp.exp(x) / mx.exp(x) - 1).max().item() < 5e-4
    assert fast_exp.exp(mx.array([-1e9])).item() < 1e-30 and fast_exp.sigmoid(mx.array([-1e9, 1e9])).tolist() == pytest.approx([0, 1])


@pytest.mark.parametrize("left", [[0, 0, 0], [0, 2, 5]])
def test_a_batch_is_read_and_written_as_by_the_stock_model(left: list[int]) -> None:
    """Two query heads to a key head, padding on the left, a prompt and then single tokens, all from the same cache."""
    model = tiny_model("llama")
    ids = mx.random.randint(0, 40, (3, 9), key=mx.random.key(1))

    def logits() -> mx.array:
        cache: Any = [BatchKVCache(left) for _ in make_prompt_cache(model)]
        parts: Any = [model(ids[:, :7], cache=cache)[:, -1], model(ids[:, 7:8], cache=cache)[:, -1], model(ids[:, 8:], cache=cache)[:, -1]]
        return mx.stack(parts)

    wanted = logits()
    with fast_exp.in_llama():
        found = logits()
    assert stock_llama.scaled_dot_product_attention.__module__ == "mlx_lm.models.base"
    assert mx.abs(found - wanted).max().item() < 2e-3 * mx.abs(wanted).max().item()
    assert not fast_exp.on_cpu() or mx.abs(found - wanted).max().item() > 0  # it was not the stock model that ran
