"""Many sequences at once: the target writes a whole queue of jobs in one batch, and says at every token what it saw. Knows no text and no files.

The batch is refilled when an eighth of it is done; the caches are mlx-lm's own batch caches. What comes out of each step beside the token (the last
hidden state, the likeliest tokens and their log-probabilities) is what a drafter is trained on, so no second pass over the text is needed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

TOP = 16  # the likeliest tokens that are kept of each distribution
PREFILL = 2048  # tokens read in one forward


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt, and one sequence to write from it for each temperature."""

    prompt: list[int]
    temperatures: tuple[float, ...]
    limit: int
    min_p: float = 0.0
    features: bool = True
    tag: Any = None


@dataclass(slots=True)
class Written:
    """A finished sequence. Row i of the features belongs to the token before ``tokens[i]``: what the target saw when it said that token."""

    job: Job
    temperature: float
    tokens: list[int] = field(default_factory=list)
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)
    stopped: bool = False

    def features(self) -> dict[str, np.ndarray]:
        """hidden (tokens, width), ids and logprobs (tokens, TOP), in float16 and int32."""
        hidden, ids, logprobs = (np.stack(part) for part in zip(*self.rows, strict=True))
        return {"hidden": hidden, "ids": ids, "logprobs": logprobs}


class LastHidden:
    """The input of a model's output projection (after the final norm) in its latest forward, while the context is open."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.value: mx.array | None = None
        self.classes: list[tuple[nn.Module, type]] = []

    def __enter__(self) -> "LastHidden":
        for name, module in self.model.named_modules():
            if name.rpartition(".")[2] == "lm_head":
                self._listen(module, "__call__")
            elif isinstance(module, nn.Embedding | nn.QuantizedEmbedding):
                self._listen(module, "as_linear")
        return self

    def __exit__(self, *error: object) -> None:
        for module, kind in self.classes:
            module.__class__ = kind
        self.classes.clear()

    def _listen(self, module: nn.Module, name: str) -> None:
        base = type(module)
        method: Any = getattr(base, name)

        def call(inner: nn.Module, x: mx.array) -> mx.array:
            self.value = x
            return method(inner, x)

        self.classes.append((module, base))
        module.__class__ = type(base.__name__, (base,), {"__module__": base.__module__, name: call})


class BatchWriter:
    """Writes jobs with a model. The same jobs and seed give the same sequences (on the same machine, with the same BLAS threads)."""

    def __init__(self, model: nn.Module, stop_tokens: Sequence[int], batch: int, seed: int, vocab_size: int, prefix: Sequence[int] = ()) -> None:
        """``prefix`` is what most prompts start with: it is read once."""
        self.model = model
        self.stop_tokens = frozenset(stop_tokens)
        self.batch = batch
        self.vocab_size = vocab_size
        self.rng = np.random.default_rng(seed)
        self.tap = LastHidden(model)
        self.live: list[Written] = []
        self.cache: list[Any] = []
        self.prefix = list(prefix)
        self.prefix_cache: list[Any] = make_prompt_cache(model)
        if self.prefix:
            model(mx.array([self.prefix]), cache=self.prefix_cache)
            mx.eval([layer.state for layer in self.prefix_cache])

    def run(self, jobs: Sequence[Job], done: Callable[[Written], Sequence[Job]]) -> Iterator[int]:
        """Write all jobs, and those that ``done`` answers a finished sequence with. Yields the tokens written in each step."""
        queue = deque(jobs)
        while queue or self.live:
            finished = [i for i, one in enumerate(self.live) if one.stopped]
            if not self.live or len(finished) == len(self.live) or (len(self.live) - len(finished) <= self.batch * 7 // 8 and (queue or finished)):
                self._keep([i for i, one in enumerate(self.live) if not one.stopped])
                self._refill(queue)
            if not self.live:
                continue
            written = self._step()
            for one in written:
                if one.stopped:
                    queue.extend(done(one))
            yield len(written)

    def _keep(self, places: list[int]) -> None:
        if len(places) == len(self.live):
            return
        self.live = [self.live[i] for i in places]
        if not places:
            self.cache = []
        for layer in self.cache:
            layer.filter(mx.array(places))

    def _refill(self, queue: deque[Job]) -> None:
        """Read prompts until the batch is full: those of like length together, padded on the left."""
        room, chosen = self.batch - len(self.live), []
        while queue and room >= len(queue[0].temperatures):
            chosen.append(queue.popleft())
            room -= len(chosen[-1].temperatures)
        if queue and not chosen and not self.live:
            chosen.append(queue.popleft())
        chosen.sort(key=lambda job: len(job.prompt))
        while chosen:
            group = [chosen.pop(0)]
            while chosen and len(chosen[0].prompt) * (len(group) + 1) <= PREFILL:
                group.append(chosen.pop(0))
            self._read(group)

    def _read(self, group: list[Job]) -> None:
        """Read prompts but for their last token, which the first step reads. The longest prefix that was read before is not read again."""
        known = all(job.prompt[: len(self.prefix)] == self.prefix and len(job.prompt) > len(self.prefix) for job in group)
        start = len(self.prefix) if known else 0
        cache = [layer.merge([layer] * len(group)) for layer in (self.prefix_cache if known else make_prompt_cache(self.model))]
        lengths = [len(job.prompt) - 1 - start for job in group]
        longest = max(lengths)
        if longest:
            padding = [longest - length for length in lengths]
            if any(padding):
                for layer in cache:
                    layer.prepare(lengths=lengths, right_padding=padding)
            tokens = mx.array([job.prompt[start:-1] + [0] * pad for job, pad in zip(group, padding, strict=True)])
            self.model(tokens, cache=cache)  # the logits are never computed
            if any(padding):
                for layer in cache:
                    layer.finalize()
        rows = mx.array([i for i, job in enumerate(group) for _ in job.temperatures])
        for layer in cache:
            layer.filter(rows)
        mx.eval([layer.state for layer in cache if not layer.empty()])
        self.live += [Written(job, temperature) for job in group for temperature in job.temperatures]
        if not self.cache:
            self.cache = cache
        else:
            for layer, more in zip(self.cache, cache, strict=True):
                layer.extend(more)
        mx.eval([layer.state for layer in self.cache if not layer.empty()])
        mx.clear_cache()

    def _step(self) -> list[Written]:
        """One token for every sequence that is not done; returns those."""
        last = mx.array([[one.tokens[-1] if one.tokens else one.job.prompt[-1]] for one in self.live])
        with self.tap:
            logits = self.model(last, cache=self.cache)[:, -1, : self.vocab_size].astype(mx.float32)
        assert self.tap.value is not None
        hidden = self.tap.value[:, -1].astype(mx.float16)
        mx.eval(logits, hidden)
        rows, states = np.array(logits), np.array(hidden)
        ids, logprobs = likeliest(rows)
        drawn = draw(rows, [one.temperature for one in self.live], [one.job.min_p for one in self.live], self.rng.random(len(self.live)))
        going = []
        for i, one in enumerate(self.live):
            if one.stopped:
                continue
            one.tokens.append(int(drawn[i]))
            if one.job.features:
                one.rows.append((states[i], ids[i], logprobs[i]))
            one.stopped = one.tokens[-1] in self.stop_tokens or len(one.tokens) >= one.job.limit
            going.append(one)
        return going


def draw(logits: np.ndarray, temperatures: Sequence[float], min_p: Sequence[float], uniform: np.ndarray) -> list[int]:
    """One token a row, by the inverse of the cumulative distribution; rows of temperature 0 take the likeliest.

    In NumPy: on the CPU its exp is several times as fast as MLX's.
    """
    drawn = logits.argmax(axis=-1).tolist()
    for row, heat in enumerate(temperatures):
        if heat > 0:
            weights = np.exp((logits[row] - logits[row, drawn[row]]) / np.float32(heat))
            if min_p[row]:
                weights[weights < min_p[row]] = 0
            total = np.cumsum(weights, dtype=np.float64)
            drawn[row] = min(int(np.searchsorted(total, uniform[row] * total[-1], side="right")), len(total) - 1)
    return drawn


def likeliest(logits: np.ndarray, count: int = TOP) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` likeliest tokens (rows, count), best first, in int32, and their log-probabilities in float16.

    Found by blocks: the best 16 tokens lie in the 16 blocks whose own best is highest.
    """
    rows, vocab = logits.shape
    count, side = min(count, vocab), 128
    whole = vocab // side * side
    names, values = np.broadcast_to(np.arange(vocab), logits.shape), logits
    if vocab > 4 * side * count:
        blocks = logits[:, :whole].reshape(rows, -1, side)
        best = np.argpartition(-blocks.max(axis=-1), count - 1, axis=-1)[:, :count]
        rest = np.broadcast_to(np.arange(whole, vocab), (rows, vocab - whole))
        names = np.concatenate([(best[:, :, None] * side + np.arange(side)).reshape(rows, -1), rest], axis=1)
        values = np.take_along_axis(logits, names, axis=1)
    order = np.argpartition(-values, count - 1, axis=-1)[:, :count]
    order = np.take_along_axis(order, np.argsort(-np.take_along_axis(values, order, axis=-1), axis=-1, kind="stable"), axis=-1)
    found = np.take_along_axis(values, order, axis=-1)
    total = np.log(np.exp(logits - found[:, :1]).sum(axis=-1, keepdims=True)) + found[:, :1]
    return np.take_along_axis(names, order, axis=-1).astype(np.int32), (found - total).astype(np.float16)
