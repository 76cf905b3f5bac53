"""Several texts in one forward: their rows stand side by side as if they were one text, so that every weight is read once for all of them.

Positions are told to each row (as for a tree), and each text attends to its own cache alone. So nothing is padded or copied, every text may have
another number of rows, and each keeps another number of them: what mlx-lm's batch caches, one row of an array per text, are not made for.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import mlx.core as mx

Cache = Any


class Parted(tuple[Any, ...]):
    """What belongs to each text, where a model expects one array: it hands it on to the attention."""


class Together:
    """One layer's caches of several texts, as a forward over the rows of all of them sees it."""

    def __init__(self, caches: Sequence[Cache], rows: Sequence[int], positions: mx.array) -> None:
        """``rows`` counts the rows of each text; ``positions`` (rows of all,) int32 says where in its text each of them is."""
        self.caches = caches
        self.rows = rows
        self.offset = positions
        self.ends = list(accumulate(rows))

    def split(self, x: mx.array, axis: int) -> list[mx.array]:
        """The rows of each text."""
        return list(mx.split(x, self.ends[:-1], axis=axis))

    def make_mask(self, rows: int, *args: Any, **kwargs: Any) -> Parted:
        return Parted(cache.make_mask(own, *args, **kwargs) for cache, own in zip(self.caches, self.rows, strict=True))

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Parted, Parted]:
        parts = zip(self.caches, self.split(keys, 2), self.split(values, 2), strict=True)
        fetched = [cache.update_and_fetch(own_keys, own_values) for cache, own_keys, own_values in parts]
        return Parted(own_keys for own_keys, _ in fetched), Parted(own_values for _, own_values in fetched)


def attending(attention: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """mlx-lm's attention, text by text where the cache is that of several."""

    def call(queries: mx.array, keys: Any, values: Any, cache: Cache, scale: float, mask: Any, **more: Any) -> mx.array:
        if not isinstance(cache, Together):
            return attention(queries, keys, values, cache=cache, scale=scale, mask=mask, **more)
        texts = zip(cache.split(queries, 2), keys, values, cache.caches, mask, strict=True)
        return mx.concatenate([attention(q, k, v, cache=own, scale=scale, mask=m, **more) for q, k, v, own, m in texts], axis=2)

    return call
