"""One text under way: its tokens, its cache, and how both go back. Knows the target by what it is asked to read.

Its generators yield ``Request`` where rows are to be read and are sent ``Rows``. So who runs them decides whether a text is read by itself
(``target.alone``) or with others in one forward (``batch.together``).
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

import mlx.core as mx

from mlxspec.core.cache import Cache, copied, keep_rows, restore, states
from mlxspec.core.events import Prefill
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context
from mlxspec.core.target import Request, Rows, Target
from mlxspec.errors import DrafterError, RollbackError

Reading = Generator[Request, Rows, Rows]


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place to which recurrent layers can go back: how many tokens had been read, and the states then."""

    length: int
    states: list[Any]


class Interrupted(Exception):
    """The reply was cancelled while the prompt was being read."""


class TokenSequence:
    """One text of a target. Read a prompt, then by turns run rows and keep some of them."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.user: Any = None  # the reply that is being written here
        self.reused = 0  # tokens of the last prompt that were in the cache already
        self.reset()

    def reset(self) -> None:
        """Forget the text."""
        self.cache: list[Cache] = self.target.cache()
        self.tokens: list[int] = []  # what the cache holds
        self._ahead: tuple[Rows, mx.array] | None = None  # a step started early, and what it says
        self._run: tuple[int, ...] = ()  # the tokens of the last run
        self._open = False  # rows were run and not yet kept or dropped: what the cache holds is not known
        self._anchor: Anchor | None = None

    def fork(self) -> "TokenSequence":
        """Another text that begins as this one. Neither sees what the other reads from here on."""
        other = TokenSequence(self.target)
        other.cache, other.tokens, other._open, other._anchor = copied(self.cache), list(self.tokens), self._open, self._anchor
        return other

    def read(
        self, prompt: Sequence[int], taps: Sequence[str] = (), cancel: Event | None = None, known: int = 0
    ) -> Generator[Prefill | Request, Rows, Rows]:
        """Read a prompt in chunks, the last token by itself; returns one row of logits, and the hidden states of what was read.

        The longest common prefix with what the cache holds is not read again, as far as the cache can go back, but for what is beyond the first
        ``known`` tokens: who wants the hidden states has not seen those.
        """
        self.reused = self._rewind_to(prompt, known) if known and not self._open else 0
        if not self.reused:
            self.reset()
        tokens = mx.array(list(prompt), mx.uint32)
        hidden: list[dict[str, mx.array]] = []
        yield Prefill(self.reused, len(prompt))
        for start in range(self.reused, len(prompt) - 1, self.target.chunk):
            if cancel is not None and cancel.is_set():
                raise Interrupted
            end = min(start + self.target.chunk, len(prompt) - 1)
            self._open = True
            rows = yield self._request(tokens[start:end], taps, answers=False)
            mx.eval([layer.state for layer in self.cache], rows.hidden)  # the logits are never computed
            hidden.append(rows.hidden)
            self.tokens, self._open = list(prompt[:end]), False
            yield Prefill(end, len(prompt))
        self._anchor = Anchor(len(prompt) - 1, states(self.cache))
        self._open = True
        rows = yield self._request(tokens[-1:], taps)
        mx.eval(rows.logits, rows.hidden)
        self.tokens, self._open = list(prompt), False
        yield Prefill(len(prompt), len(prompt))
        hidden.append(rows.hidden)
        return Rows(rows.logits, {tap: mx.concatenate([part[tap] for part in hidden]) for tap in taps})

    def run(self, token: int, proposal: Proposal, taps: Sequence[str], context: Context) -> Reading:
        """Read the pending token and the proposal's rows in one forward. Row 0 is the pending token.

        Where the next proposal will be empty too, the next step is started at once on the token about to be drawn, as mlx-lm does.
        """
        self._open = True
        if self._ahead is not None:
            if len(proposal):
                raise DrafterError("The drafter said it would rest and proposed all the same: leave Proposal.rest False.")
            (rows, drawn), self._ahead = self._ahead, None
            context.remember(drawn)
        else:
            rows = yield self._request(mx.array([token, *proposal.tokens], mx.uint32), taps, proposal)
        self._run = (token, *proposal.tokens)
        if proposal.rest:
            first = context.first(rows.logits)
            ahead = yield self._request(first[None], taps)
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

    def _request(self, tokens: mx.array, taps: Sequence[str], proposal: Proposal | None = None, answers: bool = True) -> Request:
        return Request(self.target, self.cache, tokens, taps, proposal, answers)

    def _rewind_to(self, prompt: Sequence[int], known: int) -> int:
        """Go back to the longest common prefix with a prompt, of ``known`` tokens at most and its last token left out.

        Returns its length, 0 where the cache cannot go back.
        """
        common = next((i for i, (a, b) in enumerate(zip(self.tokens, prompt, strict=False)) if a != b), min(len(self.tokens), len(prompt)))
        common = min(common, len(prompt) - 1, known)
        try:
            keep_rows(self.cache, len(self.tokens) - common, ())
        except RollbackError:
            anchor = self._anchor
            if anchor is None or anchor.length > common or not restore(self.cache, anchor.states, len(self.tokens) - anchor.length):
                return 0
            common = anchor.length
        self.tokens = list(prompt[:common])
        return common
