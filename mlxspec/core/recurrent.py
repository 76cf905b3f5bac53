"""Rewinding recurrent layers (Mamba, gated delta nets, short convolutions): their cache is a state, and a state cannot drop rows.

Before a forward the state is remembered (arrays never change, so this costs nothing), and with it what each layer's mixer was given. To keep the
first ``n`` rows of a forward the state is put back and the mixers alone read those rows again: no attention, no MLP, no output projection, since
nothing else of what they compute is ever asked for.
"""

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache

from mlxspec.core.together import Parted, Together
from mlxspec.errors import RollbackError


@dataclass(slots=True)
class Call:
    """One mixer and what it was given."""

    method: Callable[..., Any]
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class Forward:
    """The state before a forward, its rows, and the mixers that changed it, in order."""

    state: list[Any]
    rows: int
    calls: dict[int, Call] = field(default_factory=dict)


class StateCache(ArraysCache):  # type: ignore[misc]
    """mlx-lm's state of a recurrent layer, with the last ``depth`` forwards to go back over."""

    def __init__(self, size: int, depth: int) -> None:
        super().__init__(size)
        self.forwards: deque[Forward] = deque(maxlen=depth)
        self.entered = 0  # mixers that have changed the state so far
        self.replaying = False

    def is_trimmable(self) -> bool:
        return True

    def enter(self, call: Call, rows: int, before: list[Any]) -> None:
        """A mixer has changed the state, which was ``before``; a mixer that comes round again begins a new forward."""
        self.entered += 1
        if not self.forwards or id(call.module) in self.forwards[-1].calls:
            self.forwards.append(Forward(before, rows))
        self.forwards[-1].calls[id(call.module)] = call

    def keep_rows(self, rows: int, kept: Sequence[int]) -> None:
        """Of the last ``rows`` rows keep the first few: ``kept`` is 0, 1, 2 ..."""
        if list(kept) != list(range(len(kept))):
            raise RollbackError("A recurrent layer reads rows in a chain and cannot keep a branch: draft chains.")
        drop = rows - len(kept)
        while drop > 0:
            if not self.forwards:
                raise RollbackError(f"A recurrent layer cannot go {rows} rows back: draft fewer, or use --drafter none.")
            forward = self.forwards.pop()
            self.cache = list(forward.state)
            if drop < forward.rows:
                self._replay(forward, forward.rows - drop)
            drop -= min(drop, forward.rows)

    def _replay(self, forward: Forward, rows: int) -> None:
        self.replaying = True
        try:
            for call in forward.calls.values():
                cut = [_first_rows(value, forward.rows, rows) for value in call.args]
                call.method(call.module, *cut, **{name: _first_rows(value, forward.rows, rows) for name, value in call.kwargs.items()})
        finally:
            self.replaying = False
        forward.calls = {key: _shorter(call, forward.rows, rows) for key, call in forward.calls.items()}
        self.forwards.append(Forward(forward.state, rows, forward.calls))


def record_mixers(model: nn.Module) -> None:
    """Have every module of the layers that is handed a StateCache tell it so; once a model, and weights and names stay as they are."""
    if "_mlxspec_records" in vars(model):
        return
    object.__setattr__(model, "_mlxspec_records", True)
    for layer in model.layers:
        for module in {id(m): m for _, m in layer.named_modules()}.values():
            if "cache" in inspect.signature(type(module).__call__).parameters:
                base = type(module)
                module.__class__ = type(base.__name__, (base,), {"__module__": base.__module__, "__call__": _recording(base.__call__)})


def _recording(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        several = next((value for value in given if isinstance(value, Together)), None)
        if several is not None and "_mlxspec_mixer" in vars(self):
            return _text_by_text(call, self, several, args, kwargs)
        cache = next((value for value in given if isinstance(value, StateCache)), None)
        rows = next((value.shape[1] for value in given if isinstance(value, mx.array) and value.ndim == 3), None)
        if cache is None or rows is None or cache.replaying:
            return method(self, *args, **kwargs)
        before, entered = list(cache.cache), cache.entered
        out = method(self, *args, **kwargs)
        if cache.entered == entered:  # no module inside this one: it is the mixer itself
            cache.enter(Call(method, self, args, kwargs), rows, before)
            object.__setattr__(self, "_mlxspec_mixer", True)
        return out

    return call


def _text_by_text(call: Callable[..., Any], module: nn.Module, several: Together, args: Any, kwargs: Any) -> Any:
    """A mixer on the rows of several texts: a state belongs to one of them, so each is read by itself."""
    total = several.ends[-1]

    def parted(value: Any) -> Any:
        if isinstance(value, Together):
            return value.caches
        if isinstance(value, mx.array) and value.ndim >= 2 and value.shape[1] == total:
            return several.split(value, 1)
        return value if isinstance(value, Parted) else [value] * len(several.caches)

    positional = zip(*map(parted, args), strict=True) if args else ((),) * len(several.caches)
    named = [{name: parted(value)[text] for name, value in kwargs.items()} for text in range(len(several.caches))]
    return _joined([call(module, *own, **more) for own, more in zip(positional, named, strict=True)])


def _joined(outs: Sequence[Any]) -> Any:
    """What a mixer gave each text, as it would give it for all: arrays side by side, one by one where it gives several."""
    return tuple(map(_joined, zip(*outs, strict=True))) if isinstance(outs[0], tuple) else mx.concatenate(list(outs), axis=1)


def _first_rows(value: Any, of: int, rows: int) -> Any:
    """The first rows of what has one entry a row along axis 1; anything else as it is."""
    return value[:, :rows] if isinstance(value, mx.array) and value.ndim >= 2 and value.shape[1] == of else value


def _shorter(call: Call, of: int, rows: int) -> Call:
    return Call(
        call.method, call.module, tuple(_first_rows(v, of, rows) for v in call.args), {k: _first_rows(v, of, rows) for k, v in call.kwargs.items()}
    )
