"""The tokens of one segment of speech: how many it may take, when it goes round in circles, and one more try. Knows the loop and ids, no sound.

Speech is open-ended where text is not: a model that has lost its place repeats itself or never ends. A segment has a budget from its length in
symbols, and a tail that repeats is held back: what was let go is final, so that a sound once heard is never taken back.

Where speech names the symbols it says, the model decides when it goes on and the text to what: a name that is drawn stands for the symbol that is
due. No symbol is passed over or named twice. That is a law of its own, the same for every drafter.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

from mlxspec.accept import Policy
from mlxspec.decode import Limits, decode
from mlxspec.drafters import Drafter
from mlxspec.events import Step
from mlxspec.proposal import Proposal
from mlxspec.sampling import Sampler, mix
from mlxspec.stats import Stats
from mlxspec.target import Target

Fault = Literal["overrun", "loop", "lost", "empty"]
SLACK = 2.5  # times the expected length
PERIOD = 24  # tokens of the longest repetition looked for
SUSPECT = 6  # repeated tokens from which a tail is held back
TRIES = 2
LOST, FEW = 0.25, 4  # the share of wrong names above which speech does not follow its text; so many are always let pass
NOTHING = Proposal((), ())
FAULTS: dict[str, Fault] = {"length": "overrun", "loop": "loop", "lost": "lost"}  # by how a decode ended


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
    sampler: Callable[[int], Sampler]  # from a seed
    limits: Limits
    end: int
    names: frozenset[int]  # tokens that name symbols
    tokens_per_frame: int
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
        ended = "length"
        steps = followed(speaking, prompt, text, out, speaking.sampler(mix(seed, attempt) if attempt else seed), budget)
        counts = Stats(len(prompt), "on", None)
        stats.append(counts)
        try:
            while True:
                step = next(steps)
                counts.add(step)
                for token in step.tokens:
                    if token != speaking.end and not watch.stuck:
                        watch.see(token)
                if watch.stuck:
                    ended = "loop"
                    break
                if early:
                    yield _piece(watch, out, len(watch.tokens) - watch.repeated, speaking.tokens_per_frame, step)
                else:
                    yield Piece((), step)
        except StopIteration as stop:
            ended = stop.value
        finally:
            steps.close()
        if ended == "interrupted":
            return Outcome(fault, interrupted=True)
        fault = FAULTS.get(ended)
        whole = len(watch.tokens) - (watch.repeated if fault == "loop" else 0)
        if fault is None and whole < speaking.tokens_per_frame:
            fault = "empty"
        last = attempt == TRIES - 1 or (early and fault == "overrun")
        if fault is None or last:
            yield _piece(watch, out, whole, speaking.tokens_per_frame, None)
            return Outcome(fault)
    raise AssertionError("the last try returns")


def followed(
    speaking: Speaking, prompt: Sequence[int], text: Sequence[int], before: Sequence[int], sampler: Sampler, budget: int
) -> Generator[Step, None, str]:
    """The steps of a decode from ``before`` on, in which each name is that of the symbol that is due, and the end comes after all of them.

    Where the model draws another one, the right one stands in its place and decoding goes on from there, so noise by position stays what it was.
    Returns why it ended; ``lost`` where that happened too often.
    """
    said, wrong = list(before), 0
    place = sum(token in speaking.names for token in said)
    while True:
        limits = replace(speaking.limits, max_tokens=max(budget - len(said), 0), reuse=wrong > 0)
        with closing(decode(speaking.target, speaking.drafter, speaking.policy, sampler, [*prompt, *said], limits)) as steps:
            right = True
            while right:
                try:
                    step = next(steps)
                except StopIteration as stop:
                    ended: str = stop.value
                    return ended
                if not isinstance(step, Step):
                    continue
                tokens = list[int]()
                for token in step.tokens:
                    if text and (token == speaking.end or token in speaking.names):
                        due = text[place] if place < len(text) else speaking.end
                        place, right, token = place + 1, token == due, due
                    tokens.append(token)
                    if not right:
                        break
                said += tokens
                proposal = NOTHING if wrong and step.proposal is None else step.proposal  # what a new decode begins with is a round like others
                yield replace(step, tokens=tuple(tokens), path=step.path[: len(tokens) - 1], proposal=proposal)
        if said[-1] == speaking.end:
            return "stop"
        wrong += 1
        if wrong > max(FEW, len(text) * LOST):
            return "lost"


def _piece(watch: Repeats, out: list[int], until: int, tokens_per_frame: int, step: Step | None) -> Piece:
    """What is final beyond ``out``, in whole frames; ``out`` takes it up."""
    until -= until % tokens_per_frame
    fresh = watch.tokens[len(out) : max(until, len(out))]
    out += fresh
    return Piece(tuple(fresh), step)
