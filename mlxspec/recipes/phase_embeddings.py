"""For training: the ids of a symbol differ by phase alone, and their rows are the sum of a symbol's vector and a phase's.

So what is learned of one id is known of all. What is saved is the stock model, its tables written out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlxspec.audio.codes.layout import Layout


class Phased(nn.Module):
    """A table (ids, width) whose first rows are those of symbols, phase after phase."""

    def __init__(self, table: mx.array, layout: Layout) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        count, phases = len(layout.symbols), layout.phases
        rows = table[: count * phases].reshape(count, phases, -1)
        self.symbol, self.phase, self.rest = rows[:, 0], rows[0] - rows[:1, 0], table[count * phases :]

    def table(self) -> mx.array:
        rows: mx.array = self.symbol[:, None] + self.phase[None]
        return mx.concatenate([rows.reshape(-1, rows.shape[-1]), self.rest])


class PhasedEmbedding(Phased):
    def __call__(self, ids: mx.array) -> mx.array:
        return self.table()[ids]


class PhasedHead(Phased):
    def __call__(self, x: mx.array) -> mx.array:
        return x @ self.table().T


def phase_in(network: Any, layout: Layout, fresh: bool) -> None:
    """Give a stock Llama such tables. Its own are taken over, right where they are sums; where it is ``fresh``, phases begin as waves."""
    if layout.phases:
        network.model.embed_tokens = PhasedEmbedding(network.model.embed_tokens.weight, layout)
        network.lm_head = PhasedHead(network.lm_head.weight, layout)
        for made in (network.model.embed_tokens, network.lm_head):
            if fresh:
                made.phase = waves(layout.phases, made.phase.shape[1]) * mx.sqrt(mx.square(made.symbol).mean())


def waves(phases: int, width: int) -> mx.array:
    """(phases, width), of mean square 1: the next phase is a turn of this one, the same turn for all."""
    order = 1 + np.arange(width) // 2 % max(1, phases // 2)
    turns = 2 * np.pi * np.arange(phases)[:, None] * order / phases
    return mx.array(np.sqrt(2) * np.where(np.arange(width) % 2, np.sin(turns), np.cos(turns)), mx.float32)


@contextmanager
def stock(network: Any) -> Iterator[None]:
    """Meanwhile it has plain tables."""
    before = network.model.embed_tokens, network.lm_head
    if isinstance(before[0], Phased):
        tables = [made.table() for made in before]
        network.model.embed_tokens, network.lm_head = nn.Embedding(1, 1), nn.Linear(1, 1, bias=False)
        network.model.embed_tokens.weight, network.lm_head.weight = tables
    try:
        yield
    finally:
        network.model.embed_tokens, network.lm_head = before
