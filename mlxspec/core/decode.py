"""The loop: propose, run, judge, keep. It serves every drafter and every rule; plain decoding is the same loop with empty proposals.

Knows tokens only: no text, no terminal, no sound.
"""

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from threading import Event

from mlxspec.core.accept import Policy
from mlxspec.core.drafter import Drafter
from mlxspec.core.events import Prefill, Step
from mlxspec.core.proposal import Proposal, Verdict
from mlxspec.core.sampling import Sampler, whole
from mlxspec.core.target import Interrupted, Target


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a reply ends, and how far a round may look ahead. ``draft_tokens`` None leaves that to the drafter."""

    max_tokens: int = -1
    stop_tokens: frozenset[int] = frozenset()
    draft_tokens: int | None = None
    width: int | None = None
    rows: int | None = None
    coupled: bool = True
    cancel: Event | None = None
    reuse: bool = False


def decode(
    target: Target, drafter: Drafter, policy: Policy, sampler: Sampler, prompt: Sequence[int], limits: Limits
) -> Generator[Prefill | Step, None, str]:
    """Yield prefill progress, then a Step a round; return why it ended: stop, length or interrupted.

    The last emitted token is pending: not in the caches. ``emitted`` counts it; a stop token is emitted, and nothing after it.
    """
    room = limits.max_tokens if limits.max_tokens >= 0 else math.inf
    if target.context_length is not None:
        room = min(room, target.context_length - len(prompt))
    if room <= 0:
        return "length"
    shape = {"coupled": limits.coupled, "width": 1 if target.shape == "chain" else limits.width, "rows": limits.rows}
    history = list(prompt)
    try:
        rows = yield from target.prefill(prompt, drafter.taps, limits.cancel, limits.reuse)
        drafter.begin(prompt, rows.hidden, target.reused)
        token = whole(sampler.at(history, **shape).draw(rows.logits[-1]))
        history.append(token)
        room -= 1
        yield Step((token,))
        while room > 0 and token not in limits.stop_tokens:
            if limits.cancel is not None and limits.cancel.is_set():
                return "interrupted"
            limit = int(min(drafter.depth if limits.draft_tokens is None else limits.draft_tokens, room - 1))

            started = time.perf_counter()
            context = sampler.at(history, **shape)
            proposal = target.admit(drafter.propose(token, limit, context), limit, sampler.vocab_size)
            drafted = time.perf_counter()
            rows = target.run(token, proposal, drafter.taps, context)
            verdict = _cut(policy(proposal, rows.logits, context), proposal, limits.stop_tokens)
            verified = time.perf_counter()
            target.keep(verdict.path)
            drafter.accept(verdict.path, verdict.token, rows.hidden)
            ended = time.perf_counter()

            token = verdict.token
            tokens = (*(proposal.tokens[row] for row in verdict.path), token)
            room -= len(tokens)
            history.extend(tokens)
            seconds = {"draft": drafted - started, "verify": verified - drafted, "other": ended - verified}
            yield Step(tokens, proposal, verdict.path, seconds, drafter.name, verdict.note)
        return "stop" if token in limits.stop_tokens else "length"
    except Interrupted:
        return "interrupted"
    finally:
        target.settle()


def _cut(verdict: Verdict, proposal: Proposal, stop_tokens: frozenset[int]) -> Verdict:
    """End a verdict at its first stop token, which then is its own token: the rows behind it are not kept."""
    for depth, row in enumerate(verdict.path):
        if proposal.tokens[row] in stop_tokens:
            return replace(verdict, path=verdict.path[:depth], token=proposal.tokens[row])
    return verdict
