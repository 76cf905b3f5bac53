"""The model that has the say: its weights, its hidden states ("taps"), and what it can do. Holds no text: that is a ``TokenSequence``.

Any mlx-lm model serves, unedited (``extend``). What a model can do is probed on the model itself.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import CacheList

from mlxspec.core.cache import Cache, TreeView, keep_rows, make_cache, parts, position
from mlxspec.core.extend import extend
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import no_numbers, number
from mlxspec.core.together import Together
from mlxspec.errors import DrafterError, MlxspecError, ModelError

Shape = Literal["tree", "chain", "none"]


@dataclass(frozen=True, slots=True)
class Rows:
    """What a forward gave a text: logits (rows, vocab), and the hidden states asked for by tap, each (rows, width). Not yet evaluated."""

    logits: mx.array
    hidden: dict[str, mx.array]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Rows of one text, to be read after what its ``cache`` holds: a chain, or a token with a tree of rows below it (``proposal``)."""

    target: "Target"
    cache: list[Cache]
    tokens: mx.array  # (rows,) uint32
    taps: Sequence[str] = ()
    proposal: Proposal | None = None
    answers: bool = True  # whether anybody looks at the logits


class Target:
    """A mlx-lm model. Taps: ``last`` is the input of the output projection (after the final norm), ``layer:3`` the output of layer 3."""

    def __init__(
        self, model: nn.Module, *, context_length: int | None = None, max_kv_size: int | None = None, kv_bits: int | None = None, chunk: int = 512
    ) -> None:
        """``chunk``: tokens of a prompt that are read in one forward."""
        self.model = model
        self.context_length = context_length
        self.max_kv_size = max_kv_size
        self.kv_bits = kv_bits
        self.chunk = chunk
        self.shape: Shape = "tree"
        self.reason: str | None = None
        self.probed = False
        self.apart: str | None = None  # why several texts are read one after the other, where they are
        self._tried_together = False
        self._taps = extend(model)
        self.vocab_size = int(self.forward([self._ask(self.cache(), [0])])[0].logits.shape[-1])

    def cache(self) -> list[Cache]:
        """The empty cache of a text."""
        return make_cache(self.model, self.max_kv_size, self.kv_bits)

    def forward(self, requests: Sequence[Request]) -> list[Rows]:
        """Read the rows of one text, or those of several in one forward."""
        if len(requests) > 1 and self._reads_together():
            return self._together(requests)
        return [self._alone(request) for request in requests]

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

    # ---- One forward ---------------------------------------------------------------------------------------------------------------------

    def _ask(self, cache: list[Cache], tokens: Sequence[int], proposal: Proposal | None = None) -> Request:
        return Request(self, cache, mx.array(list(tokens), mx.uint32), (), proposal)

    def _alone(self, request: Request) -> Rows:
        cache = request.cache
        if request.proposal is not None and not request.proposal.is_chain:
            positions, ancestors = _geometry(request.proposal, position(cache))
            cache = [TreeView(layer, positions, ancestors) for layer in cache]
        logits = self._call(request.tokens, cache, request.taps, None)
        return Rows(logits, {tap: self._taps[tap][0] for tap in request.taps})

    def _together(self, requests: Sequence[Request]) -> list[Rows]:
        rows = [request.tokens.size for request in requests]
        ends = np.cumsum(rows).tolist()
        places, views = zip(*(_seen(request) for request in requests), strict=True)
        positions = mx.concatenate(list(places))
        cache = [_joined([view[i] for view in views], rows, positions) for i in range(len(views[0]))]
        wanted = [range(end - count, end) if request.answers else range(0) for request, count, end in zip(requests, rows, ends, strict=True)]
        asked = [row for one in wanted for row in one]
        taps = list(dict.fromkeys(tap for request in requests for tap in request.taps))
        logits = self._call(mx.concatenate([request.tokens for request in requests]), cache, taps, asked if 0 < len(asked) < ends[-1] else None)
        cut = asked if logits.shape[0] == len(asked) else range(ends[-1])  # a model whose projection has another name computes them all
        place = {row: i for i, row in enumerate(cut)}
        found = []
        for request, one, count, end in zip(requests, wanted, rows, ends, strict=True):
            first = place[one[0]] if len(one) else 0
            hidden = {tap: self._taps[tap][0, end - count : end] for tap in request.taps}
            found.append(Rows(logits[first : first + len(one)], hidden))
        return found

    def _call(self, tokens: mx.array, cache: Sequence[Cache], taps: Sequence[str], answering: Sequence[int] | None) -> mx.array:
        """Logits (rows, vocab), those of the rows ``answering`` where that says which; the taps are left in ``_taps``."""
        self._taps.clear()
        self._taps.wanted = frozenset(taps)
        self._taps.answering = None if answering is None else mx.array(list(answering), mx.int32)
        try:
            logits: mx.array = self.model(tokens[None], cache=cache)[0]
        finally:
            self._taps.wanted, self._taps.answering = frozenset(), None
        for tap in taps:
            if tap not in self._taps:
                raise DrafterError(f"The target has no hidden state {tap!r} to tap: taps are last and layer:N below {len(self.model.layers)}.")
        return logits

    # ---- What it can do ------------------------------------------------------------------------------------------------------------------

    def probe(self) -> None:
        """Find out on this model what it can verify: a tree, only chains, or no drafts at all; sets ``shape`` and ``reason``. Raises ModelError where
        its logits are no numbers.

        A 6-row tree and a rewind, with random tokens, against reading each path by itself.
        """
        if self.probed:
            return
        self.probed = True
        tokens = self._random(12)
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
        try:
            cache = self.cache()
            self._logits(cache, prompt)
            rows = self._logits(cache, [prompt[0], *proposal.tokens], proposal)
            keep_rows(cache, 1 + len(proposal), [0, *(row + 1 for row in path)])
            got = mx.concatenate([rows[:1], *(rows[i + 1][None] for i in path), self._logits(cache, [prompt[1]])])
            cache = self.cache()
            self._logits(cache, prompt)
            chain = [prompt[0], *(proposal.tokens[i] for i in path), prompt[1]]
            return self._differ(got, mx.concatenate([self._logits(cache, [token]) for token in chain]))
        except ModelError:
            raise
        except MlxspecError as fault:
            return str(fault)
        except (ValueError, RuntimeError, TypeError, AttributeError, IndexError) as fault:  # whatever a model's own code raises
            return f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"

    def _reads_together(self) -> bool:
        """Whether several texts can be read in one forward: tried on this model once, with two texts of unlike length; else ``apart`` says why."""
        if not self._tried_together:
            self._tried_together = True
            self.apart = self._fault_together()
        return self.apart is None

    def _fault_together(self) -> str | None:
        tokens = self._random(16)
        rounds = [(tokens[:3], tokens[3:9]), (tokens[9:10], tokens[10:13]), (tokens[13:15], tokens[15:])]  # of each text, by turns
        try:
            caches = self.cache(), self.cache()
            got, expected = list[mx.array](), list[mx.array]()
            for both in rounds:
                rows = self._together([self._ask(cache, part) for cache, part in zip(caches, both, strict=True)])
                mx.eval([one.logits for one in rows])
                got += [one.logits for one in rows]
            for text in (0, 1):
                cache = self.cache()
                for turn, both in enumerate(rounds):
                    expected.append(self._logits(cache, both[text]))
                    got.append(got[2 * turn + text])
            return self._differ(mx.concatenate(got[2 * len(rounds) :]), mx.concatenate(expected))
        except MlxspecError as fault:
            return str(fault)
        except (ValueError, RuntimeError, TypeError, AttributeError, IndexError, KeyError) as fault:
            return f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"

    def _differ(self, got: mx.array, expected: mx.array) -> str | None:
        """In a few words, where two ways to the same logits differ by more than rounding."""
        dtype = got.dtype
        if not (expected < mx.inf).all().item():
            raise no_numbers(str(dtype).rpartition(".")[2])
        got, expected = got.astype(mx.float32), expected.astype(mx.float32)
        spread = number(mx.abs(expected - expected.mean(axis=0)).mean())
        error = number(mx.abs(got - expected).mean())
        tolerance = 1e-3 if dtype == mx.float32 and self.kv_bits is None else 0.1
        return None if error <= tolerance * spread else f"logits differ by {error:.2g} (of a spread of {spread:.2g}) from reading each path by itself"

    def _logits(self, cache: list[Cache], tokens: Sequence[int], proposal: Proposal | None = None) -> mx.array:
        """The logits of one forward, evaluated by itself: a pipelined model takes one at a time."""
        logits = self._alone(self._ask(cache, tokens, proposal)).logits
        mx.eval(logits)
        return logits

    def _random(self, count: int) -> list[int]:
        return [int(token) for token in np.random.default_rng(0).integers(0, self.vocab_size, count)]


def alone(steps: Generator[Any, Any, Any]) -> Generator[Any, None, Any]:
    """Run one text by itself: what its generator asks to be read is read at once. Yields and returns all else that it does."""
    rows: Rows | None = None
    try:
        while True:
            item = steps.send(rows)
            rows = None
            if isinstance(item, Request):
                (rows,) = item.target.forward([item])
            else:
                yield item
    except StopIteration as end:
        return end.value
    finally:
        steps.close()


def result(steps: Generator[Any, Any, Any]) -> Any:
    """Run one text's generator to its end, by itself, and give what it returns."""
    running = alone(steps)
    while True:
        try:
            next(running)
        except StopIteration as end:
            return end.value


def _seen(request: Request) -> tuple[mx.array, list[Cache]]:
    """The positions of a request's rows (rows,), and its caches as these rows see them."""
    offset = position(request.cache)
    if request.proposal is None or request.proposal.is_chain:
        return mx.arange(offset, offset + request.tokens.size, dtype=mx.int32), request.cache
    positions, ancestors = _geometry(request.proposal, offset)
    return positions, [TreeView(layer, positions, ancestors) for layer in request.cache]


def _joined(layers: Sequence[Cache], rows: Sequence[int], positions: mx.array) -> Cache:
    """One layer of several texts."""
    if isinstance(layers[0], CacheList):
        return CacheList(*(Together(part, rows, positions) for part in zip(*(parts(layer) for layer in layers), strict=True)))
    return Together(layers, rows, positions)


def _geometry(proposal: Proposal, offset: int) -> tuple[mx.array, mx.array]:
    """Positions (rows,) and who descends from whom (rows, rows), the pending token as row 0, at position ``offset``."""
    rows = 1 + len(proposal)
    ancestors = np.eye(rows, dtype=bool)
    ancestors[:, 0] = True
    for row, parent in enumerate(proposal.parents):
        if parent >= 0:
            ancestors[row + 1] |= ancestors[parent + 1]
    return mx.array([offset, *(offset + depth for depth in proposal.depths)], mx.int32), mx.array(ancestors)
