"""What a reply is made of, for the command line, the screen, the API and the tests. Plain values; knows no model."""

from dataclasses import dataclass, field
from typing import Any

from mlxspec.proposal import Proposal


@dataclass(frozen=True, slots=True)
class Prefill:
    """Progress through the prompt, in tokens."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Step:
    """One round of the loop. ``tokens`` are the emitted ones: the accepted rows of ``proposal`` along ``path``, then the target's own.

    The first step of a reply has no proposal: prefill gives its token. ``seconds`` has the keys draft, verify and other.
    """

    tokens: tuple[int, ...]
    proposal: Proposal | None = None
    path: tuple[int, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    drafter: str = "none"
    note: Any = None


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer, ready to print (may be empty while bytes are held back), and the round it came from.

    The last piece may come without a step: what was held back when the reply ended.
    """

    text: str
    step: Step | None


@dataclass(frozen=True, slots=True)
class Done:
    """The whole reply. ``finish_reason`` is stop, length, stop_string or interrupted; ``stats`` has the keys of ``generate --json``."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    model: str
    drafter: str
    accept: str
    exact: bool
    seed: int
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know, in one line."""

    text: str


Event = Prefill | Text | Done
ChatEvent = Event | Notice
