"""Caches that can drop what was rejected. After ``keep`` a cache is what it would be had it never seen the other rows; where it cannot, it raises.

Growing caches (plain and quantised) are mlx-lm's own. Its rotating cache overwrites what a rejected row would need restored, so ``WindowCache``
stands in for it: the same window, in order of position, with spare rows behind it.
"""

from collections import deque
from collections.abc import Sequence
from copy import copy
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import cache as mlx_cache

from mlxspec.core.recurrent import StateCache, record_mixers
from mlxspec.errors import ModelError, RollbackError

Cache = Any  # one layer's cache, as mlx-lm's models expect it


class WindowCache(mlx_cache._BaseCache):  # type: ignore[misc]
    """Keys and values of the first ``keep`` tokens and of the last ``max_size - keep``, in order of position.

    ``offset`` counts the tokens read. The buffer holds up to ``spare`` rows more than the window, so that as many may be dropped again.
    """

    step = 256
    spare = 64

    def __init__(self, max_size: int, keep: int = 0) -> None:
        self.keys: mx.array | None = None  # (1, heads, rows, head_dim)
        self.values: mx.array | None = None
        self.max_size = max_size
        self.keep = keep
        self.offset = 0
        self.dropped = 0  # tokens that left the buffer: they stood between the first `keep` and what is there now

    @property
    def window(self) -> int:
        return self.max_size - self.keep

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        rows = keys.shape[2]
        dropped = self._dropped_before(rows)
        used = self.offset - self.dropped
        if self.keys is None or used + rows > self.keys.shape[2] or dropped > self.dropped:
            capacity = used - (dropped - self.dropped) + rows + self.step
            self.keys = self._moved(self.keys, keys, used, dropped - self.dropped, capacity)
            self.values = self._moved(self.values, values, used, dropped - self.dropped, capacity)
            self.dropped = dropped
            used = self.offset - self.dropped
        assert self.keys is not None and self.values is not None
        first = used - self._past(rows)
        self.keys[..., used : used + rows, :] = keys
        self.values[..., used : used + rows, :] = values
        self.offset += rows
        return self.keys[..., first : used + rows, :], self.values[..., first : used + rows, :]

    def make_mask(self, rows: int, window_size: int | None = None, return_array: bool = False) -> mx.array | str | None:
        """Mask of ``rows`` tokens in a chain after what is cached: None, "causal", or (rows, cached + rows) bool."""
        window = min(window_size or self.window, self.window)
        if self.keep:
            sees_all = self.offset + rows <= self.max_size and self.offset + rows <= window + self.keep
        else:
            sees_all = self._past(rows) + rows <= window
        if sees_all and not return_array:
            return "causal" if rows > 1 else None
        positions = mx.arange(self.offset, self.offset + rows)
        return self.tree_mask(positions, positions[:, None] >= positions[None], window)

    def tree_mask(self, positions: mx.array, ancestors: mx.array, window_size: int | None = None) -> mx.array:
        """Mask of a tree after what is cached: (rows, cached + rows) bool. ``ancestors[i, j]``: row i descends from row j, or is it."""
        window = min(window_size or self.window, self.window)
        rows = positions.size
        if self.keep:
            dropped = self._dropped_before(rows)
            past = mx.arange(self.offset - dropped)
            past = mx.where(past < self.keep, past, past + dropped)
        else:
            past = mx.arange(self.offset - self._past(rows), self.offset)
        return row_mask(past, positions, ancestors, window, self.keep)

    def keep_rows(self, rows: int, kept: Sequence[int]) -> None:
        """Of the last ``rows`` rows keep those listed, in that order."""
        base = self.offset - self.dropped - rows
        if self.dropped and base + len(kept) < self.max_size - 1:
            raise RollbackError(
                f"A window of {self.max_size} tokens has {self.spare} spare rows and cannot drop {rows - len(kept)}: start again from the prompt."
            )
        if list(kept) != list(range(len(kept))):
            self.keys = _gathered(self.keys, base, kept)
            self.values = _gathered(self.values, base, kept)
        self.offset += len(kept) - rows

    def _past(self, rows: int) -> int:
        """Cached rows that ``rows`` further ones are shown."""
        cached = self.offset - self.dropped
        return self.offset - self._dropped_before(rows) if self.keep else min(cached, self.window - 1)

    def _dropped_before(self, rows: int) -> int:
        """What ``dropped`` will be once ``rows`` further rows are in."""
        surplus = self.offset - self.dropped - self.max_size - self.spare
        full = self.keys is not None and self.offset - self.dropped + rows > self.keys.shape[2]
        return self.dropped + surplus if surplus > 0 and (full or surplus > self.step) else self.dropped

    def _moved(self, old: mx.array | None, like: mx.array, used: int, drop: int, capacity: int) -> mx.array:
        """The used rows but the dropped ones, in a buffer of ``capacity`` rows."""
        heads, width = like.shape[1], like.shape[3]
        if old is None:
            return mx.zeros((1, heads, capacity, width), like.dtype)
        rest = mx.zeros((1, heads, capacity - used + drop, width), like.dtype)
        return mx.concatenate([old[..., : self.keep, :], old[..., self.keep + drop : used, :], rest] if drop else [old[..., :used, :], rest], axis=2)

    @property
    def state(self) -> Any:
        return self.keys, self.values

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        self.keep_rows(n, ())
        return n

    def empty(self) -> bool:
        return self.keys is None

    def size(self) -> int:
        return min(self.offset, self.max_size)

    @property
    def nbytes(self) -> int:
        return 0 if self.keys is None or self.values is None else self.keys.nbytes + self.values.nbytes


class QuantisedCache(mlx_cache.QuantizedKVCache):  # type: ignore[misc]
    """mlx-lm's quantised cache, in groups that fit the model's heads: of 64, else of 32."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        if self.keys is None:
            fitting = [size for size in (64, 32) if keys.shape[-1] % size == 0 and values.shape[-1] % size == 0]
            if not fitting:
                raise ModelError(f"--kv-bits does not fit this model: its heads are {keys.shape[-1]} wide, no multiple of 32. Leave it out.")
            self.group_size = fitting[0]
        return super().update_and_fetch(keys, values)


class TreeView:
    """A layer's cache as a tree of rows sees it: every row at its own position, seeing the past and its own ancestors."""

    def __init__(self, cache: Cache, positions: mx.array, ancestors: mx.array) -> None:
        if any(isinstance(part, StateCache) for part in parts(cache)):
            raise RollbackError("A recurrent layer reads rows in a chain: it cannot verify a tree.")
        self.cache = cache
        self.offset = positions  # (rows,) int32
        self.ancestors = ancestors  # (rows, rows) bool

    def make_mask(self, rows: int, window_size: int | None = None, return_array: bool = False) -> mx.array:
        if isinstance(self.cache, WindowCache):
            return self.cache.tree_mask(self.offset, self.ancestors, window_size)
        return row_mask(mx.arange(self.cache.offset), self.offset, self.ancestors, window_size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)


def row_mask(past: mx.array, positions: mx.array, ancestors: mx.array, window: int | None = None, keep: int = 0) -> mx.array:
    """Who sees whom: (rows, past + rows) bool, from the positions of the past tokens and of the rows."""
    seen = mx.concatenate([mx.ones((positions.size, past.size), mx.bool_), ancestors], axis=1)
    if window is None:
        return seen
    everyone = mx.concatenate([past, positions])[None]
    return seen & ((everyone > positions[:, None] - window) | (everyone < keep))


def make_cache(model: Any, max_kv_size: int | None = None, kv_bits: int | None = None, forwards: int = 1) -> list[Cache]:
    """A cache for each layer of an mlx-lm model: rotating and recurrent ones replaced, limited or quantised where asked.

    ``forwards`` is over how many forwards a recurrent layer must be able to go back.
    """
    cache = [_ours(layer, max_kv_size, kv_bits, forwards) for layer in mlx_cache.make_prompt_cache(model)]
    if any(isinstance(part, StateCache) for layer in cache for part in parts(layer)):
        record_mixers(model)
    return cache


def copied(cache: Sequence[Cache]) -> list[Cache]:
    """Caches that hold the same and go their own way."""
    copies = []
    for layer in cache:
        if isinstance(layer, mlx_cache.CacheList):
            copies.append(mlx_cache.CacheList(*copied(layer.caches)))
            continue
        copies.append(other := copy(layer))
        for name, value in vars(layer).items():
            vars(other)[name] = deque(value, value.maxlen) if isinstance(value, deque) else tree_map(_own, value)
    return copies


def _own(value: Any) -> Any:
    """The same numbers under another name: writing to one does not change the other."""
    return mx.array(value) if isinstance(value, mx.array) else value


def keep_rows(cache: Sequence[Cache], rows: int, kept: Sequence[int]) -> None:
    """Of the last ``rows`` rows of every layer keep those listed (rising), and drop the others."""
    if len(kept) == rows:
        return
    for layer in (part for whole in cache for part in parts(whole)):
        if isinstance(layer, WindowCache | StateCache):
            layer.keep_rows(rows, kept)
        elif isinstance(layer, mlx_cache.KVCache | mlx_cache.QuantizedKVCache):
            base = layer.offset - rows
            if list(kept) != list(range(len(kept))):
                layer.keys = tree_map(lambda rows_of: _gathered(rows_of, base, kept), layer.keys)  # noqa: B023  (called at once)
                layer.values = tree_map(lambda rows_of: _gathered(rows_of, base, kept), layer.values)  # noqa: B023
            layer.offset = base + len(kept)
        elif layer.is_trimmable() and list(kept) == list(range(len(kept))):
            if layer.trim(rows - len(kept)) != rows - len(kept):
                raise RollbackError(f"A {type(layer).__name__} dropped fewer rows than asked: use --drafter none with this model.")
        else:
            raise RollbackError(f"A {type(layer).__name__} cannot drop rejected rows: use --drafter none with this model.")


def states(cache: Sequence[Cache]) -> list[Any]:
    """The states of the recurrent layers as they are now; arrays never change, so this copies nothing."""
    return [list(part.cache) for layer in cache for part in parts(layer) if isinstance(part, StateCache)]


def restore(cache: Sequence[Cache], earlier: Sequence[Any], rows: int) -> bool:
    """Put earlier states back and drop the ``rows`` read since from the other layers; False where one of those cannot."""
    every = [part for layer in cache for part in parts(layer)]
    recurrent = [part for part in every if isinstance(part, StateCache)]
    try:
        keep_rows([part for part in every if not isinstance(part, StateCache)], rows, ())
    except RollbackError:
        return False
    for part, state in zip(recurrent, earlier, strict=True):
        part.cache = list(state)
        part.forwards.clear()
    return True


def position(cache: Sequence[Cache]) -> int:
    """Tokens read so far, by the first layer that counts them."""
    return next((int(part.offset) for layer in cache for part in parts(layer) if not isinstance(part, StateCache)), 0)


def parts(layer: Cache) -> tuple[Cache, ...]:
    """A layer's cache, or those it is made of."""
    return tuple(layer.caches) if isinstance(layer, mlx_cache.CacheList) else (layer,)


def _ours(layer: Cache, max_kv_size: int | None, kv_bits: int | None, forwards: int) -> Cache:
    if isinstance(layer, mlx_cache.CacheList):
        return mlx_cache.CacheList(*(_ours(part, max_kv_size, kv_bits, forwards) for part in layer.caches))
    if type(layer) is mlx_cache.ArraysCache:  # a state has a fixed size: there is nothing to limit or quantise
        return StateCache(len(layer.cache), forwards)
    if isinstance(layer, mlx_cache.RotatingKVCache):
        if kv_bits is not None:
            raise ModelError("--kv-bits does not fit this model: mlx-lm cannot quantise the cache of its sliding-window layers. Leave it out.")
        limit = min(layer.max_size, max_kv_size or layer.max_size)
        return WindowCache(limit, layer.keep)
    if isinstance(layer, mlx_cache.KVCache):
        if max_kv_size is not None:
            return WindowCache(max_kv_size, keep=4)
        if kv_bits is not None:
            return QuantisedCache(bits=kv_bits)
    elif max_kv_size is not None or kv_bits is not None:
        flag = "--max-kv-size" if max_kv_size is not None else "--kv-bits"
        raise ModelError(f"{flag} does not fit this model: a {type(layer).__name__} has no such limit. Leave it out.")
    return layer


def _gathered(rows_of: Any, base: int, kept: Sequence[int]) -> Any:
    """The rows ``base + kept`` of an array (1, heads, rows, width), moved to ``base`` and on."""
    rows_of[..., base : base + len(kept), :] = rows_of[..., mx.array([base + i for i in kept], mx.int32), :]
    return rows_of
