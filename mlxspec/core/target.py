"""The model that has the say: reads the prompt, runs a chain or a tree in one forward, keeps the accepted rows. Knows no drafter and no text.

Any mlx-lm model serves, unedited. Three of its modules are extended in place: ``rope`` (one position per row, by way of the batch axis), the output
projection and the layers (hidden states, "taps"). What a model can do is probed on the model itself.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlxspec.core.cache import Cache, TreeView, keep_rows, make_cache, position, restore, states
from mlxspec.core.events import Prefill
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context, no_numbers, number
from mlxspec.errors import DrafterError, MlxspecError, ModelError, RollbackError

Shape = Literal["tree", "chain", "none"]


@dataclass(frozen=True, slots=True)
class Rows:
    """What a forward gave: logits (rows, vocab), and the hidden states asked for by tap, each (rows, width). Not yet evaluated."""

    logits: mx.array
    hidden: dict[str, mx.array]


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place to which recurrent layers can go back: how many tokens had been read, and the states then."""

    length: int
    states: list[Any]


class Interrupted(Exception):
    """The reply was cancelled while the prompt was being read."""


class Target:
    """A mlx-lm model with one sequence in its cache.

    Taps: ``last`` is the input of the output projection (after the final norm), ``layer:3`` the output of layer 3.
    """

    def __init__(
        self, model: nn.Module, *, context_length: int | None = None, max_kv_size: int | None = None, kv_bits: int | None = None, chunk: int = 512
    ) -> None:
        self.model = model
        self.context_length = context_length
        self.max_kv_size = max_kv_size
        self.kv_bits = kv_bits
        self.chunk = chunk
        self.shape: Shape = "tree"
        self.reason: str | None = None
        self.probed = False
        self.user: Any = None  # the reply that has the cache now
        self._taps = _extend(model)
        self._ahead: tuple[Rows, mx.array] | None = None  # a step started early, and what it says
        self._run: tuple[int, ...] = ()  # the tokens of the last run
        self.reused = 0  # tokens of the last prompt that were in the cache already
        self.reset()
        self.vocab_size = int(self._forward(mx.array([0]), ()).logits.shape[-1])
        self.reset()

    def reset(self) -> None:
        """Forget the sequence."""
        self.cache: list[Cache] = make_cache(self.model, self.max_kv_size, self.kv_bits)
        self.tokens: list[int] = []  # what the cache holds
        self._ahead = None
        self._open = False  # rows were run and not yet kept or dropped: what the cache holds is not known
        self._anchor: Anchor | None = None

    def prefill(
        self, prompt: Sequence[int], taps: Sequence[str] = (), cancel: Event | None = None, reuse: bool = False
    ) -> Generator[Prefill, None, Rows]:
        """Read a prompt in chunks, the last token by itself; returns one row of logits, and the hidden states of what was read.

        With ``reuse`` the longest common prefix with what the cache holds is not read again, as far as the cache can go back.
        """
        self.reused = self._rewind_to(prompt) if reuse and not self._open else 0
        if not self.reused:
            self.reset()
        tokens = mx.array(list(prompt), mx.uint32)
        hidden: list[dict[str, mx.array]] = []
        yield Prefill(self.reused, len(prompt))
        for start in range(self.reused, len(prompt) - 1, self.chunk):
            if cancel is not None and cancel.is_set():
                raise Interrupted
            end = min(start + self.chunk, len(prompt) - 1)
            rows = self._forward(tokens[start:end], taps)
            mx.eval([layer.state for layer in self.cache], rows.hidden)  # the logits are never computed
            hidden.append(rows.hidden)
            self.tokens = list(prompt[:end])
            yield Prefill(end, len(prompt))
        self._anchor = Anchor(len(prompt) - 1, states(self.cache))
        rows = self._forward(tokens[-1:], taps)
        mx.eval(rows.logits, rows.hidden)
        self.tokens = list(prompt)
        yield Prefill(len(prompt), len(prompt))
        hidden.append(rows.hidden)
        return Rows(rows.logits, {tap: mx.concatenate([part[tap] for part in hidden]) for tap in taps})

    def admit(self, proposal: Proposal, limit: int, vocab_size: int) -> Proposal:
        """The proposal, once checked: a tree in order, over the tokens that exist, and of a shape this target can verify."""
        if not proposal.tokens and not proposal.parents:
            return proposal
        proposal.check(vocab_size, limit)
        if self.shape == "none":
            raise DrafterError(f"This target takes no drafts ({self.reason}): use --drafter none.")
        if self.shape == "chain" and not proposal.is_chain:
            raise DrafterError(f"This target verifies chains only ({self.reason}) and the drafter proposed a tree: keep to one child a row.")
        return proposal

    def run(self, token: int, proposal: Proposal, taps: Sequence[str], context: Context) -> Rows:
        """Read the pending token and the proposal's rows in one forward. Row 0 is the pending token.

        Where the next proposal will be empty too, the next step is started at once on the token about to be drawn, as mlx-lm does.
        """
        if self._ahead is not None:
            if len(proposal):
                raise DrafterError("The drafter said it would rest and proposed all the same: leave Proposal.rest False.")
            (rows, drawn), self._ahead = self._ahead, None
            context.remember(drawn)
        else:
            rows = self._forward(mx.array([token, *proposal.tokens], mx.uint32), taps, proposal)
        self._run = (token, *proposal.tokens)
        self._open = True
        if proposal.rest:
            first = context.first(rows.logits)
            ahead = self._forward(first[None], taps)
            drawn = context.after(first).draw(ahead.logits[0])
            self._ahead = ahead, drawn
            mx.async_eval(drawn, ahead.logits)
        return rows

    def keep(self, path: Sequence[int]) -> None:
        """Of the last run keep the pending token and the proposal's rows on ``path``, and drop the others."""
        kept = [0, *(row + 1 for row in path)]
        keep_rows(self.cache, len(self._run), kept)
        self.tokens += [self._run[row] for row in kept]
        self._open = False

    def settle(self) -> None:
        """Drop the step that was started ahead and is not wanted."""
        if self._ahead is not None:
            keep_rows(self.cache, 1, ())
            self._ahead = None

    def _rewind_to(self, prompt: Sequence[int]) -> int:
        """Go back to the longest common prefix with a prompt, its last token left out; returns its length, 0 where the cache cannot go back."""
        common = next((i for i, (a, b) in enumerate(zip(self.tokens, prompt, strict=False)) if a != b), min(len(self.tokens), len(prompt)))
        common = min(common, len(prompt) - 1)
        try:
            keep_rows(self.cache, len(self.tokens) - common, ())
        except RollbackError:
            anchor = self._anchor
            if anchor is None or anchor.length > common or not restore(self.cache, anchor.states, len(self.tokens) - anchor.length):
                return 0
            common = anchor.length
        self.tokens = list(prompt[:common])
        return common

    def probe(self) -> None:
        """Find out on this model what it can verify: a tree, only chains, or no drafts at all; sets ``shape`` and ``reason``.

        A 6-row tree and a rewind, with random tokens, against reading each path by itself.
        """
        if not self.probed:
            self.probed = True
            with self.scratch():
                self._probe()

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """A time with a cache of its own; the sequence is there again after it."""
        kept = self.cache, self._ahead, self._run, self.tokens, self._anchor
        self.reset()
        try:
            yield
        finally:
            self.cache, self._ahead, self._run, self.tokens, self._anchor = kept

    def _probe(self) -> None:
        tokens = [int(t) for t in np.random.default_rng(0).integers(0, self.vocab_size, 12)]
        tree = Proposal((tokens[0], tokens[1], tokens[2], tokens[1], tokens[3]), (-1, 0, -1, 2, 2))
        trials: tuple[tuple[Shape, Proposal, tuple[int, ...]], ...] = (
            ("tree", tree, (2, 4)),
            ("chain", Proposal.chain(tokens[:5]), (0, 1)),
        )
        if len(set(tokens[:4])) < 4:
            trials = trials[1:]
        reasons = []
        for shape, proposal, path in trials:
            fault = self._fault(proposal, path, tokens[4:])
            if fault is None:
                self.shape = shape
                break
            reasons.append(f"{shape}: {fault}")
        else:
            self.shape = "none"
        self.reason = "; ".join(reasons) or None

    def _fault(self, proposal: Proposal, path: tuple[int, ...], prompt: Sequence[int]) -> str | None:
        """What goes wrong with one proposal, in a few words, or None."""

        def read(tokens: Sequence[int], proposal: Proposal | None = None) -> mx.array:
            logits = self._forward(mx.array(list(tokens), mx.uint32), (), proposal).logits
            mx.eval(logits)  # each forward by itself: a model in several processes cannot take two at once
            return logits

        try:
            self.reset()
            read(prompt)
            rows = read([prompt[0], *proposal.tokens], proposal)
            self._run = (prompt[0], *proposal.tokens)
            self.keep(path)
            after = read([prompt[1]])
            got = mx.concatenate([rows[:1], *(rows[i + 1][None] for i in path), after])
            self.reset()
            read(prompt)
            chain = [prompt[0], *(proposal.tokens[i] for i in path), prompt[1]]
            expected = mx.concatenate([read([token]) for token in chain])
            if not (expected < mx.inf).all().item():
                raise no_numbers(str(expected.dtype).rpartition(".")[2])
            got, expected = got.astype(mx.float32), expected.astype(mx.float32)
            spread = number(mx.abs(expected - expected.mean(axis=0)).mean())
            error = number(mx.abs(got - expected).mean())
        except ModelError:
            raise
        except MlxspecError as fault:
            return str(fault)
        except (ValueError, RuntimeError, TypeError, AttributeError, IndexError) as fault:  # whatever a model's own code raises
            return f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"
        tolerance = 1e-3 if rows.dtype == mx.float32 and self.kv_bits is None else 0.1
        return None if error <= tolerance * spread else f"logits differ by {error:.2g} (of a spread of {spread:.2g}) from reading each path by itself"

    def _forward(self, tokens: mx.array, taps: Sequence[str], proposal: Proposal | None = None) -> Rows:
        cache = self.cache
        if proposal is not None and not proposal.is_chain:
            positions, ancestors = _geometry(proposal, self.cache)
            cache = [TreeView(layer, positions, ancestors) for layer in cache]
        self._taps.clear()
        self._taps.wanted = frozenset(taps)
        logits = self.model(tokens[None], cache=cache)[0]
        self._taps.wanted = frozenset()
        for tap in taps:
            if tap not in self._taps:
                raise DrafterError(f"The target has no hidden state {tap!r} to tap: taps are last and layer:N below {len(self.model.layers)}.")
        return Rows(logits, {tap: self._taps[tap][0] for tap in taps})


class Taps(dict[str, mx.array]):
    """The hidden states of a model's latest forward, those that are wanted; each (1, rows, width)."""

    wanted: frozenset[str] = frozenset()

    def record(self, tap: str, value: mx.array) -> None:
        if tap in self.wanted:
            self[tap] = value


def _geometry(proposal: Proposal, cache: Sequence[Cache]) -> tuple[mx.array, mx.array]:
    """Positions (rows,) and who descends from whom (rows, rows), the pending token as row 0."""
    offset = position(cache)
    rows = 1 + len(proposal)
    ancestors = np.eye(rows, dtype=bool)
    ancestors[:, 0] = True
    for row, parent in enumerate(proposal.parents):
        if parent >= 0:
            ancestors[row + 1] |= ancestors[parent + 1]
    return mx.array([offset, *(offset + depth for depth in proposal.depths)], mx.int32), mx.array(ancestors)


def _extend(model: nn.Module) -> Taps:
    """Give a model's rope modules, output projection and layers their extra abilities, once. Weights and names stay as they are."""
    if "_mlxspec_taps" in vars(model):
        extended: Taps = vars(model)["_mlxspec_taps"]
        return extended
    taps = Taps()
    object.__setattr__(model, "_mlxspec_taps", taps)
    layers = {id(layer): f"layer:{i}" for i, layer in enumerate(model.layers)}
    modules = {id(module): (name.rpartition(".")[2], module) for name, module in model.named_modules()}
    for key, (leaf, module) in modules.items():
        if leaf == "rope":
            _subclass(module, "__call__", _rope_by_row)
        elif leaf == "lm_head":
            _subclass(module, "__call__", partial(_tapped, record=taps.record))
        elif isinstance(module, nn.Embedding | nn.QuantizedEmbedding):
            _subclass(module, "as_linear", partial(_tapped, record=taps.record))
        elif key in layers:
            _subclass(module, "__call__", partial(_tapped_output, record=taps.record, tap=layers[key]))
    return taps


def _subclass(module: nn.Module, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace one method of one module, by way of a class of its own that is named like the old one."""
    base = type(module)
    module.__class__ = type(base.__name__, (base,), {"__module__": base.__module__, name: wrap(getattr(base, name))})


def _rope_by_row(method: Any) -> Any:
    def call(self: nn.Module, x: mx.array, offset: int | mx.array = 0, **more: Any) -> mx.array:
        if not (isinstance(offset, mx.array) and offset.ndim == 1 and offset.size != x.shape[0]):  # one offset a sequence is mlx-lm's own batching
            return method(self, x, offset=offset, **more)
        return method(self, x.transpose(2, 1, 0, 3), offset=offset, **more).transpose(2, 1, 0, 3)  # (1, heads, rows, dim), rows as the batch

    return call


def _tapped(method: Any, record: Callable[[str, mx.array], None]) -> Any:
    def call(self: nn.Module, x: mx.array) -> mx.array:
        record("last", x)
        return method(self, x)

    return call


def _tapped_output(method: Any, record: Callable[[str, mx.array], None], tap: str) -> Any:
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        out = method(self, *args, **kwargs)
        record(tap, out[0] if isinstance(out, tuple) else out)
        return out

    return call
