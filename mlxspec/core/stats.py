"""What a reply cost and gained, counted from its steps. The keys are those of ``generate --json``.

``emitted`` leaves out the first token, which prefill gives; ``tokens_per_round`` counts the bonus token, so it is exactly 1 without drafts.
"""

import time
from typing import Any

import mlx.core as mx

from mlxspec.core.events import Step


class Stats:
    """A running count. ``start`` is the moment the reply was asked for."""

    def __init__(self, prompt_tokens: int, speculation: str, reason: str | None) -> None:
        self.prompt_tokens = prompt_tokens
        self.reused_tokens = 0  # of the prompt, in the cache already
        self.speculation = speculation
        self.reason = reason
        self.rounds = self.drafted = self.accepted = self.emitted = 0
        self.by_depth: list[int] = []
        self.by_drafter: dict[str, dict[str, int]] = {}
        self.seconds = {"prefill": 0.0, "draft": 0.0, "verify": 0.0, "other": 0.0}
        self.started = time.perf_counter()
        self.first: float | None = None
        self.last: float | None = None
        mx.reset_peak_memory()

    def add(self, step: Step) -> None:
        """Count a step as it was emitted: its tokens, and the accepted rows among them."""
        self.last = time.perf_counter()
        if step.proposal is None:
            self.first = self.last
            self.seconds["prefill"] = self.first - self.started
            return
        accepted = len(step.path)
        self.rounds += 1
        self.drafted += len(step.proposal)
        self.accepted += accepted
        self.emitted += len(step.tokens)
        self.by_depth += [0] * (accepted - len(self.by_depth))
        for depth in range(accepted):
            self.by_depth[depth] += 1
        one = self.by_drafter.setdefault(step.drafter, {"rounds": 0, "drafted": 0, "accepted": 0})
        one["rounds"] += 1
        one["drafted"] += len(step.proposal)
        one["accepted"] += accepted
        for key, seconds in step.seconds.items():
            self.seconds[key] += seconds

    def report(self) -> dict[str, Any]:
        decode = (self.last - self.first) if self.first is not None and self.last is not None else 0.0
        return {
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "emitted": self.emitted,
            "tokens_per_round": self.emitted / self.rounds if self.rounds else 0.0,
            "acceptance": self.accepted / self.drafted if self.drafted else 0.0,
            "accepted_by_depth": self.by_depth,
            "drafters": self.by_drafter,
            "seconds": {**self.seconds, "decode": decode},
            "tokens_per_second": self.emitted / decode if decode > 0 else 0.0,
            "time_to_first_token": self.first - self.started if self.first is not None else None,
            "peak_memory_bytes": mx.get_peak_memory(),
            "speculation": self.speculation,
            "reason": self.reason,
        }
