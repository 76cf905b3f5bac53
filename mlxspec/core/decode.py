"""The loop: propose, run, judge, keep. It serves every drafter and every rule, one text or several; plain decoding is the same loop with empty
proposals.

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
from mlxspec.core.sampling import Sampler
from mlxspec.core.sequence import Interrupted, TokenSequence
from mlxspec.core.target import Request, Rows, alone


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


def loop(
    sequence: TokenSequence, drafter: Drafter, policy: Policy, sampler: Sampler, prompt: Sequence[int], limits: Limits
) -> Generator[Prefill | Step | Request, Rows, str]:
    """Yield prefill progress, then a Step per round; return why it ended: stop, length or interrupted. What is to be read is yielded too, a Request,
    and answered with its Rows.

    The last emitted token is pending: not in the caches. ``emitted`` counts it; a stop token is emitted, and nothing after it.
    """
    target, room = sequence.target, limits.max_tokens if limits.max_tokens >= 0 else math.inf
    if target.context_length is not None:
        room = min(room, target.context_length - len(prompt))
    if room <= 0:
        return "length"
    shape = {"coupled": limits.coupled, "width": 1 if target.shape == "chain" else limits.width, "rows": limits.rows}
    history = list(prompt)
    try:
        rows = yield from sequence.read(prompt, drafter.taps, limits.cancel, drafter.known(prompt) if limits.reuse else 0)
        drafter.begin(prompt, rows.hidden, sequence.reused)
        verdict = policy(Proposal(), rows.logits, sampler.at(history, **shape))
        yield Step((verdict.token,), note=verdict.note)
        while True:
            history.append(token := verdict.token)
            room -= 1 + len(verdict.path)
            if token in limits.stop_tokens:
                return "stop"
            if room <= 0:
                return "length"
            if limits.cancel is not None and limits.cancel.is_set():
                return "interrupted"

            started = time.perf_counter()
            limit = int(min(drafter.depth if limits.draft_tokens is None else limits.draft_tokens, room - 1))
            context = sampler.at(history, **shape)
            proposal = target.admit(drafter.propose(token, limit, context), limit, sampler.vocab_size)
            drafted = time.perf_counter()
            rows = yield from sequence.run(token, proposal, drafter.taps, context)
            verdict = _cut(policy(proposal, rows.logits, context), proposal, limits.stop_tokens)
            verified = time.perf_counter()
            sequence.keep(verdict.path)
            drafter.accept(verdict.path, verdict.token, rows.hidden)
            ended = time.perf_counter()

            accepted = [proposal.tokens[row] for row in verdict.path]
            history += accepted
            seconds = {"draft": drafted - started, "verify": verified - drafted, "other": ended - verified}
            yield Step((*accepted, verdict.token), proposal, verdict.path, seconds, drafter.name, verdict.note)
    except Interrupted:
        return "interrupted"
    finally:
        sequence.settle()


def decode(
    sequence: TokenSequence, drafter: Drafter, policy: Policy, sampler: Sampler, prompt: Sequence[int], limits: Limits
) -> Generator[Prefill | Step, None, str]:
    """The loop of one text by itself."""
    return (yield from alone(loop(sequence, drafter, policy, sampler, prompt, limits)))


def _cut(verdict: Verdict, proposal: Proposal, stop_tokens: frozenset[int]) -> Verdict:
    """End a verdict at its first stop token, which then is its own token: the rows behind it are not kept."""
    for depth, row in enumerate(verdict.path):
        if proposal.tokens[row] in stop_tokens:
            return replace(verdict, path=verdict.path[:depth], token=proposal.tokens[row])
    return verdict
