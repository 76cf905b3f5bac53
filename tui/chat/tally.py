"""The running numbers of a reply, counted from its rounds while it streams. Plain values; knows no widget.

``accepted`` of ``drafted`` counts tree rows; tokens per round count the target's own token, so plain decoding has exactly 1.
"""

from collections import deque
from dataclasses import dataclass, field

from mlxspec import Step
from mlxspec.tui.chat.loops import Loops

PARTS = ("draft", "verify", "other")
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Depth:
    """How drafting fared at one depth: rounds that drafted so far, rounds that got there, rounds that kept that token."""

    drafted: int
    reached: int
    accepted: int


@dataclass
class Tally:
    """Counts of one reply. ``kept`` bounds how many rounds can be looked at afterwards."""

    kept: int = 2000
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    by_depth: list[list[int]] = field(default_factory=list)
    steps: deque[Step] = field(default_factory=deque)
    dropped: int = 0  # rounds before the first of ``steps``
    loops: Loops = field(default_factory=Loops)

    def add(self, step: Step) -> None:
        """Count a round. The first step of a reply is none: prefill gave its token."""
        self.tokens += len(step.tokens)
        self.loops.see(step.tokens)
        if step.proposal is None:
            return
        self.steps.append(step)
        if len(self.steps) > self.kept:
            self.steps.popleft()
            self.dropped += 1
        got = len(step.path)
        self.rounds += 1
        self.drafted += len(step.proposal)
        self.accepted += got
        self.emitted += len(step.tokens)
        deepest = max(step.proposal.depths, default=0)
        self.by_depth += [[0, 0, 0] for _ in range(deepest - len(self.by_depth))]
        for depth in range(deepest):
            self.by_depth[depth][0] += 1
            self.by_depth[depth][1] += got >= depth
            self.by_depth[depth][2] += got > depth
        for part in PARTS:
            self.seconds[part] += step.seconds.get(part, 0.0)

    @property
    def whole_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float | None:
        return self.emitted / self.whole_seconds if self.whole_seconds > 0 else None

    @property
    def tokens_per_round(self) -> float | None:
        return self.emitted / self.rounds if self.rounds else None

    @property
    def depths(self) -> list[Depth]:
        return [Depth(*counts) for counts in self.by_depth]

    def recent(self, rounds: int = 16) -> float | None:
        """Tokens a second over the last rounds."""
        last = list(self.steps)[-rounds:]
        seconds = sum(sum(step.seconds.values()) for step in last)
        return sum(len(step.tokens) for step in last) / seconds if seconds > 0 else None


def cell(accepted: int, most: int) -> str:
    """One round of the strip: the taller, the more was accepted."""
    return BARS[round((len(BARS) - 1) * min(accepted, most) / max(most, 1))]


def bar(share: float, width: int) -> str:
    """A bar of eighths.

    >>> bar(0.5, 4)
    '██  '
    """
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)
