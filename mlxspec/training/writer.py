"""A queue of jobs for a target to write, many texts at once, with what it saw at every token. Knows no text and no files.

The loop is the one that everything is decoded with. What a drafter is trained on (the last hidden state, the likeliest tokens and their
log-probabilities) comes out of the same forward as the token, so no second pass over the text is needed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from mlxspec.core.accept import Coupled, coupled
from mlxspec.core.batch import Ended, together
from mlxspec.core.decode import Limits, loop
from mlxspec.core.drafter import NoDrafter
from mlxspec.core.events import Step
from mlxspec.core.proposal import Proposal, Verdict
from mlxspec.core.sampling import Context, Sampler, mix
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import Target, result

TOP = 16  # the likeliest tokens that are kept of each distribution


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt, and one text to write from it for each temperature."""

    prompt: list[int]
    temperatures: tuple[float, ...]
    limit: int
    min_p: float = 0.0
    features: bool = True
    tag: Any = None


@dataclass(slots=True)
class Written:
    """A finished text. Row i of the features belongs to the token before ``tokens[i]``: what the target saw when it said that token."""

    job: Job
    temperature: float
    tokens: list[int] = field(default_factory=list)
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)

    def features(self) -> dict[str, np.ndarray]:
        """hidden (tokens, width), ids and logprobs (tokens, TOP), in float16 and int32."""
        hidden, ids, logprobs = (np.stack(part) for part in zip(*self.rows, strict=True))
        return {"hidden": hidden, "ids": ids, "logprobs": logprobs}


class Watching(NoDrafter):
    """Drafts nothing, and keeps the hidden state from which each token was said."""

    taps = ("last",)

    def __init__(self) -> None:
        super().__init__()
        self.states: list[mx.array] = []  # (width,) each

    def begin(self, prompt: Sequence[int], hidden: dict[str, mx.array], reused: int) -> None:
        self.states.append(hidden["last"][-1])

    def accept(self, path: Sequence[int], token: int, hidden: dict[str, mx.array]) -> None:
        self.states.append(hidden["last"][0])


class Noting(Coupled):
    """The coupled rule, with the likeliest tokens of each place as its note."""

    def __call__(self, proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
        verdict = coupled(proposal, logits, context)
        seen = np.array(logits[:1, : context.sampler.vocab_size].astype(mx.float32))
        ids, logprobs = likeliest(seen)
        return Verdict(verdict.path, verdict.token, (ids[0], logprobs[0]))


class Writer:
    """Writes jobs with a target. The same jobs and seed give the same texts (on the same machine, with the same BLAS threads)."""

    def __init__(self, target: Target, stop_tokens: Sequence[int], batch: int, seed: int, vocab_size: int, prefix: Sequence[int] = ()) -> None:
        """``prefix`` is what most prompts start with: it is read once."""
        self.target = target
        self.stop_tokens = frozenset(stop_tokens)
        self.batch = batch
        self.seed = seed
        self.vocab_size = vocab_size
        self.begun = 0  # texts
        self.prefix = TokenSequence(target)
        if prefix:
            result(self.prefix.read(prefix))

    def run(self, jobs: Sequence[Job], done: Callable[[Written], Sequence[Job]]) -> Iterator[int]:
        """Write all jobs, and those that ``done`` answers a finished text with. Yields the tokens written in each round of each text."""
        queue = deque((job, temperature) for job in jobs for temperature in job.temperatures)
        drafters: dict[int, Watching | NoDrafter] = {}
        writing: dict[int, Written] = {}

        def more() -> tuple[int, Any] | None:
            if not queue:
                return None
            job, temperature = queue.popleft()
            key = self.begun = self.begun + 1
            sampler = Sampler(self.vocab_size, temperature=temperature, min_p=job.min_p, seed=mix(self.seed, key))
            drafters[key], writing[key] = Watching() if job.features else NoDrafter(), Written(job, temperature)
            limits = Limits(max_tokens=job.limit, stop_tokens=self.stop_tokens, reuse=True)
            return key, loop(self.prefix.fork(), drafters[key], Noting() if job.features else coupled, sampler, job.prompt, limits)

        for key, event in together(more, self.batch):
            one = writing[key]
            if isinstance(event, Step):
                one.tokens += event.tokens
                if one.job.features:
                    state = drafters[key].states.pop()  # type: ignore[union-attr]
                    one.rows.append((np.array(state.astype(mx.float16)), *event.note))
                yield len(event.tokens)
            elif isinstance(event, Ended):
                if event.error is not None:
                    raise event.error
                del writing[key], drafters[key]
                queue.extend((job, temperature) for job in done(one) for temperature in job.temperatures)


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
