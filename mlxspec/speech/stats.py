"""What speech cost and gained: the counts of its segments together, and what an approximate rule logged. The keys are those of ``speak --json``."""

from collections.abc import Iterable, Sequence
from typing import Any

from mlxspec.core.events import Pace
from mlxspec.core.stats import Stats
from mlxspec.speech.mirror import Labelled

SUMS = ("prompt_tokens", "rounds", "drafted", "accepted", "emitted")


def together(parts: Sequence[Stats], speculation: str, reason: str | None) -> dict[str, Any]:
    """One report for several decodes."""
    reports = [part.report() for part in parts]
    total: dict[str, Any] = {name: sum(report[name] for report in reports) for name in SUMS}
    depths = [report["accepted_by_depth"] for report in reports]
    seconds = {key: sum(report["seconds"][key] for report in reports) for key in ("prefill", "draft", "verify", "other", "decode")}
    drafters: dict[str, dict[str, int]] = {}
    for report in reports:
        for name, counts in report["drafters"].items():
            one = drafters.setdefault(name, dict.fromkeys(counts, 0))
            for key, count in counts.items():
                one[key] += count
    return {
        **total,
        "tokens_per_round": total["emitted"] / total["rounds"] if total["rounds"] else 0.0,
        "acceptance": total["accepted"] / total["drafted"] if total["drafted"] else 0.0,
        "accepted_by_depth": [sum(row[i] for row in depths if i < len(row)) for i in range(max(map(len, depths), default=0))],
        "drafters": drafters,
        "seconds": seconds,
        "tokens_per_second": total["emitted"] / seconds["decode"] if seconds["decode"] > 0 else 0.0,
        "time_to_first_token": reports[0]["time_to_first_token"] if reports else None,
        "peak_memory_bytes": max((report["peak_memory_bytes"] for report in reports), default=0),
        "speculation": speculation,
        "reason": reason,
    }


def pace(parts: Sequence[Stats], tokens_per_second: float, first: float) -> Pace:
    """How several decodes fare together. A stage that waits for the player does no work, so its work is counted, not the time that passed."""
    parts = tuple(parts)
    work = sum(sum(part.seconds.values()) for part in parts)
    tokens = sum(part.emitted + (part.first is not None) for part in parts)
    return Pace(first, work * tokens_per_second / max(tokens, 1), sum(part.drafted for part in parts), sum(part.accepted for part in parts))


class LabelLog:
    """A running account of hidden labels."""

    def __init__(self) -> None:
        self.tokens = self.alike = self.sizes = 0
        self.apart = self.bound = 0.0

    def add(self, notes: Iterable[Labelled]) -> None:
        for note in notes:
            self.tokens += 1
            self.sizes += note.size
            self.bound += note.bound
            if note.bound > 0:
                self.alike += 1
                self.apart += note.apart

    def report(self) -> dict[str, Any] | None:
        """None where no label was logged. ``distance_bound``: the emitted tokens' law is no further than this from the target's, place by place."""
        if not self.tokens:
            return None
        return {
            "mean_group_size": self.sizes / self.tokens,
            "accepted_alike": self.alike,
            "within_group_distance": self.apart / self.alike if self.alike else 0.0,
            "distance_bound": self.bound / self.tokens,
        }
