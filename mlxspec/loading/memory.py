"""Whether a model will fit, before its weights are read: weights, what a conversation's cache takes, and what is in memory beside it.

Shapes are known before anything is computed, so the cache is asked itself: a few tokens are run and never evaluated. Knows no names of models.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_reduce

from mlxspec.core.cache import WindowCache, make_cache, parts
from mlxspec.core.recurrent import StateCache
from mlxspec.display import in_bytes
from mlxspec.errors import ModelError
from mlxspec.machine import memory_bytes

CONTEXT = 8192  # tokens of a conversation that is planned for, where neither the model nor --max-kv-size says less
TRIED = 32  # tokens run to learn what one takes
WARN = 0.9  # of the memory there is


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of weights, and of a cache of ``context`` tokens; a drafter without a cache takes none."""

    weights: int
    cache: int
    context: int

    @property
    def total(self) -> int:
        return self.weights + self.cache


def needed(model: nn.Module, context: int | None, max_kv_size: int | None = None, kv_bits: int | None = None) -> Need:
    """What a model with lazy weights will take. ``context`` is the most it reads; raises ModelError where it takes no such cache."""
    tokens = min(CONTEXT, context or CONTEXT)
    caches = make_cache(model, max_kv_size, kv_bits)
    model(mx.zeros((1, TRIED), mx.int32), cache=caches)
    weights: int = tree_reduce(lambda total, array: total + array.nbytes, model.parameters(), 0)
    return Need(weights, sum(_bytes(part, tokens) for layer in caches for part in parts(layer)), min(tokens, max_kv_size or tokens))


def _bytes(layer: Any, tokens: int) -> int:
    """Of one layer's cache once it holds ``tokens``: states have a fixed size, keys and values (1, heads, rows, width) grow by rows."""
    found: Any = tree_flatten(layer.state)
    arrays = [array for _, array in found if isinstance(array, mx.array)]
    if isinstance(layer, StateCache):
        return sum(array.nbytes for array in arrays)
    rows = min(tokens, layer.max_size + layer.spare) + 2 * layer.step if isinstance(layer, WindowCache) else tokens  # its buffer grows in steps
    return sum(array.nbytes // array.shape[-2] * rows for array in arrays)


def limit() -> int | None:
    """Bytes MLX can work in: what Metal recommends at most, elsewhere the machine's memory; None where nobody says."""
    if mx.metal.is_available():
        return int(mx.device_info()["max_recommended_working_set_size"])
    return memory_bytes()


def preflight(name: str, need: Need, beside: int, force: bool, say: Callable[[str], None]) -> None:
    """Refuse (ModelError) what does not fit beside ``beside`` bytes, unless forced; say so where it is close."""
    have = limit()
    total = need.total + beside
    if have is None or total < WARN * have:
        return
    more = f" beside {in_bytes(beside)} of what is loaded" if beside else ""
    cache = f", its cache of {need.context} tokens {in_bytes(need.cache)}" if need.cache else ""
    told = f"{name} takes {in_bytes(need.weights)}{cache}{more}: {in_bytes(total)} of {in_bytes(have)} of memory"
    remedy = "take a smaller model, --max-kv-size, --kv-bits 8 or --dtype bfloat16"
    if total < have:
        say(f"{told}. That is close: if it gets slow, {remedy}.")
    elif force:
        say(f"{told}. That does not fit, and --force was given.")
    else:
        raise ModelError(f"{told}: {remedy}, or pass --force.")
