"""What a stock mlx-lm model is given so that it can verify trees, show its hidden states and read several texts in one forward.

Modules get a class of their own, once; weights, names and model files stay as they are. Rope modules take one position per row. The output
projection and the layers tell of their hidden states ("taps"). The attention asks a ``Together`` cache to keep the texts apart.
"""

from collections.abc import Callable
from functools import cache as once_each
from functools import partial
from types import FunctionType
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlxspec.core.together import attending

ATTENTION = "scaled_dot_product_attention"  # what mlx-lm's models call it, each by its module's own name for it


class Taps(dict[str, mx.array]):
    """The hidden states of a model's latest forward, those that are wanted; each (1, rows, width)."""

    wanted: frozenset[str] = frozenset()
    answering: mx.array | None = None  # the rows whose logits are wanted; None: all

    def record(self, tap: str, value: mx.array) -> None:
        if tap in self.wanted:
            self[tap] = value


def extend(model: nn.Module) -> Taps:
    """Extend a model in place, once, and return its taps."""
    if "_mlxspec_taps" in vars(model):
        extended: Taps = vars(model)["_mlxspec_taps"]
        return extended
    taps = Taps()
    object.__setattr__(model, "_mlxspec_taps", taps)
    layers = {id(layer): f"layer:{i}" for i, layer in enumerate(model.layers)}
    modules = {id(module): (name.rpartition(".")[2], module) for name, module in model.named_modules()}
    for key, (leaf, module) in modules.items():
        if leaf == "rope":
            subclass(module, "__call__", _rope_by_row)
        elif leaf == "lm_head":
            subclass(module, "__call__", partial(_tapped, taps=taps))
        elif isinstance(module, nn.Embedding | nn.QuantizedEmbedding):
            subclass(module, "as_linear", partial(_tapped, taps=taps))
        elif key in layers:
            subclass(module, "__call__", partial(_tapped_output, record=taps.record, tap=layers[key]))
        elif ATTENTION in getattr(type(module).__call__, "__globals__", ()):
            subclass(module, "__call__", _attending)
    return taps


def subclass(module: nn.Module, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace one method of one module, by way of a class of its own that is named like the old one."""
    base = type(module)
    module.__class__ = type(base.__name__, (base,), {"__module__": base.__module__, name: wrap(getattr(base, name))})


def _rope_by_row(method: Any) -> Any:
    def call(self: nn.Module, x: mx.array, offset: int | mx.array = 0, **more: Any) -> mx.array:
        if not (isinstance(offset, mx.array) and offset.ndim == 1 and offset.size != x.shape[0]):  # one offset a sequence is mlx-lm's own batching
            return method(self, x, offset=offset, **more)
        return method(self, x.transpose(2, 1, 0, 3), offset=offset, **more).transpose(2, 1, 0, 3)  # (1, heads, rows, dim), rows as the batch

    return call


def _tapped(method: Any, taps: Taps) -> Any:
    def call(self: nn.Module, x: mx.array) -> mx.array:
        taps.record("last", x)
        return method(self, x if taps.answering is None else x[:, taps.answering])

    return call


def _tapped_output(method: Any, record: Callable[[str, mx.array], None], tap: str) -> Any:
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        out = method(self, *args, **kwargs)
        record(tap, out[0] if isinstance(out, tuple) else out)
        return out

    return call


@once_each
def _attending(method: Any) -> Any:
    """The same function with another attention among its globals: the model's module, which others may use, is left as it is."""
    names = {**method.__globals__, ATTENTION: attending(method.__globals__[ATTENTION])}
    copy = FunctionType(method.__code__, names, method.__name__, method.__defaults__, method.__closure__)
    copy.__kwdefaults__ = method.__kwdefaults__
    return copy
