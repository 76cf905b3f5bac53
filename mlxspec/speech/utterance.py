"""The tokens of one segment of speech: how many it may take, when it goes round in circles, and one more try. Knows the loop and ids, no sound.

Speech is open-ended where text is not: a model that has lost its place repeats itself or never ends. A segment has a budget from its length in
symbols, and a tail that repeats is held back: what was let go is final, so that a sound once heard is never taken back.

Where speech names the symbols it says, the model decides when it goes on and the text to what: only the name of the symbol that is due can be drawn,
or drafted. No symbol is passed over or named twice.
"""

from collections.abc import Callable, Generator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal

import mlx.core as mx
import numpy as np

from mlxspec.audio.codes.layout import Layout
from mlxspec.core.accept import Policy
from mlxspec.core.decode import Limits, decode
from mlxspec.core.drafter import Drafter
from mlxspec.core.events import Step
from mlxspec.core.sampling import Rule, Sampler, Seen, mix
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.stats import Stats
from mlxspec.core.target import Target

Fault = Literal["overrun", "loop", "empty"]
SLACK = 2.5  # times the expected length
PERIOD = 24  # tokens of the longest repetition looked for
SUSPECT = 6  # repeated tokens from which a tail is held back
TRIES = 2


class Repeats:
    """Watches a sequence of tokens for a tail that repeats itself, whatever its period."""

    def __init__(self, certain: int) -> None:
        """``certain``: repeated tokens that leave no doubt."""
        self.certain = certain
        self.tokens: list[int] = []
        self._runs = [0] * (PERIOD + 1)  # by period: how many tokens in a row equalled the one a period before

    def see(self, token: int) -> None:
        for period in range(1, min(PERIOD, len(self.tokens)) + 1):
            self._runs[period] = self._runs[period] + 1 if self.tokens[-period] == token else 0
        self.tokens.append(token)

    @property
    def repeated(self) -> int:
        """Tokens at the end that only repeat what stands before them; 0 below two full periods."""
        return max((run for period, run in enumerate(self._runs) if period and run >= max(SUSPECT, 2 * period)), default=0)

    @property
    def stuck(self) -> bool:
        return self.repeated >= self.certain


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that are final, and the round they came from (None: they had been held back)."""

    tokens: tuple[int, ...]
    step: Step | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a segment ended. ``fault`` says what is wrong with what was let go."""

    fault: Fault | None = None
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Speaking:
    """All that drawing the tokens of a segment needs."""

    target: Target
    drafter: Drafter
    policy: Policy
    sampler: Callable[[int, Rule | None], Sampler]  # from a seed and a rule
    limits: Limits
    layout: Layout
    certain: int  # repeated tokens that leave no doubt


def utterance(
    speaking: Speaking, prompt: Sequence[int], text: Sequence[int], expected: int, seed: int, stats: list[Stats], early: bool
) -> Generator[Piece, None, Outcome]:
    """Yield the tokens of a segment as they become final. ``text``: what it has to name, in order; nothing where the voice names none.

    ``early`` lets them go as they come, but for a tail that repeats; a second try then goes on from what was let go. Otherwise a segment is let go
    when it has ended well, and a second try starts afresh.
    """
    budget = int(SLACK * expected) + 2 * speaking.certain
    out: list[int] = []
    fault: Fault | None = None
    for attempt in range(TRIES):
        watch = Repeats(speaking.certain)
        for token in out:
            watch.see(token)
        rule = Naming(text, speaking.layout.names, speaking.layout.end, speaking.layout.sounds, len(prompt)) if text else None
        sampler = speaking.sampler(mix(seed, attempt) if attempt else seed, rule)
        limits = replace(speaking.limits, max_tokens=max(budget - len(out), 0))
        ended = "length"
        steps = decode(TokenSequence(speaking.target), speaking.drafter, speaking.policy, sampler, [*prompt, *out], limits)
        counts = Stats(len(prompt), "on", None)
        stats.append(counts)
        try:
            while True:
                step = next(steps)
                if not isinstance(step, Step):
                    continue
                counts.add(step)
                for token in step.tokens:
                    if token != speaking.layout.end and not watch.stuck:
                        watch.see(token)
                if watch.stuck:
                    ended = "loop"
                    break
                if early:
                    yield _piece(watch, out, len(watch.tokens) - watch.repeated, speaking.layout.tokens_per_frame, step)
                else:
                    yield Piece((), step)
        except StopIteration as stop:
            ended = stop.value
        finally:
            steps.close()
        if ended == "interrupted":
            return Outcome(fault, interrupted=True)
        fault = "overrun" if ended == "length" else "loop" if ended == "loop" else None
        whole = len(watch.tokens) - (watch.repeated if fault == "loop" else 0)
        if fault is None and whole < speaking.layout.tokens_per_frame:
            fault = "empty"
        last = attempt == TRIES - 1 or (early and fault == "overrun")
        if fault is None or last:
            yield _piece(watch, out, whole, speaking.layout.tokens_per_frame, None)
            return Outcome(fault)
    raise AssertionError("the last try returns")


class Naming:
    """The rule by which a model's speech names the symbols of a text: codes keep their chance, and that of all names and of the end together
    is for the one that is due.

    It is worked out without waiting for tokens that are still to be evaluated.
    """

    def __init__(self, text: Sequence[int], names: frozenset[int], end: int, codes: Sequence[int], begin: int) -> None:
        """``text``: what is to be named, in order; ``begin``: the place of speech's first token."""
        self.names, self.begin = names, begin
        self.codes = np.array(codes)
        self.turns = np.array([*names, end])  # names and the end
        self.naming = mx.zeros(1 + max(*names, end, *codes), mx.bool_)
        self.naming[mx.array(self.turns)] = True
        self.due = mx.array([*text, end])
        self.named = [0]  # how many of the first tokens of speech are names
        self._read(self.codes, self.turns)

    def _read(self, codes: np.ndarray, turns: np.ndarray) -> None:
        """``codes`` and ``turns``: the columns where logits have them."""
        self.of_codes, self.of_turns, self.ids = mx.array(codes), mx.array(turns), mx.array(self.codes)
        mx.eval(self.of_codes, self.of_turns, self.ids, self.naming, self.due)  # other threads draft with it

    def over(self, ids: Sequence[int]) -> "Naming":
        """Of a drafter's tokens one may stand for all names. Counting goes on for both."""
        other, tokens = copy(self), np.array(ids)
        at = np.flatnonzero(np.isin(tokens, self.codes))
        other.codes = tokens[at]
        other._read(at, np.flatnonzero(np.isin(tokens, self.turns)))
        return other

    def __call__(self, history: Seen, ancestors: Seen, logits: mx.array) -> tuple[mx.array, mx.array]:
        """Logits (rows, vocab) after ``history`` and ``ancestors`` -> (rows, codes + 1), the last column that of what is due, and the ids."""
        while len(self.named) <= len(history) - self.begin and isinstance(token := history[self.begin + len(self.named) - 1], int):
            self.named.append(self.named[-1] + (token in self.names))
        known = min(len(history) - self.begin, len(self.named) - 1)
        place: int | mx.array = self.named[known]
        for token in (*history[self.begin + known :], *ancestors):
            place = place + (token in self.names if isinstance(token, int) else self.naming[token])
        due = self.due[mx.minimum(place, self.due.size - 1)]  # () or (rows,); what comes after the end is never heard
        total = mx.logsumexp(logits[:, self.of_turns], axis=-1, keepdims=True)
        ids = mx.concatenate([mx.broadcast_to(self.ids, (*due.shape, self.ids.size)), due[..., None]], axis=-1)
        return mx.concatenate([logits[:, self.of_codes], total], axis=-1), ids


def _piece(watch: Repeats, out: list[int], until: int, tokens_per_frame: int, step: Step | None) -> Piece:
    """What is final beyond ``out``, in whole frames; ``out`` takes it up."""
    until -= until % tokens_per_frame
    fresh = watch.tokens[len(out) : max(until, len(out))]
    out += fresh
    return Piece(tuple(fresh), step)
